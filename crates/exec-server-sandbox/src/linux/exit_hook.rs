//! The exit hook of a sandboxed child: how pid 1 reports the exit, and what is released afterwards.

use std::os::fd::OwnedFd;
use std::sync::Mutex;
use std::task::{Context, Poll};

use exec_server_os::linux::exit_watch::ExitHook;
use exec_server_os::spawn::ExitStatus;

use super::exit_report::EndingWatch;
use super::teardown::{self, HeldMounts};
use super::warm_pool::RefillOnDrop;

/// What the exit of one sandboxed child is learned from, and what it releases.
#[derive(Debug)]
pub struct SandboxExit {
    ending: Option<EndingWatch>,
    mounts: Mutex<Option<HeldMounts>>,
    refill: Mutex<Option<RefillOnDrop>>,
}

impl SandboxExit {
    /// Holds the mounts until the exit; then the warm pool is refilled, or after a while if the command runs longer.
    pub fn new(
        ending: Option<EndingWatch>,
        mounts: Option<HeldMounts>,
        mut refill: Option<RefillOnDrop>,
    ) -> Self {
        refill.iter_mut().for_each(RefillOnDrop::refill_after_delay);
        Self { ending, mounts: Mutex::new(mounts), refill: Mutex::new(refill) }
    }
}

impl ExitHook for SandboxExit {
    fn poll_ending(&self, cx: &mut Context) -> Poll<Option<ExitStatus>> {
        self.ending.as_ref().map_or(Poll::Ready(None), |ending| ending.poll_ending(cx))
    }

    fn reap_later(&self, child: OwnedFd) {
        teardown::reap_later(child);
    }

    fn release_mounts(&self) {
        *self.mounts.lock().expect("no holder panics") = None;
    }

    fn release(&self) {
        self.release_mounts();
        *self.refill.lock().expect("no holder panics") = None;
    }
}
