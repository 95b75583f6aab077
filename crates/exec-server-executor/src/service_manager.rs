//! Tells a service manager such as systemd that the server is ready, stopping, or still alive.

use std::time::Duration;

use exec_server_os::NotifySocket;

/// The service manager that started this process, if there is one.
#[derive(Debug, Default)]
pub struct ServiceManager {
    socket: Option<NotifySocket>,
    /// The service is restarted if it sends nothing for this long.
    watchdog: Option<Duration>,
}

impl ServiceManager {
    /// Reads `NOTIFY_SOCKET`, `WATCHDOG_USEC` and `WATCHDOG_PID`.
    pub fn from_environment() -> Self {
        let socket = NotifySocket::from_environment().unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot notify the service manager");
            None
        });
        Self { socket, watchdog: exec_server_os::watchdog_interval() }
    }

    /// The service can be used; `status` is shown by `systemctl status`.
    pub fn ready(&self, status: &str) {
        self.send(&format!("READY=1\nSTATUS={status}"));
    }

    /// The service is shutting down.
    pub fn stopping(&self) {
        self.send("STOPPING=1");
    }

    /// Reports from this event loop that it still runs, twice per watchdog interval; never returns.
    pub async fn run_watchdog(&self) {
        let (Some(interval), Some(_)) = (self.watchdog, &self.socket) else {
            return std::future::pending().await;
        };
        loop {
            self.send("WATCHDOG=1");
            tokio::time::sleep(interval / 2).await;
        }
    }

    fn send(&self, text: &str) {
        let Some(socket) = &self.socket else { return };
        if let Err(error) = socket.send(text.as_bytes()) {
            tracing::warn!(%error, "cannot notify the service manager");
        }
    }
}
