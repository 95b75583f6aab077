//! The handshake: `initialize` and its result.

use serde::{Deserialize, Serialize};

use crate::environment::EnvironmentInfo;

/// Params of `initialize`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InitializeParams {
    /// A name for logs; may be empty.
    pub client_name: String,
    /// The session to go on with, or none for a new one.
    #[serde(default)]
    pub resume_session_id: Option<String>,
    /// How long processes keep running after the connection is lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub linger_ms: Option<u64>,
    /// Whether to take a session over from a connection that is alive. None is a client that resumes its own session;
    /// false is another client, which leaves the session with a peer that cannot be probed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub take_over: Option<bool>,
    /// What the client can do beyond the least.
    #[serde(default, skip_serializing_if = "ClientCapabilities::is_none")]
    pub client_capabilities: ClientCapabilities,
}

/// What a client can do; what is missing is false.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClientCapabilities {
    /// It wants to know which members of its requests the server ignored: `ignored` in replies.
    #[serde(skip_serializing_if = "crate::is_false")]
    pub report_ignored: bool,
    /// It wants `session/moved` before its connection ends because another connection took the session over.
    #[serde(skip_serializing_if = "crate::is_false")]
    pub session_moved: bool,
}

impl ClientCapabilities {
    fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

/// Result of `initialize`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InitializeResponse {
    /// The session that this connection is now attached to.
    pub session_id: String,
    /// What the machine is like, so that the client need not ask.
    pub environment_info: EnvironmentInfo,
    /// How long processes keep running after the connection is lost.
    pub session_linger_ms: u64,
}
