//! Options of file operations, and their values in params.

use exec_server_protocol::fs::Durability;
use exec_server_protocol::limits::{MAX_DETAILED_ENTRIES, MAX_DIRECTORY_ENTRIES};
use serde::{Deserialize, Serialize};

use crate::error::ParamsError;
use crate::platform::decode_cursor;

/// Treatment of symbolic links in a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Links {
    /// Resolve them.
    Follow,
    /// Reject a path that contains one.
    Refuse,
}

impl Links {
    /// Links are followed unless the params say otherwise.
    pub(crate) fn from_param(follow: Option<bool>) -> Self {
        if follow.unwrap_or(true) { Self::Follow } else { Self::Refuse }
    }
}

/// Whether a read may block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Blocking {
    /// May block on the disk.
    Disk,
    /// Returns only data that is in the page cache, else `EAGAIN`.
    None,
}

/// Amount of metadata in the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Detail {
    /// The fields of the base protocol.
    Basic,
    /// Also mode, owner, inode, version tag and link target.
    Full,
}

impl Detail {
    pub(crate) fn from_param(detailed: Option<bool>) -> Self {
        if detailed == Some(true) { Self::Full } else { Self::Basic }
    }
}

/// Preconditions, durability and attributes of a write.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WriteOptions {
    /// What is synced to disk before the reply.
    pub durability: Durability,
    /// Whether an existing file is an error.
    pub if_absent: bool,
    /// Version tag that the existing file must have.
    pub if_match: Option<String>,
    /// Whether the reply contains size and version tag.
    pub detailed: bool,
    /// Mode and modification time to set.
    pub attributes: FileAttributes,
}

impl WriteOptions {
    /// The options that every change of a file has.
    pub(crate) fn new(
        durability: Option<Durability>,
        if_match: Option<String>,
        detailed: bool,
    ) -> Self {
        let durability = durability.unwrap_or_default();
        Self { durability, if_match, detailed, ..Self::default() }
    }
}

/// Attributes to set on a file with new content.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileAttributes {
    /// Permission bits for a new or an existing file.
    pub mode: Option<u32>,
    /// Permission bits for a file that did not exist before.
    pub new_mode: Option<u32>,
    /// Modification time in Unix milliseconds.
    pub modified_at_ms: Option<i64>,
}

impl FileAttributes {
    /// Rejects modes with more than permission bits.
    pub(crate) fn new(
        mode: Option<u32>,
        new_mode: Option<u32>,
        modified_at_ms: Option<i64>,
    ) -> Result<Self, ParamsError> {
        [mode, new_mode].into_iter().flatten().try_for_each(check_mode)?;
        Ok(Self { mode, new_mode, modified_at_ms })
    }
}

/// Rejects a mode with more than permission bits.
pub(crate) fn check_mode(mode: u32) -> Result<(), ParamsError> {
    match mode {
        0..=0o7777 => Ok(()),
        _ => Err(ParamsError::Invalid(format!("mode {mode:#o} has more than permission bits"))),
    }
}

/// One page of a directory listing, sorted by the bytes of the names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Page {
    /// Maximum number of names.
    pub limit: usize,
    /// The page starts after this name.
    pub after: Option<Vec<u8>>,
}

impl Page {
    /// `None` lists everything; a page has at most as many names as the reply may have.
    pub(crate) fn from_params(
        limit: Option<u64>,
        cursor: Option<&str>,
        detail: Detail,
    ) -> Result<Option<Self>, ParamsError> {
        let wrong = |reason: &str| ParamsError::Invalid(reason.to_owned());
        let after = match cursor {
            None => None,
            Some(cursor) => {
                let name = decode_cursor(cursor);
                Some(name.ok_or_else(|| wrong("cursor was not issued by this server"))?)
            }
        };
        let most = match detail {
            Detail::Basic => MAX_DIRECTORY_ENTRIES,
            Detail::Full => MAX_DETAILED_ENTRIES,
        };
        match (limit, after) {
            (None, None) => Ok(None),
            (Some(0), _) => Err(wrong("limit must not be zero")),
            (limit, after) => {
                let limit = limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(most);
                Ok(Some(Self { limit: limit.min(most), after }))
            }
        }
    }
}
