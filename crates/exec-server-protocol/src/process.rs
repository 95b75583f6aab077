//! The payloads of `process/*`.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::path_uri::PathUri;

mod limits;
mod start;
mod write;

pub use crate::bytes64::Bytes64;
pub use limits::{LimitHolder, LimitName, LimitsReport, ProcessLimits};
pub use start::{
    EnvInherit, EnvPolicy, ProcessMetadata, ProcessStartParams, ProcessStartResponse,
    SandboxReport, SandboxType, ShellSnapshot, SnapshotShell, TerminalSize,
};

/// The key of a process, chosen by the client and scoped to its session.
pub type ProcessId = Arc<str>;

/// Where output came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OutputStream {
    /// The child's stdout pipe.
    Stdout,
    /// The child's stderr pipe.
    Stderr,
    /// The child's terminal, where both are one.
    Pty,
}

impl OutputStream {
    /// The name on the wire.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
            Self::Pty => "pty",
        }
    }
}

/// Params of `process/output`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProcessOutputNotification {
    /// Which process.
    pub process_id: ProcessId,
    /// Its place in the order of this process's events, from 1.
    pub seq: u64,
    /// Where it came from.
    pub stream: OutputStream,
    /// The bytes.
    pub chunk: Bytes64,
}

/// Params of `process/exited`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProcessExitedNotification {
    /// Which process.
    pub process_id: ProcessId,
    /// Its place in the order of this process's events.
    pub seq: u64,
    /// 0 to 255, or 128 plus the signal's number.
    pub exit_code: i32,
    /// Whether the sandbox refused something that made the process fail.
    #[serde(default)]
    pub sandbox_denied: bool,
    /// How it really ended.
    #[serde(flatten)]
    pub details: ExitDetails,
}

/// Params of `process/closed`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProcessClosedNotification {
    /// Which process.
    pub process_id: ProcessId,
    /// The last number of this process.
    pub seq: u64,
}

/// How a process ended, told truthfully.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ExitDetails {
    /// The signal that ended it, such as `SIGKILL`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub signal: Option<String>,
    /// Why it ended.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub reason: Option<ExitReason>,
    /// From start to exit.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub duration_ms: Option<u64>,
    /// What it used.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub rusage: Option<ResourceUsage>,
}

/// Why a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ExitReason {
    /// By itself.
    Exited,
    /// By a signal that this server did not send to end it.
    Signaled,
    /// It ran longer than `timeoutMs`.
    Timeout,
    /// It was silent for longer than `idleTimeoutMs`.
    IdleTimeout,
    /// A client asked for it, or its session ended.
    Terminated,
    /// The kernel ran out of memory.
    OomKilled,
    /// The server is going away.
    ServerShutdown,
}

/// Resources that a process and its waited-for children used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ResourceUsage {
    /// CPU time in user mode.
    pub user_ms: u64,
    /// CPU time in the kernel.
    pub system_ms: u64,
    /// The largest resident set.
    pub max_rss_bytes: u64,
}

/// Params of `process/read`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProcessReadParams {
    /// Which process.
    pub process_id: ProcessId,
    /// Only output after this number; none means from the start.
    #[serde(default)]
    pub after_seq: Option<u64>,
    /// Stop after about this many bytes, but never before the first chunk.
    #[serde(default)]
    pub max_bytes: Option<u64>,
    /// How long to wait for something to tell.
    #[serde(default)]
    pub wait_ms: Option<u64>,
    /// The session that it belongs to, if not the caller's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
}

/// One retained piece of output.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutputChunk {
    /// Its number.
    pub seq: u64,
    /// Where it came from.
    pub stream: OutputStream,
    /// The bytes.
    pub chunk: Bytes64,
}

/// Result of `process/read`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProcessReadResponse {
    /// Retained output after the cursor.
    pub chunks: Vec<OutputChunk>,
    /// One past the last number that this answer accounts for.
    pub next_seq: u64,
    /// Whether the root process has ended.
    pub exited: bool,
    /// Its exit code.
    pub exit_code: Option<i32>,
    /// Whether nothing more will come.
    pub closed: bool,
    /// Always null from a server.
    pub failure: Option<String>,
    /// Whether the sandbox refused something that made the process fail.
    #[serde(default)]
    pub sandbox_denied: bool,
    /// How it really ended, once it has.
    #[serde(flatten)]
    pub details: ExitDetails,
    /// Output after the cursor that is no longer there, if any.
    #[serde(flatten, skip_serializing_if = "Option::is_none", default)]
    pub gap: Option<OutputGap>,
}

/// Output that fell out of retention before this reader came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OutputGap {
    /// All bytes that this process's retention has dropped so far.
    pub evicted_bytes: u64,
    /// The first number that is still there.
    pub first_seq: u64,
}

/// Params of `process/write`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProcessWriteParams {
    /// Which process.
    pub process_id: ProcessId,
    /// The bytes.
    pub chunk: Bytes64,
    /// A name for this write: the same name is applied once.
    #[serde(default)]
    pub write_id: Option<String>,
}

/// Result of `process/write` and `process/closeStdin`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessWriteResponse {
    /// What became of it.
    pub status: WriteStatus,
}

/// What became of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum WriteStatus {
    /// Queued for the child, now or by an earlier write of the same name.
    Accepted,
    /// There is no such process.
    UnknownProcess,
    /// The process has no open stdin.
    StdinClosed,
    /// The process is still being started.
    Starting,
}

/// Params of `process/signal`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProcessSignalParams {
    /// Which process.
    pub process_id: ProcessId,
    /// Which signal.
    pub signal: ProcessSignal,
    /// The session that it belongs to, if not the caller's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
}

/// A signal by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs, reason = "each is the POSIX signal of its name")]
pub enum ProcessSignal {
    Interrupt,
    Terminate,
    Kill,
    Hangup,
    Quit,
    Usr1,
    Usr2,
    Stop,
    Continue,
    Winch,
}

/// Params of `process/terminate`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProcessTerminateParams {
    /// Which process.
    pub process_id: ProcessId,
    /// How long to wait between SIGTERM and SIGKILL; without it, SIGKILL at once.
    #[serde(default)]
    pub grace_ms: Option<u64>,
    /// The session that it belongs to, if not the caller's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
}

/// Result of `process/terminate`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessTerminateResponse {
    /// Whether the root process was still there.
    pub running: bool,
}

/// Params of `process/resize`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProcessResizeParams {
    /// Which process.
    pub process_id: ProcessId,
    /// The new size.
    #[serde(flatten)]
    pub size: TerminalSize,
}

/// Params of `process/closeStdin`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProcessCloseStdinParams {
    /// Which process.
    pub process_id: ProcessId,
}

/// An empty object, where there is nothing to tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Empty {}

/// Result of `process/list`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessListResponse {
    /// The session's processes, by id.
    pub processes: Vec<ProcessSummary>,
}

/// One process of a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProcessSummary {
    /// Which process.
    pub process_id: ProcessId,
    /// The operating system's id of the root process.
    pub pid: u32,
    /// What was started.
    pub argv: Vec<String>,
    /// Where.
    pub cwd: PathUri,
    /// Whether it has a terminal.
    pub tty: bool,
    /// When, in milliseconds since 1970.
    pub started_at_ms: u64,
    /// The next number of its events.
    pub next_seq: u64,
    /// Whether the root process has ended.
    pub exited: bool,
    /// Its exit code.
    pub exit_code: Option<i32>,
    /// Whether nothing more will come.
    pub closed: bool,
    /// How it really ended, once it has.
    #[serde(flatten)]
    pub details: ExitDetails,
}

/// An environment as it is on the wire.
pub type Env = BTreeMap<String, String>;
