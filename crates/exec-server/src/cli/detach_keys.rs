//! Detects the detach key sequence in terminal input.
//!
//! A key that may begin the sequence is held until the next key or a timeout, because alone it has its own meaning,
//! such as Ctrl-P in a shell.

use std::time::{Duration, Instant};

/// Longest pause between two keys of the sequence.
const KEY_TIMEOUT: Duration = Duration::from_millis(500);

/// The detach sequence as terminal bytes; empty if detaching is off.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DetachKeys(Vec<u8>);

impl DetachKeys {
    /// Default of `--detach-keys`, as in docker.
    pub const DEFAULT: &str = "ctrl-p,ctrl-q";

    /// Detaching by keys is off.
    pub fn none() -> Self {
        Self(Vec::new())
    }

    pub fn is_none(&self) -> bool {
        self.0.is_empty()
    }
}

/// A key in `--detach-keys` that cannot be parsed.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is no key; use single characters or ctrl-X (X is a-z, @, [, \\, ], ^ or _), separated by commas"
)]
pub struct KeyError(String);

impl std::str::FromStr for DetachKeys {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Self, KeyError> {
        if text.is_empty() || text == "none" {
            return Ok(Self(Vec::new()));
        }
        text.split(',').map(key).collect::<Result<_, _>>().map(Self)
    }
}

fn key(text: &str) -> Result<u8, KeyError> {
    let unknown = || KeyError(text.to_owned());
    let letter = text.strip_prefix("ctrl-");
    match (letter.unwrap_or(text).as_bytes(), letter.is_some()) {
        ([letter @ (b'a'..=b'z' | b'A'..=b'Z')], true) => {
            Ok(letter.to_ascii_lowercase() - b'a' + 1)
        }
        ([b'@'], true) => Ok(0),
        ([sign @ b'['..=b'_'], true) => Ok(sign - b'[' + 27),
        ([letter], false) if letter.is_ascii_graphic() => Ok(*letter),
        _ => Err(unknown()),
    }
}

/// Splits typed bytes into bytes for the process and the detach sequence.
#[derive(Debug)]
pub struct DetachWatch {
    keys: Vec<u8>,
    /// Number of keys of the sequence that are held.
    matched: usize,
    since: Option<Instant>,
}

/// Bytes for the process, and whether the sequence followed them.
#[derive(Debug, PartialEq, Eq)]
pub struct Typed {
    pub bytes: Vec<u8>,
    /// Whether the sequence is complete; bytes after it are dropped.
    pub is_detached: bool,
}

impl DetachWatch {
    pub fn new(keys: DetachKeys) -> Self {
        Self { keys: keys.0, matched: 0, since: None }
    }

    /// Handles typed bytes.
    pub fn handle_typed(&mut self, now: Instant, typed: &[u8]) -> Typed {
        let mut bytes = Vec::with_capacity(typed.len() + self.matched);
        for &byte in typed {
            if self.keys.get(self.matched) == Some(&byte) {
                self.matched += 1;
                if self.matched == self.keys.len() {
                    self.matched = 0;
                    self.since = None;
                    return Typed { bytes, is_detached: true };
                }
                continue;
            }
            let mut held = self.keys[..self.matched].to_vec();
            held.push(byte);
            // The held keys plus this one may end in a new start of the sequence.
            let is_beginning = |count: &usize| held.ends_with(&self.keys[..*count]);
            self.matched =
                (0..held.len().min(self.keys.len())).rev().find(is_beginning).unwrap_or(0);
            bytes.extend_from_slice(&held[..held.len() - self.matched]);
        }
        self.since = (self.matched > 0).then_some(now);
        Typed { bytes, is_detached: false }
    }

    /// Ends the watch; returns the held keys.
    pub fn into_held(mut self) -> Vec<u8> {
        self.keys.truncate(self.matched);
        self.keys
    }

    /// When held keys are released.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.since.map(|since| since + KEY_TIMEOUT)
    }

    /// Releases held keys after the timeout.
    pub fn handle_timeout(&mut self, now: Instant) -> Vec<u8> {
        if self.poll_timeout().is_none_or(|at| now < at) {
            return Vec::new();
        }
        self.since = None;
        self.keys[..std::mem::take(&mut self.matched)].to_vec()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sequence_detaches_wherever_it_is_typed() {
        check("ctrl-p,ctrl-q", &[b"ls\r\x10\x11rest"], b"ls\r", true);
        check("ctrl-p,ctrl-q", &[b"ls\r\x10", b"\x11"], b"ls\r", true);
        check("ctrl-p,ctrl-q", &[b"\x10\x10\x11"], b"\x10", true);
        check("a,b,ctrl-]", &[b"a", b"b", b"\x1d"], b"", true);
    }

    #[test]
    fn an_incomplete_sequence_is_passed_on_unchanged() {
        check("ctrl-p,ctrl-q", &[b"\x10x\x11\x10", b"y"], b"\x10x\x11\x10y", false);
        check("a,b,c", &[b"ababc"], b"ab", true);
        check("a,a,b", &[b"aaab"], b"a", true);
        check("none", &[b"\x10\x11"], b"\x10\x11", false);
        check("", &[b"\x10\x11"], b"\x10\x11", false);
    }

    #[test]
    fn a_held_key_is_released_after_a_timeout() {
        let start = Instant::now();
        let mut watch = DetachWatch::new(DetachKeys::DEFAULT.parse().unwrap());
        let typed = watch.handle_typed(start, b"a\x10");
        assert_eq!(typed, Typed { bytes: b"a".to_vec(), is_detached: false });
        assert_eq!(watch.poll_timeout(), Some(start + KEY_TIMEOUT));
        assert_eq!(watch.handle_timeout(start + KEY_TIMEOUT / 2), b"");
        assert_eq!(watch.handle_timeout(start + KEY_TIMEOUT), b"\x10");
        assert_eq!(watch.poll_timeout(), None);
        assert!(!watch.handle_typed(start + KEY_TIMEOUT, b"\x11").is_detached);
    }

    #[test]
    fn keys_are_written_as_docker_writes_them() {
        assert_eq!("ctrl-p,ctrl-q".parse(), Ok(DetachKeys(vec![0x10, 0x11])));
        assert_eq!(
            "ctrl-@,ctrl-[,ctrl-\\,ctrl-_,x".parse(),
            Ok(DetachKeys(vec![0, 27, 28, 31, b'x']))
        );
        for wrong in ["ctrl-", "ctrl-1", "xy", "ctrl-p,", "é"] {
            assert!(wrong.parse::<DetachKeys>().is_err(), "{wrong}");
        }
    }

    fn check(keys: &str, typed: &[&[u8]], passed: &[u8], is_detached: bool) {
        let mut watch = DetachWatch::new(keys.parse().unwrap());
        let now = Instant::now();
        let mut bytes = Vec::new();
        let mut was_detached = false;
        for typed in typed {
            let typed = watch.handle_typed(now, typed);
            bytes.extend(typed.bytes);
            was_detached = typed.is_detached;
        }
        assert_eq!((bytes.as_slice(), was_detached), (passed, is_detached), "{keys} {typed:?}");
    }
}
