//! Handshake state: which methods a connection may call.
//!
//! Owner: the connection task.
//!
//! ```text
//! new ─initialize succeeds▶ named ─initialized▶ ready        (a failed initialize leaves it new)
//! ```

use exec_server_protocol::methods::Family;

/// Handshake progress of a connection.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Phase {
    /// No handshake yet.
    #[default]
    New,
    /// `initialize` was answered with a session.
    Named,
    /// `initialized` was received.
    Ready,
}

/// A message that is not allowed in this phase.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PhaseError {
    /// A family method before `initialize`.
    #[error("client must call initialize before using {} methods", .0.name())]
    NotInitialized(Family),
    /// A family method before `initialized`.
    #[error("client must send initialized before using {} methods", .0.name())]
    NotReady(Family),
    /// A second `initialize`.
    #[error("initialize may only be sent once per connection")]
    AlreadyInitialized,
    /// `initialized` before `initialize`.
    #[error("client must call initialize before sending initialized")]
    InitializedTooEarly,
}

impl Phase {
    /// Whether `initialize` is allowed now.
    pub fn check_initialize(self) -> Result<(), PhaseError> {
        if self == Self::New { Ok(()) } else { Err(PhaseError::AlreadyInitialized) }
    }

    /// Whether a method of `family` is allowed now.
    pub fn check(self, family: Family) -> Result<(), PhaseError> {
        match self {
            Self::New => Err(PhaseError::NotInitialized(family)),
            Self::Named => Err(PhaseError::NotReady(family)),
            Self::Ready => Ok(()),
        }
    }

    /// `initialize` succeeded.
    pub fn handle_initialize(&mut self) {
        *self = Self::Named;
    }

    /// `initialized` was received; repeating it is harmless.
    pub fn handle_initialized(&mut self) -> Result<(), PhaseError> {
        if *self == Self::New {
            return Err(PhaseError::InitializedTooEarly);
        }
        *self = Self::Ready;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_step_opens_the_next() {
        let mut phase = Phase::default();
        assert_eq!(
            phase.check(Family::Exec).unwrap_err().to_string(),
            "client must call initialize before using exec methods"
        );
        assert_eq!(phase.handle_initialized(), Err(PhaseError::InitializedTooEarly));
        phase.check_initialize().unwrap();
        phase.handle_initialize();
        assert_eq!(
            phase.check(Family::EnvironmentInfo).unwrap_err().to_string(),
            "client must send initialized before using environment info methods"
        );
        assert_eq!(phase.check_initialize(), Err(PhaseError::AlreadyInitialized));
        phase.handle_initialized().unwrap();
        phase.handle_initialized().unwrap();
        phase.check(Family::Exec).unwrap();
        assert_eq!(phase.check_initialize(), Err(PhaseError::AlreadyInitialized));
    }
}
