//! Finds and ends a child with everything that came from it, also what left its group or its session.
//!
//! How descendants are found, from the surest to the last:
//! 1. the cgroup that the child was born into, where we have one;
//! 2. the links from parent to child, from the root down;
//! 3. orphans: this server is a subreaper, so a process whose parent has ended becomes a child of our main thread.
//!    Whose it was is told by a tag that every descendant inherits: the soft limit on real-time CPU time, set to a
//!    value of some hundred thousand years that differs per child and binds nobody.

use std::collections::HashSet;
use std::io;

use super::cgroup::Cgroup;
use super::{check, procfs};

/// Tells the descendants of one child from those of others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TreeTag(u64);

/// A value that no one sets for its meaning: 2^60 microseconds.
const TAG_BASE: u64 = 1 << 60;
/// Bits that tell one server from another on the same machine.
const SERVER_BITS: u32 = 28;

impl TreeTag {
    /// The tag of child number `child` of this server.
    pub fn new(child: u32) -> Self {
        let server = u64::from(std::process::id()) & ((1 << SERVER_BITS) - 1);
        Self(TAG_BASE | server << 32 | u64::from(child))
    }

    /// The tag that a process carries, if this server gave it one.
    fn of(pid: libc::pid_t) -> Option<Self> {
        let tag = Self(procfs::realtime_limit(pid)?);
        (tag == Self::new(tag.child())).then_some(tag)
    }

    /// Whether a process carries it.
    pub(super) fn is_on(self, pid: libc::pid_t) -> bool {
        Self::of(pid) == Some(self)
    }

    /// The number that the tag was made from.
    pub fn child(self) -> u32 {
        (self.0 & u64::from(u32::MAX)) as u32
    }

    pub(super) fn as_limit(self) -> libc::rlimit {
        // The hard limit stays what the server has, so that a program which cares can still lower it.
        libc::rlimit { rlim_cur: self.0, rlim_max: libc::RLIM_INFINITY }
    }
}

/// A child with everything that came from it.
#[derive(Debug)]
pub struct ProcessTree {
    root: libc::pid_t,
    is_root_reaped: bool,
    tag: TreeTag,
    cgroup: Option<Cgroup>,
}

impl ProcessTree {
    pub(super) fn new(root: libc::pid_t, tag: TreeTag, cgroup: Option<Cgroup>) -> Self {
        Self { root, is_root_reaped: false, tag, cgroup }
    }

    /// The root was reaped: its pid may soon belong to somebody else.
    pub fn handle_root_reaped(&mut self) {
        self.is_root_reaped = true;
    }

    /// Sends `signal` to every living member and returns how many there were.
    pub fn signal(&self, signal: i32) -> io::Result<usize> {
        let members = self.members();
        if !self.is_root_reaped {
            // The group first and at once, so that a shell and its jobs hear of it together.
            // SAFETY: the root is our unreaped child, so the group id is its own.
            check(unsafe { libc::kill(-self.root, signal) }).or_else(ignore_missing)?;
        }
        for pid in &members {
            let is_in_group = !self.is_root_reaped && group_of(*pid) == Some(self.root);
            if !is_in_group {
                send(*pid, signal)?;
            }
        }
        Ok(members.len())
    }

    /// Kills every living member and returns how many there were; repeat until there is none.
    pub fn kill_pass(&self) -> usize {
        if let Some(cgroup) = &self.cgroup {
            cgroup.kill();
        }
        // What can no longer be signalled is gone or not ours, and the next pass will tell.
        let count = self.signal(libc::SIGKILL).unwrap_or(0);
        reap_orphans();
        count.max(self.cgroup.as_ref().map_or(0, Cgroup::population))
    }

    /// Whether no member is alive.
    pub fn is_empty(&self) -> bool {
        self.members().is_empty()
            && self.cgroup.as_ref().is_none_or(|group| group.population() == 0)
    }

    /// Whether the kernel killed a member for lack of memory; not known without a cgroup that counts it.
    pub fn had_oom_kill(&self) -> Option<bool> {
        self.cgroup.as_ref().and_then(Cgroup::had_oom_kill)
    }

    /// The living members.
    fn members(&self) -> Vec<libc::pid_t> {
        let root = (!self.is_root_reaped).then_some(self.root);
        living_members(root, |pid| self.owns_orphan(pid))
    }

    fn owns_orphan(&self, pid: libc::pid_t) -> bool {
        match TreeTag::of(pid) {
            Some(tag) => tag == self.tag,
            // It got rid of its tag, or got another by a server of its own.
            None => procfs::stat(pid).is_some_and(|stat| stat.session == self.root),
        }
    }
}

/// Makes this process the parent of every orphan among its descendants.
pub fn prepare_to_adopt() -> io::Result<()> {
    // SAFETY: sets a flag of this process.
    check(unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1) }).map(drop)
}

/// Reaps orphans that have ended, and says whether living ones remain.
pub fn reap_orphans() -> bool {
    let mut remain = false;
    for pid in orphans() {
        // SAFETY: waits for our own child by its pid; roots are children of other threads and not in the list.
        let reaped = unsafe { libc::waitpid(pid, std::ptr::null_mut(), libc::WNOHANG) };
        remain |= reaped == 0;
    }
    remain
}

/// Kills the orphans whose tag `is_mine`, and returns how many there were; repeat until there is none.
pub fn end_all_trees(is_mine: impl Fn(TreeTag) -> bool) -> usize {
    let members = living_members(None, |pid| TreeTag::of(pid).is_some_and(&is_mine));
    for pid in &members {
        let _ = send(*pid, libc::SIGKILL);
    }
    reap_orphans();
    members.len()
}

/// Children of our main thread: the kernel gives orphans to it, while every root belongs to a spawner thread.
fn orphans() -> Vec<libc::pid_t> {
    let own = std::process::id().cast_signed();
    procfs::thread_children(own, own)
}

/// The living among a root, the orphans that `is_mine`, and all that come from them.
fn living_members(
    root: Option<libc::pid_t>,
    is_mine: impl Fn(libc::pid_t) -> bool,
) -> Vec<libc::pid_t> {
    let mut seen = HashSet::new();
    let mut living = Vec::new();
    let mut start: Vec<_> = root.into_iter().collect();
    loop {
        start.extend(orphans().into_iter().filter(|pid| !seen.contains(pid) && is_mine(*pid)));
        if start.is_empty() {
            return living;
        }
        walk(start, &mut seen, &mut living);
        // Who was seen to have ended has left its children to us before that, so another look finds them.
        start = Vec::new();
    }
}

pub(super) fn living_descendants(start: Vec<libc::pid_t>) -> Vec<libc::pid_t> {
    let mut living = Vec::new();
    walk(start, &mut HashSet::new(), &mut living);
    living
}

fn walk(start: Vec<libc::pid_t>, seen: &mut HashSet<libc::pid_t>, living: &mut Vec<libc::pid_t>) {
    let mut queue = start;
    while let Some(pid) = queue.pop() {
        if !seen.insert(pid) {
            continue;
        }
        if procfs::stat(pid).is_some_and(|stat| !stat.is_zombie) {
            living.push(pid);
        }
        queue.extend(procfs::children(pid));
    }
}

/// Sends a signal to a process that was seen as a descendant a moment ago.
pub(super) fn send(pid: libc::pid_t, signal: i32) -> io::Result<()> {
    let started = procfs::stat(pid).map(|stat| stat.started);
    let Some(handle) = rustix::process::Pid::from_raw(pid) else { return Ok(()) };
    let flags = rustix::process::PidfdFlags::empty();
    let Ok(pidfd) = rustix::process::pidfd_open(handle, flags) else { return Ok(()) };
    // The handle may be that of a newcomer with the same pid. The parent would not tell: it changes when it ends, and
    // the signal that we send to a whole tree makes just that happen.
    if started.is_none() || procfs::stat(pid).map(|stat| stat.started) != started {
        return Ok(());
    }
    let Some(signal) = rustix::process::Signal::from_named_raw(signal) else {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    };
    match rustix::process::pidfd_send_signal(&pidfd, signal) {
        Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn group_of(pid: libc::pid_t) -> Option<libc::pid_t> {
    // SAFETY: asks about a pid; no memory is involved.
    check(unsafe { libc::getpgid(pid) }).ok()
}

fn ignore_missing(error: io::Error) -> io::Result<libc::c_int> {
    if error.raw_os_error() == Some(libc::ESRCH) { Ok(0) } else { Err(error) }
}
