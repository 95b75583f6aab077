//! Changes to the content of a file that stays the same file: more at its end, another length.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;

use exec_server_protocol::fs::FsWriteFileResponse;
use rustix::fs::{Mode, OFlags, fcntl_getfl, fcntl_setfl, ftruncate, openat};
use rustix::io::Errno;

use super::metadata::Facts;
use super::resolve::{self, Existing, Place, system};
use super::{in_place, stage, turns};
use crate::files::{FsError, Links, WriteOptions};

/// Adds bytes behind the end; other writers who do the same neither lose nor mix anything.
pub fn append(
    path: &Path,
    links: Links,
    data: &[u8],
    create: bool,
    options: &WriteOptions,
) -> Result<FsWriteFileResponse, FsError> {
    let mut place = resolve::target(path, links)?;
    let _turn = turns::take(&place);
    place.look_again()?;
    if place.existing.is_none() && create && options.if_match.is_none() {
        place.existing = Some(create_empty(&place)?);
    }
    let _file_turn = look_alone(&mut place)?;
    let file = checked(&place, path, options)?;
    fcntl_setfl(file, fcntl_getfl(file).map_err(system)? | OFlags::APPEND).map_err(system)?;
    in_place::write_all(file, data)?;
    finish(file, options)
}

/// Cuts a file off, or makes it longer with zeros.
pub fn truncate(
    path: &Path,
    links: Links,
    size: u64,
    options: &WriteOptions,
) -> Result<FsWriteFileResponse, FsError> {
    let mut place = resolve::target(path, links)?;
    let _turn = turns::take(&place);
    place.look_again()?;
    let _file_turn = look_alone(&mut place)?;
    let file = checked(&place, path, options)?;
    ftruncate(file, size).map_err(system)?;
    finish(file, options)
}

/// Waits until nobody else changes the file under another of its names, and looks at it again.
fn look_alone(place: &mut Place) -> Result<Option<turns::Turn>, FsError> {
    let Some(existing) = &mut place.existing else { return Ok(None) };
    let turn = turns::take_file(&existing.facts);
    if let Some(file) = &existing.file {
        existing.facts = Facts::of_file(file.as_fd())?;
    }
    Ok(Some(turn))
}

/// The file that is there, if it is one and may be changed.
fn checked<'a>(place: &'a Place, path: &Path, options: &WriteOptions) -> Result<&'a File, FsError> {
    let Some(existing) = &place.existing else { return Err(system(Errno::NOENT)) };
    if !existing.facts.is_regular() {
        return Err(FsError::NotAFile(path.to_owned()));
    }
    stage::check(Some(&existing.facts), options)?;
    existing.file.as_ref().ok_or_else(|| system(Errno::TXTBSY))
}

fn create_empty(place: &Place) -> Result<Existing, FsError> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let flags = flags | OFlags::NONBLOCK;
    let fd = openat(&place.dir, &place.name, flags, Mode::from_raw_mode(0o666)).map_err(system)?;
    let facts = Facts::of_file(fd.as_fd())?;
    Ok(Existing { file: Some(fd.into()), facts, is_named: true })
}

fn finish(file: &File, options: &WriteOptions) -> Result<FsWriteFileResponse, FsError> {
    stage::sync(file, options.durability)?;
    let facts = Facts::of_file(file.as_fd())?;
    let version_tag = options.detailed.then(|| facts.version_tag());
    let size = options.detailed.then(|| facts.size());
    Ok(FsWriteFileResponse { in_place: None, size, version_tag })
}
