//! `fs/writeFile`, `fs/append`, `fs/truncate`: content.

use serde::{Deserialize, Serialize};

use super::{Data64, Sandbox};
use crate::path_uri::PathUri;
use crate::{json, params};

/// What is on disk before a write is answered.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Durability {
    /// Nothing: a crash of the server loses nothing, a crash of the machine may.
    #[default]
    None,
    /// The content.
    Data,
    /// The content, its attributes and its name.
    Full,
}

/// Params of `fs/writeFile`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FsWriteFileParams {
    /// The file.
    pub path: PathUri,
    /// Its new content.
    pub data_base64: Data64,
    /// Whether links are followed; yes unless said otherwise.
    #[serde(default)]
    pub follow_symlinks: Option<bool>,
    /// What the request may touch.
    #[serde(default)]
    pub sandbox: Sandbox,
    /// What is on disk before the answer.
    #[serde(default)]
    pub durability: Option<Durability>,
    /// Whether an existing file is an error.
    #[serde(default)]
    pub if_absent: Option<bool>,
    /// The version that may be replaced.
    #[serde(default)]
    pub if_match: Option<String>,
    /// Whether the answer names the version that was written.
    #[serde(default)]
    pub detailed: Option<bool>,
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

impl FsWriteFileParams {
    /// Decodes raw params; the content is looked at once and then decoded straight from the message.
    pub fn decode(raw: &str) -> Result<Self, String> {
        Self::decode_fast(raw).map_or_else(|| params::decode(raw), Ok)
    }

    /// The content apart, and everything else as if it had none.
    fn decode_fast(raw: &str) -> Option<Self> {
        let mut data = None;
        let mut rest = String::from("{\"dataBase64\":\"\"");
        json::scan_object(raw, |key, value| match key {
            "dataBase64" => data = Some(value),
            "path" | "followSymlinks" | "sandbox" | "durability" | "ifAbsent" | "ifMatch"
            | "detailed" | "modeBits" | "newModeBits" | "modifiedAtMs" => {
                rest.extend([",\"", key, "\":", value]);
            }
            _ => {}
        })
        .ok()?;
        let data_base64 = Data64::decode(&json::string_value(data?)?);
        rest.push('}');
        let rest: Self = serde_json::from_str(&rest).ok()?;
        Some(Self { data_base64, ..rest })
    }
}

/// Result of `fs/writeFile`, `fs/append`, `fs/truncate`, and of `fs/close` after new content.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FsWriteFileResponse {
    /// Whether the file kept its identity, so that a reader could have seen a half-written one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_place: Option<bool>,
    /// The size of the file, if asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// The version of the file, if asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version_tag: Option<String>,
}

/// Params of `fs/append`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FsAppendParams {
    /// The file.
    pub path: PathUri,
    /// What comes behind its end.
    pub data_base64: Data64,
    /// Whether a missing file is made; yes unless said otherwise.
    #[serde(default)]
    pub create: Option<bool>,
    /// Whether links are followed; yes unless said otherwise.
    #[serde(default)]
    pub follow_symlinks: Option<bool>,
    /// What the request may touch.
    #[serde(default)]
    pub sandbox: Sandbox,
    /// What is on disk before the answer.
    #[serde(default)]
    pub durability: Option<Durability>,
    /// The version that may be changed.
    #[serde(default)]
    pub if_match: Option<String>,
}

/// Params of `fs/truncate`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FsTruncateParams {
    /// The file.
    pub path: PathUri,
    /// Its new length; what is missing is filled with zeros.
    pub size: u64,
    /// Whether links are followed; yes unless said otherwise.
    #[serde(default)]
    pub follow_symlinks: Option<bool>,
    /// What the request may touch.
    #[serde(default)]
    pub sandbox: Sandbox,
    /// What is on disk before the answer.
    #[serde(default)]
    pub durability: Option<Durability>,
    /// The version that may be changed.
    #[serde(default)]
    pub if_match: Option<String>,
}
