//! Gaining privileges, or leaving privileged files behind.

use std::os::unix::fs::MetadataExt;

use super::attempt::{are_refused, outcomes};
use super::fixture::as_each_user;
use super::*;

pub const FOR_EVERYBODY: [&str; 12] = [
    "unshare_user",
    "clone_user",
    "clone_user_high",
    "clone3",
    "chmod_suid",
    "chmod_sgid",
    "fchmodat2_suid",
    "open_suid",
    "creat_suid",
    "tmpfile_suid",
    "mknod_suid",
    "raise_limit",
];

pub const FOR_ROOT: [&str; 18] = [
    "mount",
    "remount",
    "umount",
    "pivot_root",
    "chroot",
    "setns",
    "unshare_mounts",
    "open_tree",
    "open_tree_attr",
    "fsopen",
    "move_mount",
    "mount_setattr",
    "sethostname",
    "setuid",
    "setgroups",
    "file_capability",
    "mknod_device",
    "chown",
];

#[tokio::test]
async fn nothing_gives_privileges_under_any_policy() {
    as_each_user(async |fixture| {
        let read_only = with_entries(&[&fixture.work()], "restricted", &[special("root", "read")]);
        let inside =
            outcomes(fixture, &read_only, &[&FOR_EVERYBODY[..4], &FOR_ROOT[..15]].concat()).await;
        assert!(
            inside.values().all(|outcome| ["EPERM", "ENOSYS"].contains(&outcome.as_str())),
            "{inside:?}"
        );
        let everywhere =
            |network| with_entries(&[&fixture.work()], network, &[special("root", "write")]);
        for policy in [
            fixture.workspace("restricted"),
            fixture.workspace("enabled"),
            unrestricted("restricted"),
            unrestricted("enabled"),
            everywhere("enabled"),
        ] {
            are_refused(fixture, &policy, &FOR_EVERYBODY, &FOR_ROOT).await;
            let made = fixture.work().join("made");
            assert_eq!(made.metadata().map_or(0, |made| made.mode() & 0o6000), 0);
            // The last attack on it may have left nothing.
            let _ = std::fs::remove_file(made);
        }
    })
    .await;
}

#[tokio::test]
async fn a_command_has_no_capabilities_and_cannot_get_any() {
    as_each_user(async |fixture| {
        for policy in [fixture.workspace("restricted"), unrestricted("enabled")] {
            let script = "grep -E '^(Cap|NoNewPrivs|Seccomp:)' /proc/self/status | tr -d '\\t'";
            let finished = fixture.run(&policy, script).await;
            let none = "0".repeat(16);
            let expected = format!(
                "CapInh:{none}\nCapPrm:{none}\nCapEff:{none}\nCapBnd:{none}\nCapAmb:{none}\nNoNewPrivs:1\nSeccomp:2\n"
            );
            assert_eq!(finished.text(), expected);
        }
    })
    .await;
}

/// Files that root may write without any capability.
pub const KERNEL_FILES: [&str; 9] = [
    "/proc/sys/kernel/core_pattern",
    "/proc/sys/kernel/modprobe",
    "/proc/sys/vm/drop_caches",
    "/proc/sys/net/ipv4/ip_forward",
    "/proc/sysrq-trigger",
    "/proc/irq/default_smp_affinity",
    "/sys/fs/cgroup/cgroup.procs",
    "/sys/kernel/mm/transparent_hugepage/enabled",
    "/sys/kernel/uevent_helper",
];

#[tokio::test]
async fn files_of_the_kernel_cannot_be_opened_for_writing() {
    as_each_user(async |fixture| {
        let there: Vec<_> =
            KERNEL_FILES.into_iter().filter(|path| Path::new(path).exists()).collect();
        let script = format!(
            "for path in {}; do for root in '' /proc/self/root /proc/thread-self/root; do \
             true 2>/dev/null >> $root$path && echo $root$path; done; done; true",
            there.join(" ")
        );
        if fixture.is_root() {
            let free = fixture.run_free(&script).await;
            for path in &there {
                assert!(
                    free.text().lines().any(|line| line == *path),
                    "{path} is closed to root: {free:?}"
                );
            }
        }
        for policy in [
            fixture.workspace("restricted"),
            fixture.workspace("enabled"),
            unrestricted("restricted"),
            unrestricted("enabled"),
        ] {
            let inside = fixture.run(&policy, &script).await;
            assert_eq!(inside.text(), "", "{inside:?}");
        }
    })
    .await;
}

#[tokio::test]
async fn cgroups_cannot_be_made_or_left() {
    as_each_user(async |fixture| {
        for policy in [fixture.workspace("restricted"), unrestricted("enabled")] {
            let script = "for group in /sys/fs/cgroup /sys/fs/cgroup/*/; do \
                          mkdir $group/exec-server-test 2>/dev/null && echo made; \
                          echo 0 2>/dev/null > $group/cgroup.procs && echo moved; done; true";
            let inside = fixture.run(&policy, script).await;
            assert_eq!(inside.text(), "");
        }
    })
    .await;
}
