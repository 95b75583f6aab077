//! Streams through a rendezvous: what each end makes of the frames that it gets, and what it sends.
//!
//! | machine | at | does |
//! |---|---|---|
//! | [`harness`] | the harness | one stream: handshake, then messages |
//! | [`mux`] | the executor | all streams of one socket, fairly |
//! | [`door`] | the executor | who may try to come in |
//! | [`framing`] | both | messages to records and back |
//! | [`reorder`] | both | records into their order |

pub mod door;
pub mod framing;
pub mod harness;
pub mod mux;
pub mod reorder;
mod stream;

use exec_server_protocol::visible::visible;

use crate::noise::records::RecordError;

/// The reasons that relays give are shorter.
const MAX_REASON_CHARS: usize = 100;

/// Why a stream is over.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StreamError {
    /// The other side, or the relay, ended it.
    #[error("the stream was reset ({reason})")]
    Reset {
        /// The word that came with it, made fit to be shown; nobody vouches for it.
        reason: String,
    },
    /// The handshake failed.
    #[error(transparent)]
    Handshake(#[from] crate::noise::handshake::HandshakeError),
    /// A record was not what the peer sent.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// Records came too far out of order.
    #[error(transparent)]
    Order(#[from] reorder::OrderError),
    /// A message of a length that is not allowed.
    #[error("a message has a length that is not allowed")]
    MessageLength,
    /// More messages than are taken.
    #[error("the peer sends faster than it is served")]
    Overrun,
    /// A frame that has no place at this point.
    #[error("an unexpected {0} frame")]
    Unexpected(&'static str),
    /// Something that is no frame.
    #[error(transparent)]
    Frame(#[from] exec_server_protocol::relay_frame::FrameError),
}

impl StreamError {
    fn reset(reason: &str) -> Self {
        Self::Reset { reason: visible(reason, MAX_REASON_CHARS) }
    }
}
