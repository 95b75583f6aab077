//! The body of a request: whole, or in chunks that the client sends during the exchange.
//!
//! A chunk is acknowledged when hyper takes it for the socket, so backpressure of the server reaches the client.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use exec_server_protocol::http::HttpRequestBodyResponse;
use hyper::body::{Body, Frame, SizeHint};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::budget::Taken;
use crate::errors::RequestError;
use crate::reply::Reply;

/// The body of a request, as hyper sends it.
#[derive(Debug)]
pub enum RequestBody {
    /// No body.
    None,
    /// The whole body; `None` once hyper has taken it.
    Whole(Option<Bytes>),
    /// Chunks of `http/requestBody`.
    Streamed(Chunks),
}

/// Receives the chunks of a streamed body from the client.
#[derive(Debug)]
pub struct Upload {
    next_seq: u64,
    /// The bytes still expected, if the request has a content-length.
    missing: Option<u64>,
    /// `None` after the last chunk.
    chunks: Option<UnboundedSender<Chunk>>,
}

/// Received chunks that hyper has not taken yet; bounded by the budget of the connection.
#[derive(Debug)]
pub struct Chunks {
    waiting: UnboundedReceiver<Chunk>,
    has_ended: bool,
}

/// One `http/requestBody`.
#[derive(Debug)]
pub struct Chunk {
    /// Consecutive, from 1.
    pub seq: u64,
    /// Counted in the budget until the socket has written them.
    pub bytes: Bytes,
    pub is_last: bool,
    /// Counts the overhead of the chunk until hyper takes it.
    pub held: Taken,
    /// Acknowledges the chunk.
    pub reply: Reply,
}

/// Creates both ends of a streamed body; `length` is its content-length.
pub fn upload(length: Option<u64>) -> (Upload, Chunks) {
    let (chunks, waiting) = unbounded_channel();
    let upload = Upload { next_seq: 1, missing: length, chunks: Some(chunks) };
    (upload, Chunks { waiting, has_ended: false })
}

impl Upload {
    /// Queues the next chunk; an invalid chunk changes nothing.
    pub fn handle_chunk(&mut self, chunk: Chunk) {
        if let Err(reason) = self.check(&chunk) {
            return chunk.reply.fail(&RequestError::InvalidParams(reason));
        }
        self.next_seq += 1;
        if let Some(missing) = &mut self.missing {
            *missing -= chunk.bytes.len() as u64;
        }
        let is_last = chunk.is_last;
        let sender = self.chunks.as_ref().expect("checked above");
        if let Err(refused) = sender.send(chunk) {
            refuse(refused.0);
        }
        if is_last {
            self.chunks = None;
        }
    }

    fn check(&self, chunk: &Chunk) -> Result<(), String> {
        if self.chunks.is_none() {
            return Err("the body of this request has already ended".to_owned());
        }
        if chunk.seq != self.next_seq {
            return Err(format!("received seq {}, expected {}", chunk.seq, self.next_seq));
        }
        let length = chunk.bytes.len() as u64;
        match self.missing {
            Some(missing) if length > missing => {
                Err("the body is longer than its content-length".to_owned())
            }
            Some(missing) if chunk.is_last && length < missing => {
                Err("the body is shorter than its content-length".to_owned())
            }
            _ => Ok(()),
        }
    }
}

fn refuse(chunk: Chunk) {
    chunk.reply.ok(&HttpRequestBodyResponse { accepted: false });
}

impl Drop for Chunks {
    fn drop(&mut self) {
        self.waiting.close();
        while let Ok(chunk) = self.waiting.try_recv() {
            refuse(chunk);
        }
    }
}

impl Chunks {
    fn poll_next(&mut self, cx: &mut Context) -> Poll<Option<io::Result<Bytes>>> {
        loop {
            if self.has_ended {
                return Poll::Ready(None);
            }
            let Some(chunk) = ready!(self.waiting.poll_recv(cx)) else {
                return Poll::Ready(Some(Err(io::ErrorKind::UnexpectedEof.into())));
            };
            let Chunk { bytes, is_last, held, reply, .. } = chunk;
            reply.ok(&HttpRequestBodyResponse { accepted: true });
            drop(held);
            self.has_ended = is_last;
            if !bytes.is_empty() {
                return Poll::Ready(Some(Ok(bytes)));
            }
        }
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        match self.get_mut() {
            Self::None => Poll::Ready(None),
            Self::Whole(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Self::Streamed(chunks) => chunks.poll_next(cx).map_ok(Frame::data),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::None => true,
            Self::Whole(bytes) => bytes.as_ref().is_none_or(Bytes::is_empty),
            Self::Streamed(chunks) => chunks.has_ended,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::None => SizeHint::with_exact(0),
            Self::Whole(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, Bytes::len) as u64),
            Self::Streamed(_) => SizeHint::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use exec_server_protocol::envelope::RequestId;
    use exec_server_protocol::limits::MAX_HTTP_HELD_BYTES;
    use exec_server_protocol::methods::Method;
    use exec_server_transport::outbox::Outbox;

    use super::super::budget::Budget;
    use super::*;
    use crate::metrics::Metrics;
    use crate::reply_memory::ReplyMemory;

    #[tokio::test]
    async fn a_chunk_counts_until_its_bytes_are_dropped() {
        let budget = Budget::default();
        let (mut upload, mut chunks) = upload(None);
        upload.handle_chunk(Chunk {
            seq: 1,
            bytes: budget.hold(vec![7; 1000]).unwrap(),
            is_last: true,
            held: budget.take(10).unwrap(),
            reply: reply(),
        });
        let has_room_beside = |bytes| budget.take(MAX_HTTP_HELD_BYTES - bytes).is_some();
        assert!(has_room_beside(1010) && !has_room_beside(1009));
        let taken = poll_fn(|cx| chunks.poll_next(cx)).await.unwrap().unwrap();
        assert!(has_room_beside(1000) && !has_room_beside(999));
        drop(taken);
        assert!(has_room_beside(0));
    }

    fn reply() -> Reply {
        let method = Method::HttpRequestBody;
        let timer = Metrics::default().request(method);
        Reply::new(
            RequestId::Integer(1),
            method,
            Outbox::default(),
            ReplyMemory::new(1, std::time::Duration::ZERO).open_account(),
            timer,
        )
    }
}
