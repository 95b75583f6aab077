//! Symbolic links as places, on the way to places, and as traps.

use std::path::PathBuf;

use super::super::{Base, check_writable_root};
use super::harness::{Host, User, chmod, each_user};

#[test]
fn a_linked_place_is_reached_by_both_names() {
    each_user(|host| {
        host.link("ws", "to-ws");
        host.link("out", "to-out");
        let real = check_writable_root(&host.path("to-ws"), &[]).unwrap();
        assert_eq!(real, host.path("ws"));
        let script = "
            write @/ws/new = ok
            read @/to-ws/new = written
            write @/to-ws/newer = ok
            read @/ws/newer = written
            read @/to-out/secret = secret
            read @/out/secret = secret
            write @/to-out/new = EROFS
            ";
        let places = ["w ws", "r to-out"];
        host.check(&host.view(Base::Everything, &places), script);
        let mut bare = host.bare_view(&places);
        bare.links.push(host.path("to-ws"));
        host.check(&bare, script);
    });
}

#[test]
fn a_chain_of_links_works_where_nothing_else_is() {
    each_user(|host| {
        host.write("a/b/real/file", "found");
        host.link("@/a/second", "first");
        host.link("b/../b/real", "a/second");
        let view = host.bare_view(&["r first/file"]);
        host.check(
            &view,
            "
            read @/first/file = found
            read @/a/second/file = found
            read @/a/b/real/file = found
            list @/a/b = [real]
            write @/a/b/real/file = EROFS
            ",
        );
    });
}

#[test]
fn a_writable_place_must_not_be_a_link() {
    each_user(|host| {
        host.link("out", "ws/trap");
        host.write("out/sub/file", "sub");
        for place in ["w ws/trap", "w ws/trap/sub"] {
            let refused = host.refuses(&host.view(Base::Everything, &["w ws", place]));
            assert!(refused.contains("(look up a writable place): Too many levels"), "{refused}");
        }
    });
}

#[test]
fn a_protected_name_that_is_a_link_keeps_its_meaning() {
    each_user(|host| {
        host.write("ws/real/git/config", "config");
        host.link("real/git", "ws/.codex");
        host.link("@/out", "ws/.agents");
        host.link("nowhere", "ws/.aws");
        host.link("loop", "ws/loop");
        host.link("/proc/self/cwd", "ws/magic");
        let places =
            ["w ws", "r ws/.codex", "r ws/.agents", "r ws/.aws", "r ws/loop", "r ws/magic"];
        host.check(
            &host.view(Base::Everything, &places),
            "
            read @/ws/.codex/config = config
            overwrite @/ws/.codex/config = EROFS
            overwrite @/ws/real/git/config = EROFS
            rename @/ws/real @/ws/moved = EBUSY
            rename @/ws/real/git @/ws/moved = EBUSY|EXDEV
            readlink @/ws/.codex = real/git
            unlink @/ws/.codex = EBUSY
            rename @/ws/.codex @/ws/moved = EBUSY
            rename @/ws/file @/ws/.codex = EBUSY
            exchange @/ws/file @/ws/.codex = EBUSY
            mkdir @/ws/.codex = EEXIST
            read @/ws/.agents/secret = secret
            write @/ws/.agents/new = EROFS
            unlink @/ws/.agents = EBUSY
            unlink @/ws/.aws = EBUSY
            unlink @/ws/loop = EBUSY
            unlink @/ws/magic = EBUSY
            write @/ws/new = ok
            ",
        );
    });
}

#[test]
fn a_link_that_a_sandbox_made_shows_nothing_new() {
    each_user(|host| {
        host.link("@/out", "ws/data");
        host.link("@/out/secret", "ws/file2");
        // Where only places are shown.
        let script = "
            read @/out/secret = ENOENT
            read @/ws/data/secret = ENOENT
            read @/ws/file2 = ENOENT
            unlink @/ws/data = EBUSY
            ";
        host.check(&host.bare_view(&["w ws", "r ws/data", "r ws/file2"]), script);
        // Where another sandbox may have made it.
        let mut view = host.bare_view(&["r ws/data", "r ws/file2"]);
        view.handed_out.push(host.path("ws"));
        host.check(&view, "has @/out = no\n has @/ws = no");
        // Where the target is denied.
        let view =
            host.view(Base::Everything, &["w ws", "r ws/data/secret", "r ws/file2", "d out"]);
        host.check(
            &view,
            "read @/out/secret = EACCES\n read @/ws/data/secret = EACCES\n list @/out = EACCES",
        );
    });
}

#[test]
fn a_denied_link_hides_its_target_or_its_name() {
    each_user(|host| {
        host.link("sub/other", "ws/inside");
        host.link("/usr", "ws/outside");
        host.link("/", "ws/root");
        host.link("@/out/secret", "trusted");
        let places = ["w ws", "d ws/inside", "d ws/outside", "d ws/root/etc", "d trusted"];
        host.check(
            &host.view(Base::Everything, &places),
            "
            read @/ws/inside = EACCES
            read @/ws/sub/other = EACCES
            unlink @/ws/inside = EBUSY
            read @/ws/outside = EACCES
            list @/ws/outside/bin = ENOTDIR
            unlink @/ws/outside = EBUSY
            list @/ws/root/etc = ENOTDIR
            begins /etc/passwd = 4
            run /bin/true = 0
            read @/trusted = EACCES
            read @/out/secret = EACCES
            ",
        );
    });
}

#[test]
fn a_link_in_a_writable_root_is_no_way_around_a_denial() {
    each_user(|host| {
        host.write("usr/lib/secret/file", "secret");
        host.write("usr/lib/open/file", "open");
        host.link("usr/lib", "lib");
        host.check(
            &host.view(Base::Everything, &["w /", "d lib/secret"]),
            "
            read @/lib/open/file = open
            write @/lib/open/new = ok
            read @/usr/lib/open/new = written
            unlink @/usr/lib/open/new = ok
            list @/lib/secret = EACCES
            list @/usr/lib/secret = EACCES
            read @/usr/lib/secret/file = EACCES
            rename @/usr/lib @/usr/moved = EBUSY
            rename @/usr/lib/secret @/usr/lib/moved = EBUSY
            rmdir @/usr/lib/secret = EBUSY
            rename @/lib @/moved = EBUSY
            unlink @/lib = EBUSY
            ",
        );
    });
}

#[test]
fn a_denied_name_in_proc_that_cannot_be_enforced_is_refused() {
    each_user(|host| {
        let refused = host.refuses(&host.view(Base::Everything, &["d /proc/self/environ"]));
        assert!(refused.contains("(look up a denied place)"), "{refused}");
    });
}

#[test]
fn a_writable_root_is_checked_for_links_of_others() {
    let host = Host::new(User::Nobody);
    let check = |path: &str, handed_out: &[&str]| {
        let handed_out: Vec<PathBuf> = handed_out.iter().map(|path| host.path(path)).collect();
        check_writable_root(&host.path(path), &handed_out).map_err(|error| error.raw_os_error())
    };
    host.link("@/out", "ws/trap");
    host.link("ws", "alias");
    assert_eq!(check("ws/trap", &[]), Ok(host.path("out")));
    assert_eq!(check("ws/trap/dir", &["ws"]), Err(Some(libc::ELOOP)));
    assert_eq!(check("alias/trap", &["ws"]), Err(Some(libc::ELOOP)));
    assert_eq!(check("alias", &["ws"]), Ok(host.path("ws")));
    assert_eq!(check("alias/sub", &["ws"]), Ok(host.path("ws/sub")));
    // The root was handed out under another name of the same directory.
    assert_eq!(check("ws/trap", &["alias"]), Err(Some(libc::ELOOP)));
    assert_eq!(check("none", &[]), Err(Some(libc::ENOENT)));
    assert_eq!(check("ws/file/none", &[]), Err(Some(libc::ENOENT)));
    assert_eq!(check("/proc/self/cwd", &[]), Err(Some(libc::ELOOP)));
    if rustix::process::getuid().is_root() {
        std::os::unix::fs::lchown(host.path("alias"), Some(1234), None).unwrap();
        assert_eq!(check("alias", &[]), Err(Some(libc::ELOOP)));
    }
}

#[test]
fn a_link_of_somebody_else_in_a_shared_directory_shows_nothing_new() {
    if !rustix::process::getuid().is_root() {
        return;
    }
    let mut host = Host::new(User::Root);
    host.write("shared/x", "x");
    chmod(&host.path("shared"), 0o1777);
    host.link("@/out", "shared/data");
    host.foreign_link = Some(host.path("shared/data"));
    host.check(&host.bare_view(&["r shared/data"]), "has @/out = no");
}
