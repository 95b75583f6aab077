//! Reads process facts from /proc.

use std::fs;
use std::io;
use std::os::fd::AsFd;

use rustix::buffer::spare_capacity;
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::path::Arg;

/// More than any file about one process that is read here.
const USUAL_BYTES: usize = 4096;

/// Reads a text file of procfs.
///
/// Its size is unknown, and `std` begins with reads of 32 bytes, for each of which the kernel makes the text again.
pub fn text(path: impl Arg) -> io::Result<String> {
    text_at(CWD, path)
}

/// The same, relative to a directory.
pub fn text_at(dir: impl AsFd, path: impl Arg) -> io::Result<String> {
    let file = openat(dir, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let mut bytes = Vec::with_capacity(USUAL_BYTES);
    while rustix::io::retry_on_intr(|| rustix::io::read(&file, spare_capacity(&mut bytes)))? > 0 {
        bytes.reserve(USUAL_BYTES / 2);
    }
    String::from_utf8(bytes).map_err(io::Error::other)
}

/// The used fields of `/proc/PID/stat`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stat {
    /// Whether the process has exited and is not reaped.
    pub is_zombie: bool,
    /// The session id.
    pub session: libc::pid_t,
    /// Start time in clock ticks since boot.
    pub started: u64,
}

/// Reads `/proc/PID/stat`; `None` if the process is gone.
pub fn stat(pid: libc::pid_t) -> Option<Stat> {
    let text = text(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may contain spaces and parentheses, so fields are counted from its end.
    let (_, rest) = text.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace();
    let state = fields.next()?;
    let _parent = fields.next()?;
    let _group = fields.next()?;
    let session = fields.next()?.parse().ok()?;
    let started = fields.nth(15)?.parse().ok()?;
    Some(Stat { is_zombie: matches!(state, "Z" | "X"), session, started })
}

/// The parent of a process; `None` if the process is gone.
pub fn parent(pid: libc::pid_t) -> Option<libc::pid_t> {
    let text = text(format!("/proc/{pid}/stat")).ok()?;
    text.rsplit_once(')')?.1.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// The effective user of a process.
pub fn user(pid: libc::pid_t) -> Option<u32> {
    let text = text(format!("/proc/{pid}/status")).ok()?;
    let users = text.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    users.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// Whether a process is in the pid namespace of this process, and not in one below it.
///
/// Unlike `/proc/PID/ns/pid`, its status is readable although it is not dumpable.
pub fn is_in_own_pid_namespace(pid: libc::pid_t) -> bool {
    let text = text(format!("/proc/{pid}/status")).unwrap_or_default();
    let numbers = text.lines().find_map(|line| line.strip_prefix("NSpid:"));
    numbers.is_some_and(|numbers| numbers.split_ascii_whitespace().count() == 1)
}

/// All visible processes.
pub fn processes() -> Vec<libc::pid_t> {
    let all = fs::read_dir("/proc").into_iter().flatten().flatten();
    all.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// The children of all threads of a process.
pub fn children(pid: libc::pid_t) -> Vec<libc::pid_t> {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    threads.flatten().flat_map(|thread| child_list(&thread.path().join("children"))).collect()
}

/// The children of one thread.
pub fn thread_children(pid: libc::pid_t, thread: libc::pid_t) -> Vec<libc::pid_t> {
    child_list(format!("/proc/{pid}/task/{thread}/children").as_ref())
}

fn child_list(path: &std::path::Path) -> Vec<libc::pid_t> {
    let text = text(path).unwrap_or_default();
    text.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

/// The soft limit on real-time CPU time, which carries the tree tag.
pub fn realtime_limit(pid: libc::pid_t) -> Option<u64> {
    let text = text(format!("/proc/{pid}/limits")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("Max realtime timeout"))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}
