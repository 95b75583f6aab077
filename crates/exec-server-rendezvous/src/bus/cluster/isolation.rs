//! A node that reaches neither NATS nor the database lets its executors find another node.

use std::sync::Arc;
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
        let is_isolated = {
            let mut state = shared.state();
            has_others |= state.membership.list(now).len() > 1;
            let is_heard = state.membership.heard_since(now).is_some();
            !is_heard && state.renewed.elapsed() >= LEASE
        };
        if !is_isolated {
            (isolated_since, group) = (None, None);
            continue;
        }
        let since = *isolated_since.get_or_insert(now);
        // Without another node there is nothing to find.
        if !has_others || now < since + grace {
            continue;
        }
        let (executors, _) = shared.local.counts();
        let size = *group.get_or_insert_with(|| {
            tracing::error!(
                executors,
                "neither NATS nor PostgreSQL can be reached; closing executors"
            );
            executors.div_ceil(GROUPS)
        });
        shared.local.move_executors(size);
    }
}
