//! Collects the changes of one window; repeated changes of a path count once.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use exec_server_protocol::fs::ChangeKind;

use crate::tree_watch::{ChangesRoom, RoomShare};

/// More changes than this in one window are one `rescan`.
const MAX_STAGED: usize = 8192;

/// One change before it has a number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StagedChange {
    pub kind: ChangeKind,
    pub path: PathBuf,
    pub from: Option<PathBuf>,
}

/// The changes of one window.
#[derive(Debug)]
pub struct Staged {
    room: RoomShare,
    changes: Vec<StagedChange>,
    /// The last kind of change of each path.
    last: HashMap<PathBuf, ChangeKind>,
    /// Names that were moved away and have no new name yet, by the kernel's number of the move.
    moved: HashMap<u32, Moved>,
    is_full: bool,
}

#[derive(Debug)]
struct Moved {
    path: PathBuf,
    is_directory: bool,
    /// Where the change stands, to become a rename.
    place: usize,
}

/// Memory of a change beside its path.
const AROUND_BYTES: usize = 128;

impl Staged {
    pub fn new(room: &ChangesRoom) -> Self {
        Self {
            room: room.share(),
            changes: Vec::new(),
            last: HashMap::new(),
            moved: HashMap::new(),
            is_full: false,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.changes.is_empty() && !self.is_full
    }

    pub fn push(&mut self, kind: ChangeKind, path: &Path) {
        if self.is_full || self.last.get(path) == Some(&kind) {
            return;
        }
        if self.changes.len() >= MAX_STAGED || !self.room.try_take(stored_bytes(path)) {
            return self.overflow();
        }
        self.last.insert(path.to_owned(), kind);
        self.changes.push(StagedChange { kind, path: path.to_owned(), from: None });
    }

    /// A name has gone; it is a removal unless its new name follows.
    pub fn push_moved_from(&mut self, cookie: u32, path: PathBuf, is_directory: bool) {
        let place = self.changes.len();
        self.last.remove(&path);
        self.push(ChangeKind::Remove, &path);
        // The watches of a directory follow it, even if its change is lost.
        if is_directory || !self.is_full {
            self.moved.insert(cookie, Moved { path, is_directory, place });
        }
    }

    /// A name has come; returns its old name if that is known.
    pub fn push_moved_to(&mut self, cookie: u32, path: &Path) -> Option<PathBuf> {
        let Some(moved) = self.moved.remove(&cookie) else {
            self.last.remove(path);
            self.push(ChangeKind::Create, path);
            return None;
        };
        if self.is_full {
            return Some(moved.path);
        }
        if !self.room.try_take(stored_bytes(path)) {
            self.overflow();
            return Some(moved.path);
        }
        if let Some(change) = self.changes.get_mut(moved.place) {
            *change = StagedChange {
                kind: ChangeKind::Rename,
                path: path.to_owned(),
                from: Some(moved.path.clone()),
            };
        }
        self.last.remove(&moved.path);
        self.last.insert(path.to_owned(), ChangeKind::Rename);
        Some(moved.path)
    }

    /// Directories that were moved out of the tree.
    pub fn moved_away(&self) -> Vec<PathBuf> {
        let directories = self.moved.values().filter(|moved| moved.is_directory);
        directories.map(|moved| moved.path.clone()).collect()
    }

    /// Takes the changes; `None` if there were too many.
    pub fn take(&mut self) -> Option<Vec<StagedChange>> {
        let changes = std::mem::take(&mut self.changes);
        let is_full = std::mem::take(&mut self.is_full);
        self.clear();
        (!is_full).then_some(changes)
    }

    /// Changes were lost.
    pub fn overflow(&mut self) {
        self.clear();
        self.is_full = true;
    }

    fn clear(&mut self) {
        (self.changes, self.last, self.moved) = Default::default();
        self.room.clear();
    }
}

/// The path is in the list and in the map.
fn stored_bytes(path: &Path) -> usize {
    2 * path.as_os_str().len() + AROUND_BYTES
}
