//! Signals of a command that runs in the foreground.
//!
//! The command has its own session, so the signals of terminal keys reach this process only, which forwards them.
//! Owner: the program's only thread, below the guardian.

use std::io;

use super::check;
use super::exit_watch::{own_peak, reap};
use super::guardian::PASSED_ON;
use super::process_tree::ProcessTree;
use crate::spawn::{ExitStatus, SpawnError};

/// Blocked signals that this process forwards to the command; by default they would kill it before it cleans up.
#[derive(Debug)]
pub struct HeldSignals {
    set: libc::sigset_t,
    parent: u32,
}

impl HeldSignals {
    /// Blocks the signals; must be called before any thread is started, and after the guardian was entered.
    pub fn hold() -> io::Result<Self> {
        // SAFETY: the set is plain memory that the calls fill.
        let set = unsafe {
            let mut set = std::mem::zeroed();
            libc::sigemptyset(&raw mut set);
            // The end of a child is awaited as a signal as well.
            for signal in PASSED_ON.into_iter().chain([libc::SIGCHLD]) {
                libc::sigaddset(&raw mut set, signal);
            }
            check(libc::sigprocmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()))?;
            set
        };
        Ok(Self { set, parent: std::os::unix::process::parent_id() })
    }

    /// Forwards signals to the tree until its root `pid` has exited, and returns the exit status.
    pub fn forward_until_exit(
        &self,
        pid: libc::pid_t,
        tree: &ProcessTree,
    ) -> Result<ExitStatus, SpawnError> {
        let failed = |step| move |source| SpawnError::Prepare { step, cause: source };
        loop {
            let signal = self.next().map_err(failed("signals"))?;
            if let Some(status) = reap(pid, own_peak()).map_err(failed("wait"))? {
                return Ok(status);
            }
            let signal = if self.is_guardian_gone() { libc::SIGKILL } else { signal };
            if signal != libc::SIGCHLD {
                // Ignore the error: the tree may have exited just now.
                let _ = tree.signal(signal);
            }
        }
    }

    fn next(&self) -> io::Result<libc::c_int> {
        loop {
            // SAFETY: the set is initialised, and a null info pointer is allowed.
            match check(unsafe { libc::sigwaitinfo(&raw const self.set, std::ptr::null_mut()) }) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => return result,
            }
        }
    }

    /// Whether the guardian has exited, so that no process waits for the command any more.
    fn is_guardian_gone(&self) -> bool {
        std::os::unix::process::parent_id() != self.parent
    }
}

/// Ignores stop signals: Ctrl-Z would stop this process while the command, in another session, runs on.
pub fn ignore_stops() {
    for signal in [libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU] {
        // SAFETY: no handler is involved.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
}
