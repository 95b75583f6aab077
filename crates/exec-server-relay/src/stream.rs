//! Why a stream through the relay ends.

use exec_server_protocol::escape_untrusted::escape_untrusted;

use crate::noise::records::RecordError;

/// Limit for a reset reason that is quoted; known reasons are shorter.
const MAX_REASON_CHARS: usize = 100;

/// Why a stream ended.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StreamError {
    /// The peer or the relay sent a reset.
    #[error("the stream was reset ({reason})")]
    Reset {
        /// Escaped and shortened; not authenticated, so the relay may have made it up.
        reason: String,
    },
    /// The handshake did not yield keys.
    #[error(transparent)]
    Handshake(#[from] crate::noise::handshake::HandshakeError),
    /// A record could not be encrypted or decrypted.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// A record could not be put into order.
    #[error(transparent)]
    Order(#[from] crate::reorder::OrderError),
    /// An empty message, or one above [`MAX_MESSAGE_BYTES`](crate::framing::MAX_MESSAGE_BYTES).
    #[error("a message is empty or too long")]
    MessageLength,
    /// The peer ignored the window, and too many messages are waiting.
    #[error("the peer sends faster than its messages are processed")]
    Overrun,
    /// A frame that is not allowed in the current state.
    #[error("an unexpected {0} frame")]
    Unexpected(&'static str),
    /// An invalid frame.
    #[error(transparent)]
    Frame(#[from] crate::frame::FrameError),
}

impl StreamError {
    pub(crate) fn reset(reason: &str) -> Self {
        Self::Reset { reason: escape_untrusted(reason, MAX_REASON_CHARS) }
    }
}
