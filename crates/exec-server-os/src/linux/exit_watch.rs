//! Waits for one child by its pidfd, and learns how it ended and what it used.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Mutex;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::sandbox::ending::EndingWatch;
use super::sandbox::spares::Another;
use super::sandbox::undertaker::{self, HeldMounts};
use super::{check, register};
use crate::spawn::ExitStatus;

/// Tells when a child has ended, and how; the child stays a zombie until then, so its pid stays its own.
#[derive(Debug)]
pub struct ExitWatch {
    pid: libc::pid_t,
    pidfd: AsyncFd<OwnedFd>,
    mounts: Mutex<Option<HeldMounts>>,
    /// Of a sandbox, whose end is not that of the child.
    ending: Option<EndingWatch>,
    /// What is made ready for the next sandbox when this one has ended.
    another: Mutex<Option<Another>>,
}

impl ExitWatch {
    /// Watches our own child `pid`.
    pub fn new(pid: libc::pid_t, pidfd: OwnedFd) -> io::Result<Self> {
        let pidfd = register(pidfd, Interest::READABLE)?;
        let (mounts, another) = (Mutex::default(), Mutex::default());
        Ok(Self { pid, pidfd, mounts, ending: None, another })
    }

    /// The child has a sandbox, and it is over when that is.
    pub(super) fn follow(&mut self, ending: Option<EndingWatch>, mut another: Option<Another>) {
        self.ending = ending;
        another.iter_mut().for_each(Another::in_a_while);
        self.another = Mutex::new(another);
    }

    /// Keeps the mounts of a sandbox until its end.
    pub(super) fn keep(&self, mounts: Option<HeldMounts>) {
        *self.mounts.lock().expect("no holder panics") = mounts;
    }

    /// Lets the mounts of a sandbox end together with its last process, which then takes longer to end: for whoever
    /// removes what they are mounted on, and would have to wait for them instead.
    pub fn release_mounts(&self) {
        self.keep(None);
    }

    fn let_go(&self) {
        self.keep(None);
        *self.another.lock().expect("no holder panics") = None;
    }

    /// Reaps the child once it has ended, or has it reaped a little later.
    pub fn poll_exit(&self, cx: &mut Context) -> Poll<io::Result<ExitStatus>> {
        if let Some(ending) = &self.ending
            && let Some(status) = ready!(ending.poll_ending(cx))
        {
            undertaker::see_off(self.pidfd.get_ref().try_clone()?);
            self.let_go();
            return Poll::Ready(Ok(status));
        }
        loop {
            let mut ready = ready!(self.pidfd.poll_read_ready(cx))?;
            if let Some(status) = reap(self.pid)? {
                self.let_go();
                return Poll::Ready(Ok(status));
            }
            ready.clear_ready();
        }
    }
}

/// How our own child ended, if it has; then it is gone.
pub fn reap(pid: libc::pid_t) -> io::Result<Option<ExitStatus>> {
    let mut status = 0;
    // SAFETY: a zeroed rusage is a valid one.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers are to live locals; the pid is our own unreaped child's.
    let reaped = unsafe { libc::wait4(pid, &raw mut status, libc::WNOHANG, &raw mut usage) };
    if check(reaped)? == 0 {
        return Ok(None);
    }
    Ok(Some(exit_status(status, usage.into())))
}

/// What somebody has used.
#[derive(Debug, Serialize, Deserialize)]
pub struct Usage {
    user: Duration,
    system: Duration,
    max_rss: u64,
}

impl Usage {
    /// What all children that this process has reaped have used.
    pub fn of_children() -> Self {
        // SAFETY: a zeroed rusage is a valid one.
        let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
        // SAFETY: fills a live local.
        unsafe { libc::getrusage(libc::RUSAGE_CHILDREN, &raw mut usage) };
        usage.into()
    }
}

impl From<libc::rusage> for Usage {
    fn from(usage: libc::rusage) -> Self {
        Self {
            user: duration(usage.ru_utime),
            system: duration(usage.ru_stime),
            max_rss: u64::try_from(usage.ru_maxrss).unwrap_or(0) * 1024,
        }
    }
}

/// What the kernel's word for an end means.
pub fn exit_status(status: i32, usage: Usage) -> ExitStatus {
    let signal = libc::WIFSIGNALED(status).then(|| libc::WTERMSIG(status));
    let code = signal.map_or_else(|| libc::WEXITSTATUS(status), |signal| 128 + signal);
    let Usage { user, system, max_rss } = usage;
    ExitStatus { code, signal, user, system, max_rss }
}

fn duration(time: libc::timeval) -> Duration {
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let micros = u64::try_from(time.tv_usec).unwrap_or(0);
    Duration::from_secs(seconds) + Duration::from_micros(micros)
}
