//! Reaps processes that lost their parent, so that none stays a zombie under this server, and no cgroup of theirs stays.

use std::time::Duration;

use crate::server::Server;

/// Orphans are nobody's to wait for, so they are looked after in passing: a burst of ends is one look.
const PAUSE: Duration = Duration::from_secs(1);

/// Looks after orphans whenever a child has ended, and sleeps while none does.
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
        Err(error) => tracing::warn!(%error, "orphans are only looked after when a tree ends"),
    }
    std::future::pending().await
}

/// There is nothing to reap.
#[cfg(not(unix))]
pub async fn run_reaper(_server: &Server) {
    std::future::pending().await
}
