//! The payloads of `process/*`.

#![allow(
    missing_docs,
    reason = "wire members repeat their JSON names; docs state only extra facts"
)]

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::path_uri::PathUri;

mod limits;
mod spool;
mod start;
mod write;

pub use crate::bytes64::Bytes64;
pub use limits::{LimitHolder, LimitName, LimitsReport, ProcessLimits};
pub use spool::{OutputExtent, OutputSearch, OutputSpool, OutputView};
pub use start::{
    EnvInherit, EnvPolicy, ProcessMetadata, ProcessStartParams, ProcessStartResponse,
    SandboxReport, SandboxType, ShellSnapshot, SnapshotShell, TerminalSize,
};

/// The key of a process, chosen by the client and scoped to its session.
pub type ProcessId = Arc<str>;

/// Where output came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum OutputStream {
    /// The child's stdout pipe.
    Stdout,
    /// The child's stderr pipe.
    Stderr,
    /// The child's terminal, which merges stdout and stderr.
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
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ProcessOutputNotification {
    pub process_id: ProcessId,
    /// Sequence number among the events of this process, from 1.
    pub seq: u64,
    pub stream: OutputStream,
    pub chunk: Bytes64,
}

/// Params of `process/exited`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ProcessExitedNotification {
    pub process_id: ProcessId,
    /// Sequence number among the events of this process.
    pub seq: u64,
    /// 0 to 255, or 128 plus the signal's number.
    pub exit_code: i32,
    /// Whether a sandbox denial made the process fail.
    #[serde(default)]
    pub sandbox_denied: bool,
    /// Signal, reason, duration and resource usage.
    #[serde(flatten)]
    pub details: ExitDetails,
}

/// Params of `process/closed`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ProcessClosedNotification {
    pub process_id: ProcessId,
    /// The last number of this process.
    pub seq: u64,
}

/// How a process ended.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ExitDetails {
    /// The signal that ended it, such as `SIGKILL`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub signal: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub reason: Option<ExitReason>,
    /// Time from start to exit.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub duration_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub rusage: Option<ResourceUsage>,
}

/// Why a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum ExitReason {
    /// The process exited on its own.
    Exited,
    /// A signal that this server did not send to terminate it.
    Signaled,
    /// The process exceeded `timeoutMs`.
    Timeout,
    /// The process wrote no output for `idleTimeoutMs`.
    IdleTimeout,
    /// A client terminated it, or its session ended.
    Terminated,
    /// The kernel killed it because memory ran out.
    OomKilled,
    /// The server shut down.
    ServerShutdown,
}

/// Resources that a process and its waited-for children used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ResourceUsage {
    /// CPU time in user mode.
    pub user_ms: u64,
    /// CPU time in the kernel.
    pub system_ms: u64,
    /// Peak resident set size, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_rss_bytes: Option<u64>,
}

/// Params of `process/read`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ProcessReadParams {
    pub process_id: ProcessId,
    /// Only output after this number; without it, all output.
    #[serde(default)]
    pub after_seq: Option<u64>,
    /// Stop after about this many bytes, but never before the first chunk.
    #[serde(default)]
    pub max_bytes: Option<u64>,
    /// How long to wait for output or a state change.
    #[serde(default)]
    pub wait_ms: Option<u64>,
    /// The owning session; default: the session of the caller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
    /// Whether chunks have the time at which they were read from the process.
    #[serde(default, skip_serializing_if = "crate::is_false")]
    pub timestamps: bool,
    /// Wait for this state only; the answer has no output.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<ReadUntil>,
    /// A part of the output, instead of the output after a number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub view: Option<OutputView>,
}

/// The state of a process that a read waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum ReadUntil {
    /// The root process has exited.
    Exited,
    /// The streams have ended as well.
    Closed,
}

/// One retained piece of output.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct OutputChunk {
    pub seq: u64,
    pub stream: OutputStream,
    pub chunk: Bytes64,
    /// When it was read from the process, in Unix milliseconds; only if asked for.
    #[serde(rename = "atMs", default, skip_serializing_if = "Option::is_none")]
    pub at_ms: Option<u64>,
    /// Position of its first byte in the output; only in a view.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offset: Option<u64>,
}

/// Result of `process/read`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ProcessReadResponse {
    /// Retained output after the cursor.
    pub chunks: Vec<OutputChunk>,
    /// One past the last number that this answer covers.
    pub next_seq: u64,
    /// Whether the root process has exited.
    pub exited: bool,
    pub exit_code: Option<i32>,
    /// Whether all output streams have ended.
    pub closed: bool,
    /// Always null from a server.
    pub failure: Option<String>,
    /// Whether a sandbox denial made the process fail.
    #[serde(default)]
    pub sandbox_denied: bool,
    /// Set once the process has exited.
    #[serde(flatten)]
    pub details: ExitDetails,
    /// Output after the cursor that was evicted, if any.
    #[serde(flatten, skip_serializing_if = "Option::is_none", default)]
    pub gap: Option<OutputGap>,
    /// Set for a view, and for every read of a process with a spool.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub extent: Option<OutputExtent>,
}

/// Output that was evicted before it was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct OutputGap {
    /// Bytes of this process that were evicted so far.
    pub evicted_bytes: u64,
    /// First number that is still retained.
    pub first_seq: u64,
}

/// Params of `process/write`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ProcessWriteParams {
    pub process_id: ProcessId,
    pub chunk: Bytes64,
    /// Id of this write; writes with the same id are applied once.
    #[serde(default)]
    pub write_id: Option<String>,
}

/// Result of `process/write` and `process/closeStdin`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ProcessWriteResponse {
    /// The outcome.
    pub status: WriteStatus,
}

/// The outcome of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum WriteStatus {
    /// Queued for the child, now or by an earlier write with the same id.
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
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ProcessSignalParams {
    pub process_id: ProcessId,
    pub signal: ProcessSignal,
    /// The owning session; default: the session of the caller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
}

/// A signal by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
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
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ProcessTerminateParams {
    pub process_id: ProcessId,
    /// How long to wait between SIGTERM and SIGKILL; without it, SIGKILL at once.
    #[serde(default)]
    pub grace_ms: Option<u64>,
    /// The owning session; default: the session of the caller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
}

/// Result of `process/terminate`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ProcessTerminateResponse {
    /// Whether the root process was still running.
    pub running: bool,
}

/// Params of `process/resize`; the size may also come as `size`, as in `process/start`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", try_from = "ResizeShape")]
pub struct ProcessResizeParams {
    pub process_id: ProcessId,
    #[serde(flatten)]
    pub size: TerminalSize,
}

#[derive(Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
struct ResizeShape {
    process_id: ProcessId,
    #[serde(default)]
    rows: Option<u16>,
    #[serde(default)]
    cols: Option<u16>,
    #[serde(default)]
    size: Option<TerminalSize>,
}

impl TryFrom<ResizeShape> for ProcessResizeParams {
    type Error = &'static str;

    fn try_from(shape: ResizeShape) -> Result<Self, Self::Error> {
        let size = match (shape.size, shape.rows, shape.cols) {
            (Some(size), None, None) => size,
            (None, Some(rows), Some(cols)) => TerminalSize { rows, cols },
            (None, None, _) => return Err("missing field `rows`"),
            (None, Some(_), None) => return Err("missing field `cols`"),
            (Some(_), _, _) => {
                return Err("the size is either `size` or `rows` and `cols`, not both");
            }
        };
        Ok(Self { process_id: shape.process_id, size })
    }
}

/// Params of `process/closeStdin`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ProcessCloseStdinParams {
    pub process_id: ProcessId,
}

/// An empty result object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Empty {}

/// Result of `process/list`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ProcessListResponse {
    /// The session's processes, by id.
    pub processes: Vec<ProcessSummary>,
}

/// One process of a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ProcessSummary {
    pub process_id: ProcessId,
    /// The operating system's id of the root process.
    pub pid: u32,
    pub argv: Vec<String>,
    pub cwd: PathUri,
    pub tty: bool,
    /// User that the process runs as.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Start time in Unix milliseconds.
    pub started_at_ms: u64,
    /// Sequence number of its next event.
    pub next_seq: u64,
    /// Whether the root process has exited.
    pub exited: bool,
    pub exit_code: Option<i32>,
    /// Whether all output streams have ended.
    pub closed: bool,
    /// Set once the process has exited.
    #[serde(flatten)]
    pub details: ExitDetails,
}

/// Environment variables on the wire.
pub type Env = BTreeMap<String, String>;
