//! A queue of frames for a socket that tracks their number and bytes, and charges them to the node's budget.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;

use super::budget::{BufferBudget, SMALLEST_SHARE};

/// Charged per frame for its place in the queue and its share of an allocation.
const FRAME_OVERHEAD: usize = 128;

/// A small frame is copied, because it would keep the whole read buffer alive that it arrived in.
const COPIED_BELOW: usize = 8 * 1024;

/// Which part of its share a queue may fill.
#[derive(Debug, Clone, Copy)]
pub(super) struct Mark {
    /// Limit of frames.
    pub frames: usize,
    /// The share is divided by this.
    pub divisor: usize,
}

/// FIFO of frames; the caller enforces the limit.
#[derive(Debug)]
pub(super) struct Queue {
    frames: VecDeque<Bytes>,
    bytes: usize,
    budget: Arc<BufferBudget>,
}

impl Queue {
    pub(super) fn new(budget: &Arc<BufferBudget>) -> Self {
        Self { frames: VecDeque::new(), bytes: 0, budget: budget.clone() }
    }

    pub(super) fn push(&mut self, frame: Bytes) {
        let frame = match frame.len() {
            0..COPIED_BELOW => Bytes::copy_from_slice(&frame),
            _ => frame,
        };
        let charged = frame.len() + FRAME_OVERHEAD;
        self.bytes += charged;
        self.budget.take(charged);
        self.frames.push_back(frame);
    }

    pub(super) fn pop(&mut self) -> Option<Bytes> {
        let frame = self.frames.pop_front()?;
        let charged = frame.len() + FRAME_OVERHEAD;
        self.bytes -= charged;
        self.budget.give_back(charged);
        if self.frames.is_empty() {
            // Releases the memory of a burst, because most sockets are idle.
            self.frames = VecDeque::new();
        }
        Some(frame)
    }

    pub(super) fn clear(&mut self) {
        self.budget.give_back(std::mem::take(&mut self.bytes));
        self.frames = VecDeque::new();
    }

    pub(super) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Whether the queue may take another frame; an empty one always may.
    pub(super) fn has_room(&self, mark: Mark) -> bool {
        self.is_empty() || self.is_below(mark, 0)
    }

    /// Whether a queue that was full has drained enough: one usual frame below its limit, or to half of a small one.
    pub(super) fn has_drained(&self, mark: Mark) -> bool {
        self.is_empty() || self.is_below(mark, SMALLEST_SHARE)
    }

    fn is_below(&self, mark: Mark, distance: usize) -> bool {
        let Some(share) = self.budget.share() else { return false };
        let share = share / mark.divisor;
        let (frames, bytes) = match distance {
            0 => (mark.frames, share),
            _ => (mark.frames / 2, share.saturating_sub(distance).max(share / 2)),
        };
        self.frames.len() < frames && self.bytes < bytes
    }

    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.frames.len()
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.budget.give_back(self.bytes);
    }
}
