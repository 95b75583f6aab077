use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

use super::super::testing::{as_ordinary_user, errno, in_each_place, make_deep};
use super::*;

#[test]
fn files_empty_directories_and_trees_are_removed() {
    in_each_place(|place| {
        make_tree(place);
        fs::write(place.join("file"), "").unwrap();
        fs::create_dir(place.join("empty")).unwrap();
        for (path, recursive) in [("file", false), ("empty", false), ("tree", true)] {
            remove(&place.join(path), recursive, false, Links::Follow).unwrap();
        }
        assert_eq!(left(place), [""; 0]);
    });
}

#[test]
fn a_directory_with_content_is_kept_unless_asked_for() {
    in_each_place(|place| {
        make_tree(place);
        for links in [Links::Follow, Links::Refuse] {
            let error = remove(&place.join("tree"), false, true, links).unwrap_err();
            assert_eq!(errno(&error), Some(libc::ENOTEMPTY));
        }
        assert!(place.join("tree/a/b/file").exists());
    });
}

#[test]
fn a_link_is_removed_and_not_what_it_leads_to() {
    in_each_place(|place| {
        make_tree(place);
        fs::create_dir(place.join("doomed")).unwrap();
        for link in ["link", "doomed/inner"] {
            symlink(place.join("tree"), place.join(link)).unwrap();
        }
        symlink("nowhere", place.join("dangling")).unwrap();
        for path in ["link", "doomed", "dangling"] {
            remove(&place.join(path), true, false, Links::Follow).unwrap();
        }
        assert_eq!(left(place), ["tree"]);
        assert!(place.join("tree/a/b/file").exists());
    });
}

#[test]
fn links_on_the_way_are_followed_or_refused() {
    in_each_place(|place| {
        make_tree(place);
        symlink("tree", place.join("link")).unwrap();
        let error = remove(&place.join("link/file"), false, true, Links::Refuse).unwrap_err();
        assert_eq!(errno(&error), Some(libc::ENOTDIR));
        assert!(place.join("tree/file").exists());
        remove(&place.join("link/file"), false, false, Links::Follow).unwrap();
        assert!(!place.join("tree/file").exists());
    });
}

#[test]
fn without_links_a_link_is_refused_and_other_names_are_removed() {
    in_each_place(|place| {
        fs::write(place.join("file"), "").unwrap();
        fs::create_dir(place.join("empty")).unwrap();
        symlink("file", place.join("link")).unwrap();
        let error = remove(&place.join("link"), false, true, Links::Refuse).unwrap_err();
        assert!(matches!(error, FsError::IsLink), "{error}");
        for path in ["file", "empty"] {
            remove(&place.join(path), false, false, Links::Refuse).unwrap();
        }
        assert_eq!(left(place), ["link"]);
    });
}

#[test]
fn a_tree_cannot_be_removed_without_links() {
    in_each_place(|place| {
        for path in [place, Path::new("/nonexistent")] {
            let error = remove(path, true, true, Links::Refuse).unwrap_err();
            assert!(matches!(error, FsError::RecursiveWithoutLinks), "{error}");
        }
    });
}

// The recursive case is the same refusal, and not tried for what it would do if it were not.
#[test]
fn the_root_is_never_removed() {
    for links in [Links::Follow, Links::Refuse] {
        let error = remove(Path::new("/"), false, true, links).unwrap_err();
        assert!(matches!(error, FsError::NoName), "{error}");
    }
}

#[test]
fn force_forgives_only_what_is_missing() {
    in_each_place(|place| {
        fs::write(place.join("file"), "").unwrap();
        for (path, expected) in [
            ("missing", libc::ENOENT),
            ("missing/parent", libc::ENOENT),
            ("file/below", libc::ENOTDIR),
        ] {
            for (links, recursive) in
                [(Links::Follow, true), (Links::Follow, false), (Links::Refuse, false)]
            {
                let path = place.join(path);
                let error = remove(&path, recursive, false, links).unwrap_err();
                assert_eq!(errno(&error), Some(expected), "{path:?}");
                let forced = remove(&path, recursive, true, links);
                assert_eq!(forced.is_ok(), expected == libc::ENOENT, "{path:?}");
            }
        }
    });
}

#[test]
fn a_tree_may_be_deeper_than_a_path_is_long_and_than_descriptors_suffice() {
    in_each_place(|place| {
        make_deep(place, "deep", 3000);
        remove(&place.join("deep"), true, false, Links::Follow).unwrap();
        assert_eq!(left(place), [""; 0]);
    });
}

#[test]
fn only_so_many_descriptors_are_held() {
    in_each_place(|place| {
        make_deep(place, "deep", 100);
        let path = place.join("deep");
        let mut tree = tree_at(&path);
        for _ in 0..100 {
            enter(&mut tree, c"deep");
            let open = tree.levels.iter().filter(|it| matches!(it.parent, Parent::Open(_)));
            assert!(open.count() <= OPEN_LEVELS + 1);
        }
        tree.empty().unwrap();
        assert_eq!(tree.removed, 100);
        assert_eq!(left(place), [""; 0]);
    });
}

#[test]
fn a_directory_may_have_more_subdirectories_than_are_held() {
    in_each_place(|place| {
        for number in 0..HELD_NAMES + 10 {
            fs::create_dir_all(place.join(format!("wide/{number}"))).unwrap();
        }
        remove(&place.join("wide"), true, false, Links::Follow).unwrap();
        assert_eq!(left(place), [""; 0]);
    });
}

#[test]
fn what_appears_while_a_tree_is_removed_is_removed_too() {
    in_each_place(|place| {
        make_tree(place);
        let path = place.join("tree");
        let mut tree = tree_at(&path);
        enter(&mut tree, c"tree");
        fs::write(path.join("late"), "").unwrap();
        fs::create_dir(path.join("late directory")).unwrap();
        tree.empty().unwrap();
        assert_eq!(left(place), [""; 0]);
    });
}

#[test]
fn a_directory_that_is_filled_again_and_again_is_an_error() {
    in_each_place(|place| {
        fs::create_dir(place.join("tree")).unwrap();
        let path = place.join("tree");
        let mut tree = tree_at(&path);
        enter(&mut tree, c"tree");
        tree.levels[0].rescans = MAX_RESCANS;
        fs::write(path.join("late"), "").unwrap();
        let failure = tree.empty().unwrap_err();
        assert_eq!(failure.source.raw_os_error(), Some(libc::ENOTEMPTY));
        assert_eq!(failure.path.as_os_str(), path.as_os_str());
    });
}

#[test]
fn what_disappears_while_a_tree_is_removed_is_fine() {
    in_each_place(|place| {
        make_tree(place);
        let path = place.join("tree");
        let mut tree = tree_at(&path);
        enter(&mut tree, c"tree");
        fs::remove_dir_all(&path).unwrap();
        tree.empty().unwrap();
        remove(&path, true, true, Links::Follow).unwrap();
    });
}

#[test]
fn a_link_in_the_place_of_a_directory_leads_nowhere() {
    in_each_place(|place| {
        make_tree(place);
        fs::create_dir(place.join("precious")).unwrap();
        fs::write(place.join("precious/file"), "").unwrap();
        let path = place.join("tree");
        let mut tree = tree_at(&path);
        enter(&mut tree, c"tree");
        fs::remove_dir_all(path.join("a")).unwrap();
        symlink(place.join("precious"), path.join("a")).unwrap();
        tree.empty().unwrap();
        assert_eq!(left(place), ["precious"]);
        assert!(place.join("precious/file").exists());
    });
}

#[test]
fn a_directory_that_is_moved_away_does_not_lead_out_of_the_tree() {
    in_each_place(|place| {
        make_deep(place, "deep", OPEN_LEVELS + 10);
        fs::write(place.join("precious"), "").unwrap();
        let path = place.join("deep");
        let mut tree = tree_at(&path);
        for _ in 0..OPEN_LEVELS + 10 {
            enter(&mut tree, c"deep");
        }
        // The parent of this one is not open any more.
        fs::rename(path.join("deep/deep"), place.join("moved")).unwrap();
        let failure = tree.empty().unwrap_err();
        assert!(failure.source.to_string().contains("moved"), "{}", failure.source);
        assert_eq!(failure.path, path.join("deep/deep"));
        assert_eq!(left(place), ["deep", "moved", "precious"]);
    });
}

#[test]
fn a_failure_tells_what_was_removed_before() {
    as_ordinary_user(|place| {
        fs::create_dir_all(place.join("tree/locked")).unwrap();
        fs::write(place.join("tree/file"), "").unwrap();
        let stuck = place.join("tree/locked/stuck");
        fs::write(&stuck, "").unwrap();
        lock(&place.join("tree/locked"), 0o500);
        let first = remove(&place.join("tree"), true, true, Links::Follow).unwrap_err();
        let second = remove(&place.join("tree"), true, true, Links::Follow).unwrap_err();
        lock(&place.join("tree/locked"), 0o700);

        let FsError::Incomplete { did, done, path, cause: source } = first else {
            panic!("{first}")
        };
        assert_eq!((did, done, path), (TreeOperation::Removed, 1, stuck));
        assert_eq!(errno(&source), Some(libc::EACCES));
        let FsError::System(source) = second else { panic!("{second}") };
        assert_eq!(source.raw_os_error(), Some(libc::EACCES));
    });
}

#[test]
fn a_directory_that_cannot_be_read_is_removed_if_it_is_empty() {
    as_ordinary_user(|place| {
        fs::create_dir_all(place.join("tree/unreadable")).unwrap();
        lock(&place.join("tree/unreadable"), 0o000);
        remove(&place.join("tree"), true, false, Links::Follow).unwrap();
        assert_eq!(left(place), [""; 0]);
    });
}

fn make_tree(place: &Path) {
    fs::create_dir_all(place.join("tree/a/b")).unwrap();
    fs::create_dir(place.join("tree/c")).unwrap();
    for file in ["tree/file", "tree/a/file", "tree/a/b/file"] {
        fs::write(place.join(file), "").unwrap();
    }
}

fn left(place: &Path) -> Vec<String> {
    let names = fs::read_dir(place).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<String> = names.map(|name| name.into_string().unwrap()).collect();
    names.sort();
    names
}

fn lock(path: &Path, mode: u32) {
    fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
}

/// A removal that the test takes step by step.
fn tree_at(path: &Path) -> Tree<'_> {
    Tree::new(entries::open(path.parent().unwrap()).unwrap(), path)
}

fn enter(tree: &mut Tree, name: &CStr) {
    if let Some(level) = tree.levels.last_mut() {
        level.subdirectories.retain(|it| it.as_c_str() != name);
    }
    tree.enter(name.to_owned()).unwrap();
}
