//! Why a request about files failed.

use std::fmt;
use std::io;
use std::path::PathBuf;

use exec_server_protocol::base64::Base64Error;
use exec_server_protocol::limits;
use exec_server_protocol::methods::Method;
use exec_server_protocol::path_uri::ToPathError;
use serde::{Deserialize, Serialize};

use crate::byte_fields;

/// Why the params of a request are not accepted.
#[derive(Debug)]
pub enum ParamsError {
    /// They cannot be decoded, or contradict each other; the text is for the client.
    Invalid(String),
    /// A path is no path of this machine.
    Path(ToPathError),
    /// The content is not base64.
    Content {
        /// The method of the request.
        method: Method,
        /// The cause.
        cause: Base64Error,
    },
}

impl From<ToPathError> for ParamsError {
    fn from(error: ToPathError) -> Self {
        Self::Path(error)
    }
}

/// Why a request about files failed. A file worker sends it to the server, with an errno in place of each I/O error.
#[derive(Debug, thiserror::Error, Serialize, Deserialize)]
pub enum FsError {
    /// A system call failed.
    #[error(transparent)]
    System(
        #[from]
        #[serde(with = "byte_fields::errno")]
        io::Error,
    ),
    /// The operation needs a regular file.
    #[error("path `{}` is not a file", .0.display())]
    NotAFile(#[serde(with = "byte_fields::path")] PathBuf, Nature),
    /// A symbolic link in a path that must not contain one.
    #[error("path contains a symbolic link")]
    IsLink,
    /// The root directory has no name in a parent.
    #[error("path must name an entry")]
    NoName,
    /// The root directory always exists.
    #[error("directory already exists")]
    DirectoryExists,
    /// Recursive removal is supported with [`crate::Links::Follow`] only.
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
    NotCopyable(#[serde(with = "byte_fields::path")] PathBuf),
    /// The existing file has another version tag, or does not exist.
    #[error("the file is not the version that `ifMatch` names")]
    VersionMismatch,
    /// An edit does not fit the file; nothing was changed.
    #[error("{0}; the file is unchanged")]
    Edit(Box<EditRefusal>),
    /// Edits apply to text only.
    #[error("path `{}` is a binary file: it contains NUL bytes; use fs/writeFile", .0.display())]
    Binary(#[serde(with = "byte_fields::path")] PathBuf),
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
    #[error("{did} {done} entries, then failed at `{}`: {cause}", .path.display())]
    Incomplete {
        /// What was done with the entries.
        did: TreeOperation,
        /// Number of entries that were processed.
        done: u64,
        /// The entry that failed.
        #[serde(with = "byte_fields::path")]
        path: PathBuf,
        /// The cause.
        cause: Box<FsError>,
    },
    /// A write stopped after some bytes, which stay in the file.
    #[error("only {done} of {wanted} bytes were written: {cause}")]
    ShortWrite {
        /// Bytes written.
        done: u64,
        /// Bytes requested.
        wanted: u64,
        /// The cause.
        #[serde(with = "byte_fields::errno")]
        cause: io::Error,
    },
}

impl FsError {
    /// `EBADF`: a handle was used for a direction that it was not opened for.
    pub fn bad_descriptor() -> Self {
        crate::platform::bad_descriptor()
    }
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

/// An operation on a tree, shown in the past tense.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum TreeOperation {
    /// `fs/copy`.
    Copied,
    /// `fs/remove`.
    Removed,
}

impl fmt::Display for TreeOperation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Copied => "copied",
            Self::Removed => "removed",
        })
    }
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
