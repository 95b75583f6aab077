//! The lease of a node: taken at the start, renewed every second, given up at the end.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use exec_server_relay::switchboard::CloseReason;

use super::nats::NatsError;
use super::{Held, NodeConfig, Shared};
use crate::bus::Bus;
use crate::clock::Seconds;
use crate::membership::LEASE;
use crate::store::{ClaimId, ClaimRequest, Located, NodeReport, PostgresStore, StoreError};

/// Interval of renewals.
const RENEW_EVERY: Duration = Duration::from_secs(1);

/// Renewals between two checks of all claims.
const ROUNDS_BETWEEN_CHECKS: u64 = 10;

/// Claims that are checked or made by one statement.
const CLAIMS_PER_STATEMENT: usize = 1000;

/// A clock that differs by more is worth a warning.
const NOTABLE_SECONDS: u64 = 5;

/// Why a node cannot join.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// NATS cannot be used.
    #[error(transparent)]
    Nats(#[from] NatsError),
    /// Another process has the node id.
    #[error(
        "another rendezvous runs as node `{0}`; give each node its own --node-id, or stop that one"
    )]
    InUse(String),
}

/// Takes the lease; after a crash that of the earlier process must lapse first.
pub async fn join(store: &PostgresStore, node: &NodeConfig) -> Result<u64, JoinError> {
    let deadline = Instant::now() + LEASE + RENEW_EVERY;
    loop {
        if let Some(epoch) = store.join(&node.id, &node.url).await? {
            return Ok(epoch);
        }
        if Instant::now() >= deadline {
            return Err(JoinError::InUse(node.id.clone()));
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Gives up the lease, so that executors are not looked for here and the node can start again at once.
pub async fn leave(shared: &Shared) {
    let epoch = shared.state().epoch;
    if let Err(error) = shared.store.leave(&shared.node.id, epoch).await {
        tracing::warn!(%error, "could not give up the lease; it lapses by itself");
    }
}

/// Learns the time of the database and the other nodes, before the first request.
pub async fn begin(shared: &Shared) {
    if let Err(error) = renew(shared).await {
        tracing::warn!(%error, "could not renew the lease");
    }
}

/// Renews the lease until the node stops.
pub async fn run_lease(shared: Arc<Shared>) {
    let mut has_warned = false;
    // Whether the claims are to be checked, until that has succeeded.
    let mut is_due = false;
    for round in 1_u64.. {
        tokio::select! {
            () = tokio::time::sleep(RENEW_EVERY) => {}
            () = shared.pause.requested() => {}
        }
        let is_paused = shared.pause.begin_check();
        is_due |= is_paused.is_some() || round.is_multiple_of(ROUNDS_BETWEEN_CHECKS);
        let checked = async {
            is_due |= renew(&shared).await? == Table::New;
            release_ended(&shared).await?;
            if is_due {
                check_claims(&shared).await?;
                is_due = false;
            }
            Ok::<_, StoreError>(())
        };
        match checked.await {
            Ok(()) => {
                has_warned = false;
                if is_paused.is_some_and(|stop| shared.pause.end_check(stop)) {
                    tracing::warn!("the process was stopped for a while; its claims were checked");
                    shared.local.wake_all();
                }
            }
            Err(error) if !has_warned => {
                tracing::warn!(%error, "could not renew the lease; attached sockets stay, new ones are refused");
                has_warned = true;
            }
            Err(error) => tracing::debug!(%error, "could not renew the lease"),
        }
    }
}

/// Whether the table of claims is the one that this epoch has marked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Table {
    Known,
    /// It was emptied by a crash of the database, or is new to this epoch.
    New,
}

async fn renew(shared: &Shared) -> Result<Table, StoreError> {
    let (epoch, renewed) = {
        let state = shared.state();
        (state.epoch, state.renewed)
    };
    // Others have declared this epoch dead, so it must not be used again; unless they heard it all the time.
    let (heard, held, is_disowned) = {
        let (now, mut state) = (Instant::now(), shared.state());
        let is_disowned = std::mem::take(&mut state.is_disowned);
        (state.membership.heard_since(now), state.membership.held_since(now), is_disowned)
    };
    if is_disowned {
        shared.store.leave(&shared.node.id, epoch).await?;
        return rejoin(shared).await.map(|()| Table::Known);
    }
    if renewed.elapsed() >= LEASE && held.is_none_or(|since| since >= renewed + LEASE) {
        return rejoin(shared).await.map(|()| Table::Known);
    }
    let (executors, streams) = shared.local.counts();
    let report = NodeReport {
        node: shared.node.id.clone(),
        epoch,
        is_leaving: shared.is_leaving.load(Ordering::Relaxed),
        is_deaf: shared.nats.is_some() && heard.is_none(),
        executors,
        streams,
    };
    let asked = Instant::now();
    let renewal = shared.store.renew(&report).await?;
    follow_clock(shared, renewal.time);
    {
        let mut state = shared.state();
        (state.renewed, state.is_held) = (asked, renewal.is_held);
    }
    if !renewal.is_held {
        return rejoin(shared).await.map(|()| Table::Known);
    }
    for (environment, claim) in renewal.superseded {
        close_if_held(shared, &environment, claim);
    }
    let nodes = shared.store.nodes().await?;
    shared.state().membership.handle_leases(asked, nodes.into_iter().map(|node| node.lease));
    if renewal.is_marked {
        return Ok(Table::Known);
    }
    // Marked before the claims are checked: what is emptied in between is found by the next renewal.
    shared.store.mark_presence(&shared.node.id, epoch).await?;
    Ok(Table::New)
}

/// Releases claims that have ended while the database was away.
async fn release_ended(shared: &Shared) -> Result<(), StoreError> {
    let ended: Vec<_> = std::mem::take(&mut shared.state().unreleased).into_iter().collect();
    for (number, part) in ended.chunks(CLAIMS_PER_STATEMENT).enumerate() {
        if let Err(error) = shared.store.release(&shared.node.id, part).await {
            let mut state = shared.state();
            for (environment, claim) in &ended[number * CLAIMS_PER_STATEMENT..] {
                state.release_later(environment.clone(), *claim);
            }
            return Err(error);
        }
    }
    Ok(())
}

/// Takes a new epoch and claims every executor again.
async fn rejoin(shared: &Shared) -> Result<(), StoreError> {
    let Some(epoch) = shared.store.join(&shared.node.id, &shared.node.url).await? else {
        tracing::error!(node = shared.node.id, "another process holds the lease of this node");
        return Ok(());
    };
    tracing::warn!(epoch, "the lease had lapsed; the node goes on with a new epoch");
    {
        let mut state = shared.state();
        (state.epoch, state.renewed, state.is_held) = (epoch, Instant::now(), true);
    }
    if let Some(nats) = &shared.nats {
        nats.trunks.set_epoch(epoch);
    }
    claim_again(shared, |_, _| true).await
}

/// Finds claims that were replaced without a message, lost with the table, or made for an earlier epoch.
async fn check_claims(shared: &Shared) -> Result<(), StoreError> {
    let (epoch, held): (u64, Vec<(String, ClaimId)>) = {
        let state = shared.state();
        let held = state.held.iter().map(|(name, held)| (name.clone(), held.claim));
        (state.epoch, held.collect())
    };
    let mut lost = BTreeSet::new();
    for part in held.chunks(CLAIMS_PER_STATEMENT) {
        let located = locate_all(shared, part.iter().map(|(name, _)| name)).await?;
        for (name, claim) in part {
            match located.get(name) {
                Some(found) if found.claim > *claim => close_if_held(shared, name, *claim),
                Some(found) if found.lease.as_ref().is_some_and(|it| it.epoch == epoch) => {}
                _ => {
                    lost.insert(name.clone());
                }
            }
        }
    }
    if !lost.is_empty() {
        tracing::warn!(claims = lost.len(), "the database has lost claims; making them again");
        claim_again(shared, |name, _| lost.contains(name)).await?;
    }
    shared.store.prune_presence().await
}

async fn locate_all<'a>(
    shared: &Shared,
    names: impl Iterator<Item = &'a String>,
) -> Result<BTreeMap<String, Located>, StoreError> {
    let names: Vec<String> = names.cloned().collect();
    let located = shared.store.locate(&names).await?;
    Ok(located.into_iter().map(|it| (it.environment.clone(), it)).collect())
}

/// Claims executors that are attached here once more; those that another node has meanwhile are closed.
async fn claim_again(
    shared: &Shared,
    is_wanted: impl Fn(&str, &Held) -> bool,
) -> Result<(), StoreError> {
    let wanted: Vec<(ClaimRequest, ClaimId)> = {
        let state = shared.state();
        let wanted = state.held.iter().filter(|(name, held)| is_wanted(name, held));
        let request = |(name, held): (&String, &Held)| {
            let request = ClaimRequest {
                environment: name.clone(),
                registration: held.registration.clone(),
                generation: held.claim.generation,
            };
            (request, held.claim)
        };
        wanted.map(request).collect()
    };
    for part in wanted.chunks(CLAIMS_PER_STATEMENT) {
        let epoch = shared.state().epoch;
        let located = locate_all(shared, part.iter().map(|(it, _)| &it.environment)).await?;
        // An executor that has moved on to another node must not be taken back.
        let has_moved = |it: &(ClaimRequest, ClaimId)| {
            located.get(&it.0.environment).is_some_and(|at| at.claim > it.1)
        };
        let (moved, ours): (Vec<_>, Vec<_>) = part.iter().cloned().partition(has_moved);
        for (request, claim) in moved {
            close_if_held(shared, &request.environment, claim);
        }
        let requests: Vec<ClaimRequest> = ours.iter().map(|(it, _)| it.clone()).collect();
        let claims = shared.store.claim(&shared.node.id, epoch, &requests).await?;
        for ((request, old), new) in ours.into_iter().zip(claims) {
            let Some(new) = new.map(|it| it.claim) else {
                close_if_held(shared, &request.environment, old);
                continue;
            };
            let mut state = shared.state();
            match state.held.get_mut(&request.environment).filter(|held| held.claim == old) {
                Some(held) => held.claim = new,
                None => drop(state),
            }
        }
    }
    Ok(())
}

/// Closes the executor of a claim that was replaced.
pub fn close_if_held(shared: &Shared, environment: &str, claim: ClaimId) {
    let is_held = shared.state().held.get(environment).is_some_and(|it| it.claim <= claim);
    if is_held {
        tracing::info!(environment, "the executor is attached to another node now");
        shared.state().counts.superseded += 1;
        shared.local.close_executor(environment, CloseReason::Superseded);
    }
}

/// Moves this node's clock to that of the database, so that nodes agree on what has expired.
fn follow_clock(shared: &Shared, time: Seconds) {
    let difference = shared.clock.follow(time);
    {
        let mut state = shared.state();
        if difference.abs_diff(state.noted_difference) <= NOTABLE_SECONDS {
            return;
        }
        state.noted_difference = difference;
    }
    tracing::warn!(
        seconds = difference,
        database = shared.store.address(),
        "the clock of this machine differs from that of PostgreSQL, which is used instead; set it, for example with NTP"
    );
}
