//! Error replies: the codes in use and the shape of `error.data`.

use serde::{Deserialize, Serialize};

use crate::error_kinds::ErrorKind;
use crate::fs::EditMismatch;
use crate::limits::MAX_ERROR_MESSAGE_BYTES;
use crate::path_uri::PathUri;
use crate::process::LimitName;

/// A JSON-RPC error code that this protocol uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i64)]
pub enum ErrorCode {
    /// Malformed message, lifecycle violation, unknown session or process.
    InvalidRequest = -32600,
    /// No such method.
    MethodNotFound = -32601,
    /// The parameters do not match the method.
    InvalidParams = -32602,
    /// The operation failed on the server.
    Internal = -32603,
    /// The file or directory does not exist.
    NotFound = -32004,
    /// The session is attached to another, live connection.
    SessionAttached = -32010,
}

impl ErrorCode {
    /// Every code.
    pub const ALL: [Self; 6] = [
        Self::InvalidRequest,
        Self::MethodNotFound,
        Self::InvalidParams,
        Self::Internal,
        Self::NotFound,
        Self::SessionAttached,
    ];

    /// What the code means.
    pub fn description(self) -> &'static str {
        match self {
            Self::InvalidRequest => {
                "The message is malformed, or the request does not fit the state of the server."
            }
            Self::MethodNotFound => "No such method.",
            Self::InvalidParams => "The params do not match the method.",
            Self::Internal => "The operation failed on the server.",
            Self::NotFound => "The file, directory or handle does not exist.",
            Self::SessionAttached => "The session is attached to another, live connection.",
        }
    }
}

/// The `error` member of a reply.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RpcError {
    /// Error class; see [`ErrorCode`].
    pub code: i64,
    /// Human-readable text.
    pub message: String,
    /// Machine-readable details.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub data: Option<ErrorData>,
}

/// Machine-readable details of an error.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ErrorData {
    /// Stable name of this error; see the table of kinds.
    pub kind: String,
    /// The operating system's name of the error, such as `ENOENT`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub errno: Option<String>,
    /// True when the sandbox denied the operation.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub sandbox_denied: Option<bool>,
    /// Whether the same request may succeed later.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub retryable: Option<bool>,
    /// Number of entries that were processed before one failed.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub completed: Option<u64>,
    /// The entry that failed.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub failed_path: Option<PathUri>,
    /// The limit that cannot be enforced.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub limit: Option<LimitName>,
    /// How to fix the error.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub hint: Option<String>,
    /// The edit that does not fit the file.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub edit: Option<Box<EditMismatch>>,
}

impl RpcError {
    /// An error of `code` whose `data.kind` is `kind`.
    pub fn new(code: ErrorCode, kind: ErrorKind, message: impl Into<String>) -> Self {
        let mut message = message.into();
        if message.len() > MAX_ERROR_MESSAGE_BYTES {
            message.truncate(message.floor_char_boundary(MAX_ERROR_MESSAGE_BYTES));
            message.push('…');
            message.shrink_to_fit();
        }
        Self {
            code: code as i64,
            message,
            data: Some(ErrorData { kind: kind.name().to_owned(), ..ErrorData::default() }),
        }
    }

    /// Marks the error as worth a retry.
    #[must_use]
    pub fn retryable(mut self) -> Self {
        self.data.get_or_insert_default().retryable = Some(true);
        self
    }

    /// Adds the operating system's name of the error.
    #[must_use]
    pub fn with_errno(mut self, errno: Option<&str>) -> Self {
        self.data.get_or_insert_default().errno = errno.map(str::to_owned);
        self
    }
}
