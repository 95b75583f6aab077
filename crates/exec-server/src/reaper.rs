//! Reaps processes that lost their parent, so that none stays a zombie under this server.

use std::time::Duration;

use tokio::sync::Notify;

/// Orphans are nobody's to wait for, so they are looked after in passing.
const PAUSE: Duration = Duration::from_secs(2);

/// Wakes the task that looks after orphans.
#[derive(Debug, Default)]
pub struct Reaper {
    wake: Notify,
}

impl Reaper {
    /// A process has closed; it may have left somebody behind.
    pub fn wake(&self) {
        self.wake.notify_one();
    }

    /// Looks after orphans while there are any, and sleeps while there are none.
    pub async fn run(&self) {
        loop {
            self.wake.notified().await;
            // A burst of ends is one look.
            tokio::time::sleep(PAUSE).await;
            while exec_server_os::reap_orphans() {
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}
