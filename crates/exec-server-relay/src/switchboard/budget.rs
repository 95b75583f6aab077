//! Buffer budget of a node: the bytes that all queues of all switchboards may hold together.
//!
//! The share of one queue shrinks as the budget fills, so stalled peers leave room for the others. An empty queue
//! always takes one frame, so a spent budget slows streams down and never deadlocks them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Default budget of a node.
pub const DEFAULT_BUDGET: usize = 256 * 1024 * 1024;

/// Share of a queue in an empty budget: four of the largest frames.
pub(super) const LARGEST_SHARE: usize = 1024 * 1024;

/// Lower bound of a share: one record of the usual size.
pub(super) const SMALLEST_SHARE: usize = 64 * 1024;

/// Bytes held in queues, shared by all switchboards of a node.
#[derive(Debug)]
pub struct BufferBudget {
    total: usize,
    used: AtomicUsize,
    peak: AtomicUsize,
}

impl BufferBudget {
    /// Creates an unused budget.
    pub fn new(total: usize) -> Arc<Self> {
        Arc::new(Self { total, used: AtomicUsize::new(0), peak: AtomicUsize::new(0) })
    }

    /// Bytes queued now.
    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// The size of the budget.
    pub fn total(&self) -> usize {
        self.total
    }

    /// The largest use since the last call.
    pub fn take_peak(&self) -> usize {
        self.peak.swap(self.used(), Ordering::Relaxed)
    }

    /// Bytes that one queue may hold now; none while the budget is spent.
    pub(super) fn share(&self) -> Option<usize> {
        let free = self.total.checked_sub(self.used()).filter(|free| *free > 0)?;
        // The fourth power: two hundred stalled peers take a quarter of the budget and leave the rest to the others.
        let share = (free as f64 / self.total as f64).powi(4) * LARGEST_SHARE as f64;
        Some((share as usize).clamp(SMALLEST_SHARE, LARGEST_SHARE))
    }

    /// Counts bytes as used until the guard is dropped.
    pub fn charge(self: &Arc<Self>, bytes: usize) -> Charge {
        self.take(bytes);
        Charge { budget: self.clone(), bytes }
    }

    pub(super) fn take(&self, bytes: usize) {
        let used = self.used.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if used > self.peak.load(Ordering::Relaxed) {
            self.peak.fetch_max(used, Ordering::Relaxed);
        }
    }

    pub(super) fn give_back(&self, bytes: usize) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// Bytes of a budget; dropping it gives them back.
#[derive(Debug)]
pub struct Charge {
    budget: Arc<BufferBudget>,
    bytes: usize,
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.budget.give_back(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_charge_is_given_back_when_it_is_dropped() {
        let budget = BufferBudget::new(100);
        let charge = budget.charge(60);
        assert_eq!(budget.used(), 60);
        drop(charge);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn a_share_shrinks_as_the_budget_fills() {
        let budget = BufferBudget::new(4 * LARGEST_SHARE);
        assert_eq!(budget.share(), Some(LARGEST_SHARE));
        budget.take(LARGEST_SHARE);
        assert_eq!(budget.share(), Some(LARGEST_SHARE / 256 * 81));
        budget.take(3 * LARGEST_SHARE - 1);
        assert_eq!(budget.share(), Some(SMALLEST_SHARE));
        budget.take(1);
        assert_eq!(budget.share(), None);
        budget.take(LARGEST_SHARE);
        assert_eq!(budget.share(), None);
        budget.give_back(5 * LARGEST_SHARE);
        assert_eq!((budget.used(), budget.share()), (0, Some(LARGEST_SHARE)));
        assert_eq!((budget.take_peak(), budget.take_peak()), (5 * LARGEST_SHARE, 0));
    }
}
