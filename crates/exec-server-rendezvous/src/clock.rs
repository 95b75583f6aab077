//! The time of day, as it is signed and stored.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// Seconds since 1970.
pub type Seconds = i64;

/// Now.
pub fn now() -> Seconds {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| i64::try_from(since.as_secs()).unwrap_or(i64::MAX))
}

/// The clock that a rendezvous goes by; all copies are the same clock.
#[derive(Debug, Clone, Default)]
pub struct Clock {
    ahead: Arc<AtomicI64>,
}

impl Clock {
    /// What it shows: the time of this machine, unless it was set.
    pub fn now(&self) -> Seconds {
        now().saturating_add(self.ahead.load(Ordering::Relaxed))
    }

    /// Sets it forward, or back, as somebody may set the clock of a machine.
    pub fn step(&self, by: Seconds) {
        self.ahead.fetch_add(by, Ordering::Relaxed);
    }
}
