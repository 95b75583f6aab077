//! Drives a harness's encrypted stream over its websocket to the relay.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll, Waker, ready};

use crate::harness_stream::HarnessStream;
use crate::noise::SystemRandom;
use crate::noise::identity::Identity;
use crate::registry_types::{ConnectResponse, PublicKey};
use crate::stream::StreamError;
use bytes::Bytes;

use exec_server_transport::connection::{InMessage, Received, Wire, WireError};
use exec_server_transport::outbox::CloseReason;

/// Bytes of frames passed to the socket between two flushes.
const BATCH_BYTES: usize = 256 * 1024;

/// Passes one batch of frames to a flushed socket; returns false if there was no frame.
pub(crate) fn start_batch(
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

/// One stream to an executor; it owns its websocket.
pub struct HarnessWire {
    socket: Box<dyn Wire>,
    stream: HarnessStream<SystemRandom>,
    messages: VecDeque<Bytes>,
    /// Waker of a `poll_flush` that waits for the window to open.
    flusher: Option<Waker>,
}

impl HarnessWire {
    /// Opens a stream to `executor` over a socket to the relay; returns once the executor has answered.
    ///
    /// The caller applies a timeout and chooses the stream id, which must not be guessable.
    pub async fn open(
        socket: Box<dyn Wire>,
        stream_id: String,
        identity: &Identity,
        route: &ConnectResponse,
        executor: &PublicKey,
    ) -> Result<Self, WireError> {
        let stream = HarnessStream::new(stream_id, identity, route, executor)?;
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
                None => return Poll::Ready(Err(relay_closed())),
            };
        }
        Poll::Ready(Ok(()))
    }

    /// Feeds frames to the stream; returns pongs and close frames for the caller.
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
            other @ (Received::Pong(_) | Received::Life | Received::Closing(_)) => Ok(Some(other)),
        }
    }

    /// Ready when every frame that may be sent now is flushed.
    fn poll_pump(&mut self, cx: &mut Context) -> Poll<Result<(), WireError>> {
        loop {
            ready!(self.socket.poll_flush(cx))?;
            if !start_batch(&mut *self.socket, || self.stream.poll_frame())? {
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
            // All messages are taken, so an acknowledgement may be due.
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

    fn carries_binary(&self) -> bool {
        true
    }

    fn describe(&self) -> String {
        "failed to parse JSON-RPC message from relay stream".to_owned()
    }
}

fn relay_closed() -> WireError {
    WireError::Io(io::Error::new(io::ErrorKind::UnexpectedEof, "the relay closed the connection"))
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
