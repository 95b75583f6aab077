//! Processes: what a session may ask of one, and the task that owns it.
//!
//! | look here | for |
//! |---|---|
//! | this file | the handle that others hold, and the commands that it sends |
//! | `start` | from a start request to a running child |
//! | `owner` | the task that owns a running child until it is forgotten |
//! | `ending` | how a tree is brought to its end |
//! | `snapshots` | login shells whose profile runs once |

mod denial;
mod ending;
mod owner;
mod snapshots;
mod start;

use std::time::Duration;

use exec_server_machines::attachment::ConnectionId;
use exec_server_protocol::process::{
    ExitReason, ProcessReadParams, ProcessSignal, ProcessSummary, TerminalSize,
};
use tokio::sync::{mpsc, oneshot};

use crate::reply::Reply;

pub use snapshots::Snapshots;
pub use start::{PreparedStart, prepare, run_process};

/// A handle to the task that owns a process.
#[derive(Debug, Clone)]
pub struct ProcessHandle {
    commands: mpsc::UnboundedSender<Command>,
    /// What it was started with, to recognise a repeated request.
    pub digest: u64,
    /// The connection that started it.
    pub started_by: ConnectionId,
}

/// Something that the owner of a process is asked to do.
///
/// The queue is not bounded by itself: ordinary requests are bounded per connection, and the owner never waits before
/// it takes the next command.
#[derive(Debug)]
pub enum Command {
    /// The same start came again after a lost connection.
    StartAgain(Reply),
    /// `process/read`.
    Read(ProcessReadParams, Reply),
    /// `process/write`.
    Write {
        /// The name of the write.
        id: Option<String>,
        /// What to write.
        bytes: Vec<u8>,
        /// The writer.
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
        /// From SIGTERM to SIGKILL.
        grace: Option<Duration>,
        /// Who asked.
        reply: Reply,
    },
    /// Part of `process/list`.
    Summarise(oneshot::Sender<ProcessSummary>),
    /// The session or the server ends: so does the process, and it is not kept.
    End {
        /// Why.
        reason: ExitReason,
        /// From SIGTERM to SIGKILL.
        grace: Option<Duration>,
    },
}

impl ProcessHandle {
    /// A handle, and the queue for the task behind it.
    pub fn new(digest: u64, started_by: ConnectionId) -> (Self, mpsc::UnboundedReceiver<Command>) {
        let (commands, queue) = mpsc::unbounded_channel();
        (Self { commands, digest, started_by }, queue)
    }

    /// Asks the owner; gives the command back if the owner is gone.
    #[allow(clippy::result_large_err, reason = "the command comes back as it went in")]
    pub fn send(&self, command: Command) -> Result<(), Command> {
        self.commands.send(command).map_err(|error| error.0)
    }
}
