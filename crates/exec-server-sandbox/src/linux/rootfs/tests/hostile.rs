//! Attempts to get out that are not about a single path.

use super::super::Base;
use super::harness::each_user;

#[test]
fn mounts_cannot_be_changed_from_inside() {
    each_user(|host| {
        host.check(
            &host.view(Base::Everything, &["w ws", "r ws/.git", "d ws/denied"]),
            "
            mount @/ws = EPERM
            remount / = EPERM
            remount @/ws/.git = EPERM
            unmount @/ws/.git = EPERM
            unmount @/ws/denied = EPERM
            unmount @/ws = EPERM
            unmount /dev = EPERM
            unmount / = EPERM
            ",
        );
    });
}

#[test]
fn new_namespaces_do_not_lay_bare_what_is_covered() {
    each_user(|host| {
        // Even with all capabilities in namespaces of its own, covers are locked together with what they cover.
        host.check(
            &host.view(Base::Everything, &["w ws", "r ws/.git", "d ws/denied", "d ws/key.env"]),
            "
            new-namespaces = ok
            unmount @/ws/denied = EINVAL|EPERM
            unmount @/ws/key.env = EINVAL|EPERM
            unmount @/ws/.git = EINVAL|EPERM
            unmount /proc/sys = EINVAL|EPERM
            unmount /proc = EINVAL|EPERM
            unmount /dev = EINVAL|EPERM
            remount @/ws/.git = EPERM
            remount / = EPERM
            remount @/out = EINVAL|EPERM
            list @/ws/denied = EACCES|[]
            overwrite @/ws/.git/config = EROFS
            read @/ws/key.env = EACCES|
            open-for-writing /proc/sys/kernel/core_pattern = EROFS|EACCES
            bind @/ws/denied @/ws/sub = ok|EPERM|EINVAL
            list @/ws/sub = EACCES|[]
            bind-alone @/ws @/ws/sub = EINVAL|EPERM
            ",
        );
    });
}

#[test]
fn descriptors_do_not_lead_out() {
    each_user(|host| {
        host.check(
            &host.view(Base::Everything, &["w ws", "d out"]),
            "
            read @/ws/../out/secret = EACCES
            read /../../../..@/out/secret = EACCES
            list /proc/self/fd/99 = ENOENT
            ",
        );
        host.check(
            &host.bare_view(&["w ws"]),
            "read @/ws/../../../../../../../..@/out/secret = ENOENT",
        );
    });
}

#[test]
fn other_processes_are_out_of_reach() {
    each_user(|host| {
        host.check(
            &host.view(Base::Everything, &["w ws"]),
            "
            write /proc/1/root@/out/new = EROFS|EACCES
            has /proc/1000 = no
            readlink /proc/self/cwd = /
            readlink /proc/self/root = /
            ",
        );
    });
}
