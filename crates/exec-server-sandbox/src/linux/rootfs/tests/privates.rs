//! What every sandbox has of its own: `/dev`, `/proc`, shared memory.

use std::path::Path;

use super::super::Base;
use super::super::mounts::{self, HERE};
use super::harness::{each_user, each_user_prepared};

#[test]
fn dev_has_what_programs_need_and_nothing_else() {
    let script = "
        list /dev = [fd full null ptmx pts random shm stderr stdin stdout tty urandom zero]
        begins /dev/zero = 4
        begins /dev/urandom = 4
        begins /dev/null = 0
        overwrite /dev/null = ok
        overwrite /dev/full = ENOSPC
        open-for-writing /dev/tty = ENXIO
        list /dev/pts = [ptmx]
        terminal = ok
        readlink /dev/fd = /proc/self/fd
        chmod /dev/null = EROFS
        utime /dev/zero = EROFS
        unlink /dev/no-such-name = EROFS
        list /dev/shm = []
        write /dev/shm/exec-server-view-test = ok
        chmod /dev/shm/exec-server-view-test = ok
        fill /dev/shm/exec-server-view-test = 1
        unlink /dev/shm/exec-server-view-test = ok
        run /bin/true = 0
        ";
    each_user(|host| host.check(&host.view(Base::Everything, &[]), script));
    each_user(|host| host.check(&host.bare_view(&[]), script));
    each_user(|host| host.check(&host.view(Base::Everything, &["w /dev", "w /proc"]), script));
}

#[test]
fn proc_shows_only_the_sandbox_and_cannot_be_written() {
    let script = "
        has /proc/1 = yes
        has /proc/2 = yes
        has /proc/3 = no
        begins /proc/cpuinfo = 4
        begins /proc/meminfo = 4
        begins /proc/self/status = 4
        begins /proc/sys/kernel/hostname = 2|3|4
        open-for-writing /proc/self/comm = ok
        open-for-writing /proc/sys/kernel/hostname = EROFS|EACCES
        open-for-writing /proc/sys/kernel/core_pattern = EROFS|EACCES
        open-for-writing /proc/sys/vm/drop_caches = EROFS|EACCES
        open-for-writing /proc/self/root/proc/sys/kernel/core_pattern = EROFS|EACCES
        open-for-writing /proc/1/root/proc/sys/kernel/core_pattern = EROFS|EACCES
        open-for-writing /proc/sysrq-trigger = EROFS|EACCES|ENOENT
        open-for-writing /proc/mtrr = EROFS|EACCES|ENOENT
        open-for-writing /proc/irq/default_smp_affinity = EROFS|EACCES|ENOENT
        open-for-writing /proc/dynamic_debug/control = EROFS|EACCES|ENOENT
        chmod /proc/sys/kernel/core_pattern = EROFS
        begins /proc/kcore = 0|ENOENT
        begins /proc/kmsg = 0|ENOENT
        begins /proc/keys = 0|ENOENT
        begins /proc/key-users = 0|ENOENT
        begins /proc/timer_list = 0|ENOENT
        begins /proc/sched_debug = 0|ENOENT
        begins /proc/kpageflags = 0|ENOENT
        unmount /proc/sys = EPERM
        unmount /proc = EPERM
        remount /proc/sys = EPERM
        ";
    each_user(|host| host.check(&host.view(Base::Everything, &["w ws"]), script));
    each_user(|host| host.check(&host.bare_view(&["w ws"]), script));
    each_user(|host| host.check(&host.view(Base::Everything, &["w /"]), script));
}

#[test]
fn shared_memory_of_the_host_is_there_only_if_it_is_named() {
    each_user(|host| {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let dir = dir.path();
        let name = dir.display();
        std::fs::write(dir.join("file"), "shared").unwrap();
        std::fs::write(dir.join("keep"), "keep").unwrap();
        if rustix::process::getuid().is_root() {
            host.give(dir);
        }
        host.check(&host.view(Base::Everything, &["w ws"]), &format!("has {name} = no"));
        let places = [format!("w {name}"), format!("r {name}/keep")];
        let places: Vec<&str> = places.iter().map(String::as_str).collect();
        let script = format!(
            "
            read {name}/file = shared
            append {name}/file = ok
            append {name}/keep = EROFS
            write /dev/shm/exec-server-view-test = ok
            "
        );
        host.check(&host.view(Base::Everything, &places), &script);
        assert_eq!(std::fs::read(dir.join("file")).unwrap(), b"shared0");
        assert!(!Path::new("/dev/shm/exec-server-view-test").exists());
    });
}

#[test]
fn dev_and_proc_can_be_denied() {
    each_user(|host| {
        host.check(
            &host.view(
                Base::Everything,
                &["d /dev/shm", "d /proc/sys", "d /proc/cpuinfo", "d /dev/kmsg"],
            ),
            "
            list /dev/shm = EACCES
            unlink /dev/shm/no-such-name = EACCES|EROFS
            list /proc/sys = EACCES
            read /proc/cpuinfo = EACCES
            begins /proc/meminfo = 4
            ",
        );
        host.check(
            &host.view(Base::Everything, &["d /proc", "d /dev"]),
            "list /proc = EACCES\n list /dev = EACCES",
        );
    });
}

#[test]
fn a_proc_that_is_masked_is_replaced_by_a_still_life() {
    fn mask(_: &Path) {
        let host = mounts::open_host_root().unwrap();
        let tmpfs = mounts::memory("0755", 4096, 8, mounts::TAME).unwrap();
        let target = mounts::find(&host, Path::new("/proc/irq"), HERE).unwrap();
        mounts::attach(&tmpfs, target).unwrap();
    }
    each_user_prepared(mask, |host| {
        host.check(
            &host.view(Base::Everything, &["w ws"]),
            "
            has /proc/1 = no
            has /proc/self = no
            begins /proc/cpuinfo = 4
            begins /proc/sys/kernel/osrelease = 4
            open-for-writing /proc/sys/kernel/osrelease = EACCES|EROFS
            has /proc/sys/kernel/core_pattern = no
            unlink /proc/no-such-name = EROFS
            chmod /proc = EROFS
            write @/ws/new = ok
            run /bin/true = 0
            ",
        );
    });
}
