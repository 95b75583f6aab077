//! The lease of a node: taken at the start, renewed every second, given up at the end.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use exec_server_relay::switchboard::CloseReason;

use super::nats::NatsError;
use super::{Held, NodeConfig, Shared};
use crate::bus::Bus;
use crate::membership::LEASE;
use crate::store::{ClaimId, ClaimRequest, NodeReport, PostgresStore, StoreError};

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

/// Renews the lease until the node stops.
pub async fn run_lease(shared: Arc<Shared>) {
    let mut has_warned = false;
    for round in 1_u64.. {
        tokio::select! {
            () = tokio::time::sleep(RENEW_EVERY) => {}
            () = shared.pause.requested() => {}
        }
        let is_paused = shared.pause.begin_check();
        let is_due = is_paused.is_some() || round.is_multiple_of(ROUNDS_BETWEEN_CHECKS);
        let renewed = match renew(&shared).await {
            Ok(()) if is_due => check_claims(&shared).await,
            renewed => renewed,
        };
        match renewed {
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

async fn renew(shared: &Shared) -> Result<(), StoreError> {
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
        return rejoin(shared).await;
    }
    if renewed.elapsed() >= LEASE && held.is_none_or(|since| since >= renewed + LEASE) {
        return rejoin(shared).await;
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
        return rejoin(shared).await;
    }
    for (environment, claim) in renewal.superseded {
        close_if_held(shared, &environment, claim);
    }
    let nodes = shared.store.nodes().await?;
    let mut state = shared.state();
    for node in nodes {
        state.membership.handle_lease(asked, node.lease);
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

/// Finds claims that were replaced without a message, or lost with the table.
async fn check_claims(shared: &Shared) -> Result<(), StoreError> {
    let held: Vec<(String, ClaimId)> =
        shared.state().held.iter().map(|(name, held)| (name.clone(), held.claim)).collect();
    let mut lost = std::collections::BTreeSet::new();
    for part in held.chunks(CLAIMS_PER_STATEMENT) {
        let names: Vec<String> = part.iter().map(|(name, _)| name.clone()).collect();
        let located = shared.store.locate(&names).await?;
        for (name, claim) in part {
            match located.iter().find(|it| it.environment == *name) {
                None => {
                    lost.insert(name.clone());
                }
                Some(found) if found.claim > *claim => close_if_held(shared, name, *claim),
                Some(_) => {}
            }
        }
    }
    if !lost.is_empty() {
        tracing::warn!(claims = lost.len(), "the database has lost claims; making them again");
        claim_again(shared, |name, _| lost.contains(name)).await?;
    }
    shared.store.prune_presence().await
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
        let names: Vec<String> = part.iter().map(|(it, _)| it.environment.clone()).collect();
        let located = shared.store.locate(&names).await?;
        // An executor that has moved on to another node must not be taken back.
        let has_moved = |it: &(ClaimRequest, ClaimId)| {
            located.iter().any(|at| at.environment == it.0.environment && at.claim > it.1)
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
fn follow_clock(shared: &Shared, time: crate::clock::Seconds) {
    let difference = shared.clock.follow(time);
    if difference.unsigned_abs() > NOTABLE_SECONDS {
        tracing::warn!(
            seconds = difference,
            "the clock of this machine differs from that of the database, which is used instead"
        );
    }
}
