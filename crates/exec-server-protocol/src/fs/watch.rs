//! Payloads of `fs/watchMissing`.

#![allow(
    missing_docs,
    reason = "wire members repeat their JSON names; docs state only extra facts"
)]

use serde::{Deserialize, Serialize};

use crate::path_uri::PathUri;

/// Params of `fs/watchMissing`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FsWatchMissingParams {
    /// The client's name for the watch; higher than all earlier ones.
    pub watch_id: u64,
    /// Paths that are not there.
    pub missing: Vec<PathUri>,
    /// A path that is there.
    #[serde(default)]
    pub present: Option<PathUri>,
}

/// Result of `fs/watchMissing`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FsWatchMissingResponse {
    /// Whether a notification will tell of a change.
    pub watching: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Params of `fs/missingChanged`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FsMissingChangedNotification {
    /// The watch, which has ended with this.
    pub watch_id: u64,
}
