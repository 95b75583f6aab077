//! Linux: clone, pipes, terminals, process trees, cgroups and the guardian.
//!
//! | look here | for |
//! |---|---|
//! | `spawner`, `command`, `child`, `standard_streams`, `startup` | a start: on a thread, from arguments to exec |
//! | `pipes`, `terminal`, `own_terminal` | output, input, terminals |
//! | `exit_watch`, `signals`, `held_signals` | the end of a process, signals by name and by number |
//! | `process_tree`, `procfs`, `cgroup`, `mark`, `peer` | which processes belong together, and to whom |
//! | `guardian`, `leftovers`, `temp_registry`, `file_lock`, `directory` | what is removed after a kill |
//! | `notify`, `inherited` | messages to a service manager, and its socket |
//! | `credentials`, `capabilities`, `keyring`, `oom` | rights of a child, memory kills |

pub mod capabilities;
pub mod cgroup;
pub mod child;
pub mod command;
pub mod credentials;
pub mod directory;
pub mod exit_watch;
pub mod file_lock;
pub mod guardian;
pub mod held_signals;
pub mod inherited;
pub mod keyring;
pub mod leftovers;
pub mod mark;
pub mod notify;
pub mod oom;
pub mod own_terminal;
pub mod peer;
pub mod pipes;
pub mod process_tree;
pub mod procfs;
pub mod signals;
pub mod spawner;
pub mod standard_streams;
pub mod startup;
pub mod temp_registry;

mod terminal;

#[cfg(any(test, feature = "testing"))]
pub mod testing;

use std::io;
use std::os::fd::OwnedFd;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Converts the result of a libc call that returns -1 on failure.
pub fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Reaps children until `wanted` has exited, and returns its wait status; `None` if there are no children left.
pub fn reap_until(wanted: libc::pid_t) -> Option<libc::c_int> {
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
pub fn register(fd: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an OwnedFd always names the same open descriptor until it is dropped, and the AsyncFd owns it.
    unsafe { AsyncFd::register_with_interest(fd, interest) }.map_err(Into::into)
}
