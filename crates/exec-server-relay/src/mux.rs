//! State machine for the executor's end of all streams of one relay socket.
//!
//! ```text
//!            handshake        registry allows
//! unknown ──────────▶ pending ─────────────────▶ open ─reset, close, protocol error▶ gone
//!                        └─refused, no answer, early frame▶ gone (counts towards a cooldown)
//! ```
//!
//! Owner: the task of the relay socket. Streams take turns, one frame each, so that a large reply does not delay the others.
//! Failed handshakes lead to a cooldown ([`handshake_limit`](crate::handshake_limit)), which does not affect open streams.

use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

use crate::frame::{RESET_PROTOCOL_ERROR, RelayBody, RelayData, RelayFrame};
use crate::registry_types::PublicKey;
use bytes::Bytes;

use crate::handshake_limit::{HandshakeLimiter, Refusal, Verdict};
use crate::noise::Rng;
use crate::noise::handshake::{Binding, Hello};
use crate::noise::identity::Identity;
use crate::record_stream::OpenStream;
use crate::stream::StreamError;

/// Further resets are dropped, so that a flood of invalid frames does not become a flood of replies.
const MAX_QUEUED_RESETS: usize = 128;

/// Identifies a stream for its owner; unlike the stream id, a key is never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamKey(u64);

/// An action for the owner.
#[derive(Debug, PartialEq, Eq)]
pub enum MuxOutput {
    /// Ask the registry whether this harness is allowed, and pass the answer to [`Mux::handle_validated`].
    Validate {
        /// The key to pass back with the answer.
        stream: StreamKey,
        /// For the registry's logs.
        stream_id: String,
        /// The key that the handshake authenticated.
        harness: PublicKey,
        /// The authorization that the harness got from the registry.
        authorization: String,
    },
    /// A stream is open.
    Opened {
        /// Names the stream in later outputs and calls.
        stream: StreamKey,
        /// For logs.
        stream_id: String,
        /// The key that the handshake authenticated.
        harness: PublicKey,
    },
    /// A handshake was refused, and a reset is queued.
    Refused {
        /// For logs.
        stream_id: String,
        /// The reason, which the reset does not carry.
        why: Refusal,
    },
    /// A message arrived on an open stream.
    Message {
        /// The stream to pass to [`Mux::take`] once the message is processed.
        stream: StreamKey,
        /// Decrypted and complete.
        message: Bytes,
    },
    /// An open stream has ended, but not by [`Mux::close`].
    Ended {
        /// Never valid again.
        stream: StreamKey,
        /// A reset from the peer, or the protocol error.
        why: StreamError,
    },
}

/// The streams of one relay socket.
pub struct Mux<R: Rng> {
    identity: Identity,
    environment_id: String,
    registration_id: String,
    streams: BTreeMap<String, Stream<R>>,
    ids: BTreeMap<StreamKey, String>,
    next_key: u64,
    /// Streams with a frame to send, in round-robin order.
    turns: VecDeque<StreamKey>,
    control: VecDeque<Vec<u8>>,
    outputs: VecDeque<MuxOutput>,
    limiter: HandshakeLimiter,
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
    /// Starts without streams; handshakes must be bound to this environment and registration.
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
            limiter: HandshakeLimiter::default(),
        }
    }

    /// Takes a frame from the socket. An invalid frame is dropped without a reset.
    pub fn handle_frame(&mut self, now: Instant, frame: Bytes) {
        let Ok(RelayFrame { stream_id, ack, body }) = RelayFrame::decode(frame) else { return };
        if let Some(Stream { key, state: State::Open(open) }) = self.streams.get_mut(&stream_id) {
            open.stream.handle_ack(ack, &body);
            open.schedule(*key, &mut self.turns);
        }
        match body {
            RelayBody::Handshake(message) => self.handle_handshake(now, stream_id, &message),
            RelayBody::Data(data) => self.handle_data(now, stream_id, data),
            RelayBody::Reset { reason } => self.end(&stream_id, StreamError::reset(&reason)),
            RelayBody::Ack | RelayBody::Resume { .. } | RelayBody::Heartbeat => {}
        }
    }

    /// Takes the registry's answer or its timeout; called exactly once for each [`MuxOutput::Validate`].
    pub fn handle_validated(&mut self, now: Instant, stream: StreamKey, verdict: Verdict) {
        self.limiter.handle_answered();
        // The stream may have ended, and a new stream may use its id.
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

    /// Queues a message for an open stream; a message for an ended stream is dropped.
    pub fn send(&mut self, stream: StreamKey, message: Bytes) -> Result<(), StreamError> {
        self.with_open(stream, |open| open.stream.send(message)).unwrap_or(Ok(()))
    }

    /// The owner has processed a message of this length, which opens the window again.
    pub fn take(&mut self, stream: StreamKey, bytes: usize) {
        self.with_open(stream, |open| open.stream.take(bytes));
    }

    /// Message bytes of a stream that are not sent yet; the queue has no limit, so the owner bounds it.
    pub fn queued_bytes(&self, stream: StreamKey) -> usize {
        match self.ids.get(&stream).and_then(|id| self.streams.get(id)) {
            Some(Stream { state: State::Open(open), .. }) => open.stream.queued_bytes(),
            _ => 0,
        }
    }

    /// Resets a stream and drops its queued messages.
    pub fn close(&mut self, stream: StreamKey) {
        if let Some(stream_id) = self.ids.remove(&stream) {
            self.streams.remove(&stream_id);
            self.reset(&stream_id);
        }
    }

    /// The next action for the owner.
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
                Some(Err(why)) => self.end_with_reset(&stream_id, why),
            }
        }
        None
    }

    fn handle_handshake(&mut self, now: Instant, stream_id: String, message: &[u8]) {
        match self.streams.get(&stream_id).map(|stream| &stream.state) {
            Some(State::Pending(_)) => return self.refuse(now, stream_id, Refusal::EarlyFrame),
            Some(State::Open(_)) => {
                return self.end_with_reset(&stream_id, StreamError::Unexpected("handshake"));
            }
            None => {}
        }
        if let Err(why) = self.limiter.check(now, self.streams.len()) {
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
        self.limiter.handle_asked();
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
        open.schedule(key, &mut self.turns);
        if let Err(why) = result {
            self.end_with_reset(&stream_id, why);
        }
    }

    /// Ends a handshake and queues a reset.
    fn refuse(&mut self, now: Instant, stream_id: String, why: Refusal) {
        if let Some(stream) = self.streams.remove(&stream_id) {
            self.ids.remove(&stream.key);
        }
        self.limiter.handle_refused(now, why);
        self.reset(&stream_id);
        self.outputs.push_back(MuxOutput::Refused { stream_id, why });
    }

    /// Ends a stream after a protocol error and queues a reset.
    fn end_with_reset(&mut self, stream_id: &str, why: StreamError) {
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

    /// Runs `act` on an open stream, then schedules the stream if it has a frame to send.
    fn with_open<T>(&mut self, stream: StreamKey, act: impl FnOnce(&mut Open) -> T) -> Option<T> {
        let Stream { key, state: State::Open(open) } =
            self.streams.get_mut(self.ids.get(&stream)?)?
        else {
            return None;
        };
        let result = act(open);
        open.schedule(*key, &mut self.turns);
        Some(result)
    }
}

impl Open {
    fn schedule(&mut self, key: StreamKey, turns: &mut VecDeque<StreamKey>) {
        if !self.has_turn && self.stream.has_frame() {
            self.has_turn = true;
            turns.push_back(key);
        }
    }
}

#[cfg(test)]
mod tests;
