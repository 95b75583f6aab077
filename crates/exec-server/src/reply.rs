//! The right and duty to answer one request.

use bytes::Bytes;
use exec_server_protocol::envelope::{self, RequestId};
use exec_server_protocol::limits::MAX_MESSAGE_BYTES;
use exec_server_protocol::methods::{Lane, Method};
use exec_server_transport::outbox::{Held, Outbox};
use exec_server_transport::text::MessageText;
use serde::Serialize;

use crate::errors::RequestError;
use crate::metrics::RequestTimer;

/// The right and duty to answer one request: dropped without an answer, it answers with an error.
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
    /// Lets the connection be read again once this is answered.
    held: Option<Held>,
}

impl Reply {
    /// A reply to the request `id` of the connection behind `outbox`.
    pub fn new(id: RequestId, method: Method, outbox: Outbox, timer: RequestTimer) -> Self {
        Self { inner: Some(Inner { id, outbox, lane: method.lane(), timer, held: None }) }
    }

    /// Counts the bytes of the request until it is answered.
    pub fn hold(&mut self, bytes: usize) {
        let inner = self.inner.as_mut().expect("not yet answered");
        inner.held = Some(inner.outbox.hold(bytes));
    }

    /// Answers with a result.
    pub fn ok(mut self, result: &impl Serialize) {
        let inner = self.inner.take().expect("answered once");
        let text = envelope::response(&inner.id, result);
        if text.len() > MAX_MESSAGE_BYTES {
            return inner.fail(&RequestError::ReplyTooLarge(text.len()));
        }
        inner.send(text, true);
    }

    /// The beginning of an answer whose result is then written by hand and given to [`Reply::ok_text`].
    pub fn begin_text(&self, capacity: usize) -> MessageText {
        const REST: usize = 128;
        let inner = self.inner.as_ref().expect("not yet answered");
        let mut text = MessageText::with_capacity(capacity + REST);
        text.push(&envelope::before_result(&inner.id));
        text
    }

    /// Answers with a text that [`Reply::begin_text`] began.
    pub fn ok_text(self, text: MessageText) {
        self.ok_text_holding(text, ());
    }

    /// The same, and `held` is let go of only when the text has been sent.
    pub fn ok_text_holding(mut self, mut text: MessageText, held: impl Send + 'static) {
        let inner = self.inner.take().expect("answered once");
        text.push(envelope::AFTER_RESULT);
        if text.len() > MAX_MESSAGE_BYTES {
            return inner.fail(&RequestError::ReplyTooLarge(text.len()));
        }
        inner.send(Bytes::from_owner(Holding { text, _held: held }), true);
    }

    /// Answers with an error.
    pub fn fail(mut self, error: &RequestError) {
        self.inner.take().expect("answered once").fail(error);
    }

    /// Answers with an error before the request was counted as running.
    pub fn fail_uncounted(mut self, error: &RequestError) {
        let mut inner = self.inner.take().expect("answered once");
        inner.lane = Lane::Control;
        inner.fail(error);
    }

    /// Answers with whichever it is.
    pub fn finish(self, result: Result<impl Serialize, RequestError>) {
        match result {
            Ok(result) => self.ok(&result),
            Err(error) => self.fail(&error),
        }
    }

    /// Where the answer goes.
    pub fn outbox(&self) -> &Outbox {
        &self.inner.as_ref().expect("not yet answered").outbox
    }
}

/// A text with what goes when it goes.
struct Holding<T> {
    text: MessageText,
    _held: T,
}

impl<T> AsRef<[u8]> for Holding<T> {
    fn as_ref(&self) -> &[u8] {
        self.text.as_ref()
    }
}

impl Inner {
    fn fail(self, error: &RequestError) {
        let text = envelope::error(&self.id, &error.to_rpc());
        self.send(text, false);
    }

    fn send(self, text: impl Into<Bytes>, is_ok: bool) {
        self.timer.finish(is_ok);
        drop(self.held);
        match self.lane {
            Lane::Control => self.outbox.push_reply(text),
            Lane::Ordinary => self.outbox.finish_request(text),
        }
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if let Some(inner) = self.inner.take() {
            inner.fail(&RequestError::Abandoned);
        }
    }
}
