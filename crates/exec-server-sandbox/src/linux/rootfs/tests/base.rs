//! Everything or nothing, and what places add to it.

use super::super::{Base, MountRule, RootfsSpec};
use super::harness::{Host, User, build, each_user, time_of_build};

#[test]
fn everything_can_be_read_and_nothing_changed() {
    each_user(|host| {
        host.check(
            &host.view(Base::Everything, &[]),
            "
        read @/out/secret = secret
        read @/ws/../out/secret = secret
        write @/out/new = EROFS
        overwrite @/out/secret = EROFS
        append @/out/secret = EROFS
        truncate @/out/secret = EROFS
        mkdir @/out/new = EROFS
        rmdir @/out/dir = EROFS
        unlink @/out/secret = EROFS
        rename @/out/secret @/out/moved = EROFS
        exchange @/out/secret @/out/dir = EROFS
        link @/out/secret @/out/second = EROFS
        symlink /etc @/out/link = EROFS
        chmod @/out/secret = EROFS
        chown @/out/secret = EROFS
        utime @/out/secret = EROFS
        xattr @/out/secret = EROFS
        fifo @/out/fifo = EROFS
        device @/out/device = EROFS|EPERM
        overwrite /proc/self/root@/out/secret = EROFS
        overwrite /proc/self/cwd@/out/secret = EROFS
        unlink /no-such-name = EROFS
        unlink /tmp/no-such-name = EROFS
        run /bin/true = 0
        ",
        );
    });
}

#[test]
fn a_writable_place_is_all_that_can_be_changed() {
    each_user(|host| {
        host.check(
            &host.view(Base::Everything, &["w ws"]),
            "
        write @/ws/new = ok
        read @/ws/new = written
        mkdir @/ws/dir = ok
        rename @/ws/new @/ws/dir/new = ok
        link @/ws/dir/new @/ws/second = ok
        symlink ../out/secret @/ws/out = ok
        read @/ws/out = secret
        overwrite @/ws/out = EROFS
        symlink ../../../../../../../../etc @/ws/etc = ok
        unlink @/ws/etc/no-such-name = EROFS
        write @/ws/../out/new = EROFS
        link @/out/secret @/ws/secret = EXDEV
        rename @/out/secret @/ws/secret = EXDEV
        rename @/ws/file @/out/file = EXDEV
        exchange @/ws/file @/out/secret = EXDEV
        chmod @/ws/file = ok
        utime @/ws/file = ok
        fifo @/ws/fifo = ok
        device @/ws/null = EPERM
        rename @/ws @/moved = EROFS|EBUSY|EXDEV
        rmdir @/ws = EBUSY|EROFS
        write @/new = EROFS
        unlink @/ws/second = ok
        unlink @/ws/dir/new = ok
        rmdir @/ws/dir = ok
        unlink @/ws/out = ok
        unlink @/ws/etc = ok
        unlink @/ws/fifo = ok
        ",
        );
    });
}

#[test]
fn a_writable_root_leaves_the_kernel_alone() {
    each_user(|host| {
        host.check(
            &host.view(Base::Everything, &["w /", "r out", "d ws/denied"]),
            "
        write @/ws/new = ok
        unlink @/ws/new = ok
        overwrite @/out/secret = EROFS
        list @/ws/denied = EACCES
        rename @/out @/moved = EBUSY
        rmdir @ = EBUSY
        unlink /sys/kernel/no-such-name = EROFS
        open-for-writing /sys/kernel/uevent_helper = EROFS|EACCES|ENOENT
        open-for-writing /sys/kernel/mm/ksm/run = EROFS|EACCES|ENOENT
        unlink /sys/fs/cgroup/no-such-name = EROFS
        chmod /sys/kernel = EROFS
        open-for-writing /proc/sys/kernel/hostname = EROFS|EACCES
        unlink /dev/no-such-name = EROFS
        ",
        );
    });
}

#[test]
fn nothing_shows_only_what_is_named() {
    each_user(|host| {
        host.check(
            &host.bare_view(&["w ws", "r out/dir", "r ws/.git", "d ws/denied"]),
            "
        list @ = [out ws]
        list @/out = [dir]
        read @/out/dir/file = outside
        read @/out/secret = ENOENT
        read @/ws/../out/secret = ENOENT
        overwrite @/out/dir/file = EROFS
        write @/out/new = EROFS
        write @/new = EROFS
        unlink /no-such-name = EROFS
        unlink /tmp/no-such-name = EROFS
        write @/ws/new = ok
        unlink @/ws/new = ok
        write @/ws/.git/config = EROFS
        list @/ws/denied = EACCES
        has /sys = no
        has /root = no
        has /home = no
        run /bin/true = 0
        run /usr/bin/true = 0
        begins /etc/passwd = 4
        unlink /etc/no-such-name = EROFS
        open-for-writing /dev/null = ok
        chmod / = EROFS
        chmod /tmp = EROFS
        ",
        );
    });
}

#[test]
fn places_may_be_files_and_need_not_exist() {
    let places =
        ["w ws/file", "r out/secret", "w none", "r none/deeper", "d missing", "w ws/file/x"];
    let script = "
        read @/ws/file = file
        append @/ws/file = ok
        truncate @/ws/file = ok
        unlink @/ws/file = EBUSY|EROFS
        rename @/ws/file @/ws/moved = EBUSY|EROFS
        read @/out/secret = secret
        append @/out/secret = EROFS
        write @/ws/new = EROFS
        mkdir @/none = EROFS
        has @/none = no
        has @/missing = no
        ";
    each_user(|host| host.check(&host.view(Base::Everything, &places), script));
    each_user(|host| host.check(&host.bare_view(&places), script));
}

#[test]
fn a_view_survives_the_way_to_the_launcher() {
    use std::os::unix::ffi::OsStrExt;
    let host = Host::new(User::Nobody);
    let mut view = host.view(Base::Nothing, &["w ws", "r out", "d none"]);
    let odd = std::ffi::OsStr::from_bytes(b"/odd/\xff\n name");
    view.places.push(MountRule { path: odd.into(), ..view.places[0].clone() });
    view.masked.push(odd.into());
    view.handed_out.push(odd.into());
    let sent = postcard::to_allocvec(&view).unwrap();
    assert_eq!(postcard::from_bytes::<RootfsSpec>(&sent).unwrap(), view);
}

#[test]
fn names_that_are_not_utf_8_are_places_as_well() {
    use std::os::unix::ffi::OsStrExt;
    each_user(|host| {
        let odd = host.path("ws").join(std::ffi::OsStr::from_bytes(b"\xff\xfe"));
        std::fs::create_dir(&odd).unwrap();
        std::os::unix::fs::symlink(&odd, host.path("odd")).unwrap();
        let mut view = host.view(Base::Everything, &["w ws"]);
        let access = super::super::MountAccess::ReadOnly;
        view.places.push(MountRule { path: odd, access });
        host.check(&view, "write @/odd/new = EROFS");
    });
}

#[test]
fn paths_must_be_absolute_and_normal() {
    each_user(|host| {
        for path in ["relative", "/a/../etc", ""] {
            let mut view = host.view(Base::Everything, &["d /x"]);
            view.places[0].path = path.into();
            assert!(host.refuses(&view).contains("(look up a denied place): Invalid argument"));
        }
    });
}

#[test]
fn a_root_that_a_link_leads_to_replaces_the_one_that_was_prepared() {
    each_user(|host| {
        host.link("/", "out/everything");
        host.check(
            &host.view(Base::Nothing, &["r out/everything", "w ws", "d out/dir"]),
            "
        read @/out/secret = secret
        write @/out/new = EROFS
        write @/ws/new = ok
        read @/out/dir/file = EACCES
        overwrite /proc/sys/kernel/hostname = EROFS|EACCES
        write /dev/shm/new = ok
        run /bin/true = 0
        ",
        );
    });
}

#[test]
fn only_the_first_process_of_a_pid_namespace_builds() {
    let error = build(&RootfsSpec::new(Base::Everything)).err().unwrap();
    assert_eq!(error.step, "be the first process of a pid namespace");
}

/// Prints how long it takes; run with `--ignored --nocapture`.
#[test]
#[ignore = "a measurement"]
fn time_of_a_workspace_view() {
    let host = Host::new(User::Root);
    let view =
        host.view(Base::Everything, &["w ws", "w /tmp", "r ws/.git", "r ws/sub", "d ws/key.env"]);
    let mut times: Vec<u64> = (0..200).map(|_| time_of_build(&host, &view)).collect();
    times.sort_unstable();
    println!("build: p50 {} us, p95 {} us", times[100], times[190]);
}
