//! Messages to the service manager (`NOTIFY_SOCKET`).
//!
//! With `NotifyAccess=main`, a service manager listens only to the process that it started. That is the guardian, so the
//! server sends its messages there; commands, which run in the same service, cannot speak for it.

use std::io;
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::Mutex;
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair,
};

use super::guardian;

/// Longest message; ours name a URL.
const MAX_MESSAGE_BYTES: usize = 4096;

/// The end of the server, which the first [`NotifySocket`] takes.
static TO_GUARDIAN: Mutex<Option<OwnedFd>> = Mutex::new(None);

/// The way to the service manager that started this program.
#[derive(Debug)]
pub enum NotifySocket {
    /// By the socket of the service manager.
    Direct(UnixDatagram, SocketAddr),
    /// By the guardian.
    Guardian(OwnedFd),
}

impl NotifySocket {
    /// The way to the service manager, if there is one.
    pub fn from_environment() -> io::Result<Option<Self>> {
        let inherited = TO_GUARDIAN.lock().expect("no holder panics").take();
        match inherited {
            Some(socket) => Ok(Some(Self::Guardian(socket))),
            None => Ok(open()?.map(|(socket, manager)| Self::Direct(socket, manager))),
        }
    }

    /// Sends a message without waiting: a service manager that reads nothing must not stop the event loop.
    pub fn send(&self, message: &[u8]) -> io::Result<()> {
        match self {
            Self::Direct(socket, manager) => {
                socket.send_to_addr(message, manager)?;
            }
            Self::Guardian(socket) => {
                send(socket, message, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)?;
            }
        }
        Ok(())
    }
}

/// The service is restarted if it sends no message for this long.
pub fn watchdog_interval() -> Option<Duration> {
    let number = |name| std::env::var(name).ok().and_then(|text| text.trim().parse::<u64>().ok());
    // The watchdog of a parent is not fed.
    let own = [Some(std::process::id()), guardian::pid()].map(|pid| pid.map(u64::from));
    if number("WATCHDOG_PID").is_some_and(|pid| !own.contains(&Some(pid))) {
        return None;
    }
    number("WATCHDOG_USEC").filter(|micros| *micros > 0).map(Duration::from_micros)
}

fn open() -> io::Result<Option<(UnixDatagram, SocketAddr)>> {
    let Some(name) = std::env::var_os("NOTIFY_SOCKET").filter(|name| !name.is_empty()) else {
        return Ok(None);
    };
    let address = match name.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        path => SocketAddr::from_pathname(std::ffi::OsStr::from_bytes(path))?,
    };
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    Ok(Some((socket, address)))
}

/// Both ends of the way from the server to its guardian; made before the fork.
pub struct NotifyRelay {
    manager: (UnixDatagram, SocketAddr),
    guardian: OwnedFd,
    server: OwnedFd,
}

impl NotifyRelay {
    /// `None` without a service manager; one that cannot be reached is reported when the server notifies it.
    pub fn prepare() -> Option<Self> {
        let manager = open().ok().flatten()?;
        // Unlike datagrams, packets of a sequence have an end.
        let flags = SocketFlags::CLOEXEC;
        let ends = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).ok()?;
        Some(Self { manager, guardian: ends.0, server: ends.1 })
    }

    /// Keeps the server's end for the first [`NotifySocket`].
    pub fn enter_server(self) {
        *TO_GUARDIAN.lock().expect("no holder panics") = Some(self.server);
    }

    /// Passes messages on until the server has exited.
    pub fn enter_guardian(self) -> Option<JoinHandle<()>> {
        let Self { manager: (socket, manager), guardian, server } = self;
        drop(server);
        let pass_on = move || {
            let mut message = [0; MAX_MESSAGE_BYTES];
            loop {
                match recv(&guardian, &mut message, RecvFlags::empty()) {
                    Ok((0, _)) => return,
                    Ok((count, _)) => drop(socket.send_to_addr(&message[..count], &manager)),
                    Err(rustix::io::Errno::INTR) => {}
                    Err(_) => return,
                }
            }
        };
        std::thread::Builder::new().name("notify".to_owned()).spawn(pass_on).ok()
    }
}
