//! Reaps orphaned processes and removes their cgroups.

use std::time::Duration;

use crate::server::Server;

/// Orphans have no waiter, so they are reaped in batches: a burst of exits causes one pass.
const PAUSE: Duration = Duration::from_secs(1);

/// Reaps orphans after every exit of a child, and sleeps otherwise.
#[cfg(unix)]
pub async fn run_reaper(server: &Server) {
    use tokio::signal::unix::{SignalKind, signal};
    match signal(SignalKind::child()) {
        Ok(mut ended) => {
            while ended.recv().await.is_some() {
                tokio::time::sleep(PAUSE).await;
                exec_server_os::reap_orphans();
                server.spawner.sweep_cgroups();
            }
        }
        Err(error) => {
            tracing::warn!(%error, "cannot watch SIGCHLD; orphans are reaped only when a process tree ends")
        }
    }
    std::future::pending().await
}

/// Never resolves: this platform has nothing to reap.
#[cfg(not(unix))]
pub async fn run_reaper(_server: &Server) {
    std::future::pending().await
}
