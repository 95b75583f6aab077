//! The payloads of `fs/*`.
//!
//! Members after `sandbox` are extensions of this server; without them a request behaves as in the reference.

#![allow(
    missing_docs,
    reason = "wire members repeat their JSON names; docs state only extra facts"
)]

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::errors::RpcError;
use crate::path_uri::PathUri;

// First, because the other modules use its macro.
#[macro_use]
mod shared;

mod changes;
mod data64;
mod edit;
mod handles;
mod listing;
mod metadata;
mod search;
mod watch;
mod write;

pub use crate::bytes64::Bytes64;
pub use changes::*;
pub use data64::Data64;
pub use edit::*;
pub use handles::*;
pub use listing::*;
pub use metadata::*;
pub use search::*;
pub use watch::*;
pub use write::*;

/// The sandbox policy of a request.
pub type Sandbox = Option<SandboxText>;

/// A sandbox policy as raw JSON text, so that equal policies can be parsed once and cached.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SandboxText(Box<RawValue>);

impl SandboxText {
    /// Serializes a sandbox policy.
    pub fn new(sandbox: &impl Serialize) -> Self {
        let text = serde_json::value::to_raw_value(sandbox);
        Self(text.expect("a sandbox is plain data"))
    }

    /// The JSON text.
    pub fn as_str(&self) -> &str {
        self.0.get()
    }
}

impl PartialEq for SandboxText {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

fs_params! {
    /// Params of `fs/readFile`.
    pub struct FsReadFileParams {
        pub path: PathUri,
        pub follow_symlinks: shared,
        pub sandbox: shared,
        pub user: shared,
        /// Whether the answer has the version tag.
        #[serde(default)]
        pub detailed: Option<bool>,
    }
}

/// Result of `fs/readFile`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct FsReadFileResponse {
    pub data_base64: Bytes64,
    /// Version tag of the content, if requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version_tag: Option<String>,
}

fs_params! {
    /// Params of `fs/createDirectory`.
    pub struct FsCreateDirectoryParams {
        pub path: PathUri,
        /// Whether missing parents are created and an existing directory is accepted; default true.
        #[serde(default)]
        pub recursive: Option<bool>,
        pub follow_symlinks: shared,
        pub sandbox: shared,
        pub user: shared,
    }

    /// Params of `fs/canonicalize`.
    pub struct FsCanonicalizeParams {
        pub path: PathUri,
        pub sandbox: shared,
        pub user: shared,
    }
}

/// Result of `fs/canonicalize`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FsCanonicalizeResponse {
    /// The absolute path without links.
    pub path: PathUri,
}

fs_params! {
    /// Params of `fs/remove`.
    pub struct FsRemoveParams {
        pub path: PathUri,
        /// Whether a directory is removed with its content; default true.
        #[serde(default)]
        pub recursive: Option<bool>,
        /// Whether a missing path is accepted; default true.
        #[serde(default)]
        pub force: Option<bool>,
        /// Whether links in the parent directories are followed; default true.
        #[serde(default)]
        pub follow_symlinks: Option<bool>,
        pub sandbox: shared,
        pub user: shared,
    }

    /// Params of `fs/copy`.
    pub struct FsCopyParams {
        pub source_path: PathUri,
        pub destination_path: PathUri,
        /// Whether a directory is copied with its content.
        pub recursive: bool,
        pub sandbox: shared,
        pub user: shared,
    }

    /// Params of `fs/rename`.
    pub struct FsRenameParams {
        pub source_path: PathUri,
        pub destination_path: PathUri,
        /// Whether an existing destination is an error; default false.
        #[serde(default)]
        pub no_replace: Option<bool>,
        pub sandbox: shared,
        pub user: shared,
    }

    /// Params of `fs/symlink`.
    pub struct FsSymlinkParams {
        pub path: PathUri,
        /// Target of the link, stored unchanged.
        #[serde(default)]
        pub target: Option<String>,
        /// Target of the link, if it is not UTF-8.
        #[serde(default)]
        pub target_base64: Option<Bytes64>,
        /// Whether an existing link is replaced; default false.
        #[serde(default)]
        pub replace: Option<bool>,
        pub sandbox: shared,
        pub user: shared,
    }

    /// Params of `fs/readLink`.
    pub struct FsReadLinkParams {
        pub path: PathUri,
        pub sandbox: shared,
        pub user: shared,
    }
}

/// Result of `fs/readLink`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct FsReadLinkResponse {
    /// Target of the link; lossy if it is not UTF-8.
    pub target: String,
    /// Exact target of a link that is not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_base64: Option<Bytes64>,
}

fs_params! {
    /// Params of `fs/setPermissions`.
    pub struct FsSetPermissionsParams {
        pub path: PathUri,
        /// The permission bits, at most 0o7777.
        pub mode: u32,
        /// Modification time, in Unix milliseconds; default: unchanged.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub modified_at_ms: Option<i64>,
        pub follow_symlinks: shared,
        pub sandbox: shared,
        pub user: shared,
    }
}

/// Params of `fs/batch`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FsBatchParams {
    /// The lookups: `fs/readFile`, `fs/getMetadata`, `fs/canonicalize`, `fs/readDirectory` and `fs/readLink`.
    pub requests: Vec<FsBatchRequest>,
}

/// One lookup of `fs/batch`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FsBatchRequest {
    /// The method of the lookup.
    pub method: String,
    /// Params of the method.
    #[cfg_attr(feature = "schema", schemars(with = "serde_json::Value"))]
    pub params: Box<serde_json::value::RawValue>,
}

/// Result of `fs/batch`: one for each lookup, in the same order.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FsBatchResponse {
    pub results: Vec<FsBatchResult>,
}

/// Result or error of one lookup.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum FsBatchResult {
    Result(serde_json::Value),
    Error(RpcError),
}

#[cfg(test)]
mod tests;
