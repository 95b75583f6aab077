//! Creates and enters the namespaces of a sandbox; the calling process must have one thread.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use exec_server_os::linux::check;

use super::step::{Step, StepError};

/// Enters new user, pid, ipc and uts namespaces with the same user id; the next child becomes pid 1.
pub fn enter_new() -> Result<(), StepError> {
    unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWPID | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS)
}

/// Enters a mount namespace with copies of all mounts; requires mapped ids.
pub fn enter_new_mounts() -> Result<(), StepError> {
    // SAFETY: this process has one thread and shares nothing that would change under another.
    check(unsafe { libc::unshare(libc::CLONE_NEWNS) }).map(drop).step("namespaces")
}

/// Enters a new cgroup namespace, rooted at the current cgroup; requires mapped ids.
pub fn hide_cgroup() -> Result<(), StepError> {
    // SAFETY: this process has one thread and shares nothing that would change under another.
    check(unsafe { libc::unshare(libc::CLONE_NEWCGROUP) }).map(drop).step("namespaces")
}

/// Enters a new, unconfigured network namespace in its own user namespace.
pub fn enter_new_network() -> Result<(), StepError> {
    unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNET)
}

fn unshare(flags: libc::c_int) -> Result<(), StepError> {
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    // SAFETY: this process has one thread and shares nothing that would change under another.
    check(unsafe { libc::unshare(flags) }).step("namespaces")?;
    // An ordinary user may write gid_map only after this.
    fs::write("/proc/self/setgroups", "deny").step("setgroups")?;
    fs::write("/proc/self/uid_map", format!("{uid} {uid} 1")).step("uid map")?;
    fs::write("/proc/self/gid_map", format!("{gid} {gid} 1")).step("gid map")
}

/// Opens the namespace `/proc/self/ns/{name}`.
pub fn open_own(name: &str) -> io::Result<OwnedFd> {
    Ok(fs::File::open(format!("/proc/self/ns/{name}"))?.into())
}

pub fn enter(namespace: impl AsFd, kind: libc::c_int) -> io::Result<()> {
    // SAFETY: plain system call on an open descriptor; this process has one thread.
    check(unsafe { libc::setns(namespace.as_fd().as_raw_fd(), kind) }).map(drop)
}
