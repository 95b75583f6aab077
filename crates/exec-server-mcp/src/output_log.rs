//! Keeps the beginning and the end of a command's output, addressed by byte offset.

use std::collections::VecDeque;

/// Bytes kept from the beginning.
const HEAD_BYTES: usize = 1024 * 1024;
/// Bytes kept from the end.
const TAIL_BYTES: usize = 7 * 1024 * 1024;

/// The output of one command, both streams in the order in which they came.
#[derive(Debug, Default)]
pub struct OutputLog {
    head: Vec<u8>,
    tail: VecDeque<u8>,
    total: u64,
    /// Whether the exec-server evicted output before it could be read.
    has_gap: bool,
}

/// A piece of output.
#[derive(Debug, PartialEq, Eq)]
pub struct Piece {
    pub bytes: Vec<u8>,
    /// Where the piece begins.
    pub offset: u64,
    /// Where the next piece begins.
    pub next_offset: u64,
}

impl OutputLog {
    pub fn push(&mut self, bytes: &[u8]) {
        self.total += bytes.len() as u64;
        let to_head = bytes.len().min(HEAD_BYTES - self.head.len());
        self.head.extend_from_slice(&bytes[..to_head]);
        self.tail.extend(&bytes[to_head..]);
        let excess = self.tail.len().saturating_sub(TAIL_BYTES);
        self.tail.drain(..excess);
    }

    pub fn note_gap(&mut self) {
        self.has_gap = true;
    }

    /// All bytes that the command wrote.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// The memory of what is kept.
    pub fn retained_bytes(&self) -> usize {
        self.head.len() + self.tail.len()
    }

    /// Whether every byte is still here.
    pub fn is_complete(&self) -> bool {
        !self.has_gap && (self.head.len() + self.tail.len()) as u64 == self.total
    }

    /// Whether the exec-server evicted output before it could be read.
    pub fn has_gap(&self) -> bool {
        self.has_gap
    }

    /// The position of an offset, which counts from the end if it is negative.
    pub fn start_of(&self, offset: i64) -> u64 {
        match u64::try_from(offset) {
            Ok(offset) => offset.min(self.total),
            Err(_) => self.total.saturating_sub(offset.unsigned_abs()),
        }
    }

    /// Up to `most` bytes from `offset` on; a negative offset counts from the end. Bytes that are gone are skipped.
    pub fn read(&self, offset: i64, most: usize) -> Piece {
        let start = self.start_of(offset);
        let tail_start = self.total - self.tail.len() as u64;
        let head_end = self.head.len() as u64;
        let (bytes, offset): (Vec<u8>, u64) = if start < head_end {
            let from = usize::try_from(start).unwrap_or(0);
            let mut bytes = self.head[from..].to_vec();
            if tail_start == head_end {
                bytes.extend(self.tail.iter().take(most.saturating_sub(bytes.len())));
            }
            (bytes, start)
        } else {
            let start = start.max(tail_start);
            let skip = usize::try_from(start - tail_start).unwrap_or(usize::MAX);
            (self.tail.iter().skip(skip).take(most).copied().collect(), start)
        };
        let bytes = bytes[..bytes.len().min(most)].to_vec();
        let next_offset = offset + bytes.len() as u64;
        Piece { bytes, offset, next_offset }
    }

    /// The output from `from` on; if it is longer than `most`, its beginning and its end with the size of what is between.
    pub fn summary(&self, from: u64, most: usize) -> (String, u64) {
        let length = self.total - from.min(self.total);
        if length <= most as u64
            && (self.is_complete() || from >= self.total - self.tail.len() as u64)
        {
            let from = i64::try_from(from).unwrap_or(i64::MAX);
            let piece = self.read(from, most);
            return (String::from_utf8_lossy(&piece.bytes).into_owned(), 0);
        }
        let half = most / 2;
        let first = self.read(i64::try_from(from).unwrap_or(i64::MAX), half);
        let last = self.read(-i64::try_from(half).unwrap_or(i64::MAX), half);
        let omitted = last.offset.saturating_sub(first.next_offset);
        let text = format!(
            "{}\n[… {omitted} bytes left out; read_output with offset {} shows them …]\n{}",
            String::from_utf8_lossy(&first.bytes),
            first.next_offset,
            String::from_utf8_lossy(&last.bytes),
        );
        (text, omitted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_beginning_and_the_end_stay_and_have_offsets() {
        let mut log = OutputLog::default();
        for number in 0..2_000_000_u32 {
            log.push(format!("{number:07}\n").as_bytes());
        }
        assert_eq!(log.total(), 16_000_000);
        assert!(!log.is_complete());
        assert_eq!(log.read(8, 7).bytes, b"0000001");
        assert_eq!(log.read(-8, 100).bytes, b"1999999\n");
        // What is gone is skipped, and the answer says where it goes on.
        let piece = log.read(2_000_000, 8);
        assert_eq!(piece.offset, 16_000_000 - TAIL_BYTES as u64);
        let (text, omitted) = log.summary(0, 1000);
        assert!(text.starts_with("0000000\n") && text.ends_with("1999999\n"));
        assert_eq!(omitted, 16_000_000 - 1000);
    }

    #[test]
    fn short_output_is_given_whole() {
        let mut log = OutputLog::default();
        log.push(b"one\n");
        log.push(b"two\n");
        assert_eq!(log.summary(0, 100), ("one\ntwo\n".to_owned(), 0));
        assert_eq!(log.summary(4, 100), ("two\n".to_owned(), 0));
        assert_eq!(log.summary(8, 100), (String::new(), 0));
        let piece = log.read(2, 4);
        assert_eq!((piece.bytes.as_slice(), piece.next_offset), (&b"e\ntw"[..], 6));
    }
}
