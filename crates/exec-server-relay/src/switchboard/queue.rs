//! A queue of frames for a socket that tracks their number and bytes.

use std::collections::VecDeque;

use bytes::Bytes;

/// A queue limit: reached when either number is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Mark {
    pub frames: usize,
    pub bytes: usize,
}

impl Mark {
    /// The low-water mark for this limit.
    pub(super) fn half(self) -> Self {
        Self { frames: self.frames / 2, bytes: self.bytes / 2 }
    }
}

/// FIFO of frames; the caller enforces the limit.
#[derive(Debug, Default)]
pub(super) struct Queue {
    frames: VecDeque<Bytes>,
    bytes: usize,
}

impl Queue {
    pub(super) fn push(&mut self, frame: Bytes) {
        self.bytes += frame.len();
        self.frames.push_back(frame);
    }

    pub(super) fn pop(&mut self) -> Option<Bytes> {
        let frame = self.frames.pop_front()?;
        self.bytes -= frame.len();
        if self.frames.is_empty() {
            // Releases the memory of a burst, because most sockets are idle.
            self.frames = VecDeque::new();
        }
        Some(frame)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    pub(super) fn is_below(&self, mark: Mark) -> bool {
        self.frames.len() < mark.frames && self.bytes < mark.bytes
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
