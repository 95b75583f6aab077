//! Appends to a file and truncates it, keeping its inode.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;

use exec_server_protocol::fs::FsWriteFileResponse;
use rustix::fs::{Mode, OFlags, fcntl_getfl, fcntl_setfl, ftruncate, openat};
use rustix::io::Errno;

use super::metadata::Facts;
use super::resolve::{self, Existing, Place, system};
use super::{in_place, path_locks, stage};
use crate::request::{FsError, Links, WriteOptions};

/// Appends bytes with `O_APPEND`, so that concurrent appends do not overwrite each other.
pub fn append(
    path: &Path,
    links: Links,
    data: &[u8],
    create: bool,
    options: &WriteOptions,
) -> Result<FsWriteFileResponse, FsError> {
    let mut place = resolve::target(path, links)?;
    let _turn = path_locks::take(&place);
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

/// Shortens a file, or extends it with zeros.
pub fn truncate(
    path: &Path,
    links: Links,
    size: u64,
    options: &WriteOptions,
) -> Result<FsWriteFileResponse, FsError> {
    let mut place = resolve::target(path, links)?;
    let _turn = path_locks::take(&place);
    place.look_again()?;
    let _file_turn = look_alone(&mut place)?;
    let file = checked(&place, path, options)?;
    ftruncate(file, size).map_err(system)?;
    finish(file, options)
}

/// Takes the inode lock, which covers other hard links, and repeats the stat.
fn look_alone(place: &mut Place) -> Result<Option<path_locks::PathLock>, FsError> {
    let Some(existing) = &mut place.existing else { return Ok(None) };
    let turn = path_locks::take_file(&existing.facts);
    if let Some(file) = &existing.file {
        existing.facts = Facts::of_file(file.as_fd())?;
    }
    Ok(Some(turn))
}

/// The existing regular file, if it meets the conditions and is open for writing.
fn checked<'a>(place: &'a Place, path: &Path, options: &WriteOptions) -> Result<&'a File, FsError> {
    let Some(existing) = &place.existing else { return Err(system(Errno::NOENT)) };
    if !existing.facts.is_regular() {
        return Err(FsError::NotAFile(path.to_owned(), existing.facts.nature()));
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
