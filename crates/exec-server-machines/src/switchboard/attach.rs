//! Coming to a switchboard: with what, under which limits, and what is known of whoever came.

use std::time::{Duration, Instant};

/// What a switchboard allows.
#[derive(Debug, Clone, Copy)]
pub struct SwitchboardLimits {
    /// How many harnesses one executor has at once.
    pub streams_per_environment: usize,
    /// How long a harness may be silent before it claims its stream.
    pub claim: Duration,
    /// How long an executor waits for a harness that has too much to read.
    pub patience: Duration,
}

/// Why a socket is not attached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AttachError {
    /// There is no executor to talk to.
    #[error("no executor is attached")]
    Offline,
    /// It was made for a registration that is not current any more.
    #[error("the registration is not current")]
    Stale,
    /// The executor has as many harnesses as it may have.
    #[error("the environment has too many streams")]
    Full,
    /// The token has as many streams as it may have.
    #[error("the token has too many streams")]
    TokenFull,
}

/// An executor that is attached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Presence {
    /// Its registration.
    pub registration: String,
    /// Since when it is attached.
    pub since: Instant,
    /// How many harnesses it has.
    pub streams: usize,
    /// Whether it takes no more of them.
    pub is_full: bool,
}

/// What a socket may speak for.
#[derive(Debug, Clone)]
pub struct Ticket {
    /// The environment.
    pub environment: String,
    /// The registration that it was made for.
    pub registration: String,
    /// The token behind it.
    pub token: String,
}
