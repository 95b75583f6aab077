//! Carries out the planned actions in the new root, one path at a time.

use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{FileType, fstat};
use rustix::io::Errno;

use super::masks::Masks;
use super::mounts::{self, Below, FROZEN, HERE, NO_PROGRAMS, TAME};
use super::new_root::NewRoot;
use super::plan::{Action, Mask, Target};
use super::resolved_rules::{ResolvedRules, Rule};
use super::walk;
use crate::linux::step::{Step, StepError};

/// The size of a mask that contains mount points and links.
const PASSAGE_BYTES: u64 = 1 << 20;
const PASSAGE_NAMES: u64 = 1 << 16;

pub fn apply(
    root: &mut NewRoot,
    masks: &Masks,
    rules: &ResolvedRules,
    path: &Path,
    action: Action,
) -> Result<(), StepError> {
    match action {
        Action::Pin => pin(root, path, FileType::Directory).step("pin a directory"),
        Action::PinLink => pin(root, path, FileType::Symlink).step("pin a link"),
        Action::ShowLink => {
            let link = rules.links.get(path).expect("links are planned from rules");
            root.make_link(path, &link.text).step("show a link")
        }
        Action::Freeze => freeze(root, path).step("make a place read-only"),
        Action::Open { writable, target } => {
            let rule = rules.places.get(path).expect("places are planned from rules");
            open(root, path, rule, writable, target).step("open a place")
        }
        Action::Hide(cover) => hide(root, masks, path, cover),
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
    rule: &Rule,
    writable: bool,
    target: Target,
) -> std::io::Result<()> {
    let source = rule.source.as_ref().ok_or(Errno::INVAL)?;
    let copy = mounts::copy(&source.fd)?;
    mounts::restrict(&copy, if writable { TAME } else { FROZEN }, Below::Included)?;
    let target = match target {
        Target::Made if source.is_directory => root.make_directory(path)?,
        Target::Made => root.make_file(path)?,
        Target::Same => {
            let target = root.find(path, HERE)?;
            // The file was replaced since the path was resolved.
            if walk::identity(&target)? != source.identity {
                return Err(Errno::STALE.into());
            }
            target
        }
    };
    Ok(mounts::attach(&copy, target)?)
}

fn hide(root: &mut NewRoot, masks: &Masks, path: &Path, cover: Mask) -> Result<(), StepError> {
    const STEP: &str = "hide a place";
    let target = match root.find(path, HERE) {
        // The path was removed since it was resolved, or is not in the private `/dev` or `/proc`.
        Err(Errno::NOENT | Errno::NOTDIR) => return Ok(()),
        found => found.step(STEP)?,
    };
    if file_type(&target).step(STEP)? != FileType::Directory {
        let copy = mounts::copy(&masks.file).step(STEP)?;
        return mounts::attach(&copy, &target).step(STEP);
    }
    let mode = match cover {
        Mask::Closed => return cover_with(mounts::copy(&masks.closed), &target, STEP),
        Mask::Empty => return cover_with(mounts::copy(&masks.empty), &target, STEP),
        Mask::Traversable => "0111",
        Mask::EmptyPassage => "0555",
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
