//! The handshake: `initialize` and its result.

use serde::{Deserialize, Serialize};

use crate::environment::EnvironmentInfo;

/// Params of `initialize`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct InitializeParams {
    /// A name for logs; may be empty.
    pub client_name: String,
    /// The session to resume; without it, a new session is opened.
    #[serde(default)]
    pub resume_session_id: Option<String>,
    /// How long processes keep running after the connection is lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub linger_ms: Option<u64>,
    /// Whether to take the session over from a live connection. Absent for a client that resumes its own session; false for
    /// another client, which then leaves the session with a peer that cannot be probed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub take_over: Option<bool>,
    /// Optional features of the client.
    #[serde(default, skip_serializing_if = "ClientCapabilities::is_none")]
    pub client_capabilities: ClientCapabilities,
}

/// Optional features of a client; a missing member is false.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct ClientCapabilities {
    /// The client handles `ignored` in replies, which names the request members that the server ignored.
    #[serde(skip_serializing_if = "crate::is_false")]
    pub report_ignored: bool,
    /// The client handles `session/moved`, sent before its connection closes because of a take-over.
    #[serde(skip_serializing_if = "crate::is_false")]
    pub session_moved: bool,
    /// The client reads binary messages; only on carriers that have them.
    #[serde(skip_serializing_if = "crate::is_false")]
    pub binary_messages: bool,
}

impl ClientCapabilities {
    fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

/// Result of `initialize`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct InitializeResponse {
    /// The session that this connection is now attached to.
    pub session_id: String,
    /// Facts about the machine, so that the client need not request them.
    pub environment_info: EnvironmentInfo,
    /// How long processes keep running after the connection is lost.
    pub session_linger_ms: u64,
}
