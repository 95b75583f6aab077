//! The kernel takes the programs and does what they say.

use std::net::TcpListener;
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::process::Command;

use exec_server_os::linux::testing::{Ended, User, errno_of, in_child, status_of_self};

use super::super::privileges;
use super::*;

const USERS: [User; 2] = [User::Caller, User::Ordinary];

/// Runs `body` under the command's filter, as both users.
fn under_filter(mode: NetworkMode, body: fn() -> i32) {
    under(&program(mode, &FilterOptions::default()), body, Ended::Exit(0));
}

fn under(program: &[SockFilter], body: fn() -> i32, expected: Ended) {
    for user in USERS {
        let ended = in_child(user, || {
            privileges::drop_all().unwrap();
            install(program).unwrap();
            body()
        });
        assert_eq!(ended, expected, "{user:?}");
    }
}

/// Calls that an unprivileged process may make, with arguments that do no harm.
fn tempting_calls() -> Vec<(libc::c_long, [u64; 6], i32)> {
    let bad = u64::MAX;
    let (stream, datagram) = (libc::SOCK_STREAM as u64, libc::SOCK_DGRAM as u64);
    let (unix, inet) = (libc::AF_UNIX as u64, libc::AF_INET as u64);
    let mut calls = vec![
        (libc::SYS_ptrace, [libc::PTRACE_PEEKDATA as u64, 1, 0, 0, 0, 0], libc::EPERM),
        (libc::SYS_process_vm_readv, [bad, 0, 0, 0, 0, 0], libc::EPERM),
        (libc::SYS_kcmp, [bad, bad, 0, 0, 0, 0], libc::EPERM),
        (libc::SYS_pidfd_getfd, [bad, 0, 0, 0, 0, 0], libc::EPERM),
        (libc::SYS_io_uring_setup, [1, 0, 0, 0, 0, 0], libc::EPERM),
        (libc::SYS_io_uring_enter, [bad, 0, 0, 0, 0, 0], libc::EPERM),
        (libc::SYS_keyctl, [bad, 0, 0, 0, 0, 0], libc::EPERM),
        (libc::SYS_add_key, [0; 6], libc::EPERM),
        (libc::SYS_perf_event_open, [0, 0, 0, 0, 0, 0], libc::EPERM),
        (libc::SYS_unshare, [libc::CLONE_FS as u64, 0, 0, 0, 0, 0], libc::EPERM),
        (libc::SYS_setns, [bad, 0, 0, 0, 0, 0], libc::EPERM),
        (libc::SYS_name_to_handle_at, [0; 6], libc::EPERM),
        (libc::SYS_mbind, [1, 0, 0, 0, 0, 0], libc::EPERM),
        (
            libc::SYS_clone,
            [(libc::CLONE_NEWUSER | libc::CLONE_THREAD) as u64, 0, 0, 0, 0, 0],
            libc::EPERM,
        ),
        (libc::SYS_clone3, [0; 6], libc::ENOSYS),
        (libc::SYS_openat2, [0; 6], libc::ENOSYS),
        (libc::SYS_ioctl, [bad, libc::TIOCSTI, 0, 0, 0, 0], libc::EPERM),
        (libc::SYS_ioctl, [bad, libc::TIOCSTI | 1 << 32, 0, 0, 0, 0], libc::EPERM),
        (libc::SYS_ioctl, [bad, libc::TIOCLINUX | 1 << 63, 0, 0, 0, 0], libc::EPERM),
        (libc::SYS_personality, [0x0040_0000, 0, 0, 0, 0, 0], libc::EPERM),
        (libc::SYS_fchmod, [bad, 0o4755, 0, 0, 0, 0], libc::EPERM),
        (libc::SYS_fchmodat, [bad, 0, 0o2755, 0, 0, 0], libc::EPERM),
        (libc::SYS_openat, [bad, 0, libc::O_CREAT as u64, 0o4755, 0, 0], libc::EPERM),
        (libc::SYS_openat, [bad, 0, libc::O_TMPFILE as u64 | 1, 0o4755, 0, 0], libc::EPERM),
        (calls::FCHMODAT2, [bad, 0, 0o4755, 0, 0, 0], libc::EPERM),
        (calls::OPEN_TREE_ATTR, [bad, 0, 0, 0, 0, 0], libc::EPERM),
        (libc::SYS_mknodat, [bad, 0, 0o4755, 0, 0, 0], libc::EPERM),
        (libc::SYS_socket, [inet, stream, 0, 0, 0, 0], libc::EPERM),
        (libc::SYS_socket, [inet | 1 << 32, datagram, 0, 0, 0, 0], libc::EPERM),
        (libc::SYS_socket, [unix, datagram, 0, 0, 0, 0], libc::EPERM),
        (libc::SYS_socketpair, [unix, datagram, 0, 0, 0, 0], libc::EPERM),
        (libc::SYS_connect, [bad, 0, 0, 0, 0, 0], libc::EPERM),
        (libc::SYS_bind, [bad, 0, 0, 0, 0, 0], libc::EPERM),
        (libc::SYS_listen, [bad, 0, 0, 0, 0, 0], libc::EPERM),
        (libc::SYS_accept4, [bad, 0, 0, 0, 0, 0], libc::EPERM),
    ];
    calls.extend(TEMPTING_HERE);
    calls
}

#[cfg(target_arch = "x86_64")]
const TEMPTING_HERE: &[(libc::c_long, [u64; 6], i32)] = &[
    (libc::SYS_chmod, [0, 0o4755, 0, 0, 0, 0], libc::EPERM),
    (libc::SYS_creat, [0, 0o4755, 0, 0, 0, 0], libc::EPERM),
    (libc::SYS_open, [0, libc::O_CREAT as u64, 0o4755, 0, 0, 0], libc::EPERM),
    (libc::SYS_modify_ldt, [u64::MAX, 0, 0, 0, 0, 0], libc::EPERM),
    (libc::SYS_getpid | 0x4000_0000, [0; 6], libc::EPERM),
];
#[cfg(target_arch = "aarch64")]
const TEMPTING_HERE: &[(libc::c_long, [u64; 6], i32)] = &[];

#[test]
fn tempting_calls_fail_because_of_the_filter() {
    under_filter(NetworkMode::Restricted, || {
        for (number, arguments, expected) in tempting_calls() {
            assert_eq!(errno_of(number, arguments), expected, "{number} {arguments:x?}");
        }
        assert_eq!(status_of_self("Seccomp"), "2");
        0
    });
}

#[test]
fn without_the_filter_they_would_fail_otherwise_or_work() {
    let ended = in_child(User::Ordinary, || {
        // Yama and `perf_event_paranoid` may deny these two to every user.
        let denied_anyway = [libc::SYS_ptrace, libc::SYS_perf_event_open];
        for (number, arguments, denial) in tempting_calls() {
            let errno = errno_of(number, arguments);
            // An x32 call exists only in kernels that were built for it.
            let differs = errno != denial || denied_anyway.contains(&number);
            assert!(differs, "{number} {arguments:x?}: {errno}");
        }
        0
    });
    assert_eq!(ended, Ended::Exit(0));
}

#[test]
#[cfg(target_arch = "x86_64")]
fn a_call_by_the_32_bit_gate_kills() {
    fn getpid_of_i386() -> i32 {
        // SAFETY: getpid touches no memory; rbx, which LLVM keeps for itself, is not changed by it.
        unsafe { std::arch::asm!("int 0x80", inlateout("eax") 20 => _, options(nostack)) };
        0
    }
    let program = program(NetworkMode::Enabled, &FilterOptions::default());
    under(&program, getpid_of_i386, Ended::Signal(libc::SIGSYS));
}

#[test]
fn threads_programs_and_socketpairs_work() {
    under_filter(NetworkMode::Restricted, || {
        std::thread::spawn(|| ()).join().unwrap();
        let output = Command::new("/bin/sh").args(["-c", "echo a | cat; (echo b) &wait"]).output();
        assert_eq!(output.unwrap().stdout, b"a\nb\n");
        let (mut one, mut other) = UnixStream::pair().unwrap();
        std::io::Write::write_all(&mut one, b"x").unwrap();
        std::io::Read::read_exact(&mut other, &mut [0]).unwrap();
        assert!(UnixDatagram::pair().is_err());
        0
    });
}

#[test]
fn restricted_has_no_network_and_enabled_has() {
    under_filter(NetworkMode::Restricted, || {
        assert!(TcpListener::bind("127.0.0.1:0").is_err());
        assert!(UnixListener::bind("/tmp/never-made").is_err());
        0
    });
    under_filter(NetworkMode::Enabled, || {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        assert!(UnixDatagram::unbound().is_err());
        0
    });
}

#[test]
fn a_mode_with_a_set_id_bit_cannot_be_given_to_a_file() {
    use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
    under_filter(NetworkMode::Restricted, || {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        let mut open = std::fs::OpenOptions::new();
        open.write(true).create(true);
        assert!(open.clone().mode(0o4755).open(&path).is_err());
        open.mode(0o755).open(&path).unwrap();
        let chmod = |mode| std::fs::set_permissions(&path, PermissionsExt::from_mode(mode));
        assert!(chmod(0o4755).is_err());
        assert!(chmod(0o2755).is_err());
        chmod(0o1700).unwrap();
        0
    });
}

/// A filter that lets everything pass.
fn open_filter() -> Vec<SockFilter> {
    let mut open = Assembler::default();
    open.answer(Action::Allow);
    open.finish()
}

#[test]
fn to_those_inside_the_kernel_has_no_filters() {
    under_filter(NetworkMode::Restricted, || {
        for flags in [0, NEW_LISTENER] {
            let error = install_with(&open_filter(), flags).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::EINVAL));
        }
        // A kernel that has filters misses the program, and one without does not look for it.
        let (option, mode) = (libc::PR_SET_SECCOMP as u64, libc::SECCOMP_MODE_FILTER.into());
        assert_eq!(errno_of(libc::SYS_prctl, [option, mode, 0, 0, 0, 0]), libc::EINVAL);
        0
    });
}

#[test]
fn a_filter_that_may_be_made_inside_cannot_open_what_the_first_one_closed() {
    let allow = Allowances { filters: true, ..Allowances::default() };
    let options = FilterOptions { allow, ..FilterOptions::default() };
    let make_more = || {
        let error = install_with(&open_filter(), NEW_LISTENER).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EINVAL));
        install(&open_filter()).unwrap();
        assert_eq!(errno_of(libc::SYS_listen, [u64::MAX, 0, 0, 0, 0, 0]), libc::EPERM);
        0
    };
    under(&program(NetworkMode::Restricted, &options), make_more, Ended::Exit(0));
}

#[test]
fn the_file_worker_cannot_start_anything() {
    under(
        &file_worker(false),
        || {
            assert!(Command::new("/bin/true").status().is_err());
            assert_eq!(errno_of(libc::SYS_execve, [0; 6]), libc::EPERM);
            assert_eq!(
                errno_of(libc::SYS_clone, [libc::SIGCHLD as u64, 0, 0, 0, 0, 0]),
                libc::EPERM
            );
            assert_eq!(errno_of(libc::SYS_clone3, [0; 6]), libc::ENOSYS);
            assert_eq!(std::thread::spawn(|| 7).join().unwrap(), 7);
            assert!(UnixStream::pair().is_err());
            assert_eq!(errno_of(libc::SYS_openat2, [0; 6]), libc::EINVAL);
            std::fs::read("/proc/self/stat").unwrap();
            0
        },
        Ended::Exit(0),
    );
}

#[test]
fn a_filter_needs_no_new_privileges() {
    let ended = in_child(User::Ordinary, || {
        let program = program(NetworkMode::Restricted, &FilterOptions::default());
        let error = install(&program).unwrap_err();
        assert_eq!(error.step, "seccomp");
        assert_eq!(error.cause.raw_os_error(), Some(libc::EACCES));
        0
    });
    assert_eq!(ended, Ended::Exit(0));
}
