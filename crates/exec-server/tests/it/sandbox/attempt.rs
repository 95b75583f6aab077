//! Attacks by direct system calls: this test program, executed again inside a sandbox.
//!
//! No call does harm if it succeeds: where it would, its arguments are invalid, and the kernel rejects them after the
//! permission check.
#![allow(unsafe_code, reason = "what a sandbox must refuse are system calls")]

use std::collections::BTreeMap;
use std::ffi::CString;
use std::io;
use std::path::PathBuf;
use std::ptr::null;
use std::sync::atomic::{AtomicU32, Ordering};

use libc::{c_int, c_long, c_void, syscall};

use super::fixture::SandboxFixture;
use super::*;

/// Names of the attacks for this process, separated by spaces.
const VARIABLE: &str = "EXEC_SERVER_ATTEMPT";

/// This program.
pub fn program() -> PathBuf {
    std::env::current_exe().expect("a test knows its own program")
}

/// A shell command that runs this attack and prints its result.
pub fn command(names: &str) -> String {
    let test = "sandbox::attempt::one_of_the_attacks";
    format!(
        "{VARIABLE}='{names}' \"$ATTEMPT_PROGRAM\" --exact {test} --nocapture --test-threads=1 | sed -n 's/^@ //p'"
    )
}

/// Result of each attack: `ok` or the name of an error.
pub async fn outcomes(
    fixture: &mut SandboxFixture,
    sandbox: &Value,
    names: &[&str],
) -> BTreeMap<String, String> {
    let finished = fixture.run(sandbox, &command(&names.join(" "))).await;
    let lines = finished.text();
    let all: BTreeMap<_, _> = lines
        .lines()
        .filter_map(|line| line.split_once(' '))
        .map(|(name, outcome)| (name.to_owned(), outcome.to_owned()))
        .collect();
    assert_eq!(all.len(), names.len(), "some attack did not report: {finished:?}");
    all
}

/// Each attack must succeed without the sandbox and fail inside.
pub async fn are_refused(
    fixture: &mut SandboxFixture,
    sandbox: &Value,
    names: &[&str],
    as_root_only: &[&str],
) {
    let all = [names, as_root_only].concat();
    let free = outcomes(fixture, &Value::Null, &all).await;
    // Some kernels are built without some calls.
    let is_there = |name: &&&str| free[**name] != "ENOSYS";
    let mine = names.iter().chain(as_root_only.iter().filter(|_| fixture.is_root()));
    for name in mine.filter(is_there) {
        assert!(!is_refusal(&free[*name]), "{name} is refused without a sandbox: {}", free[*name]);
    }
    for (name, outcome) in outcomes(fixture, sandbox, &all).await {
        assert!(is_refusal(&outcome), "{name} got through: {outcome}");
    }
}

fn is_refusal(outcome: &str) -> bool {
    ["EPERM", "EACCES", "ENOSYS", "EROFS"].contains(&outcome)
}

#[test]
fn one_of_the_attacks() {
    let Ok(names) = std::env::var(VARIABLE) else { return };
    // After the output of the test runner.
    println!();
    for name in names.split(' ') {
        let outcome = match perform(name) {
            Ok(()) => "ok".to_owned(),
            Err(error) => error_name(&error),
        };
        println!("@ {name} {outcome}");
    }
}

pub fn error_name(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::EPERM) => "EPERM".to_owned(),
        Some(libc::EACCES) => "EACCES".to_owned(),
        Some(libc::ENOSYS) => "ENOSYS".to_owned(),
        Some(libc::EROFS) => "EROFS".to_owned(),
        Some(libc::EINVAL) => "EINVAL".to_owned(),
        Some(libc::ENOTSOCK) => "ENOTSOCK".to_owned(),
        other => format!("{other:?}"),
    }
}

pub fn check(result: impl Into<i64>) -> io::Result<()> {
    if result.into() == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

pub fn variable(name: &str) -> String {
    std::env::var(name).expect("the test sets it")
}

pub fn text(text: impl Into<Vec<u8>>) -> CString {
    CString::new(text).expect("no NUL")
}

pub fn perform(name: &str) -> io::Result<()> {
    let work = text(variable("WORK"));
    let out_file = text(format!("{}/file", variable("OUT")));
    let out_other = text(format!("{}/other", variable("OUT")));
    let nothing = null::<c_void>();
    // SAFETY (all): every pointer is a C string or a buffer that outlives its call, or null.
    unsafe {
        match name {
            // Mounts and namespaces.
            "mount" => check(libc::mount(
                c"none".as_ptr(),
                work.as_ptr(),
                c"nosuchfs".as_ptr(),
                0,
                nothing,
            )),
            "remount" => {
                let flags = libc::MS_REMOUNT | libc::MS_BIND;
                check(libc::mount(nothing.cast(), work.as_ptr(), nothing.cast(), flags, nothing))
            }
            "umount" => check(libc::umount2(work.as_ptr(), libc::MNT_DETACH)),
            "pivot_root" => check(syscall(libc::SYS_pivot_root, work.as_ptr(), work.as_ptr())),
            "chroot" => check(libc::chroot(work.as_ptr())),
            "setns" => {
                let own =
                    libc::open(c"/proc/self/ns/uts".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
                check(libc::setns(own, 0))
            }
            "unshare_user" => in_child(|| check(libc::unshare(libc::CLONE_NEWUSER))),
            "unshare_mounts" => in_child(|| check(libc::unshare(libc::CLONE_NEWNS))),
            "clone_user" => clone_with(libc::CLONE_NEWUSER),
            // The upper half of the register is no part of the flags.
            "clone_user_high" => clone_with_raw((1 << 40) | libc::CLONE_NEWUSER as u64),
            "clone3" => check(syscall(libc::SYS_clone3, nothing, 0)),
            "open_tree" => check(syscall(libc::SYS_open_tree, libc::AT_FDCWD, work.as_ptr(), 1)),
            "open_tree_attr" => check(syscall(467, libc::AT_FDCWD, work.as_ptr(), 1, nothing, 0)),
            "fsopen" => check(syscall(libc::SYS_fsopen, c"tmpfs".as_ptr(), 0)),
            "move_mount" => {
                check(syscall(libc::SYS_move_mount, -1, c"x".as_ptr(), -1, c"x".as_ptr(), 0))
            }
            "mount_setattr" => {
                check(syscall(libc::SYS_mount_setattr, -1, c"x".as_ptr(), 0, nothing, 0))
            }
            "sethostname" => {
                let mut name = [0u8; 256];
                libc::gethostname(name.as_mut_ptr().cast(), 255);
                let length = name.iter().position(|byte| *byte == 0).unwrap_or(0);
                check(libc::sethostname(name.as_ptr().cast(), length))
            }
            // Privileges.
            "setuid" => in_child(|| no_listener(check(libc::setresuid(12345, 12345, 12345)))),
            "setgroups" => in_child(|| check(libc::setgroups(0, null()))),
            "chmod_suid" => made(&work, |path| check(libc::chmod(path, 0o4755))),
            "chmod_sgid" => made(&work, |path| check(libc::chmod(path, 0o2755))),
            "fchmodat2_suid" => {
                made(&work, |path| check(syscall(452, libc::AT_FDCWD, path, 0o4755, 0)))
            }
            "open_suid" => made(&work, |path| {
                libc::unlink(path);
                check(libc::open(path, libc::O_CREAT | libc::O_WRONLY, 0o4755))
            }),
            "creat_suid" => made(&work, |path| {
                libc::unlink(path);
                check(libc::creat(path, 0o4755))
            }),
            "tmpfile_suid" => {
                check(libc::open(work.as_ptr(), libc::O_TMPFILE | libc::O_WRONLY, 0o4755))
            }
            "mknod_suid" => made(&work, |path| {
                libc::unlink(path);
                check(libc::mknod(path, libc::S_IFREG | 0o4755, 0))
            }),
            "file_capability" => made(&work, |path| {
                // Version 2, CAP_CHOWN permitted.
                let value: [u32; 5] = [0x0200_0000, 1, 0, 0, 0];
                let name = c"security.capability".as_ptr();
                check(libc::setxattr(path, name, value.as_ptr().cast(), 20, 0))
            }),
            "chown" => made(&work, |path| no_listener(check(libc::chown(path, 12345, 12345)))),
            "mknod_device" => made(&work, |path| {
                libc::unlink(path);
                check(libc::mknod(path, libc::S_IFCHR | 0o666, libc::makedev(1, 5)))
            }),
            // Files outside.
            "exchange" => {
                let inside = text(format!("{}/mine", variable("WORK")));
                libc::close(libc::creat(inside.as_ptr(), 0o644));
                let at = libc::AT_FDCWD;
                let flags = libc::RENAME_EXCHANGE;
                check(libc::renameat2(at, out_file.as_ptr(), at, inside.as_ptr(), flags))
            }
            "exchange_outside" => {
                let at = libc::AT_FDCWD;
                let flags = libc::RENAME_EXCHANGE;
                check(libc::renameat2(at, out_file.as_ptr(), at, out_other.as_ptr(), flags))
            }
            "set_attribute" => {
                let name = c"user.evil".as_ptr();
                check(libc::setxattr(out_file.as_ptr(), name, c"evil".as_ptr().cast(), 4, 0))
            }
            "fchmod" => check(libc::fchmod(read_only(&out_file), 0o777)),
            "futimens" => check(libc::futimens(read_only(&out_file), LONG_AGO.as_ptr())),
            "link_opened" => {
                let fd = libc::open(out_file.as_ptr(), libc::O_PATH);
                let from = text(format!("/proc/self/fd/{fd}"));
                let to = text(format!("{}/hard", variable("WORK")));
                let (at, flags) = (libc::AT_FDCWD, libc::AT_SYMLINK_FOLLOW);
                check(libc::linkat(at, from.as_ptr(), at, to.as_ptr(), flags))
            }
            "reopen" => {
                let fd = libc::open(out_file.as_ptr(), libc::O_PATH);
                let again = text(format!("/proc/self/fd/{fd}"));
                check(libc::open(again.as_ptr(), libc::O_WRONLY | libc::O_TRUNC))
            }
            "handle" => {
                let mut handle = [0u8; 136];
                handle[0] = 128;
                let mut mount: c_int = 0;
                let (at, path) = (libc::AT_FDCWD, out_file.as_ptr());
                check(syscall(
                    libc::SYS_name_to_handle_at,
                    at,
                    path,
                    handle.as_mut_ptr(),
                    &raw mut mount,
                    0,
                ))?;
                let root = libc::open(c"/".as_ptr(), libc::O_RDONLY);
                check(syscall(
                    libc::SYS_open_by_handle_at,
                    root,
                    handle.as_mut_ptr(),
                    libc::O_RDONLY,
                ))
            }
            "stdin_times" => check(libc::futimens(0, LONG_AGO.as_ptr())),
            "stdin_mode" => {
                let mut stat = std::mem::zeroed::<libc::stat>();
                check(libc::fstat(0, &raw mut stat))?;
                check(libc::fchmod(0, stat.st_mode & 0o7777))
            }
            "bomb" => bomb(),
            "swap" => swap(),
            "pass_descriptor_to_itself" => {
                let mut pair = [0; 2];
                let kind = libc::SOCK_STREAM;
                check(libc::socketpair(libc::AF_UNIX, kind, 0, pair.as_mut_ptr()))?;
                let result = pass_descriptor(pair[0]);
                pair.into_iter().for_each(|end| _ = libc::close(end));
                result
            }
            "pass_descriptor_out" => {
                // Inherited and other descriptors.
                let mut result = Err(io::Error::from_raw_os_error(libc::ENOTSOCK));
                for socket in 0..256 {
                    match pass_descriptor(socket) {
                        Err(error) if error.raw_os_error() == Some(libc::EBADF) => {}
                        Err(error) if error.raw_os_error() == Some(libc::ENOTSOCK) => {}
                        other => result = other,
                    }
                }
                result
            }
            "dial" => super::dialling::dial(),
            "dial_unseen" => {
                check(libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0))?;
                super::dialling::dial()
            }
            "dial_unmarked" => {
                for most in [libc::RLIM_INFINITY, 1 << 62, 0] {
                    let limit = libc::rlimit { rlim_cur: 0, rlim_max: most };
                    // Only the last one can be had.
                    let _ = libc::setrlimit(libc::RLIMIT_LOCKS, &raw const limit);
                }
                super::dialling::dial()
            }
            "dial_in_flight" => super::dialling::dial_in_flight(),
            "in_flight" | "watchers" | "lease" | "no_core_limit" | "raise_limit" | "tty_mode"
            | "tty_owner" => super::resources::perform(name),
            _ => super::kernel::perform(name),
        }
    }
}

/// A fork bomb.
///
/// Without a bound, it stops by itself at a number that every machine can bear.
fn bomb() -> ! {
    const HARMLESS: u32 = 1000;
    let (access, kind) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
    // SAFETY: asks for new memory at any address, which all of them share.
    let count = unsafe { libc::mmap(std::ptr::null_mut(), 4096, access, kind, -1, 0) };
    assert_ne!(count, libc::MAP_FAILED);
    // SAFETY: the memory is large enough, aligned, zeroed, and never unmapped.
    let count = unsafe { &*count.cast::<AtomicU32>() };
    loop {
        // SAFETY: all of them make system calls only.
        match unsafe { libc::fork() } {
            // SAFETY: as above.
            -1 => _ = unsafe { libc::usleep(1000) },
            0 if count.fetch_add(1, Ordering::Relaxed) >= HARMLESS => break,
            _ if count.load(Ordering::Relaxed) >= HARMLESS => break,
            _ => {}
        }
    }
    // SAFETY: ends this copy.
    unsafe { libc::_exit(1) }
}

/// Swaps names in the workspace forever.
fn swap() -> ! {
    let name = |name: &str| text(format!("{}/{name}", variable("WORK")));
    let pairs = [(name("x"), name("y")), (name("leaf"), name("other-leaf"))];
    loop {
        for (one, other) in &pairs {
            let (at, flags) = (libc::AT_FDCWD, libc::RENAME_EXCHANGE);
            // SAFETY: both are C strings.
            unsafe { libc::renameat2(at, one.as_ptr(), at, other.as_ptr(), flags) };
        }
    }
}

/// Sends a descriptor of the root directory over a socket.
fn pass_descriptor(socket: c_int) -> io::Result<()> {
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
    use std::io::IoSlice;
    use std::os::fd::{AsFd, BorrowedFd};
    let root = std::fs::File::open("/")?;
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let passed = [root.as_fd()];
    assert!(control.push(SendAncillaryMessage::ScmRights(&passed)), "there is room for one");
    // SAFETY: only lent for the call, which fails if there is no such descriptor.
    let socket = unsafe { BorrowedFd::borrow_raw(socket) };
    sendmsg(socket, &[IoSlice::new(b"x")], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// 2001.
const LONG_AGO: [libc::timespec; 2] = [libc::timespec { tv_sec: 1_000_000_000, tv_nsec: 0 }; 2];

unsafe fn read_only(path: &CString) -> c_int {
    // SAFETY: the path is a C string.
    unsafe { libc::open(path.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) }
}

/// Runs `act` on a new file in the workspace.
fn made(work: &CString, act: impl FnOnce(*const libc::c_char) -> io::Result<()>) -> io::Result<()> {
    let path = text([work.to_bytes(), b"/made"].concat());
    std::fs::write(path.to_str().expect("it is UTF-8"), "")?;
    act(path.as_ptr())
}

/// No process inside has this number, which is as good as a refusal.
fn no_listener(result: io::Result<()>) -> io::Result<()> {
    result.map_err(|error| match error.raw_os_error() {
        Some(libc::EINVAL) => io::Error::from_raw_os_error(libc::EPERM),
        _ => error,
    })
}

/// Runs `act` in a child, so that this process is not changed.
pub fn in_child(act: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    // SAFETY: with one test there is one thread, and the child makes system calls only.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let code = act().err().map_or(0, |error| error.raw_os_error().unwrap_or(255));
        // SAFETY: ends this copy.
        unsafe { libc::_exit(code) };
    }
    wait_for(child)
}

fn wait_for(child: c_int) -> io::Result<()> {
    let mut status = 0;
    // SAFETY: fills a live local.
    check(unsafe { libc::waitpid(child, &raw mut status, 0) })?;
    match libc::WEXITSTATUS(status) {
        _ if libc::WIFSIGNALED(status) => Err(io::Error::from_raw_os_error(libc::EPERM)),
        0 => Ok(()),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}

fn clone_with(flags: c_int) -> io::Result<()> {
    clone_with_raw(flags as u64)
}

fn clone_with_raw(flags: u64) -> io::Result<()> {
    let none: c_long = 0;
    // SAFETY: without a stack this is a fork.
    let child =
        unsafe { syscall(libc::SYS_clone, flags | libc::SIGCHLD as u64, none, none, none, none) };
    if child == 0 {
        // SAFETY: ends this copy.
        unsafe { libc::_exit(0) };
    }
    check(child)?;
    wait_for(child as c_int)
}
