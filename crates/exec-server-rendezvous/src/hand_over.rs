//! A node of a cluster that stops: its executors are closed one after the other, and other nodes take them over.
//!
//! ```text
//! signal ▶ leaving (not ready) ▶ wait for the balancer ▶ close executors evenly ▶ drain what is left
//! ```

use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;

use crate::membership::MemberState;
use crate::server::Rendezvous;

/// Time in which a balancer notices that the node is not ready; at most a fifth of the drain time.
const BALANCER: Duration = Duration::from_secs(2);

/// Interval between two groups of executors.
const STEP: Duration = Duration::from_millis(50);

/// Hands the executors over; returns at once if no other node stays.
pub async fn hand_over(rendezvous: &Rendezvous) {
    let Some(cluster) = &rendezvous.config.cluster else { return };
    let (time, bus) = (cluster.drain_time, &rendezvous.bus);
    bus.begin_leaving();
    let has_successor = || {
        let stays = |it: MemberState| matches!(it, MemberState::Alive | MemberState::Suspect);
        bus.members().iter().any(|(id, node)| *id != cluster.node.id && stays(node.state))
    };
    if time.is_zero() || !has_successor() {
        return;
    }
    tracing::info!(executors = bus.counts().0, ?time, "leaving the cluster");
    tokio::time::sleep(BALANCER.min(time / 5)).await;
    rendezvous.is_handing_over.store(true, Ordering::Relaxed);
    let (start, all) = (Instant::now(), bus.counts().0);
    let mut left = all;
    while left > 0 && has_successor() {
        let passed = start.elapsed().as_secs_f64() / time.as_secs_f64();
        let keep = (all as f64 * (1.0 - passed)).max(0.0) as usize;
        left = bus.move_executors(left.saturating_sub(keep));
        tokio::time::sleep(STEP.min(time)).await;
    }
}
