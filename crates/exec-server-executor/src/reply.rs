//! The pending reply to one request; every request gets exactly one reply.
//!
//! Memory for a large reply is reserved before the reply is produced: [`Reply::try_reserve`], or else
//! [`Reply::when_reserved`]. The reservation is released once the reply has been sent.

use std::sync::Arc;

use bytes::Bytes;
use exec_server_protocol::binary;
use exec_server_protocol::envelope::{self, RequestId};
use exec_server_protocol::limits::MAX_MESSAGE_BYTES;
use exec_server_protocol::methods::{Lane, Method};
use exec_server_transport::outbox::{Held, Outbox, Payment};
use exec_server_transport::spans::Span;
use exec_server_transport::text::MessageText;
use serde::Serialize;

use crate::audit::Pending;
use crate::errors::RequestError;
use crate::metrics::RequestTimer;
use crate::reply_memory::{Account, Room};
use crate::request_spans::fail_span;

/// Replies up to this size need no reservation, because the number of pending requests bounds their memory.
pub const SMALL_REPLY_BYTES: usize = 4 * 1024;

/// The pending reply to one request; dropping it unsent sends an internal error.
#[derive(Debug)]
pub struct Reply {
    inner: Option<Inner>,
}

#[derive(Debug)]
struct Inner {
    id: RequestId,
    outbox: Outbox,
    lane: Lane,
    timer: RequestTimer,
    account: Arc<Account>,
    /// Counts the request's bytes; reading from the connection may resume once this is dropped.
    held: Option<Held>,
    /// Unknown members of the request, reported only if the client asked for them.
    ignored: Vec<String>,
    /// Ends with the reply.
    span: Span,
    /// The audit record of the request, if it is recorded.
    audit: Option<Box<Pending>>,
    /// The reserved memory.
    room: Option<Room>,
}

impl Reply {
    /// Creates the reply to the request `id`, which is sent through `outbox`.
    pub fn new(
        id: RequestId,
        method: Method,
        outbox: Outbox,
        account: Arc<Account>,
        timer: RequestTimer,
    ) -> Self {
        let lane = method.lane();
        let (held, room, ignored, audit, span) = (None, None, Vec::new(), None, Span::default());
        let inner = Inner { id, outbox, lane, timer, account, held, room, ignored, audit, span };
        Self { inner: Some(inner) }
    }

    /// Counts the bytes of the request until the reply is sent.
    pub fn hold(&mut self, bytes: usize) {
        let inner = self.inner.as_mut().expect("not yet answered");
        inner.held = Some(inner.outbox.hold(bytes));
    }

    /// Ends this span with the reply.
    pub fn trace(&mut self, span: Span) {
        self.inner.as_mut().expect("not yet answered").span = span;
    }

    /// Records the request with its result.
    pub fn audit(&mut self, record: Pending) {
        self.inner.as_mut().expect("not yet answered").audit = Some(Box::new(record));
    }

    /// Lists these members in the result as `ignored`.
    pub fn report_ignored(&mut self, ignored: Vec<String>) {
        self.inner.as_mut().expect("not yet answered").ignored = ignored;
    }

    /// Reserves memory for a reply of this many bytes if it is available now.
    pub fn try_reserve(&mut self, bytes: usize) -> bool {
        let inner = self.inner.as_mut().expect("not yet answered");
        match &mut inner.room {
            _ if bytes <= SMALL_REPLY_BYTES => true,
            Some(room) => room.bytes() >= bytes || room.try_grow(bytes),
            None => {
                inner.room = inner.account.try_take(bytes);
                inner.room.is_some()
            }
        }
    }

    /// The bytes that the reply may use so far.
    pub fn room(&self) -> usize {
        let inner = self.inner.as_ref().expect("not yet answered");
        inner.room.as_ref().map_or(SMALL_REPLY_BYTES, Room::bytes)
    }

    /// Replaces the reservation by one that the caller has made.
    pub fn set_room(&mut self, room: Option<Room>) {
        self.inner.as_mut().expect("not yet answered").room = room;
    }

    /// Waits for memory for a reply of this many bytes; an earlier reservation is released first.
    pub async fn reserve(&mut self, bytes: usize) -> Result<(), RequestError> {
        let inner = self.inner.as_mut().expect("not yet answered");
        inner.room = None;
        if bytes > SMALL_REPLY_BYTES {
            inner.room = Some(inner.account.take(bytes, &inner.outbox).await?);
        }
        Ok(())
    }

    /// Calls `answer` now if memory for this many bytes is available, otherwise once it is.
    pub fn with_room(mut self, bytes: usize, answer: impl FnOnce(Self) + Send + 'static) {
        if self.try_reserve(bytes) { answer(self) } else { self.when_reserved(bytes, answer) }
    }

    /// Calls `answer` once memory for this many bytes is available; the request fails if the wait fails.
    pub fn when_reserved(mut self, bytes: usize, answer: impl FnOnce(Self) + Send + 'static) {
        let account = self.inner.as_ref().expect("not yet answered").account.clone();
        account.clone().spawn(async move {
            match self.reserve(bytes).await {
                Ok(()) => answer(self),
                Err(error) => self.fail(&error),
            }
        });
    }

    /// Sends a result.
    pub fn ok(mut self, result: &impl Serialize) {
        if !self.inner.as_ref().expect("not yet answered").ignored.is_empty() {
            return self.ok_sized(result, 0);
        }
        let inner = self.inner.take().expect("answered once");
        let text = envelope::response(&inner.id, result);
        if text.len() > MAX_TEXT_BYTES {
            return inner.fail(&RequestError::ReplyTooLarge(text.len()));
        }
        inner.send_text(text, true);
    }

    /// Sends a result of up to this many bytes; a failed allocation fails the request, not the server.
    pub fn ok_sized(self, result: &impl Serialize, bytes: usize) {
        match self.begin_text(bytes) {
            Ok(mut text) => {
                text.push_json(result);
                self.ok_text(text);
            }
            Err(error) => self.fail(&error),
        }
    }

    /// Begins a reply whose result the caller appends and then passes to [`Reply::ok_text`].
    pub fn begin_text(&self, capacity: usize) -> Result<MessageText, RequestError> {
        const REST: usize = 128;
        let inner = self.inner.as_ref().expect("not yet answered");
        let before = envelope::before_result(&inner.id);
        let mut text = MessageText::try_with_capacity(capacity + before.len() + REST)?;
        text.push(&before);
        Ok(text)
    }

    /// Whether the result may be a binary message; those have no room for ignored members.
    pub fn takes_binary(&self) -> bool {
        let inner = self.inner.as_ref().expect("not yet answered");
        inner.ignored.is_empty() && inner.outbox.takes_binary()
    }

    /// Begins a binary reply whose header has this result; the caller appends the bytes of its `chunk`.
    pub fn begin_binary(&self, capacity: usize, result: &str) -> Result<MessageText, RequestError> {
        let inner = self.inner.as_ref().expect("not yet answered");
        let before = envelope::before_result(&inner.id);
        let header = before.len() + result.len() + envelope::AFTER_RESULT.len();
        let mut message = MessageText::try_with_capacity(binary::PREFIX_BYTES + header + capacity)?;
        message.push_bytes(&binary::prefix(header));
        message.push(&before);
        message.push(result);
        message.push(envelope::AFTER_RESULT);
        Ok(message)
    }

    /// Sends a message that [`Reply::begin_binary`] began.
    pub fn ok_binary(mut self, message: MessageText) {
        self.inner.take().expect("answered once").send_result(message, ());
    }

    /// Sends a text that [`Reply::begin_text`] began.
    pub fn ok_text(self, text: MessageText) {
        self.ok_text_holding(text, ());
    }

    /// The same; `held` is dropped once the text has been sent.
    pub fn ok_text_holding(mut self, mut text: MessageText, held: impl Send + 'static) {
        let inner = self.inner.take().expect("answered once");
        if !inner.ignored.is_empty() {
            push_ignored(&mut text, &inner.ignored);
        }
        text.push(envelope::AFTER_RESULT);
        if text.len() > MAX_TEXT_BYTES {
            return inner.fail(&RequestError::ReplyTooLarge(text.len()));
        }
        inner.send_result(text, held);
    }

    /// Sends an error.
    pub fn fail(mut self, error: &RequestError) {
        self.inner.take().expect("answered once").fail(error);
    }

    /// Sends an error for a request that was never counted as running.
    pub fn fail_uncounted(mut self, error: &RequestError) {
        let mut inner = self.inner.take().expect("answered once");
        inner.lane = Lane::Control;
        inner.fail(error);
    }

    /// Sends the result or the error.
    pub fn finish(self, result: Result<impl Serialize, RequestError>) {
        match result {
            Ok(result) => self.ok(&result),
            Err(error) => self.fail(&error),
        }
    }

    /// The outbox of the connection that sent the request.
    pub fn outbox(&self) -> &Outbox {
        &self.inner.as_ref().expect("not yet answered").outbox
    }
}

/// Leaves room for the `jsonrpc` member that some clients want in every message.
const MAX_TEXT_BYTES: usize = MAX_MESSAGE_BYTES - envelope::VERSION_PREFIX.len();

/// Appends the member `ignored` to a result that is an object.
fn push_ignored(text: &mut MessageText, ignored: &[String]) {
    let bytes = text.as_ref();
    let [.., before, b'}'] = bytes else { return };
    let comma = if *before == b'{' { "" } else { "," };
    text.truncate(bytes.len() - 1);
    text.push(comma);
    text.push("\"ignored\":");
    text.push_json(&ignored);
    text.push("}");
}

/// A text and a value that is dropped together with it.
struct Holding<M, T> {
    text: M,
    _held: T,
}

impl<M: AsRef<[u8]>, T> AsRef<[u8]> for Holding<M, T> {
    fn as_ref(&self) -> &[u8] {
        self.text.as_ref()
    }
}

impl Inner {
    fn fail(mut self, error: &RequestError) {
        if let Some(record) = self.audit.take() {
            record.finish(Err(error));
        }
        fail_span(&mut self.span, error);
        let text = envelope::error(&self.id, &error.to_rpc());
        self.send_text(text, false);
    }

    fn send_result(mut self, text: MessageText, held: impl Send + 'static) {
        let room = self.take_room(text.memory());
        let payment = if room.is_some() { Payment::Paid } else { Payment::Unpaid };
        self.send(Bytes::from_owner(Holding { text, _held: (held, room) }), payment, true);
    }

    fn send_text(mut self, text: String, is_ok: bool) {
        match self.take_room(text.capacity()) {
            None => self.send(text, Payment::Unpaid, is_ok),
            room => {
                let text = Bytes::from_owner(Holding { text, _held: room });
                self.send(text, Payment::Paid, is_ok);
            }
        }
    }

    fn send(mut self, text: impl Into<Bytes>, payment: Payment, is_ok: bool) {
        self.timer.finish(is_ok);
        if let Some(record) = self.audit.take() {
            record.finish(Ok(()));
        }
        drop(self.held.take());
        match self.lane {
            Lane::Control => self.outbox.push_paid_reply(text, payment),
            Lane::Ordinary => self.outbox.finish_request(text, payment),
        }
    }

    /// Shrinks or grows the reservation to the real size of the text; a small text needs none.
    fn take_room(&mut self, memory: usize) -> Option<Room> {
        let mut room = self.room.take().filter(|_| memory > SMALL_REPLY_BYTES)?;
        room.set(memory);
        Some(room)
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if let Some(inner) = self.inner.take() {
            inner.fail(&RequestError::Abandoned);
        }
    }
}
