//! A node that cannot serve its executors lets them find another node that can.
//!
//! | this node reaches | executors are closed after the grace |
//! |---|---|
//! | neither NATS nor the database | if it knew other nodes |
//! | NATS only | if another node says that it reaches the database; otherwise the database is away for all |
//! | the database only | if another node says that it hears heartbeats; otherwise NATS is away for all |
//!
//! Without this, an executor would stay where no new stream can reach it for as long as its connection lasts.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::Shared;
use crate::bus::Bus;
use crate::membership::LEASE;

/// Interval of checks, and between two groups of executors.
const STEP: Duration = Duration::from_millis(100);

/// Groups in which the executors are closed: over 5 s.
const GROUPS: usize = 50;

/// Watches until the node stops.
pub async fn run_isolation(shared: Arc<Shared>, grace: Duration) {
    let mut isolated_since = None;
    let mut group = None;
    let mut has_others = false;
    loop {
        tokio::time::sleep(STEP).await;
        let now = Instant::now();
        let (is_heard, has_lease, can_another_serve) = {
            let mut state = shared.state();
            has_others |= state.membership.list(now).len() > 1;
            let is_heard = state.membership.heard_since(now).is_some();
            let can = state.membership.can_another_serve(now, &shared.node.id);
            (is_heard, state.has_lease(), can)
        };
        let (is_isolated, grace) = match (is_heard, has_lease) {
            (true, true) => (false, grace),
            // Without another node there is nothing to find.
            (false, false) => (has_others, grace),
            // If the engine is away for all, the others notice within a lease.
            _ => (can_another_serve, grace.max(LEASE)),
        };
        if !is_isolated {
            (isolated_since, group) = (None, None);
            shared.is_isolated.store(false, Ordering::Relaxed);
            continue;
        }
        if now < *isolated_since.get_or_insert(now) + grace {
            continue;
        }
        let (executors, _) = shared.local.counts();
        let size = *group.get_or_insert_with(|| {
            tracing::error!(
                executors,
                reaches_nats = is_heard,
                reaches_database = has_lease,
                "this node cannot serve its executors and others can; closing executors so that they find another node"
            );
            executors.div_ceil(GROUPS)
        });
        // An executor that comes back meanwhile would be closed again.
        shared.is_isolated.store(true, Ordering::Relaxed);
        shared.local.move_executors(size);
    }
}
