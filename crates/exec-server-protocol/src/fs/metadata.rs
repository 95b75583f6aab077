//! `fs/getMetadata`: what is known about a path.

use serde::{Deserialize, Serialize};

use super::{Bytes64, Sandbox};
use crate::path_uri::PathUri;

/// Params of `fs/getMetadata`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FsGetMetadataParams {
    /// The path.
    pub path: PathUri,
    /// Whether links are followed; yes unless said otherwise.
    #[serde(default)]
    pub follow_symlinks: Option<bool>,
    /// What the request may touch.
    #[serde(default)]
    pub sandbox: Sandbox,
    /// Whether the answer has everything; with `followSymlinks: false` it may then be about a link itself.
    #[serde(default)]
    pub detailed: Option<bool>,
}

/// Result of `fs/getMetadata`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FsGetMetadataResponse {
    /// Whether it is a directory.
    pub is_directory: bool,
    /// Whether it is a regular file.
    pub is_file: bool,
    /// Whether the path itself is a link; all else is about what it leads to.
    pub is_symlink: bool,
    /// The size in bytes.
    pub size: u64,
    /// When it was made, in milliseconds since 1970; 0 if the file system does not know.
    pub created_at_ms: i64,
    /// When its content last changed, in milliseconds since 1970.
    pub modified_at_ms: i64,
    /// Everything else, if asked for.
    #[serde(flatten, default, skip_serializing_if = "Option::is_none")]
    pub details: Option<MetadataDetails>,
}

/// What `fs/getMetadata` adds when everything is asked for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MetadataDetails {
    /// What it is.
    pub kind: FileKind,
    /// The permission bits.
    pub mode: u32,
    /// The owner.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// How many names it has.
    pub nlink: u64,
    /// Its number in its file system.
    pub inode: u64,
    /// Changes whenever the content or the attributes change.
    pub version_tag: String,
    /// The text of the link that the path is; lossy if it is not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link_target: Option<String>,
    /// The exact text of a link that is not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link_target_base64: Option<Bytes64>,
}

/// What a path can lead to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum FileKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
    /// A device such as a terminal.
    CharacterDevice,
    /// A device such as a disk.
    BlockDevice,
    /// Something that this server does not know.
    Unknown,
}
