//! A sandbox that is ready, or about to be, and waits to be told what to run; the server's side of it.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::event::Timespec;

use super::launch::{Launch, Launched, limit};
use super::launcher::{Errand, Preparation};
use super::network::QuietNetwork;
use super::packet;
use super::undertaker::{has_ended_within, reap_in_time};
use crate::linux::cgroup::Cgroup;

/// What a sandbox has to be like before anything can run in it.
#[derive(Debug, Clone)]
pub struct Needs {
    /// What is made ahead; nothing without namespaces.
    pub preparation: Option<Preparation>,
    /// The network that it shares with others, if it has none of the machine's.
    pub network: Option<Arc<QuietNetwork>>,
}

impl Needs {
    /// Whether they are the same, and the network not just one like it.
    pub fn are_met_by(&self, other: &Self) -> bool {
        let is_same = match (&self.network, &other.network) {
            (Some(network), Some(other)) => Arc::ptr_eq(network, other),
            (None, None) => true,
            _ => false,
        };
        is_same && self.preparation == other.preparation
    }
}

/// A sandbox with nothing in it; it ends when this is dropped, which may take a moment.
pub struct PreparedSandbox {
    /// Missing once it was handed over.
    parts: Option<Launched>,
    /// Where it is told what to run; if this is closed instead, it ends.
    errand: Option<OwnedFd>,
}

impl PreparedSandbox {
    /// Takes over a launcher that waits at the other end of `errand`.
    pub fn new(parts: Launched, errand: OwnedFd) -> Self {
        Self { parts: Some(parts), errand: Some(errand) }
    }

    /// Whether it has failed, or somebody has killed it.
    pub fn has_ended(&self) -> bool {
        const NOW: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
        self.parts.as_ref().is_none_or(|parts| has_ended_within(&parts.pidfd, NOW))
    }

    /// Tells it what to run. `BrokenPipe` means that it has ended already.
    pub fn assign(&self, launch: &Launch, plan: &OwnedFd) -> io::Result<()> {
        let (Some(parts), Some(errand)) = (&self.parts, &self.errand) else {
            return Err(io::ErrorKind::NotConnected.into());
        };
        let tag = launch.tag.as_limit();
        // SAFETY: reads a live local; the process is our own unreaped child.
        // It may fail under a lowered hard limit, and then trees are told apart by session only.
        unsafe {
            libc::prlimit(parts.pid, libc::RLIMIT_RTTIME, &raw const tag, std::ptr::null_mut());
        }
        if let Some(cgroup) = launch.cgroup {
            let pid = parts.pid.to_string();
            match rustix::io::write(cgroup.procs(), pid.as_bytes()) {
                Err(rustix::io::Errno::SRCH) => return Err(io::ErrorKind::BrokenPipe.into()),
                written => written?,
            };
        }
        let mut fds = launch.stdio.to_vec();
        fds.push(plan.as_fd());
        fds.extend(launch.cgroup.map(Cgroup::procs));
        let message = Errand { tag: limit(tag), has_cgroup: launch.cgroup.is_some() };
        match packet::send(errand, &message, &fds) {
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {
                Err(io::ErrorKind::BrokenPipe.into())
            }
            sent => sent,
        }
    }

    /// Leaves it to whoever will wait for its end.
    pub fn hand_over(mut self) -> Launched {
        let parts = self.parts.take().expect("it is handed over once");
        Launched { inside: self.errand.take(), ..parts }
    }
}

impl Drop for PreparedSandbox {
    fn drop(&mut self) {
        self.errand = None;
        if let Some(parts) = self.parts.take() {
            reap_in_time(&parts.pidfd);
        }
    }
}
