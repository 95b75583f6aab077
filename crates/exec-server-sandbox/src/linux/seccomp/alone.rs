//! Rules for a sandbox without mounts and namespaces, for what Landlock does not cover.
//!
//! Landlock covers neither file attributes nor System V IPC, and a process of the same user can get another priority or
//! other limits. Registers cannot distinguish harmless uses of these calls, so all of them are refused.

use super::super::bpf::{Assembler, Test};
use super::{Ends, Filter, calls, core_limit_of_prlimit, core_limit_of_setrlimit, typing};

/// `RLIMIT_RTTIME`, the tree tag by which the server finds leftover processes; see `process_tree`.
const TAG: u32 = 15;

/// The ioctl types of file systems; they change flags, versions, encryption, subvolumes.
const FILE_SYSTEM_REQUESTS: [u32; 5] = [0x6600, 0x5800, 0x9400, 0x7600, 0xf500];

/// The exceptions, which only read or require a file that is open for writing:
/// `FS_IOC_GETFLAGS`, `FS_IOC_FIEMAP`, `FS_IOC_FSGETXATTR`, `FS_IOC_GETVERSION`, `FICLONE`, `FICLONERANGE`.
const HARMLESS_REQUESTS: [u32; 6] =
    [0x8008_6601, 0xc020_660b, 0x801c_581f, 0x8008_7601, 0x4004_9409, 0x4020_940d];

impl Filter {
    /// Modes, owners, times and extended attributes by path.
    pub(super) fn deny_attributes_of_names(&mut self) {
        self.deny_all(calls::ATTRIBUTES_OF_NAMES);
        self.deny_all(calls::ATTRIBUTES_OF_NAMES_HERE);
    }

    /// Without a path, `utimensat` applies to an open file.
    pub(super) fn deny_times_of_names(&mut self) {
        self.rule(libc::SYS_utimensat, |rule, ends| {
            only_null(rule, ends, 1);
            rule.jump(ends.allow);
        });
    }

    pub(super) fn deny_what_namespaces_keep(&mut self) {
        self.deny_all(calls::SHARED_IPC);
        self.rule(libc::SYS_ioctl, |rule, ends| {
            typing(rule, ends);
            for request in HARMLESS_REQUESTS {
                rule.jump_if(Test::Equal(request), ends.allow);
            }
            rule.keep_bits(0xff00);
            for letter in FILE_SYSTEM_REQUESTS {
                rule.jump_if(Test::Equal(letter), ends.deny);
            }
            rule.jump(ends.allow);
        });
        for call in calls::ABOUT_A_PROCESS {
            self.rule(*call, |rule, ends| {
                only_itself(rule, ends, 0);
                rule.jump(ends.allow);
            });
        }
        for (call, process) in calls::ABOUT_A_KIND_OF_PROCESS {
            self.rule(*call, |rule, ends| {
                rule.load_low(0);
                rule.jump_unless(Test::Equal(*process), ends.deny);
                only_itself(rule, ends, 1);
                rule.jump(ends.allow);
            });
        }
        self.rule(libc::SYS_prlimit64, |rule, ends| {
            only_itself(rule, ends, 0);
            core_limit_of_prlimit(rule, ends);
            rule.load_low(1);
            rule.jump_unless(Test::Equal(TAG), ends.allow);
            only_null(rule, ends, 2);
            rule.jump(ends.allow);
        });
        self.rule(libc::SYS_setrlimit, |rule, ends| {
            core_limit_of_setrlimit(rule, ends);
            rule.load_low(0);
            rule.jump_if(Test::Equal(TAG), ends.deny);
            rule.jump(ends.allow);
        });
    }
}

/// Zero is the calling process.
fn only_itself(rule: &mut Assembler, ends: Ends, argument: usize) {
    rule.load_low(argument);
    rule.jump_unless(Test::Equal(0), ends.deny);
}

fn only_null(rule: &mut Assembler, ends: Ends, argument: usize) {
    rule.load_low(argument);
    rule.jump_unless(Test::Equal(0), ends.deny);
    rule.load_high(argument);
    rule.jump_unless(Test::Equal(0), ends.deny);
}

#[cfg(test)]
mod tests {
    use super::super::super::bpf::Action;
    use super::super::super::bpf::evaluator::{call, evaluate};
    use super::super::*;

    const ALLOWED: u32 = libc::SECCOMP_RET_ALLOW;

    fn command(number: libc::c_long, arguments: &[u64]) -> u32 {
        let options = FilterOptions { alone: true, ..FilterOptions::default() };
        let program = program(NetworkMode::Restricted, &options);
        evaluate(&program, &call(ARCH, number, arguments))
    }

    fn worker(number: libc::c_long, arguments: &[u64]) -> u32 {
        evaluate(&file_worker(true), &call(ARCH, number, arguments))
    }

    fn denied() -> u32 {
        Action::Errno(libc::EPERM).code()
    }

    #[test]
    fn no_attribute_of_any_file_can_be_changed() {
        let names = calls::ATTRIBUTES_OF_NAMES.iter().chain(calls::ATTRIBUTES_OF_NAMES_HERE);
        for number in names.clone().chain(calls::ATTRIBUTES_OF_OPEN_FILES) {
            assert_eq!(command(*number, &[0, 0o644, 0o644]), denied(), "{number}");
        }
        assert_eq!(command(libc::SYS_utimensat, &[3, 0, 0, 0]), denied());
        for number in names {
            assert_eq!(worker(*number, &[0, 0o644, 0o644]), denied(), "{number}");
        }
    }

    #[test]
    fn a_worker_changes_attributes_of_what_it_has_open() {
        for number in calls::ATTRIBUTES_OF_OPEN_FILES {
            assert_eq!(worker(*number, &[3, 0o644]), ALLOWED, "{number}");
        }
        assert_eq!(worker(libc::SYS_fchmod, &[3, 0o4755]), denied());
        assert_eq!(worker(libc::SYS_utimensat, &[3, 0, 0, 0]), ALLOWED);
        for pointer in [1, 1 << 32, u64::MAX] {
            assert_eq!(worker(libc::SYS_utimensat, &[3, pointer, 0, 0]), denied());
        }
    }

    #[test]
    fn file_systems_are_asked_but_not_told() {
        for request in [0x8008_6601_u64, 0x4004_9409, 0x5401, 0x5413, 0x541b] {
            assert_eq!(command(libc::SYS_ioctl, &[0, request]), ALLOWED, "{request:x}");
        }
        // Flags, extended flags, verity, a subvolume; and TIOCSTI, also with high bits.
        for request in
            [0x4008_6602_u64, 0x401c_5820, 0x4080_6685, 0x5000_940e, 0x5412, 1 << 40 | 0x5412]
        {
            assert_eq!(command(libc::SYS_ioctl, &[0, request]), denied(), "{request:x}");
        }
    }

    #[test]
    fn only_the_caller_itself_gets_other_limits_and_priorities() {
        for number in calls::ABOUT_A_PROCESS {
            assert_eq!(command(*number, &[0, 1]), ALLOWED, "{number}");
            assert_eq!(command(*number, &[1, 1]), denied(), "{number}");
        }
        assert_eq!(command(libc::SYS_setpriority, &[0, 0, 5]), ALLOWED);
        // Another process, a group, all processes of this user.
        for arguments in [[0, 7, 5], [1, 0, 5], [2, 0, 5]] {
            assert_eq!(command(libc::SYS_setpriority, &arguments), denied());
        }
        let cpu = libc::RLIMIT_CPU as u64;
        assert_eq!(command(libc::SYS_prlimit64, &[0, cpu, 1, 0]), ALLOWED);
        assert_eq!(command(libc::SYS_prlimit64, &[1, cpu, 1, 0]), denied());
    }

    #[test]
    fn the_tag_stays() {
        let tag = libc::RLIMIT_RTTIME as u64;
        assert_eq!(command(libc::SYS_prlimit64, &[0, tag, 0, 1]), ALLOWED);
        for new in [1, 1 << 32] {
            assert_eq!(command(libc::SYS_prlimit64, &[0, tag, new, 0]), denied());
        }
        assert_eq!(command(libc::SYS_setrlimit, &[tag]), denied());
        assert_eq!(command(libc::SYS_setrlimit, &[libc::RLIMIT_NOFILE as u64]), ALLOWED);
    }

    #[test]
    fn ipc_that_others_share_is_out_of_reach() {
        for number in calls::SHARED_IPC {
            assert_eq!(command(*number, &[]), denied(), "{number}");
        }
    }
}
