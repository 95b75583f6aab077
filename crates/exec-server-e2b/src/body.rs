//! Bodies of replies: whole ones, and streams with backpressure.

use std::io::{self, Write};
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use flate2::write::MultiGzDecoder;
use http::{Response, StatusCode, header};
use http_body_util::combinators::{BoxBody, UnsyncBoxBody};
use http_body_util::{BodyExt, Full};
use hyper::body::{Body as HttpBody, Frame, Incoming};
use serde_json::Value;
use tokio::sync::mpsc;

/// The body of every reply; an error breaks the connection, so that no reader takes a part for the whole.
pub type Body = BoxBody<Bytes, io::Error>;

/// Pieces that wait for a slow reader; then the source waits.
const QUEUED: usize = 4;
/// Bytes that are unzipped at once; they may become a thousand times as many.
const UNZIPPED_BYTES: usize = 16 * 1024;

/// The sending end of a streamed body; `closed` resolves when the peer is gone.
pub type BodySender = mpsc::Sender<io::Result<Bytes>>;

/// A body that is sent piece by piece.
pub fn stream() -> (BodySender, Body) {
    let (sender, receiver) = mpsc::channel(QUEUED);
    (sender, StreamedBody(receiver).boxed())
}

/// The bytes of a request, of a gzipped one the plain bytes.
pub fn received(mut body: Incoming, is_zipped: bool) -> UnsyncBoxBody<Bytes, io::Error> {
    if !is_zipped {
        return body.map_err(io::Error::other).boxed_unsync();
    }
    let (sender, plain) = mpsc::channel(QUEUED);
    tokio::spawn(async move {
        let mut unzip = MultiGzDecoder::new(Vec::new());
        while let Some(frame) = body.frame().await {
            let data = match frame.map(Frame::into_data) {
                Ok(Ok(data)) => data,
                Ok(Err(_)) => continue,
                Err(error) => return drop(sender.send(Err(io::Error::other(error))).await),
            };
            // Small pieces keep what they expand to small.
            for piece in data.chunks(UNZIPPED_BYTES) {
                let done = unzip.write_all(piece).map_err(bad_gzip);
                let plain = done.map(|()| std::mem::take(unzip.get_mut()).into());
                let is_broken = plain.is_err();
                if sender.send(plain).await.is_err() || is_broken {
                    return;
                }
            }
        }
        // A reader that is gone needs no end.
        let _ = sender.send(unzip.finish().map(Bytes::from).map_err(bad_gzip)).await;
    });
    StreamedBody(plain).boxed_unsync()
}

fn bad_gzip(error: io::Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the body is not gzip: {error}"))
}

/// A whole body.
pub fn whole(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed()
}

/// A reply without a body.
pub fn empty(status: StatusCode) -> Response<Body> {
    let mut response = Response::new(whole(Bytes::new()));
    *response.status_mut() = status;
    response
}

/// A reply with JSON.
pub fn json(status: StatusCode, value: &Value) -> Response<Body> {
    let mut response = Response::new(whole(value.to_string()));
    *response.status_mut() = status;
    let kind = header::HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

struct StreamedBody(mpsc::Receiver<io::Result<Bytes>>);

impl HttpBody for StreamedBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        self.0.poll_recv(cx).map(|piece| piece.map(|piece| piece.map(Frame::data)))
    }
}
