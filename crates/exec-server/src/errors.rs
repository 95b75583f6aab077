//! Turns every failure into an error reply: the one place where codes are chosen.

use std::io;

use exec_server_machines::phase::PhaseError;
use exec_server_os::files::FsError;
use exec_server_os::limits::LimitUnavailable;
use exec_server_os::sandbox::{BeyondLandlock, PolicyError};
use exec_server_os::spawn::SpawnError;
use exec_server_protocol::base64::Base64Error;
use exec_server_protocol::errors::{ErrorCode, ErrorData, RpcError};
use exec_server_protocol::limits;
use exec_server_protocol::path_uri::{ForeignPath, PathUri, ToPathError};

use crate::environment::path_uri;
use crate::environment_config::EnvironmentConfigError;
use crate::http::HttpError;

/// What a request can fail with.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// A message that is no JSON-RPC message.
    #[error("{0}")]
    Malformed(String),
    /// A notification that this server does not take.
    #[error("unexpected notification `{0}`; only `initialized` is known")]
    UnknownNotification(String),
    /// No such method.
    #[error("exec-server stub does not implement `{0}` yet")]
    UnknownMethod(String),
    /// Params that do not decode or do not make sense.
    #[error("{0}")]
    InvalidParams(String),
    /// Too early or too often.
    #[error(transparent)]
    Phase(#[from] PhaseError),
    /// A working directory that cannot be one here.
    #[error("cwd URI `{uri}` is not valid on this exec-server host: {source}")]
    Cwd {
        /// The URI as it was given.
        uri: String,
        /// What is wrong with it.
        source: ToPathError,
    },
    /// A path that is no path URI.
    #[error("{0}")]
    Path(ToPathError),
    /// A session that is not there, or not for this client.
    #[error("unknown session id {0}")]
    UnknownSession(String),
    /// A session that another connection holds.
    #[error("session {0} is already attached to another connection")]
    SessionAttached(String),
    /// The connection's session went to another connection.
    #[error("session has been resumed by another connection")]
    SessionMoved,
    /// The server has as many sessions as it may.
    #[error("this server already has its maximum of {0} sessions; see --max-sessions")]
    TooManySessions(usize),
    /// The session has as many processes as it may.
    #[error("this session already has its maximum of {0} processes; see --max-processes")]
    TooManyProcesses(usize),
    /// The connection has as many requests waiting as it may.
    #[error("too many requests are waiting on this connection; read some replies first")]
    TooManyRequests,
    /// A process id that is taken.
    #[error("process {0} already exists")]
    DuplicateProcess(String),
    /// A process id that is not there.
    #[error("unknown process id {0}")]
    UnknownProcess(String),
    /// A start that was ended before it was done.
    #[error("process {0} start was cancelled")]
    StartCancelled(String),
    /// A process that could not be started.
    #[error("{0}")]
    Spawn(#[from] SpawnError),
    /// A sandbox that this server cannot enforce.
    #[error("sandbox intent cannot be enforced on this executor")]
    SandboxUnsupported,
    /// A policy that takes namespaces, where there are none.
    #[error(
        "sandbox intent cannot be enforced on this executor: user namespaces are not allowed here, and Landlock alone is \
         not enough, because {0}; `exec-server doctor` says how to allow user namespaces"
    )]
    BeyondLandlock(#[source] BeyondLandlock),
    /// A policy that has no meaning here.
    #[error("{0}")]
    Policy(#[source] PolicyError),
    /// A pattern that cannot be kept without a gap.
    #[error("a sandbox pattern {0}")]
    PatternTooWide(&'static str),
    /// A sandbox that could not be made from what is on disk.
    #[error("could not set up the sandbox ({step}): {source}")]
    SandboxSetUp {
        /// What was being done.
        step: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// A limit that nothing on this machine holds.
    #[error("{0}")]
    Limit(#[from] LimitUnavailable),
    /// Something that this server does not do.
    #[error("{0}")]
    Unsupported(&'static str),
    /// A signal that could not be sent.
    #[error("failed to signal process: {0}")]
    Signal(#[source] io::Error),
    /// A terminal that could not be resized.
    #[error("failed to resize the terminal: {0}")]
    Resize(#[source] io::Error),
    /// A process without a terminal.
    #[error("process {0} has no terminal")]
    NoTerminal(String),
    /// Writes that nobody takes.
    #[error(
        "the process does not read its stdin and {} bytes already wait; try again later",
        limits::MAX_WAITING_STDIN_BYTES
    )]
    StdinOverloaded,
    /// Too many roots in one request.
    #[error("capability root discovery accepts at most {} roots", limits::MAX_CAPABILITY_ROOTS)]
    TooManyRoots,
    /// Settings that cannot be read.
    #[error("{0}")]
    Config(#[source] EnvironmentConfigError),
    /// A path of another system, where one of this machine is needed.
    #[error("{0}")]
    ForeignPath(ForeignPath),
    /// Something about files that could not be done.
    #[error("{0}")]
    Files(#[from] FsError),
    /// Something about files that the sandbox forbids.
    #[error("{0}")]
    FilesDenied(FsError),
    /// Content that is no base64.
    #[error("{method} requires valid base64 dataBase64: {source}")]
    Content {
        /// Which method.
        method: &'static str,
        /// What is wrong with it.
        source: Base64Error,
    },
    /// A file that does not fit into one answer.
    #[error(
        "file is too large to read: limit is {} bytes; open it with fs/open and read it in blocks",
        limits::MAX_WHOLE_FILE_BYTES
    )]
    FileTooLarge,
    /// A file handle whose name is too long.
    #[error("file handle ID must not exceed {} bytes", limits::MAX_HANDLE_ID_BYTES)]
    HandleIdTooLong,
    /// A file handle whose name is taken.
    #[error("file handle `{0}` already exists")]
    DuplicateHandle(String),
    /// As many file handles as there may be.
    #[error("at most {} file handles may be open per connection", limits::MAX_FILE_HANDLES)]
    TooManyHandles,
    /// A file handle that is not there.
    #[error("unknown file handle `{0}`")]
    UnknownHandle(String),
    /// A file handle that was closed before it was open.
    #[error("file handle `{0}` was closed while it was being opened")]
    HandleClosed(String),
    /// A block that is empty or too long.
    #[error("file {verb} block length must be between 1 and {}", limits::MAX_FILE_BLOCK_BYTES)]
    BlockLength {
        /// What was to be done with it.
        verb: &'static str,
    },
    /// A block beyond the end of all files.
    #[error("file write range exceeds the signed 64-bit file offset limit")]
    BlockRange,
    /// New content with holes where writes had failed.
    #[error("{0} blocks could not be written, so the file was left as it was")]
    BlocksMissing(usize),
    /// More lookups than one request may hold.
    #[error("fs/batch accepts at most {} requests", limits::MAX_BATCH_REQUESTS)]
    BatchTooLong,
    /// Not every method is a small lookup.
    #[error("fs/batch does not accept `{0}`")]
    NotForBatch(String),
    /// An exchange with another server that failed.
    #[error("{0}")]
    Http(#[source] HttpError),
    /// The name of an exchange that is streamed already.
    #[error("http/request `{0}` is already active")]
    DuplicateExchange(String),
    /// As many exchanges as there may be.
    #[error(
        "at most {} http/request exchanges may be active per connection",
        limits::MAX_HTTP_EXCHANGES
    )]
    TooManyExchanges,
    /// Bodies that nobody takes.
    #[error(
        "{} bytes of http bodies already wait on this connection; try again later",
        limits::MAX_HTTP_HELD_BYTES
    )]
    HttpOverloaded,
    /// An answer that would not fit into one message.
    #[error("the reply of {0} bytes is larger than one message may be; ask for less")]
    ReplyTooLarge(usize),
    /// A bug of ours.
    #[error("internal error: the request was dropped")]
    Abandoned,
}

impl RequestError {
    /// The reply for it.
    pub fn to_rpc(&self) -> RpcError {
        use ErrorCode::{
            Internal, InvalidParams, InvalidRequest, MethodNotFound, NotFound, SessionAttached,
        };
        let (code, kind) = match self {
            Self::Malformed(_) => (InvalidRequest, "malformed_message"),
            Self::UnknownNotification(_) => (InvalidRequest, "unknown_notification"),
            Self::UnknownMethod(_) => (MethodNotFound, "unknown_method"),
            Self::InvalidParams(_) => (InvalidParams, "invalid_params"),
            Self::Phase(_) => (InvalidRequest, "lifecycle"),
            Self::Cwd { .. } | Self::Path(_) => (InvalidParams, "invalid_path"),
            Self::UnknownSession(_) => (InvalidRequest, "unknown_session"),
            Self::SessionAttached(_) => (SessionAttached, "session_attached"),
            Self::SessionMoved => (InvalidRequest, "session_moved"),
            Self::TooManySessions(_) => (InvalidRequest, "too_many_sessions"),
            Self::TooManyProcesses(_) => (InvalidRequest, "too_many_processes"),
            Self::TooManyRequests => (InvalidRequest, "too_many_requests"),
            Self::DuplicateProcess(_) => (InvalidRequest, "process_exists"),
            Self::UnknownProcess(_) => (InvalidRequest, "unknown_process"),
            Self::StartCancelled(_) => (InvalidRequest, "start_cancelled"),
            Self::Spawn(error) => return spawn_error(error),
            Self::SandboxUnsupported | Self::BeyondLandlock(_) => {
                (InvalidParams, "sandbox_unsupported")
            }
            Self::Policy(error) => (policy_code(error), "sandbox_policy"),
            Self::PatternTooWide(_) => (InvalidRequest, "sandbox_policy"),
            Self::SandboxSetUp { source, .. } => {
                return system_error("sandbox_failed", self, source);
            }
            Self::Limit(error) => {
                let mut rpc = RpcError::new(InvalidRequest, "limit_unavailable", self.to_string());
                let data = rpc.data.get_or_insert_default();
                data.limit = Some(error.limit);
                data.hint = Some(error.hint.to_owned());
                return rpc;
            }
            Self::Unsupported(_) => (InvalidParams, "unsupported"),
            Self::Signal(error) => return system_error("signal_failed", self, error),
            Self::Resize(error) => return system_error("resize_failed", self, error),
            Self::NoTerminal(_) => (InvalidRequest, "no_terminal"),
            Self::StdinOverloaded => (Internal, "stdin_overloaded"),
            Self::TooManyRoots => (InvalidRequest, "too_many_roots"),
            Self::Config(_) => (Internal, "config_unreadable"),
            Self::ForeignPath(_) => (InvalidRequest, "foreign_path"),
            Self::Files(error) => return files_error(error),
            Self::FilesDenied(error) => {
                let mut rpc = files_error(error);
                rpc.data.get_or_insert_default().sandbox_denied = Some(true);
                return rpc;
            }
            Self::Content { .. } => (InvalidRequest, "invalid_base64"),
            Self::FileTooLarge => (InvalidRequest, "file_too_large"),
            Self::HandleIdTooLong => (InvalidRequest, "handle_id_too_long"),
            Self::DuplicateHandle(_) => (InvalidRequest, "handle_exists"),
            Self::TooManyHandles => (InvalidRequest, "too_many_handles"),
            Self::UnknownHandle(_) => (NotFound, "unknown_handle"),
            Self::HandleClosed(_) => (InvalidRequest, "handle_closed"),
            Self::BlockLength { .. } => (InvalidRequest, "block_length"),
            Self::BlockRange => (InvalidRequest, "block_range"),
            Self::BlocksMissing(_) => (Internal, "blocks_missing"),
            Self::BatchTooLong => (InvalidRequest, "batch_too_long"),
            Self::NotForBatch(_) => (InvalidParams, "not_for_batch"),
            Self::Http(error) => return http_error(error),
            Self::DuplicateExchange(_) => (InvalidParams, "request_exists"),
            Self::TooManyExchanges => (InvalidRequest, "too_many_requests"),
            Self::HttpOverloaded => (Internal, "http_overloaded"),
            Self::ReplyTooLarge(_) => (Internal, "reply_too_large"),
            Self::Abandoned => (Internal, "internal"),
        };
        let error = RpcError::new(code, kind, self.to_string());
        if self.is_retryable() { error.retryable() } else { error }
    }

    fn is_retryable(&self) -> bool {
        matches!(
            self,
            Self::SessionAttached(_)
                | Self::TooManySessions(_)
                | Self::TooManyProcesses(_)
                | Self::TooManyRequests
                | Self::StdinOverloaded
                | Self::TooManyExchanges
                | Self::HttpOverloaded
        )
    }
}

/// Whether the policy cannot be read, or cannot be meant for this machine.
fn policy_code(error: &PolicyError) -> ErrorCode {
    match error {
        PolicyError::MissingCwd | PolicyError::Path(_) | PolicyError::Glob { .. } => {
            ErrorCode::InvalidParams
        }
        PolicyError::ForeignEntry(_)
        | PolicyError::ForeignCwd(_)
        | PolicyError::ForeignWorkspaceRoot(_) => ErrorCode::InvalidRequest,
    }
}

fn spawn_error(error: &SpawnError) -> RpcError {
    let kind = match error {
        SpawnError::NoProgram => "missing_program",
        SpawnError::NulByte(_) => "nul_byte",
        SpawnError::Cwd(source) if source.kind() == io::ErrorKind::NotFound => "cwd_not_found",
        SpawnError::Cwd(_) => "cwd_unusable",
        SpawnError::Program(source) if source.kind() == io::ErrorKind::NotFound => {
            "program_not_found"
        }
        SpawnError::Program(source) if source.kind() == io::ErrorKind::PermissionDenied => {
            "program_not_executable"
        }
        SpawnError::Program(_) => "program_unusable",
        SpawnError::Sandbox { .. } => "sandbox_failed",
        SpawnError::Prepare { .. } => "spawn_failed",
    };
    let errno = match error {
        SpawnError::NoProgram | SpawnError::NulByte(_) => None,
        SpawnError::Cwd(source)
        | SpawnError::Program(source)
        | SpawnError::Sandbox { source, .. }
        | SpawnError::Prepare { source, .. } => exec_server_os::errno_name(source),
    };
    let message = match error {
        SpawnError::Sandbox { step, .. } if NAMESPACE_STEPS.contains(&step.as_str()) => format!(
            "{error}; `exec-server doctor` says how to allow user namespaces, and with --sandbox-fallback landlock the \
             server can keep some policies without"
        ),
        _ => error.to_string(),
    };
    RpcError::new(ErrorCode::Internal, kind, message).with_errno(errno)
}

/// Where a launcher fails if the machine does not allow user namespaces, or nothing in them.
const NAMESPACE_STEPS: [&str; 5] =
    ["namespaces", "setgroups", "uid map", "gid map", "make the mounts private"];

/// The words are those that clients of this method know, and not in `snake_case`.
fn http_error(error: &HttpError) -> RpcError {
    let errno = error.system().and_then(exec_server_os::errno_name);
    RpcError::new(ErrorCode::Internal, error.kind().name(), error.to_string()).with_errno(errno)
}

fn files_error(error: &FsError) -> RpcError {
    use ErrorCode::{Internal, InvalidRequest};
    let (code, kind) = match error {
        FsError::System(source) => return file_system_error(error, source),
        FsError::ShortWrite { source, .. } => {
            return renamed(file_system_error(error, source), "short_write", error);
        }
        FsError::Incomplete { done, path, source, .. } => {
            let mut rpc = renamed(files_error(source), "incomplete", error);
            let data = rpc.data.get_or_insert_default();
            data.completed = Some(*done);
            data.failed_path = Some(path_uri(path));
            return rpc;
        }
        FsError::NotAFile(_) => (InvalidRequest, "not_a_file"),
        FsError::IsLink => (InvalidRequest, "is_symlink"),
        FsError::NoName => (InvalidRequest, "no_name"),
        FsError::DirectoryExists => (Internal, "already_exists"),
        FsError::RecursiveWithoutLinks => (Internal, "unsupported"),
        FsError::WalkLimitsZero | FsError::WalkLimitsExceeded => (InvalidRequest, "walk_limits"),
        FsError::TooManyEntries(..) => (Internal, "too_many_entries"),
        FsError::DirectoryNeedsRecursive => (InvalidRequest, "needs_recursive"),
        FsError::IntoItself => (InvalidRequest, "into_itself"),
        FsError::SameFile => (InvalidRequest, "same_file"),
        FsError::NotCopyable(_) => (InvalidRequest, "not_a_file"),
        FsError::VersionMismatch => (InvalidRequest, "version_mismatch"),
    };
    RpcError::new(code, kind, error.to_string())
}

/// The code and the errno of what happened, with the words for what it means here.
fn renamed(rpc: RpcError, kind: &str, error: &FsError) -> RpcError {
    let data = rpc.data.map(|data| ErrorData { kind: kind.to_owned(), ..data });
    RpcError { message: error.to_string(), data, ..rpc }
}

/// Clients tell "not there" and "not allowed" from everything else by the code, and the rest by the errno.
fn file_system_error(error: &FsError, source: &io::Error) -> RpcError {
    let errno = exec_server_os::errno_name(source);
    let (code, kind) = match errno {
        Some("ENOENT") => (ErrorCode::NotFound, "not_found"),
        Some("EACCES" | "EPERM") => (ErrorCode::InvalidRequest, "permission_denied"),
        Some("EINVAL") => (ErrorCode::InvalidRequest, "invalid_argument"),
        Some("EEXIST") => (ErrorCode::Internal, "already_exists"),
        Some("ENOTDIR") => (ErrorCode::Internal, "not_a_directory"),
        Some("EISDIR") => (ErrorCode::Internal, "is_a_directory"),
        Some("ENOTEMPTY") => (ErrorCode::Internal, "directory_not_empty"),
        Some("EROFS") => (ErrorCode::Internal, "read_only_file_system"),
        Some("ENOSPC" | "EDQUOT") => (ErrorCode::Internal, "no_space"),
        Some("EXDEV") => (ErrorCode::Internal, "other_file_system"),
        _ => (ErrorCode::Internal, "file_system"),
    };
    RpcError::new(code, kind, error.to_string()).with_errno(errno)
}

fn system_error(kind: &str, error: &RequestError, source: &io::Error) -> RpcError {
    RpcError::new(ErrorCode::Internal, kind, error.to_string())
        .with_errno(exec_server_os::errno_name(source))
}

impl From<ToPathError> for RequestError {
    fn from(error: ToPathError) -> Self {
        match error {
            ToPathError::Foreign(foreign) => Self::ForeignPath(foreign),
            error @ ToPathError::Uri(_) => Self::Path(error),
        }
    }
}

/// A working directory that cannot be one here, with the text that clients know.
pub fn cwd_error(uri: &PathUri, source: ToPathError) -> RequestError {
    match source {
        ToPathError::Uri(_) => RequestError::Path(source),
        ToPathError::Foreign(_) => RequestError::Cwd { uri: uri.as_str().to_owned(), source },
    }
}
