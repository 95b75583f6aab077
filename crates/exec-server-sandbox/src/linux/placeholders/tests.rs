use std::os::unix::fs::PermissionsExt;

use exec_server_os::linux::testing::{Ended, User, in_child};
use tempfile::TempDir;

use super::*;

struct Place {
    dir: TempDir,
}

impl Place {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("work")).unwrap();
        Self { dir }
    }

    fn work(&self) -> PathBuf {
        self.dir.path().join("work")
    }

    fn git(&self) -> PathBuf {
        self.work().join(".git")
    }

    fn state(&self) -> PathBuf {
        self.dir.path().join("state")
    }

    fn journal(&self) -> Journal {
        Journal::open(&self.state()).unwrap()
    }

    fn claim(&self) -> Claim {
        self.journal().claim(held(&self.work())).unwrap()
    }

    fn entries(&self) -> usize {
        self.state().read_dir().unwrap().count()
    }
}

fn held(path: &Path) -> Directory {
    Directory::open(&path.canonicalize().unwrap()).unwrap().unwrap()
}

#[test]
fn a_directory_is_opened_without_links_and_stays_the_same_after_a_rename() {
    let place = Place::new();
    let root = place.dir.path().canonicalize().unwrap();
    std::fs::create_dir_all(root.join("outside/sub")).unwrap();
    std::os::unix::fs::symlink(root.join("outside"), root.join("link")).unwrap();
    for path in ["link", "link/sub"] {
        let error = Directory::open(&root.join(path)).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ELOOP), "{path}");
    }
    assert!(Directory::open(&root.join("none")).unwrap().is_none());
    let mut claim = place.claim();
    std::fs::rename(root.join("work"), root.join("moved")).unwrap();
    std::os::unix::fs::symlink(root.join("outside"), root.join("work")).unwrap();
    claim.hold(&git()).unwrap();
    assert!(root.join("moved/.git").is_dir() && !root.join("outside/.git").exists());
    claim.end().unwrap();
    assert!(!root.join("moved/.git").exists());
}

#[test]
fn a_sweep_follows_no_link_and_leaves_another_directory_alone() {
    let place = Place::new();
    let root = place.dir.path().canonicalize().unwrap();
    let mut claim = place.claim();
    claim.hold(&git()).unwrap();
    // As if the server was killed.
    std::mem::drop(claim);
    std::fs::rename(root.join("work"), root.join("moved")).unwrap();
    std::fs::create_dir_all(root.join("outside/.git")).unwrap();
    std::fs::set_permissions(root.join("outside/.git"), PermissionsExt::from_mode(0o555)).unwrap();
    std::os::unix::fs::symlink(root.join("outside"), root.join("work")).unwrap();
    place.journal().sweep();
    assert!(root.join("outside/.git").exists() && place.entries() == 1);
    std::fs::remove_file(root.join("work")).unwrap();
    std::fs::rename(root.join("outside"), root.join("work")).unwrap();
    place.journal().sweep();
    assert!(root.join("work/.git").exists() && place.entries() == 1);
    std::fs::rename(root.join("work"), root.join("outside")).unwrap();
    std::fs::rename(root.join("moved"), root.join("work")).unwrap();
    place.journal().sweep();
    assert!(!root.join("work/.git").exists() && place.entries() == 0);
}

fn git() -> [&'static OsStr; 1] {
    [OsStr::new(".git")]
}

#[test]
fn the_last_of_several_servers_removes_a_placeholder() {
    let place = Place::new();
    let (mut first, mut second) = (place.claim(), place.claim());
    assert_eq!(first.hold(&git()).unwrap(), git());
    assert_eq!(second.hold(&git()).unwrap(), git());
    first.end().unwrap();
    assert!(place.git().is_dir());
    second.end().unwrap();
    assert!(!place.git().exists() && place.entries() == 0);
}

#[test]
fn unneeded_placeholders_are_removed_when_one_server_is_left() {
    let place = Place::new();
    let names = [OsStr::new(".git"), OsStr::new(".aws")];
    let (mut first, second) = (place.claim(), place.claim());
    assert_eq!(first.hold(&names).unwrap(), names);
    let needs_git = |name: &OsStr| name == ".git";
    first.give_up(needs_git).unwrap();
    assert!(place.work().join(".aws").is_dir());
    second.end().unwrap();
    first.give_up(needs_git).unwrap();
    assert!(!place.work().join(".aws").exists() && place.git().is_dir());
    first.end().unwrap();
    assert!(!place.git().exists());
}

#[test]
fn a_directory_of_another_process_is_never_a_placeholder() {
    let place = Place::new();
    std::fs::create_dir(place.git()).unwrap();
    // The directory looks like a placeholder.
    std::fs::set_permissions(place.git(), PermissionsExt::from_mode(0o555)).unwrap();
    let mut claim = place.claim();
    assert!(claim.hold(&git()).unwrap().is_empty());
    claim.end().unwrap();
    assert!(place.git().is_dir() && place.entries() == 0);
}

#[test]
fn a_directory_that_replaced_a_placeholder_stays() {
    let place = Place::new();
    let mut claim = place.claim();
    claim.hold(&git()).unwrap();
    std::fs::remove_dir(place.git()).unwrap();
    std::fs::create_dir(place.git()).unwrap();
    claim.end().unwrap();
    assert!(place.git().is_dir());
}

#[test]
fn a_journal_that_other_users_could_read_is_rejected() {
    let place = Place::new();
    std::fs::create_dir(place.state()).unwrap();
    std::fs::set_permissions(place.state(), PermissionsExt::from_mode(0o755)).unwrap();
    assert!(Journal::open(&place.state()).is_err());
}

#[test]
fn without_a_journal_one_server_still_removes_its_placeholders() {
    let place = Place::new();
    let mut claim = Journal::unshared().claim(held(&place.work())).unwrap();
    assert_eq!(claim.hold(&git()).unwrap(), git());
    assert_eq!(claim.hold(&git()).unwrap(), git());
    claim.end().unwrap();
    assert!(!place.git().exists());
}

#[test]
fn only_old_entries_are_synced() {
    let place = Place::new();
    let (gone, stays) = (place.work().join("gone"), place.work().join("stays"));
    std::fs::write(&stays, "").unwrap();
    let mut waiting = BTreeSet::from([gone, stays.clone()]);
    assert!(take_old(&mut waiting, Duration::from_secs(3600)).is_empty());
    assert_eq!(waiting, BTreeSet::from([stays.clone()]));
    let old = take_old(&mut waiting, Duration::ZERO);
    assert_eq!(old.iter().map(|(entry, _)| entry).collect::<Vec<_>>(), [&stays]);
    assert!(waiting.is_empty());
}

#[test]
fn a_torn_entry_can_be_appended_to() {
    let place = Place::new();
    let mut claim = place.claim();
    claim.hold(&git()).unwrap();
    let entry = claim.entry.clone().unwrap();
    drop(claim);
    let text = std::fs::read(&entry).unwrap();
    std::fs::write(&entry, &text[..3]).unwrap();
    std::fs::remove_dir(place.git()).unwrap();
    let mut claim = place.claim();
    claim.hold(&git()).unwrap();
    drop(claim);
    place.journal().sweep();
    assert!(!place.git().exists());
}

/// State of the name when a sweep starts.
#[derive(Debug, Clone, Copy, PartialEq)]
enum World {
    Nothing,
    Placeholder,
    Filled,
    Replaced,
}

/// After a kill or a power cut, any number of the last lines is missing, and the directory may be missing.
#[test]
fn a_sweep_completes_interrupted_changes() {
    for world in [World::Nothing, World::Placeholder, World::Filled, World::Replaced] {
        for lines in 0..=3 {
            let place = Place::new();
            let mut claim = place.claim();
            claim.hold(&git()).unwrap();
            let entry = claim.entry.clone().unwrap();
            drop(claim);
            let text = std::fs::read_to_string(&entry).unwrap();
            assert_eq!(text.lines().count(), 3, "root, making, made: {text}");
            let kept: String = text.split_inclusive('\n').take(lines).collect();
            // The line after the last whole one is torn.
            std::fs::write(&entry, &text[..(kept.len() + 4).min(text.len())]).unwrap();
            match world {
                World::Placeholder => {}
                World::Nothing => std::fs::remove_dir(place.git()).unwrap(),
                World::Filled => {
                    std::fs::set_permissions(place.git(), PermissionsExt::from_mode(0o755))
                        .unwrap();
                    std::fs::write(place.git().join("HEAD"), "").unwrap();
                }
                World::Replaced => {
                    std::fs::remove_dir(place.git()).unwrap();
                    std::fs::create_dir(place.git()).unwrap();
                }
            }
            place.journal().sweep();
            let is_there = place.git().is_dir();
            let should_be = match world {
                World::Nothing => false,
                // A journal that does not yet tell of it cannot help; it is written first.
                World::Placeholder => lines < 2,
                World::Filled | World::Replaced => true,
            };
            assert_eq!(is_there, should_be, "{world:?} after {lines} lines");
            assert_eq!(place.entries(), 0, "{world:?} after {lines} lines");
        }
    }
}

#[test]
fn a_sweep_keeps_placeholders_in_use() {
    let place = Place::new();
    let mut claim = place.claim();
    claim.hold(&git()).unwrap();
    place.journal().sweep();
    assert!(place.git().is_dir() && place.entries() == 1);
    claim.end().unwrap();
}

#[test]
fn a_sweep_keeps_entries_of_missing_directories_for_a_while() {
    let place = Place::new();
    let mut claim = place.claim();
    claim.hold(&git()).unwrap();
    drop(claim);
    let aside = place.dir.path().join("aside");
    std::fs::rename(place.work(), &aside).unwrap();
    place.journal().sweep();
    assert_eq!(place.entries(), 1);
    std::fs::rename(&aside, place.work()).unwrap();
    place.journal().sweep();
    assert!(!place.git().exists() && place.entries() == 0);
}

#[test]
fn servers_that_come_and_go_never_take_a_placeholder_from_each_other() {
    let place = Place::new();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let journal = place.journal();
                for _ in 0..300 {
                    let mut claim = journal.claim(held(&place.work())).unwrap();
                    assert_eq!(claim.hold(&git()).unwrap(), git());
                    assert!(place.git().is_dir());
                    claim.end().unwrap();
                }
            });
        }
    });
    assert!(!place.git().exists() && place.entries() == 0);
}

#[test]
fn a_foreign_read_only_directory_needs_no_placeholder() {
    let ended = in_child(User::Ordinary, || {
        let name = OsStr::new("exec-server-test-that-is-never-made");
        let mut foreign = Journal::unshared().claim(held(Path::new("/"))).unwrap();
        assert!(foreign.hold(&[name]).unwrap().is_empty());
        // Of its own directory it could change the mode first.
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o555)).unwrap();
        let mut own = Journal::unshared().claim(held(dir.path())).unwrap();
        own.hold(&[name]).unwrap_err();
        0
    });
    assert_eq!(ended, Ended::Exit(0));
}
