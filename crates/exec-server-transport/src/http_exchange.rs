//! Sends one HTTP request on its own connection, for rare requests where pooling is not worth it.

use std::future::poll_fn;
use std::io;
use std::pin::pin;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::header::{HOST, HeaderValue};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use url::Url;

use crate::dial::{DialError, DialOptions, open_link};

/// Why a request got no response.
#[derive(Debug, thiserror::Error)]
pub enum ExchangeError {
    /// The server cannot be reached.
    #[error("the server cannot be reached")]
    Unreachable(#[from] DialError),
    /// The connection failed during the exchange, or the response exceeds the size limit.
    #[error("the HTTP exchange with the server failed")]
    Broken(#[source] io::Error),
}

/// Sends a request with a path-only URI to the server at `base`; reads at most `max_answer` bytes of response body.
pub async fn exchange(
    base: &Url,
    dial: &DialOptions,
    request: Request<Full<Bytes>>,
    max_answer: usize,
) -> Result<(StatusCode, Bytes), ExchangeError> {
    let response = exchange_with_headers(base, dial, request, max_answer).await?;
    Ok((response.status(), response.into_body()))
}

/// The same, with the headers of the response.
pub async fn exchange_with_headers(
    base: &Url,
    dial: &DialOptions,
    mut request: Request<Full<Bytes>>,
    max_answer: usize,
) -> Result<Response<Bytes>, ExchangeError> {
    let authority = &base[url::Position::BeforeHost..url::Position::AfterPort];
    let host = HeaderValue::from_str(authority).expect("URLs are ASCII");
    request.headers_mut().insert(HOST, host);
    let link = open_link(base, dial).await?;
    let broken = |error: hyper::Error| ExchangeError::Broken(io::Error::other(error));
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(link)).await.map_err(broken)?;
    let mut exchange = pin!(async {
        let response = sender.send_request(request).await.map_err(broken)?;
        let (head, body) = response.into_parts();
        let body = Limited::new(body, max_answer).collect().await;
        let body = body.map_err(|error| ExchangeError::Broken(io::Error::other(error)))?;
        Ok(Response::from_parts(head, body.to_bytes()))
    });
    // The connection future can finish before the response body has been read.
    let mut connection = pin!(connection);
    let mut is_driving = true;
    let answer = poll_fn(|cx| {
        is_driving = is_driving && connection.as_mut().poll(cx).is_pending();
        exchange.as_mut().poll(cx)
    });
    answer.await
}
