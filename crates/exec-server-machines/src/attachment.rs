//! Knows which connection a session belongs to, and how long it waits for the next one.
//!
//! Owner: the session task.
//!
//! ```text
//! attached ─link lost▶ detached(until t) ─resume▶ attached;   t passes ▶ expired
//! ```

use std::time::{Duration, Instant};

/// One connection of this server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub u64);

/// Which connection a session belongs to.
#[derive(Debug)]
pub struct Attachment {
    linger: Duration,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Attached(ConnectionId),
    Detached { until: Instant },
    Expired,
}

/// Why a connection cannot attach.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AttachError {
    /// Another connection holds the session.
    #[error("attached to another connection")]
    AttachedTo(ConnectionId),
    /// The session waited long enough.
    #[error("expired")]
    Expired,
}

impl Attachment {
    /// A session that `connection` has just opened.
    pub fn new(connection: ConnectionId, linger: Duration) -> Self {
        Self { linger, state: State::Attached(connection) }
    }

    /// `connection` wants the session.
    pub fn handle_attach(
        &mut self,
        now: Instant,
        connection: ConnectionId,
    ) -> Result<(), AttachError> {
        match self.state {
            State::Attached(holder) => Err(AttachError::AttachedTo(holder)),
            State::Detached { until } if now < until => {
                self.state = State::Attached(connection);
                Ok(())
            }
            State::Detached { .. } | State::Expired => {
                self.state = State::Expired;
                Err(AttachError::Expired)
            }
        }
    }

    /// `connection` is gone; says whether it held the session.
    pub fn handle_detach(&mut self, now: Instant, connection: ConnectionId) -> bool {
        let held = self.state == State::Attached(connection);
        if held {
            self.state = State::Detached { until: now + self.linger };
        }
        held
    }

    /// When the session expires if nobody attaches.
    pub fn poll_timeout(&self) -> Option<Instant> {
        match self.state {
            State::Detached { until } => Some(until),
            State::Attached(_) | State::Expired => None,
        }
    }

    /// Time has passed; says whether the session is expired.
    pub fn handle_timeout(&mut self, now: Instant) -> bool {
        if matches!(self.state, State::Detached { until } if now >= until) {
            self.state = State::Expired;
        }
        self.state == State::Expired
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINGER: Duration = Duration::from_secs(30);
    const A: ConnectionId = ConnectionId(1);
    const B: ConnectionId = ConnectionId(2);

    #[test]
    fn a_session_can_be_resumed_until_its_linger_ends() {
        let start = Instant::now();
        let mut session = Attachment::new(A, LINGER);
        assert_eq!(session.handle_attach(start, B), Err(AttachError::AttachedTo(A)));
        assert!(session.handle_detach(start, A));
        assert_eq!(session.poll_timeout(), Some(start + LINGER));
        assert!(!session.handle_timeout(start + LINGER / 2));
        session.handle_attach(start + LINGER / 2, B).unwrap();
        assert_eq!(session.poll_timeout(), None);
        assert!(!session.handle_detach(start, A), "the first connection no longer holds it");
        assert!(session.handle_detach(start + LINGER, B), "the linger starts anew");
        assert_eq!(session.handle_attach(start + LINGER * 2, A), Err(AttachError::Expired));
        assert!(session.handle_timeout(start + LINGER * 2));
    }

    #[test]
    fn without_linger_a_detached_session_is_expired_at_once() {
        let now = Instant::now();
        let mut session = Attachment::new(A, Duration::ZERO);
        session.handle_detach(now, A);
        assert!(session.handle_timeout(now));
    }
}
