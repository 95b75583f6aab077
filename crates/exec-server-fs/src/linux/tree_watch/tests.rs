//! What becomes of the changes of one window, and of those that are not read.

use std::path::{Path, PathBuf};

use exec_server_protocol::fs::ChangeKind::{self, Create, Remove, Rename, Rescan, Write};
use exec_server_protocol::limits::MAX_PAGE_BYTES;

use super::log::Log;
use super::staged::Staged;
use crate::tree_watch::ChangesRoom;

fn kinds(staged: &mut Staged) -> Vec<(ChangeKind, String)> {
    let changes = staged.take().expect("there were few");
    let show = |path: &PathBuf| path.display().to_string();
    changes
        .iter()
        .map(|change| match &change.from {
            Some(from) => (change.kind, format!("{} > {}", show(from), show(&change.path))),
            None => (change.kind, show(&change.path)),
        })
        .collect()
}

#[test]
fn repeated_changes_count_once_and_the_last_state_stays_last() {
    let mut staged = Staged::new(&ChangesRoom::default());
    let path = PathBuf::from("a");
    for kind in [Create, Write, Write, Write, Remove, Create] {
        staged.push(kind, &path);
    }
    let expected = [Create, Write, Remove, Create].map(|kind| (kind, "a".to_owned()));
    assert_eq!(kinds(&mut staged), expected);
    assert!(staged.is_empty());
}

#[test]
fn both_halves_of_a_move_are_one_rename() {
    let mut staged = Staged::new(&ChangesRoom::default());
    staged.push_moved_from(7, "a".into(), true);
    assert_eq!(staged.moved_away(), [PathBuf::from("a")]);
    assert_eq!(staged.push_moved_to(7, &PathBuf::from("b")), Some("a".into()));
    assert!(staged.moved_away().is_empty());
    staged.push_moved_from(8, "c".into(), false);
    assert_eq!(staged.push_moved_to(9, &PathBuf::from("d")), None);
    let expected = [(Rename, "a > b"), (Remove, "c"), (Create, "d")];
    assert_eq!(kinds(&mut staged), expected.map(|(kind, text)| (kind, text.to_owned())));
}

#[test]
fn too_many_changes_are_lost_together() {
    let mut staged = Staged::new(&ChangesRoom::default());
    for number in 0..10_000 {
        staged.push(Create, &PathBuf::from(number.to_string()));
    }
    assert!(!staged.is_empty());
    assert_eq!(staged.take(), None);
}

/// Logs changes with names of 4000 bytes.
fn commit(log: &Log, room: &ChangesRoom, count: usize) {
    for number in 0..count {
        let mut staged = Staged::new(room);
        staged.push(Create, &PathBuf::from(format!("/{number:0>4000}")));
        log.commit(&mut staged);
    }
}

/// Reads to the end: how many changes each page has, and the kind of the last change.
fn pages(log: &Log, mut seq: u64) -> (Vec<usize>, Option<ChangeKind>) {
    let (mut sizes, mut last) = (Vec::new(), None);
    loop {
        let page = log.read_after(seq);
        assert!(page.bytes <= MAX_PAGE_BYTES, "{}", page.bytes);
        let json = serde_json::to_string(&page.changes).unwrap();
        assert!(json.len() <= page.bytes + 2, "{} > {}", json.len(), page.bytes);
        if page.changes.is_empty() {
            return (sizes, last);
        }
        for (change, expected) in page.changes.iter().zip(seq + 1..) {
            assert_eq!(change.seq, expected);
        }
        sizes.push(page.changes.len());
        seq += page.changes.len() as u64;
        last = page.changes.last().map(|change| change.kind);
    }
}

#[test]
fn changes_are_read_in_pages_and_the_log_ends_with_the_last_one() {
    let room = ChangesRoom::default();
    let log = Log::new(Path::new("/r"), &room);
    commit(&log, &room, 300);
    log.end();
    let first = log.read_after(0);
    assert!((200..300).contains(&first.changes.len()), "{}", first.changes.len());
    assert!(!first.ended);
    let rest = log.read_after(first.changes.len() as u64);
    assert_eq!(first.changes.len() + rest.changes.len(), 300);
    assert!(rest.ended);
}

#[test]
fn watches_share_their_room_and_every_one_still_reports() {
    let room = ChangesRoom::default();
    let (greedy, late) = (Log::new(Path::new("/r"), &room), Log::new(Path::new("/r"), &room));
    commit(&greedy, &room, 5000);
    // Its changes are lost, which it says at once.
    commit(&late, &room, 1);
    assert_eq!(pages(&late, 0), (vec![1], Some(Rescan)));
    let (sizes, last) = pages(&greedy, 0);
    let kept: usize = sizes.iter().sum();
    assert!((1000..3000).contains(&kept), "{kept}");
    assert_eq!(last, Some(Rescan));
    // What was read has given its room back.
    commit(&late, &room, 1);
    assert_eq!(pages(&late, 1), (vec![1], Some(Create)));
}
