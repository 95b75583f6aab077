//! Byte stream of an HTTP connection that keeps reading after a write error.
//!
//! A server may respond early (413), close, and reset the connection because of the unread body. The write then fails
//! before the response has been read; the stream keeps reading, so that the response is not lost.
//!
//! The stream also bounds the bytes read before a final response begins: hyper skips any number of provisional (1xx)
//! responses, so an endless sequence of them is detected only here.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// TCP, TLS over TCP, or either through a proxy.
pub trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for T {}

/// Reports a connection loss that a write found on the read side, after all received bytes.
pub struct ReadToEnd {
    stream: Box<dyn ByteStream>,
    /// Whether a write found the connection lost; nothing is written after that.
    is_lost: bool,
    /// The write error, until the reader has returned it.
    loss: Option<io::Error>,
    header_budget: HeaderBudget,
}

/// Allows provisional responses, the largest head, and one buffer of the body.
const MAX_BEFORE_ANSWER: usize = 1024 * 1024;

/// Bytes that may still be read before a response begins; shared by the stream and `Http1Connection::send`.
#[derive(Debug, Clone)]
pub struct HeaderBudget(Arc<AtomicUsize>);

impl Default for HeaderBudget {
    fn default() -> Self {
        Self(Arc::new(AtomicUsize::new(usize::MAX)))
    }
}

impl HeaderBudget {
    /// A response is awaited: start counting.
    pub fn limit(&self) {
        self.0.store(MAX_BEFORE_ANSWER, Ordering::Relaxed);
    }

    /// The response has begun: stop counting, its body may have any length.
    pub fn lift(&self) {
        self.0.store(usize::MAX, Ordering::Relaxed);
    }

    fn is_used_up(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 0
    }

    fn take(&self, bytes: usize) {
        // No CAS is needed: the task that awaits the response is the one that reads.
        let left = self.0.load(Ordering::Relaxed);
        if left != usize::MAX {
            self.0.store(left.saturating_sub(bytes), Ordering::Relaxed);
        }
    }
}

/// The limit of bytes before a response is exceeded.
#[derive(Debug, thiserror::Error)]
#[error("no response head within the limit")]
struct EndlessHead;

/// Whether the cause of an error is this limit.
pub fn is_endless_head(error: &hyper::Error) -> bool {
    let io = std::error::Error::source(error).and_then(|source| source.downcast_ref::<io::Error>());
    io.and_then(io::Error::get_ref).is_some_and(|inner| inner.is::<EndlessHead>())
}

impl ReadToEnd {
    /// Wraps a connected stream.
    pub fn new(stream: Box<dyn ByteStream>, header_budget: HeaderBudget) -> Self {
        Self { stream, is_lost: false, loss: None, header_budget }
    }

    /// Writes; a lost connection is reported by the next read without data.
    fn write<T>(
        &mut self,
        write: impl FnOnce(Pin<&mut Box<dyn ByteStream>>) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if self.is_lost {
            return Poll::Pending;
        }
        match ready!(write(Pin::new(&mut self.stream))) {
            Err(error) if is_loss(&error) => {
                (self.is_lost, self.loss) = (true, Some(error));
                // No waker is needed: the loss ends the read side too, so a read completes soon and reports the error.
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
        if self.header_budget.is_used_up() {
            return Poll::Ready(Err(io::Error::other(EndlessHead)));
        }
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buffer))?;
        self.header_budget.take(buffer.filled().len() - before);
        // The kernel reports a reset once, and the write has consumed it.
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
        self.write(|stream| stream.poll_write(cx, bytes))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context,
        slices: &[io::IoSlice],
    ) -> Poll<io::Result<usize>> {
        self.write(|stream| stream.poll_write_vectored(cx, slices))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context) -> Poll<io::Result<()>> {
        self.write(|stream| stream.poll_flush(cx))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::task::Waker;

    use bytes::Bytes;
    use hyper::{Request, Response};

    use super::super::connection::{AnswerBody, Http1Connection};
    use super::super::upload::RequestBody;
    use super::*;

    /// Accepts a part of the request, then fails writes with a reset; only then the response can be read.
    struct EarlyResponder {
        room: usize,
        answer: &'static [u8],
        reader: Option<Waker>,
    }

    impl AsyncRead for EarlyResponder {
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

    impl AsyncWrite for EarlyResponder {
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
    ) -> Result<(Http1Connection, Response<hyper::body::Incoming>), String> {
        let stream = EarlyResponder { room: 1000, answer, reader: None };
        let mut connection = Http1Connection::open(Box::new(stream)).await.unwrap();
        let body = RequestBody::Whole(Some(Bytes::from(vec![7; 100_000])));
        let request = Request::post("/").header("content-length", "100000").body(body).unwrap();
        match connection.send(request).await {
            Ok(answer) => Ok((connection, answer)),
            Err(error) => Err(format!("{:?}", error.into_error())),
        }
    }

    #[tokio::test]
    async fn a_response_is_read_although_the_rest_of_the_request_cannot_be_written() {
        let (connection, answer) =
            post_to(b"HTTP/1.1 413 No\r\ncontent-length: 8\r\n\r\ntoo much").await.unwrap();
        let (parts, incoming) = answer.into_parts();
        assert_eq!(parts.status, 413);
        let mut body = AnswerBody::new(connection, incoming);
        assert_eq!(body.next().await.unwrap().unwrap(), "too much");
        assert!(body.next().await.is_none());
        let mut connection = body.into_connection();
        assert!(
            !poll_fn(|cx| Poll::Ready(connection.poll_idle(cx.waker()))).await,
            "the connection is not reusable"
        );
    }

    #[tokio::test]
    async fn without_a_response_the_error_is_the_reset() {
        for broken in [&b""[..], b"HTTP/1.1 413"] {
            let error = post_to(broken).await.map(|_| ()).unwrap_err();
            assert!(error.contains("ConnectionReset"), "{error}");
        }
    }
}
