//! Payloads of `fs/readDirectory` and `fs/walk`.

#![allow(
    missing_docs,
    reason = "wire members repeat their JSON names; docs state only extra facts"
)]

use serde::{Deserialize, Serialize};

use super::{FsGetMetadataResponse, Sandbox};
use crate::path_uri::PathUri;

/// Params of `fs/readDirectory`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FsReadDirectoryParams {
    pub path: PathUri,
    #[serde(default)]
    pub sandbox: Sandbox,
    /// How many names at most; the answer is then sorted and says how to go on.
    #[serde(default)]
    pub limit: Option<u64>,
    /// Where to go on, from an earlier answer.
    #[serde(default)]
    pub cursor: Option<String>,
    /// Whether every entry comes with its URI and metadata.
    #[serde(default)]
    pub detailed: Option<bool>,
}

/// Result of `fs/readDirectory`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FsReadDirectoryResponse {
    pub entries: Vec<FsDirectoryEntry>,
    /// Where to go on, if there is more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// One name in a directory.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
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
    /// The address of a name that is not UTF-8, and of every name in a detailed listing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uri: Option<PathUri>,
    /// What else is known, in a detailed listing; about the link itself if it leads nowhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Box<FsGetMetadataResponse>>,
}

/// Params of `fs/walk`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FsWalkParams {
    /// Where to begin.
    pub path: PathUri,
    /// How far to go.
    pub options: FsWalkOptions,
    #[serde(default)]
    pub sandbox: Sandbox,
}

/// How far `fs/walk` goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FsWalkOptions {
    /// Levels below the root's children.
    pub max_depth: u64,
    /// Directories that are entered, with the root.
    pub max_directories: u64,
    /// Names that are looked at.
    pub max_entries: u64,
    /// Whether links to directories are listed and entered.
    pub follow_directory_symlinks: bool,
    /// Whether directories whose name begins with a dot are listed but not entered.
    #[serde(default)]
    pub prune_hidden_directories: bool,
}

/// Result of `fs/walk`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct FsWalkResponse {
    /// What was found, level by level, sorted within each directory.
    pub entries: Vec<FsWalkEntry>,
    /// What could not be read.
    pub errors: Vec<FsWalkError>,
    /// Whether a limit cut it short.
    pub truncated: bool,
}

/// One thing that `fs/walk` found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FsWalkEntry {
    pub path: PathUri,
    pub kind: WalkKind,
}

/// What `fs/walk` tells apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum WalkKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
}

/// One thing that `fs/walk` could not read.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FsWalkError {
    pub path: PathUri,
    pub message: String,
}
