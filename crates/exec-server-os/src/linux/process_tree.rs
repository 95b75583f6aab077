//! Finds and kills a child with all its descendants, including those that left its process group or session.
//!
//! Descendants are found by, most reliable first:
//! 1. the cgroup of the child, if it has one;
//! 2. the parent-child links in `/proc`, from the root down;
//! 3. a tag, for orphans. The server is a subreaper, so a process whose parent has exited becomes a child of the
//!    server's main thread. The tag is the soft limit on real-time CPU time, which every descendant inherits. Its value
//!    is above 36,000 years, so it limits no process, and it differs per child.

use std::collections::HashSet;
use std::io;

use super::cgroup::Cgroup;
use super::{check, procfs};
use crate::tree_tag::{SERVER_BITS, TAG_BASE, TreeTag};

impl TreeTag {
    /// Whether a soft limit on real-time CPU time is a tag of the server with this pid.
    pub(super) fn is_of_server(limit: u64, server: u32) -> bool {
        let prefix = TAG_BASE >> 32 | u64::from(server) & ((1 << SERVER_BITS) - 1);
        limit >> 32 == prefix
    }

    /// The tag of a process, if this server assigned it.
    fn of(pid: libc::pid_t) -> Option<Self> {
        let tag = Self(procfs::realtime_limit(pid)?);
        (tag == Self::new(tag.child())).then_some(tag)
    }

    /// Whether a process has this tag.
    pub fn is_on(self, pid: libc::pid_t) -> bool {
        Self::of(pid) == Some(self)
    }

    /// The tag as the resource limit that carries it.
    pub fn as_limit(self) -> libc::rlimit {
        // Only the soft limit carries the tag, so a program can still set its own.
        libc::rlimit { rlim_cur: self.0, rlim_max: libc::RLIM_INFINITY }
    }
}

/// A child with all its descendants.
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

    /// Must be called after the root was reaped, because its pid may be reused from then on.
    pub fn handle_root_reaped(&mut self) {
        self.is_root_reaped = true;
    }

    /// Sends `signal` to every live member and returns their number.
    pub fn signal(&self, signal: i32) -> io::Result<usize> {
        let members = self.members();
        if !self.is_root_reaped {
            // The group gets the signal in one call, so a shell and its jobs receive it together.
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

    /// Kills every live member and returns their number; repeat until it is zero.
    pub fn kill_pass(&self) -> usize {
        if let Some(cgroup) = &self.cgroup {
            cgroup.kill();
        }
        // A member that cannot be signalled has exited or changed its user; the next pass counts again.
        let count = self.signal(libc::SIGKILL).unwrap_or(0);
        reap_orphans();
        count.max(self.cgroup.as_ref().map_or(0, Cgroup::population))
    }

    /// Whether no member is running.
    pub fn is_empty(&self) -> bool {
        self.members().is_empty()
            && self.cgroup.as_ref().is_none_or(|group| group.population() == 0)
    }

    /// Whether the OOM killer killed a member; `None` without a cgroup that counts this.
    pub fn had_oom_kill(&self) -> Option<bool> {
        self.cgroup.as_ref().and_then(Cgroup::had_oom_kill)
    }

    /// The members that are not zombies.
    fn members(&self) -> Vec<libc::pid_t> {
        let root = (!self.is_root_reaped).then_some(self.root);
        living_members(root, |pid| self.owns_orphan(pid))
    }

    fn owns_orphan(&self, pid: libc::pid_t) -> bool {
        match TreeTag::of(pid) {
            Some(tag) => tag == self.tag,
            // The process changed its limit, or has the tag of a nested server.
            None => procfs::stat(pid).is_some_and(|stat| stat.session == self.root),
        }
    }
}

/// Makes this process the parent of every orphan among its descendants.
pub fn prepare_to_adopt() -> io::Result<()> {
    // SAFETY: sets a flag of this process.
    check(unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1) }).map(drop)
}

/// Reaps orphans that have exited, and returns whether live ones remain.
pub fn reap_orphans() -> bool {
    let mut remain = false;
    for pid in orphans() {
        // SAFETY: waits for our own child by its pid; roots are children of other threads and not in the list.
        let reaped = unsafe { libc::waitpid(pid, std::ptr::null_mut(), libc::WNOHANG) };
        remain |= reaped == 0;
    }
    remain
}

/// Kills the orphans whose tag `is_mine` and their descendants; returns their number. Repeat until it is zero.
pub fn end_all_trees(is_mine: impl Fn(TreeTag) -> bool) -> usize {
    let members = living_members(None, |pid| TreeTag::of(pid).is_some_and(&is_mine));
    for pid in &members {
        let _ = send(*pid, libc::SIGKILL);
    }
    reap_orphans();
    members.len()
}

/// Children of the main thread: the kernel reparents orphans to it, while every root is a child of a spawner thread.
fn orphans() -> Vec<libc::pid_t> {
    let own = std::process::id().cast_signed();
    procfs::thread_children(own, own)
}

/// The live processes among the root, the orphans that `is_mine`, and all their descendants.
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
        // A process that exits during the walk leaves its children as orphans, so the next scan finds them.
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

/// Sends a signal to a process that was just found in a tree, unless its pid was reused.
pub(super) fn send(pid: libc::pid_t, signal: i32) -> io::Result<()> {
    let started = procfs::stat(pid).map(|stat| stat.started);
    let Some(handle) = rustix::process::Pid::from_raw(pid) else { return Ok(()) };
    let flags = rustix::process::PidfdFlags::empty();
    let Ok(pidfd) = rustix::process::pidfd_open(handle, flags) else { return Ok(()) };
    // The pidfd may belong to a new process with the same pid. The start time detects this; the parent pid would not
    // do, because it changes when the parent exits, which the signal to the tree causes.
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
