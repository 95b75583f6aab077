//! Searches of small trees, without a server.

mod walk;

use std::time::Duration;

use exec_server_protocol::fs::{BinaryFiles, CaseMode, FsSearchFilter, FsSearchPage, Incomplete};

use super::*;
use crate::search::{ContentQuery, SearchLimits};

pub fn spec(root: &Path, pattern: &str, page_size: usize, max_matches: u64) -> SearchSpec {
    let query = ContentQuery {
        pattern: pattern.to_owned(),
        literal: false,
        case: CaseMode::Sensitive,
        word: false,
        before: 0,
        after: 0,
        files_only: false,
        binary: BinaryFiles::Skip,
    };
    let limits = SearchLimits {
        max_matches,
        max_bytes: u64::MAX,
        page_size,
        timeout: Duration::from_secs(60),
    };
    let filter = FsSearchFilter::default();
    SearchSpec { root: root.to_owned(), query: Query::Content(query), filter, limits }
}

fn page(search: &Search) -> FsSearchPage {
    serde_json::from_str(&search.next_page().text).expect("a page is JSON")
}

#[test]
fn pages_hold_all_matches_in_turn() {
    let tree = tempfile::tempdir().unwrap();
    let lines: String = (0..25).map(|number| format!("line {number}\n")).collect();
    std::fs::write(tree.path().join("f"), lines).unwrap();
    let search = Search::start(spec(tree.path(), "line", 10, u64::MAX)).unwrap();
    let pages = [page(&search), page(&search), page(&search)];
    assert_eq!(pages.each_ref().map(|page| page.matches.len()), [10, 10, 5]);
    assert_eq!(pages.each_ref().map(|page| page.state.done), [false, false, true]);
    let numbers: Vec<u64> =
        pages.iter().flat_map(|page| page.matches.iter().map(|found| found.line)).collect();
    assert_eq!(numbers, (1..=25).collect::<Vec<_>>());
    assert_eq!(pages[2].state.incomplete, None);
}

#[test]
fn a_pipe_or_device_is_not_searched() {
    let tree = tempfile::tempdir().unwrap();
    let pipe = tree.path().join("pipe");
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    for path in [&pipe, Path::new("/dev/zero")] {
        let refused = Search::start(spec(path, "x", 10, 10)).unwrap_err();
        assert!(matches!(refused, FsError::NotAFile(..)), "{refused}");
    }
}

#[test]
fn a_limit_of_matches_ends_the_search_and_is_named() {
    let tree = tempfile::tempdir().unwrap();
    std::fs::write(tree.path().join("f"), "x\n".repeat(100_000)).unwrap();
    let search = Search::start(spec(tree.path(), "x", 1000, 7)).unwrap();
    let only = page(&search);
    assert_eq!((only.matches.len(), only.state.done), (7, true));
    assert_eq!(only.state.incomplete, Some(Incomplete::MaxMatches));
}

#[test]
fn a_cancelled_search_ends_although_nothing_reads_it() {
    let tree = tempfile::tempdir().unwrap();
    std::fs::write(tree.path().join("f"), "x\n".repeat(1_000_000)).unwrap();
    let search = Search::start(spec(tree.path(), "x", 10, u64::MAX)).unwrap();
    let first = page(&search);
    assert!(!first.state.done);
    let shared = search.shared.clone();
    drop(search);
    while !std::sync::Arc::strong_count(&shared).eq(&1) {
        std::thread::yield_now();
    }
}

#[test]
fn patterns_that_cannot_be_compiled_are_refused() {
    let tree = tempfile::tempdir().unwrap();
    for pattern in ["(", "((a{1000}){1000}){1000}", "a\nb"] {
        let error = Search::start(spec(tree.path(), pattern, 10, 10)).unwrap_err();
        assert!(matches!(error, FsError::Pattern(_)), "{error}");
    }
}
