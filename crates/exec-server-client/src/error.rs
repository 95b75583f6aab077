//! The errors of a client.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use exec_server_core::event_order::Gap;
use exec_server_protocol::errors::{ErrorCode, ErrorData, RpcError};
use exec_server_protocol::fs::EditMismatch;
use exec_server_protocol::process::ProcessId;
use exec_server_transport::dial::{DialError, ServerUrlError};

use crate::environments::EnvironmentsError;
use crate::relay::RelayError;

/// Why a call failed, or why its outcome is unknown.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ExecServerError {
    /// The server's URL is invalid.
    #[error(transparent)]
    Url(#[from] ServerUrlError),
    /// The server could not be reached.
    #[error("could not connect to {url}")]
    Connect {
        /// The server's URL.
        url: String,
        /// The cause.
        source: Arc<DialError>,
    },
    /// The server could not be reached in time.
    #[error("could not connect to {url} within {timeout:?}")]
    ConnectTimeout {
        /// The server's URL.
        url: String,
        /// The timeout that passed.
        timeout: Duration,
    },
    /// The registry, the relay or the executor rejected or failed the connection to an environment.
    #[error("could not reach environment `{environment_id}` through {registry}")]
    Relay {
        /// The environment's id at the registry.
        environment_id: String,
        /// The registry where the environment is registered.
        registry: String,
        /// The cause.
        source: Arc<RelayError>,
    },
    /// A server that runs as a child could not be started.
    #[error("could not start `{program}`")]
    Spawn {
        /// The program that was started.
        program: String,
        /// The cause.
        source: Arc<io::Error>,
    },
    /// The server accepted the connection, but did not answer `initialize` in time.
    #[error("the server did not answer initialize within {timeout:?}")]
    InitializeTimedOut {
        /// The timeout that passed.
        timeout: Duration,
    },
    /// The connection was closed before the call was sent, so the call was not executed.
    #[error("exec-server transport disconnected: {reason}")]
    Disconnected {
        /// How the connection ended.
        reason: Arc<str>,
    },
    /// The connection broke before the answer arrived; the call may have been executed, and was not retried.
    #[error(
        "exec-server transport disconnected before `{method}` was answered, so it may or may not have happened: {reason}"
    )]
    Ambiguous {
        /// The method that was called.
        method: &'static str,
        /// How the connection ended.
        reason: Arc<str>,
    },
    /// The session could not be resumed, so its processes can no longer be followed.
    #[error("exec-server transport disconnected: {reason}; failed to resume exec-server session")]
    SessionLost {
        /// How the connection ended.
        reason: Arc<str>,
        /// Why the session could not be resumed.
        source: Arc<ExecServerError>,
    },
    /// Another client took the session over; its processes keep running there.
    #[error("taken over by another client")]
    TakenOver,
    /// The server answered with an error.
    #[error("{message}")]
    Server {
        /// The JSON-RPC error code.
        code: i64,
        /// The server's message.
        message: String,
        /// Machine-readable details.
        data: Option<Box<ErrorData>>,
    },
    /// The server sent a message that is malformed or violates the protocol.
    #[error("the server broke the protocol: {0}")]
    Protocol(String),
    /// The limit of pending calls is reached.
    #[error("reached the limit of {limit} pending requests")]
    TooManyCalls {
        /// The maximum number of pending calls.
        limit: usize,
    },
    /// The answer did not arrive in time.
    #[error("`{method}` was not answered within {timeout:?}")]
    TimedOut {
        /// The method that was called.
        method: &'static str,
        /// The timeout that passed.
        timeout: Duration,
    },
    /// The client can no longer follow a process, such as after the session was lost.
    #[error("process {process_id} cannot be followed any further: {reason}")]
    ProcessFailed {
        /// The process that is no longer followed.
        process_id: ProcessId,
        /// Why the client stopped following it.
        reason: Arc<str>,
    },
    /// The server evicted output before it was read.
    #[error("output of process {process_id} was lost: events {} to {}", gap.first, gap.last)]
    OutputLost {
        /// The process whose output is missing.
        process_id: ProcessId,
        /// The sequence numbers of the missing events.
        gap: Gap,
    },
    /// This client already follows a process with this id.
    #[error("process id {0} is in use already")]
    ProcessIdInUse(ProcessId),
    /// The process accepts no more input.
    #[error("the stdin of process {0} is closed")]
    StdinClosed(ProcessId),
    /// The server does not know the process.
    #[error("unknown process id {0}")]
    UnknownProcess(ProcessId),
    /// The server does not have the capability that the call needs.
    #[error("the server does not support {0}")]
    Unsupported(&'static str),
    /// A streamed HTTP body ended before it was complete.
    #[error("the body of an HTTP response ended early: {0}")]
    HttpBody(String),
    /// An argument is invalid.
    #[error("{0}")]
    Invalid(String),
    /// The list of environments cannot be used.
    #[error(transparent)]
    Environments(#[from] Arc<EnvironmentsError>),
}

impl ExecServerError {
    /// Whether a retry may succeed and cannot execute the call twice.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Connect { .. }
            | Self::ConnectTimeout { .. }
            | Self::InitializeTimedOut { .. }
            | Self::Disconnected { .. }
            | Self::TooManyCalls { .. } => true,
            Self::Relay { source, .. } => source.is_transient(),
            Self::Server { code, data, .. } => {
                let says_so = data.as_ref().and_then(|data| data.retryable);
                says_so.unwrap_or(*code == ErrorCode::SessionAttached as i64)
            }
            _ => false,
        }
    }

    /// Whether the server answered that a file or directory does not exist.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::Server { code, .. } if *code == ErrorCode::NotFound as i64)
    }

    /// Whether the connection ended before the answer arrived.
    pub fn is_disconnected(&self) -> bool {
        matches!(
            self,
            Self::Disconnected { .. }
                | Self::Ambiguous { .. }
                | Self::SessionLost { .. }
                | Self::TakenOver
        )
    }

    /// Why an edit did not fit the file, if that is the error.
    pub fn edit_mismatch(&self) -> Option<&EditMismatch> {
        match self {
            Self::Server { data: Some(data), .. } => data.edit.as_deref(),
            _ => None,
        }
    }

    /// The stable identifier of a server's error, such as `not_found`.
    pub fn kind(&self) -> Option<&str> {
        match self {
            Self::Server { data: Some(data), .. } => Some(&data.kind),
            _ => None,
        }
    }
}

impl From<RpcError> for ExecServerError {
    fn from(error: RpcError) -> Self {
        Self::Server { code: error.code, message: error.message, data: error.data.map(Box::new) }
    }
}

impl From<ExecServerError> for io::Error {
    fn from(error: ExecServerError) -> Self {
        let kind = match &error {
            ExecServerError::Server { code, data, .. } => server_error_kind(*code, data.as_deref()),
            ExecServerError::Connect { .. } | ExecServerError::Relay { .. } => {
                io::ErrorKind::NotConnected
            }
            ExecServerError::Disconnected { .. }
            | ExecServerError::Ambiguous { .. }
            | ExecServerError::SessionLost { .. }
            | ExecServerError::TakenOver
            | ExecServerError::StdinClosed(_) => io::ErrorKind::BrokenPipe,
            ExecServerError::ConnectTimeout { .. }
            | ExecServerError::InitializeTimedOut { .. }
            | ExecServerError::TimedOut { .. } => io::ErrorKind::TimedOut,
            ExecServerError::Protocol(_) | ExecServerError::OutputLost { .. } => {
                io::ErrorKind::InvalidData
            }
            ExecServerError::Unsupported(_) => io::ErrorKind::Unsupported,
            ExecServerError::Invalid(_) | ExecServerError::Url(_) => io::ErrorKind::InvalidInput,
            ExecServerError::HttpBody(_) => io::ErrorKind::UnexpectedEof,
            ExecServerError::UnknownProcess(_) => io::ErrorKind::NotFound,
            _ => io::ErrorKind::Other,
        };
        Self::new(kind, error)
    }
}

fn server_error_kind(code: i64, data: Option<&ErrorData>) -> io::ErrorKind {
    match data.and_then(|data| data.errno.as_deref()) {
        Some("EACCES" | "EPERM") => io::ErrorKind::PermissionDenied,
        Some("EROFS") => io::ErrorKind::ReadOnlyFilesystem,
        Some("EEXIST") => io::ErrorKind::AlreadyExists,
        Some("ENOTDIR") => io::ErrorKind::NotADirectory,
        Some("EISDIR") => io::ErrorKind::IsADirectory,
        Some("ENOTEMPTY") => io::ErrorKind::DirectoryNotEmpty,
        Some("ENOSPC") => io::ErrorKind::StorageFull,
        _ if code == ErrorCode::NotFound as i64 => io::ErrorKind::NotFound,
        _ if code == ErrorCode::InvalidRequest as i64 => io::ErrorKind::InvalidInput,
        _ if code == ErrorCode::InvalidParams as i64 => io::ErrorKind::InvalidInput,
        _ => io::ErrorKind::Other,
    }
}
