//! Payloads of `fs/writeFile`, `fs/append` and `fs/truncate`.

#![allow(
    missing_docs,
    reason = "wire members repeat their JSON names; docs state only extra facts"
)]

use std::fmt::Write;

use serde::{Deserialize, Serialize};

use super::Data64;
use crate::path_uri::PathUri;
use crate::{json, params};

/// What is synced to disk before the reply to a write.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum Durability {
    /// Nothing: content survives a crash of the server, but not always a crash of the machine.
    #[default]
    None,
    /// The content.
    Data,
    /// The content, its attributes and its name.
    Full,
}

fs_params! {
    /// Params of `fs/writeFile`.
    pub struct FsWriteFileParams {
        pub path: PathUri,
        pub data_base64: Data64,
        pub follow_symlinks: shared,
        pub sandbox: shared,
        pub user: shared,
        pub durability: shared,
        pub if_absent: shared,
        pub if_match: shared,
        /// Whether the answer has the new version tag.
        #[serde(default)]
        pub detailed: Option<bool>,
        pub mode_bits: shared,
        pub new_mode_bits: shared,
        pub modified_at_ms: shared,
    }
}

impl FsWriteFileParams {
    /// Decodes raw params and the base64 content without an intermediate string.
    pub fn decode(raw: &str) -> Result<Self, String> {
        Self::decode_fast(raw).map_or_else(|| params::decode(raw), Ok)
    }

    /// Decodes the content separately and leaves all other members to serde.
    fn decode_fast(raw: &str) -> Option<Self> {
        let mut data = None;
        let mut rest = String::from("{\"dataBase64\":\"\"");
        json::scan_object(raw, |key, value| match key {
            "dataBase64" => data = Some(value),
            key => {
                let key = serde_json::Value::from(key);
                write!(rest, ",{key}:{value}").expect("a string takes any text");
            }
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
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct FsWriteFileResponse {
    /// Whether the file was written in place, so that a reader could see partial content.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_place: Option<bool>,
    /// Size of the file, if requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// Version tag of the file, if requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version_tag: Option<String>,
}

fs_params! {
    /// Params of `fs/append`.
    pub struct FsAppendParams {
        pub path: PathUri,
        /// Content to append.
        pub data_base64: Data64,
        /// Whether a missing file is created; default true.
        #[serde(default)]
        pub create: Option<bool>,
        pub follow_symlinks: shared,
        pub sandbox: shared,
        pub user: shared,
        pub durability: shared,
        pub if_match: shared,
    }

    /// Params of `fs/truncate`.
    pub struct FsTruncateParams {
        pub path: PathUri,
        /// New length; a longer file is extended with zeros.
        pub size: u64,
        pub follow_symlinks: shared,
        pub sandbox: shared,
        pub user: shared,
        pub durability: shared,
        pub if_match: shared,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fast_decoder_keeps_every_member() {
        let all = FsWriteFileParams {
            path: PathUri::from_posix(b"/f"),
            data_base64: Data64(Ok(b"content".to_vec())),
            follow_symlinks: Some(false),
            sandbox: Some(crate::fs::SandboxText::new(&serde_json::json!({"a": "\"}"}))),
            user: Some("ann".into()),
            durability: Some(Durability::Full),
            if_absent: Some(true),
            if_match: Some("v\"1\"".to_owned()),
            detailed: Some(true),
            mode_bits: Some(0o600),
            new_mode_bits: Some(0o640),
            modified_at_ms: Some(-5),
        };
        params::tests::check_fast_decoder(&all, FsWriteFileParams::decode_fast);
    }

    #[test]
    fn odd_names_of_members_are_read_as_the_general_decoder_reads_them() {
        for raw in [
            r#"{"path":"file:///f","dataBase64":"aGk=","a\"b":{"x":[1]},"":null}"#,
            r#"{"p\u0061th":"file:///f","data\u0042ase64":"aGk=","s\u0061ndbox":{"x":1}}"#,
        ] {
            let fast = FsWriteFileParams::decode_fast(raw).expect("the usual form");
            assert_eq!(Ok(fast), params::decode(raw), "{raw}");
        }
    }
}
