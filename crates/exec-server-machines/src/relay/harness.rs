//! The harness's end of its one stream.
//!
//! ```text
//! handshaking ─executor's answer▶ open ─reset, or a frame that has no place▶ over (the owner drops the socket)
//! ```
//!
//! Owner: the task of the relay socket. Messages may be queued before the stream is open; they leave when it is.

use std::collections::VecDeque;

use bytes::Bytes;
use exec_server_protocol::registry::{ConnectResponse, PublicKey};
use exec_server_protocol::relay_frame::{RelayBody, RelayFrame};

use super::StreamError;
use super::stream::OpenStream;
use crate::noise::Rng;
use crate::noise::handshake::{Binding, Initiator};
use crate::noise::identity::Identity;

/// One stream to an executor.
pub struct HarnessStream<R: Rng> {
    stream_id: String,
    state: State<R>,
    /// The frames that open the stream.
    opening: VecDeque<Vec<u8>>,
    /// Messages that wait for the executor's answer.
    early: Vec<Bytes>,
}

enum State<R: Rng> {
    Handshaking(Box<Initiator<R>>),
    Open(Box<OpenStream>),
    Over,
}

impl<R: Rng> HarnessStream<R> {
    /// Begins a stream with the way that a registry has shown; its frames can be sent at once.
    pub fn new(
        stream_id: String,
        identity: &Identity,
        way: &ConnectResponse,
        executor: &PublicKey,
    ) -> Result<Self, StreamError> {
        let binding = Binding {
            environment_id: &way.environment_id,
            registration_id: &way.executor_registration_id,
            stream_id: &stream_id,
        };
        let (initiator, message) =
            Initiator::start(identity, executor, binding, &way.harness_key_authorization)?;
        let frame = |body| RelayFrame::new(stream_id.as_str(), body).encode();
        let resume = frame(RelayBody::Resume { next_seq: 0 });
        let handshake = frame(RelayBody::Handshake(message.into()));
        Ok(Self {
            opening: VecDeque::from([resume, handshake]),
            state: State::Handshaking(Box::new(initiator)),
            early: Vec::new(),
            stream_id,
        })
    }

    /// Whether the executor has answered.
    pub fn is_open(&self) -> bool {
        matches!(self.state, State::Open(_))
    }

    /// A frame arrived; the messages that it completes are passed to `message`. After an error the stream is over.
    pub fn handle_frame(
        &mut self,
        frame: Bytes,
        message: impl FnMut(Bytes),
    ) -> Result<(), StreamError> {
        let result = self.take_frame(frame, message);
        if result.is_err() {
            self.state = State::Over;
        }
        result
    }

    fn take_frame(&mut self, frame: Bytes, message: impl FnMut(Bytes)) -> Result<(), StreamError> {
        let frame = RelayFrame::decode(frame)?;
        if frame.stream_id != self.stream_id {
            return Ok(());
        }
        if let State::Open(stream) = &mut self.state {
            stream.handle_ack(frame.ack, &frame.body);
        }
        match (frame.body, std::mem::replace(&mut self.state, State::Over)) {
            (RelayBody::Reset { reason }, _) => Err(StreamError::reset(&reason)),
            (RelayBody::Handshake(answer), State::Handshaking(initiator)) => {
                let keys = initiator.finish(&answer)?;
                let mut stream = OpenStream::new(keys);
                for message in self.early.drain(..) {
                    stream.send(message)?;
                }
                self.state = State::Open(Box::new(stream));
                Ok(())
            }
            (RelayBody::Data(data), State::Open(mut stream)) => {
                stream.handle_data(data, message)?;
                self.state = State::Open(stream);
                Ok(())
            }
            (RelayBody::Handshake(_), _) => Err(StreamError::Unexpected("handshake")),
            (RelayBody::Data(_), _) => Err(StreamError::Unexpected("data")),
            (RelayBody::Ack | RelayBody::Resume { .. } | RelayBody::Heartbeat, state) => {
                self.state = state;
                Ok(())
            }
        }
    }

    /// Queues a message; the owner waits with more while [`Self::queued_bytes`] are many.
    pub fn send(&mut self, message: Bytes) -> Result<(), StreamError> {
        match &mut self.state {
            State::Open(stream) => stream.send(message)?,
            State::Handshaking(_) => self.early.push(message),
            State::Over => {}
        }
        Ok(())
    }

    /// The owner passed on a message of this length.
    pub fn take(&mut self, bytes: usize) {
        if let State::Open(stream) = &mut self.state {
            stream.take(bytes);
        }
    }

    /// How much is waiting to leave.
    pub fn queued_bytes(&self) -> usize {
        match &self.state {
            State::Open(stream) => stream.queued_bytes(),
            State::Handshaking(_) | State::Over => self.early.iter().map(Bytes::len).sum(),
        }
    }

    /// The next frame to send.
    pub fn poll_frame(&mut self) -> Result<Option<Vec<u8>>, StreamError> {
        if let Some(frame) = self.opening.pop_front() {
            return Ok(Some(frame));
        }
        match &mut self.state {
            State::Open(stream) => stream.poll_frame(&self.stream_id),
            State::Handshaking(_) | State::Over => Ok(None),
        }
    }
}
