//! Payloads of `fs/edit`.

#![allow(
    missing_docs,
    reason = "wire members repeat their JSON names; docs state only extra facts"
)]

use serde::{Deserialize, Serialize};

use crate::path_uri::PathUri;

fs_params! {
    /// Params of `fs/edit`.
    pub struct FsEditParams {
        pub path: PathUri,
        /// Applied in this order, each to the result of the one before it; all of them or none.
        pub edits: Vec<FsTextEdit>,
        pub follow_symlinks: shared,
        pub sandbox: shared,
        pub user: shared,
        pub durability: shared,
        pub if_match: shared,
        /// Whether the edits are only tried, and the file stays as it is.
        #[serde(default, skip_serializing_if = "crate::is_false")]
        pub dry_run: bool,
    }
}

/// One replacement of text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct FsTextEdit {
    /// Must occur exactly once, unless `replaceAll` is set.
    pub old: String,
    /// The text that replaces it.
    pub new: String,
    /// Whether every occurrence is replaced; at least one is required.
    #[serde(default, skip_serializing_if = "crate::is_false")]
    pub replace_all: bool,
}

/// Result of `fs/edit`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct FsEditResponse {
    /// What each edit did, in the order of the request.
    pub edits: Vec<FsAppliedEdit>,
    /// The size of the file with the edits.
    pub size: u64,
    /// The version of the file; missing after a dry run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version_tag: Option<String>,
    /// Whether the file kept its identity, so that a reader could have seen a half-written one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_place: Option<bool>,
}

/// What one edit did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FsAppliedEdit {
    /// How many occurrences were replaced.
    pub replacements: u64,
    /// The line of the first replacement, from 1, when this edit was applied.
    pub line: u64,
}

/// `error.data.edit` of an edit that does not fit the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct EditMismatch {
    /// The number of the edit in the request, from 0.
    pub index: u64,
    /// How often its text occurs.
    pub occurrences: u64,
    /// The lines of the first occurrences, from 1.
    pub lines: Vec<u64>,
    /// The most similar place, if the text does not occur.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nearest: Option<NearestText>,
}

/// The place of a file that is most similar to a text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct NearestText {
    /// Its first line, from 1.
    pub line: u64,
    /// Its text, shortened; bytes that are not UTF-8 are replaced.
    pub text: String,
}
