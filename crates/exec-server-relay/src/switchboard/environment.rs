//! One environment: its executor, its harnesses, and the streams between them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Instant;

use bytes::Bytes;

use super::SocketId;
use super::queue::{Mark, Queue};

/// Queue limit per harness towards its executor. Above it, the harness is not read.
pub(super) const STREAM_QUEUE: Mark = Mark { frames: 64, divisor: 2 };

/// Queue limit towards one harness. Above it, the executor is not read.
pub(super) const HARNESS_QUEUE: Mark = Mark { frames: 1024, divisor: 1 };

/// Bytes that a stream may send to the executor per turn; larger frames are paid for with skipped turns.
const BYTES_PER_TURN: isize = 16 * 1024;

/// The sockets and streams of one environment.
#[derive(Default)]
pub(super) struct Environment {
    pub executor: Option<Executor>,
    pub harnesses: BTreeSet<SocketId>,
    pub streams: BTreeMap<String, Stream>,
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
        stream.queue.push(frame);
        Some(executor.socket)
    }

    /// Starts the stall timeout of the executor if the stream's queue is full.
    pub(super) fn note_stall(&mut self, now: Instant, stream_id: &str) {
        let Some(executor) = &mut self.executor else { return };
        let stream = self.streams.get(stream_id);
        if executor.stall.is_none() && stream.is_some_and(|it| !it.queue.has_room(STREAM_QUEUE)) {
            executor.stall = Some(Stall { since: now, taken: executor.taken });
        }
    }

    /// Whether the stream may queue another frame for the executor; a stream without room is woken when it has some.
    pub(super) fn poll_room_for(&mut self, stream_id: &str) -> bool {
        let Some(stream) = self.streams.get_mut(stream_id) else { return true };
        let has_room = stream.queue.has_room(STREAM_QUEUE);
        stream.is_paused = !has_room;
        has_room
    }

    /// Pops one frame of the next stream; also returns a harness that may be read again.
    pub(super) fn take_turn(&mut self) -> Option<(Bytes, Option<SocketId>)> {
        let executor = self.executor.as_mut()?;
        let (id, stream) = loop {
            let id = executor.turns.pop_front()?;
            let stream = self.streams.get_mut(&id).expect("a stream with a turn exists");
            stream.credit = (stream.credit + BYTES_PER_TURN).min(BYTES_PER_TURN);
            if stream.credit > 0 || executor.turns.is_empty() {
                break (id, stream);
            }
            executor.turns.push_back(id);
        };
        let frame = stream.queue.pop().expect("a stream with a turn has a frame");
        stream.credit -= isize::try_from(frame.len()).unwrap_or(isize::MAX);
        let is_resumed = stream.is_paused && stream.queue.has_room(STREAM_QUEUE);
        stream.is_paused &= !is_resumed;
        let harness = stream.harness;
        if !stream.queue.is_empty() {
            executor.turns.push_back(id);
        } else if harness.is_none() {
            self.streams.remove(&id);
        } else {
            stream.credit = 0;
        }
        executor.taken += 1;
        if executor.turns.is_empty() {
            executor.stall = None;
        }
        Some((frame, harness.filter(|_| is_resumed)))
    }

    /// Whether the executor, whose stall timeout is over, has read nothing since; otherwise the timeout starts again.
    pub(super) fn has_stalled(&mut self, now: Instant) -> bool {
        let is_full = |stream: &Stream| !stream.queue.has_room(STREAM_QUEUE);
        let still_full = self.streams.values().any(is_full);
        let Some(executor) = &mut self.executor else { return false };
        let Some(stall) = executor.stall else { return false };
        if stall.taken == executor.taken {
            return true;
        }
        executor.stall = still_full.then_some(Stall { since: now, taken: executor.taken });
        false
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
    /// Number of frames that the socket has taken.
    pub taken: u64,
    /// Set while a harness waits for this executor to read.
    pub stall: Option<Stall>,
}

/// The start of a stall timeout.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stall {
    pub since: Instant,
    /// [`Executor::taken`] at that time.
    taken: u64,
}

/// A stream that a harness has claimed.
pub(super) struct Stream {
    /// None once the harness has disconnected; its last frames may still be queued.
    pub harness: Option<SocketId>,
    pub queue: Queue,
    /// Bytes that the stream may send before it skips a turn.
    credit: isize,
    /// Whether the harness was told not to read.
    is_paused: bool,
}

impl Stream {
    pub(super) fn new(harness: SocketId, queue: Queue) -> Self {
        Self { harness: Some(harness), queue, credit: 0, is_paused: false }
    }
}
