//! Periodic work of a node: ended tokens, expired rows, free memory.

use exec_server_relay::switchboard::CloseReason;

use crate::clock::Seconds;
use crate::server::Rendezvous;
use crate::store::TokenEnd;

/// Pruning is rare: queries ignore expired rows.
const ROUNDS_BETWEEN_PRUNES: u64 = 15;

/// Memory of a connection that has carried much, beside its queues: its read and write buffers.
const CONNECTION_BYTES: usize = 128 * 1024;

/// Less than this is not worth a search of the heap.
const WORTH_RELEASING: usize = 8 * 1024 * 1024;

/// Returns memory to the system after a burst; the allocator would keep it.
pub async fn release_memory(rendezvous: &Rendezvous) {
    let Some(release) = rendezvous.config.release_memory else {
        return std::future::pending().await;
    };
    let mut peak = 0;
    loop {
        tokio::time::sleep(rendezvous.config.timings.maintenance).await;
        let budget = rendezvous.bus.budget();
        let sockets = rendezvous.metrics.open_connections() * CONNECTION_BYTES;
        peak = peak.max(budget.take_peak() + sockets);
        let load = budget.used() + sockets;
        if peak - load.min(peak) >= WORTH_RELEASING {
            // Blocks for some milliseconds, so it runs beside the event loop.
            let _ = tokio::task::spawn_blocking(release).await;
            peak = load;
        }
    }
}

/// Prunes expired rows and closes sockets whose token expired or was revoked by another process.
pub async fn maintain(rendezvous: &Rendezvous) {
    let every = rendezvous.config.timings.maintenance;
    let clock = &rendezvous.config.clock;
    let mut since = clock.now();
    for round in 0_u64.. {
        tokio::time::sleep(every).await;
        let now = clock.now();
        let store = &rendezvous.store;
        match store.recover().await {
            Ok(true) => tracing::info!("disk space is available again"),
            Ok(false) => {}
            Err(error) => tracing::warn!(%error, "could not reopen the store"),
        }
        // A failed prune must not keep sockets with an ended token open.
        if round.is_multiple_of(ROUNDS_BETWEEN_PRUNES)
            && let Err(error) = store.prune(now).await
        {
            tracing::warn!(%error, "could not prune the store");
        }
        match store.ended_since(since, now).await {
            Ok(ended) => {
                let why = |end| match end {
                    TokenEnd::Revoked => CloseReason::Revoked,
                    TokenEnd::Expired => CloseReason::Expired,
                };
                let ended = ended.into_iter().map(|(token, end)| (token, why(end))).collect();
                rendezvous.bus.end_tokens(&ended).await;
                // Overlap with the last interval: a socket may have attached while the query ran.
                since = now.min(clock.now()) - Seconds::from(5);
            }
            Err(error) => tracing::warn!(%error, "could not query expired and revoked tokens"),
        }
    }
}
