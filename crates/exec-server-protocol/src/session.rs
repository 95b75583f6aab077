//! Payloads of `session/*`.

#![allow(
    missing_docs,
    reason = "wire members repeat their JSON names; docs state only extra facts"
)]

use serde::{Deserialize, Serialize};

use crate::process::ProcessSummary;

/// Close code of a connection whose session was taken over.
pub const SESSION_MOVED_CLOSE_CODE: u16 = 4001;

/// Result of `session/list`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SessionListResponse {
    /// The sessions that the caller's credential may use, oldest first.
    pub sessions: Vec<SessionSummary>,
}

/// One session of a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct SessionSummary {
    pub session_id: String,
    /// `clientName` of the client that opened it.
    pub client_name: String,
    /// Time of opening in Unix milliseconds.
    pub opened_at_ms: u64,
    /// Whether a connection is attached.
    pub attached: bool,
    /// How long processes keep running after the connection is lost.
    pub session_linger_ms: u64,
    /// Its processes, by id.
    pub processes: Vec<ProcessSummary>,
}

/// Params of `session/setLinger`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct SessionSetLingerParams {
    /// How long processes keep running after the connection is lost.
    pub linger_ms: u64,
}

/// Result of `session/setLinger`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct SessionSetLingerResponse {
    /// The effective value, capped by the server.
    pub session_linger_ms: u64,
}
