//! One HTTP/1.1 connection, driven by the exchange that uses it, or by the pool's sweeper while it is idle.
//!
//! The socket is read only while the exchange polls, so backpressure of a slow client reaches the server.
//! Dropping the value closes the connection.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

use bytes::{Bytes, BytesMut};
use hyper::body::{Body, Incoming};
use hyper::client::conn::TrySendError;
use hyper::client::conn::http1::{self, Connection, SendRequest};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;

use super::byte_stream::{ByteStream, HeaderBudget, ReadToEnd};
use super::idle_waker::IdleWaker;
use super::upload::RequestBody;

/// hyper's read buffer: few system calls per megabyte, and an acceptable size per exchange. Also bounds the headers.
const BUFFER_BYTES: usize = 256 * 1024;
/// Body chunks that arrive together are merged up to this size.
const GATHERED_BYTES: usize = 64 * 1024;

/// One HTTP/1.1 connection.
pub struct Http1Connection {
    sender: SendRequest<RequestBody>,
    /// `None` once the connection has ended.
    driver: Option<Pin<Box<Driver>>>,
    header_budget: HeaderBudget,
    idle_waker: IdleWaker,
}

type Driver = Connection<TokioIo<ReadToEnd>, RequestBody>;

impl Http1Connection {
    /// Starts HTTP/1.1 on a new byte stream.
    pub async fn open(stream: Box<dyn ByteStream>) -> hyper::Result<Self> {
        let header_budget = HeaderBudget::default();
        let (sender, driver) = http1::Builder::new()
            .max_buf_size(BUFFER_BYTES)
            .handshake(TokioIo::new(ReadToEnd::new(stream, header_budget.clone())))
            .await?;
        Ok(Self {
            sender,
            driver: Some(Box::pin(driver)),
            header_budget,
            idle_waker: IdleWaker::default(),
        })
    }

    /// Sends a request and awaits the response head; a request that was not sent at all is returned.
    pub async fn send(
        &mut self,
        request: Request<RequestBody>,
    ) -> Result<Response<Incoming>, TrySendError<Request<RequestBody>>> {
        self.idle_waker.disarm();
        self.header_budget.limit();
        let mut answer = pin!(self.sender.try_send_request(request));
        let driver = &mut self.driver;
        let answered = poll_fn(|cx| {
            poll_driver(driver, cx);
            answer.as_mut().poll(cx)
        })
        .await;
        self.header_budget.lift();
        answered
    }

    /// Drives an idle connection as far as possible and returns whether it accepts another request. `sweeper` is woken
    /// when that may have changed, until the next request is sent.
    pub fn poll_idle(&mut self, sweeper: &Waker) -> bool {
        poll_driver(&mut self.driver, &mut Context::from_waker(self.idle_waker.arm(sweeper)));
        self.driver.is_some() && self.sender.is_ready()
    }

    /// Polls a body while driving the connection.
    fn poll_frame(
        &mut self,
        body: &mut Incoming,
        cx: &mut Context,
    ) -> Poll<Option<hyper::Result<Bytes>>> {
        loop {
            let polled = match Pin::new(&mut *body).poll_frame(cx) {
                Poll::Pending => {
                    poll_driver(&mut self.driver, cx);
                    Pin::new(&mut *body).poll_frame(cx)
                }
                ready => ready,
            };
            match polled {
                Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                    Ok(data) => return Poll::Ready(Some(Ok(data))),
                    // Trailers have no representation in this protocol.
                    Err(_) => continue,
                },
                Poll::Ready(Some(Err(error))) => return Poll::Ready(Some(Err(error))),
                Poll::Ready(None) => return Poll::Ready(None),
                Poll::Pending => return Poll::Pending,
            }
        }
    }
}

fn poll_driver(driver: &mut Option<Pin<Box<Driver>>>, cx: &mut Context) {
    // The result is not needed: hyper delivers an error to the pending request or body as well.
    if driver.as_mut().is_some_and(|driver| driver.as_mut().poll(cx).is_ready()) {
        *driver = None;
    }
}

/// A response body together with its connection.
pub struct AnswerBody {
    connection: Http1Connection,
    incoming: Incoming,
    /// The end of the body, or its error, if it was reached while gathering; the next poll returns it.
    end: Option<Option<hyper::Error>>,
}

impl AnswerBody {
    /// The body of the response that `connection` has just returned.
    pub fn new(connection: Http1Connection, incoming: Incoming) -> Self {
        Self { connection, incoming, end: None }
    }

    /// The exact length, if the head determines it.
    pub fn announced_length(&self) -> Option<u64> {
        self.incoming.size_hint().exact()
    }

    /// Whether the body has ended.
    pub fn is_at_end(&self) -> bool {
        self.incoming.is_end_stream()
    }

    /// Waits for bytes and returns all that are available, up to about `GATHERED_BYTES`; `None` at the end.
    pub async fn next(&mut self) -> Option<hyper::Result<Bytes>> {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    fn poll_next(&mut self, cx: &mut Context) -> Poll<Option<hyper::Result<Bytes>>> {
        if let Some(end) = self.end.take() {
            return Poll::Ready(end.map(Err));
        }
        let first = match self.connection.poll_frame(&mut self.incoming, cx) {
            Poll::Ready(Some(Ok(first))) => first,
            other => return other,
        };
        if first.len() >= GATHERED_BYTES {
            return Poll::Ready(Some(Ok(first)));
        }
        let mut gathered = Gathered::One(first);
        while gathered.len() < GATHERED_BYTES {
            match self.connection.poll_frame(&mut self.incoming, cx) {
                Poll::Ready(Some(Ok(more))) => gathered = gathered.and(&more),
                Poll::Ready(end) => {
                    self.end = Some(end.and_then(Result::err));
                    break;
                }
                Poll::Pending => break,
            }
        }
        Poll::Ready(Some(Ok(gathered.into_bytes())))
    }

    /// Returns the connection, which is reusable if the body has been read to its end.
    pub fn into_connection(self) -> Http1Connection {
        self.connection
    }
}

/// Collected chunks of a body; a single one is not copied.
enum Gathered {
    One(Bytes),
    Many(BytesMut),
}

impl Gathered {
    fn len(&self) -> usize {
        match self {
            Self::One(bytes) => bytes.len(),
            Self::Many(bytes) => bytes.len(),
        }
    }

    fn and(self, more: &Bytes) -> Self {
        let mut many = match self {
            Self::One(first) => BytesMut::from(first),
            Self::Many(many) => many,
        };
        many.extend_from_slice(more);
        Self::Many(many)
    }

    fn into_bytes(self) -> Bytes {
        match self {
            Self::One(bytes) => bytes,
            Self::Many(bytes) => bytes.freeze(),
        }
    }
}
