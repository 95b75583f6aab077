//! Decides which entries of a tree are looked at.
//!
//! The precedence is that of ripgrep: the globs of the request, then ignore files, then file types. A hidden name is
//! left out unless one of these names it.

use std::io;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};

use ignore::Match;
use ignore::overrides::{Override, OverrideBuilder};
use ignore::types::{Types, TypesBuilder};

use super::super::entries::NamesAhead;
use super::ignore_files::{self, OuterRules, Rules};
use crate::request::FsError;
use crate::search::SearchSpec;

/// The filter of one search.
pub struct Filter {
    root: PathBuf,
    globs: Override,
    types: Types,
    shows_hidden: bool,
    /// None if ignore files do not count.
    outer: Option<OuterRules>,
    /// Directories at this depth are not entered; the root has depth 0.
    pub max_depth: usize,
    pub max_file_bytes: Option<u64>,
}

impl Filter {
    /// Reads the ignore files above the tree; `note` gets what could not be read.
    pub fn new(spec: &SearchSpec, note: impl FnMut(&Path, io::Error)) -> Result<Self, FsError> {
        let filter = &spec.filter;
        let mut globs = OverrideBuilder::new(&spec.root);
        for glob in &filter.globs {
            globs.add(glob).map_err(wrong)?;
        }
        let mut types = TypesBuilder::new();
        if !filter.types.is_empty() {
            types.add_defaults();
        }
        for name in &filter.types {
            types.select(name);
        }
        let depth = filter.max_depth.map(|depth| usize::try_from(depth).unwrap_or(usize::MAX));
        Ok(Self {
            globs: globs.build().map_err(wrong)?,
            types: types.build().map_err(wrong)?,
            shows_hidden: filter.hidden,
            outer: filter.ignore.then(|| OuterRules::above(&spec.root, note)),
            root: spec.root.clone(),
            max_depth: depth.unwrap_or(usize::MAX),
            max_file_bytes: filter.max_file_bytes,
        })
    }

    /// The rules in a directory of the tree.
    pub fn enter(
        &self,
        directory: BorrowedFd,
        names: &NamesAhead,
        path: &Path,
        around: &Rules,
        note: impl FnMut(&Path, io::Error),
    ) -> Rules {
        self.outer.as_ref()?;
        // Most directories have no ignore file, and each attempt to open one is a system call.
        match names.may_have(ignore_files::is_read) {
            true => ignore_files::enter(directory, path, around, note),
            false => around.clone(),
        }
    }

    /// Whether an entry of a directory with these rules is looked at. `path` is the whole path.
    pub fn admits(&self, rules: &Rules, path: &Path, name: &[u8], is_dir: bool) -> bool {
        match self.matched(rules, path, is_dir) {
            Match::None => self.shows_hidden || name.first() != Some(&b'.'),
            Match::Ignore(()) => false,
            Match::Whitelist(()) => true,
        }
    }

    fn matched(&self, rules: &Rules, path: &Path, is_dir: bool) -> Match<()> {
        if !self.globs.is_empty() {
            let found = self.globs.matched(path, is_dir).map(|_| ());
            if !found.is_none() {
                return found;
            }
        }
        let outer = self.outer.as_ref();
        let found = outer.map(|outer| outer.matched(rules, &self.root, path, is_dir));
        let found = found.unwrap_or(Match::None);
        if found.is_ignore() || self.types.is_empty() {
            return found;
        }
        let of_type = self.types.matched(path, is_dir).map(|_| ());
        if of_type.is_none() { found } else { of_type }
    }
}

fn wrong(error: ignore::Error) -> FsError {
    FsError::Pattern(error.to_string())
}
