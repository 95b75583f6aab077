//! Hosts with all sorts of mounts, and hosts that change meanwhile.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_bind, mount_change};

use super::super::Base;
use super::harness::each_user_prepared;

#[test]
fn interfaces_of_the_kernel_stay_closed_wherever_they_are_mounted() {
    fn prepare(dir: &Path) {
        let root = dir.join("ws/root");
        for (name, kind) in
            [("proc", "proc"), ("sys", "sysfs"), ("dev", "devtmpfs"), ("mq", "mqueue")]
        {
            fs::create_dir_all(root.join(name)).unwrap();
            mount("none", root.join(name), kind, MountFlags::empty(), None).unwrap();
        }
        super::harness::chmod(&root, 0o777);
        fs::create_dir_all(root.join("bound")).unwrap();
        mount_bind("/proc/sys", root.join("bound")).unwrap();
        fs::create_dir_all(root.join("with space")).unwrap();
        mount("none", root.join("with space"), "proc", MountFlags::empty(), None).unwrap();
    }
    let script = "
        list @/ws/root/proc = EACCES
        read @/ws/root/proc/1/cmdline = EACCES
        open-for-writing @/ws/root/proc/sys/kernel/core_pattern = EACCES
        list @/ws/root/bound = EACCES
        open-for-writing @/ws/root/bound/kernel/core_pattern = EACCES
        unlink @/ws/root/sys/kernel/no-such-name = EROFS
        open-for-writing @/ws/root/sys/kernel/mm/ksm/run = EROFS|EACCES|ENOENT
        chmod @/ws/root/sys/kernel = EROFS
        begins @/ws/root/dev/zero = EACCES
        unlink @/ws/root/dev/no-such-name = EROFS
        chmod @/ws/root/dev/zero = EROFS
        list @/ws/root/mq = EACCES
        rename @/ws/root @/ws/moved = EBUSY
        rename @/ws/root/proc @/ws/proc = EBUSY|EXDEV
        write @/ws/root/new = ok
        ";
    let explicit = [
        "w ws",
        "w ws/root/sys",
        "w ws/root/proc",
        "w ws/root/proc/sys",
        "w ws/root/dev",
        "r ws/root/proc/1",
    ];
    for places in [&explicit[..1], &explicit] {
        each_user_prepared(prepare, |host| {
            host.check(&host.view(Base::Everything, places), script);
        });
    }
    each_user_prepared(prepare, |host| {
        host.check(&host.view(Base::Everything, &["w out/dir"]), "list @/ws/root/proc = EACCES");
    });
}

#[test]
fn binds_and_overlays_and_file_systems_in_memory_are_kept() {
    fn prepare(dir: &Path) {
        for name in ["upper", "work", "ws/overlay", "ws/memory", "ws/bound", "ro"] {
            fs::create_dir_all(dir.join(name)).unwrap();
        }
        let memory = |path: &str| mount("none", dir.join(path), "tmpfs", MountFlags::empty(), None);
        memory("ws/memory").unwrap();
        memory("upper").unwrap();
        for name in ["upper/up", "upper/work", "ws/memory/keep"] {
            fs::create_dir(dir.join(name)).unwrap();
            std::os::unix::fs::chown(dir.join(name), Some(65534), Some(65534)).unwrap();
            super::harness::chmod(&dir.join(name), 0o777);
        }
        let options = format!(
            "lowerdir={0}/out/dir,upperdir={0}/upper/up,workdir={0}/upper/work",
            dir.display()
        );
        let options = std::ffi::CString::new(options).unwrap();
        mount("none", dir.join("ws/overlay"), "overlay", MountFlags::empty(), &*options).unwrap();
        mount_bind(dir.join("out/dir"), dir.join("ws/bound")).unwrap();
        let frozen = MountFlags::BIND | MountFlags::RDONLY;
        rustix::mount::mount_remount(dir.join("ws/bound"), frozen, "").unwrap();
        // Mounted over, twice.
        memory("ro").unwrap();
        memory("ro").unwrap();
    }
    each_user_prepared(prepare, |host| {
        host.check(
            &host.view(Base::Everything, &["w ws", "r ws/memory/keep", "d ws/overlay/file"]),
            "
            read @/ws/overlay/file = EACCES
            write @/ws/overlay/new = ok
            write @/ws/memory/keep/new = EROFS
            read @/ws/bound/file = outside
            overwrite @/ws/bound/file = EROFS
            write @/upper/new = EROFS
            list @/ro = []
            write @/ro/new = EROFS
            ",
        );
        host.check(
            &host.bare_view(&["r ws"]),
            "read @/ws/overlay/file = outside\n write @/ws/overlay/x = EROFS",
        );
    });
}

#[test]
fn an_automounter_that_never_answers_is_not_asked() {
    fn prepare(dir: &Path) {
        if !fs::read_to_string("/proc/filesystems").unwrap().contains("autofs") {
            return;
        }
        let (asked, ask): (OwnedFd, OwnedFd) = rustix::pipe::pipe().unwrap();
        fs::create_dir_all(dir.join("auto")).unwrap();
        use std::os::fd::AsRawFd;
        let group = rustix::process::getpgrp().as_raw_nonzero();
        let options = format!("fd={},pgrp={group},minproto=5,maxproto=5,indirect", ask.as_raw_fd());
        let options = std::ffi::CString::new(options).unwrap();
        mount("none", dir.join("auto"), "autofs", MountFlags::empty(), &*options).unwrap();
        // Kept open by this process for ever: the automounter is alive, and slow.
        std::mem::forget((asked, ask));
        // SAFETY: leaves the group of the automounter, whose own accesses would not trigger anything.
        unsafe { libc::setsid() };
    }
    each_user_prepared(prepare, |host| {
        host.check(
            &host.view(Base::Everything, &["w ws", "r ws/.git", "d auto"]),
            "write @/ws/new = ok\n write @/ws/.git/config = EROFS\n list @/auto = EACCES",
        );
    });
}

#[test]
fn mounts_that_appear_later_stay_out() {
    /// Makes everything shared, so that it would propagate into copies.
    fn share(dir: &Path) {
        let flags = MountPropagationFlags::SHARED | MountPropagationFlags::REC;
        mount_change("/", flags).unwrap();
        fs::create_dir_all(dir.join("ws/later")).unwrap();
        let later = dir.join("ws/later");
        // SAFETY: the child only mounts, in this private namespace that it shares, and exits.
        if unsafe { libc::fork() } == 0 {
            std::thread::sleep(std::time::Duration::from_millis(150));
            let mounted = mount("none", &later, "tmpfs", MountFlags::empty(), None);
            let marked = fs::write(dir.join("ws/mounted"), "");
            // SAFETY: ends this child alone.
            unsafe { libc::_exit(i32::from(mounted.is_err() || marked.is_err())) };
        }
    }
    each_user_prepared(share, |host| {
        host.write("ws/later/file", "before");
        host.check(
            &host.view(Base::Everything, &["w ws"]),
            "
            await @/ws/mounted = ok
            read @/ws/later/file = before
            ",
        );
    });
}

#[test]
fn a_place_that_is_swapped_meanwhile_is_no_way_out() {
    /// Exchanges a directory and a link for as long as it takes to build a view.
    fn swap(dir: &Path) {
        let (real, trap) = (dir.join("ws/build"), dir.join("ws/trap"));
        // SAFETY: the child only renames in the directory of the test, and exits.
        if unsafe { libc::fork() } == 0 {
            let end = std::time::Instant::now() + std::time::Duration::from_millis(60);
            while std::time::Instant::now() < end {
                let _ = renameat_with(CWD, &real, CWD, &trap, RenameFlags::EXCHANGE);
            }
            // SAFETY: ends this child alone.
            unsafe { libc::_exit(0) };
        }
    }
    for _ in 0..10 {
        each_user_prepared(swap, |host| {
            host.write("ws/build/secret", "mine");
            host.link("@/out", "ws/trap");
            let view = host.view(Base::Everything, &["w ws/build", "r ws/build/secret"]);
            let script = "
                overwrite @/ws/build/secret = EROFS
                write @/ws/build/new = ok|EROFS|EXDEV
                overwrite @/out/secret = EROFS
                ";
            host.attack(&view, script);
            // Denied under both of its names, however often they change places.
            let view = host.view(Base::Everything, &["w ws", "d ws/build", "d ws/trap"]);
            host.attack(&view, "write @/ws/trap/new = EACCES\n write @/ws/build/new = EACCES");
        });
    }
}
