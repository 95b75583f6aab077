//! Patterns for a single path component.

use std::fmt::Write;
use std::iter::Peekable;
use std::path::{Component, Path};
use std::str::Chars;

use super::GlobProblem;

/// A pattern for one component; it never matches a separator.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct NamePattern {
    tokens: Vec<Token>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Token {
    Char(char),
    /// `?`
    AnyChar,
    /// `*`
    AnyRun,
    /// `[…]`
    OneOf {
        is_negated: bool,
        ranges: Vec<(char, char)>,
    },
}

/// Characters of one component; invalid UTF-8 bytes are `None`.
pub(in crate::policy) type Name = Vec<Option<char>>;

/// The components of a path, decoded once for all patterns.
pub(in crate::policy) fn names_of(path: &Path) -> Vec<Name> {
    let names = path.components().filter_map(|component| match component {
        Component::Normal(name) => Some(characters(name.as_encoded_bytes())),
        _ => None,
    });
    names.collect()
}

impl NamePattern {
    pub(super) fn parse(text: &str) -> Result<Self, GlobProblem> {
        let mut tokens = Vec::new();
        let mut chars = text.chars().peekable();
        // Once a class is found unclosed, no later one is closed.
        let mut may_have_classes = true;
        while let Some(char) = chars.next() {
            let token = match char {
                '?' => Token::AnyChar,
                '*' if tokens.last() == Some(&Token::AnyRun) => continue,
                '*' => Token::AnyRun,
                // A trailing backslash is literal.
                '\\' => Token::Char(chars.next().unwrap_or('\\')),
                '[' if may_have_classes => class(&mut chars)?.unwrap_or_else(|| {
                    may_have_classes = false;
                    Token::Char('[')
                }),
                char => Token::Char(char),
            };
            tokens.push(token);
        }
        Ok(Self { tokens })
    }

    /// `*`
    pub(super) fn any() -> Self {
        Self { tokens: vec![Token::AnyRun] }
    }

    /// The only matching name, if the pattern has no wildcards.
    pub(super) fn literal(&self) -> Option<String> {
        let chars = self.tokens.iter().map(|token| match token {
            Token::Char(char) => Some(*char),
            _ => None,
        });
        chars.collect()
    }

    /// Whether the pattern matches the whole name; backtracks over the last `*` only.
    pub(super) fn matches(&self, name: &Name) -> bool {
        let (mut token, mut at) = (0, 0);
        let mut star: Option<(usize, usize)> = None;
        while at < name.len() {
            match self.tokens.get(token) {
                Some(Token::AnyRun) => {
                    star = Some((token, at));
                    token += 1;
                }
                Some(one) if one.accepts(name[at]) => {
                    token += 1;
                    at += 1;
                }
                _ => {
                    let Some((star_token, star_at)) = star else { return false };
                    token = star_token + 1;
                    at = star_at + 1;
                    star = Some((star_token, star_at + 1));
                }
            }
        }
        self.tokens[token..].iter().all(|token| *token == Token::AnyRun)
    }

    /// Canonical text, equal for equivalent patterns.
    pub(super) fn canonical(&self) -> String {
        let mut text = String::new();
        for token in &self.tokens {
            match token {
                Token::Char(char) => text.extend(['\\', *char]),
                Token::AnyChar => text.push('?'),
                Token::AnyRun => text.push('*'),
                Token::OneOf { is_negated, ranges } => {
                    write!(text, "[{is_negated}{ranges:?}]").expect("a string takes everything");
                }
            }
        }
        text
    }
}

impl Token {
    fn accepts(&self, char: Option<char>) -> bool {
        match self {
            Self::AnyChar => true,
            Self::AnyRun => false,
            Self::Char(expected) => char == Some(*expected),
            Self::OneOf { is_negated, ranges } => {
                let is_in =
                    |char| ranges.iter().any(|(first, last)| (*first..=*last).contains(&char));
                char.is_some_and(is_in) != *is_negated
            }
        }
    }
}

/// Parses a class after its `[`; `None` without consuming input if it is unclosed.
fn class(chars: &mut Peekable<Chars>) -> Result<Option<Token>, GlobProblem> {
    let mut ahead = chars.clone();
    let is_negated = ahead.next_if(|char| matches!(char, '!' | '^')).is_some();
    let mut ranges = Vec::new();
    loop {
        let Some(first) = ahead.next() else { return Ok(None) };
        // A bracket in first position is literal.
        if first == ']' && !ranges.is_empty() {
            break;
        }
        let Some(first) = unescaped(first, &mut ahead) else { return Ok(None) };
        let mut last = first;
        let mut behind = ahead.clone();
        if behind.next() == Some('-') && behind.peek().is_some_and(|char| *char != ']') {
            ahead = behind;
            let end = ahead.next().expect("was peeked at");
            let Some(end) = unescaped(end, &mut ahead) else { return Ok(None) };
            last = end;
        }
        ranges.push((first, last));
    }
    if ranges.iter().any(|(first, last)| first > last) {
        return Err(GlobProblem::EmptyRange);
    }
    ranges.sort_unstable();
    ranges.dedup();
    *chars = ahead;
    Ok(Some(Token::OneOf { is_negated, ranges }))
}

fn unescaped(char: char, chars: &mut Peekable<Chars>) -> Option<char> {
    if char == '\\' { chars.next() } else { Some(char) }
}

fn characters(name: &[u8]) -> Name {
    name.utf8_chunks()
        .flat_map(|chunk| {
            let chars = chunk.valid().chars().map(Some);
            chars.chain(chunk.invalid().iter().map(|_| None))
        })
        .collect()
}
