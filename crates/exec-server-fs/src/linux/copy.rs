//! `fs/copy`: a file, a link, or a tree.
//!
//! Files are published atomically, as with every write. Links at the destination are followed, links in the source are
//! copied as links; pipes, sockets and devices in a tree are skipped.

use std::ffi::{CStr, CString, OsStr};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, chmodat, mkdirat, openat, readlinkat, symlinkat,
};
use rustix::io::Errno;

use super::entries::{self, EntryReader};
use super::first_names::Name;
use super::metadata::Facts;
use super::open::FOR_READING;
use super::resolve::{self, Place, system};
use super::stage::StagedFile;
use super::{copy_bytes, names};
use crate::request::{FsError, Links, TreeOperation, WriteOptions};

/// Copies a file, a link or a tree.
pub fn copy(source: &Path, destination: &Path, recursive: bool) -> Result<(), FsError> {
    let (dir, name) = match resolve::parent(source) {
        Err(FsError::NoName) => (resolve::root()?, c".".to_owned()),
        other => other?,
    };
    let facts = Facts::of_name(dir.as_fd(), &name)?;
    match facts.file_type() {
        FileType::RegularFile => {
            copy_file(&dir, &name, resolve::target(destination, Links::Follow)?)
        }
        FileType::Symlink => {
            let (target_dir, target_name) = resolve::parent(destination)?;
            copy_link(&dir, &name, &target_dir, &target_name)
        }
        FileType::Directory if !recursive => Err(FsError::DirectoryNeedsRecursive),
        FileType::Directory => {
            check_not_inside(&facts, destination)?;
            copy_tree(&resolve::enter(&dir, &name)?, &facts, source, destination)
        }
        _ => Err(FsError::NotCopyable(source.to_owned())),
    }
}

fn copy_file(dir: &OwnedFd, name: &CStr, place: Place) -> Result<(), FsError> {
    let source =
        openat(dir, name, FOR_READING | OFlags::NOFOLLOW, Mode::empty()).map_err(system)?;
    let facts = Facts::of_file(source.as_fd())?;
    if !facts.is_regular() {
        return Err(FsError::NotCopyable(Path::new(&*name.to_string_lossy()).to_owned()));
    }
    if let Some(existing) = &place.existing {
        if existing.facts.identity() == facts.identity() {
            return Err(FsError::SameFile);
        }
        if !existing.facts.is_regular() {
            let name = Path::new(&*place.name.to_string_lossy()).to_owned();
            return Err(FsError::NotAFile(name, existing.facts.nature()));
        }
    }
    let mut staged = StagedFile::new(place, WriteOptions::default())?;
    copy_bytes::copy(&source.into(), staged.file())?;
    // setuid and setgid bits are not copied.
    staged.set_mode(facts.mode() & 0o777);
    staged.publish().map(drop)
}

fn copy_link(
    dir: &OwnedFd,
    name: &CStr,
    target_dir: &OwnedFd,
    target_name: &CStr,
) -> Result<(), FsError> {
    let text = readlinkat(dir, name, Vec::new()).map_err(system)?;
    symlinkat(text.as_c_str(), target_dir, target_name).map_err(system)
}

/// Fails if the existing part of the destination is inside the source.
fn check_not_inside(source: &Facts, destination: &Path) -> Result<(), FsError> {
    let mut existing = destination;
    let dir = loop {
        match openat(CWD, existing, resolve::DIRECTORY, Mode::empty()) {
            Ok(dir) => break dir,
            Err(Errno::NOENT) => match existing.parent() {
                Some(parent) => existing = parent,
                None => return Err(system(Errno::NOENT)),
            },
            Err(errno) => return Err(system(errno)),
        }
    };
    check_not_ancestor(source, dir)
}

/// Fails if `source` is `dir` or one of its ancestors.
fn check_not_ancestor(source: &Facts, mut dir: OwnedFd) -> Result<(), FsError> {
    let mut below = None;
    loop {
        let here = Facts::of_file(dir.as_fd())?.identity();
        if here == source.identity() {
            return Err(FsError::IntoItself);
        }
        if below == Some(here) {
            return Ok(());
        }
        below = Some(here);
        dir = openat(&dir, c"..", resolve::DIRECTORY, Mode::empty()).map_err(system)?;
    }
}

/// A directory that is being copied, with its remaining entries.
struct Level {
    source: OwnedFd,
    target: OwnedFd,
    left: Vec<Name>,
    path: PathBuf,
    /// Mode to set on the copy after its content is copied.
    mode: Option<u32>,
}

fn copy_tree(
    source: &OwnedFd,
    facts: &Facts,
    path: &Path,
    destination: &Path,
) -> Result<(), FsError> {
    let target = openat(CWD, destination, resolve::DIRECTORY, Mode::empty());
    let (target, mode) = match target {
        Ok(target) => (target, None),
        Err(Errno::NOENT) => {
            if let Some(parent) = destination.parent() {
                names::create_with_parents(parent)?;
            }
            let (dir, name) = resolve::parent(destination)?;
            make_directory(&dir, &name, facts, facts)?
        }
        Err(errno) => return Err(system(errno)),
    };
    let mut done = 0;
    let mut levels = vec![Level::open(source, target, path.to_owned(), mode)?];
    while let Some(level) = levels.last_mut() {
        let (path, copied, outcome) = match level.left.pop() {
            Some(entry) => {
                let path = level.path.join(OsStr::from_bytes(entry.text.to_bytes()));
                let outcome = level.copy_entry(&entry, &path, facts);
                (path, 1, outcome)
            }
            // A directory was counted when it was created.
            None => {
                let level = levels.pop().expect("was just seen");
                let outcome = level.finish().map(|()| None);
                (level.path, 0, outcome)
            }
        };
        match outcome {
            Ok(below) => {
                levels.extend(below);
                done += copied;
            }
            Err(error) if done == 0 => return Err(error),
            Err(error) => {
                let source = Box::new(error);
                return Err(FsError::Incomplete {
                    did: TreeOperation::Copied,
                    done,
                    path,
                    cause: source,
                });
            }
        }
    }
    Ok(())
}

impl Level {
    fn open(
        source: &OwnedFd,
        target: OwnedFd,
        path: PathBuf,
        mode: Option<u32>,
    ) -> Result<Self, FsError> {
        let source = entries::open_at(source.as_fd(), c".", OFlags::empty())?;
        let mut left = Vec::new();
        EntryReader::new().read(source.as_fd(), |name, reported| {
            left.push(Name { text: name.to_owned(), reported });
            io::Result::Ok(())
        })?;
        Ok(Self { source, target, left, path, mode })
    }

    /// Copies one entry; a directory becomes the next level.
    fn copy_entry(&self, entry: &Name, path: &Path, top: &Facts) -> Result<Option<Self>, FsError> {
        let name = &entry.text;
        let facts = Facts::of_name(self.source.as_fd(), name)?;
        match facts.file_type() {
            FileType::RegularFile => {
                let place = resolve::target_in(self.target.try_clone()?, name.clone())?;
                copy_file(&self.source, name, place)?;
            }
            FileType::Symlink => copy_link(&self.source, name, &self.target, name)?,
            FileType::Directory => {
                let source = resolve::enter(&self.source, name)?;
                let (target, mode) = make_directory(&self.target, name, &facts, top)?;
                return Level::open(&source, target, path.to_owned(), mode).map(Some);
            }
            _ => {}
        }
        Ok(None)
    }

    fn finish(&self) -> Result<(), FsError> {
        let Some(mode) = self.mode else { return Ok(()) };
        let path = format!("/proc/self/fd/{}", self.target.as_raw_fd());
        chmodat(CWD, path, Mode::from_raw_mode(mode), AtFlags::empty()).map_err(system)
    }
}

/// Creates a directory with the mode of the source, or uses an existing one. A mode that would keep the owner from filling
/// the directory is set only after its content is copied.
///
/// An existing link must not lead into `top`, the source of the copy, which would then never end.
fn make_directory(
    dir: &OwnedFd,
    name: &CString,
    source: &Facts,
    top: &Facts,
) -> Result<(OwnedFd, Option<u32>), FsError> {
    const OWNER_MAY_FILL: u32 = 0o700;
    let mode = source.mode() & 0o777;
    let later = match mkdirat(dir, name, Mode::from_raw_mode(mode | OWNER_MAY_FILL)) {
        Ok(()) => (mode & OWNER_MAY_FILL != OWNER_MAY_FILL)
            .then_some(|made: &Facts| made.mode() & (mode | !OWNER_MAY_FILL)),
        Err(Errno::EXIST) => {
            if Facts::of_name(dir.as_fd(), name)?.is_link() {
                let there = openat(dir, name, resolve::DIRECTORY, Mode::empty()).map_err(system)?;
                check_not_ancestor(top, there)?;
            }
            None
        }
        Err(errno) => return Err(system(errno)),
    };
    let made = openat(dir, name, resolve::DIRECTORY, Mode::empty()).map_err(system)?;
    let mode = match later {
        Some(later) => Some(later(&Facts::of_file(made.as_fd())?)),
        None => None,
    };
    Ok((made, mode))
}
