//! One HTTP/1.1 connection, driven by whoever uses it.
//!
//! Nothing is read ahead: while its user waits for a slow client, the socket is not read, and so the other side slows
//! down as well. Dropping a link closes its connection.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

use bytes::{Bytes, BytesMut};
use hyper::body::{Body, Incoming};
use hyper::client::conn::TrySendError;
use hyper::client::conn::http1::{self, Connection, SendRequest};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;

use super::bell::Bell;
use super::carrier::{Carrier, HeadRoom, ReadToEnd};
use super::upload::RequestBody;

/// Large enough for few system calls per megabyte, small enough to hold for every exchange; also bounds the headers.
const BUFFER_BYTES: usize = 256 * 1024;
/// Pieces of a body that arrive together go out together, up to this size.
const GATHERED_BYTES: usize = 64 * 1024;

/// One HTTP/1.1 connection.
pub struct Link {
    sender: SendRequest<RequestBody>,
    /// Gone once the connection has ended.
    driver: Option<Pin<Box<Driver>>>,
    head_room: HeadRoom,
    bell: Bell,
}

type Driver = Connection<TokioIo<ReadToEnd>, RequestBody>;

impl Link {
    /// Speaks HTTP on a fresh connection.
    pub async fn open(carrier: Box<dyn Carrier>) -> hyper::Result<Self> {
        let head_room = HeadRoom::default();
        let (sender, driver) = http1::Builder::new()
            .max_buf_size(BUFFER_BYTES)
            .handshake(TokioIo::new(ReadToEnd::new(carrier, head_room.clone())))
            .await?;
        Ok(Self { sender, driver: Some(Box::pin(driver)), head_room, bell: Bell::default() })
    }

    /// Sends a request and waits for the head of its answer; a request that was not sent at all comes back.
    pub async fn send(
        &mut self,
        request: Request<RequestBody>,
    ) -> Result<Response<Incoming>, TrySendError<Request<RequestBody>>> {
        self.bell.disarm();
        self.head_room.limit();
        let mut answer = pin!(self.sender.try_send_request(request));
        let driver = &mut self.driver;
        let answered = poll_fn(|cx| {
            poll_driver(driver, cx);
            answer.as_mut().poll(cx)
        })
        .await;
        self.head_room.lift();
        answered
    }

    /// Lets the connection work for as long as it can, and says whether it would take another request; `keeper` is woken
    /// when that may have changed, unless it has been sent one.
    pub fn poll_idle(&mut self, keeper: &Waker) -> bool {
        poll_driver(&mut self.driver, &mut Context::from_waker(self.bell.arm(keeper)));
        self.driver.is_some() && self.sender.is_ready()
    }

    /// Polls a body, letting the connection work for it.
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
                    // Trailers have no place in this protocol.
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
    // How it ended is told to whoever waits for an answer.
    if driver.as_mut().is_some_and(|driver| driver.as_mut().poll(cx).is_ready()) {
        *driver = None;
    }
}

/// The body of an answer, with the connection that it comes from.
pub struct AnswerBody {
    link: Link,
    incoming: Incoming,
    /// What came after pieces that have yet to be taken.
    end: Option<Option<hyper::Error>>,
}

impl AnswerBody {
    /// The body of the answer that `link` has just given.
    pub fn new(link: Link, incoming: Incoming) -> Self {
        Self { link, incoming, end: None }
    }

    /// How long it will be, if that was announced.
    pub fn announced_length(&self) -> Option<u64> {
        self.incoming.size_hint().exact()
    }

    /// Whether nothing more comes.
    pub fn is_at_end(&self) -> bool {
        self.incoming.is_end_stream()
    }

    /// What has arrived, as soon as anything has; none at the end.
    pub async fn next(&mut self) -> Option<hyper::Result<Bytes>> {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    fn poll_next(&mut self, cx: &mut Context) -> Poll<Option<hyper::Result<Bytes>>> {
        if let Some(end) = self.end.take() {
            return Poll::Ready(end.map(Err));
        }
        let first = match self.link.poll_frame(&mut self.incoming, cx) {
            Poll::Ready(Some(Ok(first))) => first,
            other => return other,
        };
        if first.len() >= GATHERED_BYTES {
            return Poll::Ready(Some(Ok(first)));
        }
        let mut gathered = Gathered::One(first);
        while gathered.len() < GATHERED_BYTES {
            match self.link.poll_frame(&mut self.incoming, cx) {
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

    /// The connection; it can be used again if all of this has been read.
    pub fn into_link(self) -> Link {
        self.link
    }
}

/// Pieces of a body; a single one is not copied.
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
