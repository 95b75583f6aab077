//! A waker that reaches the pool sweeper only while the connection is idle.
//!
//! The sweeper polls idle connections, so hyper keeps the sweeper's waker. Queueing a request wakes that waker, and
//! would run the sweeper for every request. Disarming before a request prevents this.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Wake, Waker};

/// The idle waker of one connection.
#[derive(Debug)]
pub struct IdleWaker {
    shared: Arc<Shared>,
    /// Wakes the sweeper while `shared` is armed.
    waker: Waker,
}

#[derive(Debug, Default)]
struct Shared {
    is_armed: AtomicBool,
    sweeper: OnceLock<Waker>,
}

impl IdleWaker {
    /// The waker to poll an idle connection with. Only the first `sweeper` is kept, so all calls must pass the same.
    pub fn arm(&self, sweeper: &Waker) -> &Waker {
        self.shared.sweeper.get_or_init(|| sweeper.clone());
        self.shared.is_armed.store(true, Ordering::Release);
        &self.waker
    }

    /// Stops waking the sweeper: the connection is in use.
    pub fn disarm(&self) {
        self.shared.is_armed.store(false, Ordering::Release);
    }
}

impl Default for IdleWaker {
    fn default() -> Self {
        let shared = Arc::<Shared>::default();
        Self { waker: shared.clone().into(), shared }
    }
}

impl Wake for Shared {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.is_armed.load(Ordering::Acquire)
            && let Some(sweeper) = self.sweeper.get()
        {
            sweeper.wake_by_ref();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[derive(Default)]
    struct CountingWaker(AtomicUsize);

    impl Wake for CountingWaker {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn the_sweeper_is_woken_only_while_the_waker_is_armed() {
        let sweeper = Arc::new(CountingWaker::default());
        let idle_waker = IdleWaker::default();
        idle_waker.waker.wake_by_ref();
        let waker = idle_waker.arm(&sweeper.clone().into()).clone();
        waker.wake_by_ref();
        idle_waker.disarm();
        waker.wake_by_ref();
        assert_eq!(sweeper.0.load(Ordering::Relaxed), 1);
        assert!(idle_waker.arm(&sweeper.into()).will_wake(&waker));
    }
}
