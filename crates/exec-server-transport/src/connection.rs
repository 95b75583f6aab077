//! One peer: what it sends comes out of [`Connection::next`], which also sends what is in the [`Outbox`].
//!
//! Owner: the task that serves the peer; it alone reads and writes. Reading goes on while a peer takes nothing, so a
//! client that is stuck behind a flood can still end it. What has been read is handled before anything is written, so
//! the answers to pipelined requests leave in one write.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use exec_server_machines::keepalive::{Keepalive, KeepaliveAction};
use exec_server_protocol::envelope::{self, Incoming, MalformedMessage};
use tokio::time::Sleep;

use crate::outbox::{Backlog, CloseReason, Outbox, Slot};

/// Bytes to messages and back, for one kind of carrier.
pub trait Wire: Send + Unpin {
    /// The next thing that the peer sent; none at its end.
    fn poll_next(&mut self, cx: &mut Context) -> Poll<Option<Result<Received, WireError>>>;
    /// Takes a message to be sent.
    fn start_send(&mut self, message: Bytes) -> Result<(), WireError>;
    /// Sends what was taken; the count of bytes that went out grows with every success.
    fn poll_flush(&mut self, cx: &mut Context) -> Poll<Result<(), WireError>>;
    /// Takes a request for a sign of life, where the carrier has such a thing.
    fn start_ping(&mut self, number: u64) -> Result<(), WireError>;
    /// Takes a farewell, where the carrier has such a thing.
    fn start_close(&mut self, reason: &CloseReason) -> Result<(), WireError>;
    /// How many bytes have gone out so far.
    fn bytes_sent(&self) -> u64;
    /// Sends what was taken, then takes and forgets what the peer still sends; ready at its end.
    fn poll_drain(&mut self, cx: &mut Context) -> Poll<()>;
    /// Whether the carrier can ask for a sign of life.
    fn can_ping(&self) -> bool;
    /// Whether a peer that sends nothing more may still take answers.
    fn can_half_close(&self) -> bool;
    /// How a malformed message is introduced to the peer.
    fn describe(&self) -> String;
}

/// Something that the peer sent.
#[derive(Debug)]
pub enum Received {
    /// A message.
    Message(InMessage),
    /// The answer to a ping, with its number.
    Pong(u64),
    /// Only a sign of life.
    Life,
}

/// A message from the peer.
#[derive(Debug)]
pub enum InMessage {
    /// Bytes that may or may not be text.
    Bytes(Bytes),
    /// A websocket text message, which was checked on its way in.
    Text(tokio_websockets::Message),
}

impl InMessage {
    /// The text of the message; empty if it is none.
    pub fn text(&self) -> &str {
        match self {
            Self::Bytes(bytes) => std::str::from_utf8(bytes).unwrap_or_default(),
            Self::Text(message) => message.as_text().unwrap_or_default(),
        }
    }

    /// Reads the message.
    pub fn decode(&self) -> Result<Incoming<'_>, MalformedMessage> {
        match self {
            Self::Bytes(bytes) => envelope::decode(bytes),
            Self::Text(message) => match message.as_text() {
                Some(text) => envelope::decode_text(text),
                None => envelope::decode(message.as_payload()),
            },
        }
    }
}

/// Why nothing more can be exchanged.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    /// The carrier broke.
    #[error("the link broke: {0}")]
    Io(#[from] io::Error),
    /// The peer broke the carrier's rules; it has been told.
    #[error("protocol violation: {0}")]
    Protocol(String),
}

/// What happened on a connection.
#[derive(Debug)]
pub enum Event {
    /// The peer sent a message.
    Message(InMessage),
    /// So many requests have been answered.
    Finished(usize),
    /// The peer has nothing more to ask, but still takes answers.
    EndOfInput,
    /// The connection is over.
    Closed(Ended),
}

/// How a connection ended.
#[derive(Debug)]
pub enum Ended {
    /// The peer ended it in order.
    ByPeer,
    /// We ended it.
    ByUs(CloseReason),
    /// The peer gave no sign of life.
    Silent,
    /// It broke.
    Broken(WireError),
}

/// How often a peer is asked for a sign of life, and how long it has to give one.
#[derive(Debug, Clone, Copy)]
pub struct PingTimes {
    /// From ping to ping.
    pub interval: Duration,
    /// From a ping to the end.
    pub deadline: Duration,
}

/// Messages handled before what they caused is written, when a peer never pauses.
const READS_PER_WRITE: usize = 64;
/// Replies of this size are written before more is read, so that the peer can begin with them and the memory is soon
/// free; unless the peer takes nothing.
const WRITE_FIRST_BYTES: usize = 512 * 1024;
/// A peer that sends content faster than it can be stored is not read any further.
const MAX_HELD_BYTES: usize = 64 * 1024 * 1024;
/// A peer that takes none of its replies is not read any further.
const MAX_UNSENT_REPLY_BYTES: usize = 32 * 1024 * 1024;

/// One peer.
pub struct Connection {
    wire: Box<dyn Wire>,
    outbox: Outbox,
    reads_left: usize,
    /// Slots of the batch that is being written; empty when none is.
    writing: Option<Vec<Slot>>,
    closing: Option<CloseReason>,
    /// What had gone out when a write last met a full socket.
    blocked_at: Option<u64>,
    is_at_end: bool,
    keepalive: Option<(Keepalive, Pin<Box<Sleep>>)>,
    held_limit: usize,
}

impl Connection {
    /// Takes over a carrier.
    pub fn new(wire: Box<dyn Wire>, pings: PingTimes) -> Self {
        let keepalive = wire.can_ping().then(|| {
            let keepalive = Keepalive::new(Instant::now(), pings.interval, pings.deadline);
            let sleep = tokio::time::sleep_until(keepalive.poll_timeout().into());
            (keepalive, Box::pin(sleep))
        });
        Self {
            wire,
            outbox: Outbox::default(),
            reads_left: READS_PER_WRITE,
            writing: None,
            closing: None,
            blocked_at: None,
            is_at_end: false,
            keepalive,
            held_limit: MAX_HELD_BYTES,
        }
    }

    /// Reads no further while more bytes than this are held.
    pub fn set_held_limit(&mut self, bytes: usize) {
        self.held_limit = bytes;
    }

    /// A handle to send to this peer.
    pub fn outbox(&self) -> &Outbox {
        &self.outbox
    }

    /// How a malformed message is introduced to the peer.
    pub fn describe(&self) -> String {
        self.wire.describe()
    }

    /// What happens next; sends meanwhile. After [`Event::Closed`] there is nothing more.
    pub async fn next(&mut self) -> Event {
        poll_fn(|cx| self.poll_event(cx)).await
    }

    /// After the end: waits until the peer has hung up too, because a socket that is closed with unread input takes
    /// the farewell down with it.
    pub async fn linger(&mut self, patience: Duration) {
        let drained = poll_fn(|cx| self.wire.poll_drain(cx));
        // A peer that goes on for longer has only itself to blame.
        let _ = tokio::time::timeout(patience, drained).await;
    }

    fn poll_event(&mut self, cx: &mut Context) -> Poll<Event> {
        loop {
            let finished = self.outbox.take_finished();
            if finished > 0 {
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
                        self.handle_life();
                        self.reads_left -= 1;
                        match received {
                            Received::Message(message) => {
                                return Poll::Ready(Event::Message(message));
                            }
                            Received::Pong(number) => self.outbox.handle_pong(number),
                            Received::Life => {}
                        }
                        continue;
                    }
                    Poll::Ready(Some(Err(error))) => {
                        // The carrier may have a farewell to say; it is sent if it can be sent at once.
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
                    // A peer that was only asleep should learn why; it is sent if it can be sent at once.
                    let _ = self.wire.start_close(&CloseReason::silent());
                    let _ = self.wire.poll_flush(cx);
                    return self.end(Ended::Silent);
                }
            }
            // What was written may have made room to read again.
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
            && backlog.unsent_reply_bytes < MAX_UNSENT_REPLY_BYTES
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
                    self.wire.start_send(message)?;
                }
                if let Some(number) = batch.ping {
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
                self.handle_progress();
                self.blocked_at = None;
            }
            if self.closing.is_some() {
                return Poll::Ready(Ok(()));
            }
        }
    }

    fn poll_keepalive(&mut self, cx: &mut Context, may_read: bool) -> Pings {
        let is_due =
            self.keepalive.as_mut().is_some_and(|(_, sleep)| sleep.as_mut().poll(cx).is_ready());
        if is_due {
            self.handle_progress();
            // Whoever is not listened to cannot be heard.
            if !may_read {
                self.handle_life();
            }
        }
        let Some((keepalive, sleep)) = &mut self.keepalive else { return Pings::None };
        let mut pings = Pings::None;
        while sleep.as_mut().poll(cx).is_ready() {
            match keepalive.handle_timeout(Instant::now()) {
                Some(KeepaliveAction::GiveUp) => return Pings::Unanswered,
                Some(KeepaliveAction::Ping) => {
                    self.outbox.ping();
                    pings = Pings::Due;
                }
                None => {}
            }
            sleep.as_mut().reset(keepalive.poll_timeout().into());
        }
        pings
    }

    /// An empty socket takes a ping from us without any peer; a full one takes more only if the peer took something.
    fn handle_progress(&mut self) {
        let sent = self.wire.bytes_sent();
        if self.blocked_at.is_some_and(|at| sent > at) {
            self.blocked_at = Some(sent);
            self.handle_life();
        }
    }

    fn handle_life(&mut self) {
        if let Some((keepalive, _)) = &mut self.keepalive {
            keepalive.handle_life();
        }
    }

    fn end(&mut self, ended: Ended) -> Poll<Event> {
        self.outbox.shut();
        Poll::Ready(Event::Closed(ended))
    }
}

enum Pings {
    None,
    /// There is something new to write.
    Due,
    Unanswered,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.outbox.shut();
    }
}
