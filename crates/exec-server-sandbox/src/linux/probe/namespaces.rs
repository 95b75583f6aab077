//! Creates the namespaces of a sandbox in a short-lived process, to find out whether this user can.
//!
//! The caller may have threads, so the child makes system calls only and does not allocate.

use std::ffi::{CStr, CString};
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use exec_server_os::linux::check;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trial {
    /// As an unprivileged process.
    WithUserNamespace,
    /// As a privileged process.
    WithoutUserNamespace,
}

/// The step at which an attempt failed.
#[derive(Debug)]
pub struct Stuck {
    step: Step,
    source: io::Error,
}

impl Stuck {
    /// Whether all namespaces were created and only mounting `/proc` failed.
    pub fn is_at_proc(&self) -> bool {
        self.step == Step::Proc
    }
}

impl fmt::Display for Stuck {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let step = match self.step {
            Step::Fork => "a process for the test",
            Step::User => "a user namespace",
            Step::Maps => "the ids of a user namespace",
            Step::Others => "mount, pid, network and other namespaces",
            Step::Proc => "mounting /proc",
        };
        write!(out, "{step}: {}", self.source)
    }
}

/// Creates all namespaces and mounts `/proc` in them.
pub fn attempt(trial: Trial) -> Result<(), Stuck> {
    let at_fork = |source| Stuck { step: Step::Fork, source };
    let maps = Maps::of_caller();
    let (reader, writer) = pipe().map_err(at_fork)?;
    // SAFETY: the child only makes system calls until it ends.
    let pid = check(unsafe { libc::fork() }).map_err(at_fork)?;
    if pid == 0 {
        let (step, errno) = match make(trial, &maps) {
            Ok(()) => (Step::Fork, 0),
            Err(stuck) => (stuck.step, stuck.source.raw_os_error().unwrap_or(libc::EIO)),
        };
        send(writer.as_raw_fd(), &[step as u8, errno as u8]);
        // SAFETY: ends the child alone.
        unsafe { libc::_exit(0) };
    }
    drop(writer);
    let mut answer = [0; 2];
    let read = File::from(reader).read_exact(&mut answer);
    // SAFETY: waits for our own child, which has ended or is about to.
    unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) };
    read.map_err(at_fork)?;
    let step = Step::ALL.into_iter().find(|step| *step as u8 == answer[0]);
    match (step, answer[1]) {
        (_, 0) => Ok(()),
        (step, errno) => Err(Stuck {
            step: step.expect("the child is a copy of ours"),
            source: io::Error::from_raw_os_error(errno.into()),
        }),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Fork,
    User,
    Maps,
    Others,
    Proc,
}

impl Step {
    const ALL: [Self; 5] = [Self::Fork, Self::User, Self::Maps, Self::Others, Self::Proc];
}

/// Id maps that keep the caller's ids.
struct Maps {
    uid: CString,
    gid: CString,
}

impl Maps {
    fn of_caller() -> Self {
        let line = |id: u32| CString::new(format!("{id} {id} 1")).expect("digits and spaces");
        // SAFETY: both only return a number.
        unsafe { Self { uid: line(libc::geteuid()), gid: line(libc::getegid()) } }
    }
}

/// Runs in the child.
fn make(trial: Trial, maps: &Maps) -> Result<(), Stuck> {
    let at = |step| move |source| Stuck { step, source };
    if trial == Trial::WithUserNamespace {
        // SAFETY: the child has one thread.
        check(unsafe { libc::unshare(libc::CLONE_NEWUSER) }).map_err(at(Step::User))?;
        write(c"/proc/self/setgroups", c"deny").map_err(at(Step::Maps))?;
        write(c"/proc/self/uid_map", &maps.uid).map_err(at(Step::Maps))?;
        write(c"/proc/self/gid_map", &maps.gid).map_err(at(Step::Maps))?;
    }
    let others = libc::CLONE_NEWNS
        | libc::CLONE_NEWPID
        | libc::CLONE_NEWNET
        | libc::CLONE_NEWIPC
        | libc::CLONE_NEWUTS
        | libc::CLONE_NEWCGROUP;
    // SAFETY: as above.
    check(unsafe { libc::unshare(others) }).map_err(at(Step::Others))?;
    // SAFETY: the new process, the first one in the pid namespace, only makes system calls until it ends.
    let pid = check(unsafe { libc::fork() }).map_err(at(Step::Others))?;
    if pid == 0 {
        let errno = mount_proc().err().and_then(|error| error.raw_os_error()).unwrap_or(0);
        // SAFETY: ends this process alone.
        unsafe { libc::_exit(errno) };
    }
    let mut status = 0;
    // SAFETY: waits for our own child and fills a live local.
    check(unsafe { libc::waitpid(pid, &raw mut status, 0) }).map_err(at(Step::Others))?;
    match libc::WEXITSTATUS(status) {
        0 if libc::WIFEXITED(status) => Ok(()),
        0 => Err(at(Step::Others)(io::Error::from_raw_os_error(libc::EIO))),
        errno => Err(at(Step::Proc)(io::Error::from_raw_os_error(errno))),
    }
}

fn mount_proc() -> io::Result<()> {
    let (no_text, no_data) = (std::ptr::null(), std::ptr::null());
    let (root, place, kind) = (c"/".as_ptr(), c"/proc".as_ptr(), c"proc".as_ptr());
    let private = libc::MS_REC | libc::MS_PRIVATE;
    // SAFETY: all texts are null-terminated. The mount namespace is made private first, so no mount propagates.
    unsafe {
        check(libc::mount(no_text, root, no_text, private, no_data))?;
        let flags = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;
        check(libc::mount(kind, place, kind, flags, no_data)).map(drop)
    }
}

fn write(path: &CStr, text: &CStr) -> io::Result<()> {
    // SAFETY: the path is null-terminated; the descriptor ends with this process.
    let fd = check(unsafe { libc::open(path.as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC) })?;
    let bytes = text.to_bytes();
    // SAFETY: the buffer is alive and as long as said.
    let written = unsafe { libc::write(fd, bytes.as_ptr().cast(), bytes.len()) };
    if written == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn send(fd: RawFd, bytes: &[u8]) {
    // SAFETY: the buffer is alive and as long as said; if this fails the parent reads EOF and reports it.
    unsafe { libc::write(fd, bytes.as_ptr().cast(), bytes.len()) };
}

fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?)
}
