//! Payloads of `fs/readDirectory` and `fs/walk`.

#![allow(
    missing_docs,
    reason = "wire members repeat their JSON names; docs state only extra facts"
)]

use serde::{Deserialize, Serialize};

use super::FsGetMetadataResponse;
use crate::path_uri::PathUri;

fs_params! {
    /// Params of `fs/readDirectory`.
    pub struct FsReadDirectoryParams {
        pub path: PathUri,
        pub sandbox: shared,
        pub user: shared,
        /// Maximum number of entries; with a limit the answer is sorted and has a cursor.
        #[serde(default)]
        pub limit: Option<u64>,
        /// `nextCursor` of an earlier answer.
        #[serde(default)]
        pub cursor: Option<String>,
        /// Whether every entry has its URI and metadata.
        #[serde(default)]
        pub detailed: Option<bool>,
    }
}

/// Result of `fs/readDirectory`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct FsReadDirectoryResponse {
    pub entries: Vec<FsDirectoryEntry>,
    /// Cursor of the next page, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// One entry of a directory.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct FsDirectoryEntry {
    /// The name; lossy if it is not UTF-8.
    pub file_name: String,
    /// Whether it is a directory, or a link to one.
    pub is_directory: bool,
    /// Whether it is a regular file, or a link to one.
    pub is_file: bool,
    /// Whether it is a link.
    #[serde(default, skip_serializing_if = "crate::is_false")]
    pub is_symlink: bool,
    /// URI of an entry whose name is not UTF-8, and of every entry in a detailed listing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uri: Option<PathUri>,
    /// Metadata in a detailed listing; of the link itself if it is dangling.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Box<FsGetMetadataResponse>>,
}

fs_params! {
    /// Params of `fs/walk`.
    pub struct FsWalkParams {
        /// Root of the walk.
        pub path: PathUri,
        /// Limits of the walk.
        pub options: FsWalkOptions,
        pub sandbox: shared,
        pub user: shared,
    }
}

/// Limits of `fs/walk`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct FsWalkOptions {
    /// Levels below the root's children.
    pub max_depth: u64,
    /// Limit of entered directories, including the root.
    pub max_directories: u64,
    /// Limit of visited entries.
    pub max_entries: u64,
    /// Whether links to directories are listed and entered.
    pub follow_directory_symlinks: bool,
    /// Whether directories whose name begins with a dot are listed but not entered.
    #[serde(default)]
    pub prune_hidden_directories: bool,
}

/// Result of `fs/walk`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FsWalkResponse {
    /// Entries level by level, sorted within each directory.
    pub entries: Vec<FsWalkEntry>,
    /// Entries that could not be read.
    pub errors: Vec<FsWalkError>,
    /// Whether a limit ended the walk early.
    pub truncated: bool,
}

/// One entry of `fs/walk`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FsWalkEntry {
    pub path: PathUri,
    pub kind: WalkKind,
}

/// Kinds of entries in `fs/walk`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum WalkKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
}

/// One entry that `fs/walk` could not read.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FsWalkError {
    pub path: PathUri,
    pub message: String,
}
