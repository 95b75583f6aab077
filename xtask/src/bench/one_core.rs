//! Keeps the client and a server on one core for a while.
//!
//! Where the scheduler puts the two decides whether a wake-up crosses cores, which costs more than
//! a small request does; on one core the same work always takes the same path.

use rustix::io::Errno;
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};

use super::contestant::Server;
use super::failure::Result;

/// While this exists, the calling thread and the server share a core; the server stays there
/// afterwards.
pub struct OneCore {
    usual: CpuSet,
}

impl OneCore {
    /// Puts the server onto the core that this thread is on, and keeps this thread there.
    pub fn share_with(server: &Server<'_>) -> Result<OneCore> {
        let usual = sched_getaffinity(None)?;
        let mut core = CpuSet::new();
        core.set(sched_getcpu());
        sched_setaffinity(None, &core)?;
        let shared = OneCore { usual };
        for thread in server.threads() {
            match sched_setaffinity(Pid::from_raw(thread), &core) {
                // The thread has ended since it was listed.
                Err(Errno::SRCH) => {}
                placed => placed?,
            }
        }
        Ok(shared)
    }
}

impl Drop for OneCore {
    fn drop(&mut self) {
        // The cores that were allowed before are allowed now.
        let _ = sched_setaffinity(None, &self.usual);
    }
}
