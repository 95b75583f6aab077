//! Finds the existing paths that the deny patterns of a policy match.

use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use crate::WorkClock;
use crate::policy::DenyGlob;

use super::PlanError;

/// Each match is a mount, so more would make a start slow. Beyond this the request fails, because a policy must not be
/// enforced in part.
const MAX_MATCHES: usize = 4096;
/// Directory entries that are read for one policy.
const MAX_LOOKED_AT: usize = 500_000;

/// The paths that the patterns deny; a directory covers its content.
pub fn matches<'a>(
    globs: impl Iterator<Item = &'a DenyGlob>,
    clock: &WorkClock,
) -> Result<BTreeSet<PathBuf>, PlanError> {
    let mut search = Search { found: BTreeSet::new(), looked_at: 0, clock };
    for glob in globs {
        search.look_below(glob, glob.base(), glob.scan_depth().unwrap_or(usize::MAX))?;
    }
    Ok(search.found)
}

struct Search<'a> {
    found: BTreeSet<PathBuf>,
    looked_at: usize,
    clock: &'a WorkClock,
}

impl Search<'_> {
    fn look_below(&mut self, glob: &DenyGlob, dir: &Path, depth: usize) -> Result<(), PlanError> {
        self.clock.check().map_err(|_| PlanError::TooCostly)?;
        let entries = match fs::read_dir(dir) {
            Ok(entries) => entries,
            Err(error)
                if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) =>
            {
                return Ok(());
            }
            // The content is unknown and its owner can make it readable inside the sandbox, so all of it is denied.
            Err(_) => return self.add(dir.to_owned()),
        };
        for entry in entries.flatten() {
            self.looked_at += 1;
            if self.looked_at > MAX_LOOKED_AT {
                return Err(PlanError::PatternTooWide("has too many names to look at"));
            }
            let path = entry.path();
            if glob.denies(&path) {
                self.add(path)?;
            } else if depth > 1 && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                self.look_below(glob, &path, depth - 1)?;
            }
        }
        Ok(())
    }

    fn add(&mut self, path: PathBuf) -> Result<(), PlanError> {
        self.found.insert(path);
        if self.found.len() > MAX_MATCHES {
            return Err(PlanError::PatternTooWide("matches too many names"));
        }
        Ok(())
    }
}
