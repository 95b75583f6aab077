//! CPU-time budget for compiling one policy.
//!
//! The budget counts CPU time of this thread, so a slow disk or a busy machine does not exhaust it for a small policy.
//! Wall-clock time is bounded by the caller.

use std::cell::Cell;
use std::io;
use std::time::Duration;

/// More than any policy of an allowed size needs, unless its paths are constructed to be expensive.
pub const MOST_WORK: Duration = Duration::from_secs(2);

/// Reading the clock is a system call, so only every so many checks do.
const CHECKS_PER_READING: u32 = 16;

/// Measures the CPU time of the calling thread.
#[derive(Debug)]
pub struct WorkClock {
    since: Duration,
    checks: Cell<u32>,
}

impl WorkClock {
    /// Starts the measurement on the calling thread.
    pub fn start() -> Self {
        Self { since: now(), checks: Cell::new(0) }
    }

    /// Fails once the thread has used more than [`MOST_WORK`], up to 16 calls late.
    pub fn check(&self) -> io::Result<()> {
        let checks = self.checks.get() + 1;
        self.checks.set(checks % CHECKS_PER_READING);
        if checks < CHECKS_PER_READING || now().saturating_sub(self.since) <= MOST_WORK {
            return Ok(());
        }
        Err(too_much())
    }
}

#[cfg(all(target_os = "linux", not(exec_server_unsupported)))]
fn too_much() -> io::Error {
    // An errno, because a process of a sandbox can report only a number.
    io::Error::from_raw_os_error(libc::ETIME)
}

#[cfg(not(all(target_os = "linux", not(exec_server_unsupported))))]
fn too_much() -> io::Error {
    io::ErrorKind::TimedOut.into()
}

#[cfg(all(target_os = "linux", not(exec_server_unsupported)))]
fn now() -> Duration {
    use rustix::time::{ClockId, clock_gettime};
    clock_gettime(ClockId::ThreadCPUTime).try_into().unwrap_or_default()
}

#[cfg(not(all(target_os = "linux", not(exec_server_unsupported))))]
fn now() -> Duration {
    use std::sync::OnceLock;
    use std::time::Instant;
    static BEGIN: OnceLock<Instant> = OnceLock::new();
    BEGIN.get_or_init(Instant::now).elapsed()
}
