//! Format of a journal entry: append-only lines about the placeholders of one directory.
//!
//! ```text
//! root /srv/project                       the directory
//! making .git 1794810000                  may exist from this Unix second on
//! made .git 1048 1794810000123456789      exists, with this inode and creation time
//! gone .git                               removed; earlier lines about the name are void
//! ```
//!
//! Several servers append at the same time, and a power cut may lose any of the last lines. So every line is
//! independent, and unreadable lines are skipped.

use std::ffi::{OsStr, OsString};
use std::fmt::Write;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// Identifies a placeholder, also after a reboot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    pub inode: u64,
    /// Creation time in Unix nanoseconds, if the file system records it.
    pub btime: Option<u64>,
}

/// A directory that may be a placeholder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Candidate {
    pub identity: Identity,
    /// Creation time, or modification time if the file system has none; in Unix seconds.
    pub since: u64,
    /// Whether the entry is owned by this user and has no write bits.
    pub looks_like_one: bool,
}

/// One line of a journal entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Line {
    Root(PathBuf),
    Making(OsString, u64),
    Made(OsString, Identity),
    Gone(OsString),
}

/// The parsed lines of a journal entry.
#[derive(Debug, Default)]
pub struct Record {
    lines: Vec<Line>,
    /// Whether the last line has no newline, which must be added before the next line.
    pub is_torn: bool,
}

impl Line {
    /// The serialized line with its newline.
    pub fn to_text(&self) -> String {
        match self {
            Self::Root(path) => format!("root {}\n", escaped(path.as_os_str())),
            Self::Making(name, since) => format!("making {} {since}\n", escaped(name)),
            Self::Made(name, Identity { inode, btime }) => {
                let btime = btime.map_or_else(|| "-".to_owned(), |btime| btime.to_string());
                format!("made {} {inode} {btime}\n", escaped(name))
            }
            Self::Gone(name) => format!("gone {}\n", escaped(name)),
        }
    }

    fn parse(text: &str) -> Option<Self> {
        let words: Vec<&str> = text.split(' ').collect();
        Some(match words[..] {
            ["root", path] => Self::Root(PathBuf::from(plain(path)?)),
            ["making", name, since] => Self::Making(plain(name)?, since.parse().ok()?),
            ["made", name, inode, btime] => {
                let btime = if btime == "-" { None } else { Some(btime.parse().ok()?) };
                Self::Made(plain(name)?, Identity { inode: inode.parse().ok()?, btime })
            }
            ["gone", name] => Self::Gone(plain(name)?),
            _ => return None,
        })
    }
}

impl Record {
    /// Parses an entry; a last line without a newline is ignored.
    pub fn parse(bytes: &[u8]) -> Self {
        let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        let lines = bytes[..whole].split(|byte| *byte == b'\n');
        let lines = lines.filter_map(|line| Line::parse(std::str::from_utf8(line).ok()?));
        Self { lines: lines.collect(), is_torn: whole < bytes.len() }
    }

    /// The directory that contains the placeholders.
    pub fn root(&self) -> Option<&Path> {
        self.lines.iter().find_map(|line| match line {
            Line::Root(path) => Some(path.as_path()),
            _ => None,
        })
    }

    /// The names with lines after their last `gone`, each once.
    pub fn names(&self) -> Vec<&OsStr> {
        let mut names: Vec<&OsStr> = Vec::new();
        for line in &self.lines {
            match line {
                Line::Making(name, _) | Line::Made(name, _) if !names.contains(&&**name) => {
                    names.push(name);
                }
                Line::Gone(gone) => names.retain(|name| name != gone),
                _ => {}
            }
        }
        names
    }

    /// Whether the entry lists this directory as the placeholder at `name`.
    pub fn tells_of(&self, name: &OsStr, found: &Candidate) -> bool {
        let mut is_told = false;
        let mut being_made_since = None;
        for line in &self.lines {
            match line {
                Line::Making(making, since) if making == name => {
                    let earliest = being_made_since.map_or(*since, |other: u64| other.min(*since));
                    being_made_since = Some(earliest);
                }
                Line::Made(made, identity) if made == name => {
                    is_told |= *identity == found.identity;
                    being_made_since = None;
                }
                Line::Gone(gone) if gone == name => (is_told, being_made_since) = (false, None),
                _ => {}
            }
        }
        // A server may have been killed before it wrote `made`; then the time and the look of the directory decide.
        let is_being_made = being_made_since.is_some_and(|since| found.since >= since);
        is_told || (is_being_made && found.looks_like_one)
    }
}

fn escaped(text: &OsStr) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.as_bytes() {
        match byte {
            b'!'..=b'~' if *byte != b'%' => escaped.push(char::from(*byte)),
            _ => write!(escaped, "%{byte:02x}").expect("a String takes everything"),
        }
    }
    escaped
}

fn plain(text: &str) -> Option<OsString> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((byte, after)) = rest.split_first() {
        rest = after;
        if *byte == b'%' {
            let (digits, after) = rest.split_at_checked(2)?;
            bytes.push(u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?);
            rest = after;
        } else {
            bytes.push(*byte);
        }
    }
    (!bytes.is_empty()).then(|| OsString::from_vec(bytes))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const OURS: Identity = Identity { inode: 7, btime: Some(100_000_000_000) };

    fn candidate(identity: Identity, since: u64) -> Candidate {
        Candidate { identity, since, looks_like_one: true }
    }

    fn tells(text: &str, found: &Candidate) -> bool {
        Record::parse(text.as_bytes()).tells_of(OsStr::new(".git"), found)
    }

    #[test]
    fn a_made_placeholder_is_recognised_by_its_identity() {
        let text = "root /w\nmaking .git 100\nmade .git 7 100000000000\n";
        let other = Identity { inode: 8, ..OURS };
        assert!(tells(text, &candidate(OURS, 100)));
        assert!(!tells(text, &candidate(other, 100)));
        assert!(!tells(text, &candidate(Identity { btime: Some(1), ..OURS }, 100)));
        assert!(!tells(&format!("{text}gone .git\n"), &candidate(OURS, 100)));
        assert!(!tells("made .codex 7 100000000000\n", &candidate(OURS, 100)));
    }

    #[test]
    fn an_unfinished_placeholder_must_be_new_and_look_like_one() {
        let text = "making .git 100\n";
        assert!(tells(text, &candidate(OURS, 100)));
        assert!(!tells(text, &candidate(OURS, 99)));
        assert!(!tells(text, &Candidate { looks_like_one: false, ..candidate(OURS, 100) }));
        let again = "making .git 100\nmade .git 9 -\nmaking .git 110\n";
        assert!(tells(again, &candidate(OURS, 110)));
        assert!(!tells(again, &candidate(OURS, 105)));
    }

    #[test]
    fn a_truncated_line_is_ignored() {
        let whole = "root /w\nmaking .git 100\nmade .git 71 -\n";
        for length in 0..whole.len() {
            let record = Record::parse(&whole.as_bytes()[..length]);
            assert!(!record.tells_of(
                OsStr::new(".git"),
                &Candidate {
                    looks_like_one: false,
                    ..candidate(Identity { inode: 7, btime: None }, 100)
                }
            ));
        }
        assert!(Record::parse(&[0; 64]).names().is_empty());
        assert_eq!(Record::parse(b"root /w\n\0\0\0\nmaking .git 1\n").names(), [".git"]);
    }

    proptest! {
        #[test]
        fn every_path_survives_a_round_trip(bytes in proptest::collection::vec(1_u8.., 1..40)) {
            let path = PathBuf::from(OsString::from_vec(bytes));
            let text = Line::Root(path.clone()).to_text();
            let record = Record::parse(text.as_bytes());
            prop_assert_eq!(record.root(), Some(path.as_path()));
        }
    }
}
