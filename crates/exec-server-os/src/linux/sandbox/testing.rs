//! Runs a piece of a test in a process of its own, because what a sandbox takes away cannot be given back.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// As whom the piece runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum User {
    /// As whoever runs the tests.
    Caller,
    /// As somebody without any privilege, if the caller is root.
    Ordinary,
}

/// How it ended.
#[derive(Debug, PartialEq, Eq)]
pub enum Ended {
    /// 101 is a panic, told on the standard error.
    Exit(i32),
    /// It was killed.
    Signal(i32),
}

/// Runs `body` in a new process and says how that ended.
pub fn in_child(user: User, body: impl FnOnce() -> i32) -> Ended {
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    // The process in between waits, so that no other test of this program can take the status.
    // SAFETY: the child runs test code only, and glibc keeps its allocator usable after a fork.
    let between = unsafe { libc::fork() };
    if between == 0 {
        // SAFETY: as above.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            run(user, body);
        }
        report(pid, writer);
    }
    drop(writer);
    let mut status = [0; 4];
    File::from(reader).read_exact(&mut status).unwrap();
    // SAFETY: waits for our own child.
    unsafe { libc::waitpid(between, std::ptr::null_mut(), 0) };
    let status = i32::from_ne_bytes(status);
    if libc::WIFSIGNALED(status) {
        Ended::Signal(libc::WTERMSIG(status))
    } else {
        Ended::Exit(libc::WEXITSTATUS(status))
    }
}

/// The error number of a raw system call, or 0.
pub fn errno_of(call: libc::c_long, arguments: [u64; 6]) -> i32 {
    let [a, b, c, d, e, f] = arguments;
    // SAFETY: the tests pass no pointer that the kernel could write through.
    let result = unsafe { libc::syscall(call, a, b, c, d, e, f) };
    if result == -1 { std::io::Error::last_os_error().raw_os_error().unwrap() } else { 0 }
}

/// The value of a line of `/proc/self/status`.
pub fn status_of_self(key: &str) -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
    line.unwrap().trim().to_owned()
}

fn run(user: User, body: impl FnOnce() -> i32) -> ! {
    // SAFETY: plain system calls on this process, which has one thread.
    unsafe {
        // A test that hangs must not outlive its deadline.
        libc::alarm(60);
        if user == User::Ordinary && libc::geteuid() == 0 {
            assert_eq!(libc::setgroups(0, std::ptr::null()), 0);
            assert_eq!(libc::setresgid(65534, 65534, 65534), 0);
            assert_eq!(libc::setresuid(65534, 65534, 65534), 0);
            // A change of user takes this away, and with it the right to write our own id maps.
            assert_eq!(libc::prctl(libc::PR_SET_DUMPABLE, 1), 0);
        }
    }
    let code = catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("a panic");
        let _ = writeln!(std::io::stderr(), "in the child: {text}");
        101
    });
    // SAFETY: ends this process without running what belongs to the test's.
    unsafe { libc::_exit(code) }
}

fn report(pid: libc::pid_t, writer: OwnedFd) -> ! {
    let mut status = 0;
    // SAFETY: waits for our own child and then ends this process alone.
    unsafe {
        libc::waitpid(pid, &raw mut status, 0);
        let _ = File::from(writer).write_all(&status.to_ne_bytes());
        libc::_exit(0)
    }
}
