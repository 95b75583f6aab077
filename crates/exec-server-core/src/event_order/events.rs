//! Events of a process as the client sees them.

use std::sync::Arc;

use bytes::Bytes;
use exec_server_protocol::process::{ExitDetails, OutputStream};

/// Something that happened to a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProcessEvent {
    /// It wrote something.
    Output {
        /// Its number.
        seq: u64,
        /// Where.
        stream: OutputStream,
        /// What.
        bytes: Bytes,
    },
    /// Its root ended; output may still follow.
    Exited {
        /// Its number.
        seq: u64,
        /// How.
        exit: ProcessExit,
    },
    /// Nothing more will come.
    Closed {
        /// The last number.
        seq: u64,
    },
    /// Output that is lost: the server evicted it before it could be read.
    Gap(Gap),
    /// The link broke. What happens meanwhile is kept by the server and comes as soon as the link is back.
    ResyncRequired,
    /// The process can no longer be followed; it may or may not go on.
    Failed(Arc<str>),
}

impl ProcessEvent {
    /// The highest number that the event accounts for; none for what only this client knows of.
    pub fn seq(&self) -> Option<u64> {
        match self {
            Self::Output { seq, .. } | Self::Exited { seq, .. } | Self::Closed { seq } => {
                Some(*seq)
            }
            Self::Gap(gap) => Some(gap.last),
            Self::ResyncRequired | Self::Failed(_) => None,
        }
    }

    /// The lowest number that the event accounts for.
    pub fn first_seq(&self) -> Option<u64> {
        match self {
            Self::Gap(gap) => Some(gap.first),
            event => event.seq(),
        }
    }

    /// What the event holds of the process's output.
    pub fn len(&self) -> usize {
        match self {
            Self::Output { bytes, .. } => bytes.len(),
            _ => 0,
        }
    }

    /// Whether it holds no output.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether nothing follows it.
    pub fn is_last(&self) -> bool {
        matches!(self, Self::Closed { .. } | Self::Failed(_))
    }
}

/// A range of consecutive events that is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gap {
    /// The first number that is missing.
    pub first: u64,
    /// The last number that is missing.
    pub last: u64,
    /// All bytes that the server has dropped of this process so far, if it says so.
    pub evicted_bytes: Option<u64>,
}

/// How the root process ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessExit {
    /// 0 to 255, or 128 plus the signal's number.
    pub exit_code: i32,
    /// Whether a sandbox denial made the process fail; `None` if unknown.
    pub sandbox_denied: Option<bool>,
    /// The rest of the truth, from a server that tells it.
    pub details: ExitDetails,
}
