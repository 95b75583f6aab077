//! Events of a process as the client sees them.

use std::sync::Arc;

use bytes::Bytes;
use exec_server_protocol::process::{ExitDetails, OutputStream};

/// An event of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProcessEvent {
    /// The process wrote output.
    Output {
        /// Sequence number.
        seq: u64,
        /// stdout, stderr or the terminal.
        stream: OutputStream,
        /// The output.
        bytes: Bytes,
    },
    /// The root process exited; output may still follow.
    Exited {
        /// Sequence number.
        seq: u64,
        /// Exit code and details.
        exit: ProcessExit,
    },
    /// No further event follows.
    Closed {
        /// Sequence number, the last of the process.
        seq: u64,
    },
    /// Output that the server evicted before it could be read.
    Gap(Gap),
    /// The link broke. The server keeps new events and sends them after the reconnect.
    ResyncRequired,
    /// The process can no longer be followed; it may still run.
    Failed(Arc<str>),
}

impl ProcessEvent {
    /// Highest sequence number that the event covers; `None` for local events.
    pub fn seq(&self) -> Option<u64> {
        match self {
            Self::Output { seq, .. } | Self::Exited { seq, .. } | Self::Closed { seq } => {
                Some(*seq)
            }
            Self::Gap(gap) => Some(gap.last),
            Self::ResyncRequired | Self::Failed(_) => None,
        }
    }

    /// Lowest sequence number that the event covers.
    pub fn first_seq(&self) -> Option<u64> {
        match self {
            Self::Gap(gap) => Some(gap.first),
            event => event.seq(),
        }
    }

    /// Number of output bytes in the event.
    pub fn len(&self) -> usize {
        match self {
            Self::Output { bytes, .. } => bytes.len(),
            _ => 0,
        }
    }

    /// Whether the event holds no output.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether no event follows this one.
    pub fn is_last(&self) -> bool {
        matches!(self, Self::Closed { .. } | Self::Failed(_))
    }
}

/// A range of consecutive events that is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gap {
    /// First missing sequence number.
    pub first: u64,
    /// Last missing sequence number.
    pub last: u64,
    /// Bytes of this process that the server has evicted so far, if it reports them.
    pub evicted_bytes: Option<u64>,
}

/// How the root process ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessExit {
    /// 0 to 255, or 128 plus the signal's number.
    pub exit_code: i32,
    /// Whether a sandbox denial made the process fail; `None` if unknown.
    pub sandbox_denied: Option<bool>,
    /// Details that newer servers report.
    pub details: ExitDetails,
}
