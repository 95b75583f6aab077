//! Wakes whoever looks after a connection while it waits, and nobody while it is in use.
//!
//! A connection remembers who drove it last until somebody else does, so a request that is sent on it would first wake
//! the one who looked after it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Wake, Waker};

/// The bell of one connection.
#[derive(Debug)]
pub struct Bell {
    shared: Arc<Shared>,
    /// Rings it.
    waker: Waker,
}

#[derive(Debug, Default)]
struct Shared {
    is_armed: AtomicBool,
    keeper: OnceLock<Waker>,
}

impl Bell {
    /// What to drive the connection with while it waits; `keeper`, always the same, is woken by it.
    pub fn arm(&self, keeper: &Waker) -> &Waker {
        self.shared.keeper.get_or_init(|| keeper.clone());
        self.shared.is_armed.store(true, Ordering::Release);
        &self.waker
    }

    /// The connection is in use.
    pub fn disarm(&self) {
        self.shared.is_armed.store(false, Ordering::Release);
    }
}

impl Default for Bell {
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
            && let Some(keeper) = self.keeper.get()
        {
            keeper.wake_by_ref();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[derive(Default)]
    struct Keeper(AtomicUsize);

    impl Wake for Keeper {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn it_rings_only_while_it_is_armed() {
        let keeper = Arc::new(Keeper::default());
        let bell = Bell::default();
        bell.waker.wake_by_ref();
        let waker = bell.arm(&keeper.clone().into()).clone();
        waker.wake_by_ref();
        bell.disarm();
        waker.wake_by_ref();
        assert_eq!(keeper.0.load(Ordering::Relaxed), 1);
        assert!(bell.arm(&keeper.into()).will_wake(&waker));
    }
}
