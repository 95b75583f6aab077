//! Bounds the bytes of HTTP bodies that one connection keeps in memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use exec_server_protocol::limits::MAX_HTTP_HELD_BYTES;

/// The bytes of bodies that one connection has in memory; clones share the count.
#[derive(Debug, Clone, Default)]
pub struct Budget {
    used: Arc<AtomicUsize>,
}

/// Bytes that are counted until this is dropped.
#[derive(Debug)]
pub struct Taken {
    budget: Budget,
    bytes: usize,
}

impl Budget {
    /// Counts bytes; `None` if the budget would be exceeded.
    pub fn take(&self, bytes: usize) -> Option<Taken> {
        let mut taken = Taken { budget: self.clone(), bytes: 0 };
        taken.grow(bytes).then_some(taken)
    }

    /// Counts a body until its last slice is dropped; fails if the budget is exceeded.
    pub fn hold(&self, bytes: Vec<u8>) -> Option<Bytes> {
        let taken = self.take(bytes.capacity())?;
        Some(Bytes::from_owner(Counted { bytes, _taken: taken }))
    }
}

struct Counted {
    bytes: Vec<u8>,
    _taken: Taken,
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Taken {
    /// Raises the count to `bytes`, never lowers it; false if the budget would be exceeded.
    pub fn grow_to(&mut self, bytes: usize) -> bool {
        self.grow(bytes.saturating_sub(self.bytes))
    }

    fn grow(&mut self, more: usize) -> bool {
        let grown = self.budget.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
            used.checked_add(more).filter(|used| *used <= MAX_HTTP_HELD_BYTES)
        });
        if grown.is_ok() {
            self.bytes += more;
        }
        grown.is_ok()
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dropped_bytes_are_released_and_rejected_bytes_are_not_counted() {
        let budget = Budget::default();
        let mut all = budget.take(MAX_HTTP_HELD_BYTES - 1).unwrap();
        assert!(all.grow_to(1) && all.grow_to(MAX_HTTP_HELD_BYTES));
        assert!(!all.grow_to(MAX_HTTP_HELD_BYTES + 1));
        assert!(budget.take(1).is_none() && budget.take(usize::MAX).is_none());
        drop(all);
        assert!(budget.take(MAX_HTTP_HELD_BYTES).is_some());
    }

    #[test]
    fn a_body_counts_with_its_capacity_until_its_last_slice_is_dropped() {
        let budget = Budget::default();
        let mut bytes = Vec::with_capacity(1000);
        bytes.extend_from_slice(b"body");
        let memory = bytes.capacity();
        let mut body = budget.hold(bytes).unwrap();
        let part = body.split_off(2);
        drop(body);
        assert!(budget.take(MAX_HTTP_HELD_BYTES - memory + 1).is_none());
        assert_eq!(part, "dy");
        drop(part);
        assert!(budget.take(MAX_HTTP_HELD_BYTES).is_some());
    }
}
