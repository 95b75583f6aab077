//! Runs the keepalive rules of one peer on a tokio timer, for the poll loop that owns the socket.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use exec_server_core::keepalive::Keepalive;
use tokio::time::Sleep;

pub use exec_server_core::keepalive::KeepaliveAction;

/// Ping interval and timeout.
#[derive(Debug, Clone, Copy)]
pub struct KeepaliveConfig {
    /// Time between pings.
    pub interval: Duration,
    /// Time without activity after which the connection is closed.
    pub deadline: Duration,
}

/// [`Keepalive`] with its timer.
pub struct KeepaliveTimer {
    rules: Keepalive,
    sleep: Pin<Box<Sleep>>,
}

impl KeepaliveTimer {
    /// Starts the first interval.
    pub fn new(config: KeepaliveConfig) -> Self {
        let rules = Keepalive::new(Instant::now(), config.interval, config.deadline);
        let sleep = Box::pin(tokio::time::sleep_until(rules.poll_timeout().into()));
        Self { rules, sleep }
    }

    /// The peer sent or took something.
    pub fn handle_activity(&mut self) {
        self.rules.handle_activity();
    }

    /// Whether an action may be due; the owner can still report activity before [`KeepaliveTimer::poll`].
    pub fn is_due(&mut self, cx: &mut Context) -> bool {
        self.sleep.as_mut().poll(cx).is_ready()
    }

    /// The next action; must be polled again until it is pending.
    pub fn poll(&mut self, cx: &mut Context) -> Poll<KeepaliveAction> {
        loop {
            if let Some(action) = ready!(self.poll_until(cx, None)) {
                return Poll::Ready(action);
            }
        }
    }

    /// The next action, or `None` when `other` has passed, so that a second deadline shares the timer.
    pub fn poll_until(
        &mut self,
        cx: &mut Context,
        other: Option<Instant>,
    ) -> Poll<Option<KeepaliveAction>> {
        loop {
            let own = self.rules.poll_timeout();
            let next = other.map_or(own, |other| other.min(own));
            if self.sleep.deadline().into_std() != next {
                self.sleep.as_mut().reset(next.into());
            }
            ready!(self.sleep.as_mut().poll(cx));
            let now = Instant::now();
            if let Some(action) = self.rules.handle_timeout(now) {
                return Poll::Ready(Some(action));
            }
            if other.is_some_and(|other| now >= other) {
                return Poll::Ready(None);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    const SOON: Duration = Duration::from_millis(5);
    const LATE: Duration = Duration::from_secs(3600);

    fn timer(interval: Duration, deadline: Duration) -> KeepaliveTimer {
        KeepaliveTimer::new(KeepaliveConfig { interval, deadline })
    }

    #[tokio::test]
    async fn a_silent_peer_is_pinged_and_then_given_up() {
        let mut timer = timer(SOON, SOON);
        let started = Instant::now();
        assert_eq!(poll_fn(|cx| timer.poll(cx)).await, KeepaliveAction::Ping);
        assert!(started.elapsed() >= SOON);
        assert_eq!(poll_fn(|cx| timer.poll(cx)).await, KeepaliveAction::GiveUp);
    }

    #[tokio::test]
    async fn a_peer_that_answers_is_pinged_again() {
        let mut timer = timer(SOON, LATE);
        for _ in 0..3 {
            assert_eq!(poll_fn(|cx| timer.poll(cx)).await, KeepaliveAction::Ping);
            timer.handle_activity();
        }
    }

    #[tokio::test]
    async fn activity_that_is_reported_when_the_deadline_is_due_still_counts() {
        let mut timer = timer(SOON, 2 * SOON);
        assert_eq!(poll_fn(|cx| timer.poll(cx)).await, KeepaliveAction::Ping);
        tokio::time::sleep(3 * SOON).await;
        poll_fn(|cx| if timer.is_due(cx) { Poll::Ready(()) } else { Poll::Pending }).await;
        timer.handle_activity();
        assert_eq!(poll_fn(|cx| timer.poll(cx)).await, KeepaliveAction::Ping);
    }

    #[tokio::test]
    async fn another_deadline_shares_the_timer() {
        let mut timer = timer(LATE, LATE);
        let other = Instant::now() + SOON;
        assert_eq!(poll_fn(|cx| timer.poll_until(cx, Some(other))).await, None);
        assert!(Instant::now() >= other);
    }
}
