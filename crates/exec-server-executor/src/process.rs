//! Processes of a session: the handle, the commands, and the task that owns each process.
//!
//! | look here | for |
//! |---|---|
//! | this file | the handle of a process, and the commands that it sends |
//! | `start` | from a start request to a running child |
//! | `config` | the settings of a process, fixed at its start |
//! | `task` | the task that owns a running process until its record expires |
//! | `unread` | reads that wait for reply memory |
//! | `denial` | whether a process failed because of its sandbox |
//! | `snapshots` | login shells whose profile runs once |

mod config;
mod denial;
mod snapshots;
mod start;
mod task;
mod unread;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use exec_server_core::attachment::ConnectionId;
use exec_server_protocol::process::{
    ExitReason, ProcessReadParams, ProcessSignal, ProcessSummary, TerminalSize,
};
use tokio::sync::{mpsc, oneshot};

use crate::reply::Reply;

pub use config::ProcessConfig;
pub use snapshots::Snapshots;
pub use start::{PreparedStart, prepare, run_process};

/// A handle to the task that owns a process.
#[derive(Debug, Clone)]
pub struct ProcessHandle {
    commands: mpsc::UnboundedSender<Command>,
    /// Hash of the start request; identifies a repeated request.
    pub digest: u64,
    pub started_by: ConnectionId,
    has_exited: Arc<AtomicBool>,
    pub closed: ClosedMark,
    /// Length of the arguments and the working directory, which `process/list` returns.
    pub described_bytes: usize,
}

/// The time at which a process was closed; also distinguishes a process from a later one with the same id.
#[derive(Debug, Clone, Default)]
pub struct ClosedMark(Arc<OnceLock<Instant>>);

impl ClosedMark {
    /// Records that the process is closed now.
    pub fn set(&self) {
        // A process is closed once.
        let _ = self.0.set(Instant::now());
    }

    /// When the process was closed.
    pub fn at(&self) -> Option<Instant> {
        self.0.get().copied()
    }

    /// Whether both belong to the same process.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// A request to the process task.
///
/// The queue is unbounded, because requests are bounded per connection and the task handles commands first.
#[derive(Debug)]
pub enum Command {
    /// The client repeated the start request after a lost connection.
    StartAgain(Reply),
    /// `process/read`.
    Read(ProcessReadParams, Reply),
    /// `process/write`.
    Write {
        /// A repeated id is applied once.
        id: Option<String>,
        bytes: Vec<u8>,
        reply: Reply,
    },
    /// `process/closeStdin`.
    CloseStdin(Reply),
    /// `process/signal`.
    Signal(ProcessSignal, Reply),
    /// `process/resize`.
    Resize(TerminalSize, Reply),
    /// `process/terminate`.
    Terminate {
        /// The time from SIGTERM to SIGKILL; none sends SIGKILL at once.
        grace: Option<Duration>,
        reply: Reply,
    },
    /// Drop the record of a closed process to make room for another.
    Forget,
    /// Part of `process/list`.
    Summarise(oneshot::Sender<ProcessSummary>),
    /// The session or the server ends: terminate the process and drop its record.
    End {
        reason: ExitReason,
        /// The time from SIGTERM to SIGKILL; none sends SIGKILL at once.
        grace: Option<Duration>,
    },
}

impl ProcessHandle {
    /// Creates a handle and the queue for its process task.
    pub fn new(
        start: &PreparedStart,
        started_by: ConnectionId,
    ) -> (Self, mpsc::UnboundedReceiver<Command>) {
        let (commands, queue) = mpsc::unbounded_channel();
        let has_exited = Arc::new(AtomicBool::new(false));
        let closed = ClosedMark::default();
        let (digest, described_bytes) = (start.digest, start.described_bytes());
        (Self { commands, digest, started_by, has_exited, closed, described_bytes }, queue)
    }

    /// Whether the process is starting or running.
    pub fn is_live(&self) -> bool {
        !self.has_exited.load(Ordering::Acquire)
    }

    /// The flag that the process task sets when the process exits.
    pub fn exit_note(&self) -> Arc<AtomicBool> {
        self.has_exited.clone()
    }

    /// Sends a command; returns it if the process task has stopped.
    #[allow(
        clippy::result_large_err,
        reason = "a command that was not delivered is returned to the caller"
    )]
    pub fn send(&self, command: Command) -> Result<(), Command> {
        self.commands.send(command).map_err(|error| error.0)
    }
}
