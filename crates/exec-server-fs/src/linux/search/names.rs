//! Searches the names of a tree for globs.

use std::fs::FileType;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::UNIX_EPOCH;

use exec_server_protocol::fs::{CaseMode, FoundKind, FsFoundEntry};
use globset::{GlobBuilder, GlobSet, GlobSetBuilder};
use ignore::{DirEntry, WalkParallel, WalkState};

use super::queue::{Batch, Item, Shared};
use super::walk::{self, path_uri};
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
    pub fn run(&self, walk: WalkParallel, shared: &Shared) {
        walk.run(|| {
            let mut worker = Worker { search: self, shared, batch: Batch::default() };
            Box::new(move |entry| worker.visit(entry))
        });
    }

    fn find(&self, entry: &DirEntry) -> Option<FsFoundEntry> {
        let kind = kind(entry.file_type()?);
        if !(self.kinds.is_empty() || self.kinds.contains(&kind)) {
            return None;
        }
        if let Some(globs) = &self.globs {
            let is_match = globs.names.is_match(Path::new(entry.file_name()))
                || globs.paths.is_match(super::below(entry.path(), &self.root));
            if !is_match {
                return None;
            }
        }
        let metadata = if self.is_detailed { entry.metadata().ok() } else { None };
        let modified = metadata.as_ref().and_then(|metadata| metadata.modified().ok());
        let modified_at_ms = modified.map(|time| match time.duration_since(UNIX_EPOCH) {
            Ok(after) => i64::try_from(after.as_millis()).unwrap_or(i64::MAX),
            Err(before) => i64::try_from(before.duration().as_millis()).map_or(i64::MIN, |ms| -ms),
        });
        let size = metadata.map(|metadata| metadata.len());
        Some(FsFoundEntry { path: path_uri(entry.path()), kind, size, modified_at_ms })
    }
}

fn kind(file_type: FileType) -> FoundKind {
    if file_type.is_file() {
        FoundKind::File
    } else if file_type.is_dir() {
        FoundKind::Directory
    } else if file_type.is_symlink() {
        FoundKind::Symlink
    } else {
        FoundKind::Other
    }
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
        let glob = GlobBuilder::new(text.strip_suffix('/').unwrap_or(text))
            .literal_separator(true)
            .case_insensitive(ignores_case)
            .empty_alternates(true)
            .build()
            .map_err(|error| FsError::Pattern(error.to_string()))?;
        if text.contains('/') {
            paths.add(glob)
        } else {
            names.add(glob)
        };
    }
    let build =
        |set: GlobSetBuilder| set.build().map_err(|error| FsError::Pattern(error.to_string()));
    Ok(Globs { names: build(names)?, paths: build(paths)? })
}

/// The state of one thread; its last batch is sent when the walk ends.
struct Worker<'a> {
    search: &'a NameSearch,
    shared: &'a Shared,
    batch: Batch,
}

impl Worker<'_> {
    fn visit(&mut self, entry: Result<DirEntry, ignore::Error>) -> WalkState {
        match entry {
            Err(error) => walk::note(self.shared, &self.search.root, &error),
            Ok(entry) if entry.depth() == 0 => {}
            Ok(entry) => {
                self.shared.visited.fetch_add(1, Ordering::Relaxed);
                if let Some(found) = self.search.find(&entry) {
                    self.batch.push(Item::Entry(found));
                }
            }
        }
        let goes_on = if self.batch.is_full() {
            self.shared.push(&mut self.batch)
        } else {
            !self.shared.is_over()
        };
        if goes_on { WalkState::Continue } else { WalkState::Quit }
    }
}

impl Drop for Worker<'_> {
    fn drop(&mut self) {
        self.shared.push(&mut self.batch);
    }
}
