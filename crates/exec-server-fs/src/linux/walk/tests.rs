use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

use rustix::fs::CWD;

use super::super::testing::{as_ordinary_user, errno, in_each_place, make_deep};
use super::*;

#[test]
fn a_tree_is_listed_level_by_level_and_sorted_within_each_directory() {
    in_each_place(|place| {
        make(place, &["b/z", "b/a/deep", "a/c", "B", ".hidden", "empty/"]);
        assert_eq!(
            walked(place, WIDE),
            [".hidden", "B", "a/", "b/", "empty/", "a/c", "b/a/", "b/z", "b/a/deep"]
        );
    });
}

#[test]
fn depth_ends_the_walk_without_calling_it_truncated() {
    in_each_place(|place| {
        make(place, &["a/b/c/d"]);
        assert_eq!(walked(place, FsWalkOptions { max_depth: 0, ..WIDE }), ["a/"]);
        assert_eq!(walked(place, FsWalkOptions { max_depth: 2, ..WIDE }), ["a/", "a/b/", "a/b/c/"]);
    });
}

#[test]
fn directories_beyond_the_limit_are_listed_but_not_entered() {
    in_each_place(|place| {
        make(place, &["a/x", "b/y", "c/"]);
        let limited = |max_directories| FsWalkOptions { max_directories, ..WIDE };
        assert_eq!(walked(place, limited(1)), ["a/", "b/", "c/", "truncated"]);
        assert_eq!(walked(place, limited(2)), ["a/", "b/", "c/", "a/x", "truncated"]);
        assert_eq!(walked(place, limited(4)), ["a/", "b/", "c/", "a/x", "b/y"]);
        let shallow = FsWalkOptions { max_depth: 0, ..limited(1) };
        assert_eq!(walked(place, shallow), ["a/", "b/", "c/"]);
    });
}

#[test]
fn every_name_that_is_looked_at_counts() {
    in_each_place(|place| {
        make(place, &["b/c", "d"]);
        symlink("nowhere", place.join("a")).unwrap();
        let limited = |max_entries| FsWalkOptions { max_entries, ..WIDE };
        assert_eq!(walked(place, limited(1)), ["truncated"]);
        assert_eq!(walked(place, limited(2)), ["b/", "truncated"]);
        assert_eq!(walked(place, limited(3)), ["b/", "d", "truncated"]);
        assert_eq!(walked(place, limited(4)), ["b/", "d", "b/c"]);
    });
}

#[test]
fn limits_are_checked_before_the_root() {
    let root = Path::new("/nonexistent");
    for options in [
        FsWalkOptions { max_entries: 0, ..WIDE },
        FsWalkOptions { max_directories: 0, max_depth: 65, ..WIDE },
    ] {
        assert!(matches!(walk(root, &options), Err(FsError::WalkLimitsZero)));
    }
    for options in [
        FsWalkOptions { max_depth: 65, ..WIDE },
        FsWalkOptions { max_directories: 10_001, ..WIDE },
        FsWalkOptions { max_entries: 50_001, ..WIDE },
    ] {
        assert!(matches!(walk(root, &options), Err(FsError::WalkLimitsExceeded)));
    }
}

#[test]
fn a_root_that_is_no_directory_has_nothing_and_a_missing_one_is_an_error() {
    in_each_place(|place| {
        make(place, &["file", "real/x"]);
        symlink("real", place.join("link")).unwrap();
        symlink("nowhere", place.join("dangling")).unwrap();
        assert!(walked(&place.join("file"), WIDE).is_empty());
        assert!(walked(&place.join("link"), WIDE).is_empty());
        assert_eq!(walked(&place.join("link"), FOLLOWING), ["x"]);
        for (root, expected) in
            [("missing", libc::ENOENT), ("dangling", libc::ENOENT), ("file/x", libc::ENOTDIR)]
        {
            for options in [WIDE, FOLLOWING] {
                let error = walk(&place.join(root), &options).unwrap_err();
                assert_eq!(errno(&error), Some(expected), "{root}");
            }
        }
    });
}

#[test]
fn only_files_and_directories_are_listed() {
    in_each_place(|place| {
        make(place, &["file"]);
        symlink("file", place.join("to file")).unwrap();
        symlink("nowhere", place.join("dangling")).unwrap();
        symlink("loop", place.join("loop")).unwrap();
        rustix::fs::mkfifoat(CWD, place.join("pipe"), Mode::RWXU).unwrap();
        assert_eq!(walked(place, WIDE), ["file"]);
        assert_eq!(walked(place, FOLLOWING), ["file"]);
    });
}

#[test]
fn links_to_directories_are_listed_and_entered_only_on_request() {
    in_each_place(|place| {
        make(place, &["outside/x/y", "root/a"]);
        symlink("../outside", place.join("root/link")).unwrap();
        let root = place.join("root");
        assert_eq!(walked(&root, WIDE), ["a"]);
        assert_eq!(walked(&root, FOLLOWING), ["a", "link/", "link/x/", "link/x/y"]);
    });
}

#[test]
fn cycles_of_links_end() {
    in_each_place(|place| {
        make(place, &["a/b/"]);
        symlink("../..", place.join("a/b/up")).unwrap();
        symlink(".", place.join("self")).unwrap();
        assert_eq!(walked(place, FOLLOWING), ["a/", "self/", "a/b/", "a/b/up/"]);
    });
}

#[test]
fn a_real_directory_keeps_its_content_when_a_link_on_its_level_comes_first() {
    in_each_place(|place| {
        make(place, &["z/f", "other/"]);
        symlink("z", place.join("a")).unwrap();
        symlink("../z", place.join("other/b")).unwrap();
        assert_eq!(walked(place, FOLLOWING), ["a/", "other/", "z/", "other/b/", "z/f"]);
    });
}

#[test]
fn a_link_nearer_to_the_root_shows_what_the_depth_would_hide() {
    in_each_place(|place| {
        make(place, &["b/real/c/f"]);
        symlink("b/real", place.join("a")).unwrap();
        let options = FsWalkOptions { max_depth: 2, ..FOLLOWING };
        assert_eq!(walked(place, options), ["a/", "b/", "a/c/", "b/real/", "a/c/f"]);
    });
}

#[test]
fn hidden_directories_are_pruned_but_listed_and_leave_their_content_to_others() {
    in_each_place(|place| {
        make(place, &[".git/config", ".file", "src/x"]);
        symlink(".git", place.join("visible")).unwrap();
        symlink("src", place.join(".link")).unwrap();
        let options = FsWalkOptions { prune_hidden_directories: true, ..FOLLOWING };
        assert_eq!(
            walked(place, options),
            [".file", ".git/", ".link/", "src/", "visible/", "src/x", "visible/config"]
        );
    });
}

#[test]
fn names_that_are_not_utf8_are_listed_by_their_address() {
    in_each_place(|place| {
        let dir = place.join(OsStr::from_bytes(b"d-\xff"));
        fs::create_dir(&dir).unwrap();
        fs::write(dir.join("a b"), "").unwrap();
        assert_eq!(walked(place, WIDE), ["d-%FF/", "d-%FF/a%20b"]);
    });
}

#[test]
fn a_directory_that_cannot_be_read_is_an_error_in_the_answer() {
    as_ordinary_user(|place| {
        make(place, &["a/x", "b/y"]);
        let closed = place.join("a");
        fs::set_permissions(&closed, PermissionsExt::from_mode(0o000)).unwrap();
        let lines = (walked(place, WIDE), walked(&closed, WIDE));
        fs::set_permissions(&closed, PermissionsExt::from_mode(0o700)).unwrap();
        assert_eq!(lines.0, ["a/", "b/", "b/y", "a: Permission denied (os error 13)"]);
        assert_eq!(lines.1, [": Permission denied (os error 13)"]);
    });
}

#[test]
fn a_path_that_is_too_long_is_an_error_in_the_answer() {
    in_each_place(|place| {
        make_deep(place, &"n".repeat(250), 20);
        let answer = walk(place, &WIDE).unwrap();
        assert_eq!((answer.entries.len(), answer.errors.len()), (17, 1));
        assert_eq!(answer.errors[0].message, "File name too long (os error 36)");
    });
}

#[test]
fn the_answer_stays_within_its_bytes() {
    let place = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    // Every byte of these names becomes three.
    for number in 0..6000 {
        let name = [[0xff; 240].as_slice(), format!("{number:04}").as_bytes()].concat();
        fs::write(place.path().join(OsStr::from_bytes(&name)), "").unwrap();
    }
    let answer = walk(place.path(), &WIDE).unwrap();
    let each = answer.entries[0].path.as_str().len() + WALK_ITEM_BYTES;
    assert!(answer.truncated);
    assert_eq!(answer.entries.len(), MAX_WALK_BYTES / each);
}

const WIDE: FsWalkOptions = FsWalkOptions {
    max_depth: MAX_WALK_DEPTH,
    max_directories: MAX_WALK_DIRECTORIES,
    max_entries: MAX_WALK_ENTRIES,
    follow_directory_symlinks: false,
    prune_hidden_directories: false,
};

const FOLLOWING: FsWalkOptions = FsWalkOptions { follow_directory_symlinks: true, ..WIDE };

/// Makes files, and directories where a path ends in a slash.
fn make(place: &Path, paths: &[&str]) {
    for path in paths {
        let path_in_place = place.join(path);
        if path.ends_with('/') {
            fs::create_dir_all(path_in_place).unwrap();
        } else {
            fs::create_dir_all(path_in_place.parent().unwrap()).unwrap();
            fs::write(path_in_place, "").unwrap();
        }
    }
}

/// One line per entry and per error, relative to the root, and one if the answer is truncated.
fn walked(root: &Path, options: FsWalkOptions) -> Vec<String> {
    let answer = walk(root, &options).unwrap();
    let prefix = PathUri::from_posix(root.as_os_str().as_bytes());
    let relative = |uri: &PathUri| {
        uri.as_str().strip_prefix(prefix.as_str()).unwrap().trim_start_matches('/').to_owned()
    };
    let entries = answer.entries.iter().map(|entry| match entry.kind {
        WalkKind::File => relative(&entry.path),
        WalkKind::Directory => relative(&entry.path) + "/",
    });
    let errors = answer.errors.iter().map(|it| format!("{}: {}", relative(&it.path), it.message));
    entries.chain(errors).chain(answer.truncated.then(|| "truncated".to_owned())).collect()
}
