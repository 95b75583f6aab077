//! Patterns that deny what they match.
//!
//! `*` and `?` stay inside one name, `**` as a whole name crosses any number of them, `[a-z]` and `[!a-z]` are one
//! character, `{a,b}` is either, `\` takes the next character as it is. A bracket or brace that is never closed is an
//! ordinary character. A pattern that matches a directory covers everything below it.
//!
//! A pattern is kept as a fixed directory and one part for each name below it, so that the characters of a directory
//! are never taken for wildcards, and a path is judged name by name in one pass.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use super::compile::GlobProblem;

mod braces;
mod names;

use names::NamePattern;
pub(super) use names::{Name, names_of};

/// No path that a system call takes is longer.
const MAX_PATTERN_BYTES: usize = 4096;

/// One bit for each part of a pattern, and one for a match.
const MAX_PARTS: usize = u128::BITS as usize - 1;

/// One pattern that denies what it matches.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct DenyGlob {
    base: PathBuf,
    parts: Vec<Part>,
    scan_depth: Option<usize>,
}

/// What a text without braces stands for.
#[derive(Debug, Clone)]
pub(super) enum Pattern {
    /// It has no wildcards, so it is a path.
    Literal(PathBuf),
    Glob(DenyGlob),
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    /// `**`: any number of names, also none.
    AnyNames,
    Name(NamePattern),
}

/// Reads a pattern that starts in the directory `start`; its braces make it several.
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
        // `dir/**` is what is in the directory, not the directory.
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
    /// The directory that holds everything that this can match.
    pub fn base(&self) -> &Path {
        &self.base
    }

    /// How many names below [`DenyGlob::base`] a match can be; a pattern that does not cross names bounds itself.
    pub fn scan_depth(&self) -> Option<usize> {
        self.scan_depth
    }

    /// Whether this denies `path`, which must be absolute and normal, by matching it or a directory that holds it.
    pub fn denies(&self, path: &Path) -> bool {
        path.strip_prefix(&self.base)
            .is_ok_and(|below| self.longest_match(&names_of(below)).is_some())
    }

    /// How many of these names, which are below the base, the longest match has.
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

    /// Which parts the next name may continue with, one bit each; all at once, so that no pattern makes a path slow.
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

    /// `**` may also stand for no name.
    fn also_without_names(&self, mut live: u128) -> u128 {
        for (index, part) in self.parts.iter().enumerate() {
            if live & (1 << index) != 0 && *part == Part::AnyNames {
                live |= 1 << (index + 1);
            }
        }
        live
    }

    /// Adds everything that this means to a digest.
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
