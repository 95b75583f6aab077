//! Takes over the socket that a service manager announces by `LISTEN_FDS`.

use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::{FdFlags, fcntl_setfd};
use rustix::net::{AddressFamily, SocketType, sockopt};

use crate::inherited::{InheritedListener, InheritedListenerError};

/// The first descriptor that a service manager passes.
const FIRST: i32 = 3;

static IS_TAKEN: AtomicBool = AtomicBool::new(false);

/// The listening socket of the service manager, if it passes one to this process.
///
/// Must be called before the process opens a descriptor or forks; a second call returns `None`.
pub fn inherited_listener() -> Result<Option<InheritedListener>, InheritedListenerError> {
    // Without its own pid, the variables are those of a parent.
    let own = std::process::id().to_string();
    if std::env::var("LISTEN_PID").is_ok_and(|pid| pid.trim() != own) {
        return Ok(None);
    }
    let (Ok(_), Ok(count)) = (std::env::var("LISTEN_PID"), std::env::var("LISTEN_FDS")) else {
        return Ok(None);
    };
    match count.trim() {
        "0" | "" => return Ok(None),
        "1" => {}
        _ => return Err(InheritedListenerError::Count(count)),
    }
    if IS_TAKEN.swap(true, Ordering::Relaxed) {
        return Ok(None);
    }
    let failed = |error: rustix::io::Errno| InheritedListenerError::Descriptor(error.into());
    // SAFETY: the number is only used for a call that fails if it is not open.
    fcntl_setfd(unsafe { BorrowedFd::borrow_raw(FIRST) }, FdFlags::CLOEXEC).map_err(failed)?;
    // SAFETY: it is open, the service manager passes it to this process, and the flag above keeps it from a second owner.
    let socket = unsafe { OwnedFd::from_raw_fd(FIRST) };
    let is_listening = sockopt::socket_acceptconn(&socket).unwrap_or(false);
    if !is_listening || sockopt::socket_type(&socket).map_err(failed)? != SocketType::STREAM {
        return Err(InheritedListenerError::NotListening);
    }
    match sockopt::socket_domain(&socket).map_err(failed)? {
        AddressFamily::INET | AddressFamily::INET6 => {
            Ok(Some(InheritedListener::Tcp(socket.into())))
        }
        AddressFamily::UNIX => Ok(Some(InheritedListener::Unix(socket.into()))),
        _ => Err(InheritedListenerError::NotListening),
    }
}
