//! Bodies of replies: whole ones, and streams with backpressure.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Response, StatusCode, header};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::{Body as HttpBody, Frame};
use serde_json::Value;
use tokio::sync::mpsc;

/// The body of every reply; an error breaks the connection, so that no reader takes a part for the whole.
pub type Body = BoxBody<Bytes, io::Error>;

/// Pieces that wait for a slow reader; then the source waits.
const QUEUED: usize = 4;

/// The sending end of a streamed body; `closed` resolves when the peer is gone.
pub type BodySender = mpsc::Sender<io::Result<Bytes>>;

/// A body that is sent piece by piece.
pub fn stream() -> (BodySender, Body) {
    let (sender, receiver) = mpsc::channel(QUEUED);
    (sender, StreamedBody(receiver).boxed())
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
