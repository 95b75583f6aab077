//! Websocket of the measuring client: blocking, masked, with one deadline for all operations.
//!
//! The socket has a short timeout, so that a read or write is one system call while the deadline is still checked.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use super::failure::{Failure, Result};
use crate::frame;

/// Resolution of the deadline.
const TICK: Duration = Duration::from_millis(100);

/// Starts small because some measurements hold hundreds of connections; grows when reads fill it.
const FIRST_BUFFER: usize = 4 * 1024;
const FULL_BUFFER: usize = 1024 * 1024;

/// The sample key of RFC 6455 and its accept value, so that no digest is computed.
const KEY: &str = "dGhlIHNhbXBsZSBub25jZQ==";
const ACCEPT: &str = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";

/// A mask other than zero makes servers do the work of unmasking.
const MASK: [u8; 4] = [0x37, 0xfa, 0x21, 0x3d];

const BINARY: u8 = 2;
const CLOSE: u8 = 8;
const PING: u8 = 9;
const PONG: u8 = 10;

/// Whether the client acknowledges each segment at once, which hides a server with Nagle's algorithm.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum QuickAck {
    /// An ordinary client: the kernel delays acknowledgements.
    No,
    /// TCP_QUICKACK is set again after every read.
    Yes,
}

/// A connected websocket.
pub struct WebSocket {
    stream: TcpStream,
    quickack: QuickAck,
    deadline: Instant,
    incoming: Vec<u8>,
    unread: Range<usize>,
    fragments: Vec<u8>,
    outgoing: Vec<u8>,
}

/// Location of a received message, valid until the next read.
pub enum Place {
    /// In the read buffer, as one frame.
    Buffer(Range<usize>),
    /// In the buffer where fragments are joined.
    Fragments,
}

impl WebSocket {
    /// Connects and upgrades.
    pub fn connect(
        address: SocketAddr,
        quickack: QuickAck,
        deadline: Instant,
    ) -> Result<WebSocket> {
        WebSocket::connect_at(address, "/", quickack, deadline)
    }

    /// Connects and upgrades at a path.
    pub fn connect_at(
        address: SocketAddr,
        path: &str,
        quickack: QuickAck,
        deadline: Instant,
    ) -> Result<WebSocket> {
        let stream = TcpStream::connect_timeout(&address, remaining(deadline)?)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(TICK))?;
        stream.set_write_timeout(Some(TICK))?;
        let mut socket = WebSocket {
            stream,
            quickack,
            deadline,
            incoming: vec![0; FIRST_BUFFER],
            unread: 0..0,
            fragments: Vec::new(),
            outgoing: Vec::new(),
        };
        socket.upgrade(address, path)?;
        Ok(socket)
    }

    /// Sets the deadline of all further operations.
    pub fn set_deadline(&mut self, deadline: Instant) {
        self.deadline = deadline;
    }

    /// Queues one text message, given in pieces, for the next flush.
    pub fn queue(&mut self, pieces: &[&[u8]]) {
        self.queue_as(frame::TEXT, pieces);
    }

    /// Queues one binary message.
    pub fn queue_binary(&mut self, message: &[u8]) {
        self.queue_as(BINARY, &[message]);
    }

    fn queue_as(&mut self, opcode: u8, pieces: &[&[u8]]) {
        let length = pieces.iter().map(|piece| piece.len()).sum();
        frame::push_header(&mut self.outgoing, opcode, length, Some(MASK));
        let start = self.outgoing.len();
        for piece in pieces {
            self.outgoing.extend_from_slice(piece);
        }
        frame::apply_mask(&mut self.outgoing[start..], MASK);
    }

    /// Sends all queued messages.
    pub fn flush(&mut self) -> Result<()> {
        self.flush_times(1)
    }

    /// Sends all queued messages this many times, without the work of making them again.
    pub fn flush_times(&mut self, times: usize) -> Result<()> {
        for _ in 0..times {
            self.send_queued()?;
        }
        self.outgoing.clear();
        Ok(())
    }

    fn send_queued(&mut self) -> Result<()> {
        let mut sent = 0;
        while sent < self.outgoing.len() {
            match self.stream.write(&self.outgoing[sent..]) {
                Ok(count) => sent += count,
                Err(error) if is_tick(&error) => self.check_deadline("sending")?,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Waits for the next message.
    pub fn next_message(&mut self) -> Result<Place> {
        loop {
            if let Some(place) = self.buffered_message()? {
                return Ok(place);
            }
            self.fill()?;
        }
    }

    /// The next message that is complete in the buffer, if any.
    pub fn buffered_message(&mut self) -> Result<Option<Place>> {
        while let Some(next) = frame::parse(&self.incoming[self.unread.clone()]) {
            let payload =
                self.unread.start + next.payload.start..self.unread.start + next.payload.end;
            self.unread.start = payload.end;
            match (next.opcode, next.last) {
                (1 | 2, true) => return Ok(Some(Place::Buffer(payload))),
                (0..=2, last) => {
                    if next.opcode != 0 {
                        self.fragments.clear();
                    }
                    self.fragments.extend_from_slice(&self.incoming[payload]);
                    if last {
                        return Ok(Some(Place::Fragments));
                    }
                }
                (PING, _) => self.pong(payload)?,
                (CLOSE, _) => return Err(Failure::new("the server closed the websocket")),
                _ => {}
            }
        }
        Ok(None)
    }

    /// The bytes of the last returned message.
    pub fn bytes(&self, place: &Place) -> &[u8] {
        match place {
            Place::Buffer(range) => &self.incoming[range.clone()],
            Place::Fragments => &self.fragments,
        }
    }

    /// Reads more bytes.
    pub fn fill(&mut self) -> Result<()> {
        self.make_room();
        loop {
            match self.stream.read(&mut self.incoming[self.unread.end..]) {
                Ok(0) => return Err(Failure::new("the server dropped the connection")),
                Ok(count) => {
                    self.unread.end += count;
                    break;
                }
                Err(error) if is_tick(&error) => self.check_deadline("waiting")?,
                Err(error) => return Err(error.into()),
            }
        }
        if self.quickack == QuickAck::Yes {
            rustix::net::sockopt::set_tcp_quickack(&self.stream, true)?;
        }
        Ok(())
    }

    /// The socket, for polling.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    fn make_room(&mut self) {
        if self.unread.end == self.incoming.len() {
            let full = self.unread.start < self.incoming.len() / 2;
            self.incoming.copy_within(self.unread.clone(), 0);
            self.unread = 0..self.unread.len();
            // Beyond the usual size the buffer grows only for a message that does not fit.
            if full || self.incoming.len() < FULL_BUFFER {
                self.incoming.resize(self.incoming.len() * 2, 0);
            }
        } else if self.unread.is_empty() {
            self.unread = 0..0;
        }
    }

    fn pong(&mut self, payload: Range<usize>) -> Result<()> {
        frame::push_header(&mut self.outgoing, PONG, payload.len(), Some(MASK));
        let start = self.outgoing.len();
        self.outgoing.extend_from_slice(&self.incoming[payload]);
        frame::apply_mask(&mut self.outgoing[start..], MASK);
        self.flush()
    }

    fn upgrade(&mut self, address: SocketAddr, path: &str) -> Result<()> {
        let request = format!(
            "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {KEY}\r\n\r\n"
        );
        self.outgoing.extend_from_slice(request.as_bytes());
        self.flush()?;
        let head = loop {
            self.fill()?;
            let seen = &self.incoming[..self.unread.end];
            if let Some(end) = seen.windows(4).position(|four| four == b"\r\n\r\n") {
                self.unread.start = end + 4;
                break String::from_utf8_lossy(&seen[..end]).into_owned();
            }
        };
        if head.starts_with("HTTP/1.1 101") && head.contains(ACCEPT) {
            Ok(())
        } else {
            Err(Failure::new(format!("upgrade refused: {}", head.lines().next().unwrap_or(""))))
        }
    }

    fn check_deadline(&self, doing: &str) -> Result<()> {
        match Instant::now() < self.deadline {
            true => Ok(()),
            false => Err(Failure::new(format!("deadline passed while {doing}"))),
        }
    }
}

fn remaining(deadline: Instant) -> Result<Duration> {
    match deadline.checked_duration_since(Instant::now()) {
        Some(left) if !left.is_zero() => Ok(left),
        _ => Err(Failure::new("deadline passed before connecting")),
    }
}

fn is_tick(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}
