//! Why a rendezvous closes a socket, in the words of a close frame.

/// Why a socket is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Goodbye {
    /// It is closed already.
    Gone,
    /// A newer executor took its place.
    Superseded,
    /// The executor that a harness talked to is gone.
    ExecutorGone,
    /// The executor ended the stream.
    StreamEnded,
    /// The harness claimed nothing in time.
    Silent,
    /// The harness takes too long to read what its executor sends.
    Slow,
    /// A message that is no frame.
    NoFrame,
    /// A text message.
    Text,
    /// A message above the limit.
    TooBig,
    /// A stream id that another harness has.
    StreamTaken,
    /// A second handshake on one socket.
    SecondHandshake,
    /// More pings than anybody needs, without reading the answers.
    PingFlood,
    /// The token was revoked.
    Revoked,
    /// The token has expired.
    Expired,
    /// The rendezvous stops.
    Draining,
}

impl Goodbye {
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
            Self::ExecutorGone => 1012,
            Self::Slow => 1013,
        }
    }

    /// A word for people, in the close frame, the logs and the metrics.
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
        }
    }

    /// Whether what is queued for the socket is sent before this.
    pub(super) fn waits_for_frames(self) -> bool {
        matches!(self, Self::ExecutorGone | Self::StreamEnded | Self::Draining)
    }
}
