//! Decides when to ping a peer and when to treat it as unresponsive.
//!
//! Owner: the connection task. A peer counts as alive while it sends or accepts data: a peer that reads a long backlog
//! cannot answer the ping behind it.

use std::time::{Duration, Instant};

/// Ping state of one connection.
#[derive(Debug)]
pub struct Keepalive {
    interval: Duration,
    deadline: Duration,
    next_ping: Instant,
    /// When the unanswered ping was sent.
    waiting_since: Option<Instant>,
}

/// Action for the owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeepaliveAction {
    /// Send a ping.
    Ping,
    /// Close the connection: the peer is gone.
    GiveUp,
}

impl Keepalive {
    /// Pings every `interval`, and gives up `deadline` after a ping without activity.
    pub fn new(now: Instant, interval: Duration, deadline: Duration) -> Self {
        Self { interval, deadline, next_ping: now + interval, waiting_since: None }
    }

    /// The peer sent or accepted data.
    pub fn handle_activity(&mut self) {
        self.waiting_since = None;
    }

    /// When [`Keepalive::handle_timeout`] must be called.
    pub fn poll_timeout(&self) -> Instant {
        match self.waiting_since {
            Some(since) => self.next_ping.min(since + self.deadline),
            None => self.next_ping,
        }
    }

    /// Returns the action that is due at `now`.
    pub fn handle_timeout(&mut self, now: Instant) -> Option<KeepaliveAction> {
        if self.waiting_since.is_some_and(|since| now >= since + self.deadline) {
            return Some(KeepaliveAction::GiveUp);
        }
        if now < self.next_ping {
            return None;
        }
        self.next_ping = now + self.interval;
        self.waiting_since.get_or_insert(now);
        Some(KeepaliveAction::Ping)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_peer_without_pongs_is_closed_and_an_active_one_is_not() {
        let start = Instant::now();
        let mut keepalive = Keepalive::new(start, 30 * SECOND, 20 * SECOND);
        assert_eq!(keepalive.poll_timeout(), start + 30 * SECOND);
        assert_eq!(keepalive.handle_timeout(start + 29 * SECOND), None);
        assert_eq!(keepalive.handle_timeout(start + 30 * SECOND), Some(KeepaliveAction::Ping));
        assert_eq!(keepalive.poll_timeout(), start + 50 * SECOND);
        keepalive.handle_activity();
        assert_eq!(keepalive.handle_timeout(start + 50 * SECOND), None);
        assert_eq!(keepalive.handle_timeout(start + 60 * SECOND), Some(KeepaliveAction::Ping));
        assert_eq!(keepalive.handle_timeout(start + 80 * SECOND), Some(KeepaliveAction::GiveUp));
    }

    #[test]
    fn a_deadline_longer_than_the_interval_counts_from_the_first_unanswered_ping() {
        let start = Instant::now();
        let mut keepalive = Keepalive::new(start, 10 * SECOND, 25 * SECOND);
        assert_eq!(keepalive.handle_timeout(start + 10 * SECOND), Some(KeepaliveAction::Ping));
        assert_eq!(keepalive.handle_timeout(start + 20 * SECOND), Some(KeepaliveAction::Ping));
        assert_eq!(keepalive.handle_timeout(start + 35 * SECOND), Some(KeepaliveAction::GiveUp));
    }
}
