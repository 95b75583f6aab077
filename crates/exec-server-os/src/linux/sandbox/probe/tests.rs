use super::*;
use crate::linux::sandbox::testing::{Ended, User, in_child};

#[test]
fn what_is_missing_comes_with_a_hint() {
    let probe = probe();
    let findings = [
        &probe.user_namespaces,
        &probe.privileged_namespaces,
        &probe.proc_mount,
        &probe.seccomp,
        &probe.seccomp_notify,
        &probe.landlock,
        &probe.cgroup,
    ];
    for finding in findings {
        assert_eq!(finding.works, finding.hint.is_none());
        assert_eq!(finding.works, finding.reason.is_none());
    }
    assert_eq!(probe.landlock_missing.is_empty(), probe.landlock_abi >= 9);
    assert!(probe.kernel_release.starts_with(|first: char| first.is_ascii_digit()));
    eprintln!("{probe:#?}");
}

#[test]
fn an_ordinary_user_can_ask_and_has_no_privileged_namespaces() {
    let ended = in_child(User::Ordinary, || {
        let probe = probe();
        assert!(!probe.privileged_namespaces.works);
        assert!(probe.seccomp.works);
        if !probe.user_namespaces.works {
            eprintln!("no user namespaces here: {:?}", probe.user_namespaces);
        }
        0
    });
    assert_eq!(ended, Ended::Exit(0));
}

#[test]
fn a_process_that_may_not_make_namespaces_says_where_it_got_stuck() {
    use crate::linux::sandbox::filter::{FilterOptions, NetworkMode, install, program};
    let ended = in_child(User::Ordinary, || {
        crate::linux::sandbox::privileges::drop_all().unwrap();
        install(&program(NetworkMode::Enabled, &FilterOptions::default())).unwrap();
        let found = probe().user_namespaces;
        assert_eq!(found.reason.unwrap(), "a user namespace: Operation not permitted (os error 1)");
        0
    });
    assert_eq!(ended, Ended::Exit(0));
}
