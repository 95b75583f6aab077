//! Notices that this process was stopped, and holds frames back until its claims are checked.
//!
//! Another node may have claimed its executors meanwhile, and their old sockets may still hold frames.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

/// Interval of ticks.
const TICK: Duration = Duration::from_millis(100);

/// A longer time between two ticks means that the process was stopped.
const STOPPED: u64 = 1000;

/// Whether frames are held back.
#[derive(Debug)]
pub struct Pause {
    start: Instant,
    /// Milliseconds from the start to the last tick.
    ticked: AtomicU64,
    /// Numbers of the last stop, and of the last one that was checked.
    stops: AtomicU64,
    checked: AtomicU64,
    wanted: Notify,
}

impl Default for Pause {
    fn default() -> Self {
        let (ticked, stops) = (AtomicU64::new(0), AtomicU64::new(0));
        let checked = AtomicU64::new(0);
        Self { start: Instant::now(), ticked, stops, checked, wanted: Notify::new() }
    }
}

impl Pause {
    /// Whether no frame may be handled now.
    pub fn is_on(&self) -> bool {
        let is_late = self.elapsed() > self.ticked.load(Ordering::Acquire) + STOPPED;
        is_late || self.checked.load(Ordering::Acquire) < self.stops.load(Ordering::Acquire)
    }

    /// Waits until a check is wanted.
    pub async fn requested(&self) {
        self.wanted.notified().await;
    }

    /// The stop to be checked, if there is one.
    pub fn begin_check(&self) -> Option<u64> {
        let stop = self.stops.load(Ordering::Acquire);
        (self.checked.load(Ordering::Acquire) < stop).then_some(stop)
    }

    /// All claims were checked since this stop; returns whether frames flow again.
    pub fn end_check(&self, stop: u64) -> bool {
        self.checked.fetch_max(stop, Ordering::AcqRel);
        !self.is_on()
    }

    /// Ticks until the node stops.
    pub async fn run(self: Arc<Self>) {
        loop {
            self.tick();
            tokio::time::sleep(TICK).await;
        }
    }

    fn tick(&self) {
        let now = self.elapsed();
        if now > self.ticked.load(Ordering::Acquire) + STOPPED {
            // Before the tick is noted, so that there is no moment in which frames flow.
            self.stops.fetch_add(1, Ordering::AcqRel);
            self.wanted.notify_one();
        }
        self.ticked.store(now, Ordering::Release);
    }

    fn elapsed(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_a_stop_frames_wait_for_the_check() {
        let pause = Pause::default();
        pause.tick();
        assert!(!pause.is_on() && pause.begin_check().is_none());
        // As if the process had started, and been stopped, two seconds ago.
        let pause = Pause { start: Instant::now() - Duration::from_secs(2), ..Pause::default() };
        assert!(pause.is_on());
        pause.tick();
        assert!(pause.is_on());
        let stop = pause.begin_check().expect("a check is wanted");
        assert!(pause.end_check(stop) && !pause.is_on());
    }
}
