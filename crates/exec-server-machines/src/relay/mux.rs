//! The executor's end of all streams of one relay socket.
//!
//! ```text
//!            handshake        registry says yes
//! unknown ──────────▶ pending ─────────────────▶ open ─reset, close, broken rule▶ gone
//!                        └─no, too late, a second frame▶ gone (counted)
//! ```
//!
//! Owner: the task of the relay socket. Streams take turns, one frame each, so that a large reply delays nobody else.
//! Too many failed handshakes close the [`door`](super::door) for a while; streams that are open do not notice.

use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

use bytes::Bytes;
use exec_server_protocol::registry::PublicKey;
use exec_server_protocol::relay_frame::{RESET_PROTOCOL_ERROR, RelayBody, RelayData, RelayFrame};

use super::StreamError;
use super::door::{Door, Refusal, Verdict};
use super::stream::OpenStream;
use crate::noise::Rng;
use crate::noise::handshake::{Binding, Hello};
use crate::noise::identity::Identity;

/// Resets are a courtesy; a flood of nonsense must not become a flood of answers.
const MAX_QUEUED_RESETS: usize = 128;

/// Names a stream for its owner; unlike its id it never returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamKey(u64);

/// What the owner must do now.
#[derive(Debug, PartialEq, Eq)]
pub enum MuxOutput {
    /// Ask the registry whether this harness may in, and answer with [`Mux::handle_validated`].
    Validate {
        /// The stream that asks.
        stream: StreamKey,
        /// Its id, for the registry's logs.
        stream_id: String,
        /// Who asks.
        harness: PublicKey,
        /// What it brought.
        authorization: String,
    },
    /// A harness came in.
    Opened {
        /// Its stream.
        stream: StreamKey,
        /// Its id, for logs.
        stream_id: String,
        /// Who it is.
        harness: PublicKey,
    },
    /// A harness did not come in, and was told so.
    Refused {
        /// The id of its stream, for logs.
        stream_id: String,
        /// Why.
        why: Refusal,
    },
    /// A message of an open stream.
    Message {
        /// Its stream.
        stream: StreamKey,
        /// As the harness sent it.
        message: Bytes,
    },
    /// An open stream is over.
    Ended {
        /// Which one.
        stream: StreamKey,
        /// Why.
        why: StreamError,
    },
}

/// All streams of one socket.
pub struct Mux<R: Rng> {
    identity: Identity,
    environment_id: String,
    registration_id: String,
    streams: BTreeMap<String, Stream<R>>,
    ids: BTreeMap<StreamKey, String>,
    next_key: u64,
    /// Streams with something to send, in the order of their turns.
    turns: VecDeque<StreamKey>,
    control: VecDeque<Vec<u8>>,
    outputs: VecDeque<MuxOutput>,
    door: Door,
}

struct Stream<R: Rng> {
    key: StreamKey,
    state: State<R>,
}

enum State<R: Rng> {
    Pending(Box<Hello<R>>),
    Open(Box<Open>),
}

struct Open {
    stream: OpenStream,
    has_turn: bool,
}

impl<R: Rng> Mux<R> {
    /// No streams yet, for an executor that is registered as this.
    pub fn new(identity: Identity, environment_id: String, registration_id: String) -> Self {
        Self {
            identity,
            environment_id,
            registration_id,
            streams: BTreeMap::new(),
            ids: BTreeMap::new(),
            next_key: 0,
            turns: VecDeque::new(),
            control: VecDeque::new(),
            outputs: VecDeque::new(),
            door: Door::default(),
        }
    }

    /// A frame arrived. What is no frame is dropped: nobody can be told.
    pub fn handle_frame(&mut self, now: Instant, frame: Bytes) {
        let Ok(RelayFrame { stream_id, ack, body }) = RelayFrame::decode(frame) else { return };
        if let Some(Stream { key, state: State::Open(open) }) = self.streams.get_mut(&stream_id) {
            open.stream.handle_ack(ack, &body);
            open.queue_up(*key, &mut self.turns);
        }
        match body {
            RelayBody::Handshake(message) => self.handle_handshake(now, stream_id, &message),
            RelayBody::Data(data) => self.handle_data(now, stream_id, data),
            RelayBody::Reset { reason } => self.end(&stream_id, StreamError::reset(&reason)),
            RelayBody::Ack | RelayBody::Resume { .. } | RelayBody::Heartbeat => {}
        }
    }

    /// The registry's word on a harness came, or did not come in time; once for each [`MuxOutput::Validate`].
    pub fn handle_validated(&mut self, now: Instant, stream: StreamKey, verdict: Verdict) {
        self.door.handle_answered();
        // The stream may be gone by now, and its id may be another's.
        let Some(stream_id) = self.ids.get(&stream).cloned() else { return };
        match verdict {
            Verdict::Allowed => {}
            Verdict::Refused => return self.refuse(now, stream_id, Refusal::Refused),
            Verdict::Unknown => return self.refuse(now, stream_id, Refusal::Unchecked),
        }
        let Some(Stream { state: State::Pending(hello), .. }) = self.streams.remove(&stream_id)
        else {
            unreachable!("a key that waits for validation names a pending stream");
        };
        let harness = hello.harness.clone();
        let Ok((message, keys)) = hello.accept() else {
            self.ids.remove(&stream);
            return self.refuse(now, stream_id, Refusal::BadHandshake);
        };
        self.push_control(&stream_id, RelayBody::Handshake(message.into()));
        let open = Open { stream: OpenStream::new(keys), has_turn: false };
        let state = State::Open(Box::new(open));
        self.streams.insert(stream_id.clone(), Stream { key: stream, state });
        self.outputs.push_back(MuxOutput::Opened { stream, stream_id, harness });
    }

    /// Queues a message for an open stream; one that is gone takes nothing more.
    pub fn send(&mut self, stream: StreamKey, message: Bytes) -> Result<(), StreamError> {
        self.with_open(stream, |open| open.stream.send(message)).unwrap_or(Ok(()))
    }

    /// The owner passed on a message of this length.
    pub fn take(&mut self, stream: StreamKey, bytes: usize) {
        self.with_open(stream, |open| open.stream.take(bytes));
    }

    /// How much waits to leave on a stream; its owner waits with more while that is much.
    pub fn queued_bytes(&self, stream: StreamKey) -> usize {
        match self.ids.get(&stream).and_then(|id| self.streams.get(id)) {
            Some(Stream { state: State::Open(open), .. }) => open.stream.queued_bytes(),
            _ => 0,
        }
    }

    /// The owner ends a stream; what is queued for it is dropped.
    pub fn close(&mut self, stream: StreamKey) {
        if let Some(stream_id) = self.ids.remove(&stream) {
            self.streams.remove(&stream_id);
            self.reset(&stream_id);
        }
    }

    /// What the owner must do next.
    pub fn poll_output(&mut self) -> Option<MuxOutput> {
        self.outputs.pop_front()
    }

    /// The next frame for the socket.
    pub fn poll_frame(&mut self) -> Option<Vec<u8>> {
        if let Some(frame) = self.control.pop_front() {
            return Some(frame);
        }
        while let Some(stream) = self.turns.pop_front() {
            let Some(stream_id) = self.ids.get(&stream).cloned() else { continue };
            let polled = self.with_open(stream, |open| {
                open.has_turn = false;
                open.stream.poll_frame(&stream_id)
            });
            match polled {
                Some(Ok(Some(frame))) => return Some(frame),
                Some(Ok(None)) | None => {}
                Some(Err(why)) => self.break_off(&stream_id, why),
            }
        }
        None
    }

    fn handle_handshake(&mut self, now: Instant, stream_id: String, message: &[u8]) {
        match self.streams.get(&stream_id).map(|stream| &stream.state) {
            Some(State::Pending(_)) => return self.refuse(now, stream_id, Refusal::EarlyFrame),
            Some(State::Open(_)) => {
                return self.break_off(&stream_id, StreamError::Unexpected("handshake"));
            }
            None => {}
        }
        if let Err(why) = self.door.check(now, self.streams.len()) {
            return self.refuse(now, stream_id, why);
        }
        let binding = Binding {
            environment_id: &self.environment_id,
            registration_id: &self.registration_id,
            stream_id: &stream_id,
        };
        let Ok(hello) = Hello::read(&self.identity, binding, message) else {
            return self.refuse(now, stream_id, Refusal::BadHandshake);
        };
        let key = StreamKey(self.next_key);
        self.next_key += 1;
        self.door.handle_asked();
        self.outputs.push_back(MuxOutput::Validate {
            stream: key,
            stream_id: stream_id.clone(),
            harness: hello.harness.clone(),
            authorization: hello.authorization.clone(),
        });
        self.ids.insert(key, stream_id.clone());
        let state = State::Pending(Box::new(hello));
        self.streams.insert(stream_id, Stream { key, state });
    }

    fn handle_data(&mut self, now: Instant, stream_id: String, data: RelayData) {
        let Some(stream) = self.streams.get_mut(&stream_id) else {
            return self.reset(&stream_id);
        };
        let State::Open(open) = &mut stream.state else {
            return self.refuse(now, stream_id, Refusal::EarlyFrame);
        };
        let (key, outputs) = (stream.key, &mut self.outputs);
        let result = open.stream.handle_data(data, |message| {
            outputs.push_back(MuxOutput::Message { stream: key, message });
        });
        open.queue_up(key, &mut self.turns);
        if let Err(why) = result {
            self.break_off(&stream_id, why);
        }
    }

    /// A handshake came to nothing.
    fn refuse(&mut self, now: Instant, stream_id: String, why: Refusal) {
        if let Some(stream) = self.streams.remove(&stream_id) {
            self.ids.remove(&stream.key);
        }
        self.door.handle_refused(now, why);
        self.reset(&stream_id);
        self.outputs.push_back(MuxOutput::Refused { stream_id, why });
    }

    /// The peer of a stream broke the rules.
    fn break_off(&mut self, stream_id: &str, why: StreamError) {
        self.end(stream_id, why);
        self.reset(stream_id);
    }

    fn end(&mut self, stream_id: &str, why: StreamError) {
        let Some(stream) = self.streams.remove(stream_id) else { return };
        self.ids.remove(&stream.key);
        if let State::Open(_) = stream.state {
            self.outputs.push_back(MuxOutput::Ended { stream: stream.key, why });
        }
    }

    fn reset(&mut self, stream_id: &str) {
        if self.control.len() < MAX_QUEUED_RESETS {
            self.push_control(stream_id, RelayBody::Reset { reason: RESET_PROTOCOL_ERROR.into() });
        }
    }

    fn push_control(&mut self, stream_id: &str, body: RelayBody) {
        self.control.push_back(RelayFrame::new(stream_id, body).encode());
    }

    /// Does something with an open stream, which then gets a turn if it has something to send.
    fn with_open<T>(&mut self, stream: StreamKey, act: impl FnOnce(&mut Open) -> T) -> Option<T> {
        let Stream { key, state: State::Open(open) } =
            self.streams.get_mut(self.ids.get(&stream)?)?
        else {
            return None;
        };
        let result = act(open);
        open.queue_up(*key, &mut self.turns);
        Some(result)
    }
}

impl Open {
    fn queue_up(&mut self, key: StreamKey, turns: &mut VecDeque<StreamKey>) {
        if !self.has_turn && self.stream.has_frame() {
            self.has_turn = true;
            turns.push_back(key);
        }
    }
}

#[cfg(test)]
mod tests;
