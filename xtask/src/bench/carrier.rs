//! What carries a client's messages: a websocket to the server, or an encrypted stream through a relay.

use std::os::fd::BorrowedFd;
use std::time::Instant;

use super::failure::Result;
use super::relayed::Relayed;
use super::websocket::{Place, WebSocket};

/// The way to a server.
pub enum Carrier {
    /// Straight.
    Direct(WebSocket),
    /// Through a relay.
    Relayed(Box<Relayed>),
}

/// Where a received message lies until the next read.
pub enum Spot {
    /// In the websocket.
    Direct(Place),
    /// It was decrypted into memory of its own.
    Relayed,
}

impl Carrier {
    /// Changes the time by which everything that follows must be done.
    pub fn set_deadline(&mut self, deadline: Instant) {
        match self {
            Carrier::Direct(socket) => socket.set_deadline(deadline),
            Carrier::Relayed(stream) => stream.set_deadline(deadline),
        }
    }

    /// Adds one message, given in pieces, to what the next flush sends.
    pub fn queue(&mut self, pieces: &[&[u8]]) {
        match self {
            Carrier::Direct(socket) => socket.queue(pieces),
            Carrier::Relayed(stream) => stream.queue(pieces),
        }
    }

    /// Sends everything that was queued.
    pub fn flush(&mut self) -> Result<()> {
        match self {
            Carrier::Direct(socket) => socket.flush(),
            Carrier::Relayed(stream) => stream.flush(),
        }
    }

    /// Waits for the next message.
    pub fn next_message(&mut self) -> Result<Spot> {
        match self {
            Carrier::Direct(socket) => socket.next_message().map(Spot::Direct),
            Carrier::Relayed(stream) => stream.next_message().map(|()| Spot::Relayed),
        }
    }

    /// The next message that has arrived completely, if there is one.
    pub fn buffered_message(&mut self) -> Result<Option<Spot>> {
        Ok(match self {
            Carrier::Direct(socket) => socket.buffered_message()?.map(Spot::Direct),
            Carrier::Relayed(stream) => stream.buffered_message()?.then_some(Spot::Relayed),
        })
    }

    /// The bytes of a message; it must be the last one returned.
    pub fn bytes(&self, spot: &Spot) -> &[u8] {
        match (self, spot) {
            (Carrier::Direct(socket), Spot::Direct(place)) => socket.bytes(place),
            (Carrier::Relayed(stream), Spot::Relayed) => stream.message(),
            _ => unreachable!("a carrier makes its own spots"),
        }
    }

    /// Waits for more bytes, however few.
    pub fn fill(&mut self) -> Result<()> {
        self.socket_mut().fill()
    }

    /// The socket, to be polled together with others.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Carrier::Direct(socket) => socket.as_fd(),
            Carrier::Relayed(stream) => stream.as_fd(),
        }
    }

    fn socket_mut(&mut self) -> &mut WebSocket {
        match self {
            Carrier::Direct(socket) => socket,
            Carrier::Relayed(stream) => stream.socket_mut(),
        }
    }
}
