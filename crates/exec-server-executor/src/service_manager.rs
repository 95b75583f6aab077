//! Tells a service manager such as systemd that the server is ready, stopping, or still alive.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// The service manager that started this process, if there is one.
#[derive(Debug, Default)]
pub struct ServiceManager {
    socket: Option<(UnixDatagram, SocketAddr)>,
    /// The service is restarted if it sends nothing for this long.
    watchdog: Option<Duration>,
}

impl ServiceManager {
    /// Reads `NOTIFY_SOCKET` and `WATCHDOG_USEC`.
    pub fn from_environment() -> Self {
        let socket = std::env::var_os("NOTIFY_SOCKET").filter(|name| !name.is_empty());
        let socket = socket.and_then(|name| match open(name.as_bytes()) {
            Ok(socket) => Some(socket),
            Err(error) => {
                tracing::warn!(%error, "cannot notify the service manager");
                None
            }
        });
        let micros = std::env::var("WATCHDOG_USEC").ok().and_then(|text| text.parse().ok());
        let watchdog = micros.filter(|micros| *micros > 0).map(Duration::from_micros);
        Self { socket, watchdog }
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
        let Some((socket, manager)) = &self.socket else { return };
        if let Err(error) = socket.send_to_addr(text.as_bytes(), manager) {
            tracing::warn!(%error, "cannot notify the service manager");
        }
    }
}

fn open(name: &[u8]) -> io::Result<(UnixDatagram, SocketAddr)> {
    let address = match name {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        path => SocketAddr::from_pathname(std::ffi::OsStr::from_bytes(path))?,
    };
    let socket = UnixDatagram::unbound()?;
    // A service manager that reads nothing must not stop the event loop.
    socket.set_nonblocking(true)?;
    Ok((socket, address))
}
