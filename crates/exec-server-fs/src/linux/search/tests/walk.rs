//! The walk compared with that of ripgrep, and its limits.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use exec_server_protocol::fs::{FsFindPage, FsSearchFilter};
use ignore::WalkBuilder;
use ignore::overrides::OverrideBuilder;
use ignore::types::TypesBuilder;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};

use super::*;
use crate::search::NameQuery;

fn names(root: &Path, filter: FsSearchFilter) -> BTreeSet<String> {
    let query = NameQuery {
        patterns: Vec::new(),
        case: CaseMode::Sensitive,
        kinds: Vec::new(),
        detailed: false,
    };
    let limits = SearchLimits {
        max_matches: u64::MAX,
        max_bytes: u64::MAX,
        page_size: 1000,
        timeout: Duration::from_secs(60),
    };
    let query = Query::Names(query);
    let spec = SearchSpec { root: root.to_owned(), query, filter, limits };
    let search = Search::start(spec).unwrap();
    let mut all = BTreeSet::new();
    loop {
        let page: FsFindPage = serde_json::from_str(&search.next_page().text).unwrap();
        for entry in &page.entries {
            assert!(all.insert(entry.path.as_str().to_owned()), "{:?} came twice", entry.path);
        }
        if page.state.done {
            assert_eq!(page.state.incomplete, None);
            assert_eq!(page.state.visited, all.len() as u64);
            return all;
        }
    }
}

/// The same by the walker of ripgrep.
fn names_of_ripgrep(root: &Path, filter: &FsSearchFilter) -> BTreeSet<String> {
    let mut globs = OverrideBuilder::new(root);
    for glob in &filter.globs {
        globs.add(glob).unwrap();
    }
    let mut types = TypesBuilder::new();
    types.add_defaults();
    for name in &filter.types {
        types.select(name);
    }
    let walk = WalkBuilder::new(root)
        .hidden(!filter.hidden)
        .ignore(filter.ignore)
        .git_ignore(filter.ignore)
        .git_exclude(filter.ignore)
        .git_global(filter.ignore)
        .parents(filter.ignore)
        .require_git(false)
        .max_depth(filter.max_depth.map(|depth| depth as usize))
        .max_filesize(filter.max_file_bytes)
        .overrides(globs.build().unwrap())
        .types(types.build().unwrap())
        .build();
    let entries = walk.map(Result::unwrap).filter(|entry| entry.depth() > 0);
    entries.map(|entry| path_uri(entry.path()).as_str().to_owned()).collect()
}

const NAMES: [&str; 6] = ["a", "b", ".h", "c.txt", "d.rs", "e"];

const PATTERNS: [&str; 14] = [
    "a", "/a", "b/", "*.txt", "!c.txt", "a/**", "**/b", "/b/c.txt", ".h", "!.h", "#e", "", "a/b",
    "!*",
];

const IGNORE_FILES: [&str; 3] = [".ignore", ".gitignore", ".git/info/exclude"];

/// A file below the directory that holds the searched one, its path in `NAMES`.
fn path() -> impl Strategy<Value = PathBuf> {
    vec(select(&NAMES[..]), 1..5).prop_map(|names| names.iter().collect())
}

fn ignore_file() -> impl Strategy<Value = (PathBuf, String)> {
    let directory = vec(select(&NAMES[..]), 0..3).prop_map(|names| names.iter().collect());
    let lines = vec(select(&PATTERNS[..]), 1..4).prop_map(|lines| lines.join("\n"));
    (directory, select(&IGNORE_FILES[..]), lines)
        .prop_map(|(directory, name, lines): (PathBuf, _, _)| (directory.join(name), lines))
}

fn filter() -> impl Strategy<Value = FsSearchFilter> {
    let globs = subsequence(vec!["*.txt", "!*.rs", "a/**", "!/b"], 0..3);
    let types = subsequence(vec!["rust", "txt"], 0..2);
    let (depth, size) = (option::of(1..4_u64), option::of(0..30_u64));
    (globs, types, any::<bool>(), any::<bool>(), depth, size).prop_map(
        |(globs, types, hidden, ignore, max_depth, max_file_bytes)| FsSearchFilter {
            globs: globs.into_iter().map(str::to_owned).collect(),
            types: types.into_iter().map(str::to_owned).collect(),
            hidden,
            ignore,
            max_depth,
            max_file_bytes,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_same_entries_are_found_as_by_ripgrep(
        paths in vec(path(), 1..12),
        ignore_files in vec(ignore_file(), 0..4),
        filter in filter(),
    ) {
        let tree = tempfile::tempdir().unwrap();
        for (number, path) in paths.iter().enumerate() {
            let path = tree.path().join(path);
            let _ = fs::create_dir_all(path.parent().unwrap());
            // A name that is a directory already stays one.
            let _ = fs::write(path, "x".repeat(number * 5));
        }
        for (path, lines) in &ignore_files {
            let path = tree.path().join(path);
            let _ = fs::create_dir_all(path.parent().unwrap());
            let _ = fs::write(path, lines);
        }
        let roots = [tree.path().to_owned(), tree.path().join("a"), tree.path().join("a/b")];
        for root in roots.iter().filter(|root| root.is_dir()) {
            let found = names(root, filter.clone());
            prop_assert_eq!(found, names_of_ripgrep(root, &filter), "{:?}", root);
        }
    }
}

fn everything() -> FsSearchFilter {
    FsSearchFilter { hidden: true, ignore: false, ..FsSearchFilter::default() }
}

#[test]
fn a_tree_that_is_deeper_than_directories_may_be_open_is_searched_to_its_end() {
    const DEPTH: usize = 400;
    let tree = tempfile::tempdir().unwrap();
    let mut directory = tree.path().to_owned();
    for _ in 0..DEPTH {
        directory.push("d");
        fs::create_dir(&directory).unwrap();
        fs::write(directory.join("f"), "needle\n").unwrap();
    }
    assert_eq!(names(tree.path(), everything()).len(), DEPTH * 2);
    let mut spec = spec(tree.path(), "needle", 1000, u64::MAX);
    spec.filter = everything();
    let search = Search::start(spec).unwrap();
    let mut found = 0;
    loop {
        let page = page(&search);
        found += page.matches.len();
        assert_eq!(page.state.error_count, 0);
        if page.state.done {
            break;
        }
    }
    assert_eq!(found, DEPTH);
}

#[test]
fn each_file_of_a_large_directory_is_searched_once() {
    const FILES: usize = 3000;
    let tree = tempfile::tempdir().unwrap();
    for file in 0..FILES {
        fs::write(tree.path().join(format!("{file}")), format!("needle {file}\n")).unwrap();
    }
    let search = Search::start(spec(tree.path(), "needle", FILES * 2, u64::MAX)).unwrap();
    let (mut found, mut visited) = (Vec::new(), 0);
    loop {
        let page = page(&search);
        found.extend(page.matches.into_iter().map(|found| found.text));
        visited = visited.max(page.state.visited);
        if page.state.done {
            break;
        }
    }
    found.sort_unstable();
    found.dedup();
    assert_eq!((found.len(), visited), (FILES, FILES as u64));
}

#[test]
fn a_link_in_the_tree_is_an_entry_and_is_not_followed() {
    let (tree, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::write(outside.path().join("secret"), "needle\n").unwrap();
    std::os::unix::fs::symlink(outside.path(), tree.path().join("link")).unwrap();
    let file = outside.path().join("secret");
    std::os::unix::fs::symlink(file, tree.path().join("file")).unwrap();
    assert_eq!(names(tree.path(), everything()).len(), 2);
    let search = Search::start(spec(tree.path(), "needle", 10, 10)).unwrap();
    let page = page(&search);
    assert_eq!((page.matches.len(), page.state.visited), (0, 0));
}

#[test]
fn a_pipe_with_the_name_of_an_ignore_file_is_no_ignore_file() {
    let tree = tempfile::tempdir().unwrap();
    fs::write(tree.path().join("f"), "").unwrap();
    for name in [".gitignore", ".ignore", ".git"] {
        let path = tree.path().join(name);
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    }
    let filter = FsSearchFilter { ignore: true, ..FsSearchFilter::default() };
    assert_eq!(names(tree.path(), filter).len(), 1);
}

#[test]
fn an_ignore_file_that_is_too_large_is_reported() {
    let tree = tempfile::tempdir().unwrap();
    fs::write(tree.path().join(".gitignore"), "*\n".repeat(3 << 20)).unwrap();
    fs::write(tree.path().join("f"), "needle\n").unwrap();
    let search = Search::start(spec(tree.path(), "needle", 10, 10)).unwrap();
    let page = page(&search);
    assert_eq!((page.matches.len(), page.state.error_count), (1, 1));
    assert!(page.state.errors[0].message.contains("larger than"), "{:?}", page.state.errors);
}

#[test]
fn small_and_large_files_are_searched_by_the_same_rules() {
    let tree = tempfile::tempdir().unwrap();
    for (size, blocks) in [("small", 10), ("large", 3000)] {
        let text = "a line without it\n".repeat(blocks) + "then a needle\nlast\n";
        let at_end = text.clone().into_bytes();
        fs::write(tree.path().join(format!("{size}-text")), &text).unwrap();
        fs::write(tree.path().join(format!("{size}-binary")), [b"\0\n", &at_end[..]].concat())
            .unwrap();
        let utf16: Vec<u8> =
            [0xfeff].into_iter().chain(text.encode_utf16()).flat_map(u16::to_le_bytes).collect();
        fs::write(tree.path().join(format!("{size}-utf16")), utf16).unwrap();
    }
    for (binary, expected) in [
        (BinaryFiles::Skip, (vec!["text", "utf16"], 0, 2)),
        (BinaryFiles::Report, (vec!["text", "utf16"], 2, 0)),
        (BinaryFiles::Text, (vec!["binary", "text", "utf16"], 0, 0)),
    ] {
        let mut spec = spec(tree.path(), "^then a needle$", 100, 100);
        let Query::Content(query) = &mut spec.query else { unreachable!() };
        query.binary = binary;
        let search = Search::start(spec).unwrap();
        let page = page(&search);
        let (names, reported, skipped) = expected;
        for size in ["small", "large"] {
            let of_size = |found: &&exec_server_protocol::fs::FsSearchMatch| {
                found.path.as_str().contains(size)
            };
            let mut found: Vec<_> = page.matches.iter().filter(of_size).collect();
            found.sort_by(|one, other| one.path.as_str().cmp(other.path.as_str()));
            let found: Vec<_> =
                found.iter().map(|found| found.path.as_str().rsplit_once('-').unwrap().1).collect();
            assert_eq!(found, names, "{binary:?} {size}");
        }
        assert_eq!(page.binary_matches.len(), reported, "{binary:?}");
        assert_eq!(page.state.binary_files, skipped, "{binary:?}");
    }
}
