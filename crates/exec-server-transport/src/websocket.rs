//! Messages as websocket messages: one JSON text each.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use exec_server_protocol::limits::MAX_FRAME_BYTES;
use futures_core::Stream;
use futures_sink::Sink;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_websockets::{CloseCode, Config, Error, Limits, Message, ServerBuilder, WebSocketStream};

use crate::connection::{InMessage, Received, Wire, WireError};
use crate::outbox::CloseReason;

/// A peer on the other side of a websocket.
pub struct WebSocketWire<S> {
    stream: WebSocketStream<S>,
    peer: String,
}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> WebSocketWire<S> {
    /// Serves an upgraded HTTP connection; messages above `max_message` bytes end it.
    pub fn serve(stream: S, peer: String, max_message: usize) -> Self {
        let stream = ServerBuilder::new()
            // What is handed over is written as a whole, so there is nothing to gain from flushing halfway.
            .config(Config::default().frame_size(MAX_FRAME_BYTES).flush_threshold(usize::MAX))
            .limits(Limits::default().max_payload_len(Some(max_message)))
            .serve(stream);
        Self { stream, peer }
    }

    fn queue(&mut self, message: Message) -> Result<(), WireError> {
        match Pin::new(&mut self.stream).start_send(message) {
            // A peer that said goodbye takes nothing more; what it sent is still read to the end.
            Ok(()) | Err(Error::AlreadyClosed) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Wire for WebSocketWire<S> {
    fn poll_next(&mut self, cx: &mut Context) -> Poll<Option<Result<Received, WireError>>> {
        Pin::new(&mut self.stream).poll_next(cx).map(|next| match next? {
            Ok(message) if message.is_text() => {
                Some(Ok(Received::Message(InMessage::Text(message))))
            }
            Ok(message) if message.is_binary() => {
                let bytes = Bytes::from(message.into_payload());
                Some(Ok(Received::Message(InMessage::Bytes(bytes))))
            }
            Ok(_) => Some(Ok(Received::Life)),
            Err(error) => {
                if let Error::PayloadTooLong { max_len, .. } = &error {
                    // The stream says so itself only if a single frame is too long, not the sum of many.
                    let reason = format!("max length: {max_len}");
                    let too_big = Message::close(Some(CloseCode::MESSAGE_TOO_BIG), &reason);
                    let _ = self.queue(too_big);
                }
                Some(Err(error.into()))
            }
        })
    }

    fn start_send(&mut self, message: Bytes) -> Result<(), WireError> {
        self.queue(Message::text(message))
    }

    fn poll_flush(&mut self, cx: &mut Context) -> Poll<Result<(), WireError>> {
        Pin::new(&mut self.stream).poll_flush(cx).map_err(WireError::from)
    }

    fn start_ping(&mut self) -> Result<(), WireError> {
        self.queue(Message::ping(Bytes::new()))
    }

    fn start_close(&mut self, reason: &CloseReason) -> Result<(), WireError> {
        let code = CloseCode::try_from(reason.code).ok();
        self.queue(Message::close(code, &reason.reason))
    }

    fn can_ping(&self) -> bool {
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

impl From<Error> for WireError {
    fn from(error: Error) -> Self {
        match error {
            Error::Io(error) => Self::Io(error),
            error => Self::Protocol(error.to_string()),
        }
    }
}
