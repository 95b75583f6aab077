//! Buffers for large outgoing messages, recycled per thread.
//!
//! A fresh allocation per file block costs more than filling it, because the kernel maps and clears each page.

use std::cell::RefCell;
use std::sync::atomic::{AtomicUsize, Ordering};

use exec_server_protocol::base64;
use serde::Serialize;

/// The allocation for a message failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no memory for a message of {0} bytes")]
pub struct OutOfMemory(pub usize);

/// The text of an outgoing message.
#[derive(Debug, Default)]
pub struct MessageText {
    /// All initialised; bytes beyond `len` are stale.
    bytes: Vec<u8>,
    len: usize,
}

/// Smaller buffers are not worth recycling.
const LEAST_KEPT: usize = 256 * 1024;
/// Fits a message with the largest file block.
const MOST_KEPT: usize = 2 * 1024 * 1024;
/// Buffers kept per thread: a few messages are written while earlier ones are being sent.
const KEPT: usize = 3;
/// Limit over all threads, so that idle blocking threads do not each keep their share.
const KEPT_BY_ALL: usize = 3 * MOST_KEPT;
static KEPT_BYTES: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static SPARE: RefCell<Spares> = const { RefCell::new(Spares(Vec::new())) };
}

/// Recycled buffers of one thread.
struct Spares(Vec<Vec<u8>>);

impl Drop for Spares {
    fn drop(&mut self) {
        let bytes = self.0.iter().map(Vec::len).sum();
        KEPT_BYTES.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl MessageText {
    /// Creates an empty message with this capacity; aborts if memory is exhausted.
    pub fn with_capacity(capacity: usize) -> Self {
        let bytes = take_spare(capacity).unwrap_or_else(|| vec![0; capacity]);
        Self { bytes, len: 0 }
    }

    /// Creates an empty message with this capacity; fails if memory is exhausted.
    pub fn try_with_capacity(capacity: usize) -> Result<Self, OutOfMemory> {
        let zeroed = || bytemuck::try_zeroed_vec(capacity).map_err(|()| OutOfMemory(capacity));
        let bytes = take_spare(capacity).map_or_else(zeroed, Ok)?;
        Ok(Self { bytes, len: 0 })
    }

    /// Length of the text so far.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the text is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Allocated bytes.
    pub fn memory(&self) -> usize {
        self.bytes.len()
    }

    /// Grows the buffer to at least `memory` bytes.
    pub fn grow_to(&mut self, memory: usize) {
        if memory > self.bytes.len() {
            self.bytes.resize(memory, 0);
        }
    }

    /// Grows the buffer to at least `memory` bytes; fails if memory is exhausted.
    pub fn try_grow_to(&mut self, memory: usize) -> Result<(), OutOfMemory> {
        let more = memory.saturating_sub(self.bytes.len());
        self.bytes.try_reserve_exact(more).map_err(|_| OutOfMemory(memory))?;
        self.grow_to(memory);
        Ok(())
    }

    /// Appends text.
    pub fn push(&mut self, text: &str) {
        self.push_bytes(text.as_bytes());
    }

    /// Appends bytes.
    pub fn push_bytes(&mut self, bytes: &[u8]) {
        self.room(bytes.len()).copy_from_slice(bytes);
    }

    /// Replaces what is at `at`.
    pub fn overwrite(&mut self, at: usize, text: &str) {
        self.bytes[..self.len][at..at + text.len()].copy_from_slice(text.as_bytes());
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

    /// Shortens the text to at most `len` bytes.
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

fn take_spare(capacity: usize) -> Option<Vec<u8>> {
    let fits = |spare: &Vec<u8>| spare.len() >= capacity && capacity >= LEAST_KEPT;
    let spare = SPARE.with_borrow_mut(|Spares(spares)| {
        spares.iter().position(fits).map(|place| spares.swap_remove(place))
    })?;
    KEPT_BYTES.fetch_sub(spare.len(), Ordering::Relaxed);
    Some(spare)
}

impl std::io::Write for MessageText {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.push_bytes(bytes);
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
        // Thread-local storage is gone while the thread exits; the buffer is then freed.
        let _ = SPARE.try_with(|spares| {
            let mut spares = spares.borrow_mut();
            let may_keep = |kept: usize| kept + bytes.len() <= KEPT_BY_ALL;
            let keep = |kept| may_keep(kept).then_some(kept + bytes.len());
            if spares.0.len() < KEPT
                && KEPT_BYTES.fetch_update(Ordering::Relaxed, Ordering::Relaxed, keep).is_ok()
            {
                spares.0.push(bytes);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, PoisonError};

    use super::*;

    /// Held by tests that keep buffers, because the bytes of all threads count together.
    static KEEPING: Mutex<()> = Mutex::new(());

    #[test]
    fn a_text_is_the_pushed_pieces_that_were_not_removed() {
        let mut text = MessageText::with_capacity(4);
        text.push("{\"a\":");
        text.push_base64(b"hello");
        let kept = text.len();
        text.push_json(&[1, 2]);
        text.truncate(kept);
        text.push("}");
        text.overwrite(2, "b");
        assert_eq!(text.as_ref(), b"{\"b\":aGVsbG8=}");
    }

    #[test]
    fn a_recycled_buffer_shows_nothing_of_the_earlier_text() {
        let _keeping = KEEPING.lock().unwrap_or_else(PoisonError::into_inner);
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
    fn an_allocation_that_fails_is_an_error() {
        let most = usize::MAX / 4;
        assert_eq!(MessageText::try_with_capacity(most).err(), Some(OutOfMemory(most)));
        let mut text = MessageText::try_with_capacity(10).unwrap();
        text.push("kept");
        assert_eq!(text.try_grow_to(most), Err(OutOfMemory(most)));
        assert_eq!(text.try_grow_to(20), Ok(()));
        assert_eq!((text.as_ref(), text.memory()), (&b"kept"[..], 20));
    }

    #[test]
    fn the_number_of_kept_buffers_is_bounded() {
        let _keeping = KEEPING.lock().unwrap_or_else(PoisonError::into_inner);
        let large = || MessageText::with_capacity(MOST_KEPT);
        drop((large(), large(), large(), large(), large()));
        drop(MessageText::with_capacity(MOST_KEPT + 1));
        SPARE.with_borrow(|spares| assert_eq!(spares.0.len(), KEPT));
        // They would count until this thread has exited.
        drop(SPARE.replace(Spares(Vec::new())));
    }
}
