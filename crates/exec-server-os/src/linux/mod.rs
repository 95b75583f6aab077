//! Linux: clone, pipes, terminals, process trees, cgroups and the guardian.

pub mod cgroup;
pub mod destination;
pub mod exit_watch;
pub mod files;
pub mod foreground;
pub mod guardian;
pub mod leftovers;
pub mod mark;
pub mod missing_watch;
pub mod oom;
pub mod own_terminal;
pub mod peer;
pub mod pipes;
pub mod placeholders;
pub mod process_tree;
pub mod sandbox;
pub mod search;
pub mod signals;
pub mod spawner;
pub mod startup;
pub mod temp_registry;
pub mod tree_watch;

mod child;
mod file_lock;
mod procfs;
mod terminal;

#[cfg(test)]
mod testing;

use std::io;
use std::os::fd::OwnedFd;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Converts the result of a libc call that returns -1 on failure.
fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Reaps children until `wanted` has exited, and returns its wait status; `None` if there are no children left.
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

/// Registers a non-blocking descriptor with the runtime.
fn register(fd: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an OwnedFd always names the same open descriptor until it is dropped, and the AsyncFd owns it.
    unsafe { AsyncFd::register_with_interest(fd, interest) }.map_err(Into::into)
}
