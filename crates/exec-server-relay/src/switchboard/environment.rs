//! One environment: its executor, its harnesses, and the streams between them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Instant;

use bytes::Bytes;

use super::queue::{Mark, Queue};
use super::{MAX_FRAME_BYTES, SocketId};

/// Queue limit per harness towards its executor: two of the largest frames. Above it, the harness is not read.
pub(super) const STREAM_QUEUE: Mark = Mark { frames: 64, bytes: 2 * MAX_FRAME_BYTES };

/// Queue limit of all harnesses towards their executor. Above it, a harness is read only if its own queue is empty.
pub(super) const STREAMS_TOGETHER: usize = 16 * 1024 * 1024;

/// Queue limit towards one harness. Above it, the executor is not read.
pub(super) const HARNESS_QUEUE: Mark = Mark { frames: 1024, bytes: 1024 * 1024 };

/// Queue limit towards all harnesses of an executor, divided equally between them.
pub(super) const HARNESSES_TOGETHER: usize = 32 * 1024 * 1024;

/// Lower bound for a harness's share: two records of the usual size.
const LEAST_SHARE: usize = 128 * 1024;

/// The sockets and streams of one environment.
#[derive(Default)]
pub(super) struct Environment {
    pub executor: Option<Executor>,
    pub harnesses: BTreeSet<SocketId>,
    pub streams: BTreeMap<String, Stream>,
    /// Bytes queued for the executor, over all streams.
    waiting: usize,
}

impl Environment {
    /// Ended streams count as well while their frames are still queued.
    pub(super) fn is_full(&self, limit: usize) -> bool {
        let ending = self.streams.values().filter(|stream| stream.harness.is_none()).count();
        self.harnesses.len() + ending >= limit
    }

    /// Queues a frame for the executor and returns the executor's socket.
    pub(super) fn push_to_executor(&mut self, stream_id: String, frame: Bytes) -> Option<SocketId> {
        let executor = self.executor.as_mut()?;
        let stream = self.streams.get_mut(&stream_id)?;
        if stream.queue.is_empty() {
            executor.turns.push_back(stream_id);
        }
        self.waiting += frame.len();
        stream.queue.push(frame);
        Some(executor.socket)
    }

    /// Whether the stream may queue another frame for the executor.
    pub(super) fn has_room_for(&self, stream_id: &str) -> bool {
        let Some(Stream { queue, .. }) = self.streams.get(stream_id) else { return true };
        queue.is_empty() || self.waiting < STREAMS_TOGETHER && queue.is_below(STREAM_QUEUE)
    }

    /// Pops one frame of the next stream; calls `wake` for harnesses that may be read again.
    pub(super) fn take_turn(&mut self, mut wake: impl FnMut(SocketId)) -> Option<Bytes> {
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

    /// Drops all queued frames, because the executor is gone.
    pub(super) fn clear_streams(&mut self) {
        self.streams.clear();
        self.waiting = 0;
    }

    /// The current queue limit towards one harness.
    pub(super) fn harness_mark(&self) -> Mark {
        let share = HARNESSES_TOGETHER / self.harnesses.len().max(1);
        Mark { bytes: share.clamp(LEAST_SHARE, HARNESS_QUEUE.bytes), ..HARNESS_QUEUE }
    }
}

/// The attached executor.
pub(super) struct Executor {
    pub socket: SocketId,
    pub registration: String,
    pub generation: u64,
    pub since: Instant,
    /// Streams with queued frames, in round-robin order.
    pub turns: VecDeque<String>,
    /// Harnesses whose queue is full; the executor is read only while this is empty.
    pub waits_for: BTreeSet<SocketId>,
}

/// A stream that a harness has claimed.
pub(super) struct Stream {
    /// None once the harness has disconnected; its last frames may still be queued.
    pub harness: Option<SocketId>,
    pub queue: Queue,
}
