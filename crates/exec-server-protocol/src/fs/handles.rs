//! `fs/open`, `fs/readBlock`, `fs/writeBlock`, `fs/close`: files in pieces.

use serde::{Deserialize, Serialize};

use super::{Bytes64, Durability, Sandbox};
use crate::path_uri::PathUri;
use crate::{base64, json, params};

/// What a handle is for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum OpenMode {
    /// Reading what is there.
    #[default]
    Read,
    /// Writing new content, which takes the place of the old one at `fs/close`.
    Replace,
}

/// Params of `fs/open`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FsOpenParams {
    /// The client's name for the handle.
    pub handle_id: String,
    /// The file.
    pub path: PathUri,
    /// What the handle is for.
    #[serde(default)]
    pub mode: OpenMode,
    /// What the request may touch.
    #[serde(default)]
    pub sandbox: Sandbox,
    /// Whether the answer tells size and version of what was opened.
    #[serde(default)]
    pub detailed: Option<bool>,
    /// What is on disk before `fs/close` is answered.
    #[serde(default)]
    pub durability: Option<Durability>,
    /// Whether an existing file is an error.
    #[serde(default)]
    pub if_absent: Option<bool>,
    /// The version that may be replaced.
    #[serde(default)]
    pub if_match: Option<String>,
    /// Its permission bits, whether it is new or not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode_bits: Option<u32>,
    /// The permission bits of a file that was not there before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub new_mode_bits: Option<u32>,
    /// When its content last changed, in milliseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub modified_at_ms: Option<i64>,
}

/// Result of `fs/open`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FsOpenResponse {
    /// The client's name for the handle.
    pub handle_id: String,
    /// The size of the file, if asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// The version of the file, if asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version_tag: Option<String>,
}

/// Params of `fs/readBlock`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FsReadBlockParams {
    /// The handle.
    pub handle_id: String,
    /// Where the block begins.
    pub offset: u64,
    /// How long it is.
    pub len: u64,
}

/// Result of `fs/readBlock`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FsReadBlockResponse {
    /// The bytes.
    pub chunk: Bytes64,
    /// Whether the file ended before the block was full.
    pub eof: bool,
}

/// Params of `fs/writeBlock`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FsWriteBlockParams {
    /// The handle.
    pub handle_id: String,
    /// Where the block begins.
    pub offset: u64,
    /// The bytes.
    pub chunk: Bytes64,
}

impl FsWriteBlockParams {
    /// Decodes raw params; the chunk is looked at once and then decoded straight from the message.
    pub fn decode(raw: &str) -> Result<Self, String> {
        Self::decode_fast(raw).map_or_else(|| params::decode(raw), Ok)
    }

    /// Only the usual form; whatever is unusual or wrong is left to the general decoder and its error texts.
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
#[serde(rename_all = "camelCase")]
pub struct FsCloseParams {
    /// The handle.
    pub handle_id: String,
    /// Whether new content is thrown away instead of put in place.
    #[serde(default)]
    pub discard: Option<bool>,
}
