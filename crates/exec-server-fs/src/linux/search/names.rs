//! Searches the names of a tree for globs.

use std::ffi::{CStr, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use exec_server_protocol::fs::{CaseMode, FoundKind, FsFoundEntry};
use globset::{Candidate, GlobBuilder, GlobSet, GlobSetBuilder};
use rustix::fs::{FileType, Stat};

use super::queue::{Batch, Item, Publish, Shared};
use super::walk::{Directory, Visitor, Walk, path_uri};
use crate::request::FsError;
use crate::search::NameQuery;

/// A search of names that is ready to run.
pub struct NameSearch {
    root: PathBuf,
    /// None matches everything.
    globs: Option<Globs>,
    kinds: Vec<FoundKind>,
    is_detailed: bool,
}

struct Globs {
    /// For the last component.
    names: GlobSet,
    /// For the path below the root.
    paths: GlobSet,
}

impl NameSearch {
    pub fn new(query: &NameQuery, root: &Path) -> Result<Self, FsError> {
        let globs = if query.patterns.is_empty() { None } else { Some(globs(query)?) };
        Ok(Self {
            root: root.to_owned(),
            globs,
            kinds: query.kinds.clone(),
            is_detailed: query.detailed,
        })
    }

    /// Runs the walk to its end on several threads.
    pub fn run(&self, walk: &Walk, shared: &Shared) {
        walk.run(shared, || Worker {
            search: self,
            walk,
            shared,
            batch: Batch::default(),
            visited: 0,
        });
    }

    /// Whether the name or the path below the root matches.
    fn matches(&self, directory: &Directory, name: &OsStr, kind: FoundKind) -> bool {
        if !(self.kinds.is_empty() || self.kinds.contains(&kind)) {
            return false;
        }
        let Some(globs) = &self.globs else { return true };
        if !globs.names.is_empty() && globs.names.is_match_candidate(&Candidate::new(name)) {
            return true;
        }
        !globs.paths.is_empty()
            && globs.paths.is_match(super::below(&directory.path, &self.root).join(name))
    }
}

fn found_kind(kind: FileType) -> FoundKind {
    match kind {
        FileType::RegularFile => FoundKind::File,
        FileType::Directory => FoundKind::Directory,
        FileType::Symlink => FoundKind::Symlink,
        _ => FoundKind::Other,
    }
}

fn modified_at_ms(stat: &Stat) -> i64 {
    let ms = i128::from(stat.st_mtime) * 1000 + i128::from(stat.st_mtime_nsec) / 1_000_000;
    ms.clamp(i64::MIN.into(), i64::MAX.into()) as i64
}

fn globs(query: &NameQuery) -> Result<Globs, FsError> {
    let (mut names, mut paths) = (GlobSetBuilder::new(), GlobSetBuilder::new());
    for pattern in &query.patterns {
        let wrong = |why: &str| FsError::Pattern(format!("pattern `{pattern}` {why}"));
        let text = pattern.strip_prefix("./").unwrap_or(pattern);
        if text.is_empty() || text.starts_with('/') {
            return Err(wrong("is not relative to the searched directory"));
        }
        if text.split('/').any(|part| part == "..") {
            return Err(wrong("leads out of the searched directory"));
        }
        let ignores_case = match query.case {
            CaseMode::Sensitive => false,
            CaseMode::Insensitive => true,
            CaseMode::Smart => !text.chars().any(char::is_uppercase),
        };
        let is_path = text.contains('/');
        let glob = GlobBuilder::new(text.strip_suffix('/').unwrap_or(text))
            // Names have no slash, and a glob whose `*` may match one can be compared as a suffix.
            .literal_separator(is_path)
            .case_insensitive(ignores_case)
            .empty_alternates(true)
            .build()
            .map_err(|error| FsError::Pattern(error.to_string()))?;
        if is_path {
            paths.add(glob)
        } else {
            names.add(glob)
        };
    }
    let build =
        |set: GlobSetBuilder| set.build().map_err(|error| FsError::Pattern(error.to_string()));
    Ok(Globs { names: build(names)?, paths: build(paths)? })
}

/// The state of one thread.
struct Worker<'a> {
    search: &'a NameSearch,
    walk: &'a Walk,
    shared: &'a Shared,
    batch: Batch,
    /// Entries that are not counted in `shared` yet.
    visited: u64,
}

impl Visitor for Worker<'_> {
    const IS_COSTLY: bool = false;

    fn visit(&mut self, directory: &Directory, name: &CStr, kind: FileType) -> bool {
        let most = self.walk.filter().max_file_bytes.filter(|_| kind != FileType::Directory);
        let file_name = OsStr::from_bytes(name.to_bytes());
        let found = found_kind(kind);
        let is_match = self.search.matches(directory, file_name, found);
        let stat = match most.is_some() || (is_match && self.search.is_detailed) {
            true => self.walk.stat(directory, name).ok(),
            false => None,
        };
        let size = stat.as_ref().map(|stat| stat.st_size.cast_unsigned());
        if size.zip(most).is_some_and(|(size, most)| size > most) {
            return true;
        }
        self.visited += 1;
        if is_match {
            let stat = stat.filter(|_| self.search.is_detailed);
            let size = size.filter(|_| self.search.is_detailed);
            let path = path_uri(&directory.path.join(file_name));
            let modified_at_ms = stat.as_ref().map(modified_at_ms);
            self.batch.push(Item::Entry(FsFoundEntry { path, kind: found, size, modified_at_ms }));
        }
        match self.batch.is_full() || self.visited >= CHECKED_AFTER {
            true => self.publish(Publish::Due),
            false => true,
        }
    }

    fn flush(&mut self) -> bool {
        self.publish(Publish::All)
    }
}

/// Entries after which a thread looks at the clock.
const CHECKED_AFTER: u64 = 256;

impl Worker<'_> {
    fn publish(&mut self, what: Publish) -> bool {
        self.shared.visited.fetch_add(std::mem::take(&mut self.visited), Ordering::Relaxed);
        self.shared.publish(&mut self.batch, what)
    }
}

impl Drop for Worker<'_> {
    fn drop(&mut self) {
        self.publish(Publish::All);
    }
}
