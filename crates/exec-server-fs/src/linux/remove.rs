//! Removes a file, a link or a tree, and never anything outside of it.
//!
//! A tree is removed through directory descriptors. Every directory is opened by its name in its parent's descriptor
//! and never through a link, so a concurrent change of the tree cannot redirect the removal.
//!
//! ```text
//!             ┌──── a subdirectory is left: enter it ────┐
//!             ▼                                          │
//!   enter ─► scan: unlink all but subdirectories ─► what is left? ◄──────────────┐
//!             ▲                                          │ nothing: leave        │ go on in the parent,
//!             └──── not empty: something came in ──── remove it from its parent ─┘ or end after the top
//! ```

use std::ffi::{CStr, CString, OsStr};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, OFlags, SeekFrom};
use rustix::io::Errno;

use super::entries::{self, EntryReader};
use super::metadata::Identity;
use super::resolve::{self, parent_without_links};
use crate::request::{FsError, Links, TreeOperation};

/// Removes the entry at `path`; a link as the last component is not followed.
///
/// With `force`, a missing path counts as removed.
pub fn remove(path: &Path, recursive: bool, force: bool, links: Links) -> Result<(), FsError> {
    let outcome = match links {
        Links::Refuse if recursive => Err(FsError::RecursiveWithoutLinks),
        Links::Refuse => remove_without_links(path),
        Links::Follow => remove_following(path, recursive),
    };
    match outcome {
        Err(FsError::System(error)) if force && error.kind() == io::ErrorKind::NotFound => Ok(()),
        outcome => outcome,
    }
}

fn remove_without_links(path: &Path) -> Result<(), FsError> {
    let (parent, name) = parent_without_links(path)?;
    match kind(&parent, &name)? {
        FileType::Symlink => Err(FsError::IsLink),
        kind => Ok(remove_one(parent.as_fd(), &name, kind)?),
    }
}

fn remove_following(path: &Path, recursive: bool) -> Result<(), FsError> {
    // The root has no name, so it is never removed.
    let (parent, name) = resolve::parent(path)?;
    match kind(&parent, &name)? {
        FileType::Directory if recursive => Tree::new(parent, path).remove(name),
        kind => Ok(remove_one(parent.as_fd(), &name, kind)?),
    }
}

fn kind(parent: &OwnedFd, name: &CStr) -> io::Result<FileType> {
    entries::kind(parent.as_fd(), name, FileType::Unknown)
}

fn remove_one(parent: BorrowedFd, name: &CStr, kind: FileType) -> io::Result<()> {
    let is_directory = kind == FileType::Directory;
    let flags = if is_directory { AtFlags::REMOVEDIR } else { AtFlags::empty() };
    Ok(rustix::fs::unlinkat(parent, name, flags)?)
}

/// Maximum number of open descriptors for one removal, whatever the depth of the tree.
const OPEN_LEVELS: usize = 32;

/// Maximum number of subdirectory names kept per directory; a rescan finds the rest.
const HELD_NAMES: usize = 4096;

/// Rescans of a directory that another process keeps filling, before the removal fails.
const MAX_RESCANS: u32 = 16;

/// A tree that is being removed.
struct Tree<'a> {
    path: &'a Path,
    /// The directory that is being emptied; before and after all levels, the parent of the top.
    dir: OwnedFd,
    /// The directories that were entered and not yet removed, from the top down.
    levels: Vec<Level>,
    reader: EntryReader,
    removed: u64,
}

struct Level {
    name: CString,
    parent: Parent,
    /// Subdirectories that the last scan found.
    subdirectories: Vec<CString>,
    /// Whether the last scan found more subdirectories than were kept.
    has_more: bool,
    rescans: u32,
}

enum Parent {
    Open(OwnedFd),
    /// Reopened as `..` of its child, which must give the same directory.
    Closed(Identity),
}

/// Where and why the removal stopped.
#[derive(Debug)]
struct Failure {
    path: PathBuf,
    source: io::Error,
}

impl<'a> Tree<'a> {
    fn new(parent: OwnedFd, path: &'a Path) -> Self {
        Self { path, dir: parent, levels: Vec::new(), reader: EntryReader::new(), removed: 0 }
    }

    fn remove(mut self, top: CString) -> Result<(), FsError> {
        match self.enter(top).and_then(|()| self.empty()) {
            Ok(()) => Ok(()),
            Err(failure) if self.removed == 0 => Err(FsError::System(failure.source)),
            Err(Failure { path, source }) => {
                let source = Box::new(FsError::System(source));
                Err(FsError::Incomplete {
                    did: TreeOperation::Removed,
                    done: self.removed,
                    path,
                    cause: source,
                })
            }
        }
    }

    /// Removes all entered directories, from the bottom up.
    fn empty(&mut self) -> Result<(), Failure> {
        while let Some(mut level) = self.levels.pop() {
            match level.subdirectories.pop() {
                Some(name) => {
                    self.levels.push(level);
                    self.enter(name)?;
                }
                None => self.leave(level)?,
            }
        }
        Ok(())
    }

    fn enter(&mut self, name: CString) -> Result<(), Failure> {
        let dir = match entries::open_at(self.dir.as_fd(), &name, OFlags::NOFOLLOW) {
            Ok(dir) => dir,
            Err(error) => return self.remove_unopened(&name, error),
        };
        self.close_a_distant_level().map_err(|error| self.failure(Some(&name), error))?;
        let parent = Parent::Open(std::mem::replace(&mut self.dir, dir));
        self.scan(Level::new(name, parent))
    }

    /// Handles a directory that cannot be opened: it may be gone, replaced by a file, or unreadable but empty.
    fn remove_unopened(&mut self, name: &CStr, error: io::Error) -> Result<(), Failure> {
        let kind = match error.raw_os_error().map(Errno::from_raw_os_error) {
            Some(Errno::NOENT) => return Ok(()),
            Some(Errno::NOTDIR | Errno::LOOP) => FileType::Unknown,
            _ => FileType::Directory,
        };
        remove_one(self.dir.as_fd(), name, kind).map_err(|_| self.failure(Some(name), error))?;
        self.removed += 1;
        Ok(())
    }

    /// Unlinks everything in the current directory except its subdirectories, which are recorded in `level`.
    fn scan(&mut self, mut level: Level) -> Result<(), Failure> {
        let mut last_name = None;
        let outcome = self.reader.read(self.dir.as_fd(), |name, reported| {
            match unlink(self.dir.as_fd(), name, reported) {
                Ok(Unlinked::Yes) => self.removed += 1,
                Ok(Unlinked::WasGone) => {}
                Ok(Unlinked::IsDirectory) => level.note(name),
                Err(error) => {
                    last_name = Some(name.to_owned());
                    return Err(error);
                }
            }
            Ok(())
        });
        self.levels.push(level);
        outcome.map_err(|error| self.failure(last_name.as_deref(), error))
    }

    /// Removes the current directory, which should be empty now, and continues in its parent.
    fn leave(&mut self, level: Level) -> Result<(), Failure> {
        let parent = match level.parent {
            Parent::Open(parent) => Ok(parent),
            Parent::Closed(identity) => reopen_parent(&self.dir, identity),
        };
        let parent = parent.map_err(|error| self.failure(Some(&level.name), error))?;
        match rustix::fs::unlinkat(&parent, &level.name, AtFlags::REMOVEDIR) {
            Ok(()) => self.removed += 1,
            Err(Errno::NOENT) => {}
            Err(Errno::NOTEMPTY) if level.has_more || level.rescans < MAX_RESCANS => {
                return self.scan_again(Level { parent: Parent::Open(parent), ..level });
            }
            Err(error) => return Err(self.failure(Some(&level.name), error.into())),
        }
        self.dir = parent;
        Ok(())
    }

    fn scan_again(&mut self, mut level: Level) -> Result<(), Failure> {
        if !std::mem::take(&mut level.has_more) {
            level.rescans += 1;
        }
        rustix::fs::seek(&self.dir, SeekFrom::Start(0))
            .map_err(|error| self.failure(Some(&level.name), error.into()))?;
        self.scan(level)
    }

    /// Closes the parent descriptor that is needed last; that of the top stays open.
    fn close_a_distant_level(&mut self) -> io::Result<()> {
        let Some(distant @ 1..) = self.levels.len().checked_sub(OPEN_LEVELS) else { return Ok(()) };
        let level = &mut self.levels[distant];
        if let Parent::Open(parent) = &level.parent {
            level.parent = Parent::Closed(Identity::from(&rustix::fs::fstat(parent)?));
        }
        Ok(())
    }

    /// A failure at a name in the current directory, or at the directory itself.
    fn failure(&self, name: Option<&CStr>, source: io::Error) -> Failure {
        let names = self.levels.iter().map(|level| level.name.as_c_str()).chain(name);
        // `self.path` already ends with the name of the top.
        let mut path = self.path.to_owned();
        path.extend(names.skip(1).map(|name| OsStr::from_bytes(name.to_bytes())));
        Failure { path, source }
    }
}

impl Level {
    fn new(name: CString, parent: Parent) -> Self {
        Self { name, parent, subdirectories: Vec::new(), has_more: false, rescans: 0 }
    }

    fn note(&mut self, subdirectory: &CStr) {
        if self.subdirectories.len() < HELD_NAMES {
            self.subdirectories.push(subdirectory.to_owned());
        } else {
            self.has_more = true;
        }
    }
}

/// Opens the parent of a directory; fails unless it is the one that the directory was entered from.
fn reopen_parent(dir: &OwnedFd, identity: Identity) -> io::Result<OwnedFd> {
    let parent = entries::open_at(dir.as_fd(), c"..", OFlags::empty())?;
    if Identity::from(&rustix::fs::fstat(&parent)?) != identity {
        return Err(io::Error::other("the directory was moved while it was being removed"));
    }
    Ok(parent)
}

enum Unlinked {
    Yes,
    WasGone,
    IsDirectory,
}

fn unlink(dir: BorrowedFd, name: &CStr, reported: FileType) -> io::Result<Unlinked> {
    if reported == FileType::Directory {
        return Ok(Unlinked::IsDirectory);
    }
    match rustix::fs::unlinkat(dir, name, AtFlags::empty()) {
        Ok(()) => Ok(Unlinked::Yes),
        Err(Errno::NOENT) => Ok(Unlinked::WasGone),
        // The file system did not report the type, or the entry was replaced since.
        Err(Errno::ISDIR) => Ok(Unlinked::IsDirectory),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests;
