//! The payloads of `session/*`: looking at the sessions of a server, and how long one's own waits.

use serde::{Deserialize, Serialize};

use crate::process::ProcessSummary;

/// Result of `session/list`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionListResponse {
    /// The sessions that the caller's credential may use, oldest first.
    pub sessions: Vec<SessionSummary>,
}

/// One session of a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SessionSummary {
    /// Which session.
    pub session_id: String,
    /// What the client that opened it calls itself.
    pub client_name: String,
    /// When, in milliseconds since 1970.
    pub opened_at_ms: u64,
    /// Whether a connection holds it now.
    pub attached: bool,
    /// How long its processes wait for their client after a lost connection.
    pub session_linger_ms: u64,
    /// Its processes, by id.
    pub processes: Vec<ProcessSummary>,
}

/// Params of `session/setLinger`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SessionSetLingerParams {
    /// How long this session's processes are to wait for their client after a lost connection.
    pub linger_ms: u64,
}

/// Result of `session/setLinger`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SessionSetLingerResponse {
    /// How long they really wait: no longer than the server allows.
    pub session_linger_ms: u64,
}
