//! Output that is kept in a file, and views of the output of a process.

#![allow(
    missing_docs,
    reason = "wire members repeat their JSON names; docs state only extra facts"
)]

use serde::{Deserialize, Serialize};

use crate::fs::CaseMode;

/// Keeps the output of a process in a file of the server, without a name.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct OutputSpool {
    /// Size of the file; the oldest output makes room. Default: the limit of the server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_bytes: Option<u64>,
}

/// A part of the output of a process. Offsets count the bytes of all streams, in the order of their events.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum OutputView {
    /// From this byte on.
    Offset(u64),
    /// The first bytes that are kept.
    HeadBytes(u64),
    /// The first lines that are kept.
    HeadLines(u64),
    /// The last bytes.
    TailBytes(u64),
    /// The last lines.
    TailLines(u64),
    /// Lines that match a pattern.
    Search(OutputSearch),
}

/// A search in the output of a process, line by line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct OutputSearch {
    /// A regular expression.
    pub pattern: String,
    /// Whether the pattern is plain text.
    #[serde(default, skip_serializing_if = "crate::is_false")]
    pub literal: bool,
    #[serde(default)]
    pub case: CaseMode,
    /// The search begins at this byte.
    #[serde(default)]
    pub offset: u64,
}

/// The output that is kept of a process, by offsets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct OutputExtent {
    /// Offset of the first byte that is kept.
    pub first_offset: u64,
    /// All bytes that the process has written so far.
    pub end_offset: u64,
    /// Where a further read continues.
    pub next_offset: u64,
    /// Why the spool keeps no further output, as a kind such as `no_space`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spool_failure: Option<String>,
}
