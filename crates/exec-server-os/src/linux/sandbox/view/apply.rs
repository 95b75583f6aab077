//! Does what was planned, one path at a time, in the new root.

use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{FileType, fstat};
use rustix::io::Errno;

use super::blanks::Blanks;
use super::mounts::{self, Below, FROZEN, HERE, NO_PROGRAMS, TAME};
use super::new_root::NewRoot;
use super::plan::{Action, Cover, Target};
use super::walk;
use super::wishes::{Wish, Wishes};
use crate::linux::sandbox::step::{Step, StepError};

/// For a cover with names of mount points and links in it.
const PASSAGE_BYTES: u64 = 1 << 20;
const PASSAGE_NAMES: u64 = 1 << 16;

pub fn apply(
    root: &mut NewRoot,
    blanks: &Blanks,
    wishes: &Wishes,
    path: &Path,
    action: Action,
) -> Result<(), StepError> {
    match action {
        Action::Pin => pin(root, path, FileType::Directory).step("pin a directory"),
        Action::PinLink => pin(root, path, FileType::Symlink).step("pin a link"),
        Action::ShowLink => {
            let link = wishes.links.get(path).expect("links are planned from wishes");
            root.make_link(path, &link.text).step("show a link")
        }
        Action::Freeze => freeze(root, path).step("make a place read-only"),
        Action::Open { writable, target } => {
            let wish = wishes.places.get(path).expect("places are planned from wishes");
            open(root, path, wish, writable, target).step("open a place")
        }
        Action::Hide(cover) => hide(root, blanks, path, cover),
    }
}

fn pin(root: &NewRoot, path: &Path, kind: FileType) -> rustix::io::Result<()> {
    let target = root.find(path, HERE)?;
    if file_type(&target)? != kind {
        return Err(Errno::STALE);
    }
    mounts::attach(&mounts::copy(&target)?, &target)
}

fn freeze(root: &NewRoot, path: &Path) -> std::io::Result<()> {
    let target = root.find(path, HERE)?;
    if file_type(&target)? == FileType::Symlink {
        return Err(Errno::STALE.into());
    }
    let copy = mounts::copy(&target)?;
    mounts::restrict(&copy, FROZEN, Below::Included)?;
    Ok(mounts::attach(&copy, &target)?)
}

fn open(
    root: &NewRoot,
    path: &Path,
    wish: &Wish,
    writable: bool,
    target: Target,
) -> std::io::Result<()> {
    let source = wish.source.as_ref().ok_or(Errno::INVAL)?;
    let copy = mounts::copy(&source.fd)?;
    mounts::restrict(&copy, if writable { TAME } else { FROZEN }, Below::Included)?;
    let target = match target {
        Target::Made if source.is_directory => root.make_directory(path)?,
        Target::Made => root.make_file(path)?,
        Target::Same => {
            let target = root.find(path, HERE)?;
            // Somebody has put another file there since it was looked up.
            if walk::identity(&target)? != source.identity {
                return Err(Errno::STALE.into());
            }
            target
        }
    };
    Ok(mounts::attach(&copy, target)?)
}

fn hide(root: &mut NewRoot, blanks: &Blanks, path: &Path, cover: Cover) -> Result<(), StepError> {
    const STEP: &str = "hide a place";
    let target = match root.find(path, HERE) {
        // It was removed since it was looked up, or is not in our own `/dev` or `/proc`.
        Err(Errno::NOENT | Errno::NOTDIR) => return Ok(()),
        found => found.step(STEP)?,
    };
    if file_type(&target).step(STEP)? != FileType::Directory {
        let copy = mounts::copy(&blanks.file).step(STEP)?;
        return mounts::attach(&copy, &target).step(STEP);
    }
    let mode = match cover {
        Cover::Closed => return cover_with(mounts::copy(&blanks.closed), &target, STEP),
        Cover::Empty => return cover_with(mounts::copy(&blanks.empty), &target, STEP),
        Cover::Passage => "0111",
        Cover::EmptyPassage => "0555",
    };
    let passage = mounts::memory(mode, PASSAGE_BYTES, PASSAGE_NAMES, NO_PROGRAMS).step(STEP)?;
    mounts::attach(&passage, &target).step(STEP)?;
    root.add_scaffold(passage).step(STEP)
}

fn cover_with(
    cover: rustix::io::Result<OwnedFd>,
    target: &OwnedFd,
    step: &'static str,
) -> Result<(), StepError> {
    mounts::attach(&cover.step(step)?, target).step(step)
}

fn file_type(fd: &OwnedFd) -> rustix::io::Result<FileType> {
    Ok(FileType::from_raw_mode(fstat(fd)?.st_mode))
}
