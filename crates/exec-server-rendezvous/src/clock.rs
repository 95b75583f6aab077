//! Wall-clock time for signatures and stored rows.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// Unix time in seconds.
pub type Seconds = i64;

/// The current time.
pub fn now() -> Seconds {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| i64::try_from(since.as_secs()).unwrap_or(i64::MAX))
}

/// An adjustable clock; clones share the adjustment.
#[derive(Debug, Clone, Default)]
pub struct Clock {
    ahead: Arc<AtomicI64>,
}

impl Clock {
    /// The system time plus the adjustment.
    pub fn now(&self) -> Seconds {
        now().saturating_add(self.ahead.load(Ordering::Relaxed))
    }

    /// Moves the clock to `time`; returns by how much the system's differs from it.
    pub fn follow(&self, time: Seconds) -> Seconds {
        let difference = time.saturating_sub(now());
        self.ahead.store(difference, Ordering::Relaxed);
        difference
    }

    /// Moves the clock by `by` seconds, so that tests can simulate clock changes.
    pub fn step(&self, by: Seconds) {
        self.ahead.fetch_add(by, Ordering::Relaxed);
    }
}
