//! Says where the output of a process is in its spool file, which is a ring of records.
//!
//! Owner: the process task. A position counts all bytes that were ever written to the spool; its place in the file is
//! the position modulo the size of the ring. The index is sparse: it knows the first record of every segment.
//!
//! Invariant: records from `tail` to `end` are whole, and `end - tail` never exceeds the size of the ring.

use std::collections::VecDeque;

use exec_server_protocol::process::OutputStream;

use crate::output_view::SegmentStart;

/// The ring has room for several segments and for the largest record.
pub const MIN_SPOOL_BYTES: u64 = 1 << 20;
/// A segment is the smallest part that makes room, and the largest part that is read at once.
const SEGMENT_BYTES: u64 = 64 << 10;

/// The index of one spool file.
#[derive(Debug)]
pub struct SpoolIndex {
    size: u64,
    end: u64,
    end_offset: u64,
    segments: VecDeque<Segment>,
    /// Number of the last output that made room; 0 if none did.
    evicted_through: u64,
}

/// A run of records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// Position of its first record.
    pub position: u64,
    /// What the first record begins with.
    pub start: SegmentStart,
    last_seq: u64,
}

impl SpoolIndex {
    /// An empty ring.
    pub fn new(size: u64) -> Self {
        debug_assert!(size >= MIN_SPOOL_BYTES, "the owner chooses the size");
        let segments = VecDeque::new();
        Self { size, end: 0, end_offset: 0, segments, evicted_through: 0 }
    }

    /// Enters a record for `len` bytes of output, and returns the position of its header.
    pub fn append(&mut self, seq: u64, len: usize) -> u64 {
        let bytes = record_bytes(len);
        let position = self.end;
        match self.segments.back_mut() {
            Some(last) if position + bytes - last.position <= SEGMENT_BYTES => last.last_seq = seq,
            _ => {
                let start = SegmentStart { seq, offset: self.end_offset };
                self.segments.push_back(Segment { position, start, last_seq: seq });
            }
        }
        self.end += bytes;
        self.end_offset += len as u64;
        while self.end - self.tail() > self.size {
            let oldest = self.segments.pop_front().expect("one segment fits into the ring");
            self.evicted_through = oldest.last_seq;
        }
        position
    }

    /// Whether the next record needs a larger ring, which is possible before the first position is reused.
    pub fn wants_to_grow(&self, len: usize) -> bool {
        self.end + record_bytes(len) > self.size && self.end <= self.size
    }

    /// Enlarges a ring that has not reused a position.
    pub fn grow(&mut self, size: u64) {
        debug_assert!(self.end <= self.size && size >= self.size, "places stay the same");
        self.size = size;
    }

    /// Where the next record begins.
    pub fn place(&self) -> SpoolEnd {
        SpoolEnd { position: self.end, offset: self.end_offset, last_seq: self.last_seq() }
    }

    /// Forgets the records after an earlier end, which could not be written.
    pub fn truncate(&mut self, end: SpoolEnd) {
        while self.segments.back().is_some_and(|last| last.position >= end.position) {
            self.segments.pop_back();
        }
        if let Some(last) = self.segments.back_mut() {
            last.last_seq = last.last_seq.min(end.last_seq);
        }
        self.end = end.position.min(self.end);
        self.end_offset = end.offset.min(self.end_offset);
    }

    /// Position of the first record that is kept.
    pub fn tail(&self) -> u64 {
        self.segments.front().map_or(self.end, |first| first.position)
    }

    /// The size of the ring.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// All segments.
    pub fn segments(&self) -> &VecDeque<Segment> {
        &self.segments
    }

    /// Number of the last output that is kept; 0 if there is none.
    pub fn last_seq(&self) -> u64 {
        self.segments.back().map_or(0, |last| last.last_seq)
    }

    /// Number of the last output that made room; 0 if none did.
    pub fn evicted_through(&self) -> u64 {
        self.evicted_through
    }
}

/// The end of a spool at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SpoolEnd {
    /// Position after the last record.
    pub position: u64,
    /// Offset after the last output.
    pub offset: u64,
    /// Number of the last output; 0 if there is none.
    pub last_seq: u64,
}

fn record_bytes(len: usize) -> u64 {
    (RecordHeader::BYTES + len) as u64
}

/// What precedes the bytes of one piece of output in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordHeader {
    /// Number of the output.
    pub seq: u64,
    /// When it was received.
    pub at_ms: u64,
    /// How many bytes follow.
    pub len: u32,
    /// Where it came from.
    pub stream: OutputStream,
}

impl RecordHeader {
    /// Length of an encoded header.
    pub const BYTES: usize = 21;

    /// The header as it is in the file.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(&self.seq.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.at_ms.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.len.to_le_bytes());
        bytes[20] = match self.stream {
            OutputStream::Stdout => 1,
            OutputStream::Stderr => 2,
            OutputStream::Pty => 3,
        };
        bytes
    }

    /// `None` if the bytes are no header.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; Self::BYTES] = bytes.first_chunk()?;
        let number = |at: usize| u64::from_le_bytes(*bytes[at..].first_chunk().expect("in range"));
        let len = u32::from_le_bytes(*bytes[16..].first_chunk().expect("in range"));
        let stream = match bytes[20] {
            1 => OutputStream::Stdout,
            2 => OutputStream::Stderr,
            3 => OutputStream::Pty,
            _ => return None,
        };
        Some(Self { seq: number(0), at_ms: number(8), len, stream })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_header_is_read_as_it_was_written() {
        let header = RecordHeader { seq: 7, at_ms: u64::MAX, len: 9, stream: OutputStream::Stderr };
        assert_eq!(RecordHeader::decode(&header.encode()), Some(header));
        assert_eq!(RecordHeader::decode(&[0; RecordHeader::BYTES]), None);
        assert_eq!(RecordHeader::decode(&header.encode()[1..]), None);
    }

    #[test]
    fn a_ring_grows_only_before_it_reuses_a_place() {
        let mut index = SpoolIndex::new(MIN_SPOOL_BYTES);
        while !index.wants_to_grow(60_000) {
            index.append(1, 60_000);
        }
        index.grow(2 * MIN_SPOOL_BYTES);
        assert!(!index.wants_to_grow(60_000));
        while !index.wants_to_grow(60_000) {
            index.append(2, 60_000);
        }
        index.append(3, 60_000);
        assert!(index.place().position > index.size() && !index.wants_to_grow(60_000));
        assert!(index.tail() > 0 && index.evicted_through() == 1);
    }

    #[test]
    fn what_was_not_written_is_forgotten() {
        let mut index = SpoolIndex::new(MIN_SPOOL_BYTES);
        let mut ends = vec![index.place()];
        for seq in 1..=6 {
            index.append(seq, 30_000);
            ends.push(index.place());
        }
        assert_eq!(index.segments().len(), 3);
        for (count, end) in ends.into_iter().enumerate().rev() {
            index.truncate(end);
            assert_eq!(index.place(), end);
            assert_eq!(index.segments().len(), count.div_ceil(2));
        }
        assert_eq!(index.tail(), 0);
    }

    proptest! {
        #[test]
        fn the_kept_records_fit_and_are_found(lens in prop::collection::vec(0..65_536_usize, 1..200)) {
            let mut index = SpoolIndex::new(MIN_SPOOL_BYTES);
            let mut all = Vec::new();
            let mut offset = 0;
            for (number, len) in lens.into_iter().enumerate() {
                let seq = number as u64 + 1;
                let position = index.append(seq, len);
                all.push((position, SegmentStart { seq, offset }));
                offset += len as u64;
                prop_assert!(index.place().position - index.tail() <= index.size());
                for segment in index.segments() {
                    prop_assert!(all.contains(&(segment.position, segment.start)));
                }
                let first = index.segments().front().unwrap().start.seq;
                prop_assert_eq!(index.evicted_through() + 1, first);
            }
        }
    }
}
