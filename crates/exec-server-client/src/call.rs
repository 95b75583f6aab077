//! A pending call: the future of its answer. Dropping it frees the call's slot.

use std::borrow::Cow;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use exec_server_protocol::errors::RpcError;
use exec_server_transport::connection::InMessage;
use exec_server_transport::spans::Span;
use tokio::sync::oneshot;

use crate::connection::Shared;
use crate::error::ExecServerError;

/// The outcome of a call.
pub(crate) enum Answer {
    /// The server sent a result.
    Result(Reply),
    /// The server sent an error.
    Error(RpcError),
    /// The connection ended before an answer.
    Lost(Arc<str>),
}

/// A result as a range of the received message, so that it is not copied.
pub(crate) struct Reply {
    message: InMessage,
    start: usize,
    len: usize,
}

impl Reply {
    /// The result that starts `start` bytes into the message.
    pub(crate) fn new(message: InMessage, start: usize, len: usize) -> Self {
        Self { message, start, len }
    }

    /// The raw JSON of the result.
    pub(crate) fn text(&self) -> &str {
        self.message.text().get(self.start..self.start + self.len).unwrap_or("null")
    }

    /// The bytes of a binary message, which are the value of `chunk`.
    pub(crate) fn chunk(&self) -> Option<&[u8]> {
        self.message.chunk()
    }
}

/// A call that waits for its answer; dropping it frees the slot, and a later answer is ignored.
pub(crate) struct PendingCall {
    shared: Arc<Shared>,
    method: &'static str,
    id: i64,
    answer: oneshot::Receiver<Answer>,
    is_done: bool,
    /// Ends with the call.
    span: Span,
}

impl PendingCall {
    pub(crate) fn new(
        shared: Arc<Shared>,
        method: &'static str,
        id: i64,
        answer: oneshot::Receiver<Answer>,
        span: Span,
    ) -> Self {
        Self { shared, method, id, answer, is_done: false, span }
    }
}

impl Future for PendingCall {
    type Output = Result<Reply, ExecServerError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context) -> Poll<Self::Output> {
        let answer = ready!(Pin::new(&mut self.answer).poll(cx));
        self.is_done = true;
        let method = self.method;
        let mut span = std::mem::take(&mut self.span);
        Poll::Ready(match answer {
            Ok(Answer::Result(reply)) => {
                self.shared.ignored.check(method, &reply);
                Ok(reply)
            }
            Ok(Answer::Error(error)) => {
                span.set("rpc.jsonrpc.error_code", error.code);
                let kind = error.data.as_ref().map(|data| data.kind.clone());
                span.fail(kind.map_or(Cow::Borrowed("error"), Cow::Owned));
                Err(error.into())
            }
            Ok(Answer::Lost(reason)) => {
                span.fail("connection_lost");
                Err(ExecServerError::Ambiguous { method, reason })
            }
            Err(_) => {
                span.fail("connection_lost");
                Err(ExecServerError::Ambiguous { method, reason: "closed".into() })
            }
        })
    }
}

impl Drop for PendingCall {
    fn drop(&mut self) {
        if !self.is_done {
            self.span.set("exec_server.cancelled", true);
            self.shared.routes().forget_call(self.id);
        }
    }
}
