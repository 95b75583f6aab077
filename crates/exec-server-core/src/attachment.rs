//! Tracks which connection is attached to a session and when a detached session expires.
//!
//! Owner: the session task.
//!
//! ```text
//! attached ─link lost▶ detached(since t) ─resume▶ attached;   its linger passes ▶ expired
//! ```

use std::time::{Duration, Instant};

/// One connection of this server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub u64);

/// Which connection a session belongs to.
#[derive(Debug)]
pub struct Attachment {
    linger: Linger,
    state: State,
}

/// How long a detached session is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Linger {
    /// While the session has processes.
    pub busy: Duration,
    /// Once the session has no process.
    pub empty: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Attached(ConnectionId),
    Detached { since: Instant },
    Expired,
}

/// Whether a session has processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Load {
    /// At least one process.
    Busy,
    /// No process.
    Empty,
}

/// Why a connection cannot attach.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AttachError {
    /// Another connection holds the session.
    #[error("attached to another connection")]
    AttachedTo(ConnectionId),
    /// The linger time has passed.
    #[error("expired")]
    Expired,
}

impl Attachment {
    /// A session that `connection` has just opened.
    pub fn new(connection: ConnectionId, linger: Linger) -> Self {
        Self { linger, state: State::Attached(connection) }
    }

    /// Replaces the linger times, also for a session that is already detached.
    pub fn set_linger(&mut self, linger: Linger) {
        self.linger = linger;
    }

    /// Attaches `connection` to a detached session.
    pub fn handle_attach(
        &mut self,
        now: Instant,
        load: Load,
        connection: ConnectionId,
    ) -> Result<(), AttachError> {
        self.handle_timeout(now, load);
        match self.state {
            State::Attached(holder) => Err(AttachError::AttachedTo(holder)),
            State::Expired => Err(AttachError::Expired),
            State::Detached { .. } => {
                self.state = State::Attached(connection);
                Ok(())
            }
        }
    }

    /// `connection` has closed; returns whether it held the session.
    pub fn handle_detach(&mut self, now: Instant, connection: ConnectionId) -> bool {
        let held = self.state == State::Attached(connection);
        if held {
            self.state = State::Detached { since: now };
        }
        held
    }

    /// When the session expires if no connection attaches and its load stays the same.
    pub fn poll_timeout(&self, load: Load) -> Option<Instant> {
        let linger = match load {
            Load::Busy => self.linger.busy,
            Load::Empty => self.linger.empty,
        };
        match self.state {
            State::Detached { since } => Some(since + linger),
            State::Attached(_) | State::Expired => None,
        }
    }

    /// Expires the session if its time has passed; returns whether it is expired.
    pub fn handle_timeout(&mut self, now: Instant, load: Load) -> bool {
        if self.poll_timeout(load).is_some_and(|at| now >= at) {
            self.state = State::Expired;
        }
        self.state == State::Expired
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIME: Duration = Duration::from_secs(30);
    const LINGER: Linger = Linger { busy: TIME, empty: TIME };
    const A: ConnectionId = ConnectionId(1);
    const B: ConnectionId = ConnectionId(2);

    #[test]
    fn a_session_can_be_resumed_until_its_linger_ends() {
        let start = Instant::now();
        let mut session = Attachment::new(A, LINGER);
        assert_eq!(session.handle_attach(start, Load::Busy, B), Err(AttachError::AttachedTo(A)));
        assert!(session.handle_detach(start, A));
        assert_eq!(session.poll_timeout(Load::Busy), Some(start + TIME));
        assert!(!session.handle_timeout(start + TIME / 2, Load::Busy));
        session.handle_attach(start + TIME / 2, Load::Busy, B).unwrap();
        assert_eq!(session.poll_timeout(Load::Busy), None);
        assert!(!session.handle_detach(start, A), "the first connection no longer holds it");
        assert!(session.handle_detach(start + TIME, B), "the linger starts again");
        let late = start + TIME * 2;
        assert_eq!(session.handle_attach(late, Load::Busy, A), Err(AttachError::Expired));
        assert!(session.handle_timeout(late, Load::Busy));
    }

    #[test]
    fn without_linger_a_detached_session_is_expired_at_once() {
        let now = Instant::now();
        let none = Linger { busy: Duration::ZERO, empty: Duration::ZERO };
        let mut session = Attachment::new(A, none);
        session.handle_detach(now, A);
        assert!(session.handle_timeout(now, Load::Empty));
    }

    #[test]
    fn a_session_without_processes_uses_the_shorter_linger() {
        let start = Instant::now();
        let mut session = Attachment::new(A, LINGER);
        session.set_linger(Linger { busy: TIME * 100, empty: TIME });
        session.handle_detach(start, A);
        let later = start + TIME * 50;
        assert!(!session.handle_timeout(later, Load::Busy));
        assert_eq!(session.poll_timeout(Load::Busy), Some(start + TIME * 100));
        assert!(session.handle_timeout(later, Load::Empty));
    }
}
