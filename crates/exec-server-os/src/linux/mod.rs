//! Linux: clone, pipes, terminals, process trees, cgroups and the guardian.

pub mod cgroup;
pub mod exit_watch;
pub mod files;
pub mod foreground;
pub mod guardian;
pub mod litter;
pub mod missing_watch;
pub mod oom;
pub mod own_terminal;
pub mod pipes;
pub mod placeholders;
pub mod process_tree;
pub mod sandbox;
pub mod signals;
pub mod spawner;
pub mod startup;

mod child;
mod procfs;
mod terminal;

use std::io;
use std::os::fd::OwnedFd;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// The result of a libc call that returns -1 on failure.
fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Reaps whatever ends, until `wanted` does; says how that ended, unless there is nobody left to wait for.
fn reap_until(wanted: libc::pid_t) -> Option<libc::c_int> {
    loop {
        let mut status = 0;
        // SAFETY: fills a live local.
        let pid = unsafe { libc::waitpid(-1, &raw mut status, 0) };
        if pid == wanted {
            return Some(status);
        }
        let is_interrupted = io::Error::last_os_error().kind() == io::ErrorKind::Interrupted;
        if pid == -1 && !is_interrupted {
            return None;
        }
    }
}

/// Puts a non-blocking descriptor under the eye of the runtime.
fn register(fd: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an OwnedFd always names the same open descriptor until it is dropped, and the AsyncFd owns it.
    unsafe { AsyncFd::register_with_interest(fd, interest) }.map_err(Into::into)
}
