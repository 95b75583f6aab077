//! The namespaces that a sandbox is made of, entered by a process with one thread.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use super::step::{Step, StepError};
use crate::linux::check;

/// Enters new namespaces, as the same user in them; the next child will be pid 1 of its own.
pub fn enter_new() -> Result<(), StepError> {
    unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWPID | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS)
}

/// Enters a mount namespace with copies of all mounts; the user must have been mapped.
pub fn enter_new_mounts() -> Result<(), StepError> {
    // SAFETY: this process has one thread and shares nothing that would change under another.
    check(unsafe { libc::unshare(libc::CLONE_NEWNS) }).map(drop).step("namespaces")
}

/// Makes the cgroup of this process the outermost that it can see; the user must have been mapped.
pub fn hide_cgroup() -> Result<(), StepError> {
    // SAFETY: this process has one thread and shares nothing that would change under another.
    check(unsafe { libc::unshare(libc::CLONE_NEWCGROUP) }).map(drop).step("namespaces")
}

/// Enters a new network that nobody has set up, in a user namespace of its own.
pub fn enter_new_network() -> Result<(), StepError> {
    unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNET)
}

fn unshare(flags: libc::c_int) -> Result<(), StepError> {
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    // SAFETY: this process has one thread and shares nothing that would change under another.
    check(unsafe { libc::unshare(flags) }).step("namespaces")?;
    // Only after this may an ordinary user map a group.
    fs::write("/proc/self/setgroups", "deny").step("setgroups")?;
    fs::write("/proc/self/uid_map", format!("{uid} {uid} 1")).step("uid map")?;
    fs::write("/proc/self/gid_map", format!("{gid} {gid} 1")).step("gid map")
}

/// The namespace of this process that `/proc/self/ns` has under this name.
pub fn open_own(name: &str) -> io::Result<OwnedFd> {
    Ok(fs::File::open(format!("/proc/self/ns/{name}"))?.into())
}

/// Enters a namespace that somebody else has made.
pub fn enter(namespace: impl AsFd, kind: libc::c_int) -> io::Result<()> {
    // SAFETY: plain system call on an open descriptor; this process has one thread.
    check(unsafe { libc::setns(namespace.as_fd().as_raw_fd(), kind) }).map(drop)
}
