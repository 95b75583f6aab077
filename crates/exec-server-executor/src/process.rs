//! Processes of a session: the handle, and the task that owns each process.
//!
//! | look here | for |
//! |---|---|
//! | this file | the handle of a process |
//! | `start` | from a start request to a running child |
//! | `config` | the settings of a process, fixed at its start |
//! | `task` | the task that owns a running process until its record expires; `task/commands` has the requests to it |
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
use std::time::Instant;

use exec_server_core::attachment::ConnectionId;
use tokio::sync::mpsc;

pub use config::ProcessConfig;
pub use snapshots::Snapshots;
pub use start::{PreparedStart, prepare, run_process};
pub use task::commands::Command;

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
