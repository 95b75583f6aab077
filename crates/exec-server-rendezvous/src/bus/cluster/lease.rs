//! The lease of a node: taken at the start, renewed every second, given up at the end.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::nats::NatsError;
use super::{NodeConfig, Shared};
use crate::bus::Bus;
use crate::clock::Seconds;
use crate::membership::LEASE;
use crate::store::{HeldClaim, NodeReport, PostgresStore, StoreError};

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
            check_unanswered(&shared).await?;
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
        shared.handle_replaced(&environment, claim);
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
    let held = shared.state().claims.list();
    claim_again(shared, &held).await
}

/// Finds claims that were replaced without a message, lost with the table, or made for an earlier epoch.
async fn check_claims(shared: &Shared) -> Result<(), StoreError> {
    let (epoch, held) = {
        let state = shared.state();
        (state.epoch, state.claims.list())
    };
    let mut lost = Vec::new();
    for part in held.chunks(CLAIMS_PER_STATEMENT) {
        let names: Vec<&str> = part.iter().map(|it| it.environment.as_str()).collect();
        let entries = shared.store.entries(&shared.node.id, epoch, &names).await?;
        let is_lost = |it: &&HeldClaim| {
            let entry = entries.get(&it.environment).copied().unwrap_or_default();
            shared.check(&it.environment, entry)
        };
        lost.extend(part.iter().filter(is_lost).cloned());
    }
    if !lost.is_empty() {
        tracing::warn!(claims = lost.len(), "the database has lost claims; making them again");
        claim_again(shared, &lost).await?;
    }
    shared.store.prune_presence().await
}

/// Finds claims that were made although there was no answer; the sockets that asked for them are gone.
async fn check_unanswered(shared: &Shared) -> Result<(), StoreError> {
    let (epoch, unanswered) = {
        let mut state = shared.state();
        (state.epoch, state.claims.take_unanswered())
    };
    for (number, part) in unanswered.chunks(CLAIMS_PER_STATEMENT).enumerate() {
        let names: Vec<&str> = part.iter().map(String::as_str).collect();
        let entries = shared.store.entries(&shared.node.id, epoch, &names).await;
        let mut state = shared.state();
        let entries = entries.inspect_err(|_| {
            let rest = &unanswered[number * CLAIMS_PER_STATEMENT..];
            rest.iter().for_each(|environment| state.claims.handle_unanswered(environment));
        });
        for (environment, entry) in entries? {
            if let Some(claim) = state.claims.check_unanswered(&environment, entry) {
                state.release_later(environment, claim);
            }
        }
    }
    Ok(())
}

/// Claims executors that are attached here once more; those that were replaced meanwhile are closed.
async fn claim_again(shared: &Shared, held: &[HeldClaim]) -> Result<(), StoreError> {
    for part in held.chunks(CLAIMS_PER_STATEMENT) {
        let epoch = shared.state().epoch;
        let claims = shared.store.claim_again(&shared.node.id, epoch, part).await?;
        for (it, claimed) in part.iter().zip(claims) {
            match claimed {
                Some(claimed) => {
                    if let Some(previous) = claimed.previous {
                        shared.tell_superseded(&it.environment, previous);
                    }
                    // The socket may have ended, and its claim have been released, before the statement.
                    let mut state = shared.state();
                    if state.claims.claim(&it.environment) != Some(it.claim) {
                        state.release_later(it.environment.clone(), it.claim);
                    }
                }
                None => shared.handle_replaced(&it.environment, it.claim),
            }
        }
    }
    Ok(())
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
