//! What carries HTTP, and a write that fails while an answer may still lie there to be read.
//!
//! A server that has heard enough answers, closes, and resets the connection because of what it did not read. Whoever
//! is still writing learns of the reset first; the answer came before it.
//!
//! It also counts what comes before an answer has begun: provisional answers are skipped, however many there are, and
//! nobody else would notice that they never end.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// What carries HTTP: TCP, or TLS over it, or either through a proxy.
pub trait Carrier: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Carrier for T {}

/// A carrier on which a lost connection is noticed by reading: whatever came before the loss is read first.
pub struct ReadToEnd {
    carrier: Box<dyn Carrier>,
    /// Whether the other side is gone; from then on nothing is written.
    is_lost: bool,
    /// How that was noticed, until the reader has been told.
    loss: Option<io::Error>,
    head_room: HeadRoom,
}

/// Provisional answers and the longest head, and a buffer of the body behind it.
const MAX_BEFORE_ANSWER: usize = 1024 * 1024;

/// How many bytes may still be read before an answer has begun; shared with whoever waits for the answer.
#[derive(Debug, Clone)]
pub struct HeadRoom(Arc<AtomicUsize>);

impl Default for HeadRoom {
    fn default() -> Self {
        Self(Arc::new(AtomicUsize::new(usize::MAX)))
    }
}

impl HeadRoom {
    /// An answer is waited for.
    pub fn limit(&self) {
        self.0.store(MAX_BEFORE_ANSWER, Ordering::Relaxed);
    }

    /// It has begun, and may be of any length.
    pub fn lift(&self) {
        self.0.store(usize::MAX, Ordering::Relaxed);
    }

    fn is_used_up(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 0
    }

    fn take(&self, bytes: usize) {
        // Nobody else changes it: a connection is driven by whoever waits for the answer.
        let left = self.0.load(Ordering::Relaxed);
        if left != usize::MAX {
            self.0.store(left.saturating_sub(bytes), Ordering::Relaxed);
        }
    }
}

/// The answer does not begin, however much is read.
#[derive(Debug, thiserror::Error)]
#[error("no answer among everything that came")]
struct EndlessHead;

/// Whether that is what is wrong.
pub fn is_endless_head(error: &hyper::Error) -> bool {
    let io = std::error::Error::source(error).and_then(|source| source.downcast_ref::<io::Error>());
    io.and_then(io::Error::get_ref).is_some_and(|inner| inner.is::<EndlessHead>())
}

impl ReadToEnd {
    /// Nothing is lost yet.
    pub fn new(carrier: Box<dyn Carrier>, head_room: HeadRoom) -> Self {
        Self { carrier, is_lost: false, loss: None, head_room }
    }

    /// Writes, unless the other side is gone: then the reader learns it at the end of what came.
    fn write<T>(
        &mut self,
        write: impl FnOnce(Pin<&mut Box<dyn Carrier>>) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if self.is_lost {
            return Poll::Pending;
        }
        match ready!(write(Pin::new(&mut self.carrier))) {
            Err(error) if is_loss(&error) => {
                (self.is_lost, self.loss) = (true, Some(error));
                // A reader never waits for long now: both directions have ended.
                Poll::Pending
            }
            result => Poll::Ready(result),
        }
    }
}

fn is_loss(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset};
    matches!(error.kind(), BrokenPipe | ConnectionAborted | ConnectionReset)
}

impl AsyncRead for ReadToEnd {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context,
        buffer: &mut ReadBuf,
    ) -> Poll<io::Result<()>> {
        if self.head_room.is_used_up() {
            return Poll::Ready(Err(io::Error::other(EndlessHead)));
        }
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.carrier).poll_read(cx, buffer))?;
        self.head_room.take(buffer.filled().len() - before);
        // The system tells of a loss once, and it told the writer.
        match self.loss.take_if(|_| buffer.filled().len() == before) {
            Some(error) => Poll::Ready(Err(error)),
            None => Poll::Ready(Ok(())),
        }
    }
}

impl AsyncWrite for ReadToEnd {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.write(|carrier| carrier.poll_write(cx, bytes))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context,
        slices: &[io::IoSlice],
    ) -> Poll<io::Result<usize>> {
        self.write(|carrier| carrier.poll_write_vectored(cx, slices))
    }

    fn is_write_vectored(&self) -> bool {
        self.carrier.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context) -> Poll<io::Result<()>> {
        self.write(|carrier| carrier.poll_flush(cx))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context) -> Poll<io::Result<()>> {
        Pin::new(&mut self.carrier).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::task::Waker;

    use bytes::Bytes;
    use hyper::{Request, Response};

    use super::super::link::{AnswerBody, Link};
    use super::super::upload::RequestBody;
    use super::*;

    /// Takes a little of a request and is then reset; only then its answer can be read.
    struct Hasty {
        room: usize,
        answer: &'static [u8],
        reader: Option<Waker>,
    }

    impl AsyncRead for Hasty {
        fn poll_read(
            mut self: Pin<&mut Self>,
            cx: &mut Context,
            buffer: &mut ReadBuf,
        ) -> Poll<io::Result<()>> {
            if self.room > 0 {
                self.reader = Some(cx.waker().clone());
                return Poll::Pending;
            }
            buffer.put_slice(std::mem::take(&mut self.answer));
            Poll::Ready(Ok(()))
        }
    }

    impl AsyncWrite for Hasty {
        fn poll_write(
            mut self: Pin<&mut Self>,
            _: &mut Context,
            bytes: &[u8],
        ) -> Poll<io::Result<usize>> {
            let count = bytes.len().min(self.room);
            self.room -= count;
            if count == 0 {
                self.reader.take().into_iter().for_each(Waker::wake);
                return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
            }
            Poll::Ready(Ok(count))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    async fn post_to(
        answer: &'static [u8],
    ) -> Result<(Link, Response<hyper::body::Incoming>), String> {
        let mut link =
            Link::open(Box::new(Hasty { room: 1000, answer, reader: None })).await.unwrap();
        let body = RequestBody::Whole(Some(Bytes::from(vec![7; 100_000])));
        let request = Request::post("/").header("content-length", "100000").body(body).unwrap();
        match link.send(request).await {
            Ok(answer) => Ok((link, answer)),
            Err(error) => Err(format!("{:?}", error.into_error())),
        }
    }

    #[tokio::test]
    async fn an_answer_is_read_although_the_rest_of_the_request_cannot_be_written() {
        let (link, answer) =
            post_to(b"HTTP/1.1 413 No\r\ncontent-length: 8\r\n\r\ntoo much").await.unwrap();
        let (parts, incoming) = answer.into_parts();
        assert_eq!(parts.status, 413);
        let mut body = AnswerBody::new(link, incoming);
        assert_eq!(body.next().await.unwrap().unwrap(), "too much");
        assert!(body.next().await.is_none());
        let mut link = body.into_link();
        assert!(
            !poll_fn(|cx| Poll::Ready(link.poll_idle(cx.waker()))).await,
            "it cannot be used again"
        );
    }

    #[tokio::test]
    async fn without_an_answer_the_loss_is_what_went_wrong() {
        for broken in [&b""[..], b"HTTP/1.1 413"] {
            let error = post_to(broken).await.map(|_| ()).unwrap_err();
            assert!(error.contains("ConnectionReset"), "{error}");
        }
    }
}
