//! Types for attaching a socket to a switchboard: ticket, limits, errors and presence.

use std::time::{Duration, Instant};

/// Limits of a switchboard.
#[derive(Debug, Clone, Copy)]
pub struct SwitchboardLimits {
    /// Maximum number of harnesses per executor.
    pub streams_per_environment: usize,
    /// Time for a harness to claim its stream.
    pub claim: Duration,
    /// Time for a harness with a full queue to catch up.
    pub slow_timeout: Duration,
}

/// Why a socket was not attached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AttachError {
    /// The environment has no executor on this node.
    #[error("no executor is attached")]
    Offline,
    /// The ticket is for a registration that is no longer current.
    #[error("the registration is not current")]
    Stale,
    /// [`SwitchboardLimits::streams_per_environment`] is reached.
    #[error("the environment has too many streams")]
    Full,
    /// The node cannot find out whether the socket may be attached.
    #[error("the node cannot reach its store")]
    Unavailable,
    /// The token's own stream limit is reached.
    #[error("the token has too many streams")]
    TokenFull,
}

/// An executor that is attached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Presence {
    /// The registration that it attached with.
    pub registration: String,
    /// When it attached.
    pub since: Instant,
    /// Number of attached harnesses.
    pub streams: usize,
    /// Whether further harnesses are refused.
    pub is_full: bool,
}

/// What a socket is authorized for.
#[derive(Debug, Clone)]
pub struct Ticket {
    /// The only environment that the socket can reach.
    pub environment: String,
    /// The registration that the ticket was issued for.
    pub registration: String,
    /// The token that the ticket was issued to; revoking it closes the socket.
    pub token: String,
}
