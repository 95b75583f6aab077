//! Carries each message as one websocket message.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use exec_server_protocol::binary;
use exec_server_protocol::limits::MAX_FRAME_BYTES;
use futures_core::Stream;
use futures_sink::Sink;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_websockets::upgrade::Error as UpgradeError;
use tokio_websockets::{
    ClientBuilder, CloseCode, Config, Error, Limits, Message, ServerBuilder, WebSocketStream,
};

use crate::connection::{InMessage, Received, Wire, WireError};
use crate::outbox::CloseReason;

/// Yield after this many reads, so that a peer that sends without pause does not starve other tasks.
const DRAINS_PER_TURN: usize = 16;

/// The library queues a pong for every ping; beyond this many, reading waits until the peer takes them.
const MAX_UNSENT_PONGS: usize = 64;

/// A [`Wire`] over a websocket.
pub struct WebSocketWire<S> {
    stream: WebSocketStream<Metered<S>>,
    peer: String,
    sends: Sends,
    unsent_pongs: usize,
}

/// The websocket message type of outgoing messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Sends {
    /// Text for JSON, binary for binary messages.
    #[default]
    Text,
    /// Binary only, for frames of a relay.
    Binary,
}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> WebSocketWire<S> {
    /// Serves an upgraded HTTP connection; a message above `max_message` bytes ends the connection.
    pub fn serve(stream: S, peer: String, max_message: usize) -> Self {
        let stream = ServerBuilder::new()
            .config(config())
            .limits(Limits::default().max_payload_len(Some(max_message)))
            .serve(Metered { stream, sent: 0 });
        Self { stream, peer, sends: Sends::Text, unsent_pongs: 0 }
    }

    /// Performs the client side of the websocket handshake; a message above `max_message` bytes ends the connection.
    pub async fn connect(
        stream: S,
        url: &str,
        headers: &[(String, String)],
        max_message: usize,
    ) -> Result<Self, UpgradeFailure> {
        let mut builder = ClientBuilder::new()
            .uri(url)
            .map_err(|error| UpgradeFailure::Request(error.to_string()))?
            .config(config())
            .limits(Limits::default().max_payload_len(Some(max_message)));
        for (name, value) in headers {
            let wrong = || {
                UpgradeFailure::Request(format!(
                    "cannot send header `{name}`: invalid name or value"
                ))
            };
            let parsed = name.parse().map_err(|_| wrong())?;
            let value = value.parse().map_err(|_| wrong())?;
            builder = builder.add_header(parsed, value).map_err(|_| wrong())?;
        }
        match builder.connect_on(Metered { stream, sent: 0 }).await {
            Ok((stream, _)) => {
                let peer = url.to_owned();
                Ok(Self { stream, peer, sends: Sends::Text, unsent_pongs: 0 })
            }
            Err(Error::Upgrade(UpgradeError::DidNotSwitchProtocols(status))) => {
                Err(UpgradeFailure::Status(status))
            }
            Err(Error::Io(error)) => Err(UpgradeFailure::Io(error)),
            Err(error) => Err(UpgradeFailure::Answer(error.to_string())),
        }
    }

    /// Sets the message type of outgoing messages.
    pub fn sending(self, sends: Sends) -> Self {
        Self { sends, ..self }
    }

    fn queue(&mut self, message: Message) -> Result<(), WireError> {
        match Pin::new(&mut self.stream).start_send(message) {
            // After a close frame from the peer nothing can be sent, but its earlier messages are still read.
            Ok(()) | Err(Error::AlreadyClosed) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// Batches are flushed explicitly, so an intermediate flush only adds writes.
fn config() -> Config {
    Config::default().frame_size(MAX_FRAME_BYTES).flush_threshold(usize::MAX)
}

/// Why the websocket handshake failed.
#[derive(Debug, thiserror::Error)]
pub enum UpgradeFailure {
    /// The request headers or URL are invalid.
    #[error("{0}")]
    Request(String),
    /// The server rejected the upgrade with this HTTP status.
    #[error("the server answered with HTTP status {0}")]
    Status(u16),
    /// The response is not a valid upgrade.
    #[error("the server did not answer with a websocket upgrade: {0}")]
    Answer(String),
    /// The connection failed during the handshake.
    #[error("connection lost during the websocket handshake")]
    Io(#[source] io::Error),
}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Wire for WebSocketWire<S> {
    fn poll_next(&mut self, cx: &mut Context) -> Poll<Option<Result<Received, WireError>>> {
        if self.unsent_pongs >= MAX_UNSENT_PONGS
            && let Err(error) = ready!(self.poll_flush(cx))
        {
            return Poll::Ready(Some(Err(error)));
        }
        Pin::new(&mut self.stream).poll_next(cx).map(|next| match next? {
            Ok(message) if message.is_text() => {
                Some(Ok(Received::Message(InMessage::Text(message))))
            }
            Ok(message) if message.is_binary() => {
                let bytes = Bytes::from(message.into_payload());
                Some(Ok(Received::Message(InMessage::Bytes(bytes))))
            }
            Ok(message) if message.is_pong() => {
                let payload = message.as_payload();
                let number = payload[..].try_into().map_or(0, u64::from_be_bytes);
                Some(Ok(Received::Pong(number)))
            }
            Ok(message) if message.is_ping() => {
                self.unsent_pongs += 1;
                Some(Ok(Received::Life))
            }
            Ok(message) => Some(Ok(match message.as_close() {
                Some((code, reason)) => {
                    Received::Closing(CloseReason { code: code.into(), reason: reason.to_owned() })
                }
                None => Received::Life,
            })),
            Err(error) => {
                if let Error::PayloadTooLong { max_len, .. } = &error {
                    // The library sends a close frame only if a single frame is too long, not for a fragmented message.
                    let reason = format!("max length: {max_len}");
                    let too_big = Message::close(Some(CloseCode::MESSAGE_TOO_BIG), &reason);
                    let _ = self.queue(too_big);
                }
                Some(Err(error.into()))
            }
        })
    }

    fn start_send(&mut self, message: Bytes) -> Result<(), WireError> {
        self.queue(match self.sends {
            Sends::Text if !binary::is_binary(&message) => Message::text(message),
            Sends::Text | Sends::Binary => Message::binary(message),
        })
    }

    fn poll_flush(&mut self, cx: &mut Context) -> Poll<Result<(), WireError>> {
        let flushed = ready!(Pin::new(&mut self.stream).poll_flush(cx));
        self.unsent_pongs = 0;
        Poll::Ready(flushed.map_err(WireError::from))
    }

    fn start_ping(&mut self, number: u64) -> Result<(), WireError> {
        // Keepalive pings are empty: their pong needs no number.
        let number = number.to_be_bytes();
        let payload = if number == [0; 8] { &[][..] } else { &number };
        self.queue(Message::ping(Bytes::copy_from_slice(payload)))
    }

    fn start_close(&mut self, reason: &CloseReason) -> Result<(), WireError> {
        let code = CloseCode::try_from(reason.code).ok();
        self.queue(Message::close(code, &reason.reason))
    }

    fn bytes_sent(&self) -> u64 {
        self.stream.get_ref().sent
    }

    fn poll_drain(&mut self, cx: &mut Context) -> Poll<()> {
        // An error here also means that there is nothing left to drain.
        if ready!(Pin::new(&mut self.stream).poll_flush(cx)).is_err() {
            return Poll::Ready(());
        }
        let stream = self.stream.get_mut();
        if ready!(Pin::new(&mut *stream).poll_shutdown(cx)).is_err() {
            return Poll::Ready(());
        }
        let mut ignored = [0; 16 * 1024];
        for _ in 0..DRAINS_PER_TURN {
            let mut buffer = ReadBuf::new(&mut ignored);
            let result = ready!(Pin::new(&mut *stream).poll_read(cx, &mut buffer));
            if result.is_err() || buffer.filled().is_empty() {
                return Poll::Ready(());
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    fn can_ping(&self) -> bool {
        true
    }

    fn carries_binary(&self) -> bool {
        true
    }

    fn can_half_close(&self) -> bool {
        false
    }

    fn describe(&self) -> String {
        let peer = &self.peer;
        format!("failed to parse websocket JSON-RPC message from exec-server websocket {peer}")
    }
}

/// Counts sent bytes, so that a slow peer is distinguished from a dead one during a large message.
struct Metered<S> {
    stream: S,
    sent: u64,
}

impl<S: AsyncRead + Unpin> AsyncRead for Metered<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context,
        buffer: &mut ReadBuf,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> Metered<S> {
    fn count(&mut self, result: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if let Poll::Ready(Ok(count)) = &result {
            self.sent += *count as u64;
        }
        result
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Metered<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.count(result)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context,
        slices: &[io::IoSlice],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        self.count(result)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

impl From<Error> for WireError {
    fn from(error: Error) -> Self {
        match error {
            Error::Io(error) => Self::Io(error),
            error => Self::Protocol(error.to_string()),
        }
    }
}
