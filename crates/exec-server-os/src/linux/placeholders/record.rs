//! What is written down about the placeholders of one directory: lines that are only ever added.
//!
//! ```text
//! root /srv/project                       where
//! making .git 1794810000                  from this second on it may be there
//! made .git 1048 1794810000123456789      it is, with this inode and time of birth
//! gone .git                               everything before this line is over
//! ```
//!
//! Several servers add lines at the same time, and a power cut may lose any of the last ones, so every line stands for
//! itself and what cannot be read is skipped.

use std::ffi::{OsStr, OsString};
use std::fmt::Write;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// What tells a placeholder from every other directory, also after a restart of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    pub inode: u64,
    /// In nanoseconds, where the file system knows it.
    pub born: Option<u64>,
}

/// A directory that may be a placeholder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Candidate {
    pub identity: Identity,
    /// When it was born or, where that is not known, last changed; in seconds.
    pub since: u64,
    /// Whether nobody may write it, as is rare, and it belongs to us.
    pub looks_like_one: bool,
}

/// One line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Line {
    Root(PathBuf),
    Making(OsString, u64),
    Made(OsString, Identity),
    Gone(OsString),
}

/// Everything that was written down about one directory.
#[derive(Debug, Default)]
pub struct Record {
    lines: Vec<Line>,
    /// Whether its last line has no end, so that nothing must be added to it.
    pub is_torn: bool,
}

impl Line {
    /// The line as it is written.
    pub fn to_text(&self) -> String {
        match self {
            Self::Root(path) => format!("root {}\n", escaped(path.as_os_str())),
            Self::Making(name, since) => format!("making {} {since}\n", escaped(name)),
            Self::Made(name, Identity { inode, born }) => {
                let born = born.map_or_else(|| "-".to_owned(), |born| born.to_string());
                format!("made {} {inode} {born}\n", escaped(name))
            }
            Self::Gone(name) => format!("gone {}\n", escaped(name)),
        }
    }

    fn parse(text: &str) -> Option<Self> {
        let words: Vec<&str> = text.split(' ').collect();
        Some(match words[..] {
            ["root", path] => Self::Root(PathBuf::from(plain(path)?)),
            ["making", name, since] => Self::Making(plain(name)?, since.parse().ok()?),
            ["made", name, inode, born] => {
                let born = if born == "-" { None } else { Some(born.parse().ok()?) };
                Self::Made(plain(name)?, Identity { inode: inode.parse().ok()?, born })
            }
            ["gone", name] => Self::Gone(plain(name)?),
            _ => return None,
        })
    }
}

impl Record {
    /// Reads what was written; a line without its end was not.
    pub fn parse(bytes: &[u8]) -> Self {
        let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        let lines = bytes[..whole].split(|byte| *byte == b'\n');
        let lines = lines.filter_map(|line| Line::parse(std::str::from_utf8(line).ok()?));
        Self { lines: lines.collect(), is_torn: whole < bytes.len() }
    }

    /// Where the placeholders are.
    pub fn root(&self) -> Option<&Path> {
        self.lines.iter().find_map(|line| match line {
            Line::Root(path) => Some(path.as_path()),
            _ => None,
        })
    }

    /// The names of which something is not over, each once.
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

    /// Whether a server has made this directory to stand at `name`.
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
        // Its maker may not have come to say which one it is; then it must at least look like one.
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

    const OURS: Identity = Identity { inode: 7, born: Some(100_000_000_000) };

    fn candidate(identity: Identity, since: u64) -> Candidate {
        Candidate { identity, since, looks_like_one: true }
    }

    fn tells(text: &str, found: &Candidate) -> bool {
        Record::parse(text.as_bytes()).tells_of(OsStr::new(".git"), found)
    }

    #[test]
    fn what_was_made_is_known_by_its_identity() {
        let text = "root /w\nmaking .git 100\nmade .git 7 100000000000\n";
        let other = Identity { inode: 8, ..OURS };
        assert!(tells(text, &candidate(OURS, 100)));
        assert!(!tells(text, &candidate(other, 100)));
        assert!(!tells(text, &candidate(Identity { born: Some(1), ..OURS }, 100)));
        assert!(!tells(&format!("{text}gone .git\n"), &candidate(OURS, 100)));
        assert!(!tells("made .codex 7 100000000000\n", &candidate(OURS, 100)));
    }

    #[test]
    fn what_was_being_made_must_be_young_and_look_like_one() {
        let text = "making .git 100\n";
        assert!(tells(text, &candidate(OURS, 100)));
        assert!(!tells(text, &candidate(OURS, 99)));
        assert!(!tells(text, &Candidate { looks_like_one: false, ..candidate(OURS, 100) }));
        let again = "making .git 100\nmade .git 9 -\nmaking .git 110\n";
        assert!(tells(again, &candidate(OURS, 110)));
        assert!(!tells(again, &candidate(OURS, 105)));
    }

    #[test]
    fn what_a_power_cut_left_of_a_line_is_no_line() {
        let whole = "root /w\nmaking .git 100\nmade .git 71 -\n";
        for length in 0..whole.len() {
            let record = Record::parse(&whole.as_bytes()[..length]);
            assert!(!record.tells_of(
                OsStr::new(".git"),
                &Candidate {
                    looks_like_one: false,
                    ..candidate(Identity { inode: 7, born: None }, 100)
                }
            ));
        }
        assert!(Record::parse(&[0; 64]).names().is_empty());
        assert_eq!(Record::parse(b"root /w\n\0\0\0\nmaking .git 1\n").names(), [".git"]);
    }

    proptest! {
        #[test]
        fn every_path_can_be_written_down(bytes in proptest::collection::vec(1_u8.., 1..40)) {
            let path = PathBuf::from(OsString::from_vec(bytes));
            let text = Line::Root(path.clone()).to_text();
            let record = Record::parse(text.as_bytes());
            prop_assert_eq!(record.root(), Some(path.as_path()));
        }
    }
}
