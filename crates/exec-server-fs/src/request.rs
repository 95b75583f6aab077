//! Requests, replies and errors of the `fs/*` methods; the same on every platform.
//!
//! Every path-based `fs/*` method is one [`FsRequest`]. This process executes it, or a sandboxed file worker does.
//! [`perform`] may block; [`answer_from_cache`] never blocks and often has no answer.

use std::fmt;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use exec_server_protocol::fs::{
    Durability, FsCanonicalizeResponse, FsEditResponse, FsGetMetadataResponse,
    FsReadDirectoryResponse, FsReadLinkResponse, FsWalkOptions, FsWalkResponse,
    FsWriteFileResponse,
};
use exec_server_protocol::limits;
use serde::{Deserialize, Serialize};

use crate::byte_fields;

pub use crate::platform::{
    OpenFile, PathIdentity, StagedFile, answer_from_cache, decode_cursor, identity_from_cache,
    identity_of, perform,
};

/// One file-system operation. All paths are absolute and normalized.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum FsRequest {
    /// Opens a regular file for reading.
    Read {
        /// The file.
        #[serde(with = "byte_fields::path")]
        path: PathBuf,
        /// Whether symbolic links are followed.
        links: Links,
    },
    /// Stages new content for a regular file, which is unchanged until the new content is published.
    Replace {
        /// The file.
        #[serde(with = "byte_fields::path")]
        path: PathBuf,
        /// Preconditions, durability and attributes.
        options: WriteOptions,
    },
    /// Replaces the content of a file, or creates it.
    Write {
        /// The file.
        #[serde(with = "byte_fields::path")]
        path: PathBuf,
        /// Whether symbolic links are followed.
        links: Links,
        /// The complete new content.
        #[serde(with = "byte_fields::bytes")]
        data: Vec<u8>,
        /// Preconditions, durability and attributes.
        options: WriteOptions,
    },
    /// Appends bytes to a file.
    Append {
        /// The file.
        #[serde(with = "byte_fields::path")]
        path: PathBuf,
        /// Whether symbolic links are followed.
        links: Links,
        /// The bytes to append.
        #[serde(with = "byte_fields::bytes")]
        data: Vec<u8>,
        /// Whether a missing file is created.
        create: bool,
        /// Preconditions, durability and attributes.
        options: WriteOptions,
    },
    /// Changes the length of a file.
    Truncate {
        /// The file.
        #[serde(with = "byte_fields::path")]
        path: PathBuf,
        /// Whether symbolic links are followed.
        links: Links,
        /// New length in bytes; a longer file is filled with zeros.
        size: u64,
        /// Preconditions, durability and attributes.
        options: WriteOptions,
    },
    /// Replaces pieces of text in a file.
    Edit {
        /// The file.
        #[serde(with = "byte_fields::path")]
        path: PathBuf,
        /// Whether symbolic links are followed.
        links: Links,
        /// Applied in this order, all of them or none.
        edits: Vec<TextEdit>,
        /// Preconditions and durability.
        options: WriteOptions,
        /// Whether the file stays unchanged.
        dry_run: bool,
    },
    /// Creates a directory.
    CreateDirectory {
        /// The directory.
        #[serde(with = "byte_fields::path")]
        path: PathBuf,
        /// Creates missing parents and accepts an existing directory.
        recursive: bool,
        /// Whether symbolic links are followed.
        links: Links,
    },
    /// Returns the metadata of a path.
    Metadata {
        /// The path.
        #[serde(with = "byte_fields::path")]
        path: PathBuf,
        /// Whether symbolic links are followed.
        links: Links,
        /// Amount of metadata in the answer.
        detail: Detail,
    },
    /// Resolves all symbolic links in a path.
    Canonicalize {
        /// The path.
        #[serde(with = "byte_fields::path")]
        path: PathBuf,
    },
    /// Lists a directory.
    List {
        /// The directory.
        #[serde(with = "byte_fields::path")]
        path: PathBuf,
        /// `None` lists all entries, in the order of the file system.
        page: Option<Page>,
        /// Amount of metadata in the answer.
        detail: Detail,
    },
    /// Lists a directory tree.
    Walk {
        /// Root of the tree.
        #[serde(with = "byte_fields::path")]
        path: PathBuf,
        /// Limits on depth, directories and entries.
        options: FsWalkOptions,
    },
    /// Removes a file or a directory tree.
    Remove {
        /// A symbolic link is removed itself, not its target.
        #[serde(with = "byte_fields::path")]
        path: PathBuf,
        /// Whether a directory is removed with its content.
        recursive: bool,
        /// Whether a missing path counts as removed.
        force: bool,
        /// Whether symbolic links in the parent path are followed; the last component never is.
        links: Links,
    },
    /// Copies a file or a directory tree.
    Copy {
        /// File, symbolic link or directory to copy.
        #[serde(with = "byte_fields::path")]
        source: PathBuf,
        /// Path of the copy.
        #[serde(with = "byte_fields::path")]
        destination: PathBuf,
        /// Whether a directory is copied with its content.
        recursive: bool,
    },
    /// Renames a file or a directory.
    Rename {
        /// Current path.
        #[serde(with = "byte_fields::path")]
        source: PathBuf,
        /// New path.
        #[serde(with = "byte_fields::path")]
        destination: PathBuf,
        /// Whether an existing destination is an error.
        no_replace: bool,
    },
    /// Creates a symbolic link.
    Symlink {
        /// The link.
        #[serde(with = "byte_fields::path")]
        path: PathBuf,
        /// Text of the link, which need not exist as a path.
        #[serde(with = "byte_fields::bytes")]
        target: Vec<u8>,
        /// Whether an existing link is replaced.
        replace: bool,
    },
    /// Reads a symbolic link.
    ReadLink {
        /// The link.
        #[serde(with = "byte_fields::path")]
        path: PathBuf,
    },
    /// Sets the permission bits, and optionally the modification time.
    SetPermissions {
        /// The file or directory.
        #[serde(with = "byte_fields::path")]
        path: PathBuf,
        /// Permission bits.
        mode: u32,
        /// New modification time in Unix milliseconds; `None` leaves it unchanged.
        modified_at_ms: Option<i64>,
        /// Whether symbolic links are followed.
        links: Links,
    },
}

impl FsRequest {
    /// Whether the request only reads.
    pub fn is_lookup(&self) -> bool {
        matches!(
            self,
            Self::Read { .. }
                | Self::Metadata { .. }
                | Self::Canonicalize { .. }
                | Self::List { .. }
                | Self::Walk { .. }
                | Self::ReadLink { .. }
        )
    }

    /// The paths that the request changes; empty for a lookup.
    pub fn changes(&self) -> Vec<&Path> {
        match self {
            Self::Rename { source, destination, .. } => vec![source, destination],
            Self::Copy { destination, .. } => vec![destination],
            Self::Replace { path, .. }
            | Self::Write { path, .. }
            | Self::Append { path, .. }
            | Self::Truncate { path, .. }
            | Self::Edit { path, .. }
            | Self::CreateDirectory { path, .. }
            | Self::Remove { path, .. }
            | Self::Symlink { path, .. }
            | Self::SetPermissions { path, .. } => vec![path],
            Self::Read { .. }
            | Self::Metadata { .. }
            | Self::Canonicalize { .. }
            | Self::List { .. }
            | Self::Walk { .. }
            | Self::ReadLink { .. } => Vec::new(),
        }
    }
}

/// Result of an [`FsRequest`].
#[derive(Debug)]
pub enum FsReply {
    /// Success without a result.
    Done,
    /// An open file to read from.
    Opened(OpenFile),
    /// Staged content to fill and publish.
    Staged(StagedFile),
    /// The content was written; the second field is to be dropped after the reply is sent.
    Written(FsWriteFileResponse, Leftovers),
    /// Result of `fs/edit`; the second field is to be dropped after the reply is sent.
    Edited(FsEditResponse, Leftovers),
    /// Result of `fs/getMetadata`.
    Metadata(FsGetMetadataResponse),
    /// Result of `fs/canonicalize`.
    Canonical(FsCanonicalizeResponse),
    /// Result of `fs/readDirectory`.
    Listing(FsReadDirectoryResponse),
    /// Result of `fs/walk`.
    Walked(FsWalkResponse),
    /// Result of `fs/readLink`.
    Link(FsReadLinkResponse),
    /// A result that a file worker has already serialized as JSON.
    Text(String),
}

impl FsReply {
    /// Writes the JSON result for the client; open and staged files have none and give an error.
    pub fn write_to(&self, mut writer: impl io::Write) -> io::Result<()> {
        match self {
            Self::Opened(_) | Self::Staged(_) => {
                return Err(io::ErrorKind::InvalidInput.into());
            }
            Self::Done => return writer.write_all(b"{}"),
            Self::Text(text) => return writer.write_all(text.as_bytes()),
            Self::Written(response, _) => serde_json::to_writer(writer, response),
            Self::Edited(response, _) => serde_json::to_writer(writer, response),
            Self::Metadata(response) => serde_json::to_writer(writer, response),
            Self::Canonical(response) => serde_json::to_writer(writer, response),
            Self::Listing(response) => serde_json::to_writer(writer, response),
            Self::Walked(response) => serde_json::to_writer(writer, response),
            Self::Link(response) => serde_json::to_writer(writer, response),
        }
        .map_err(io::Error::from)
    }
}

/// Resources to drop after the reply to a write is sent: closing the last reference to a replaced file
/// can block on the disk.
#[derive(Debug, Default)]
pub struct Leftovers {
    pub(crate) _old: Option<File>,
    pub(crate) _data: Vec<u8>,
}

/// Treatment of symbolic links in a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Links {
    /// Resolve them.
    Follow,
    /// Reject a path that contains one.
    Refuse,
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

/// One replacement of `fs/edit`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TextEdit {
    /// The text to replace; not empty.
    pub old: String,
    /// The new text.
    pub new: String,
    /// Whether every occurrence is replaced; otherwise there must be exactly one.
    pub replace_all: bool,
}

/// Why an edit does not fit the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EditRefusal {
    /// The number of the edit, from 0.
    pub index: u64,
    /// How often its text occurs.
    pub occurrences: u64,
    /// The lines of the first occurrences, from 1.
    pub lines: Vec<u64>,
    /// The most similar place, if the text does not occur.
    pub nearest: Option<Nearest>,
}

/// The place of a file that is most similar to a text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Nearest {
    /// Its first line, from 1.
    pub line: u64,
    /// Its text, shortened.
    pub text: String,
}

impl fmt::Display for EditRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = self.index + 1;
        match (self.occurrences, &self.nearest) {
            (0, Some(nearest)) => write!(
                f,
                "the text of edit {number} does not occur in the file; the most similar text is at line {}",
                nearest.line
            ),
            (0, None) => write!(
                f,
                "the text of edit {number} does not occur in the file, and nothing in it is similar"
            ),
            (count, _) => {
                let lines: Vec<String> = self.lines.iter().map(u64::to_string).collect();
                write!(
                    f,
                    "the text of edit {number} occurs {count} times (lines {}); add lines around it, or set `replaceAll`",
                    lines.join(", ")
                )
            }
        }
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

/// Kind of an entry that is not a regular file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Nature {
    /// A directory.
    Directory,
    /// A pipe, a socket or a device.
    Special,
}

impl Nature {
    /// The errno that describes this kind best.
    pub fn errno_name(self) -> &'static str {
        match self {
            Self::Directory => "EISDIR",
            Self::Special => "EINVAL",
        }
    }
}

/// Why a request about files failed.
#[derive(Debug, thiserror::Error)]
pub enum FsError {
    /// A system call failed.
    #[error("{0}")]
    System(#[from] io::Error),
    /// The operation needs a regular file.
    #[error("path `{}` is not a file", .0.display())]
    NotAFile(PathBuf, Nature),
    /// A symbolic link in a path that must not contain one.
    #[error("path contains a symbolic link")]
    IsLink,
    /// The root directory has no name in a parent.
    #[error("path must name an entry")]
    NoName,
    /// The root directory always exists.
    #[error("directory already exists")]
    DirectoryExists,
    /// Recursive removal is supported with [`Links::Follow`] only.
    #[error("recursive no-follow removal is unsupported")]
    RecursiveWithoutLinks,
    /// A limit of zero allows no result.
    #[error("filesystem walk limits must be greater than zero")]
    WalkLimitsZero,
    /// A limit is above the maximum of the protocol.
    #[error(
        "filesystem walk limits exceed maximums: depth={}, directories={}, entries={}",
        limits::MAX_WALK_DEPTH,
        limits::MAX_WALK_DIRECTORIES,
        limits::MAX_WALK_ENTRIES
    )]
    WalkLimitsExceeded,
    /// More entries than one reply may contain.
    #[error(
        "fs/readDirectory found {0} entries or more; an answer holds at most {1}: ask for pages with `limit`"
    )]
    TooManyEntries(usize, usize),
    /// Copying a directory requires `recursive`.
    #[error("the source of fs/copy is a directory, which needs `recursive: true`")]
    DirectoryNeedsRecursive,
    /// Copying a directory into itself would never end.
    #[error("fs/copy cannot copy a directory to itself or into itself")]
    IntoItself,
    /// Source and destination are the same inode.
    #[error("the source and the destination of fs/copy are the same file")]
    SameFile,
    /// Pipes, sockets and devices are not copied.
    #[error("fs/copy copies files, directories and links, and `{}` is none of them", .0.display())]
    NotCopyable(PathBuf),
    /// The existing file has another version tag, or does not exist.
    #[error("the file is not the version that `ifMatch` names")]
    VersionMismatch,
    /// An edit does not fit the file; nothing was changed.
    #[error("{0}; the file is unchanged")]
    Edit(Box<EditRefusal>),
    /// Edits apply to text only.
    #[error("path `{}` is a binary file: it contains NUL bytes; use fs/writeFile", .0.display())]
    Binary(PathBuf),
    /// A pattern, a glob or a file type of a search is invalid.
    #[error("{0}")]
    Pattern(String),
    /// The file is, or would become, larger than the limit of `fs/edit`.
    #[error(
        "fs/edit handles files of up to {} bytes; use fs/open and fs/writeBlock",
        limits::MAX_EDITED_FILE_BYTES
    )]
    TooLargeToEdit,
    /// An operation on a tree stopped before its end.
    #[error("{did} {done} entries, then failed at `{}`: {source}", .path.display())]
    Incomplete {
        /// The operation in the past tense, for example `removed`.
        did: &'static str,
        /// Number of entries that were processed.
        done: u64,
        /// The entry that failed.
        path: PathBuf,
        /// The cause.
        source: Box<FsError>,
    },
    /// A write stopped after some bytes, which stay in the file.
    #[error("only {done} of {wanted} bytes were written: {source}")]
    ShortWrite {
        /// Bytes written.
        done: u64,
        /// Bytes requested.
        wanted: u64,
        /// The cause.
        source: io::Error,
    },
}

impl FsError {
    /// `EBADF`: a handle was used for a direction that it was not opened for.
    pub fn bad_descriptor() -> Self {
        crate::platform::bad_descriptor()
    }
}
