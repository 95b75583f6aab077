//! A harness's way through a relay: messages of one encrypted stream over one websocket.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll, Waker, ready};

use bytes::Bytes;
use exec_server_machines::noise::SystemRandom;
use exec_server_machines::noise::identity::Identity;
use exec_server_machines::relay::StreamError;
use exec_server_machines::relay::harness::HarnessStream;
use exec_server_protocol::registry::{ConnectResponse, PublicKey};

use crate::connection::{InMessage, Received, Wire, WireError};
use crate::outbox::CloseReason;

/// Frames that are handed to the socket before it is asked to send them.
const BATCH_BYTES: usize = 256 * 1024;

/// Hands frames over to a socket that has sent all before them; false if there was none.
pub(crate) fn hand_over(
    socket: &mut dyn Wire,
    mut next_frame: impl FnMut() -> Result<Option<Vec<u8>>, StreamError>,
) -> Result<bool, WireError> {
    let mut batch = 0;
    while batch < BATCH_BYTES
        && let Some(frame) = next_frame()?
    {
        batch += frame.len();
        socket.start_send(frame.into())?;
    }
    Ok(batch > 0)
}

/// One stream to an executor, over a websocket of its own.
pub struct HarnessWire {
    socket: Box<dyn Wire>,
    stream: HarnessStream<SystemRandom>,
    messages: VecDeque<Bytes>,
    /// Waits until the executor has room again.
    flusher: Option<Waker>,
}

impl HarnessWire {
    /// Opens a stream to `executor` over a socket to the relay; returns when the executor has answered.
    ///
    /// The caller bounds the time and makes up the stream id, which must not be guessable.
    pub async fn open(
        socket: Box<dyn Wire>,
        stream_id: String,
        identity: &Identity,
        way: &ConnectResponse,
        executor: &PublicKey,
    ) -> Result<Self, WireError> {
        let stream = HarnessStream::new(stream_id, identity, way, executor)?;
        let mut wire = Self { socket, stream, messages: VecDeque::new(), flusher: None };
        poll_fn(|cx| wire.poll_open(cx)).await?;
        Ok(wire)
    }

    fn poll_open(&mut self, cx: &mut Context) -> Poll<Result<(), WireError>> {
        if let Poll::Ready(Err(error)) = self.poll_pump(cx) {
            return Poll::Ready(Err(error));
        }
        while !self.stream.is_open() {
            match ready!(self.socket.poll_next(cx)) {
                Some(received) => self.handle_received(received?)?,
                None => return Poll::Ready(Err(hung_up())),
            };
        }
        Poll::Ready(Ok(()))
    }

    /// What is not about the stream is passed on.
    fn handle_received(&mut self, received: Received) -> Result<Option<Received>, WireError> {
        match received {
            Received::Message(InMessage::Bytes(frame)) => {
                let messages = &mut self.messages;
                self.stream.handle_frame(frame, |message| messages.push_back(message))?;
                if let Some(flusher) = self.flusher.take() {
                    flusher.wake();
                }
                Ok(None)
            }
            Received::Message(InMessage::Text(_)) => {
                Err(WireError::Protocol("the relay sent text".to_owned()))
            }
            other @ (Received::Pong(_) | Received::Life) => Ok(Some(other)),
        }
    }

    /// Ready when the socket has taken all that may leave now.
    fn poll_pump(&mut self, cx: &mut Context) -> Poll<Result<(), WireError>> {
        loop {
            ready!(self.socket.poll_flush(cx))?;
            if !hand_over(&mut *self.socket, || self.stream.poll_frame())? {
                return Poll::Ready(Ok(()));
            }
        }
    }
}

impl Wire for HarnessWire {
    fn poll_next(&mut self, cx: &mut Context) -> Poll<Option<Result<Received, WireError>>> {
        loop {
            if let Some(message) = self.messages.pop_front() {
                self.stream.take(message.len());
                return Poll::Ready(Some(Ok(Received::Message(InMessage::Bytes(message)))));
            }
            // Everything was taken, so the executor may hear of it.
            if let Poll::Ready(Err(error)) = self.poll_pump(cx) {
                return Poll::Ready(Some(Err(error)));
            }
            match ready!(self.socket.poll_next(cx)) {
                None => return Poll::Ready(None),
                Some(received) => match received.and_then(|one| self.handle_received(one)) {
                    Ok(None) => {}
                    Ok(Some(other)) => return Poll::Ready(Some(Ok(other))),
                    Err(error) => return Poll::Ready(Some(Err(error))),
                },
            }
        }
    }

    fn start_send(&mut self, message: Bytes) -> Result<(), WireError> {
        Ok(self.stream.send(message)?)
    }

    fn poll_flush(&mut self, cx: &mut Context) -> Poll<Result<(), WireError>> {
        ready!(self.poll_pump(cx))?;
        if self.stream.queued_bytes() == 0 {
            return Poll::Ready(Ok(()));
        }
        self.flusher = Some(cx.waker().clone());
        Poll::Pending
    }

    fn start_ping(&mut self, number: u64) -> Result<(), WireError> {
        self.socket.start_ping(number)
    }

    fn start_close(&mut self, reason: &CloseReason) -> Result<(), WireError> {
        self.socket.start_close(reason)
    }

    fn bytes_sent(&self) -> u64 {
        self.socket.bytes_sent()
    }

    fn poll_drain(&mut self, cx: &mut Context) -> Poll<()> {
        self.socket.poll_drain(cx)
    }

    fn can_ping(&self) -> bool {
        self.socket.can_ping()
    }

    fn can_half_close(&self) -> bool {
        false
    }

    fn describe(&self) -> String {
        "failed to parse JSON-RPC message from relay stream".to_owned()
    }
}

fn hung_up() -> WireError {
    WireError::Io(io::Error::new(io::ErrorKind::UnexpectedEof, "the relay hung up"))
}

impl From<StreamError> for WireError {
    fn from(error: StreamError) -> Self {
        match error {
            StreamError::Reset { .. } => {
                Self::Io(io::Error::new(io::ErrorKind::ConnectionReset, error))
            }
            error => Self::Protocol(error.to_string()),
        }
    }
}
