//! Background thread that drops mount namespaces and reaps launchers, both of which can block.
//!
//! Dropping the last reference to a mount namespace waits for an RCU grace period. If the last process of a sandbox did
//! that, its exit would be noticed later. A launcher may still be exiting when its sandbox has ended.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{OnceLock, mpsc};
use std::thread;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Signal, WaitId, WaitIdOptions, pidfd_send_signal, waitid};

/// Keeps a mount namespace alive; drops it in the background.
#[derive(Debug)]
pub struct HeldMounts(Option<OwnedFd>);

impl HeldMounts {
    pub fn new(namespace: OwnedFd) -> Self {
        Self(Some(namespace))
    }
}

impl Drop for HeldMounts {
    fn drop(&mut self) {
        if let Some(namespace) = self.0.take() {
            finish_in_background(Remains::Mounts(namespace));
        }
    }
}

/// Reaps a child in the background that is about to exit.
pub fn reap_later(child: OwnedFd) {
    finish_in_background(Remains::Child(child));
}

enum Remains {
    Mounts(OwnedFd),
    Child(OwnedFd),
}

impl Remains {
    fn finish(self) {
        match self {
            Self::Mounts(namespace) => drop(namespace),
            Self::Child(child) => reap_in_time(&child),
        }
    }
}

/// Reaps a child that is about to exit; kills it if it does not exit in time, for example because it is stopped.
pub fn reap_in_time(child: &OwnedFd) {
    const GRACE: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };
    if !has_ended_within(child, GRACE) {
        let _ = pidfd_send_signal(child, Signal::KILL);
    }
    let _ = waitid(WaitId::PidFd(child.as_fd()), WaitIdOptions::EXITED);
}

/// Whether a process exits within `time`.
pub fn has_ended_within(process: &OwnedFd, time: Timespec) -> bool {
    let mut ended = [PollFd::new(process, PollFlags::IN)];
    matches!(rustix::io::retry_on_intr(|| poll(&mut ended, Some(&time))), Ok(1..))
}

fn finish_in_background(remains: Remains) {
    static TEARDOWN: OnceLock<Option<mpsc::Sender<Remains>>> = OnceLock::new();
    let teardown = TEARDOWN.get_or_init(|| {
        let (sender, ended) = mpsc::channel::<Remains>();
        let thread = thread::Builder::new().name("sandbox-teardown".to_owned());
        thread.spawn(move || ended.into_iter().for_each(Remains::finish)).ok().map(|_| sender)
    });
    match teardown {
        // If the thread is gone, the error returns the item and drops it here.
        Some(teardown) => drop(teardown.send(remains)),
        None => remains.finish(),
    }
}
