//! How many bytes of bodies one connection may have in memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use exec_server_protocol::limits::MAX_HTTP_HELD_BYTES;

/// How many bytes of bodies one connection has in memory; cheap to clone.
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
    /// Counts bytes, unless there are too many already.
    pub fn take(&self, bytes: usize) -> Option<Taken> {
        let mut taken = Taken { budget: self.clone(), bytes: 0 };
        taken.grow(bytes).then_some(taken)
    }
}

impl Taken {
    /// Counts more bytes, unless there are too many already.
    pub fn grow(&mut self, more: usize) -> bool {
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
    fn what_is_dropped_is_free_again_and_what_was_refused_was_never_taken() {
        let budget = Budget::default();
        let mut all = budget.take(MAX_HTTP_HELD_BYTES - 1).unwrap();
        assert!(all.grow(1) && !all.grow(1));
        assert!(budget.take(1).is_none() && budget.take(usize::MAX).is_none());
        drop(all);
        assert!(budget.take(MAX_HTTP_HELD_BYTES).is_some());
    }
}
