//! Waits for one child by its pidfd and returns its exit status and resource usage.

use std::io;
use std::os::fd::OwnedFd;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::{check, register};
use crate::spawn::ExitStatus;

/// Exit handling for the sandbox around a child; installed by [`ExitWatch::attach`].
pub trait ExitHook: std::fmt::Debug + Send + Sync {
    /// The exit status, if the sandbox reports it before the launcher exits; `None` if it reports nothing and the
    /// child's own exit counts.
    fn poll_ending(&self, cx: &mut Context) -> Poll<Option<ExitStatus>>;

    /// Reaps the child behind this pidfd after [`Self::poll_ending`] has reported a status.
    fn reap_later(&self, child: OwnedFd);

    /// Drops the handles on the mounts, so that they are released with the last process that uses them.
    fn release_mounts(&self);

    /// Releases everything that is held for the child; called once its exit is known.
    fn release(&self);
}

/// Reports the exit of a child; the child stays a zombie until then, so its pid is not reused.
#[derive(Debug)]
pub struct ExitWatch {
    pid: libc::pid_t,
    pidfd: AsyncFd<OwnedFd>,
    /// Peak resident set of this process at the start: the most that the child can have inherited.
    inherited: u64,
    hook: Option<Box<dyn ExitHook>>,
}

impl ExitWatch {
    /// Watches the child `pid` of this process.
    pub fn new(pid: libc::pid_t, pidfd: OwnedFd) -> io::Result<Self> {
        let pidfd = register(pidfd, Interest::READABLE)?;
        Ok(Self { pid, pidfd, inherited: own_peak(), hook: None })
    }

    /// Installs the hook of a sandboxed child.
    pub fn attach(&mut self, hook: Box<dyn ExitHook>) {
        self.hook = Some(hook);
    }

    /// Releases the mounts of a sandbox with its last process, whose exit then takes longer.
    ///
    /// For a caller that removes the mounted files and would otherwise wait for the mounts.
    pub fn release_mounts(&self) {
        if let Some(hook) = &self.hook {
            hook.release_mounts();
        }
    }

    /// Returns the status once the child has exited; if the sandbox reported it early, the hook reaps the child later.
    pub fn poll_exit(&self, cx: &mut Context) -> Poll<io::Result<ExitStatus>> {
        if let Some(hook) = &self.hook
            && let Some(status) = ready!(hook.poll_ending(cx))
        {
            hook.reap_later(self.pidfd.get_ref().try_clone()?);
            hook.release();
            return Poll::Ready(Ok(status));
        }
        loop {
            let mut ready = ready!(self.pidfd.poll_read_ready(cx))?;
            if let Some(status) = reap(self.pid, self.inherited)? {
                if let Some(hook) = &self.hook {
                    hook.release();
                }
                return Poll::Ready(Ok(status));
            }
            ready.clear_ready();
        }
    }
}

/// Reaps a child of this process without waiting; `None` while it is running.
pub fn reap(pid: libc::pid_t, inherited: u64) -> io::Result<Option<ExitStatus>> {
    let mut status = 0;
    // SAFETY: a zeroed rusage is a valid one.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers are to live locals; the pid is our own unreaped child's.
    let reaped = unsafe { libc::wait4(pid, &raw mut status, libc::WNOHANG, &raw mut usage) };
    if check(reaped)? == 0 {
        return Ok(None);
    }
    Ok(Some(exit_status(status, Usage::of_child(&usage, inherited))))
}

/// Resource usage of a child.
#[derive(Debug, Serialize, Deserialize)]
pub struct Usage {
    user: Duration,
    system: Duration,
    max_rss: Option<u64>,
}

impl Usage {
    /// Usage of all children that this process has reaped.
    pub fn of_children() -> Self {
        let children = usage_of(libc::RUSAGE_CHILDREN);
        let inherited = own_peak();
        Self { max_rss: own_max_rss(children.max_rss, inherited), ..children.into() }
    }

    fn of_child(usage: &libc::rusage, inherited: u64) -> Self {
        let used = Used::from(usage);
        Self { max_rss: own_max_rss(used.max_rss, inherited), ..used.into() }
    }
}

/// The peak resident set of a child, if it can be separated from the inherited one.
///
/// At exec the kernel includes the memory that the child had before, which is its parent's. So the reported value is the
/// child's own only if it is clearly larger; the kernel's counters have an error of some pages per core.
fn own_max_rss(reported: u64, inherited: u64) -> Option<u64> {
    const LEAST_ERROR: u64 = 1 << 20;
    (reported > inherited + inherited / 8 + LEAST_ERROR).then_some(reported)
}

/// The peak resident set of this process so far.
pub fn own_peak() -> u64 {
    usage_of(libc::RUSAGE_SELF).max_rss
}

/// Usage as the kernel reports it.
struct Used {
    user: Duration,
    system: Duration,
    max_rss: u64,
}

fn usage_of(who: libc::c_int) -> Used {
    // SAFETY: a zeroed rusage is a valid one.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: fills a live local.
    unsafe { libc::getrusage(who, &raw mut usage) };
    Used::from(&usage)
}

impl From<&libc::rusage> for Used {
    fn from(usage: &libc::rusage) -> Self {
        Self {
            user: duration(usage.ru_utime),
            system: duration(usage.ru_stime),
            max_rss: u64::try_from(usage.ru_maxrss).unwrap_or(0) * 1024,
        }
    }
}

impl From<Used> for Usage {
    fn from(used: Used) -> Self {
        Self { user: used.user, system: used.system, max_rss: None }
    }
}

/// Decodes a wait status.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn max_rss_is_known_only_if_it_clearly_exceeds_the_inherited_one() {
        const MIB: u64 = 1 << 20;
        assert_eq!(own_max_rss(20 * MIB, 20 * MIB), None);
        assert_eq!(own_max_rss(21 * MIB, 20 * MIB), None);
        assert_eq!(own_max_rss(2 * MIB, 20 * MIB), None);
        assert_eq!(own_max_rss(24 * MIB, 20 * MIB), Some(24 * MIB));
    }
}
