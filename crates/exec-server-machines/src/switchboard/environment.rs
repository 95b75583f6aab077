//! One environment: its executor, its harnesses, and the streams between them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Instant;

use bytes::Bytes;

use super::SocketId;
use super::queue::Queue;

/// Whoever is attached for one environment.
#[derive(Default)]
pub struct Environment {
    pub executor: Option<Executor>,
    pub harnesses: BTreeSet<SocketId>,
    pub streams: BTreeMap<String, Stream>,
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
        stream.queue.push(frame);
        Some(executor.socket)
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
