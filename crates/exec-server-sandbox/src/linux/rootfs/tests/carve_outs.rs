//! Places inside places: read-only and denied in writable ones, open ones in denied ones.

use super::super::Base;
use super::harness::{chmod, each_user};

const PLACES: [&str; 7] = [
    "w ws",
    "r ws/.git",
    "r ws/sub/deep/keep",
    "d ws/denied",
    "d ws/key.env",
    "w ws/denied/open",
    "r ws/denied/read/file",
];

const SCRIPT: &str = "
    write @/ws/new = ok
    read @/ws/.git/config = config
    overwrite @/ws/.git/config = EROFS
    write @/ws/.git/hooks/new = EROFS
    unlink @/ws/.git/hooks/pre-commit = EROFS
    chmod @/ws/.git = EROFS
    utime @/ws/.git/config = EROFS
    xattr @/ws/.git/config = EROFS
    rename @/ws/.git @/ws/git = EBUSY
    exchange @/ws/.git @/ws/sub = EBUSY
    rename @/ws/new @/ws/.git/new = EXDEV
    rename @/ws/.git/config @/ws/config = EXDEV
    link @/ws/.git/config @/ws/config = EXDEV
    symlink .git @/ws/alias = ok
    overwrite @/ws/alias/config = EROFS
    overwrite @/ws/sub/../.git/config = EROFS
    overwrite /proc/self/root@/ws/.git/config = EROFS

    read @/ws/sub/deep/keep/file = keep
    overwrite @/ws/sub/deep/keep/file = EROFS
    rename @/ws/sub/deep/keep @/ws/keep = EBUSY|EXDEV
    rename @/ws/sub/deep @/ws/sub/moved = EBUSY
    rename @/ws/sub @/ws/moved = EBUSY
    exchange @/ws/sub @/ws/.git = EBUSY
    rmdir @/ws/sub/deep = EBUSY
    write @/ws/sub/new = ok
    append @/ws/sub/other = ok
    append @/ws/sub/deep/free = ok
    unlink @/ws/sub/deep/free = ok

    list @/ws/denied = EACCES
    read @/ws/denied/key = ENOENT|EACCES
    stat @/ws/denied/key = ENOENT|EACCES
    write @/ws/denied/new = EROFS|EACCES
    chmod @/ws/denied = EROFS
    rename @/ws/denied @/ws/moved = EBUSY
    rmdir @/ws/denied = EBUSY
    read @/ws/key.env = EACCES
    overwrite @/ws/key.env = EACCES|EROFS
    chmod @/ws/key.env = EROFS
    unlink @/ws/key.env = EBUSY
    rename @/ws/key.env @/ws/moved = EBUSY
    rename @/ws/new @/ws/key.env = EBUSY
    link @/ws/key.env @/ws/second = EXDEV
    read /proc/self/root@/ws/key.env = EACCES

    read @/ws/denied/open/file = open
    write @/ws/denied/open/new = ok
    read @/ws/denied/read/file = read
    overwrite @/ws/denied/read/file = EROFS
    read @/ws/denied/open/../key = ENOENT
    list @/ws/denied/read = EACCES
    rename @/ws/denied/open @/ws/open = EBUSY|EXDEV
";

#[test]
fn inner_places_override_outer_ones() {
    each_user(|host| host.check(&host.view(Base::Everything, &PLACES), SCRIPT));
}

#[test]
fn inner_places_override_outer_ones_where_nothing_else_is() {
    each_user(|host| host.check(&host.bare_view(&PLACES), SCRIPT));
}

#[test]
fn the_order_of_places_does_not_matter() {
    let mut places = PLACES;
    places.reverse();
    each_user(|host| host.check(&host.view(Base::Everything, &places), SCRIPT));
}

#[test]
fn a_writable_root_has_the_same_carve_outs() {
    let places = [&["w /"], &PLACES[1..]].concat();
    each_user(|host| host.check(&host.view(Base::Everything, &places), SCRIPT));
}

#[test]
fn at_the_same_path_denied_wins_over_writable_over_read_only() {
    each_user(|host| {
        let view =
            host.view(Base::Everything, &["r ws", "w ws", "r ws", "w out", "d out", "w out"]);
        host.check(
            &view,
            "
            write @/ws/new = ok
            list @/out = EACCES
            read @/out/secret = EACCES
            overwrite @/out/secret = EACCES|EROFS
            ",
        );
    });
}

#[test]
fn denied_places_are_hidden_outside_of_writable_ones_as_well() {
    each_user(|host| {
        host.write("out/more/open", "open");
        let view = host.view(
            Base::Everything,
            &["d out/dir", "d out/secret", "d out/more", "r out/more/open"],
        );
        host.check(
            &view,
            "
            read @/out/secret = EACCES
            list @/out/dir = EACCES
            read @/out/dir/file = EACCES
            read /proc/self/root@/out/dir/file = EACCES
            read /proc/1/root@/out/dir/file = EACCES
            read /proc/self/cwd@/out/secret = EACCES
            list @/out/more = EACCES
            read @/out/more/open = open
            write @/out/more/open = EROFS
            chmod @/out/dir = EROFS
            ",
        );
    });
}

#[test]
fn denying_the_root_shows_nothing_but_places() {
    each_user(|host| {
        let view = host.view(Base::Everything, &["d /", "r out/dir"]);
        host.check(&view, "list @ = [out]\n read @/out/dir/file = outside\n has /etc = no");
    });
}

#[test]
fn what_cannot_be_reached_stays_so() {
    if !rustix::process::getuid().is_root() {
        return;
    }
    for place in ["r ws/shut/inner", "d ws/shut/inner/secret"] {
        each_user(|host| {
            // It belongs to us, but to a group of others, so that not even our capabilities open it.
            host.write("ws/shut/inner/secret", "shut");
            let shut = host.path("ws/shut");
            chmod(&shut, 0o000);
            host.foreign_group = Some(shut.clone());
            let view = host.view(Base::Everything, &["w ws", place, "w ws/shut/inner/secret"]);
            host.check(
                &view,
                "
                chmod @/ws/shut = EROFS
                read @/ws/shut/inner/secret = EACCES
                rename @/ws/shut @/ws/moved = EBUSY
                ",
            );
        });
    }
}

#[test]
fn masked_paths_are_empty_unless_they_are_writable() {
    each_user(|host| {
        host.write("run/a/file", "a");
        host.write("run/resolve/file", "resolve");
        host.write("run/socket", "socket");
        host.write("run2/file", "2");
        let mut view = host.view(Base::Everything, &["r run/resolve", "w run2", "r run3"]);
        view.masked =
            ["run", "run2", "run/socket", "none", "/run"].map(|path| host.path(path)).into();
        host.check(
            &view,
            "
            list @/run = [resolve]
            read @/run/resolve/file = resolve
            write @/run/new = EROFS
            read @/run2/file = 2
            write @/run2/new = ok
            list /run = []
            list /var/run = []
            ",
        );
        view.places.clear();
        view.masked = ["run/socket"].map(|path| host.path(path)).into();
        host.check(&view, "read @/run/socket = EACCES\n read @/run/a/file = a");
    });
}

#[test]
fn many_denied_files_are_no_problem() {
    each_user(|host| {
        let mut places = vec!["w ws".to_owned()];
        for number in 0..1500 {
            let path = format!("ws/d{}/k{number}.env", number % 30);
            host.write(&path, "secret");
            places.push(format!("d {path}"));
        }
        let places: Vec<&str> = places.iter().map(String::as_str).collect();
        host.check(
            &host.view(Base::Everything, &places),
            "
            read @/ws/d0/k0.env = EACCES
            read @/ws/d29/k1499.env = EACCES
            rename @/ws/d7 @/ws/moved = EBUSY
            write @/ws/d7/new = ok
            ",
        );
    });
}
