//! The measuring client as a harness: an encrypted stream over a websocket to a relay.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::time::Instant;

use bytes::Bytes;
use exec_server_relay::harness_stream::HarnessStream;
use exec_server_relay::noise::SystemRandom;
use exec_server_relay::noise::identity::Identity;
use exec_server_relay::registry_types::ConnectResponse;
use exec_server_relay::stream::StreamError;

use super::failure::{Failure, Result};
use super::websocket::{QuickAck, WebSocket};

/// An open stream.
pub struct Relayed {
    socket: WebSocket,
    stream: HarnessStream<SystemRandom>,
    messages: VecDeque<Bytes>,
    held: Bytes,
}

impl Relayed {
    /// Opens a stream with a connect response, through the relay at `address`.
    pub fn open(
        address: SocketAddr,
        stream_id: String,
        identity: &Identity,
        response: &ConnectResponse,
        quickack: QuickAck,
        deadline: Instant,
    ) -> Result<Relayed> {
        let socket = WebSocket::connect_at(address, path_of(&response.url)?, quickack, deadline)?;
        let stream =
            HarnessStream::new(stream_id, identity, response, &response.executor_public_key)?;
        let mut relayed = Relayed { socket, stream, messages: VecDeque::new(), held: Bytes::new() };
        relayed.pump()?;
        while !relayed.stream.is_open() {
            relayed.read_frame()?;
        }
        Ok(relayed)
    }

    /// Sets the deadline of all further operations.
    pub fn set_deadline(&mut self, deadline: Instant) {
        self.socket.set_deadline(deadline);
    }

    /// Queues one message for the next flush.
    pub fn queue(&mut self, pieces: &[&[u8]]) {
        self.stream.send(pieces.concat().into()).expect("messages of a benchmark fit");
    }

    /// Sends all queued messages as the window allows.
    pub fn flush(&mut self) -> Result<()> {
        self.pump()?;
        while self.stream.queued_bytes() > 0 {
            self.read_frame()?;
            self.pump()?;
        }
        Ok(())
    }

    /// Waits for the next message and holds it.
    pub fn next_message(&mut self) -> Result<()> {
        while !self.buffered_message()? {
            // All messages are taken, so an acknowledgement may be due.
            self.pump()?;
            self.read_frame()?;
        }
        Ok(())
    }

    /// Whether another complete message was in the buffer; it is held then.
    pub fn buffered_message(&mut self) -> Result<bool> {
        while self.messages.is_empty() {
            let Some(place) = self.socket.buffered_message()? else { return Ok(false) };
            let frame = Bytes::copy_from_slice(self.socket.bytes(&place));
            self.take_frame(frame)?;
        }
        self.held = self.messages.pop_front().expect("was looked at");
        self.stream.take(self.held.len());
        Ok(true)
    }

    /// The held message.
    pub fn message(&self) -> &[u8] {
        &self.held
    }

    /// The socket, for polling.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// The socket to the relay.
    pub fn socket_mut(&mut self) -> &mut WebSocket {
        &mut self.socket
    }

    fn pump(&mut self) -> Result<()> {
        while let Some(frame) = self.stream.poll_frame()? {
            self.socket.queue_binary(&frame);
        }
        self.socket.flush()
    }

    fn read_frame(&mut self) -> Result<()> {
        let place = self.socket.next_message()?;
        let frame = Bytes::copy_from_slice(self.socket.bytes(&place));
        self.take_frame(frame)
    }

    fn take_frame(&mut self, frame: Bytes) -> Result<()> {
        let messages = &mut self.messages;
        Ok(self.stream.handle_frame(frame, |message| messages.push_back(message))?)
    }
}

/// The path and query of a URL.
pub fn path_of(url: &str) -> Result<&str> {
    let path = url.split_once("://").and_then(|(_, rest)| Some(&rest[rest.find('/')?..]));
    path.ok_or_else(|| Failure::new("a way without a path"))
}

impl From<StreamError> for Failure {
    fn from(error: StreamError) -> Failure {
        Failure::new(format!("the stream failed: {error}"))
    }
}
