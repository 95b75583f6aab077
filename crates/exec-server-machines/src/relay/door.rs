//! Who may try to come in at an executor, and why somebody did not come in.
//!
//! Owner: the [`super::mux::Mux`]. Questions to the registry are counted until they are answered, not until their stream
//! is gone: whoever gives up and tries again would otherwise have any number of them on their way.

use std::time::{Duration, Instant};

/// How many streams may be open or on their way at once.
pub const MAX_STREAMS: usize = 128;

/// How many questions to the registry may be unanswered at once.
pub const MAX_PENDING: usize = 32;

/// As many failed handshakes close the door.
pub const FAILURES_BEFORE_COOLDOWN: u32 = 8;

/// How long the door stays closed.
pub const COOLDOWN: Duration = Duration::from_secs(10);

/// What the registry said about a harness.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It may in.
    Allowed,
    /// It may not.
    Refused,
    /// It could not be asked, or did not answer in time.
    Unknown,
}

/// Why a harness did not come in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// It does not know this executor's key, or its message was changed on the way.
    #[error("its handshake is not one with this executor")]
    BadHandshake,
    /// It went on before it was let in, or somebody else did in its name.
    #[error("it did not wait for the answer")]
    EarlyFrame,
    /// The registry said no.
    #[error("the registry refused it")]
    Refused,
    /// The registry said nothing.
    #[error("it could not be checked")]
    Unchecked,
    /// There is no room for another stream.
    #[error("too many streams are open")]
    TooManyStreams,
    /// Too many others are being asked about.
    #[error("too many harnesses are being checked")]
    TooManyPending,
    /// Too many handshakes failed a moment ago.
    #[error("too many handshakes have failed")]
    Cooldown,
}

impl Refusal {
    /// Every one of them.
    pub const ALL: [Self; 7] = [
        Self::BadHandshake,
        Self::EarlyFrame,
        Self::Refused,
        Self::Unchecked,
        Self::TooManyStreams,
        Self::TooManyPending,
        Self::Cooldown,
    ];

    /// One word for it.
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

    /// Whether it counts against everybody who comes; those who found the door closed have done nothing.
    fn is_failure(self) -> bool {
        match self {
            Self::BadHandshake | Self::EarlyFrame | Self::Refused | Self::Unchecked => true,
            Self::TooManyStreams | Self::TooManyPending | Self::Cooldown => false,
        }
    }
}

/// Counts failed handshakes and open questions.
#[derive(Debug, Default)]
pub(super) struct Door {
    failures: u32,
    closed_until: Option<Instant>,
    questions: usize,
}

impl Door {
    /// Whether another may try while there are this many streams.
    pub fn check(&mut self, now: Instant, streams: usize) -> Result<(), Refusal> {
        if self.closed_until.is_some_and(|until| now >= until) {
            (self.failures, self.closed_until) = (0, None);
        }
        if self.closed_until.is_some() {
            Err(Refusal::Cooldown)
        } else if streams >= MAX_STREAMS {
            Err(Refusal::TooManyStreams)
        } else if self.questions >= MAX_PENDING {
            Err(Refusal::TooManyPending)
        } else {
            Ok(())
        }
    }

    /// The registry is asked about somebody.
    pub fn handle_asked(&mut self) {
        self.questions += 1;
    }

    /// The registry answered, or will not any more.
    pub fn handle_answered(&mut self) {
        self.questions -= 1;
    }

    /// Somebody did not come in.
    pub fn handle_refused(&mut self, now: Instant, why: Refusal) {
        if !why.is_failure() {
            return;
        }
        self.failures += 1;
        if self.failures >= FAILURES_BEFORE_COOLDOWN && self.closed_until.is_none() {
            self.closed_until = Some(now + COOLDOWN);
        }
    }
}
