//! Every rule, by running the programs on made-up calls.

use super::super::bpf::evaluator::{call, evaluate, steps};
use super::*;

const ALLOWED: Action = Action::Allow;
const DENIED: Action = Action::Errno(libc::EPERM);
const ABSENT: Action = Action::Errno(libc::ENOSYS);
const MODES: [NetworkMode; 2] = [NetworkMode::Restricted, NetworkMode::Enabled];
const HIGH: u64 = 0xdead_beef_0000_0000;

/// One answer in every network mode, with and without garbage in the high halves of the arguments.
fn check(number: libc::c_long, arguments: &[u64], expected: Action) {
    check_with(&FilterOptions::default(), number, arguments, expected);
}

fn check_with(options: &FilterOptions, number: libc::c_long, arguments: &[u64], expected: Action) {
    for mode in MODES {
        check_in(mode, options, number, arguments, expected);
    }
}

fn check_in(
    mode: NetworkMode,
    options: &FilterOptions,
    number: libc::c_long,
    arguments: &[u64],
    expected: Action,
) {
    let program = program(mode, options);
    let garbage: Vec<u64> = arguments.iter().map(|argument| argument | HIGH).collect();
    for arguments in [arguments, &garbage] {
        let answer = evaluate(&program, &call(ARCH, number, arguments));
        assert_eq!(answer, expected.code(), "call {number} {arguments:x?} {mode:?} {options:?}");
    }
}

fn check_socket(mode: NetworkMode, family: i32, kind: i32, protocol: i32, expected: Action) {
    let arguments = [family as u64, kind as u64, protocol as u64];
    check_in(mode, &FilterOptions::default(), libc::SYS_socket, &arguments, expected);
}

#[test]
fn the_programs_stay_short() {
    for mode in MODES {
        let length = program(mode, &FilterOptions::default()).len();
        eprintln!("{mode:?}: {length} instructions");
        assert!(length < 300);
    }
    assert!(file_worker(false).len() < 300);
}

#[test]
fn every_number_is_found_in_a_few_steps() {
    for mode in MODES {
        let program = program(mode, &FilterOptions::default());
        for number in 0..500 {
            let steps = steps(&program, &call(ARCH, number, &[]));
            assert!(steps < 24, "{steps} for call {number}");
        }
    }
}

#[test]
fn foreign_abis_are_killed() {
    const I386: u32 = 0x4000_0003;
    const ARM: u32 = 0x4000_0028;
    for mode in MODES {
        let program = program(mode, &FilterOptions::default());
        for arch in [I386, ARM, 0, ARCH ^ 0x8000_0000] {
            let answer = evaluate(&program, &call(arch, libc::SYS_getpid, &[]));
            assert_eq!(answer, Action::KillProcess.code());
        }
    }
    let answer = evaluate(&file_worker(false), &call(I386, libc::SYS_getpid, &[]));
    assert_eq!(answer, Action::KillProcess.code());
}

#[test]
#[cfg(target_arch = "x86_64")]
fn x32_calls_are_denied() {
    for number in [0, libc::SYS_getpid, libc::SYS_ptrace, 512, 547] {
        check(number | 0x4000_0000, &[], DENIED);
    }
    check(-1, &[], DENIED);
}

#[test]
fn ordinary_calls_are_allowed() {
    let ordinary = [
        libc::SYS_read,
        libc::SYS_write,
        libc::SYS_execve,
        libc::SYS_execveat,
        libc::SYS_wait4,
        libc::SYS_futex,
        libc::SYS_mmap,
        libc::SYS_kill,
        libc::SYS_landlock_create_ruleset,
        libc::SYS_memfd_create,
        libc::SYS_sendmsg,
        libc::SYS_recvmsg,
        libc::SYS_sendto,
        libc::SYS_recvfrom,
        libc::SYS_setsockopt,
        libc::SYS_getsockopt,
        libc::SYS_shutdown,
        libc::SYS_getsockname,
        libc::SYS_getpeername,
    ];
    for number in ordinary {
        check(number, &[0o7777, 0o7777, 0o7777, 0o7777], ALLOWED);
    }
}

#[test]
fn the_listed_calls_are_denied_in_every_mode() {
    let lists =
        [calls::DENIED, calls::DENIED_HERE, calls::DEBUGGING, calls::KEYRINGS, calls::NAMESPACES];
    for number in lists.into_iter().flatten() {
        check(*number, &[], DENIED);
    }
}

#[test]
fn the_operator_can_let_debuggers_browsers_and_keyrings_work() {
    let allow = Allowances { debugging: true, namespaces: true, keyrings: true, filters: true };
    let open = FilterOptions { allow, ..FilterOptions::default() };
    for number in [calls::DEBUGGING, calls::KEYRINGS, calls::NAMESPACES].into_iter().flatten() {
        check_with(&open, *number, &[], ALLOWED);
    }
    check_with(&open, libc::SYS_clone, &[libc::CLONE_NEWUSER as u64], ALLOWED);
    check_with(&open, libc::SYS_clone3, &[], ABSENT);
    for number in calls::DENIED {
        check_with(&open, *number, &[], DENIED);
    }
}

#[test]
fn a_clone_makes_threads_and_processes_but_no_namespaces() {
    let thread = libc::CLONE_VM | libc::CLONE_FS | libc::CLONE_FILES | libc::CLONE_SIGHAND;
    let thread = thread | libc::CLONE_THREAD | libc::CLONE_SYSVSEM | libc::CLONE_SETTLS;
    let vfork = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    for flags in [thread, vfork, libc::SIGCHLD] {
        check(libc::SYS_clone, &[flags as u64], ALLOWED);
    }
    let namespaces = [
        libc::CLONE_NEWNS,
        libc::CLONE_NEWCGROUP,
        libc::CLONE_NEWUTS,
        libc::CLONE_NEWIPC,
        libc::CLONE_NEWUSER,
        libc::CLONE_NEWPID,
        libc::CLONE_NEWNET,
    ];
    for flag in namespaces {
        check(libc::SYS_clone, &[u64::from((flag | libc::SIGCHLD) as u32)], DENIED);
    }
    check(libc::SYS_clone3, &[], ABSENT);
}

#[test]
fn nothing_can_be_typed_into_a_terminal() {
    check(libc::SYS_ioctl, &[0, libc::TIOCSTI], DENIED);
    check(libc::SYS_ioctl, &[0, libc::TIOCLINUX], DENIED);
    for request in [libc::TIOCGWINSZ, libc::TIOCSWINSZ, libc::TCGETS, libc::TIOCSCTTY] {
        check(libc::SYS_ioctl, &[0, request], ALLOWED);
    }
    check(libc::SYS_ioctl, &[libc::TIOCSTI, libc::FIONREAD], ALLOWED);
}

#[test]
fn no_file_is_leased() {
    for command in [libc::F_SETLEASE as u64, 1040] {
        check(libc::SYS_fcntl, &[3, command, 1], DENIED);
    }
    for command in [libc::F_GETLEASE, libc::F_SETFL, libc::F_DUPFD_CLOEXEC, libc::F_OFD_SETLK] {
        check(libc::SYS_fcntl, &[3, command as u64, 1], ALLOWED);
    }
}

#[test]
fn the_limit_on_core_dumps_stays_as_it_is() {
    const DONE: Action = Action::Errno(0);
    let (core, files) = (libc::RLIMIT_CORE.into(), libc::RLIMIT_NOFILE.into());
    let programs = [NetworkMode::Restricted, NetworkMode::Enabled].map(|mode| {
        [false, true].map(|alone| program(mode, &FilterOptions { alone, ..Default::default() }))
    });
    for program in programs.as_flattened() {
        let answer = |number, arguments: &[u64]| evaluate(program, &call(ARCH, number, arguments));
        let pointer = 0x7fff_0000_0000;
        assert_eq!(answer(libc::SYS_setrlimit, &[core, pointer]), DONE.code());
        assert_eq!(answer(libc::SYS_setrlimit, &[files, pointer]), ALLOWED.code());
        for new in [pointer, 4096] {
            assert_eq!(answer(libc::SYS_prlimit64, &[0, core, new, 0]), DONE.code());
            assert_eq!(answer(libc::SYS_prlimit64, &[0, core | HIGH, new, 0]), DONE.code());
            for old in [pointer, 4096] {
                assert_eq!(answer(libc::SYS_prlimit64, &[0, core, new, old]), DENIED.code());
            }
            assert_eq!(answer(libc::SYS_prlimit64, &[0, files, new, new]), ALLOWED.code());
        }
        assert_eq!(answer(libc::SYS_prlimit64, &[0, core, 0, pointer]), ALLOWED.code());
    }
}

#[test]
fn personalities_are_the_harmless_ones() {
    for allowed in [0, 8, 0x20000, 0x40000, 0xffff_ffff] {
        check(libc::SYS_personality, &[allowed], ALLOWED);
    }
    // READ_IMPLIES_EXEC, MMAP_PAGE_ZERO, PER_SVR4, and a mixture with an allowed one.
    for denied in [0x0040_0000, 0x0010_0000, 1, 0x0044_0000] {
        check(libc::SYS_personality, &[denied], DENIED);
    }
}

#[test]
fn set_id_modes_are_denied_wherever_a_mode_is_given() {
    let open = FilterOptions { allow_set_id_modes: true, ..FilterOptions::default() };
    for (number, place) in calls::WITH_MODE {
        let mut arguments = [0; 4];
        for (mode, expected) in [
            (0o755, ALLOWED),
            (0o1777, ALLOWED),
            (0o4755, DENIED),
            (0o2755, DENIED),
            (0o6000, DENIED),
        ] {
            arguments[*place] = mode;
            check(*number, &arguments, expected);
            check_with(&open, *number, &arguments, ALLOWED);
        }
    }
}

#[test]
fn an_open_is_judged_by_its_mode_only_if_it_makes_a_file() {
    for (number, flags_at, mode_at) in calls::WITH_FLAGS_AND_MODE {
        let mut arguments = [0; 4];
        let makes = [libc::O_CREAT | libc::O_WRONLY, libc::O_TMPFILE | libc::O_RDWR, libc::O_CREAT];
        for (flags, mode, expected) in makes
            .into_iter()
            .flat_map(|flags| {
                [(flags, 0o644, ALLOWED), (flags, 0o4711, DENIED), (flags, 0o2711, DENIED)]
            })
            .chain([(libc::O_RDONLY, 0o6777, ALLOWED), (libc::O_DIRECTORY, 0o6777, ALLOWED)])
        {
            arguments[*flags_at] = flags as u64;
            arguments[*mode_at] = mode;
            check(*number, &arguments, expected);
        }
    }
}

#[test]
fn openat2_is_hidden_where_its_mode_would_matter() {
    check(libc::SYS_openat2, &[], ABSENT);
    let modes = FilterOptions { allow_set_id_modes: true, ..FilterOptions::default() };
    check_with(&modes, libc::SYS_openat2, &[], ALLOWED);
    let worker = FilterOptions { allow_openat2: true, ..FilterOptions::default() };
    check_with(&worker, libc::SYS_openat2, &[], ALLOWED);
    check_with(&worker, libc::SYS_fchmod, &[0, 0o4755], DENIED);
}

#[test]
fn restricted_leaves_only_streams_between_relatives() {
    let mode = NetworkMode::Restricted;
    let cloexec = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    check_socket(mode, libc::AF_UNIX, libc::SOCK_STREAM | cloexec, 0, ALLOWED);
    check_socket(mode, libc::AF_UNIX, libc::SOCK_SEQPACKET | cloexec, 0, ALLOWED);
    check_socket(mode, libc::AF_UNIX, libc::SOCK_DGRAM, 0, DENIED);
    check_socket(mode, libc::AF_UNIX, libc::SOCK_RAW, 0, DENIED);
    for family in (0..48).filter(|family| *family != libc::AF_UNIX) {
        for kind in [libc::SOCK_STREAM, libc::SOCK_DGRAM, libc::SOCK_RAW, libc::SOCK_SEQPACKET] {
            check_socket(mode, family, kind | cloexec, 0, DENIED);
        }
    }
    for number in calls::CONNECTING.iter().chain(calls::LISTENING) {
        check_in(mode, &FilterOptions::default(), *number, &[], DENIED);
    }
}

#[test]
fn socketpairs_work_in_every_mode_but_not_for_datagrams() {
    let unix = libc::AF_UNIX as u64;
    for (kind, expected) in [
        (libc::SOCK_STREAM | libc::SOCK_CLOEXEC, ALLOWED),
        (libc::SOCK_SEQPACKET | libc::SOCK_NONBLOCK, ALLOWED),
        (libc::SOCK_DGRAM, DENIED),
        (libc::SOCK_RAW, DENIED),
    ] {
        check(libc::SYS_socketpair, &[unix, kind as u64], expected);
    }
    check(libc::SYS_socketpair, &[libc::AF_TIPC as u64, libc::SOCK_STREAM as u64], DENIED);
}

#[test]
fn enabled_reaches_the_internet_and_local_streams() {
    let mode = NetworkMode::Enabled;
    for family in [libc::AF_INET, libc::AF_INET6] {
        check_socket(mode, family, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0, ALLOWED);
        check_socket(mode, family, libc::SOCK_DGRAM, libc::IPPROTO_UDP, ALLOWED);
    }
    check_socket(mode, libc::AF_UNIX, libc::SOCK_STREAM, 0, ALLOWED);
    check_socket(mode, libc::AF_UNIX, libc::SOCK_DGRAM, 0, DENIED);
    check_socket(mode, libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_ROUTE, ALLOWED);
    check_socket(mode, libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_AUDIT, DENIED);
    check_socket(mode, libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_KOBJECT_UEVENT, DENIED);
    let others = [libc::AF_PACKET, libc::AF_VSOCK, libc::AF_ALG, libc::AF_BLUETOOTH, libc::AF_XDP];
    for family in others {
        check_socket(mode, family, libc::SOCK_STREAM, 0, DENIED);
    }
    for number in calls::CONNECTING.iter().chain(calls::LISTENING) {
        check_in(mode, &FilterOptions::default(), *number, &[], ALLOWED);
    }
}

#[test]
fn the_file_worker_starts_nothing_and_keeps_to_its_socket() {
    let program = file_worker(false);
    let of = |number| evaluate(&program, &call(ARCH, number, &[1, 1, 0]));
    for number in [calls::NOT_FOR_FILES, calls::NOT_FOR_FILES_HERE].into_iter().flatten() {
        assert_eq!(of(*number), DENIED.code(), "{number}");
    }
    for number in
        [calls::DENIED, calls::DEBUGGING, calls::CONNECTING, calls::LISTENING].into_iter().flatten()
    {
        assert_eq!(of(*number), DENIED.code(), "{number}");
    }
    let clone = |flags: i32| evaluate(&program, &call(ARCH, libc::SYS_clone, &[flags as u64]));
    let thread = libc::CLONE_VM | libc::CLONE_THREAD | libc::CLONE_SIGHAND;
    assert_eq!(clone(thread), ALLOWED.code());
    for process in [libc::SIGCHLD, libc::CLONE_VM | libc::CLONE_VFORK, thread | libc::CLONE_NEWUSER]
    {
        assert_eq!(clone(process), DENIED.code(), "{process:#x}");
    }
    assert_eq!(of(libc::SYS_clone3), Action::Errno(libc::ENOSYS).code());
    let needed = [libc::SYS_openat2, libc::SYS_statx, libc::SYS_sendmsg, libc::SYS_renameat2];
    for number in needed {
        assert_eq!(of(number), ALLOWED.code(), "{number}");
    }
    let mode = evaluate(&program, &call(ARCH, libc::SYS_fchmod, &[0, 0o4755]));
    assert_eq!(mode, DENIED.code());
}

#[test]
fn only_refusals_of_the_network_wait_for_an_answer() {
    let program = program_with(NetworkMode::Restricted, &FilterOptions::default(), Action::Notify);
    let of = |number, arguments: &[u64]| evaluate(&program, &call(ARCH, number, arguments));
    let stream = libc::SOCK_STREAM as u64;
    for family in [libc::AF_INET, libc::AF_INET6, libc::AF_PACKET, libc::AF_VSOCK] {
        let answer = of(libc::SYS_socket, &[family as u64, stream]);
        assert_eq!(answer, Action::Notify.code(), "{family}");
    }
    for number in calls::CONNECTING {
        assert_eq!(of(*number, &[]), Action::Notify.code());
    }
    // What libraries try on their own must not look like a refusal of what the user wanted.
    for family in [libc::AF_NETLINK, libc::AF_ALG] {
        assert_eq!(of(libc::SYS_socket, &[family as u64, stream]), DENIED.code(), "{family}");
    }
    let datagram = libc::SOCK_DGRAM as u64;
    assert_eq!(of(libc::SYS_socket, &[libc::AF_UNIX as u64, datagram]), DENIED.code());
    for number in calls::DENIED {
        assert_eq!(of(*number, &[]), DENIED.code());
    }
    assert_eq!(of(libc::SYS_socket, &[libc::AF_UNIX as u64, stream]), ALLOWED.code());
}
