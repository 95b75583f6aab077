//! Payloads of `fs/watch`, `fs/readChanges` and `fs/unwatch`.

#![allow(
    missing_docs,
    reason = "wire members repeat their JSON names; docs state only extra facts"
)]

use serde::{Deserialize, Serialize};

use super::Sandbox;
use crate::path_uri::PathUri;
use crate::user::UserName;

/// Params of `fs/watch`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct FsWatchParams {
    /// The client's key of the watch, unique in its session.
    pub watch_id: String,
    /// A directory or a file.
    pub path: PathUri,
    #[serde(default)]
    pub sandbox: Sandbox,
    /// User whose rights hold; default: the server's user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<UserName>,
    /// Whether directories below it are watched, too.
    #[serde(default)]
    pub recursive: bool,
    /// Changes are collected for this long, and repeated ones reported once; default 50 ms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub coalesce_ms: Option<u64>,
}

/// Result of `fs/watch`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct FsWatchResponse {
    pub watch_id: String,
    /// How many directories are watched.
    pub directories: u64,
    /// How many directories could not be read and are not watched.
    #[serde(default, skip_serializing_if = "crate::is_zero")]
    pub skipped: u64,
}

/// Params of `fs/readChanges`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct FsReadChangesParams {
    pub watch_id: String,
    /// Only changes after this number; those up to it are forgotten.
    #[serde(default)]
    pub after_seq: u64,
    /// How long to wait for a change.
    #[serde(default)]
    pub wait_ms: u64,
}

/// Result of `fs/readChanges`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FsReadChangesResponse {
    pub changes: Vec<FsChange>,
    /// Whether the watch has ended, because its path was removed or moved.
    pub ended: bool,
}

/// A change below a watched path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FsChange {
    /// From 1, without gaps.
    pub seq: u64,
    pub kind: ChangeKind,
    pub path: PathUri,
    /// The name before a rename.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<PathUri>,
}

/// What happened to a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum ChangeKind {
    /// A new name, also by a move into what is watched.
    Create,
    /// New content.
    Write,
    /// A name is gone, also by a move out of what is watched.
    Remove,
    /// Within what is watched; a move into it is a create, a move out of it a remove.
    Rename,
    /// New mode, owner or times.
    Chmod,
    /// Changes were lost: look again at everything below the path.
    Rescan,
}

/// Params of `fs/unwatch`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct FsUnwatchParams {
    pub watch_id: String,
}

/// Result of `fs/unwatch`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FsUnwatchResponse {
    /// Whether there was such a watch.
    pub watching: bool,
}
