//! A message that is written by hand, in memory that the thread uses again for its next large message.
//!
//! Fresh memory for every block of a file costs more than filling it: the kernel has to find and clear each page.

use std::cell::RefCell;

use exec_server_protocol::base64;
use serde::Serialize;

/// The text of a message on its way to an outbox.
#[derive(Debug, Default)]
pub struct MessageText {
    /// As long as it ever was; what lies behind `len` is left over.
    bytes: Vec<u8>,
    len: usize,
}

/// Smaller messages are served well by the allocator.
const LEAST_KEPT: usize = 256 * 1024;
/// A message with the largest block of a file, and a little more.
const MOST_KEPT: usize = 2 * 1024 * 1024;
/// Messages of one thread that are written while an earlier one is on its way to the kernel.
const KEPT: usize = 3;

thread_local! {
    static SPARE: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

impl MessageText {
    /// An empty message with room for this many bytes.
    pub fn with_capacity(capacity: usize) -> Self {
        let fits = |spare: &Vec<u8>| spare.len() >= capacity && capacity >= LEAST_KEPT;
        let spare = SPARE.with_borrow_mut(|spares| {
            spares.iter().position(fits).map(|place| spares.swap_remove(place))
        });
        Self { bytes: spare.unwrap_or_else(|| vec![0; capacity]), len: 0 }
    }

    /// How long it is so far.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing was written yet.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// How much memory it has, written to or not.
    pub fn memory(&self) -> usize {
        self.bytes.len()
    }

    /// Gives it at least this much memory.
    pub fn grow_to(&mut self, memory: usize) {
        if memory > self.bytes.len() {
            self.bytes.resize(memory, 0);
        }
    }

    /// Appends text as it is.
    pub fn push(&mut self, text: &str) {
        self.room(text.len()).copy_from_slice(text.as_bytes());
    }

    /// Appends bytes as base64.
    pub fn push_base64(&mut self, bytes: &[u8]) {
        let room = self.room(base64::encoded_len(bytes.len()));
        base64::encode_to(bytes, room);
    }

    /// Appends a value as JSON.
    pub fn push_json(&mut self, value: &impl Serialize) {
        serde_json::to_writer(&mut *self, value).expect("wire types cannot fail to serialise");
    }

    /// Takes back everything after the first `len` bytes.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    fn room(&mut self, more: usize) -> &mut [u8] {
        let (begin, end) = (self.len, self.len + more);
        if end > self.bytes.len() {
            self.grow_to(end.max(self.bytes.len() * 2));
        }
        self.len = end;
        &mut self.bytes[begin..end]
    }
}

impl std::io::Write for MessageText {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.room(bytes.len()).copy_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl AsRef<[u8]> for MessageText {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl Drop for MessageText {
    fn drop(&mut self) {
        if !(LEAST_KEPT..=MOST_KEPT).contains(&self.bytes.len()) {
            return;
        }
        let bytes = std::mem::take(&mut self.bytes);
        // A thread that is ending keeps nothing.
        let _ = SPARE.try_with(|spares| {
            let mut spares = spares.borrow_mut();
            if spares.len() < KEPT {
                spares.push(bytes);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_what_was_pushed_and_not_taken_back() {
        let mut text = MessageText::with_capacity(4);
        text.push("{\"a\":");
        text.push_base64(b"hello");
        let kept = text.len();
        text.push_json(&[1, 2]);
        text.truncate(kept);
        text.push("}");
        assert_eq!(text.as_ref(), b"{\"a\":aGVsbG8=}");
    }

    #[test]
    fn memory_is_used_again_and_nothing_of_the_earlier_text_is_seen() {
        let mut first = MessageText::with_capacity(LEAST_KEPT);
        first.push(&"x".repeat(LEAST_KEPT));
        let place = first.as_ref().as_ptr();
        drop(first);
        let mut second = MessageText::with_capacity(LEAST_KEPT);
        assert!(second.is_empty());
        second.push("y");
        assert_eq!((second.as_ref(), second.as_ref().as_ptr()), (&b"y"[..], place));
    }

    #[test]
    fn only_so_much_memory_is_kept() {
        let large = || MessageText::with_capacity(MOST_KEPT);
        drop((large(), large(), large(), large(), large()));
        drop(MessageText::with_capacity(MOST_KEPT + 1));
        SPARE.with_borrow(|spares| assert_eq!(spares.len(), KEPT));
    }
}
