//! Frames that wait for a socket, counted and weighed.

use std::collections::VecDeque;

use bytes::Bytes;

/// How much is much.
#[derive(Debug, Clone, Copy)]
pub struct Mark {
    pub frames: usize,
    pub bytes: usize,
}

impl Mark {
    /// Half as much.
    pub fn half(self) -> Self {
        Self { frames: self.frames / 2, bytes: self.bytes / 2 }
    }
}

/// Frames in their order.
#[derive(Debug, Default)]
pub struct Queue {
    frames: VecDeque<Bytes>,
    bytes: usize,
}

impl Queue {
    pub fn push(&mut self, frame: Bytes) {
        self.bytes += frame.len();
        self.frames.push_back(frame);
    }

    pub fn pop(&mut self) -> Option<Bytes> {
        let frame = self.frames.pop_front()?;
        self.bytes -= frame.len();
        if self.frames.is_empty() {
            // An idle socket keeps no memory for the rush that it once had.
            self.frames = VecDeque::new();
        }
        Some(frame)
    }

    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    pub fn is_below(&self, mark: Mark) -> bool {
        self.frames.len() < mark.frames && self.bytes < mark.bytes
    }

    #[cfg(test)]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.frames.len()
    }
}
