//! Requests that wait for an executor that was attached a moment ago and is expected back.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

/// An executor reconnects within a second or two; one that stays away longer is offline.
const EXPECTED_FOR: Duration = Duration::from_secs(5);

/// Each waiting request holds a connection and some KiB.
const MOST_WAITING: usize = 4096;

/// Bounds the memory for departures of one shard; beyond it, requests are answered at once.
const MOST_DEPARTURES: usize = 4096;

/// Departed executors and the requests that wait for them, of one shard.
#[derive(Default)]
pub struct Arrivals {
    departed: BTreeMap<String, Instant>,
    awaited: BTreeMap<String, Arc<Notify>>,
}

/// The number of waiting requests of a node.
#[derive(Default)]
pub struct Waiting(AtomicUsize);

impl Arrivals {
    /// The executor of this environment is no longer attached.
    pub fn handle_departure(&mut self, now: Instant, environment: String) {
        if self.departed.len() >= MOST_DEPARTURES {
            self.departed.retain(|_, since| now < *since + EXPECTED_FOR);
        }
        if self.departed.len() < MOST_DEPARTURES {
            self.departed.insert(environment, now);
        }
    }

    /// An executor was attached; wakes the requests that wait for it.
    pub fn handle_arrival(&mut self, environment: &str) {
        self.departed.remove(environment);
        if let Some(awaited) = self.awaited.remove(environment) {
            awaited.notify_waiters();
        }
    }

    /// Whether the executor was attached a moment ago.
    pub fn is_expected(&self, now: Instant, environment: &str) -> bool {
        self.departed.get(environment).is_some_and(|since| now < *since + EXPECTED_FOR)
    }

    /// A signal for the next arrival.
    pub fn signal(&mut self, environment: &str) -> Arc<Notify> {
        self.awaited.entry(environment.to_owned()).or_default().clone()
    }

    /// Removes a signal that no request waits for; the caller has dropped its copy.
    pub fn forget(&mut self, environment: &str) {
        if self.awaited.get(environment).is_some_and(|it| Arc::strong_count(it) == 1) {
            self.awaited.remove(environment);
        }
    }
}

impl Waiting {
    /// Number of waiting requests.
    pub fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    /// A place among the waiting requests, unless all are taken.
    pub fn enter(&self) -> Option<WaitingGuard<'_>> {
        let guard = WaitingGuard(&self.0);
        let others = self.0.fetch_add(1, Ordering::Relaxed);
        (others < MOST_WAITING).then_some(guard)
    }
}

/// Counts a request as waiting while it is held.
pub struct WaitingGuard<'a>(&'a AtomicUsize);

impl Drop for WaitingGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_executor_is_expected_for_some_seconds_after_it_left() {
        let mut arrivals = Arrivals::default();
        let now = Instant::now();
        assert!(!arrivals.is_expected(now, "env"));
        arrivals.handle_departure(now, "env".into());
        assert!(arrivals.is_expected(now, "env") && !arrivals.is_expected(now, "other"));
        assert!(!arrivals.is_expected(now + EXPECTED_FOR, "env"));
        arrivals.handle_arrival("env");
        assert!(!arrivals.is_expected(now, "env"));
    }

    #[test]
    fn departures_and_waiting_requests_are_bounded() {
        let mut arrivals = Arrivals::default();
        let now = Instant::now();
        for number in 0..=MOST_DEPARTURES {
            arrivals.handle_departure(now, format!("env-{number}"));
        }
        assert_eq!(arrivals.departed.len(), MOST_DEPARTURES);
        arrivals.handle_departure(now + EXPECTED_FOR, "late".into());
        assert_eq!(arrivals.departed.len(), 1);

        let waiting = Waiting::default();
        let guards: Vec<_> = (0..MOST_WAITING).map(|_| waiting.enter().unwrap()).collect();
        assert!(waiting.enter().is_none());
        drop(guards);
        assert!(waiting.enter().is_some());
    }
}
