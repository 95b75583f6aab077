//! Payloads of `fs/open`, `fs/readBlock`, `fs/writeBlock` and `fs/close`.

#![allow(
    missing_docs,
    reason = "wire members repeat their JSON names; docs state only extra facts"
)]

use serde::{Deserialize, Serialize};

use super::{Bytes64, Durability};
use crate::path_uri::PathUri;
use crate::{base64, json, params};

/// Purpose of a handle.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum OpenMode {
    /// Read the existing content.
    #[default]
    Read,
    /// Write new content, which replaces the file at `fs/close`.
    Replace,
}

fs_params! {
    /// Params of `fs/open`.
    pub struct FsOpenParams {
        /// Chosen by the client.
        pub handle_id: String,
        pub path: PathUri,
        /// Purpose of the handle.
        #[serde(default)]
        pub mode: OpenMode,
        pub sandbox: shared,
        pub user: shared,
        /// Whether the answer has size and version tag.
        #[serde(default)]
        pub detailed: Option<bool>,
        /// What is synced to disk before the reply to `fs/close`.
        #[serde(default)]
        pub durability: Option<Durability>,
        pub if_absent: shared,
        pub if_match: shared,
        pub mode_bits: shared,
        pub new_mode_bits: shared,
        pub modified_at_ms: shared,
    }
}

/// Result of `fs/open`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct FsOpenResponse {
    /// Chosen by the client.
    pub handle_id: String,
    /// Size of the file, if requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// Version tag of the file, if requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version_tag: Option<String>,
}

/// Params of `fs/readBlock`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct FsReadBlockParams {
    pub handle_id: String,
    /// Start of the block.
    pub offset: u64,
    /// Length of the block.
    pub len: u64,
}

/// Result of `fs/readBlock`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FsReadBlockResponse {
    pub chunk: Bytes64,
    /// Whether the file ended within the block.
    pub eof: bool,
}

/// Params of `fs/writeBlock`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct FsWriteBlockParams {
    pub handle_id: String,
    /// Start of the block.
    pub offset: u64,
    pub chunk: Bytes64,
}

impl FsWriteBlockParams {
    /// Decodes raw params and the base64 chunk without an intermediate string.
    pub fn decode(raw: &str) -> Result<Self, String> {
        Self::decode_fast(raw).map_or_else(|| params::decode(raw), Ok)
    }

    /// Decodes the common form only; `None` falls back to serde, which also produces the error text.
    fn decode_fast(raw: &str) -> Option<Self> {
        let (mut handle_id, mut offset, mut chunk) = (None, None, None);
        json::scan_object(raw, |key, value| match key {
            "handleId" => handle_id = Some(value),
            "offset" => offset = Some(value),
            "chunk" => chunk = Some(value),
            _ => {}
        })
        .ok()?;
        Some(Self {
            handle_id: json::string_value(handle_id?)?.into_owned(),
            offset: serde_json::from_str(offset?).ok()?,
            chunk: Bytes64(base64::decode(&json::string_value(chunk?)?).ok()?),
        })
    }
}

/// Params of `fs/close`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct FsCloseParams {
    pub handle_id: String,
    /// Whether new content is discarded instead of published.
    #[serde(default)]
    pub discard: Option<bool>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fast_decoder_keeps_every_member() {
        let all = FsWriteBlockParams {
            handle_id: "h".to_owned(),
            offset: 7,
            chunk: Bytes64(b"content".to_vec()),
        };
        params::tests::check_fast_decoder(&all, FsWriteBlockParams::decode_fast);
    }
}
