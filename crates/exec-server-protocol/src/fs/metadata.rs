//! Payloads of `fs/getMetadata`.

#![allow(
    missing_docs,
    reason = "wire members repeat their JSON names; docs state only extra facts"
)]

use serde::{Deserialize, Serialize};

use super::Bytes64;
use crate::path_uri::PathUri;

fs_params! {
    /// Params of `fs/getMetadata`.
    pub struct FsGetMetadataParams {
        pub path: PathUri,
        pub follow_symlinks: shared,
        pub sandbox: shared,
        pub user: shared,
        /// Whether the answer has all details; with `followSymlinks: false` it can describe a link itself.
        #[serde(default)]
        pub detailed: Option<bool>,
    }
}

/// Result of `fs/getMetadata`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct FsGetMetadataResponse {
    pub is_directory: bool,
    pub is_file: bool,
    /// Whether the path itself is a link; the other members describe its target.
    pub is_symlink: bool,
    /// The size in bytes.
    pub size: u64,
    /// Creation time in Unix milliseconds; 0 if the file system does not record it.
    pub created_at_ms: i64,
    /// Modification time, in Unix milliseconds.
    pub modified_at_ms: i64,
    /// All other metadata, if requested.
    #[serde(flatten, default, skip_serializing_if = "Option::is_none")]
    pub details: Option<MetadataDetails>,
}

/// Additional members of a detailed `fs/getMetadata`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct MetadataDetails {
    pub kind: FileKind,
    /// The permission bits.
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    /// The name of the owner, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner_name: Option<String>,
    /// The name of the group, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group_name: Option<String>,
    /// Number of hard links.
    pub nlink: u64,
    /// Inode number.
    pub inode: u64,
    /// Changes whenever the content or the attributes change.
    pub version_tag: String,
    /// Target of the link; lossy if it is not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link_target: Option<String>,
    /// Exact target of a link that is not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link_target_base64: Option<Bytes64>,
}

/// File types.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
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
    /// A type that this server does not know.
    Unknown,
}
