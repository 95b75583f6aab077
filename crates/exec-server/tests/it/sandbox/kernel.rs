//! Kernel interfaces that a sandbox does not need, and foreign system call ABIs.
#![allow(unsafe_code, reason = "what a sandbox must refuse are system calls")]

use std::io::{self, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::ptr::null;

use libc::{c_char, c_void, syscall};

use super::attempt::{are_refused, check, in_child, outcomes, variable};
use super::fixture::as_each_user;
use super::*;

pub const FOR_EVERYBODY: [&str; 13] = [
    "io_uring",
    "keyctl",
    "add_key",
    "request_key",
    "userfaultfd",
    "personality",
    "process_vm_readv",
    "ptrace",
    "kcmp",
    "modify_ldt",
    "mbind",
    "handle_of_a_file",
    "pidfd_getfd",
];

pub const FOR_ROOT: [&str; 9] = [
    "bpf",
    "perf",
    "syslog",
    "reboot",
    "init_module",
    "swapon",
    "clock_settime",
    "fanotify",
    "quotactl",
];

#[tokio::test]
async fn unneeded_system_calls_are_refused() {
    as_each_user(async |fixture| {
        for network in ["restricted", "enabled"] {
            let policy = fixture.workspace(network);
            are_refused(fixture, &policy, &FOR_EVERYBODY, &FOR_ROOT).await;
            are_refused(fixture, &unrestricted(network), &FOR_EVERYBODY, &FOR_ROOT).await;
        }
    })
    .await;
}

#[cfg(target_arch = "x86_64")]
#[tokio::test]
async fn foreign_calls_are_refused_or_fatal() {
    as_each_user(async |fixture| {
        let policy = fixture.workspace("restricted");
        let inside = outcomes(fixture, &policy, &["x32", "i386"]).await;
        assert_eq!((&*inside["x32"], &*inside["i386"]), ("EPERM", "EPERM"));
    })
    .await;
}

#[tokio::test]
async fn no_input_is_injected_into_the_terminal_of_a_sandbox() {
    as_each_user(async |fixture| {
        let mut params = fixture.params(&fixture.workspace("restricted"));
        params["tty"] = json!(true);
        let script = attempt::command("type type_high paste");
        let finished = fixture.client.run("p", &["/bin/sh", "-c", &script], params).await;
        let said = finished.pty_text();
        for name in ["type", "type_high", "paste"] {
            assert!(said.contains(&format!("{name} EPERM")), "{said}");
        }
    })
    .await;
}

#[tokio::test]
async fn a_crash_leaves_no_core_file() {
    as_each_user(async |fixture| {
        let policy = fixture.workspace("restricted");
        let script =
            "ulimit -c unlimited 2>/dev/null; ulimit -c; sh -c 'kill -SEGV $$'; kill -ABRT $$";
        let finished = fixture.run(&policy, script).await;
        assert_eq!((finished.text().as_str(), finished.exit_code), ("0\n", 134), "{finished:?}");
        let left = crate::files::host::names(&fixture.work());
        assert!(left.is_empty(), "{left:?}");
    })
    .await;
}

pub fn perform(name: &str) -> io::Result<()> {
    let (nothing, own) = (null::<c_void>(), std::process::id());
    // SAFETY (all): every pointer is a C string or a buffer that outlives its call, or null.
    unsafe {
        match name {
            "io_uring" => {
                let mut params = [0u8; 120];
                check(syscall(libc::SYS_io_uring_setup, 1, params.as_mut_ptr()))
            }
            "keyctl" => check(syscall(libc::SYS_keyctl, 0, -3, 1)),
            "add_key" => {
                let (kind, name) = (c"user".as_ptr(), c"exec-server-test".as_ptr());
                check(syscall(libc::SYS_add_key, kind, name, c"x".as_ptr(), 1, -2))
            }
            "request_key" => {
                let (kind, name) = (c"user".as_ptr(), c"exec-server-none".as_ptr());
                check(syscall(libc::SYS_request_key, kind, name, nothing, 0))
            }
            "userfaultfd" => check(syscall(libc::SYS_userfaultfd, 1)),
            "personality" => in_child(|| check(libc::personality(0x0040_0000))),
            "process_vm_readv" => {
                check(syscall(libc::SYS_process_vm_readv, own, nothing, 0, nothing, 0, 0))
            }
            "ptrace" => in_child(|| check(libc::ptrace(libc::PTRACE_TRACEME))),
            "kcmp" => check(syscall(libc::SYS_kcmp, own, own, 0, 0, 0)),
            "modify_ldt" => check(syscall(libc::SYS_modify_ldt, 0, nothing, 0)),
            "mbind" => check(syscall(libc::SYS_mbind, nothing, 0, 0, nothing, 0, 0)),
            "handle_of_a_file" => {
                check(syscall(libc::SYS_name_to_handle_at, -1, c"x".as_ptr(), nothing, nothing, 0))
            }
            "pidfd_getfd" => check(syscall(libc::SYS_pidfd_getfd, -1, 0, 0)),
            "bpf" => check(syscall(libc::SYS_bpf, 0, nothing, 0)),
            "perf" => check(syscall(libc::SYS_perf_event_open, nothing, -1, -1, -1, 0)),
            "syslog" => check(syscall(libc::SYS_syslog, 10, nothing, 0)),
            "reboot" => check(syscall(libc::SYS_reboot, 0, 0, 0, nothing)),
            "init_module" => check(syscall(libc::SYS_init_module, nothing, 0, c"".as_ptr())),
            "swapon" => check(syscall(libc::SYS_swapon, c"/nowhere".as_ptr(), 0)),
            "clock_settime" => check(syscall(libc::SYS_clock_settime, 99, nothing)),
            "fanotify" => check(syscall(libc::SYS_fanotify_init, 0, 0)),
            "quotactl" => {
                check(syscall(libc::SYS_quotactl, 0x80_0007, c"/nowhere".as_ptr(), 0, nothing))
            }
            "x32" => check(syscall(0x4000_0000 | libc::SYS_getpid)),
            "i386" => in_child(getpid_of_i386),
            "type" => check(libc::ioctl(0, libc::TIOCSTI, c"x".as_ptr())),
            "type_high" => {
                let request = libc::TIOCSTI | (1 << 32);
                check(syscall(libc::SYS_ioctl, 0, request, c"x".as_ptr()))
            }
            "paste" => check(libc::ioctl(0, libc::TIOCLINUX, c"\x03".as_ptr())),
            "memfd_exec" => in_child(execute_from_memory),
            _ => super::network::perform(name),
        }
    }
}

#[cfg(target_arch = "x86_64")]
fn getpid_of_i386() -> io::Result<()> {
    const GETPID: i64 = 20;
    let mut result = GETPID;
    // SAFETY: asks for a number; no memory is involved.
    unsafe { std::arch::asm!("int 0x80", inout("rax") result) };
    let error = i32::try_from(-result).ok().filter(|error| *error > 0);
    error.map_or(Ok(()), |error| Err(io::Error::from_raw_os_error(error)))
}

#[cfg(not(target_arch = "x86_64"))]
fn getpid_of_i386() -> io::Result<()> {
    Err(io::Error::from_raw_os_error(libc::ENOSYS))
}

/// Runs a shell without a working directory.
fn execute_from_memory() -> io::Result<()> {
    // SAFETY: a new descriptor, owned by the file.
    let mut memory = unsafe {
        let fd = libc::memfd_create(c"shell".as_ptr(), 0);
        check(fd)?;
        std::fs::File::from_raw_fd(fd)
    };
    memory.write_all(&std::fs::read("/bin/sh")?)?;
    let script = attempt::text(format!("echo evil > {}/file", variable("OUT")));
    let argv: [*const c_char; 4] = [c"sh".as_ptr(), c"-c".as_ptr(), script.as_ptr(), null()];
    let env: [*const c_char; 1] = [null()];
    // SAFETY: all are null-terminated arrays of C strings that live on.
    check(unsafe { libc::fexecve(memory.as_raw_fd(), argv.as_ptr(), env.as_ptr()) })
}
