//! Puts the records of one direction into sequence order.
//!
//! A socket keeps order, but a relay may not. The first copy of a segment counts; later copies are dropped.
//!
//! Peers number from 0. The owner detects a peer that numbers from 1 by decrypting its first record.

use std::collections::{BTreeMap, VecDeque};

use crate::frame::{Ack, RelayData};
use bytes::{Bytes, BytesMut};

use crate::noise::records::{MAX_PLAINTEXT_BYTES, TAG_BYTES};

/// A record further ahead than this is an error: the missing ones are assumed lost.
pub const MAX_DISTANCE: u32 = 64;

/// Bounds the ciphertext that is held for a missing record.
pub const MAX_WAITING_BYTES: usize = 1 << 20;

/// Bounds the bookkeeping for one record; a record has at most 60 KiB, so segments need not be smaller than 1 KiB.
pub const MAX_SEGMENTS: u32 = 64;

/// Why a record was rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OrderError {
    /// More than [`MAX_DISTANCE`] ahead.
    #[error("a record is too far out of order")]
    Distance,
    /// More than [`MAX_WAITING_BYTES`] are held.
    #[error("too much ciphertext is waiting for a missing record")]
    Waiting,
    /// The segment count changed or is too high, or the record is too long.
    #[error("the segments of a record do not fit together")]
    Segments,
    /// The last sequence number was already released.
    #[error("the stream has used all its record numbers")]
    Exhausted,
}

/// Receives records in any order and releases them in sequence.
#[derive(Debug, Default)]
pub struct Reorder {
    /// The next record to release; `u32::MAX + 1` once all numbers are used.
    next: u64,
    waiting: BTreeMap<u32, Parts>,
    waiting_bytes: usize,
    ready: VecDeque<Bytes>,
}

/// A record with the segments received so far.
#[derive(Debug, Clone)]
struct Parts {
    segments: Vec<Option<Bytes>>,
    missing: usize,
    bytes: usize,
}

impl Reorder {
    /// Takes a record or a segment of one.
    pub fn handle_data(&mut self, data: RelayData) -> Result<(), OrderError> {
        let seq = u64::from(data.seq);
        if self.next > u64::from(u32::MAX) {
            return Err(OrderError::Exhausted);
        }
        if seq < self.next {
            return Ok(());
        }
        if seq - self.next > u64::from(MAX_DISTANCE) {
            return Err(OrderError::Distance);
        }
        if data.segment_count == 1 && seq == self.next && !self.waiting.contains_key(&data.seq) {
            self.ready.push_back(data.payload);
            self.next += 1;
        } else {
            self.keep(data)?;
        }
        self.release();
        Ok(())
    }

    /// Record 1, if it is complete and record 0 has not been released.
    pub fn record_one(&self) -> Option<Bytes> {
        let parts = self.waiting.get(&1).filter(|parts| self.next == 0 && parts.missing == 0)?;
        Some(parts.clone().join())
    }

    /// Treats record 1 as the first, for a peer that numbers from 1.
    pub fn count_from_one(&mut self) {
        self.next = 1;
        self.release();
    }

    /// The next record in order.
    pub fn poll_record(&mut self) -> Option<Bytes> {
        self.ready.pop_front()
    }

    /// The records received; the format cannot distinguish "none" from "only record 0".
    pub fn ack(&self) -> Ack {
        let Some(through) = self.next.checked_sub(1).map(|seq| seq as u32) else {
            return Ack::default();
        };
        let whole = self.waiting.iter().filter(|(_, parts)| parts.missing == 0);
        let ahead = whole.map(|(seq, _)| seq - through - 1).filter(|bit| *bit < 32);
        Ack { through, bits: ahead.fold(0, |bits, bit| bits | 1 << bit) }
    }

    fn keep(&mut self, data: RelayData) -> Result<(), OrderError> {
        if data.segment_count > MAX_SEGMENTS {
            return Err(OrderError::Segments);
        }
        let count = data.segment_count as usize;
        let parts = self.waiting.entry(data.seq).or_insert_with(|| Parts {
            segments: vec![None; count],
            missing: count,
            bytes: 0,
        });
        if parts.segments.len() != count {
            return Err(OrderError::Segments);
        }
        let place = &mut parts.segments[data.segment_index as usize];
        if place.is_some() {
            return Ok(());
        }
        parts.missing -= 1;
        parts.bytes += data.payload.len();
        self.waiting_bytes += data.payload.len();
        if parts.bytes > MAX_PLAINTEXT_BYTES + TAG_BYTES {
            return Err(OrderError::Segments);
        }
        if self.waiting_bytes > MAX_WAITING_BYTES {
            return Err(OrderError::Waiting);
        }
        *place = Some(data.payload);
        Ok(())
    }

    fn release(&mut self) {
        while let Some(first) = self.waiting.first_entry()
            && u64::from(*first.key()) == self.next
            && first.get().missing == 0
        {
            let parts = first.remove();
            self.waiting_bytes -= parts.bytes;
            self.ready.push_back(parts.join());
            self.next += 1;
        }
    }
}

impl Parts {
    fn join(mut self) -> Bytes {
        if let [Some(only)] = &mut self.segments[..] {
            return std::mem::take(only);
        }
        let mut whole = BytesMut::with_capacity(self.bytes);
        for part in self.segments.iter().flatten() {
            whole.extend_from_slice(part);
        }
        whole.freeze()
    }
}

#[cfg(test)]
mod tests;
