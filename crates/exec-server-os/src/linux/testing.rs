//! Runs a part of a test in its own process, because a sandbox's restrictions cannot be undone.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The user of the child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum User {
    /// The user that runs the tests.
    Caller,
    /// An unprivileged user, if the caller is root.
    Ordinary,
}

/// The exit of the child.
#[derive(Debug, PartialEq, Eq)]
pub enum Ended {
    /// 101 is a panic; its text is on stderr.
    Exit(i32),
    /// The signal that killed it.
    Signal(i32),
}

/// Runs `body` in a new process and returns how that exited.
pub fn in_child(user: User, body: impl FnOnce() -> i32) -> Ended {
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    // The process in between waits, so that no other test can reap the child.
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

/// The errno of a raw system call, or 0.
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
            // Changing the user clears dumpable, and with it the right to write the id maps.
            assert_eq!(libc::prctl(libc::PR_SET_DUMPABLE, 1), 0);
        }
    }
    let code = catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("a panic");
        let _ = writeln!(std::io::stderr(), "in the child: {text}");
        101
    });
    // SAFETY: exits this process without running the destructors of the test process.
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
