//! Why a rendezvous closes a socket, with the code and reason of the close frame.

/// Why a rendezvous closes a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CloseReason {
    /// The socket is already closed.
    Gone,
    /// A newer executor or registration replaced this executor.
    Superseded,
    /// The harness's executor has disconnected or was closed.
    ExecutorGone,
    /// The executor reset the stream.
    StreamEnded,
    /// The harness did not claim a stream in time.
    Silent,
    /// The harness did not drain its queue in time.
    Slow,
    /// A binary message was not a valid frame.
    NoFrame,
    /// A text message arrived; only binary ones are allowed.
    Text,
    /// A message exceeded [`MAX_FRAME_BYTES`](super::MAX_FRAME_BYTES).
    TooBig,
    /// Another harness holds the stream id.
    StreamTaken,
    /// A second handshake on one socket.
    SecondHandshake,
    /// The peer sent too many pings without reading the pongs.
    PingFlood,
    /// The token was revoked.
    Revoked,
    /// The token has expired.
    Expired,
    /// The rendezvous is shutting down.
    Draining,
    /// The node of a cluster is shutting down; another node takes over.
    Leaving,
    /// Frames between two nodes of a cluster were lost.
    TrunkLost,
}

impl CloseReason {
    /// The code of the close frame.
    pub fn code(self) -> u16 {
        match self {
            Self::Gone | Self::StreamEnded => 1000,
            Self::Draining => 1001,
            Self::NoFrame => 1002,
            Self::Text => 1003,
            Self::Superseded
            | Self::StreamTaken
            | Self::SecondHandshake
            | Self::PingFlood
            | Self::Silent
            | Self::Revoked
            | Self::Expired => 1008,
            Self::TooBig => 1009,
            Self::ExecutorGone | Self::Leaving | Self::TrunkLost => 1012,
            Self::Slow => 1013,
        }
    }

    /// The reason in close frames, logs and metrics.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Gone => "gone",
            Self::Superseded => "superseded",
            Self::ExecutorGone => "executor_gone",
            Self::StreamEnded => "stream_ended",
            Self::Silent => "no_stream_claimed",
            Self::Slow => "too_slow",
            Self::NoFrame => "not_a_frame",
            Self::Text => "text_message",
            Self::TooBig => "message_too_big",
            Self::StreamTaken => "stream_taken",
            Self::SecondHandshake => "second_handshake",
            Self::PingFlood => "ping_flood",
            Self::Revoked => "token_revoked",
            Self::Expired => "token_expired",
            Self::Draining => "draining",
            Self::Leaving => "node_leaving",
            Self::TrunkLost => "trunk_lost",
        }
    }

    /// The reason of this name, as another node sends it.
    pub fn from_reason(name: &str) -> Option<Self> {
        ALL.into_iter().find(|it| it.reason() == name)
    }

    /// Whether queued frames are sent before the close frame.
    pub fn waits_for_frames(self) -> bool {
        matches!(self, Self::ExecutorGone | Self::StreamEnded | Self::Draining | Self::Leaving)
    }
}

const ALL: [CloseReason; 17] = [
    CloseReason::Gone,
    CloseReason::Superseded,
    CloseReason::ExecutorGone,
    CloseReason::StreamEnded,
    CloseReason::Silent,
    CloseReason::Slow,
    CloseReason::NoFrame,
    CloseReason::Text,
    CloseReason::TooBig,
    CloseReason::StreamTaken,
    CloseReason::SecondHandshake,
    CloseReason::PingFlood,
    CloseReason::Revoked,
    CloseReason::Expired,
    CloseReason::Draining,
    CloseReason::Leaving,
    CloseReason::TrunkLost,
];
