//! What can be asked of a file system and what comes back; the same on every platform.
//!
//! Every path-based `fs/*` method is one [`FsRequest`], whoever carries it out: this process, or a helper that the
//! kernel confines to a policy. [`perform`] may block; [`answer_from_cache`] never does, and often has no answer.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use exec_server_protocol::fs::{
    Durability, FsCanonicalizeResponse, FsGetMetadataResponse, FsReadDirectoryResponse,
    FsReadLinkResponse, FsWalkOptions, FsWalkResponse, FsWriteFileResponse,
};
use exec_server_protocol::limits;
use serde::{Deserialize, Serialize};

use crate::byte_fields;
use crate::platform::sandbox::file_worker::ConfinedFile;

pub use crate::platform::files::{
    OpenFile, PathIdentity, Patience, StagedFile, answer_from_cache, decode_cursor,
    identity_from_cache, identity_of, perform,
};

/// One thing to do with the file system. All paths are absolute and normal.
#[derive(Debug, Serialize, Deserialize)]
pub enum FsRequest {
    /// Opens a regular file for reading.
    Read {
        /// The file.
        #[serde(with = "byte_fields::path")]
        path: PathBuf,
        /// What to do about links.
        links: Links,
    },
    /// Begins new content for a regular file, which stays as it is until the new content is published.
    Replace {
        /// The file.
        #[serde(with = "byte_fields::path")]
        path: PathBuf,
        /// On what conditions.
        options: WriteOptions,
    },
    /// Gives a file new content.
    Write {
        /// The file.
        #[serde(with = "byte_fields::path")]
        path: PathBuf,
        /// What to do about links.
        links: Links,
        /// The content.
        #[serde(with = "byte_fields::bytes")]
        data: Vec<u8>,
        /// On what conditions.
        options: WriteOptions,
    },
    /// Adds bytes behind the end of a file.
    Append {
        /// The file.
        #[serde(with = "byte_fields::path")]
        path: PathBuf,
        /// What to do about links.
        links: Links,
        /// The bytes.
        #[serde(with = "byte_fields::bytes")]
        data: Vec<u8>,
        /// Whether a missing file is made.
        create: bool,
        /// On what conditions.
        options: WriteOptions,
    },
    /// Changes the length of a file.
    Truncate {
        /// The file.
        #[serde(with = "byte_fields::path")]
        path: PathBuf,
        /// What to do about links.
        links: Links,
        /// The new length.
        size: u64,
        /// On what conditions.
        options: WriteOptions,
    },
    /// Makes a directory.
    CreateDirectory {
        /// The directory.
        #[serde(with = "byte_fields::path")]
        path: PathBuf,
        /// Whether missing parents are made, and an existing directory is fine.
        recursive: bool,
        /// What to do about links.
        links: Links,
    },
    /// Looks at a path.
    Metadata {
        /// The path.
        #[serde(with = "byte_fields::path")]
        path: PathBuf,
        /// What to do about links.
        links: Links,
        /// How much to tell.
        detail: Detail,
    },
    /// Finds the path without links.
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
        /// Which part of it; everything in no order if missing.
        page: Option<Page>,
        /// How much to tell.
        detail: Detail,
    },
    /// Lists a tree.
    Walk {
        /// Where to begin.
        #[serde(with = "byte_fields::path")]
        path: PathBuf,
        /// How far to go.
        options: FsWalkOptions,
    },
    /// Removes a file or a tree.
    Remove {
        /// What goes.
        #[serde(with = "byte_fields::path")]
        path: PathBuf,
        /// Whether a directory goes with its content.
        recursive: bool,
        /// Whether a missing path is fine.
        force: bool,
        /// What to do about links on the way.
        links: Links,
    },
    /// Copies a file or a tree.
    Copy {
        /// What is copied.
        #[serde(with = "byte_fields::path")]
        source: PathBuf,
        /// Where to.
        #[serde(with = "byte_fields::path")]
        destination: PathBuf,
        /// Whether a directory is copied with its content.
        recursive: bool,
    },
    /// Gives a file or a tree a new name.
    Rename {
        /// The old name.
        #[serde(with = "byte_fields::path")]
        source: PathBuf,
        /// The new name.
        #[serde(with = "byte_fields::path")]
        destination: PathBuf,
        /// Whether an existing destination is an error.
        no_replace: bool,
    },
    /// Makes a symbolic link.
    Symlink {
        /// The link.
        #[serde(with = "byte_fields::path")]
        path: PathBuf,
        /// Its text.
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
    /// Changes permission bits.
    SetPermissions {
        /// The file or directory.
        #[serde(with = "byte_fields::path")]
        path: PathBuf,
        /// The bits.
        mode: u32,
        /// The time of its content, in milliseconds since 1970, if it is to be another.
        modified_at_ms: Option<i64>,
        /// What to do about links.
        links: Links,
    },
}

impl FsRequest {
    /// Whether it only looks.
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

    /// The paths that it names.
    pub fn paths(&self) -> Vec<&Path> {
        match self {
            Self::Copy { source, destination, .. } | Self::Rename { source, destination, .. } => {
                vec![source, destination]
            }
            Self::Read { path, .. }
            | Self::Replace { path, .. }
            | Self::Write { path, .. }
            | Self::Append { path, .. }
            | Self::Truncate { path, .. }
            | Self::CreateDirectory { path, .. }
            | Self::Metadata { path, .. }
            | Self::Canonicalize { path }
            | Self::List { path, .. }
            | Self::Walk { path, .. }
            | Self::Remove { path, .. }
            | Self::Symlink { path, .. }
            | Self::ReadLink { path }
            | Self::SetPermissions { path, .. } => vec![path],
        }
    }
}

/// What came of an [`FsRequest`].
#[derive(Debug)]
pub enum FsReply {
    /// It was done, and there is nothing to say about it.
    Done,
    /// A file to read from.
    Opened(OpenFile),
    /// New content to fill and publish.
    Staged(StagedFile),
    /// New content to fill, which lies in a sandbox.
    StagedInside(ConfinedFile),
    /// Content was written.
    Written(FsWriteFileResponse, Leftovers),
    /// What is known about a path.
    Metadata(FsGetMetadataResponse),
    /// A path without links.
    Canonical(FsCanonicalizeResponse),
    /// The names in a directory.
    Listing(FsReadDirectoryResponse),
    /// The names in a tree.
    Walked(FsWalkResponse),
    /// Where a link points.
    Link(FsReadLinkResponse),
    /// The result as text, from a helper that wrote it.
    Text(String),
}

impl FsReply {
    /// Writes the result as it goes to the client; a file to work with has none, and gives an error.
    pub fn write_to(&self, mut writer: impl io::Write) -> io::Result<()> {
        match self {
            Self::Opened(_) | Self::Staged(_) | Self::StagedInside(_) => {
                return Err(io::ErrorKind::InvalidInput.into());
            }
            Self::Done => return writer.write_all(b"{}"),
            Self::Text(text) => return writer.write_all(text.as_bytes()),
            Self::Written(response, _) => serde_json::to_writer(writer, response),
            Self::Metadata(response) => serde_json::to_writer(writer, response),
            Self::Canonical(response) => serde_json::to_writer(writer, response),
            Self::Listing(response) => serde_json::to_writer(writer, response),
            Self::Walked(response) => serde_json::to_writer(writer, response),
            Self::Link(response) => serde_json::to_writer(writer, response),
        }
        .map_err(io::Error::from)
    }
}

/// What is no longer needed after a write but takes time to let go of: the last reference to a replaced file makes the
/// kernel wait until the disk is done with it. To be dropped when the answer is on its way.
#[derive(Debug, Default)]
pub struct Leftovers {
    pub(crate) _old: Option<File>,
    pub(crate) _data: Vec<u8>,
}

/// What to do about symbolic links in a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Links {
    /// Go where they point.
    Follow,
    /// Refuse the path.
    Refuse,
}

/// How much to tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Detail {
    /// What every client knows.
    Basic,
    /// Everything.
    Full,
}

/// On what conditions content is written, and how safely.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WriteOptions {
    /// What is on disk before the answer.
    pub durability: Durability,
    /// Whether an existing file is an error.
    pub if_absent: bool,
    /// The only version that may be replaced.
    pub if_match: Option<String>,
    /// Whether the answer tells size and version.
    pub detailed: bool,
    /// What the file is like afterwards beside its content.
    pub attributes: FileAttributes,
}

/// What a file with new content is to be like.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileAttributes {
    /// Its permission bits, whether it is new or not.
    pub mode: Option<u32>,
    /// The permission bits of a file that was not there before.
    pub new_mode: Option<u32>,
    /// When its content last changed, in milliseconds since 1970.
    pub modified_at_ms: Option<i64>,
}

/// A part of a directory, in the order of the names' bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Page {
    /// How many names at most.
    pub limit: usize,
    /// The name after which it begins.
    pub after: Option<Vec<u8>>,
}

/// Why a request about files failed.
#[derive(Debug, thiserror::Error)]
pub enum FsError {
    /// The operating system said no.
    #[error("{0}")]
    System(#[from] io::Error),
    /// Only regular files have content.
    #[error("path `{}` is not a file", .0.display())]
    NotAFile(PathBuf),
    /// A link where none may be.
    #[error("path contains a symbolic link")]
    IsLink,
    /// The root has no name.
    #[error("path must name an entry")]
    NoName,
    /// The root is always there.
    #[error("directory already exists")]
    DirectoryExists,
    /// A tree is removed by following the names in it.
    #[error("recursive no-follow removal is unsupported")]
    RecursiveWithoutLinks,
    /// A walk that would go nowhere.
    #[error("filesystem walk limits must be greater than zero")]
    WalkLimitsZero,
    /// A walk that would take too long.
    #[error(
        "filesystem walk limits exceed maximums: depth={}, directories={}, entries={}",
        limits::MAX_WALK_DEPTH,
        limits::MAX_WALK_DIRECTORIES,
        limits::MAX_WALK_ENTRIES
    )]
    WalkLimitsExceeded,
    /// More names than one answer may hold.
    #[error(
        "fs/readDirectory found {0} entries or more; an answer holds at most {1}: ask for pages with `limit`"
    )]
    TooManyEntries(usize, usize),
    /// A directory is copied only on purpose.
    #[error("the source of fs/copy is a directory, which needs `recursive: true`")]
    DirectoryNeedsRecursive,
    /// A copy of a directory in itself has no end.
    #[error("fs/copy cannot copy a directory to itself or into itself")]
    IntoItself,
    /// A file copied onto itself would be lost.
    #[error("the source and the destination of fs/copy are the same file")]
    SameFile,
    /// Pipes, sockets and devices have no content to copy.
    #[error("fs/copy copies files, directories and links, and `{}` is none of them", .0.display())]
    NotCopyable(PathBuf),
    /// Somebody else has changed the file.
    #[error("the file is not the version that `ifMatch` names")]
    VersionMismatch,
    /// Only some of many steps were done.
    #[error("{did} {done} entries, then failed at `{}`: {source}", .path.display())]
    Incomplete {
        /// What was being done, in the past tense.
        did: &'static str,
        /// How many entries it was done to.
        done: u64,
        /// Where it failed.
        path: PathBuf,
        /// Why.
        source: Box<FsError>,
    },
    /// Only some of the bytes were written, and they cannot be taken back.
    #[error("only {done} of {wanted} bytes were written: {source}")]
    ShortWrite {
        /// How many were.
        done: u64,
        /// How many should have been.
        wanted: u64,
        /// Why.
        source: io::Error,
    },
}

impl FsError {
    /// A handle that was used for what it was not opened for.
    pub fn bad_descriptor() -> Self {
        crate::platform::files::bad_descriptor()
    }
}
