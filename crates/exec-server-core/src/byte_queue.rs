//! A queue of bytes with a limit: appended at the back, dropped at the front, read anywhere.
//!
//! Owner: [`crate::process_log::ProcessLog`].
//! Invariant: it never holds more memory than its limit, so a flood at the limit allocates nothing.

use std::collections::VecDeque;

/// A queue of bytes with a limit.
#[derive(Debug)]
pub struct ByteQueue {
    bytes: VecDeque<u8>,
    limit: usize,
}

/// Small, so that a process with one line of output costs little memory.
const FIRST_CAPACITY: usize = 512;

impl ByteQueue {
    /// An empty queue for at most `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Self { bytes: VecDeque::new(), limit }
    }

    /// Number of bytes in the queue.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether the queue holds no bytes.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Number of bytes that still fit.
    pub fn room(&self) -> usize {
        self.limit - self.bytes.len()
    }

    /// Appends `bytes`, for which there must be room.
    pub fn push(&mut self, bytes: &[u8]) {
        debug_assert!(bytes.len() <= self.room(), "the owner makes room first");
        let needed = self.bytes.len() + bytes.len();
        if needed > self.bytes.capacity() {
            let grown = (self.bytes.capacity() * 4).max(FIRST_CAPACITY).min(self.limit);
            self.bytes.reserve_exact(grown.max(needed) - self.bytes.len());
        }
        self.bytes.extend(bytes);
    }

    /// Drops `count` bytes from the front.
    pub fn pop(&mut self, count: usize) {
        self.bytes.drain(..count);
    }

    /// Copies `count` bytes that start `offset` bytes behind the front.
    pub fn copy(&self, offset: usize, count: usize) -> Vec<u8> {
        let (first, second) = self.bytes.as_slices();
        let (start, end) = (offset, offset + count);
        let mut copy = Vec::with_capacity(count);
        copy.extend_from_slice(&first[start.min(first.len())..end.min(first.len())]);
        copy.extend_from_slice(
            &second[start.saturating_sub(first.len())..end.saturating_sub(first.len())],
        );
        copy
    }

    /// Shrinks the buffer when the output has stopped.
    pub fn trim(&mut self) {
        self.bytes.shrink_to_fit();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn behaves_like_a_plain_queue(
            limit in 1usize..50_000,
            steps in proptest::collection::vec((0usize..20_000, 0usize..20_000, any::<u8>()), 1..40),
        ) {
            let mut queue = ByteQueue::new(limit);
            let mut model: Vec<u8> = Vec::new();
            for (push, pop, byte) in steps {
                let bytes: Vec<u8> = (0..push.min(queue.room())).map(|i| byte.wrapping_add(i as u8)).collect();
                queue.push(&bytes);
                model.extend(&bytes);
                let offset = model.len() / 3;
                let count = (model.len() - offset) / 2;
                prop_assert_eq!(queue.copy(offset, count), &model[offset..offset + count]);
                let pop = pop.min(model.len());
                queue.pop(pop);
                model.drain(..pop);
                prop_assert_eq!(queue.len(), model.len());
                prop_assert!(queue.bytes.capacity() <= limit.max(FIRST_CAPACITY));
            }
            queue.trim();
            prop_assert_eq!(queue.copy(0, model.len()), model);
        }
    }
}
