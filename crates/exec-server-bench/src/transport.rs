//! Transport of the measuring client: a websocket to the server, or an encrypted stream through a relay.

use std::os::fd::BorrowedFd;
use std::time::Instant;

use super::failure::Result;
use super::relayed::Relayed;
use super::websocket::{Place, WebSocket};

/// A connection to a server.
pub enum Transport {
    /// A direct websocket.
    Direct(WebSocket),
    /// A stream through a relay.
    Relayed(Box<Relayed>),
}

/// Location of a received message, valid until the next read.
pub enum MessageRef {
    /// In the websocket's buffer.
    Direct(Place),
    /// In the stream's decrypted message.
    Relayed,
}

impl Transport {
    /// Sets the deadline of all further operations.
    pub fn set_deadline(&mut self, deadline: Instant) {
        match self {
            Transport::Direct(socket) => socket.set_deadline(deadline),
            Transport::Relayed(stream) => stream.set_deadline(deadline),
        }
    }

    /// Queues one message, given in pieces, for the next flush.
    pub fn queue(&mut self, pieces: &[&[u8]]) {
        match self {
            Transport::Direct(socket) => socket.queue(pieces),
            Transport::Relayed(stream) => stream.queue(pieces),
        }
    }

    /// Sends all queued messages.
    pub fn flush(&mut self) -> Result<()> {
        match self {
            Transport::Direct(socket) => socket.flush(),
            Transport::Relayed(stream) => stream.flush(),
        }
    }

    /// Waits for the next message.
    pub fn next_message(&mut self) -> Result<MessageRef> {
        match self {
            Transport::Direct(socket) => socket.next_message().map(MessageRef::Direct),
            Transport::Relayed(stream) => stream.next_message().map(|()| MessageRef::Relayed),
        }
    }

    /// The next message that is complete in the buffer, if any.
    pub fn buffered_message(&mut self) -> Result<Option<MessageRef>> {
        Ok(match self {
            Transport::Direct(socket) => socket.buffered_message()?.map(MessageRef::Direct),
            Transport::Relayed(stream) => stream.buffered_message()?.then_some(MessageRef::Relayed),
        })
    }

    /// The bytes of the last returned message.
    pub fn bytes(&self, message: &MessageRef) -> &[u8] {
        match (self, message) {
            (Transport::Direct(socket), MessageRef::Direct(place)) => socket.bytes(place),
            (Transport::Relayed(stream), MessageRef::Relayed) => stream.message(),
            _ => unreachable!("a carrier makes its own spots"),
        }
    }

    /// Reads more bytes.
    pub fn fill(&mut self) -> Result<()> {
        self.socket_mut().fill()
    }

    /// The socket, for polling.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Transport::Direct(socket) => socket.as_fd(),
            Transport::Relayed(stream) => stream.as_fd(),
        }
    }

    fn socket_mut(&mut self) -> &mut WebSocket {
        match self {
            Transport::Direct(socket) => socket,
            Transport::Relayed(stream) => stream.socket_mut(),
        }
    }
}
