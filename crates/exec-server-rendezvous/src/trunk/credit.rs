//! The bytes that other nodes may send to this node before its sockets have taken them.

use std::sync::atomic::{AtomicU64, Ordering};

/// Window of a new link.
pub const FIRST_WINDOW: u64 = 64 * 1024;

/// Window of a link that uses it: at 2 ms between nodes, 256 MB/s.
const LARGEST_WINDOW: u64 = 512 * 1024;

/// Window while the pool is spent; one frame may exceed it, so a link never stops.
const SMALLEST_WINDOW: u64 = 4 * 1024;

/// Half of what NATS lets wait for a slow connection.
const MOST_GRANTED: u64 = 32 * 1024 * 1024;

/// The windows of all links of a node.
#[derive(Debug)]
pub struct CreditPool {
    total: u64,
    granted: AtomicU64,
}

impl CreditPool {
    /// A pool of an eighth of the node's buffer budget, and 32 MiB at most.
    pub fn new(buffer_budget: usize) -> Self {
        Self { total: (buffer_budget as u64 / 8).min(MOST_GRANTED), granted: AtomicU64::new(0) }
    }

    /// Bytes granted now.
    pub fn granted(&self) -> u64 {
        self.granted.load(Ordering::Relaxed)
    }

    /// The window of a new link.
    pub(super) fn first_window(&self) -> u64 {
        let free = self.total.saturating_sub(self.granted());
        let window = (free / 8).clamp(SMALLEST_WINDOW, FIRST_WINDOW);
        self.granted.fetch_add(window, Ordering::Relaxed);
        window
    }

    /// The window of a link that has used all of it; the pool shrinks with every grant, so it is never spent by one.
    pub(super) fn larger_window(&self, window: u64) -> u64 {
        let free = self.total.saturating_sub(self.granted());
        let larger = (2 * window).min(LARGEST_WINDOW).min(window + free / 8).max(window);
        self.granted.fetch_add(larger - window, Ordering::Relaxed);
        larger
    }

    pub(super) fn give_back(&self, window: u64) {
        self.granted.fetch_sub(window, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_grow_while_there_is_room_and_never_vanish() {
        let pool = CreditPool::new(64 * 1024 * 1024);
        let mut window = pool.first_window();
        assert_eq!(window, FIRST_WINDOW);
        for _ in 0..5 {
            window = pool.larger_window(window);
        }
        assert_eq!((window, pool.granted()), (LARGEST_WINDOW, LARGEST_WINDOW));
        let others: Vec<u64> = (0..1000).map(|_| pool.first_window()).collect();
        assert_eq!((others[0], others[999]), (FIRST_WINDOW, SMALLEST_WINDOW));
        assert!(pool.granted() <= pool.total + 1000 * SMALLEST_WINDOW);
        assert_eq!(pool.larger_window(SMALLEST_WINDOW), SMALLEST_WINDOW);
        others.into_iter().for_each(|window| pool.give_back(window));
        pool.give_back(window);
        assert_eq!(pool.granted(), 0);
    }
}
