//! One peer connection: [`Connection::next`] yields incoming events and sends the contents of the [`Outbox`].
//!
//! Owner: the task that serves the peer; it alone reads and writes. Reading continues while the peer does not read, so
//! a client behind a flood of output can still cancel it. Readable messages are handled before anything is written, so
//! replies to pipelined requests leave in one write.

use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use exec_server_protocol::binary::{self, BinaryError};
use exec_server_protocol::envelope::{self, Incoming, MalformedMessage};
use tokio::sync::oneshot;

use crate::keepalive_timer::{KeepaliveAction, KeepaliveTimer};
use crate::outbox::{Backlog, CloseReason, Outbox, Slot};

pub use crate::keepalive_timer::KeepaliveConfig;

/// Converts bytes to messages and back, for one kind of carrier.
pub trait Wire: Send + Unpin {
    /// The next item from the peer; `None` at the end of input.
    fn poll_next(&mut self, cx: &mut Context) -> Poll<Option<Result<Received, WireError>>>;
    /// Buffers a message.
    fn start_send(&mut self, message: Bytes) -> Result<(), WireError>;
    /// Writes buffered data; `bytes_sent` grows with every successful write.
    fn poll_flush(&mut self, cx: &mut Context) -> Poll<Result<(), WireError>>;
    /// Buffers a ping, if the carrier has pings.
    fn start_ping(&mut self, _number: u64) -> Result<(), WireError> {
        Ok(())
    }
    /// Buffers a close frame, if the carrier has close frames.
    fn start_close(&mut self, _reason: &CloseReason) -> Result<(), WireError> {
        Ok(())
    }
    /// Bytes written so far; used only with pings.
    fn bytes_sent(&self) -> u64 {
        0
    }
    /// Flushes, then reads and discards input; ready at the end of input.
    fn poll_drain(&mut self, _cx: &mut Context) -> Poll<()> {
        Poll::Ready(())
    }
    /// Whether the carrier has pings.
    fn can_ping(&self) -> bool {
        false
    }
    /// Whether messages may be binary ones; a carrier of text sends their JSON form.
    fn carries_binary(&self) -> bool {
        false
    }
    /// Whether replies can still be sent after the peer has ended its input.
    fn can_half_close(&self) -> bool {
        false
    }
    /// Prefix of the error text for a malformed message.
    fn describe(&self) -> String;
}

/// An item received from the peer.
#[derive(Debug)]
pub enum Received {
    /// A message.
    Message(InMessage),
    /// The pong for the ping with this number.
    Pong(u64),
    /// Activity without content.
    Life,
    /// A close frame: nothing more will follow.
    Closing(CloseReason),
}

/// A message from the peer.
#[derive(Debug)]
pub enum InMessage {
    /// Bytes, not necessarily UTF-8.
    Bytes(Bytes),
    /// A websocket text message, already validated as UTF-8.
    Text(tokio_websockets::Message),
}

impl InMessage {
    /// The text, of a binary message that of its header; empty if it is not UTF-8.
    pub fn text(&self) -> &str {
        match self {
            Self::Bytes(bytes) => {
                std::str::from_utf8(header(bytes).unwrap_or_default()).unwrap_or_default()
            }
            Self::Text(message) => message.as_text().unwrap_or_default(),
        }
    }

    /// The bytes beside the header of a binary message, which are the value of its empty `chunk`.
    pub fn chunk(&self) -> Option<&[u8]> {
        match self {
            Self::Bytes(bytes) if binary::is_binary(bytes) => {
                binary::split(bytes).ok().map(|(_, chunk)| chunk)
            }
            Self::Bytes(_) | Self::Text(_) => None,
        }
    }

    /// Decodes the JSON-RPC envelope.
    pub fn decode(&self) -> Result<Incoming<'_>, MalformedMessage> {
        match self {
            Self::Bytes(bytes) => envelope::decode(header(bytes)?),
            Self::Text(message) => match message.as_text() {
                Some(text) => envelope::decode_text(text),
                None => envelope::decode(message.as_payload()),
            },
        }
    }
}

/// The JSON of a message.
fn header(message: &[u8]) -> Result<&[u8], BinaryError> {
    match binary::is_binary(message) {
        true => binary::split(message).map(|(header, _)| header),
        false => Ok(message),
    }
}

/// Why a connection failed.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    /// Reading or writing failed.
    #[error("the link broke: {0}")]
    Io(io::Error),
    /// The peer violated the carrier's protocol; a close frame was sent where possible.
    #[error("protocol violation: {0}")]
    Protocol(String),
}

impl From<io::Error> for WireError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// An event on a connection.
#[derive(Debug)]
pub enum Event {
    /// The peer sent a message.
    Message(InMessage),
    /// Number of requests answered since the last event; zero if only room for new requests became free.
    Finished(usize),
    /// The peer ended its input, but still reads replies.
    EndOfInput,
    /// The connection has ended.
    Closed(Ended),
}

/// How a connection ended.
#[derive(Debug)]
pub enum Ended {
    /// The peer closed it in order.
    ByPeer,
    /// This side closed it.
    ByUs(CloseReason),
    /// The peer answered no ping.
    Silent,
    /// It failed.
    Broken(WireError),
}

/// Messages handled before the replies are written, when the peer sends without pause.
const READS_PER_WRITE: usize = 64;
/// Above this size replies are written before more is read, so that the peer can start to read and the memory is freed;
/// does not apply while the socket is full.
const WRITE_FIRST_BYTES: usize = 512 * 1024;
/// Reading stops while more bytes of unanswered requests are held than this.
const MAX_HELD_BYTES: usize = 64 * 1024 * 1024;
/// Reading stops while more bytes of small messages are unread by the peer than this.
const MAX_UNPAID_BYTES: usize = 32 * 1024 * 1024;

/// A connection to one peer.
pub struct Connection {
    wire: Box<dyn Wire>,
    outbox: Outbox,
    /// Whether outgoing messages include `"jsonrpc":"2.0"`.
    says_version: bool,
    reads_left: usize,
    /// Slots of the batch that is being written.
    writing: Option<Vec<Slot>>,
    /// Delivery marks of the current batch, on a carrier without pings.
    handed_over: Vec<oneshot::Sender<()>>,
    closing: Option<CloseReason>,
    /// Value of `bytes_sent` when a write last found the socket full.
    blocked_at: Option<u64>,
    is_at_end: bool,
    /// `None` on a carrier without pings.
    keepalive: Option<KeepaliveTimer>,
    held_limit: usize,
    unpaid_limit: usize,
    /// Close reason sent by the peer.
    close_reason: Option<CloseReason>,
}

impl Connection {
    /// Creates a connection on a carrier.
    pub fn new(wire: Box<dyn Wire>, pings: KeepaliveConfig) -> Self {
        let outbox = Outbox::default();
        if !wire.can_ping() {
            outbox.set_cannot_ping();
        }
        if wire.carries_binary() {
            outbox.set_carries_binary();
        }
        let keepalive = wire.can_ping().then(|| KeepaliveTimer::new(pings));
        Self {
            wire,
            outbox,
            says_version: false,
            reads_left: READS_PER_WRITE,
            writing: None,
            handed_over: Vec::new(),
            closing: None,
            blocked_at: None,
            is_at_end: false,
            keepalive,
            held_limit: MAX_HELD_BYTES,
            unpaid_limit: MAX_UNPAID_BYTES,
            close_reason: None,
        }
    }

    /// Sets the limit of held request bytes above which reading stops.
    pub fn set_held_limit(&mut self, bytes: usize) {
        self.held_limit = bytes;
    }

    /// Sets the limit of unread small messages, in bytes, above which reading stops.
    pub fn set_unpaid_limit(&mut self, bytes: usize) {
        self.unpaid_limit = bytes;
    }

    /// Handle for sending to this peer.
    pub fn outbox(&self) -> &Outbox {
        &self.outbox
    }

    /// Includes `"jsonrpc":"2.0"` in every later message, because this peer does.
    pub fn enable_version(&mut self) {
        self.says_version = true;
    }

    /// Close reason sent by the peer, if any.
    pub fn close_reason(&self) -> Option<&CloseReason> {
        self.close_reason.as_ref()
    }

    /// Prefix of the error text for a malformed message.
    pub fn describe(&self) -> String {
        self.wire.describe()
    }

    /// Waits for the next event and sends queued messages meanwhile; returns nothing useful after [`Event::Closed`].
    pub async fn next(&mut self) -> Event {
        poll_fn(|cx| self.poll_event(cx)).await
    }

    /// Waits until the peer has closed its side: closing a socket with unread input resets it and discards the close frame.
    pub async fn linger(&mut self, timeout: Duration) {
        let drained = poll_fn(|cx| self.wire.poll_drain(cx));
        // A peer that keeps sending beyond the timeout loses the close frame.
        let _ = tokio::time::timeout(timeout, drained).await;
    }

    fn poll_event(&mut self, cx: &mut Context) -> Poll<Event> {
        loop {
            if let Some(finished) = self.outbox.take_finished() {
                return Poll::Ready(Event::Finished(finished));
            }
            let backlog = self.outbox.backlog();
            let may_read = self.may_read(&backlog);
            if backlog.unsent_reply_bytes >= WRITE_FIRST_BYTES && self.blocked_at.is_none() {
                self.reads_left = 0;
            }
            if may_read && self.reads_left > 0 {
                match self.wire.poll_next(cx) {
                    Poll::Ready(Some(Ok(received))) => {
                        self.handle_activity();
                        self.reads_left -= 1;
                        match received {
                            Received::Message(message) => {
                                return Poll::Ready(Event::Message(message));
                            }
                            Received::Pong(number) => self.outbox.handle_pong(number),
                            Received::Life => {}
                            Received::Closing(reason) => self.close_reason = Some(reason),
                        }
                        continue;
                    }
                    Poll::Ready(Some(Err(error))) => {
                        // A close frame may be buffered; send it only if that does not block.
                        let _ = self.wire.poll_flush(cx);
                        return self.end(Ended::Broken(error));
                    }
                    Poll::Ready(None) if self.wire.can_half_close() => {
                        self.is_at_end = true;
                        return Poll::Ready(Event::EndOfInput);
                    }
                    Poll::Ready(None) => {
                        let _ = self.wire.poll_flush(cx);
                        return self.end(Ended::ByPeer);
                    }
                    Poll::Pending => {}
                }
            }
            let has_paused = self.reads_left == 0;
            self.reads_left = READS_PER_WRITE;
            match self.poll_write(cx) {
                Poll::Ready(Err(error)) => return self.end(Ended::Broken(error)),
                Poll::Ready(Ok(())) => {
                    if let Some(reason) = self.closing.take() {
                        return self.end(Ended::ByUs(reason));
                    }
                }
                Poll::Pending => {}
            }
            match self.poll_keepalive(cx, may_read) {
                Pings::None => {}
                Pings::Due => continue,
                Pings::Unanswered => {
                    // A peer that was only suspended can learn the reason; send it only if that does not block.
                    let _ = self.wire.start_close(&CloseReason::silent());
                    let _ = self.wire.poll_flush(cx);
                    return self.end(Ended::Silent);
                }
            }
            // Writing may have freed space, so that reading can continue.
            let has_room = !may_read && self.may_read(&self.outbox.backlog());
            let may_read_again = has_paused || has_room;
            if !may_read_again && self.outbox.fall_asleep(cx, self.writing.is_some()) {
                return Poll::Pending;
            }
        }
    }

    fn may_read(&self, backlog: &Backlog) -> bool {
        self.closing.is_none()
            && !self.is_at_end
            && backlog.unpaid_bytes < self.unpaid_limit
            && backlog.held_bytes < self.held_limit
    }

    /// Ready when everything queued so far has been sent.
    fn poll_write(&mut self, cx: &mut Context) -> Poll<Result<(), WireError>> {
        loop {
            if self.writing.is_none() && self.closing.is_none() {
                let Some(batch) = self.outbox.next_batch() else {
                    return Poll::Ready(Ok(()));
                };
                for message in batch.messages {
                    // The header of a binary message keeps its form: generic JSON-RPC libraries ask for none.
                    let message = match self.says_version && !binary::is_binary(&message) {
                        true => envelope::with_version(&message).into(),
                        false => message,
                    };
                    self.wire.start_send(message)?;
                }
                let mut ping = batch.ping;
                if !self.wire.can_ping() {
                    self.handed_over = batch.marks;
                } else if !batch.marks.is_empty() {
                    ping = Some(self.outbox.number_marks(batch.marks));
                }
                if let Some(number) = ping {
                    self.wire.start_ping(number)?;
                }
                if let Some(reason) = batch.close {
                    self.wire.start_close(&reason)?;
                    self.closing = Some(reason);
                }
                self.writing = Some(batch.slots);
            }
            if self.writing.is_some() {
                match self.wire.poll_flush(cx) {
                    Poll::Ready(result) => result?,
                    Poll::Pending => {
                        self.blocked_at.get_or_insert(self.wire.bytes_sent());
                        return Poll::Pending;
                    }
                }
                self.writing = None;
                for mark in self.handed_over.drain(..) {
                    // The waiting caller may have been dropped.
                    let _ = mark.send(());
                }
                self.handle_progress();
                self.blocked_at = None;
            }
            if self.closing.is_some() {
                return Poll::Ready(Ok(()));
            }
        }
    }

    fn poll_keepalive(&mut self, cx: &mut Context, may_read: bool) -> Pings {
        if self.keepalive.as_mut().is_some_and(|timer| timer.is_due(cx)) {
            self.handle_progress();
            // Reading is paused, so a missing pong proves nothing.
            if !may_read {
                self.handle_activity();
            }
        }
        let Some(timer) = &mut self.keepalive else { return Pings::None };
        let mut pings = Pings::None;
        while let Poll::Ready(action) = timer.poll(cx) {
            match action {
                KeepaliveAction::GiveUp => return Pings::Unanswered,
                KeepaliveAction::Ping => {
                    self.outbox.ping();
                    pings = Pings::Due;
                }
            }
        }
        pings
    }

    /// Progress on a full socket counts as activity: an empty one accepts data without any peer.
    fn handle_progress(&mut self) {
        let sent = self.wire.bytes_sent();
        if self.blocked_at.is_some_and(|at| sent > at) {
            self.blocked_at = Some(sent);
            self.handle_activity();
        }
    }

    fn handle_activity(&mut self) {
        if let Some(timer) = &mut self.keepalive {
            timer.handle_activity();
        }
    }

    fn end(&mut self, ended: Ended) -> Poll<Event> {
        self.outbox.shut();
        Poll::Ready(Event::Closed(ended))
    }
}

enum Pings {
    None,
    /// A ping was queued.
    Due,
    Unanswered,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.outbox.shut();
    }
}
