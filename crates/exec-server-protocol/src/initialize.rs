//! The handshake: `initialize` and its result.

use serde::{Deserialize, Serialize};

use crate::environment::EnvironmentInfo;

/// What a client says first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InitializeParams {
    /// A name for logs; may be empty.
    pub client_name: String,
    /// The session to go on with, or none for a new one.
    #[serde(default)]
    pub resume_session_id: Option<String>,
    /// How long the session's processes are to wait for their client after a lost connection.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub linger_ms: Option<u64>,
    /// Whether to take a session over from a connection that is alive.
    #[serde(default, skip_serializing_if = "crate::is_false")]
    pub take_over: bool,
}

/// What the server answers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InitializeResponse {
    /// The session that this connection is now attached to.
    pub session_id: String,
    /// What the machine is like, so that the client need not ask.
    pub environment_info: EnvironmentInfo,
    /// How long the session's processes wait for their client after a lost connection.
    pub session_linger_ms: u64,
}
