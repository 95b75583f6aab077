//! Walks a tree for skills and manifests, within limits; symlink loops are visited once.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs::{self, DirEntry};
use std::io;
use std::path::{Path, PathBuf};

use super::manifest::MANIFEST_FOLDERS;
use crate::environment::path_uri;

/// The result of a walk; skills are sorted by URI.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// Paths of `SKILL.md` files.
    pub(super) skills: Vec<PathBuf>,
    /// Plugin manifests by plugin directory.
    pub(super) manifests: BTreeMap<PathBuf, PathBuf>,
    /// One warning per directory that cannot be read.
    pub(super) warnings: Vec<String>,
    /// Whether a limit ended the walk.
    pub(super) is_cut_short: bool,
}

/// Walks the tree breadth-first; symlinked directories are followed, and each real directory is visited once.
pub(super) fn walk(root: &Path) -> Found {
    let mut walk =
        Walk { found: Found::default(), seen: BTreeSet::new(), entries_left: MAX_ENTRIES };
    let mut queue = VecDeque::from([(root.to_path_buf(), 0)]);
    while let Some((folder, depth)) = queue.pop_front() {
        match walk.visit(&folder) {
            Ok(folders) if depth < MAX_DEPTH => {
                queue.extend(folders.into_iter().map(|folder| (folder, depth + 1)));
            }
            Ok(_) => {}
            Err(error) => {
                let uri = path_uri(&folder);
                let warning = format!("failed to scan capability path {}: {error}", uri.as_str());
                walk.found.warnings.push(warning);
            }
        }
        if walk.found.is_cut_short {
            break;
        }
    }
    walk.found.skills.sort_by_cached_key(|path| path_uri(path).as_str().to_owned());
    walk.found
}

/// Skills are near the root; deeper files belong to other tools.
const MAX_DEPTH: usize = 6;

/// Bounds the time of a walk whose root is a large tree by mistake.
const MAX_FOLDERS: usize = 2000;

/// Bounds the memory of a walk through large directories.
const MAX_ENTRIES: usize = 20_000;

struct Walk {
    found: Found,
    seen: BTreeSet<PathBuf>,
    entries_left: usize,
}

impl Walk {
    /// Scans one directory and returns its subdirectories.
    fn visit(&mut self, folder: &Path) -> io::Result<Vec<PathBuf>> {
        let real = fs::canonicalize(folder)?;
        if self.seen.contains(&real) {
            return Ok(Vec::new());
        }
        if self.seen.len() == MAX_FOLDERS {
            self.found.is_cut_short = true;
            return Ok(Vec::new());
        }
        self.seen.insert(real);
        let mut folders = Vec::new();
        for entry in self.sorted_entries(folder)? {
            let path = entry.path();
            // The entry may have been removed since the listing.
            let Ok(kind) = entry.file_type() else { continue };
            if kind.is_file() && entry.file_name() == "SKILL.md" {
                self.found.skills.push(path);
            } else if kind.is_dir() || (kind.is_symlink() && path.is_dir()) {
                folders.push(path);
            }
        }
        if let Some(manifest) = manifest_in(folder, &folders) {
            self.found.manifests.insert(folder.to_path_buf(), manifest);
        }
        Ok(folders)
    }

    fn sorted_entries(&mut self, folder: &Path) -> io::Result<Vec<DirEntry>> {
        let mut entries = Vec::new();
        for entry in fs::read_dir(folder)? {
            if self.entries_left == 0 {
                self.found.is_cut_short = true;
                break;
            }
            self.entries_left -= 1;
            entries.push(entry?);
        }
        entries.sort_by_key(DirEntry::file_name);
        Ok(entries)
    }
}

/// The manifest that makes a directory a plugin.
fn manifest_in(folder: &Path, folders: &[PathBuf]) -> Option<PathBuf> {
    let places = MANIFEST_FOLDERS.iter().map(|name| folder.join(name));
    let mut manifests =
        places.filter(|place| folders.contains(place)).map(|place| place.join("plugin.json"));
    manifests.find(|path| fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_file()))
}
