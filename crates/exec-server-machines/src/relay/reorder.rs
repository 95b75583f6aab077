//! Puts the records of one direction into their order.
//!
//! A socket keeps order, but a relay may not. What was there first stays: a second copy is dropped unread.

use std::collections::{BTreeMap, VecDeque};

use bytes::{Bytes, BytesMut};
use exec_server_protocol::relay_frame::{Ack, RelayData};

use crate::noise::records::{MAX_PLAINTEXT_BYTES, TAG_BYTES};

/// Records further ahead than this are not waited for.
pub const MAX_DISTANCE: u32 = 64;

/// Ciphertext that may wait for a missing record.
pub const MAX_WAITING_BYTES: usize = 1 << 20;

/// Nobody needs more segments for a record of 64 KiB.
pub const MAX_SEGMENTS: u32 = 64;

/// Why a record has no place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OrderError {
    /// It is too far ahead.
    #[error("a record is too far out of order")]
    Distance,
    /// Too much is waiting.
    #[error("too much ciphertext is waiting for a missing record")]
    Waiting,
    /// Its segments contradict each other or make too much of it.
    #[error("the segments of a record do not fit together")]
    Segments,
    /// There can be no further record.
    #[error("the stream has used all its record numbers")]
    Exhausted,
}

/// The order of one direction.
#[derive(Debug, Default)]
pub struct Reorder {
    /// The number of the next record to release; beyond the last there is none.
    next: u64,
    waiting: BTreeMap<u32, Parts>,
    waiting_bytes: usize,
    ready: VecDeque<Bytes>,
}

/// A record, as far as it has come.
#[derive(Debug)]
struct Parts {
    segments: Vec<Option<Bytes>>,
    missing: usize,
    bytes: usize,
}

impl Reorder {
    /// A record, or a part of one, arrived.
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

    /// The next record in order.
    pub fn poll_record(&mut self) -> Option<Bytes> {
        self.ready.pop_front()
    }

    /// What has arrived; before the first record that is not told from having only that one.
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
