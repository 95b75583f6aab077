//! Checks one JSON message in a single pass and finds its top-level members.
//!
//! Invariant: every text that [`scan_object`] accepts is valid for a strict JSON parser, and has no duplicate key at
//! any depth, no lone surrogate, at most [`MAX_JSON_VALUES`] values and at most [`MAX_JSON_DEPTH`] levels. Large base64
//! strings are common, so strings are skipped a vector register at a time.

use std::borrow::Cow;
use std::collections::HashSet;

use crate::limits::{MAX_JSON_DEPTH, MAX_JSON_VALUES};

/// Why a text is not a valid message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JsonError {
    /// The text is not JSON.
    #[error("{what} at byte {offset}")]
    Syntax {
        /// What was expected or found.
        what: &'static str,
        /// Byte offset in the text.
        offset: usize,
    },
    /// The text is JSON but no object.
    #[error("expected a JSON-RPC object")]
    NotAnObject,
    /// An object names a member twice.
    #[error("duplicate JSON object key `{0}`")]
    DuplicateKey(String),
    /// More values than [`MAX_JSON_VALUES`].
    #[error("JSON-RPC message exceeds the limit of {MAX_JSON_VALUES} JSON values")]
    TooManyValues,
    /// More levels than [`MAX_JSON_DEPTH`].
    #[error("recursion limit exceeded")]
    TooDeep,
}

/// Calls `member(key, value)` with the raw text of every top-level member, after the whole text has been checked.
pub fn scan_object<'a>(
    text: &'a str,
    mut member: impl FnMut(&str, &'a str),
) -> Result<(), JsonError> {
    // Number of keys in a typical request.
    let keys = Vec::with_capacity(16);
    let mut scanner = Scanner { text, bytes: text.as_bytes(), at: 0, values: 0, keys };
    scanner.skip_whitespace();
    if scanner.peek() != Some(b'{') {
        scanner.value(1)?;
        scanner.end()?;
        return Err(JsonError::NotAnObject);
    }
    let mut members = Vec::with_capacity(4);
    scanner.object(1, |key, value| members.push((key, value)))?;
    scanner.end()?;
    for (key, value) in members {
        member(&key, value);
    }
    Ok(())
}

/// The text of a JSON string literal, without its quotes and escapes.
pub fn string_value(literal: &str) -> Option<Cow<'_, str>> {
    let inner = literal.strip_prefix('"')?.strip_suffix('"')?;
    if memchr::memchr(b'\\', inner.as_bytes()).is_none() {
        return Some(Cow::Borrowed(inner));
    }
    serde_json::from_str::<String>(literal).ok().map(Cow::Owned)
}

/// A string literal with its quotes.
struct Literal<'a> {
    text: &'a str,
    has_escapes: bool,
}

struct Scanner<'a> {
    text: &'a str,
    bytes: &'a [u8],
    at: usize,
    values: usize,
    /// Keys of all open objects, innermost last; one buffer serves the whole message.
    keys: Vec<Cow<'a, str>>,
}

impl<'a> Scanner<'a> {
    fn value(&mut self, depth: usize) -> Result<(), JsonError> {
        match self.peek() {
            Some(b'{') => self.object(depth, |_, _| {}),
            Some(b'[') => self.array(depth),
            Some(b'"') => {
                self.count()?;
                self.string().map(|_| ())
            }
            Some(b't') => self.word("true"),
            Some(b'f') => self.word("false"),
            Some(b'n') => self.word("null"),
            Some(b'-' | b'0'..=b'9') => self.number(),
            Some(_) => Err(self.error("expected a value")),
            None => Err(self.error("unexpected end")),
        }
    }

    fn object(
        &mut self,
        depth: usize,
        mut member: impl FnMut(Cow<'a, str>, &'a str),
    ) -> Result<(), JsonError> {
        self.enter(depth)?;
        let first_key = self.keys.len();
        let mut many = None;
        self.skip_whitespace();
        if self.take(b'}') {
            return Ok(());
        }
        loop {
            self.skip_whitespace();
            if self.peek() != Some(b'"') {
                return Err(self.error("expected an object key"));
            }
            let key = match self.string()? {
                Literal { text, has_escapes: false } => Cow::Borrowed(&text[1..text.len() - 1]),
                Literal { text, .. } => {
                    string_value(text).ok_or_else(|| self.error("invalid string"))?
                }
            };
            self.remember(first_key, &mut many, key.clone())?;
            self.skip_whitespace();
            if !self.take(b':') {
                return Err(self.error("expected `:`"));
            }
            self.skip_whitespace();
            let start = self.at;
            self.value(depth + 1)?;
            member(key, &self.text[start..self.at]);
            self.skip_whitespace();
            if self.take(b'}') {
                break;
            }
            if !self.take(b',') {
                return Err(self.error("expected `,` or `}`"));
            }
        }
        self.keys.truncate(first_key);
        Ok(())
    }

    /// Small objects are compared key by key; large ones use a set, so that no input is quadratic.
    fn remember(
        &mut self,
        first_key: usize,
        many: &mut Option<HashSet<Cow<'a, str>>>,
        key: Cow<'a, str>,
    ) -> Result<(), JsonError> {
        const SMALL: usize = 16;
        let keys = &self.keys[first_key..];
        if keys.len() < SMALL {
            if keys.iter().any(|other| **other == *key) {
                return Err(JsonError::DuplicateKey(key.into_owned()));
            }
            self.keys.push(key);
            return Ok(());
        }
        let many = many.get_or_insert_with(|| keys.iter().cloned().collect());
        if many.contains(&key) {
            return Err(JsonError::DuplicateKey(key.into_owned()));
        }
        many.insert(key);
        Ok(())
    }

    fn array(&mut self, depth: usize) -> Result<(), JsonError> {
        self.enter(depth)?;
        self.skip_whitespace();
        if self.take(b']') {
            return Ok(());
        }
        loop {
            self.skip_whitespace();
            self.value(depth + 1)?;
            self.skip_whitespace();
            if self.take(b']') {
                return Ok(());
            }
            if !self.take(b',') {
                return Err(self.error("expected `,` or `]`"));
            }
        }
    }

    fn enter(&mut self, depth: usize) -> Result<(), JsonError> {
        if depth > MAX_JSON_DEPTH {
            return Err(JsonError::TooDeep);
        }
        self.at += 1;
        self.count()
    }

    /// Skips a string literal and returns it with its quotes.
    fn string(&mut self) -> Result<Literal<'a>, JsonError> {
        let start = self.at;
        self.at += 1;
        let mut has_escapes = false;
        loop {
            let Some(stop) = find_special(&self.bytes[self.at..]) else {
                return Err(self.error("unterminated string"));
            };
            self.at += stop;
            match self.bytes[self.at] {
                b'"' => {
                    self.at += 1;
                    return Ok(Literal { text: &self.text[start..self.at], has_escapes });
                }
                b'\\' => {
                    has_escapes = true;
                    self.escape()?;
                }
                _ => return Err(self.error("control character in a string")),
            }
        }
    }

    fn escape(&mut self) -> Result<(), JsonError> {
        self.at += 1;
        match self.peek() {
            Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => {
                self.at += 1;
                Ok(())
            }
            Some(b'u') => {
                self.at += 1;
                let unit = self.hex4()?;
                if !(0xd800..0xe000).contains(&unit) {
                    return Ok(());
                }
                let is_pair = unit < 0xdc00
                    && self.take(b'\\')
                    && self.take(b'u')
                    && (0xdc00..0xe000).contains(&self.hex4()?);
                if is_pair { Ok(()) } else { Err(self.error("lone surrogate in a string")) }
            }
            _ => Err(self.error("invalid escape")),
        }
    }

    fn hex4(&mut self) -> Result<u32, JsonError> {
        let digits = self.bytes.get(self.at..self.at + 4);
        let digits = digits.filter(|digits| digits.iter().all(u8::is_ascii_hexdigit));
        let Some(digits) = digits else {
            return Err(self.error("invalid unicode escape"));
        };
        self.at += 4;
        Ok(digits.iter().fold(0, |unit, digit| {
            unit * 16 + (*digit as char).to_digit(16).expect("checked to be a hex digit")
        }))
    }

    fn number(&mut self) -> Result<(), JsonError> {
        self.count()?;
        self.take(b'-');
        if !self.take(b'0') && self.digits() == 0 {
            return Err(self.error("invalid number"));
        }
        if self.take(b'.') && self.digits() == 0 {
            return Err(self.error("invalid number"));
        }
        if self.take(b'e') || self.take(b'E') {
            if !self.take(b'+') {
                self.take(b'-');
            }
            if self.digits() == 0 {
                return Err(self.error("invalid number"));
            }
        }
        Ok(())
    }

    fn digits(&mut self) -> usize {
        let start = self.at;
        while matches!(self.peek(), Some(b'0'..=b'9')) {
            self.at += 1;
        }
        self.at - start
    }

    fn word(&mut self, word: &str) -> Result<(), JsonError> {
        self.count()?;
        if !self.bytes[self.at..].starts_with(word.as_bytes()) {
            return Err(self.error("expected ident"));
        }
        self.at += word.len();
        Ok(())
    }

    fn end(&mut self) -> Result<(), JsonError> {
        self.skip_whitespace();
        if self.at < self.bytes.len() { Err(self.error("trailing characters")) } else { Ok(()) }
    }

    fn count(&mut self) -> Result<(), JsonError> {
        self.values += 1;
        if self.values > MAX_JSON_VALUES { Err(JsonError::TooManyValues) } else { Ok(()) }
    }

    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn take(&mut self, byte: u8) -> bool {
        let found = self.peek() == Some(byte);
        self.at += usize::from(found);
        found
    }

    fn skip_whitespace(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\n' | b'\r' | b'\t')) {
            self.at += 1;
        }
    }

    fn error(&self, what: &'static str) -> JsonError {
        JsonError::Syntax { what, offset: self.at }
    }
}

/// Finds the first quote, backslash or control character.
fn find_special(bytes: &[u8]) -> Option<usize> {
    // Most strings are short keys, for which wide registers are not worth the setup.
    const SHORT: usize = 4;
    let (words, _) = bytes.as_chunks::<8>();
    for (number, word) in words.iter().take(SHORT).enumerate() {
        let found = special_bytes(u64::from_le_bytes(*word));
        if found != 0 {
            return Some(number * 8 + found.trailing_zeros() as usize / 8);
        }
    }
    let stop = memchr::memchr2(b'"', b'\\', bytes);
    let plain = &bytes[..stop.unwrap_or(bytes.len())];
    find_control(plain).or(stop)
}

/// Sets the high bit of each special byte; bits above the first match may be false positives.
fn special_bytes(word: u64) -> u64 {
    const EACH: u64 = u64::MAX / 0xff;
    let below = |word: u64, limit: u8| word.wrapping_sub(EACH * u64::from(limit)) & !word;
    let is = |byte: u8| below(word ^ (EACH * u64::from(byte)), 1);
    (is(b'"') | is(b'\\') | below(word, 0x20)) & (EACH * 0x80)
}

fn find_control(bytes: &[u8]) -> Option<usize> {
    const BLOCK: usize = 256;
    // A vectorised minimum finds blocks with a special byte; only such a block is searched.
    let suspect = bytes
        .chunks(BLOCK)
        .position(|block| block.iter().fold(u8::MAX, |min, byte| min.min(*byte)) < 0x20)?;
    let start = suspect * BLOCK;
    bytes[start..].iter().position(|byte| *byte < 0x20).map(|found| start + found)
}

#[cfg(test)]
mod tests;
