//! One environment: its executor, its harnesses, and the streams between them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Instant;

use bytes::Bytes;

use super::queue::{Mark, Queue};
use super::{MAX_FRAME_BYTES, SocketId};

/// How much of one harness may wait for its executor before the harness is not read any more: two large frames.
pub const STREAM_QUEUE: Mark = Mark { frames: 64, bytes: 2 * MAX_FRAME_BYTES };

/// How much of all harnesses together may wait for their executor. Above it, each is read only if nothing of it waits.
pub const STREAMS_TOGETHER: usize = 16 * 1024 * 1024;

/// How much may wait for a harness before its executor is not read any more.
pub const HARNESS_QUEUE: Mark = Mark { frames: 1024, bytes: 1024 * 1024 };

/// How much may wait for all harnesses of an executor together: many of them have to make do with their share of it.
pub const HARNESSES_TOGETHER: usize = 32 * 1024 * 1024;

/// A share is never less than this: a few frames of the usual size.
const LEAST_SHARE: usize = 128 * 1024;

/// Whoever is attached for one environment.
#[derive(Default)]
pub struct Environment {
    pub executor: Option<Executor>,
    pub harnesses: BTreeSet<SocketId>,
    pub streams: BTreeMap<String, Stream>,
    /// The bytes of all streams that wait for the executor.
    waiting: usize,
}

impl Environment {
    /// Streams that end count too: what they left behind is still held.
    pub fn is_full(&self, limit: usize) -> bool {
        let ending = self.streams.values().filter(|stream| stream.harness.is_none()).count();
        self.harnesses.len() + ending >= limit
    }

    /// Queues a frame of a stream, and says which socket it waits for.
    pub fn push_to_executor(&mut self, stream_id: String, frame: Bytes) -> Option<SocketId> {
        let executor = self.executor.as_mut()?;
        let stream = self.streams.get_mut(&stream_id)?;
        if stream.queue.is_empty() {
            executor.turns.push_back(stream_id);
        }
        self.waiting += frame.len();
        stream.queue.push(frame);
        Some(executor.socket)
    }

    /// Whether more of a stream may wait for the executor.
    pub fn has_room_for(&self, stream_id: &str) -> bool {
        let Some(Stream { queue, .. }) = self.streams.get(stream_id) else { return true };
        queue.is_empty() || self.waiting < STREAMS_TOGETHER && queue.is_below(STREAM_QUEUE)
    }

    /// One frame of the stream whose turn it is; `wake` hears which harnesses may send again.
    pub fn take_turn(&mut self, mut wake: impl FnMut(SocketId)) -> Option<Bytes> {
        let id = self.executor.as_mut()?.turns.pop_front()?;
        let (had_room, was_crowded) = (self.has_room_for(&id), self.waiting >= STREAMS_TOGETHER);
        let stream = self.streams.get_mut(&id).expect("a stream with a turn exists");
        let frame = stream.queue.pop().expect("a stream with a turn has a frame");
        let (harness, is_empty) = (stream.harness, stream.queue.is_empty());
        self.waiting -= frame.len();
        if was_crowded && self.waiting < STREAMS_TOGETHER {
            self.harnesses.iter().copied().for_each(wake);
        } else if !had_room && self.has_room_for(&id) {
            harness.into_iter().for_each(&mut wake);
        }
        if !is_empty {
            self.executor.as_mut()?.turns.push_back(id);
        } else if harness.is_none() {
            self.streams.remove(&id);
        }
        Some(frame)
    }

    /// Nobody is there to take what waits.
    pub fn forget_streams(&mut self) {
        self.streams.clear();
        self.waiting = 0;
    }

    /// How much may wait for one of the harnesses.
    pub fn harness_mark(&self) -> Mark {
        let share = HARNESSES_TOGETHER / self.harnesses.len().max(1);
        Mark { bytes: share.clamp(LEAST_SHARE, HARNESS_QUEUE.bytes), ..HARNESS_QUEUE }
    }
}

/// The executor that is attached.
pub struct Executor {
    pub socket: SocketId,
    pub registration: String,
    pub generation: u64,
    pub since: Instant,
    /// Streams with something to send, in the order of their turns.
    pub turns: VecDeque<String>,
    /// Harnesses that have too much to read.
    pub waits_for: BTreeSet<SocketId>,
}

/// A stream that a harness has claimed.
pub struct Stream {
    /// None once it has gone; what it sent before is still on its way.
    pub harness: Option<SocketId>,
    pub queue: Queue,
}
