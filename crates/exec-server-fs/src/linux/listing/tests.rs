use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixListener;

use rustix::fs::{CWD, Mode};

use super::super::testing::{as_ordinary_user, errno, in_each_place};
use super::*;

#[test]
fn files_and_directories_are_told_apart() {
    in_each_place(|place| {
        fs::write(place.join("file"), "").unwrap();
        fs::write(place.join(".hidden"), "").unwrap();
        fs::create_dir(place.join("directory")).unwrap();
        assert_eq!(listed(place), [".hidden file", "directory directory", "file file"]);
    });
}

#[test]
fn an_empty_directory_has_no_entries() {
    in_each_place(|place| assert!(listed(place).is_empty()));
}

#[test]
fn links_are_described_by_what_they_lead_to() {
    in_each_place(|place| {
        fs::write(place.join("file"), "").unwrap();
        fs::create_dir(place.join("directory")).unwrap();
        symlink("file", place.join("to file")).unwrap();
        symlink("directory", place.join("to directory")).unwrap();
        let listed = listed(place);
        assert_eq!(listed[2..], ["to directory directory link", "to file file link"]);
    });
}

#[test]
fn links_that_lead_nowhere_are_listed_as_neither() {
    in_each_place(|place| {
        symlink("nowhere", place.join("dangling")).unwrap();
        symlink("loop", place.join("loop")).unwrap();
        assert_eq!(listed(place), ["dangling link", "loop link"]);
    });
}

#[test]
fn pipes_and_sockets_are_neither() {
    in_each_place(|place| {
        rustix::fs::mkfifoat(CWD, place.join("pipe"), Mode::RWXU).unwrap();
        let _socket = UnixListener::bind(place.join("socket")).unwrap();
        assert_eq!(listed(place), ["pipe", "socket"]);
    });
}

#[test]
fn a_link_to_a_directory_can_be_listed_and_a_file_cannot() {
    in_each_place(|place| {
        fs::create_dir(place.join("directory")).unwrap();
        fs::write(place.join("directory/file"), "").unwrap();
        symlink("directory", place.join("link")).unwrap();
        assert_eq!(listed(&place.join("link")), ["file file"]);
        for (path, expected) in [("directory/file", libc::ENOTDIR), ("missing", libc::ENOENT)] {
            let error = list(&place.join(path), None, Detail::Basic).unwrap_err();
            assert_eq!(errno(&error), Some(expected), "{path}");
        }
    });
}

#[test]
fn a_pipe_is_refused_without_waiting_for_a_writer() {
    in_each_place(|place| {
        rustix::fs::mkfifoat(CWD, place.join("pipe"), Mode::RWXU).unwrap();
        let error = list(&place.join("pipe"), None, Detail::Basic).unwrap_err();
        assert_eq!(errno(&error), Some(libc::ENOTDIR));
    });
}

#[test]
fn a_name_that_is_not_utf8_comes_with_its_address() {
    in_each_place(|place| {
        let name = OsStr::from_bytes(b"bad-\xff");
        fs::write(place.join(name), "").unwrap();
        fs::write(place.join("good"), "").unwrap();
        let mut entries = list(place, None, Detail::Basic).unwrap().entries;
        entries.sort_by(|a, b| a.file_name.cmp(&b.file_name));
        assert_eq!(entries[0].file_name, "bad-\u{fffd}");
        assert_eq!(entries[0].uri, Some(uri_of(&place.join(name))));
        assert_eq!(entries[1].uri, None);
    });
}

#[test]
fn a_detailed_listing_has_addresses_and_metadata() {
    in_each_place(|place| {
        fs::write(place.join("file"), "12345").unwrap();
        symlink("nowhere", place.join("link")).unwrap();
        let mut entries = list(place, None, Detail::Full).unwrap().entries;
        entries.sort_by(|a, b| a.file_name.cmp(&b.file_name));
        assert_eq!(entries.len(), 2);
        assert_eq!(entries[0].uri, Some(uri_of(&place.join("file"))));
        assert_eq!(entries[0].metadata.as_ref().unwrap().size, 5);
        assert!(entries[1].metadata.as_ref().unwrap().is_symlink);
    });
}

#[test]
fn names_that_may_be_read_but_not_looked_at_are_listed_without_metadata() {
    as_ordinary_user(|place| {
        let dir = place.join("names only");
        fs::create_dir(&dir).unwrap();
        fs::write(dir.join("file"), "").unwrap();
        fs::set_permissions(&dir, PermissionsExt::from_mode(0o400)).unwrap();
        let entries = list(&dir, None, Detail::Full).unwrap().entries;
        fs::set_permissions(&dir, PermissionsExt::from_mode(0o700)).unwrap();
        assert_eq!(entries.len(), 1);
        assert_eq!(entries[0].metadata, None);
    });
}

#[test]
fn a_name_that_has_gone_is_left_out() {
    in_each_place(|place| {
        let uri = uri_of(place);
        let directory = Directory { fd: entries::open(place).unwrap(), uri, detail: Detail::Full };
        assert_eq!(directory.entry(c"gone", FileType::RegularFile), None);
        let directory = Directory { detail: Detail::Basic, ..directory };
        assert_eq!(directory.entry(c"gone", FileType::Unknown), None);
    });
}

#[test]
fn too_many_names_are_refused_unless_they_are_asked_for_in_pages() {
    let place = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    fill(place.path(), 0..MAX_DETAILED_ENTRIES);
    let entries = list(place.path(), None, Detail::Full).unwrap().entries;
    assert_eq!(entries.len(), MAX_DETAILED_ENTRIES);

    fill(place.path(), MAX_DETAILED_ENTRIES..MAX_DIRECTORY_ENTRIES);
    let error = list(place.path(), None, Detail::Full).unwrap_err();
    assert!(matches!(error, FsError::TooManyEntries(10_001, 10_000)), "{error}");
    let entries = list(place.path(), None, Detail::Basic).unwrap().entries;
    assert_eq!(entries.len(), MAX_DIRECTORY_ENTRIES);

    fill(place.path(), MAX_DIRECTORY_ENTRIES..MAX_DIRECTORY_ENTRIES + 2);
    let error = list(place.path(), None, Detail::Basic).unwrap_err();
    assert!(matches!(error, FsError::TooManyEntries(50_001, 50_000)), "{error}");
    let page = Page { limit: 2, after: Some(b"049999".to_vec()) };
    let answer = list(place.path(), Some(&page), Detail::Basic).unwrap();
    assert_eq!(names(&answer), ["050000", "050001"]);
    assert_eq!(answer.next_cursor, None);
}

#[test]
fn pages_are_sorted_by_bytes_and_lead_to_each_other() {
    in_each_place(|place| {
        for name in ["b", "a", "ab", "B", "\u{e4}"] {
            fs::write(place.join(name), "").unwrap();
        }
        for limit in 1..=6 {
            let (mut seen, mut after) = (Vec::new(), None);
            loop {
                let page = Page { limit, after };
                let answer = list(place, Some(&page), Detail::Basic).unwrap();
                assert!(answer.entries.len() <= limit && !answer.entries.is_empty());
                seen.extend(names(&answer));
                match answer.next_cursor {
                    Some(cursor) => after = Some(decode_cursor(&cursor).unwrap()),
                    None => break,
                }
            }
            assert_eq!(seen, ["B", "a", "ab", "b", "\u{e4}"], "pages of {limit}");
        }
    });
}

#[test]
fn a_page_behind_the_last_name_is_empty() {
    in_each_place(|place| {
        fs::write(place.join("a"), "").unwrap();
        let page = Page { limit: 5, after: Some(b"a".to_vec()) };
        assert_eq!(list(place, Some(&page), Detail::Basic).unwrap(), Default::default());
    });
}

#[test]
fn cursors_keep_every_byte_of_a_name_and_nonsense_is_no_cursor() {
    for name in [b"a".as_slice(), b"\xff\xfe", "\u{e4}".as_bytes()] {
        assert_eq!(decode_cursor(&encode_cursor(name)).as_deref(), Some(name));
    }
    for cursor in ["", "!", "YQ"] {
        assert_eq!(decode_cursor(cursor), None, "{cursor}");
    }
}

/// One line per entry, sorted.
fn listed(path: &Path) -> Vec<String> {
    let answer = list(path, None, Detail::Basic).unwrap();
    let mut lines: Vec<String> = answer.entries.iter().map(line).collect();
    lines.sort();
    lines
}

fn line(entry: &FsDirectoryEntry) -> String {
    let mut line = entry.file_name.clone();
    for (is_set, word) in
        [(entry.is_directory, " directory"), (entry.is_file, " file"), (entry.is_symlink, " link")]
    {
        line.push_str(if is_set { word } else { "" });
    }
    line
}

fn names(answer: &FsReadDirectoryResponse) -> Vec<String> {
    answer.entries.iter().map(|entry| entry.file_name.clone()).collect()
}

fn uri_of(path: &Path) -> PathUri {
    PathUri::from_posix(path.as_os_str().as_bytes())
}

fn fill(place: &Path, numbers: std::ops::Range<usize>) {
    for number in numbers {
        fs::write(place.join(format!("{number:06}")), "").unwrap();
    }
}
