//! Prevents processes inside from installing a filter with a listener that overrides ours.
//!
//! If two filters request a notification, the kernel asks the newer one. It allows one listener at a time but drops ours
//! when the launcher exits, and a descendant may outlive the launcher. Such a descendant could then allow its own calls.
//! So installing a filter fails with `EINVAL` as on a kernel without seccomp, and programs continue without one.

use super::super::bpf::Test;
use super::{Filter, FilterOptions, NEW_LISTENER};

impl Filter {
    /// Feature queries stay allowed; they have no effect.
    pub(super) fn judge_filters(&mut self, options: &FilterOptions) {
        let allow_filters = options.allow.filters;
        self.rule(libc::SYS_seccomp, |rule, ends| {
            rule.load_low(0);
            if !allow_filters {
                rule.jump_if(Test::Equal(libc::SECCOMP_SET_MODE_STRICT), ends.unknown);
                rule.jump_if(Test::Equal(libc::SECCOMP_SET_MODE_FILTER), ends.unknown);
            } else {
                rule.jump_unless(Test::Equal(libc::SECCOMP_SET_MODE_FILTER), ends.allow);
                rule.load_low(1);
                rule.jump_if(Test::AnyBit(NEW_LISTENER as u32), ends.unknown);
            }
            rule.jump(ends.allow);
        });
        if !allow_filters {
            self.rule(libc::SYS_prctl, |rule, ends| {
                rule.load_low(0);
                rule.jump_if(Test::Equal(libc::PR_SET_SECCOMP as u32), ends.unknown);
                rule.jump(ends.allow);
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::bpf::Action;
    use super::super::super::bpf::evaluator::{call, evaluate};
    use super::super::*;

    const UNKNOWN: Action = Action::Errno(libc::EINVAL);
    const MAKE: u64 = libc::SECCOMP_SET_MODE_FILTER as u64;
    const SET: u64 = libc::PR_SET_SECCOMP as u64;

    /// With and without garbage in the register halves that the kernel ignores.
    fn check(program: &[SockFilter], number: libc::c_long, arguments: [u64; 2], expected: Action) {
        for high in [0, 0xdead_beef_0000_0000] {
            let arguments = arguments.map(|argument| argument | high);
            let answer = evaluate(program, &call(ARCH, number, &arguments));
            assert_eq!(answer, expected.code(), "{number} {arguments:x?}");
        }
    }

    fn check_questions(program: &[SockFilter]) {
        for question in [libc::SECCOMP_GET_ACTION_AVAIL, libc::SECCOMP_GET_NOTIF_SIZES] {
            check(program, libc::SYS_seccomp, [question.into(), 0], Action::Allow);
        }
        for option in [libc::PR_GET_SECCOMP, libc::PR_SET_NO_NEW_PRIVS, libc::PR_SET_NAME] {
            check(program, libc::SYS_prctl, [option as u64, 1], Action::Allow);
        }
    }

    #[test]
    fn to_those_inside_there_are_no_filters() {
        let options = FilterOptions::default();
        let alone = FilterOptions { alone: true, ..options };
        let programs = [
            program(NetworkMode::Restricted, &options),
            program(NetworkMode::Enabled, &options),
            program(NetworkMode::Restricted, &alone),
            file_worker(false),
            file_worker(true),
        ];
        for program in programs {
            for flags in [0, 1, NEW_LISTENER, NEW_LISTENER | WAIT_KILLABLE, u64::MAX] {
                check(&program, libc::SYS_seccomp, [MAKE, flags], UNKNOWN);
            }
            check(&program, libc::SYS_seccomp, [0, 0], UNKNOWN);
            for mode in [libc::SECCOMP_MODE_STRICT, libc::SECCOMP_MODE_FILTER] {
                check(&program, libc::SYS_prctl, [SET, mode.into()], UNKNOWN);
            }
            check_questions(&program);
        }
    }

    #[test]
    fn where_filters_are_allowed_none_can_ask_somebody_inside() {
        let allow = Allowances { filters: true, ..Allowances::default() };
        let options = FilterOptions { allow, ..FilterOptions::default() };
        let program = program(NetworkMode::Restricted, &options);
        let others = libc::SECCOMP_FILTER_FLAG_TSYNC | libc::SECCOMP_FILTER_FLAG_LOG;
        for flags in [0, others] {
            check(&program, libc::SYS_seccomp, [MAKE, flags], Action::Allow);
            check(&program, libc::SYS_seccomp, [MAKE, flags | NEW_LISTENER], UNKNOWN);
        }
        check(&program, libc::SYS_prctl, [SET, libc::SECCOMP_MODE_FILTER.into()], Action::Allow);
        check_questions(&program);
    }
}
