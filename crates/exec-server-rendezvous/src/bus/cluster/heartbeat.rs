//! Heartbeats: this node says that it is alive, and hears which others are.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use async_nats::Message as NatsMessage;
use prost::Message;

use super::Shared;
use super::nats::{Nats, next};
use crate::bus::Bus;
use crate::membership::{Beat, Load};
use crate::wire::Heartbeat;

/// In a larger cluster heartbeats are rarer, because every node hears all of them.
const LARGE_CLUSTER: usize = 20;
const BEAT_RARELY: Duration = Duration::from_millis(500);

/// Bounds what a faulty heartbeat can claim.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(10);
const LONGEST_INTERVAL: Duration = Duration::from_secs(1);

/// Sends and hears heartbeats until the node stops.
pub async fn run_heartbeat(shared: Arc<Shared>, every: Duration) {
    let Some(nats) = &shared.nats else { return };
    let mut beats = match nats.heartbeat.subscribe(nats.subjects.heartbeat()).await {
        Ok(beats) => beats,
        Err(error) => return tracing::error!(%error, "cannot subscribe to heartbeats"),
    };
    let mut due = tokio::time::Instant::now();
    let mut has_warned = false;
    loop {
        tokio::select! {
            () = tokio::time::sleep_until(due) => {
                let interval = interval(&shared, every);
                due = tokio::time::Instant::now() + interval;
                let beat = own_beat(&shared, nats, interval).encode_to_vec();
                // While disconnected nothing is queued: an old heartbeat says nothing.
                if nats.heartbeat.connection_state() == async_nats::connection::State::Connected {
                    let _ = nats.heartbeat.publish(nats.subjects.heartbeat(), beat.into()).await;
                }
                tick(&shared, nats);
            }
            message = next(&mut beats) => match message {
                Some(message) => handle_beat(&shared, nats, message, &mut has_warned),
                None => return,
            },
        }
    }
}

fn interval(shared: &Shared, every: Duration) -> Duration {
    let others = shared.state().membership.heard_nodes();
    if others < LARGE_CLUSTER { every } else { every.max(BEAT_RARELY) }
}

fn own_beat(shared: &Shared, nats: &Nats, interval: Duration) -> Heartbeat {
    let (executors, streams) = shared.local.counts();
    let (epoch, has_lease) = {
        let state = shared.state();
        (state.epoch, state.has_lease())
    };
    Heartbeat {
        node: shared.node.id.clone(),
        epoch,
        url: shared.node.url.clone(),
        is_leaving: shared.is_leaving.load(Ordering::Relaxed),
        interval_ms: interval.as_millis() as u32,
        executors: executors as u64,
        streams: streams as u64,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        database: nats.database.clone(),
        has_lease,
    }
}

fn handle_beat(shared: &Shared, nats: &Nats, message: NatsMessage, has_warned: &mut bool) {
    let Ok(beat) = Heartbeat::decode(message.payload) else { return };
    // Epoch 0 is the test message of a node that starts.
    if beat.epoch == 0 {
        return;
    }
    if beat.database != nats.database {
        if !std::mem::replace(has_warned, true) {
            tracing::error!(
                node = beat.node,
                url = beat.url,
                "a node of another cluster with the same name is on this NATS; its heartbeats are ignored"
            );
        }
        return;
    }
    let interval = Duration::from_millis(beat.interval_ms.into());
    let interval = interval.clamp(SHORTEST_INTERVAL, LONGEST_INTERVAL);
    let now = Instant::now();
    let mut state = shared.state();
    if beat.node == shared.node.id {
        if beat.epoch == state.epoch {
            state.membership.handle_own_beat(now, interval);
        }
        return;
    }
    let load =
        Load { executors: beat.executors, streams: beat.streams, version: beat.version.into() };
    let (node, epoch) = (beat.node.clone(), beat.epoch);
    let is_dead = state.membership.handle_beat(
        now,
        Beat {
            node: beat.node,
            epoch,
            url: beat.url.into(),
            is_leaving: beat.is_leaving,
            interval,
            has_lease: beat.has_lease,
            load,
        },
    );
    drop(state);
    if is_dead {
        nats.tell_disowned(&node, epoch);
    }
}

/// Ends links to nodes that are silent or dead.
fn tick(shared: &Shared, nats: &Nats) {
    let now = Instant::now();
    nats.trunks.tick(|node, epoch| shared.state().membership.state(now, node, epoch));
}
