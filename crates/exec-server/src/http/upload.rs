//! The body of a request: whole, or in chunks that a client sends while the exchange goes on.
//!
//! A chunk is answered when it is taken for the socket, so a client is as fast as the other side.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use exec_server_protocol::http::{HttpRequestBodyParams, HttpRequestBodyResponse};
use hyper::body::{Body, Frame, SizeHint};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::budget::Taken;
use crate::errors::RequestError;
use crate::reply::Reply;

/// The body of a request on its way to a socket.
#[derive(Debug)]
pub enum RequestBody {
    /// None at all.
    None,
    /// All of it, until it is taken.
    Whole(Option<Bytes>),
    /// What the client sends.
    Streamed(Chunks),
}

/// Where the chunks of a client go.
#[derive(Debug)]
pub struct Upload {
    next_seq: u64,
    /// How much is missing, if the length was announced.
    missing: Option<u64>,
    /// Gone after the last chunk.
    chunks: Option<UnboundedSender<Chunk>>,
}

/// Chunks that have come and not been taken; bounded by the budget of their connection.
#[derive(Debug)]
pub struct Chunks {
    waiting: UnboundedReceiver<Chunk>,
    has_ended: bool,
}

#[derive(Debug)]
struct Chunk {
    bytes: Bytes,
    is_last: bool,
    reply: Reply,
    /// Counts the bytes as long as they wait.
    held: Taken,
}

/// Both ends of a body that a client streams.
pub fn upload(length: Option<u64>) -> (Upload, Chunks) {
    let (chunks, waiting) = unbounded_channel();
    let upload = Upload { next_seq: 1, missing: length, chunks: Some(chunks) };
    (upload, Chunks { waiting, has_ended: false })
}

impl Upload {
    /// Takes the next chunk; one that is refused changes nothing.
    pub fn handle_chunk(&mut self, params: HttpRequestBodyParams, held: Taken, reply: Reply) {
        if let Err(reason) = self.check(&params) {
            return reply.fail(&RequestError::InvalidParams(reason));
        }
        let bytes = Bytes::from(params.chunk.0);
        self.next_seq += 1;
        if let Some(missing) = &mut self.missing {
            *missing -= bytes.len() as u64;
        }
        let chunk = Chunk { bytes, is_last: params.done, reply, held };
        let sender = self.chunks.as_ref().expect("checked above");
        if let Err(refused) = sender.send(chunk) {
            refuse(refused.0);
        }
        if params.done {
            self.chunks = None;
        }
    }

    fn check(&self, params: &HttpRequestBodyParams) -> Result<(), String> {
        if self.chunks.is_none() {
            return Err("the body of this request has already ended".to_owned());
        }
        if params.seq != self.next_seq {
            return Err(format!("received seq {}, expected {}", params.seq, self.next_seq));
        }
        match self.missing {
            Some(missing) if (params.chunk.0.len() as u64) > missing => {
                Err("the body is longer than its content-length".to_owned())
            }
            Some(missing) if params.done && (params.chunk.0.len() as u64) < missing => {
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
            let Chunk { bytes, is_last, reply, held } = chunk;
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
