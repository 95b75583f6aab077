use std::os::unix::fs::PermissionsExt;

use tempfile::TempDir;

use super::*;
use crate::linux::sandbox::testing::{Ended, User, in_child};

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
        self.journal().claim(&self.work()).unwrap().unwrap()
    }

    fn entries(&self) -> usize {
        self.state().read_dir().unwrap().count()
    }
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
fn what_is_not_needed_goes_as_soon_as_only_one_server_is_there() {
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
fn what_somebody_made_is_never_a_placeholder() {
    let place = Place::new();
    std::fs::create_dir(place.git()).unwrap();
    // It even looks like one.
    std::fs::set_permissions(place.git(), PermissionsExt::from_mode(0o555)).unwrap();
    let mut claim = place.claim();
    assert!(claim.hold(&git()).unwrap().is_empty());
    claim.end().unwrap();
    assert!(place.git().is_dir() && place.entries() == 0);
}

#[test]
fn what_somebody_put_in_place_of_a_placeholder_stays() {
    let place = Place::new();
    let mut claim = place.claim();
    claim.hold(&git()).unwrap();
    std::fs::remove_dir(place.git()).unwrap();
    std::fs::create_dir(place.git()).unwrap();
    claim.end().unwrap();
    assert!(place.git().is_dir());
}

#[test]
fn a_journal_that_others_could_read_is_refused() {
    let place = Place::new();
    std::fs::create_dir(place.state()).unwrap();
    std::fs::set_permissions(place.state(), PermissionsExt::from_mode(0o755)).unwrap();
    assert!(Journal::open(&place.state()).is_err());
}

#[test]
fn without_a_journal_one_server_still_counts() {
    let place = Place::new();
    let mut claim = Journal::unshared().claim(&place.work()).unwrap().unwrap();
    assert_eq!(claim.hold(&git()).unwrap(), git());
    assert_eq!(claim.hold(&git()).unwrap(), git());
    claim.end().unwrap();
    assert!(!place.git().exists());
}

#[test]
fn only_an_entry_that_has_stayed_is_made_durable() {
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
fn what_a_torn_journal_tells_can_be_added_to() {
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

/// What can be at the name when a sweep comes.
#[derive(Debug, Clone, Copy, PartialEq)]
enum World {
    Nothing,
    Placeholder,
    Filled,
    Replaced,
}

/// After a kill or a power cut any number of the last lines is missing, and the directory is there or not.
#[test]
fn a_sweep_finishes_whatever_was_begun() {
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
fn a_sweep_leaves_what_somebody_needs() {
    let place = Place::new();
    let mut claim = place.claim();
    claim.hold(&git()).unwrap();
    place.journal().sweep();
    assert!(place.git().is_dir() && place.entries() == 1);
    claim.end().unwrap();
}

#[test]
fn a_sweep_waits_for_a_disk_that_is_not_there() {
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
                    let mut claim = journal.claim(&place.work()).unwrap().unwrap();
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
fn where_this_user_may_make_nothing_nobody_inside_may() {
    let ended = in_child(User::Ordinary, || {
        let name = OsStr::new("exec-server-test-that-is-never-made");
        let mut foreign = Journal::unshared().claim(Path::new("/")).unwrap().unwrap();
        assert!(foreign.hold(&[name]).unwrap().is_empty());
        // Of its own directory it could change the mode first.
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o555)).unwrap();
        let mut own = Journal::unshared().claim(dir.path()).unwrap().unwrap();
        own.hold(&[name]).unwrap_err();
        0
    });
    assert_eq!(ended, Ended::Exit(0));
}
