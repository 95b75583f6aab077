//! Patterns that deny what they match.
//!
//! `*` and `?` match within one name, `**` as a whole name matches any number of names, `[a-z]` and `[!a-z]` match one
//! character, `{a,b}` either text, and `\` escapes the next character. An unclosed bracket or brace is an ordinary
//! character. A pattern that matches a directory covers everything below it.
//!
//! A pattern is stored as a fixed directory and one part for each name below it, so that characters of the directory
//! are never wildcards, and a path is matched name by name in one pass.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use super::compile::GlobProblem;

mod braces;
mod names;

use names::NamePattern;
pub(super) use names::{Name, names_of};

/// Linux's PATH_MAX.
const MAX_PATTERN_BYTES: usize = 4096;

/// One bit for each part of a pattern, and one for a match.
const MAX_PARTS: usize = u128::BITS as usize - 1;

/// A pattern that denies access to matching paths.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct DenyGlob {
    base: PathBuf,
    parts: Vec<Part>,
    scan_depth: Option<usize>,
}

/// A pattern without braces.
#[derive(Debug, Clone)]
pub(super) enum Pattern {
    /// A pattern without wildcards, which is a path.
    Literal(PathBuf),
    Glob(DenyGlob),
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    /// `**`: any number of names, including none.
    AnyNames,
    Name(NamePattern),
}

/// Parses a pattern relative to the directory `start`; braces expand to several patterns.
pub(super) fn parse(
    start: &Path,
    pattern: &str,
    max_depth: Option<NonZeroUsize>,
) -> Result<Vec<Pattern>, GlobProblem> {
    if pattern.contains('\0') {
        return Err(GlobProblem::Nul);
    }
    if pattern.len() > MAX_PATTERN_BYTES {
        return Err(GlobProblem::TooLong);
    }
    let texts = braces::expand(pattern)?;
    texts.iter().map(|text| parse_one(start, text, max_depth)).collect()
}

fn parse_one(
    start: &Path,
    text: &str,
    max_depth: Option<NonZeroUsize>,
) -> Result<Pattern, GlobProblem> {
    let mut base = start.to_owned();
    let mut parts: Vec<Part> = Vec::new();
    for name in text.split('/') {
        if name == "**" {
            if parts.last() != Some(&Part::AnyNames) {
                parts.push(Part::AnyNames);
            }
            continue;
        }
        let name = NamePattern::parse(name)?;
        match name.literal().as_deref() {
            Some("" | ".") => {}
            Some("..") if parts.is_empty() => drop(base.pop()),
            Some("..") => match parts.pop() {
                Some(Part::Name(name)) if name.literal().is_some() => {}
                _ => return Err(GlobProblem::ParentOfWildcard),
            },
            Some(literal) if parts.is_empty() => base.push(literal),
            _ => parts.push(Part::Name(name)),
        }
    }
    if parts.last() == Some(&Part::AnyNames) {
        // `dir/**` matches the content of the directory, not the directory.
        parts.push(Part::Name(NamePattern::any()));
    }
    if parts.is_empty() {
        return Ok(Pattern::Literal(base));
    }
    if parts.len() > MAX_PARTS {
        return Err(GlobProblem::TooLong);
    }
    let own_depth = (!parts.contains(&Part::AnyNames)).then_some(parts.len());
    let scan_depth = own_depth.into_iter().chain(max_depth.map(NonZeroUsize::get)).min();
    Ok(Pattern::Glob(DenyGlob { base, parts, scan_depth }))
}

impl DenyGlob {
    /// The directory that contains all possible matches.
    pub fn base(&self) -> &Path {
        &self.base
    }

    /// Maximum depth of a match below [`DenyGlob::base`]; bounded if the pattern has no `**`.
    pub fn scan_depth(&self) -> Option<usize> {
        self.scan_depth
    }

    /// Whether this pattern denies the absolute, normalised `path`, by matching it or one of its parents.
    pub fn denies(&self, path: &Path) -> bool {
        path.strip_prefix(&self.base)
            .is_ok_and(|below| self.longest_match(&names_of(below)).is_some())
    }

    /// Number of names, below the base, in the longest match.
    pub(super) fn longest_match(&self, names: &[Name]) -> Option<usize> {
        let depth = self.scan_depth.unwrap_or(usize::MAX);
        let matched = 1 << self.parts.len();
        let mut longest = None;
        let mut live = self.also_without_names(1);
        for (index, name) in names.iter().take(depth).enumerate() {
            live = self.step(live, name);
            if live & matched != 0 {
                longest = Some(index + 1);
            }
            if live == 0 {
                break;
            }
        }
        longest
    }

    /// The parts that may match the next name, one bit each; computed together, so that matching is linear.
    fn step(&self, live: u128, name: &Name) -> u128 {
        let mut next = 0;
        for (index, part) in self.parts.iter().enumerate() {
            let bit = 1 << index;
            match part {
                _ if live & bit == 0 => {}
                Part::AnyNames => next |= bit,
                Part::Name(pattern) if pattern.matches(name) => next |= bit << 1,
                Part::Name(_) => {}
            }
        }
        self.also_without_names(next)
    }

    /// `**` also matches no name.
    fn also_without_names(&self, mut live: u128) -> u128 {
        for (index, part) in self.parts.iter().enumerate() {
            if live & (1 << index) != 0 && *part == Part::AnyNames {
                live |= 1 << (index + 1);
            }
        }
        live
    }

    /// Adds the pattern to a digest.
    pub(super) fn describe(&self, mut add: impl FnMut(&[u8])) {
        add(self.base.as_os_str().as_encoded_bytes());
        add(&self.scan_depth.unwrap_or(0).to_le_bytes());
        for part in &self.parts {
            match part {
                Part::AnyNames => add(b"**"),
                Part::Name(name) => add(name.canonical().as_bytes()),
            }
        }
        add(b"");
    }
}

#[cfg(test)]
mod tests;
