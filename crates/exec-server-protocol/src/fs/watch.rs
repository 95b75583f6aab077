//! Payloads of `fs/watchMissing`.

#![allow(
    missing_docs,
    reason = "wire members repeat their JSON names; docs state only extra facts"
)]

use serde::{Deserialize, Serialize};

use crate::path_uri::PathUri;

/// Params of `fs/watchMissing`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct FsWatchMissingParams {
    /// Id of the watch, chosen by the client; higher than all earlier ones.
    pub watch_id: u64,
    /// Paths that do not exist.
    pub missing: Vec<PathUri>,
    /// A path that exists.
    #[serde(default)]
    pub present: Option<PathUri>,
}

/// Result of `fs/watchMissing`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FsWatchMissingResponse {
    /// Whether the server will send a notification on a change.
    pub watching: bool,
    /// Why the server does not watch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Params of `fs/missingChanged`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct FsMissingChangedNotification {
    /// The watch, which ends with this notification.
    pub watch_id: u64,
}
