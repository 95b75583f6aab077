//! HTTP requests that the server makes: buffered responses and streamed bodies.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use exec_server_protocol::http::{HttpCancelParams, HttpRequestParams, HttpRequestResponse};
use futures_core::Stream;
use tokio::io::{AsyncRead, ReadBuf};

use crate::caller::{Caller, Replay};
use crate::connection::ExecServerConnection;
use crate::error::ExecServerError;
use crate::http_body::BodyQueue;

const HTTP_REQUEST: &str = "http/request";
const HTTP_CANCEL: &str = "http/cancel";

/// Makes HTTP requests from the server's machine; cheap to clone. No request is retried after it was sent.
#[derive(Clone)]
pub struct HttpClient {
    caller: Caller,
}

/// The body of a streamed response; dropping it cancels the exchange, on a server that supports `http/cancel`.
///
/// The body ends with `None` only if it is complete; a disconnect is an error.
pub struct HttpResponseBodyStream {
    connection: ExecServerConnection,
    request_id: String,
    queue: Arc<BodyQueue>,
    /// The rest of a piece that did not fit into the reader's buffer.
    rest: Bytes,
    is_over: bool,
}

impl HttpClient {
    pub(crate) fn new(caller: Caller) -> Self {
        Self { caller }
    }

    /// Makes a request and waits for the complete response.
    pub async fn http_request(
        &self,
        mut params: HttpRequestParams,
    ) -> Result<HttpRequestResponse, ExecServerError> {
        params.stream_response = false;
        self.caller.call_for(None, HTTP_REQUEST, &params, Replay::Never).await
    }

    /// Makes a request and waits for the response head; the body is streamed.
    pub async fn http_request_stream(
        &self,
        mut params: HttpRequestParams,
    ) -> Result<(HttpRequestResponse, HttpResponseBodyStream), ExecServerError> {
        params.stream_response = true;
        loop {
            let connection = self.caller.connection().await?;
            let (request_id, queue) = match connection.shared().routes().add_body() {
                Ok(entered) => entered,
                Err(ExecServerError::Disconnected { .. }) if self.recovers() => continue,
                Err(error) => return Err(error),
            };
            params.request_id.clone_from(&request_id);
            // From here on, dropping `body` removes the route and cancels the exchange.
            let body = HttpResponseBodyStream {
                connection,
                request_id,
                queue,
                rest: Bytes::new(),
                is_over: false,
            };
            let pending = match body.connection.request(HTTP_REQUEST, &params) {
                Ok(pending) => pending,
                Err(ExecServerError::Disconnected { .. }) if self.recovers() => continue,
                Err(error) => return Err(error),
            };
            let response = pending.await?.decode()?;
            return Ok((response, body));
        }
    }

    fn recovers(&self) -> bool {
        matches!(self.caller, Caller::Client(_))
    }
}

impl HttpResponseBodyStream {
    /// The next piece; `None` at the end of a complete body.
    pub async fn recv(&mut self) -> Result<Option<Bytes>, ExecServerError> {
        poll_fn(|cx| self.poll_piece(cx)).await.transpose()
    }

    /// Reads the rest of the body.
    pub async fn collect(mut self) -> Result<Vec<u8>, ExecServerError> {
        let mut all = Vec::new();
        while let Some(piece) = self.recv().await? {
            all.extend_from_slice(&piece);
        }
        Ok(all)
    }

    fn poll_piece(&mut self, cx: &mut Context) -> Poll<Option<Result<Bytes, ExecServerError>>> {
        if !self.rest.is_empty() {
            return Poll::Ready(Some(Ok(std::mem::take(&mut self.rest))));
        }
        let piece = ready!(self.queue.poll_next(cx));
        self.is_over = !matches!(piece, Some(Ok(_)));
        Poll::Ready(piece)
    }
}

impl Stream for HttpResponseBodyStream {
    type Item = Result<Bytes, ExecServerError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context) -> Poll<Option<Self::Item>> {
        self.poll_piece(cx)
    }
}

impl AsyncRead for HttpResponseBodyStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context,
        buffer: &mut ReadBuf,
    ) -> Poll<io::Result<()>> {
        let Some(mut piece) = ready!(self.poll_piece(cx)).transpose()? else {
            return Poll::Ready(Ok(()));
        };
        let count = piece.len().min(buffer.remaining());
        buffer.put_slice(&piece[..count]);
        piece.advance(count);
        self.rest = piece;
        Poll::Ready(Ok(()))
    }
}

impl Drop for HttpResponseBodyStream {
    fn drop(&mut self) {
        let shared = self.connection.shared();
        shared.routes().remove_body(&self.request_id);
        if !self.is_over && self.connection.capabilities().http_cancel {
            let params = HttpCancelParams { request_id: self.request_id.clone() };
            shared.clean_up(HTTP_CANCEL, &params);
        }
    }
}
