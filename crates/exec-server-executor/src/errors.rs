//! Maps every failure to a JSON-RPC error; the only place that chooses error codes.

use std::io;

use exec_server_core::phase::PhaseError;
use exec_server_fs::tree_watch::WatchError;
use exec_server_fs::{EditRefusal, FsError, Nature, ParamsError};
use exec_server_os::limits::LimitUnavailable;
use exec_server_os::spawn::SpawnError;
use exec_server_protocol::base64::Base64Error;
use exec_server_protocol::error_kinds::ErrorKind as Kind;
use exec_server_protocol::errors::{ErrorCode, ErrorData, RpcError};
use exec_server_protocol::fs::{EditMismatch, NearestText};
use exec_server_protocol::http::HttpErrorKind;
use exec_server_protocol::limits;
use exec_server_protocol::methods::Method;
use exec_server_protocol::path_uri::{ForeignPath, PathUri, ToPathError};
use exec_server_sandbox::MOST_WORK;
use exec_server_sandbox::policy::{BeyondLandlock, PolicyError};
use exec_server_transport::text::OutOfMemory;

use crate::codex::config::EnvironmentConfigError;
use crate::egress::HttpError;
use crate::environment::path_uri;

/// The reason why a request fails; the text is the `message` of the JSON-RPC error, with its cause.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// The message is not valid JSON-RPC.
    #[error("{0}")]
    Malformed(String),
    /// The only notification that clients may send is `initialized`.
    #[error("unexpected notification `{0}`; the server accepts only `initialized`")]
    UnknownNotification(String),
    #[error("unknown method `{0}`")]
    UnknownMethod(String),
    /// The same with the text of the reference server, which the reference client matches.
    #[error("exec-server stub does not implement `{0}` yet")]
    UnimplementedMethod(String),
    /// The params cannot be decoded or contradict each other.
    #[error("{0}")]
    InvalidParams(String),
    /// The method is not allowed in this phase of the connection.
    #[error(transparent)]
    Phase(#[from] PhaseError),
    /// The working directory is a path of another operating system.
    #[error("cwd URI `{uri}` is not valid on this exec-server host: {cause}")]
    Cwd { uri: String, cause: ToPathError },
    /// The path is not a valid path URI.
    #[error("{0}")]
    Path(ToPathError),
    /// The session does not exist or belongs to another principal.
    #[error("unknown session id {0}")]
    UnknownSession(String),
    #[error("session {0} is already attached to another connection")]
    SessionAttached(String),
    #[error("session has been resumed by another connection")]
    SessionMoved,
    #[error(
        "this server already has its maximum of {0} sessions; end one, or raise --max-sessions"
    )]
    TooManySessions(usize),
    #[error(
        "this session already has its maximum of {0} processes; end one, or raise --max-processes"
    )]
    TooManyProcesses(usize),
    /// The request queue of the connection is full.
    #[error("the request queue of this connection is full; read some replies, then retry")]
    TooManyRequests,
    #[error("process {0} already exists")]
    DuplicateProcess(String),
    /// The start asked for a unique id, and a live process of another session has the id.
    #[error(
        "a process named `{id}` is running already (session {session_id}); choose another name, or end it first"
    )]
    NameInUse { id: String, session_id: String },
    #[error("unknown process id {0}")]
    UnknownProcess(String),
    /// `process/terminate` or the end of the session arrived before the process was spawned.
    #[error("process {0} start was cancelled")]
    StartCancelled(String),
    #[error(transparent)]
    Spawn(#[from] SpawnError),
    #[error("unknown user `{0}`: /etc/passwd of the server has no such name or number")]
    UnknownUser(String),
    /// The server may not change users.
    #[error(
        "this server cannot run as the user `{0}`: it needs root, or the capabilities CAP_SETUID, CAP_SETGID, CAP_KILL and \
         CAP_CHOWN, to change users"
    )]
    UserUnavailable(String),
    #[error("could not look up the user `{user}`: {cause}")]
    Users { user: String, cause: io::Error },
    #[error("could not enter the working directory `{path}`: {cause}")]
    CwdUnusable { path: String, cause: io::Error },
    /// The request has a sandbox that this server cannot enforce.
    #[error("sandbox intent cannot be enforced on this executor")]
    SandboxUnsupported,
    /// The policy needs namespaces, and the server uses Landlock alone.
    #[error(
        "sandbox intent cannot be enforced on this executor: user namespaces are not allowed here, and Landlock alone is \
         not enough, because {0}; run `exec-server doctor` to see how to allow user namespaces"
    )]
    BeyondLandlock(BeyondLandlock),
    /// The policy is invalid or names paths of another operating system.
    #[error(transparent)]
    Policy(PolicyError),
    /// The pattern has too many matches or candidates; enforcing only some of them would leave gaps.
    #[error("a sandbox pattern {0}")]
    PatternTooWide(&'static str),
    /// Resolving the paths and patterns of the policy exceeds the CPU time limit.
    #[error(
        "resolving the sandbox policy takes more than {} s of CPU time; use fewer entries, shorter paths or narrower \
         patterns",
        MOST_WORK.as_secs()
    )]
    PolicyTooCostly,
    /// The server could not prepare the sandbox before the spawn.
    #[error("could not set up the sandbox ({step}): {cause}")]
    SandboxSetUp { step: &'static str, cause: io::Error },
    /// This machine has no mechanism that enforces the limit.
    #[error(transparent)]
    Limit(#[from] LimitUnavailable),
    /// The request uses a feature that this server does not have.
    #[error("{0}")]
    Unsupported(&'static str),
    /// The file for the output cannot be made.
    #[error("outputSpool is not available: {0}")]
    SpoolUnavailable(String),
    #[error(
        "the output spools of this server already have their maximum of {0} bytes; retry later, or raise --max-output-spools"
    )]
    SpoolsFull(u64),
    #[error("failed to signal process: {0}")]
    Signal(io::Error),
    #[error("failed to resize the terminal: {0}")]
    Resize(io::Error),
    #[error("process {0} has no terminal")]
    NoTerminal(String),
    #[error(
        "the stdin queue is full: the process has not read {} bytes; retry later",
        limits::MAX_WAITING_STDIN_BYTES
    )]
    StdinOverloaded,
    #[error("capability root discovery accepts at most {} roots", limits::MAX_CAPABILITY_ROOTS)]
    TooManyRoots,
    #[error(transparent)]
    Config(EnvironmentConfigError),
    /// The path belongs to another operating system.
    #[error("{0}")]
    ForeignPath(ForeignPath),
    #[error(transparent)]
    Files(#[from] FsError),
    /// The sandbox policy of the request denies the file operation.
    #[error("{0}")]
    FilesDenied(FsError),
    /// The sandbox policy of the request denies `http/request`.
    #[error("http/request is not allowed: the sandbox policy restricts the network")]
    NetworkDenied,
    #[error("{} requires valid base64 dataBase64: {cause}", .method.name())]
    Content { method: Method, cause: Base64Error },
    #[error(
        "file is too large to read: limit is {} bytes; open it with fs/open and read it in blocks",
        limits::MAX_WHOLE_FILE_BYTES
    )]
    FileTooLarge,
    #[error("file handle ID must not exceed {} bytes", limits::MAX_HANDLE_ID_BYTES)]
    HandleIdTooLong,
    #[error("file handle `{0}` already exists")]
    DuplicateHandle(String),
    #[error("at most {} file handles may be open per connection", limits::MAX_FILE_HANDLES)]
    TooManyHandles,
    #[error("unknown file handle `{0}`")]
    UnknownHandle(String),
    #[error("file {verb} block length must be between 1 and {}", limits::MAX_FILE_BLOCK_BYTES)]
    BlockLength { verb: &'static str },
    #[error("file write range exceeds the signed 64-bit file offset limit")]
    BlockRange,
    /// Earlier block writes failed, so the new content would have holes.
    #[error("{0} blocks could not be written, so the file was not changed")]
    BlocksMissing(usize),
    #[error(transparent)]
    Watch(WatchError),
    #[error("watch `{0}` already exists")]
    DuplicateWatch(String),
    #[error("unknown watch `{0}`")]
    UnknownWatch(String),
    #[error("at most {} watches may be active per session; end one first", limits::MAX_WATCHES)]
    TooManyWatches,
    /// The search id belongs to a search that has not ended.
    #[error("search `{0}` already exists")]
    DuplicateSearch(String),
    #[error("unknown search `{0}`: it has ended, or was never started on this connection")]
    UnknownSearch(String),
    #[error(
        "at most {} searches may be active per connection; read one to its end, or cancel it",
        limits::MAX_SEARCHES
    )]
    TooManySearches,
    #[error("the search was cancelled")]
    SearchCancelled,
    #[error("fs/batch accepts at most {} requests", limits::MAX_BATCH_REQUESTS)]
    BatchTooLong,
    #[error("fs/batch does not accept `{0}`")]
    NotForBatch(String),
    #[error(transparent)]
    Http(HttpError),
    /// The request id belongs to an exchange whose body is still streamed.
    #[error("http/request `{0}` is already active")]
    DuplicateExchange(String),
    #[error(
        "at most {} http/request exchanges may be active per connection",
        limits::MAX_HTTP_EXCHANGES
    )]
    TooManyExchanges,
    #[error(
        "the buffer of {} bytes for HTTP bodies of this connection is full; retry later",
        limits::MAX_HTTP_HELD_BYTES
    )]
    HttpOverloaded,
    /// The allocation of the reply failed.
    #[error(transparent)]
    OutOfMemory(#[from] OutOfMemory),
    /// The wait for reply memory that only other connections hold has timed out.
    #[error(
        "no memory for a reply of {0} bytes: unread replies of other connections use it; retry later, request less \
         data, or raise --max-reply-memory"
    )]
    NoReplyMemory(usize),
    #[error("the reply of {0} bytes is larger than the message limit; request less data")]
    ReplyTooLarge(usize),
    /// The request was refused because its audit record cannot be written.
    #[error(
        "the request was refused, because this server must record it and cannot write its audit log: {0}; make room \
         for the log, or start the server with --audit-on-full drop-and-count"
    )]
    AuditUnavailable(String),
    /// The handler dropped the reply: a bug, or its connection or process ended first.
    #[error("internal error: the request was dropped")]
    Abandoned,
}

impl RequestError {
    /// Converts the failure into its JSON-RPC error.
    pub fn to_rpc(&self) -> RpcError {
        use ErrorCode::{
            Internal, InvalidParams, InvalidRequest, MethodNotFound, NotFound, SessionAttached,
        };
        let (code, kind) = match self {
            Self::Malformed(_) => (InvalidRequest, Kind::MalformedMessage),
            Self::UnknownNotification(_) => (InvalidRequest, Kind::UnknownNotification),
            Self::UnknownMethod(_) | Self::UnimplementedMethod(_) => {
                (MethodNotFound, Kind::UnknownMethod)
            }
            Self::InvalidParams(_) => (InvalidParams, Kind::InvalidParams),
            Self::Phase(_) => (InvalidRequest, Kind::Lifecycle),
            Self::Cwd { .. } | Self::Path(_) => (InvalidParams, Kind::InvalidPath),
            Self::UnknownSession(_) => (InvalidRequest, Kind::UnknownSession),
            Self::SessionAttached(_) => (SessionAttached, Kind::SessionAttached),
            Self::SessionMoved => (InvalidRequest, Kind::SessionMoved),
            Self::TooManySessions(_) => (InvalidRequest, Kind::TooManySessions),
            Self::TooManyProcesses(_) => (InvalidRequest, Kind::TooManyProcesses),
            Self::TooManyRequests => (InvalidRequest, Kind::TooManyRequests),
            Self::DuplicateProcess(_) => (InvalidRequest, Kind::ProcessExists),
            Self::NameInUse { .. } => (InvalidRequest, Kind::NameInUse),
            Self::UnknownProcess(_) => (InvalidRequest, Kind::UnknownProcess),
            Self::StartCancelled(_) => (InvalidRequest, Kind::StartCancelled),
            Self::Spawn(error) => return spawn_error(error),
            Self::UnknownUser(_) => (InvalidParams, Kind::UnknownUser),
            Self::UserUnavailable(_) => (InvalidRequest, Kind::UserUnavailable),
            Self::Users { cause, .. } => return system_error(Kind::UsersUnreadable, self, cause),
            Self::CwdUnusable { cause, .. } => {
                let kind = cwd_kind(cause);
                return system_error(kind, self, cause);
            }
            Self::SandboxUnsupported | Self::BeyondLandlock(_) => {
                (InvalidParams, Kind::SandboxUnsupported)
            }
            Self::Policy(error) => (policy_code(error), Kind::SandboxPolicy),
            Self::PatternTooWide(_) | Self::PolicyTooCostly => {
                (InvalidRequest, Kind::SandboxPolicy)
            }
            Self::SandboxSetUp { cause, .. } => {
                return system_error(Kind::SandboxFailed, self, cause);
            }
            Self::Limit(error) => {
                let mut rpc =
                    RpcError::new(InvalidRequest, Kind::LimitUnavailable, self.to_string());
                let data = rpc.data.get_or_insert_default();
                data.limit = Some(error.limit);
                data.hint = Some(error.hint.to_owned());
                return rpc;
            }
            Self::Unsupported(_) => (InvalidParams, Kind::Unsupported),
            Self::SpoolUnavailable(_) => (InvalidRequest, Kind::SpoolUnavailable),
            Self::SpoolsFull(_) => (InvalidRequest, Kind::SpoolsFull),
            Self::Signal(error) => return system_error(Kind::SignalFailed, self, error),
            Self::Resize(error) => return system_error(Kind::ResizeFailed, self, error),
            Self::NoTerminal(_) => (InvalidRequest, Kind::NoTerminal),
            Self::StdinOverloaded => (Internal, Kind::StdinOverloaded),
            Self::TooManyRoots => (InvalidRequest, Kind::TooManyRoots),
            Self::Config(_) => (Internal, Kind::ConfigUnreadable),
            Self::ForeignPath(_) => (InvalidRequest, Kind::ForeignPath),
            Self::Files(error) => return files_error(error),
            Self::FilesDenied(error) => {
                let mut rpc = files_error(error);
                rpc.data.get_or_insert_default().sandbox_denied = Some(true);
                return rpc;
            }
            Self::NetworkDenied => {
                let kind = HttpErrorKind::Forbidden.into();
                let mut rpc = RpcError::new(InvalidRequest, kind, self.to_string());
                rpc.data.get_or_insert_default().sandbox_denied = Some(true);
                return rpc;
            }
            Self::Content { .. } => (InvalidRequest, Kind::InvalidBase64),
            Self::FileTooLarge => (InvalidRequest, Kind::FileTooLarge),
            Self::HandleIdTooLong => (InvalidRequest, Kind::HandleIdTooLong),
            Self::DuplicateHandle(_) => (InvalidRequest, Kind::HandleExists),
            Self::TooManyHandles => (InvalidRequest, Kind::TooManyHandles),
            Self::UnknownHandle(_) => (NotFound, Kind::UnknownHandle),
            Self::BlockLength { .. } => (InvalidRequest, Kind::BlockLength),
            Self::BlockRange => (InvalidRequest, Kind::BlockRange),
            Self::BlocksMissing(_) => (Internal, Kind::BlocksMissing),
            Self::Watch(error) => return watch_error(self, error),
            Self::DuplicateWatch(_) => (InvalidRequest, Kind::WatchExists),
            Self::UnknownWatch(_) => (NotFound, Kind::UnknownWatch),
            Self::TooManyWatches => (InvalidRequest, Kind::TooManyWatches),
            Self::DuplicateSearch(_) => (InvalidRequest, Kind::SearchExists),
            Self::UnknownSearch(_) => (NotFound, Kind::UnknownSearch),
            Self::TooManySearches => (InvalidRequest, Kind::TooManySearches),
            Self::SearchCancelled => (InvalidRequest, Kind::SearchCancelled),
            Self::BatchTooLong => (InvalidRequest, Kind::BatchTooLong),
            Self::NotForBatch(_) => (InvalidParams, Kind::NotForBatch),
            Self::Http(error) => return http_error(error),
            Self::DuplicateExchange(_) => (InvalidParams, Kind::RequestExists),
            Self::TooManyExchanges => (InvalidRequest, Kind::TooManyRequests),
            Self::HttpOverloaded => (Internal, Kind::HttpOverloaded),
            Self::OutOfMemory(_) | Self::NoReplyMemory(_) => (Internal, Kind::OutOfMemory),
            Self::ReplyTooLarge(_) => (Internal, Kind::ReplyTooLarge),
            Self::AuditUnavailable(_) => (Internal, Kind::AuditUnavailable),
            Self::Abandoned => (Internal, Kind::Internal),
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
                | Self::AuditUnavailable(_)
                | Self::StdinOverloaded
                | Self::SpoolsFull(_)
                | Self::TooManyExchanges
                | Self::TooManySearches
                | Self::HttpOverloaded
                | Self::OutOfMemory(_)
                | Self::NoReplyMemory(_)
        )
    }
}

/// Rejects a name that the server would keep or repeat if it has more than `most` bytes.
pub fn check_length(member: &str, name: &str, most: usize) -> Result<(), RequestError> {
    if name.len() <= most {
        return Ok(());
    }
    Err(RequestError::InvalidParams(format!("`{member}` is longer than {most} bytes")))
}

/// A malformed policy is `InvalidParams`; a policy for another machine or one that is too large is `InvalidRequest`.
fn policy_code(error: &PolicyError) -> ErrorCode {
    match error {
        PolicyError::MissingCwd | PolicyError::Path(_) | PolicyError::Glob { .. } => {
            ErrorCode::InvalidParams
        }
        PolicyError::TooLarge
        | PolicyError::ForeignEntry(_)
        | PolicyError::ForeignCwd(_)
        | PolicyError::ForeignWorkspaceRoot(_) => ErrorCode::InvalidRequest,
    }
}

fn cwd_kind(source: &io::Error) -> Kind {
    if source.kind() == io::ErrorKind::NotFound { Kind::CwdNotFound } else { Kind::CwdUnusable }
}

fn spawn_error(error: &SpawnError) -> RpcError {
    let kind = match error {
        SpawnError::NoProgram => Kind::MissingProgram,
        SpawnError::NulByte(_) => Kind::NulByte,
        SpawnError::User(_) => Kind::UserUnavailable,
        SpawnError::Cwd(source) => cwd_kind(source),
        SpawnError::Program(source) if source.kind() == io::ErrorKind::NotFound => {
            Kind::ProgramNotFound
        }
        SpawnError::Program(source) if source.kind() == io::ErrorKind::PermissionDenied => {
            Kind::ProgramNotExecutable
        }
        SpawnError::Program(_) => Kind::ProgramUnusable,
        SpawnError::Sandbox { .. } => Kind::SandboxFailed,
        SpawnError::Prepare { .. } => Kind::SpawnFailed,
    };
    let errno = match error {
        SpawnError::NoProgram | SpawnError::NulByte(_) => None,
        SpawnError::User(source)
        | SpawnError::Cwd(source)
        | SpawnError::Program(source)
        | SpawnError::Sandbox { cause: source, .. }
        | SpawnError::Prepare { cause: source, .. } => exec_server_os::errno_name(source),
    };
    let message = match error {
        SpawnError::Sandbox { step, .. } if NAMESPACE_STEPS.contains(&step.as_str()) => format!(
            "{error}; run `exec-server doctor` to see how to allow user namespaces, or start the server with \
             --sandbox-fallback landlock, which enforces some policies without them"
        ),
        SpawnError::Sandbox { .. } if errno == Some("ETIME") => {
            format!("{error}; {}", RequestError::PolicyTooCostly)
        }
        _ if errno == Some("ETOOMANYREFS") => format!(
            "{error}; processes of this user keep too many descriptors in flight over unix sockets, more than the limit \
             on open files (ETOOMANYREFS): end these processes, or start the server with a higher hard limit (ulimit -Hn)"
        ),
        _ => error.to_string(),
    };
    let code = match error {
        SpawnError::User(_) => ErrorCode::InvalidRequest,
        _ => ErrorCode::Internal,
    };
    RpcError::new(code, kind, message).with_errno(errno)
}

/// The set-up steps that fail on a machine that forbids user namespaces or restricts them.
const NAMESPACE_STEPS: [&str; 5] =
    ["namespaces", "setgroups", "uid map", "gid map", "make the mounts private"];

/// The kinds are the names of the reference protocol, which are not in `snake_case`.
fn http_error(error: &HttpError) -> RpcError {
    let errno = error.system().and_then(exec_server_os::errno_name);
    RpcError::new(ErrorCode::Internal, error.kind().into(), error.to_string()).with_errno(errno)
}

fn files_error(error: &FsError) -> RpcError {
    use ErrorCode::{Internal, InvalidRequest};
    let (code, kind) = match error {
        FsError::System(source) => return file_system_error(error, source),
        FsError::ShortWrite { cause: source, .. } => {
            return renamed(file_system_error(error, source), Kind::ShortWrite, error);
        }
        FsError::Incomplete { done, path, cause: source, .. } => {
            let mut rpc = renamed(files_error(source), Kind::Incomplete, error);
            let data = rpc.data.get_or_insert_default();
            data.completed = Some(*done);
            data.failed_path = Some(path_uri(path));
            return rpc;
        }
        FsError::NotAFile(_, nature) => return not_a_file(error, *nature),
        FsError::IsLink => (InvalidRequest, Kind::IsSymlink),
        FsError::NoName => (InvalidRequest, Kind::NoName),
        FsError::DirectoryExists => (Internal, Kind::AlreadyExists),
        FsError::RecursiveWithoutLinks => (Internal, Kind::Unsupported),
        FsError::WalkLimitsZero | FsError::WalkLimitsExceeded => (InvalidRequest, Kind::WalkLimits),
        FsError::TooManyEntries(..) => (Internal, Kind::TooManyEntries),
        FsError::DirectoryNeedsRecursive => (InvalidRequest, Kind::NeedsRecursive),
        FsError::IntoItself => (InvalidRequest, Kind::IntoItself),
        FsError::SameFile => (InvalidRequest, Kind::SameFile),
        FsError::NotCopyable(_) => return not_a_file(error, Nature::Special),
        FsError::VersionMismatch => (InvalidRequest, Kind::VersionMismatch),
        FsError::Edit(refusal) => return edit_error(error, refusal),
        FsError::Binary(_) => (InvalidRequest, Kind::BinaryFile),
        FsError::Pattern(_) => (ErrorCode::InvalidParams, Kind::InvalidPattern),
        FsError::TooLargeToEdit => (InvalidRequest, Kind::FileTooLarge),
    };
    RpcError::new(code, kind, error.to_string())
}

fn watch_error(error: &RequestError, source: &WatchError) -> RpcError {
    let (kind, hint) = match source {
        WatchError::Path(source) => return path_error(error, source),
        WatchError::MachineLimit(limit) => (Kind::WatchLimit, Some(limit.hint().to_owned())),
        WatchError::TooManyDirectories => (Kind::WatchLimit, None),
        WatchError::Silent(_) => (Kind::Unwatchable, None),
    };
    let mut rpc = RpcError::new(ErrorCode::InvalidRequest, kind, error.to_string());
    rpc.data.get_or_insert_default().hint = hint;
    rpc
}

fn edit_error(error: &FsError, refusal: &EditRefusal) -> RpcError {
    let kind = if refusal.occurrences == 0 { Kind::EditNotFound } else { Kind::EditNotUnique };
    let mut rpc = RpcError::new(ErrorCode::InvalidRequest, kind, error.to_string());
    let nearest = refusal.nearest.as_ref();
    rpc.data.get_or_insert_default().edit = Some(Box::new(EditMismatch {
        index: refusal.index,
        occurrences: refusal.occurrences,
        lines: refusal.lines.clone(),
        nearest: nearest
            .map(|nearest| NearestText { line: nearest.line, text: nearest.text.clone() }),
    }));
    rpc
}

fn not_a_file(error: &FsError, nature: Nature) -> RpcError {
    RpcError::new(ErrorCode::InvalidRequest, Kind::NotAFile, error.to_string())
        .with_errno(Some(nature.errno_name()))
}

/// Keeps the code and the errno of `rpc`, with the kind and the message of the enclosing error.
fn renamed(rpc: RpcError, kind: Kind, error: &FsError) -> RpcError {
    let data = rpc.data.map(|data| ErrorData { kind: kind.name().to_owned(), ..data });
    RpcError { message: error.to_string(), data, ..rpc }
}

/// Clients recognise a missing file and a denied access by the code, and all other failures by the errno.
fn file_system_error(error: &FsError, source: &io::Error) -> RpcError {
    path_error(error, source)
}

fn path_error(error: &impl std::fmt::Display, source: &io::Error) -> RpcError {
    let errno = exec_server_os::errno_name(source);
    let (code, kind) = match errno {
        Some("ENOENT") => (ErrorCode::NotFound, Kind::NotFound),
        Some("EACCES" | "EPERM") => (ErrorCode::InvalidRequest, Kind::PermissionDenied),
        Some("EINVAL") => (ErrorCode::InvalidRequest, Kind::InvalidArgument),
        Some("EEXIST") => (ErrorCode::Internal, Kind::AlreadyExists),
        Some("ENOTDIR") => (ErrorCode::Internal, Kind::NotADirectory),
        Some("EISDIR") => (ErrorCode::Internal, Kind::IsADirectory),
        Some("ENOTEMPTY") => (ErrorCode::Internal, Kind::DirectoryNotEmpty),
        Some("EROFS") => (ErrorCode::Internal, Kind::ReadOnlyFileSystem),
        Some("ENOSPC" | "EDQUOT") => (ErrorCode::Internal, Kind::NoSpace),
        Some("EXDEV") => (ErrorCode::Internal, Kind::OtherFileSystem),
        _ => (ErrorCode::Internal, Kind::FileSystem),
    };
    RpcError::new(code, kind, error.to_string()).with_errno(errno)
}

fn system_error(kind: Kind, error: &RequestError, source: &io::Error) -> RpcError {
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

impl From<ParamsError> for RequestError {
    fn from(error: ParamsError) -> Self {
        match error {
            ParamsError::Invalid(reason) => Self::InvalidParams(reason),
            ParamsError::Path(error) => error.into(),
            ParamsError::Content { method, cause } => Self::Content { method, cause },
        }
    }
}

/// The error for an unusable `cwd`; the text for a foreign path is the one that the reference client matches.
pub fn cwd_error(uri: &PathUri, cause: ToPathError) -> RequestError {
    match cause {
        ToPathError::Uri(_) => RequestError::Path(cause),
        ToPathError::Foreign(_) => RequestError::Cwd { uri: uri.as_str().to_owned(), cause },
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn too_many_descriptors_in_flight_are_named_with_what_to_do() {
        let errno = rustix::io::Errno::TOOMANYREFS.raw_os_error();
        let step = "send the job".to_owned();
        let cause = io::Error::from_raw_os_error(errno);
        let error = spawn_error(&SpawnError::Sandbox { step, cause });
        let data = error.data.expect("an errno");
        assert_eq!(data.errno.as_deref(), Some("ETOOMANYREFS"));
        for part in ["send the job", "descriptors in flight", "ETOOMANYREFS", "ulimit -Hn"] {
            assert!(error.message.contains(part), "{part}: {}", error.message);
        }
    }
}
