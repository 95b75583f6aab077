//! Limits handshakes at an executor and names the reasons for a refusal.
//!
//! Owner: the [`crate::mux::Mux`]. A validation request counts until the registry answers it, even if its stream has
//! ended: a harness that resets and retries in a loop could otherwise cause any number of concurrent requests.

use std::time::{Duration, Instant};

/// Limit of streams per relay socket, open and pending together.
pub const MAX_STREAMS: usize = 128;

/// Limit of concurrent validation requests to the registry.
pub const MAX_PENDING: usize = 32;

/// This many failed handshakes start a cooldown.
pub const FAILURES_BEFORE_COOLDOWN: u32 = 8;

/// During a cooldown, every new handshake is refused.
pub const COOLDOWN: Duration = Duration::from_secs(10);

/// The registry's answer about a harness.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The harness may open its stream.
    Allowed,
    /// The registry rejected the harness.
    Refused,
    /// The registry could not be reached or did not answer in time.
    Unknown,
}

/// Why a harness was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The harness used another executor key, or its message was modified in transit.
    #[error("the handshake does not authenticate for this executor")]
    BadHandshake,
    /// A data or handshake frame arrived while validation was pending; the relay may have forged it.
    #[error("a frame arrived before the handshake was answered")]
    EarlyFrame,
    /// The registry rejected the harness.
    #[error("the registry refused the harness")]
    Refused,
    /// The registry gave no answer.
    #[error("the registry could not be asked")]
    Unchecked,
    /// [`MAX_STREAMS`] is reached.
    #[error("too many streams are open")]
    TooManyStreams,
    /// [`MAX_PENDING`] is reached.
    #[error("too many validation requests are pending")]
    TooManyPending,
    /// A [`COOLDOWN`] is running.
    #[error("too many handshakes failed recently")]
    Cooldown,
}

impl Refusal {
    /// All variants, for metrics.
    pub const ALL: [Self; 7] = [
        Self::BadHandshake,
        Self::EarlyFrame,
        Self::Refused,
        Self::Unchecked,
        Self::TooManyStreams,
        Self::TooManyPending,
        Self::Cooldown,
    ];

    /// The label in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::BadHandshake => "bad_handshake",
            Self::EarlyFrame => "early_frame",
            Self::Refused => "refused",
            Self::Unchecked => "unchecked",
            Self::TooManyStreams => "too_many_streams",
            Self::TooManyPending => "too_many_pending",
            Self::Cooldown => "cooldown",
        }
    }

    /// Whether the refusal counts towards a cooldown; a refusal by a limit says nothing about the harness.
    fn is_failure(self) -> bool {
        match self {
            Self::BadHandshake | Self::EarlyFrame | Self::Refused | Self::Unchecked => true,
            Self::TooManyStreams | Self::TooManyPending | Self::Cooldown => false,
        }
    }
}

/// Counts failed handshakes and pending validation requests.
#[derive(Debug, Default)]
pub(super) struct HandshakeLimiter {
    failures: u32,
    cooldown_until: Option<Instant>,
    pending: usize,
}

impl HandshakeLimiter {
    /// Whether a new handshake is admitted, given the current number of streams.
    pub(crate) fn check(&mut self, now: Instant, streams: usize) -> Result<(), Refusal> {
        if self.cooldown_until.is_some_and(|until| now >= until) {
            (self.failures, self.cooldown_until) = (0, None);
        }
        if self.cooldown_until.is_some() {
            Err(Refusal::Cooldown)
        } else if streams >= MAX_STREAMS {
            Err(Refusal::TooManyStreams)
        } else if self.pending >= MAX_PENDING {
            Err(Refusal::TooManyPending)
        } else {
            Ok(())
        }
    }

    /// A validation request starts.
    pub(crate) fn handle_asked(&mut self) {
        self.pending += 1;
    }

    /// A validation request has ended, with or without an answer.
    pub(crate) fn handle_answered(&mut self) {
        self.pending -= 1;
    }

    /// A harness was refused.
    pub(crate) fn handle_refused(&mut self, now: Instant, why: Refusal) {
        if !why.is_failure() {
            return;
        }
        self.failures += 1;
        if self.failures >= FAILURES_BEFORE_COOLDOWN && self.cooldown_until.is_none() {
            self.cooldown_until = Some(now + COOLDOWN);
        }
    }
}
