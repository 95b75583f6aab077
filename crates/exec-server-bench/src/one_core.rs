//! Pins the client and a server to one core.
//!
//! A wake-up across cores costs more than a small request, and the scheduler decides whether one happens; on one core
//! the same work always takes the same path.

use rustix::io::Errno;
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};

use super::contestant::Server;
use super::failure::Result;

/// While this exists, the calling thread and the server share a core; the server stays there afterwards.
pub struct OneCore {
    usual: CpuSet,
}

impl OneCore {
    /// Moves the server to the core of this thread and pins this thread there.
    pub fn share_with(server: &Server<'_>) -> Result<OneCore> {
        let usual = sched_getaffinity(None)?;
        let mut core = CpuSet::new();
        core.set(sched_getcpu());
        sched_setaffinity(None, &core)?;
        let shared = OneCore { usual };
        for thread in server.threads() {
            match sched_setaffinity(Pid::from_raw(thread), &core) {
                // The thread has exited since it was listed.
                Err(Errno::SRCH) => {}
                placed => placed?,
            }
        }
        Ok(shared)
    }
}

impl Drop for OneCore {
    fn drop(&mut self) {
        // Restores the cores that were allowed before.
        let _ = sched_setaffinity(None, &self.usual);
    }
}
