//! Lists a directory: all entries in file system order, or one page in byte order of the names.
//!
//! Files and directories need no system call of their own; only links and details need one each.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use exec_server_protocol::base64;
use exec_server_protocol::fs::{FsDirectoryEntry, FsGetMetadataResponse, FsReadDirectoryResponse};
use exec_server_protocol::limits::{MAX_DETAILED_ENTRIES, MAX_DIRECTORY_ENTRIES};
use exec_server_protocol::path_uri::PathUri;
use rustix::fs::{AtFlags, FileType};

use super::entries::{self, EntryReader};
use super::first_names::{FirstNames, Name};
use super::metadata;
use crate::request::{Detail, FsError, Page};

/// Lists the directory at `path`, or a page of it.
pub fn list(
    path: &Path,
    page: Option<&Page>,
    detail: Detail,
) -> Result<FsReadDirectoryResponse, FsError> {
    let uri = PathUri::from_posix(path.as_os_str().as_bytes());
    let directory = Directory { fd: entries::open(path)?, uri, detail };
    match page {
        Some(page) => directory.page(page),
        None => Ok(FsReadDirectoryResponse { entries: directory.everything()?, next_cursor: None }),
    }
}

/// Encodes the last name of a page as a cursor.
pub fn encode_cursor(name: &[u8]) -> String {
    base64::encode(name)
}

/// Decodes a cursor of `encode_cursor`; `None` if it is invalid.
pub fn decode_cursor(cursor: &str) -> Option<Vec<u8>> {
    base64::decode(cursor).ok().filter(|name| !name.is_empty())
}

struct Directory {
    fd: OwnedFd,
    uri: PathUri,
    detail: Detail,
}

impl Directory {
    fn everything(&self) -> Result<Vec<FsDirectoryEntry>, FsError> {
        match self.detail {
            Detail::Basic => {
                let mut entries = Vec::new();
                self.read(MAX_DIRECTORY_ENTRIES, |name, reported| {
                    entries.extend(self.entry(name, reported));
                })?;
                Ok(entries)
            }
            // Details cost system calls, so too many names are rejected before any details are read.
            Detail::Full => {
                let mut names = Vec::new();
                self.read(MAX_DETAILED_ENTRIES, |name, reported| {
                    names.push(Name { text: name.to_owned(), reported });
                })?;
                Ok(self.entries(&names))
            }
        }
    }

    fn page(&self, page: &Page) -> Result<FsReadDirectoryResponse, FsError> {
        let limit = page.limit.max(1);
        let after = page.after.as_deref().unwrap_or_default();
        // One name beyond the page shows whether there is a next page.
        let mut names = FirstNames::new(limit + 1);
        self.read(usize::MAX, |name, reported| {
            if name.to_bytes() > after {
                names.add(name, reported);
            }
        })?;
        let mut names = names.into_sorted();
        let has_more = names.len() > limit;
        names.truncate(limit);
        let last = names.last().filter(|_| has_more);
        let next_cursor = last.map(|name| encode_cursor(name.text.to_bytes()));
        Ok(FsReadDirectoryResponse { entries: self.entries(&names), next_cursor })
    }

    fn read(&self, limit: usize, mut visit: impl FnMut(&CStr, FileType)) -> Result<(), FsError> {
        let mut found = 0;
        EntryReader::new().read(self.fd.as_fd(), |name, reported| {
            found += 1;
            if found > limit {
                return Err(FsError::TooManyEntries(found, limit));
            }
            visit(name, reported);
            Ok(())
        })
    }

    fn entries(&self, names: &[Name]) -> Vec<FsDirectoryEntry> {
        names.iter().filter_map(|name| self.entry(&name.text, name.reported)).collect()
    }

    /// The entry of a name; `None` if it was removed since.
    fn entry(&self, name: &CStr, reported: FileType) -> Option<FsDirectoryEntry> {
        let kind = unless_gone(entries::kind(self.fd.as_fd(), name, reported))?;
        let is_symlink = kind == Some(FileType::Symlink);
        let target = if is_symlink { self.target(name) } else { kind };
        let (file_name, is_lossy) = match name.to_str() {
            Ok(name) => (name.to_owned(), false),
            Err(_) => (name.to_string_lossy().into_owned(), true),
        };
        let wants_uri = is_lossy || self.detail == Detail::Full;
        Some(FsDirectoryEntry {
            file_name,
            is_directory: target == Some(FileType::Directory),
            is_file: target == Some(FileType::RegularFile),
            is_symlink,
            uri: wants_uri.then(|| self.uri.child(name.to_bytes())),
            metadata: self.metadata(name)?,
        })
    }

    /// The type of a link's target, if it exists.
    fn target(&self, name: &CStr) -> Option<FileType> {
        let stat = rustix::fs::statat(&self.fd, name, AtFlags::empty()).ok()?;
        Some(entries::kind_in(&stat))
    }

    fn metadata(&self, name: &CStr) -> Option<Option<Box<FsGetMetadataResponse>>> {
        match self.detail {
            Detail::Basic => Some(None),
            Detail::Full => unless_gone(metadata::of_entry(self.fd.as_fd(), name).map(Box::new)),
        }
    }
}

/// `None` for a name that is gone, `Some(None)` for one that cannot be inspected.
fn unless_gone<T>(outcome: io::Result<T>) -> Option<Option<T>> {
    match outcome {
        Ok(known) => Some(Some(known)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(_) => Some(None),
    }
}

#[cfg(test)]
mod tests;
