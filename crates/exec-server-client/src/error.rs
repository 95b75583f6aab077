//! What can go wrong between a caller and a server.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use exec_server_machines::event_order::Gap;
use exec_server_protocol::errors::{ErrorCode, ErrorData, RpcError};
use exec_server_protocol::process::ProcessId;
use exec_server_transport::causes::chain;
use exec_server_transport::dial::{DialError, ServerUrlError};

use crate::environments::EnvironmentsError;
use crate::relay::RelayError;

/// Why something was not done, or why nobody knows whether it was.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ExecServerError {
    /// The server's address is none.
    #[error(transparent)]
    Url(#[from] ServerUrlError),
    /// The server could not be reached.
    #[error("could not connect to {url}")]
    Connect {
        /// Where it should be.
        url: String,
        /// Why not.
        source: Arc<DialError>,
    },
    /// The server could not be reached in time.
    #[error("could not connect to {url} within {timeout:?}")]
    ConnectTimeout {
        /// Where it should be.
        url: String,
        /// The time that it had.
        timeout: Duration,
    },
    /// A registry, a relay or an executor stands in the way to an environment.
    #[error("could not reach environment `{environment_id}` through {registry}")]
    Relay {
        /// The environment.
        environment_id: String,
        /// The registry that it is known by.
        registry: String,
        /// Why not.
        source: Arc<RelayError>,
    },
    /// A server that runs as a child could not be started.
    #[error("could not start `{program}`")]
    Spawn {
        /// What was to be started.
        program: String,
        /// Why not.
        source: Arc<io::Error>,
    },
    /// The server took the connection, but did not answer `initialize` in time.
    #[error("the server did not answer initialize within {timeout:?}")]
    InitializeTimedOut {
        /// The time that it had.
        timeout: Duration,
    },
    /// The connection was gone before the call was sent; it did not happen.
    #[error("exec-server transport disconnected: {reason}")]
    Disconnected {
        /// How the connection ended.
        reason: Arc<str>,
    },
    /// The connection broke before the call was answered; it may or may not have happened, and was not repeated.
    #[error(
        "exec-server transport disconnected before `{method}` was answered, so it may or may not have happened: {reason}"
    )]
    Ambiguous {
        /// The method that was called.
        method: &'static str,
        /// How the connection ended.
        reason: Arc<str>,
    },
    /// The session could not be resumed, so that its processes are out of reach.
    #[error(
        "exec-server transport disconnected: {reason}; failed to resume exec-server session: {}",
        chain(source)
    )]
    SessionLost {
        /// How the connection ended.
        reason: Arc<str>,
        /// Why the session did not come back.
        source: Arc<ExecServerError>,
    },
    /// The server refused or failed.
    #[error("{message}")]
    Server {
        /// The JSON-RPC error code.
        code: i64,
        /// What the server says.
        message: String,
        /// Facts for programs.
        data: Option<Box<ErrorData>>,
    },
    /// The server said something that this client does not understand.
    #[error("the server broke the protocol: {0}")]
    Protocol(String),
    /// Too many calls wait for an answer.
    #[error("reached the limit of {limit} pending requests")]
    TooManyCalls {
        /// How many may wait at once.
        limit: usize,
    },
    /// There was no answer in time.
    #[error("`{method}` was not answered within {timeout:?}")]
    TimedOut {
        /// The method that was called.
        method: &'static str,
        /// The time that it had.
        timeout: Duration,
    },
    /// A process can no longer be followed.
    #[error("process {process_id} cannot be followed any further: {reason}")]
    ProcessFailed {
        /// Which one.
        process_id: ProcessId,
        /// Why.
        reason: Arc<str>,
    },
    /// Output fell out of the server's retention before it could be read.
    #[error("output of process {process_id} was lost: events {} to {}", gap.first, gap.last)]
    OutputLost {
        /// Which process.
        process_id: ProcessId,
        /// What is missing.
        gap: Gap,
    },
    /// A process with this id is followed already.
    #[error("process id {0} is in use already")]
    ProcessIdInUse(ProcessId),
    /// The process takes no input.
    #[error("the stdin of process {0} is closed")]
    StdinClosed(ProcessId),
    /// The server does not know the process.
    #[error("unknown process id {0}")]
    UnknownProcess(ProcessId),
    /// The server lacks what was asked for.
    #[error("the server does not support {0}")]
    Unsupported(&'static str),
    /// A streamed HTTP body broke off.
    #[error("the body of an HTTP response broke off: {0}")]
    HttpBody(String),
    /// The arguments make no sense.
    #[error("{0}")]
    Invalid(String),
    /// The list of environments cannot be used.
    #[error(transparent)]
    Environments(#[from] Arc<EnvironmentsError>),
}

impl ExecServerError {
    /// Whether the same call may succeed if it is made again, without the danger that it happens twice.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Connect { .. }
            | Self::ConnectTimeout { .. }
            | Self::InitializeTimedOut { .. }
            | Self::Disconnected { .. }
            | Self::TooManyCalls { .. } => true,
            Self::Relay { source, .. } => source.may_pass(),
            Self::Server { code, data, .. } => {
                let says_so = data.as_ref().and_then(|data| data.retryable);
                says_so.unwrap_or(*code == ErrorCode::SessionAttached as i64)
            }
            _ => false,
        }
    }

    /// Whether the file or directory is not there.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::Server { code, .. } if *code == ErrorCode::NotFound as i64)
    }

    /// Whether the connection ended before there was an answer.
    pub fn is_disconnected(&self) -> bool {
        matches!(
            self,
            Self::Disconnected { .. } | Self::Ambiguous { .. } | Self::SessionLost { .. }
        )
    }

    /// The stable word of a server's error, such as `not_found`.
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
