//! Keeps one process's events in order and replays its output to late readers.
//!
//! Owner: the process task (`exec-server-executor/src/process/task.rs`).
//! Invariant: sequence numbers start at 1 and have no gaps; output, exit and close share them; close has the last.
//!
//! ```text
//! running ─exit▶ exited ─close▶ closed ─retention▶ gone        (output may follow exit, never close)
//! ```

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use exec_server_protocol::base64;
use exec_server_protocol::limits::MAX_RETAINED_CHUNKS;
use exec_server_protocol::process::{
    ExitDetails, OutputChunk, OutputGap, OutputStream, ProcessReadResponse,
};

use crate::byte_queue::ByteQueue;
use crate::output_view::OutputRecord;

/// The events of one process.
#[derive(Debug)]
pub struct ProcessLog {
    bytes: ByteQueue,
    chunks: VecDeque<Chunk>,
    retain_closed: Duration,
    evicted: Evicted,
    last_seq: u64,
    exit: Option<Exit>,
    closed_at: Option<Instant>,
}

/// How the root process ended.
#[derive(Debug, Clone)]
pub struct Exit {
    /// 0 to 255, or 128 plus the signal's number.
    pub code: i32,
    /// Whether a sandbox denial made the process fail.
    pub sandbox_denied: bool,
    /// Reason, signal and other details for the client.
    pub details: ExitDetails,
}

#[derive(Debug)]
struct Chunk {
    seq: u64,
    len: u32,
    stream: OutputStream,
    at_ms: u64,
}

#[derive(Debug, Default)]
struct Evicted {
    bytes: u64,
    /// Highest sequence number that was evicted.
    through: u64,
}

impl Evicted {
    fn add(&mut self, seq: u64, len: u32) {
        self.bytes += u64::from(len);
        self.through = seq;
    }
}

/// JSON bytes around a chunk in a read response, beside its base64 text.
const AROUND_CHUNK_BYTES: usize = 110;
/// JSON bytes around all chunks of a read response.
const AROUND_READ_BYTES: usize = 1024;

impl ProcessLog {
    /// An empty log that keeps `retain_bytes` of output, and everything for `retain_closed` after the close.
    pub fn new(retain_bytes: usize, retain_closed: Duration) -> Self {
        Self {
            bytes: ByteQueue::new(retain_bytes),
            chunks: VecDeque::new(),
            retain_closed,
            evicted: Evicted::default(),
            last_seq: 0,
            exit: None,
            closed_at: None,
        }
    }

    /// Records output received at `at_ms` since 1970 and returns its sequence number.
    pub fn handle_output(&mut self, stream: OutputStream, bytes: &[u8], at_ms: u64) -> u64 {
        debug_assert!(self.closed_at.is_none(), "output never follows close");
        let seq = self.next();
        let len = u32::try_from(bytes.len()).expect("a chunk is one bounded read");
        let is_full =
            |log: &Self| bytes.len() > log.bytes.room() || log.chunks.len() >= MAX_RETAINED_CHUNKS;
        while is_full(self) && !self.chunks.is_empty() {
            self.evict_oldest();
        }
        if is_full(self) {
            self.evicted.add(seq, len);
        } else {
            self.chunks.push_back(Chunk { seq, len, stream, at_ms });
            self.bytes.push(bytes);
        }
        seq
    }

    /// Records the exit of the root process and returns its sequence number.
    pub fn handle_exit(&mut self, exit: Exit) -> u64 {
        debug_assert!(self.exit.is_none(), "a process exits once");
        self.exit = Some(exit);
        self.next()
    }

    /// Records the close and returns the last sequence number.
    pub fn handle_closed(&mut self, now: Instant) -> u64 {
        debug_assert!(
            self.exit.is_some() && self.closed_at.is_none(),
            "close comes once, after exit"
        );
        self.closed_at = Some(now);
        self.bytes.trim();
        self.chunks.shrink_to_fit();
        self.next()
    }

    /// Retained output after `after`, about `max_bytes` of it, with the current state.
    pub fn read(&self, after: u64, max_bytes: Option<u64>) -> ProcessReadResponse {
        let mut chunks = Vec::new();
        let mut offset = 0;
        let mut total = 0;
        for chunk in &self.chunks {
            let len = chunk.len as usize;
            if chunk.seq > after {
                let is_full =
                    max_bytes.is_some_and(|max| total + u64::from(chunk.len) > max || total >= max);
                if is_full && !chunks.is_empty() {
                    break;
                }
                total += u64::from(chunk.len);
                let bytes = self.bytes.copy(offset, len);
                chunks.push(OutputChunk {
                    seq: chunk.seq,
                    stream: chunk.stream,
                    chunk: bytes.into(),
                    at_ms: None,
                    offset: None,
                });
            }
            offset += len;
        }
        let next_seq = match (max_bytes, chunks.last()) {
            (Some(_), Some(last)) => last.seq + 1,
            _ => self.last_seq + 1,
        };
        let exit = self.exit.as_ref();
        ProcessReadResponse {
            chunks,
            next_seq,
            exited: exit.is_some(),
            exit_code: exit.map(|exit| exit.code),
            closed: self.closed_at.is_some(),
            failure: None,
            sandbox_denied: exit.is_some_and(|exit| exit.sandbox_denied),
            details: exit.map(|exit| exit.details.clone()).unwrap_or_default(),
            gap: self.gap(after),
            extent: None,
        }
    }

    /// Adds the receive times to the chunks of an answer.
    pub fn add_times(&self, answer: &mut ProcessReadResponse) {
        for chunk in &mut answer.chunks {
            let found = self.chunks.binary_search_by_key(&chunk.seq, |kept| kept.seq);
            chunk.at_ms = found.ok().map(|index| self.chunks[index].at_ms);
        }
    }

    /// The current state without output, for a reader that waits for the exit or close.
    pub fn state(&self) -> ProcessReadResponse {
        let mut state = self.read(u64::MAX, None);
        state.gap = None;
        state
    }

    /// All retained output with its offsets, for a view.
    pub fn records(&self) -> Vec<OutputRecord> {
        let (mut place, first) = (0, self.evicted.bytes);
        let record = |chunk: &Chunk| {
            let len = chunk.len as usize;
            let record = OutputRecord {
                seq: chunk.seq,
                at_ms: chunk.at_ms,
                stream: chunk.stream,
                offset: first + place as u64,
                bytes: self.bytes.copy(place, len),
            };
            place += len;
            record
        };
        self.chunks.iter().map(record).collect()
    }

    /// All bytes that the process has written so far.
    pub fn end_offset(&self) -> u64 {
        self.evicted.bytes + self.bytes.len() as u64
    }

    /// Offset of the first retained byte.
    pub fn first_offset(&self) -> u64 {
        self.evicted.bytes
    }

    /// Number of the first retained output; the next number if there is none.
    pub fn first_seq(&self) -> u64 {
        self.chunks.front().map_or(self.last_seq + 1, |chunk| chunk.seq)
    }

    /// Whether output after `after` was evicted.
    pub fn has_gap(&self, after: u64) -> bool {
        self.evicted.through > after
    }

    /// Upper bound for the JSON text of [`ProcessLog::read`] in bytes.
    pub fn read_bytes(&self, after: u64, max_bytes: Option<u64>) -> usize {
        let late = self.chunks.partition_point(|chunk| chunk.seq <= after);
        let count = self.chunks.len() - late;
        let all: usize = self.chunks.range(late..).map(|chunk| chunk.len as usize).sum();
        let most = max_bytes.and_then(|max| usize::try_from(max).ok()).unwrap_or(usize::MAX);
        // The first chunk is returned even if it is longer, and each has at least one byte.
        let first = self.chunks.get(late).map_or(0, |chunk| chunk.len as usize);
        let bytes = all.min(most.max(first));
        base64::encoded_len(bytes)
            + count.min(bytes.max(1)) * AROUND_CHUNK_BYTES
            + AROUND_READ_BYTES
    }

    /// Whether a read after `after` has something to return, so that its long poll ends.
    pub fn has_news(&self, after: u64) -> bool {
        self.chunks.back().is_some_and(|chunk| chunk.seq > after)
            || self.gap(after).is_some()
            || self.closed_at.is_some()
            || (self.exit.is_some() && after < self.last_seq)
    }

    /// Exit of the root process, once it has exited.
    pub fn exit(&self) -> Option<&Exit> {
        self.exit.as_ref()
    }

    /// Whether `bytes` more output would evict an event after `after`.
    pub fn would_evict(&self, bytes: usize, after: u64) -> bool {
        let (mut room, mut count) = (self.bytes.room(), self.chunks.len());
        for chunk in &self.chunks {
            if bytes <= room && count < MAX_RETAINED_CHUNKS {
                return false;
            }
            if chunk.seq > after {
                return true;
            }
            room += chunk.len as usize;
            count -= 1;
        }
        false
    }

    /// Whether the process is closed.
    pub fn is_closed(&self) -> bool {
        self.closed_at.is_some()
    }

    /// Sequence number of the next event.
    pub fn next_seq(&self) -> u64 {
        self.last_seq + 1
    }

    /// When the log may be dropped.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.closed_at.map(|at| at + self.retain_closed)
    }

    fn next(&mut self) -> u64 {
        self.last_seq += 1;
        self.last_seq
    }

    fn evict_oldest(&mut self) {
        let Some(oldest) = self.chunks.pop_front() else { return };
        self.bytes.pop(oldest.len as usize);
        self.evicted.add(oldest.seq, oldest.len);
    }

    fn gap(&self, after: u64) -> Option<OutputGap> {
        (self.evicted.through > after)
            .then(|| OutputGap { evicted_bytes: self.evicted.bytes, first_seq: self.first_seq() })
    }
}

#[cfg(test)]
mod tests;
