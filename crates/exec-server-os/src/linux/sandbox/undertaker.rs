//! Waits for what a sandbox leaves when it has ended, on a thread that may wait, so that nobody else has to.
//!
//! Whoever drops the last reference to a mount namespace waits until the kernel is sure that nobody looks at it any more.
//! If that were the last process of a sandbox, its end would be noticed that much later. And a launcher is still on
//! its way out when its sandbox is over.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{OnceLock, mpsc};
use std::thread;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Signal, WaitId, WaitIdOptions, pidfd_send_signal, waitid};

/// A mount namespace that stays until this is dropped.
#[derive(Debug)]
pub struct HeldMounts(Option<OwnedFd>);

impl HeldMounts {
    /// Takes it over.
    pub fn new(namespace: OwnedFd) -> Self {
        Self(Some(namespace))
    }
}

impl Drop for HeldMounts {
    fn drop(&mut self) {
        if let Some(namespace) = self.0.take() {
            leave_to_undertaker(Remains::Mounts(namespace));
        }
    }
}

/// Reaps a child of this process that is about to end.
pub fn see_off(child: OwnedFd) {
    leave_to_undertaker(Remains::Child(child));
}

enum Remains {
    Mounts(OwnedFd),
    Child(OwnedFd),
}

impl Remains {
    fn bury(self) {
        match self {
            Self::Mounts(namespace) => drop(namespace),
            Self::Child(child) => reap_in_time(&child),
        }
    }
}

/// Reaps a child that is about to end, and kills it if somebody has stopped it.
pub fn reap_in_time(child: &OwnedFd) {
    const PATIENCE: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };
    if !has_ended_within(child, PATIENCE) {
        let _ = pidfd_send_signal(child, Signal::KILL);
    }
    let _ = waitid(WaitId::PidFd(child.as_fd()), WaitIdOptions::EXITED);
}

/// Whether a process has ended by then.
pub fn has_ended_within(process: &OwnedFd, time: Timespec) -> bool {
    let mut ended = [PollFd::new(process, PollFlags::IN)];
    matches!(rustix::io::retry_on_intr(|| poll(&mut ended, Some(&time))), Ok(1..))
}

fn leave_to_undertaker(remains: Remains) {
    static UNDERTAKER: OnceLock<Option<mpsc::Sender<Remains>>> = OnceLock::new();
    let undertaker = UNDERTAKER.get_or_init(|| {
        let (sender, ended) = mpsc::channel::<Remains>();
        let thread = thread::Builder::new().name("undertaker".to_owned());
        thread.spawn(move || ended.into_iter().for_each(Remains::bury)).ok().map(|_| sender)
    });
    match undertaker {
        // Should it be gone, they end here.
        Some(undertaker) => drop(undertaker.send(remains)),
        None => remains.bury(),
    }
}
