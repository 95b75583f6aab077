//! A queue of bytes in blocks: appended at the back, dropped at the front, read anywhere.
//!
//! Owner: [`crate::process_log::ProcessLog`].
//! Invariant: memory in use is what is queued plus at most one block at either end and one spare.

use std::collections::VecDeque;

/// Small enough that a process with a line of output costs little.
const FIRST_BLOCK: usize = 1024;
/// Large enough that a flood allocates rarely.
const LARGEST_BLOCK: usize = 64 * 1024;

/// A queue of bytes in blocks.
#[derive(Debug, Default)]
pub struct ByteQueue {
    blocks: VecDeque<Vec<u8>>,
    /// Bytes of the first block that are already dropped.
    head: usize,
    len: usize,
    /// One emptied block is kept, so that a flood at its retention limit does not allocate at all.
    spare: Option<Vec<u8>>,
}

impl ByteQueue {
    /// The number of bytes in the queue.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Appends `bytes`.
    pub fn push(&mut self, mut bytes: &[u8]) {
        self.len += bytes.len();
        while !bytes.is_empty() {
            let room = self.blocks.back().map_or(0, |block| block.capacity() - block.len());
            if room == 0 {
                let block = self.new_block(bytes.len());
                self.blocks.push_back(block);
                continue;
            }
            let (now, later) = bytes.split_at(room.min(bytes.len()));
            self.blocks.back_mut().expect("has room").extend_from_slice(now);
            bytes = later;
        }
    }

    /// Drops `count` bytes from the front.
    pub fn pop(&mut self, count: usize) {
        self.len -= count;
        self.head += count;
        while let Some(first) = self.blocks.front() {
            if self.head < first.len() || (self.head == first.len() && self.blocks.len() == 1) {
                break;
            }
            self.head -= first.len();
            let mut block = self.blocks.pop_front().expect("was just seen");
            if self.spare.is_none() && block.capacity() == LARGEST_BLOCK {
                block.clear();
                self.spare = Some(block);
            }
        }
    }

    /// Copies `count` bytes that start `offset` bytes behind the front.
    pub fn copy(&self, offset: usize, count: usize) -> Vec<u8> {
        let mut copy = Vec::with_capacity(count);
        let mut skip = self.head + offset;
        for block in &self.blocks {
            if skip >= block.len() {
                skip -= block.len();
                continue;
            }
            let take = (block.len() - skip).min(count - copy.len());
            copy.extend_from_slice(&block[skip..skip + take]);
            skip = 0;
            if copy.len() == count {
                break;
            }
        }
        copy
    }

    /// Gives back memory that only pays while bytes keep coming.
    pub fn trim(&mut self) {
        self.spare = None;
        if let Some(first) = self.blocks.front_mut() {
            first.drain(..std::mem::take(&mut self.head));
            first.shrink_to_fit();
        }
        if let Some(last) = self.blocks.back_mut() {
            last.shrink_to_fit();
        }
        self.blocks.shrink_to_fit();
    }

    fn new_block(&mut self, wanted: usize) -> Vec<u8> {
        let grown = self.blocks.back().map_or(FIRST_BLOCK, |block| block.capacity() * 4);
        let size = grown.max(wanted).min(LARGEST_BLOCK);
        if size == LARGEST_BLOCK
            && let Some(spare) = self.spare.take()
        {
            return spare;
        }
        Vec::with_capacity(size)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn behaves_like_a_plain_queue(steps in proptest::collection::vec((0usize..200_000, 0usize..200_000, any::<u8>()), 1..40)) {
            let mut queue = ByteQueue::default();
            let mut model: VecDeque<u8> = VecDeque::new();
            for (push, pop, byte) in steps {
                let bytes: Vec<u8> = (0..push).map(|i| byte.wrapping_add(i as u8)).collect();
                queue.push(&bytes);
                model.extend(&bytes);
                let pop = pop.min(model.len());
                queue.pop(pop);
                model.drain(..pop);
                prop_assert_eq!(queue.len(), model.len());
                let offset = model.len() / 3;
                let count = (model.len() - offset) / 2;
                let expected: Vec<u8> = model.range(offset..offset + count).copied().collect();
                prop_assert_eq!(queue.copy(offset, count), expected);
            }
        }
    }

    #[test]
    fn memory_stays_near_what_is_queued() {
        let mut queue = ByteQueue::default();
        for _ in 0..10_000 {
            queue.push(&[7; 8192]);
            if queue.len() > 1 << 20 {
                queue.pop(8192);
            }
        }
        queue.trim();
        let held: usize = queue.blocks.iter().map(Vec::capacity).sum();
        assert_eq!(held, queue.len(), "nothing but what is queued is held after a trim");
    }
}
