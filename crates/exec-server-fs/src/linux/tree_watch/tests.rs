//! What becomes of the changes of one window.

use std::path::PathBuf;

use exec_server_protocol::fs::ChangeKind::{self, Create, Remove, Rename, Write};

use super::staged::Staged;

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
    let mut staged = Staged::default();
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
    let mut staged = Staged::default();
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
    let mut staged = Staged::default();
    for number in 0..10_000 {
        staged.push(Create, &PathBuf::from(number.to_string()));
    }
    assert!(!staged.is_empty());
    assert_eq!(staged.take(), None);
}
