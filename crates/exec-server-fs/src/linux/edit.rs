//! Replaces pieces of text in a file: all edits are applied and published at once, or the file stays unchanged.
//!
//! The content is read without a lock. The publication requires the version that was read, so a change in between
//! repeats the edit on the new content, or fails if the request names a version.

mod nearest;
mod replace;

use std::path::Path;

use exec_server_protocol::fs::{FsAppliedEdit, FsEditResponse, FsWriteFileResponse};
use exec_server_protocol::limits::MAX_EDITED_FILE_BYTES;

use super::open::{self, OpenFile};
use super::stage;
use crate::request::{Blocking, FsError, Leftovers, Links, TextEdit, WriteOptions};

/// Concurrent edits of one file are rare and short; more conflicts in a row are reported.
const MAX_TRIES: usize = 20;

/// Applies the edits to a file; with `dry_run` only to a copy of its content.
pub fn edit(
    path: &Path,
    links: Links,
    edits: &[TextEdit],
    options: &WriteOptions,
    dry_run: bool,
) -> Result<(FsEditResponse, Leftovers), FsError> {
    for _ in 0..MAX_TRIES {
        let file = open::open(path, links)?;
        let version = file.version_tag()?;
        if options.if_match.as_ref().is_some_and(|wanted| *wanted != version) {
            return Err(FsError::VersionMismatch);
        }
        let content = read(&file, path)?;
        if file.version_tag()? != version {
            continue;
        }
        let (content, applied) = replace::apply(content, edits)?;
        if dry_run {
            let size = content.len() as u64;
            let response = FsEditResponse { edits: applied, size, ..FsEditResponse::default() };
            return Ok((response, Leftovers::default()));
        }
        match put(path, links, &content, version, options) {
            Err(FsError::VersionMismatch) if options.if_match.is_none() => {}
            Err(error) => return Err(error),
            Ok((written, leftovers)) => return Ok((response(written, applied), leftovers)),
        }
    }
    Err(FsError::VersionMismatch)
}

fn read(file: &OpenFile, path: &Path) -> Result<Vec<u8>, FsError> {
    let mut content = Vec::with_capacity(usize::try_from(file.size()).unwrap_or(0).min(CAPACITY));
    let limit = MAX_EDITED_FILE_BYTES + 1;
    let size = file.read_pieces(0, limit, Blocking::Disk, |piece| content.extend_from_slice(piece));
    if size? > MAX_EDITED_FILE_BYTES {
        return Err(FsError::TooLargeToEdit);
    }
    if memchr::memchr(0, &content).is_some() {
        return Err(FsError::Binary(path.to_owned()));
    }
    Ok(content)
}

/// A file larger than the limit fails, so its size is not allocated first.
const CAPACITY: usize = MAX_EDITED_FILE_BYTES as usize;

fn put(
    path: &Path,
    links: Links,
    content: &[u8],
    version: String,
    options: &WriteOptions,
) -> Result<(FsWriteFileResponse, Leftovers), FsError> {
    let options = WriteOptions { if_match: Some(version), detailed: true, ..options.clone() };
    let staged = stage::begin(path, links, options)?;
    staged.write_at(content, 0)?;
    staged.publish()
}

fn response(written: FsWriteFileResponse, edits: Vec<FsAppliedEdit>) -> FsEditResponse {
    FsEditResponse {
        edits,
        size: written.size.unwrap_or_default(),
        version_tag: written.version_tag,
        in_place: written.in_place,
    }
}
