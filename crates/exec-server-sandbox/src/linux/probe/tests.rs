use exec_server_os::linux::testing::{Ended, User, in_child};

use super::*;

#[test]
fn a_missing_feature_comes_with_a_hint() {
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
fn an_ordinary_user_can_probe_and_has_no_privileged_namespaces() {
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
fn a_process_without_the_right_to_make_namespaces_reports_the_failed_step() {
    use crate::linux::seccomp::{FilterOptions, NetworkMode, install, program};
    let ended = in_child(User::Ordinary, || {
        crate::linux::privileges::drop_all().unwrap();
        install(&program(NetworkMode::Enabled, &FilterOptions::default())).unwrap();
        let found = probe().user_namespaces;
        assert_eq!(found.reason.unwrap(), "a user namespace: Operation not permitted (os error 1)");
        0
    });
    assert_eq!(ended, Ended::Exit(0));
}
