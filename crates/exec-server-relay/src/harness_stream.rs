//! State machine for the harness's end of its one stream.
//!
//! ```text
//! handshaking ─executor's answer▶ open ─reset, or an unexpected frame▶ over (the owner drops the socket)
//! ```
//!
//! Owner: the task of the relay socket. Messages queued before the stream is open are sent once it opens.

use std::collections::VecDeque;

use crate::frame::{FrameError, RelayBody, RelayFrame};
use crate::registry_types::{ConnectResponse, PublicKey};
use bytes::Bytes;

use crate::noise::Rng;
use crate::noise::handshake::{Binding, Initiator};
use crate::noise::identity::Identity;
use crate::record_stream::OpenStream;
use crate::stream::StreamError;

/// One stream to an executor.
pub struct HarnessStream<R: Rng> {
    stream_id: String,
    state: State<R>,
    /// Resume and handshake, sent before anything else.
    opening: VecDeque<Vec<u8>>,
    /// Messages queued until the executor answers.
    early: Vec<Bytes>,
}

enum State<R: Rng> {
    Handshaking(Box<Initiator<R>>),
    Open(Box<OpenStream>),
    Over,
}

impl<R: Rng> HarnessStream<R> {
    /// Starts a stream along the route from the registry; its opening frames can be sent at once.
    pub fn new(
        stream_id: String,
        identity: &Identity,
        route: &ConnectResponse,
        executor: &PublicKey,
    ) -> Result<Self, StreamError> {
        let binding = Binding {
            environment_id: &route.environment_id,
            registration_id: &route.executor_registration_id,
            stream_id: &stream_id,
        };
        let (initiator, message) =
            Initiator::start(identity, executor, binding, &route.harness_key_authorization)?;
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

    /// Whether the handshake is complete.
    pub fn is_open(&self) -> bool {
        matches!(self.state, State::Open(_))
    }

    /// Takes a frame and passes the messages that it completes to `message`. An error ends the stream.
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
        let frame = match RelayFrame::decode(frame) {
            // A relay forwards bodies that this version does not know; they are skipped.
            Err(FrameError::NoBody) => return Ok(()),
            decoded => decoded?,
        };
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

    /// Queues a message; the queue has no limit, so the owner bounds [`Self::queued_bytes`].
    pub fn send(&mut self, message: Bytes) -> Result<(), StreamError> {
        match &mut self.state {
            State::Open(stream) => stream.send(message)?,
            State::Handshaking(_) => self.early.push(message),
            State::Over => {}
        }
        Ok(())
    }

    /// The owner has processed a message of this length, which opens the window again.
    pub fn take(&mut self, bytes: usize) {
        if let State::Open(stream) = &mut self.state {
            stream.take(bytes);
        }
    }

    /// Message bytes that are not sent yet.
    pub fn queued_bytes(&self) -> usize {
        match &self.state {
            State::Open(stream) => stream.queued_bytes(),
            State::Handshaking(_) | State::Over => self.early.iter().map(Bytes::len).sum(),
        }
    }

    /// The next frame for the socket.
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
