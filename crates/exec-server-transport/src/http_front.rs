//! HTTP front end of the executor and the rendezvous: accepting, TLS, requests, and the upgrade to a websocket.
//!
//! The servers bring their routes: a function from a request to an [`Answer`].

mod replies;

use std::convert::Infallible;
use std::fmt::Display;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Mutex;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::HeaderMap;
use hyper::service::service_fn;
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

pub use replies::{
    READ_METHODS, Reply, check_loopback_host, check_metrics_route, check_origin, check_read_method,
    health, json, method_not_allowed, openmetrics, text, version, with_allow,
};

/// Pause after a failed accept: descriptors or memory ran out, and established connections continue.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// What a request is answered with; `T` is passed on with the upgraded stream.
pub enum Answer<T> {
    /// An ordinary response.
    Reply(Reply),
    /// The connection becomes a websocket after the 101 response.
    Upgrade(Upgrade<T>),
}

/// A websocket handshake that was accepted; its 101 response is not written yet.
pub struct Upgrade<T> {
    reply: Reply,
    stream: OnUpgrade,
    context: T,
}

/// An upgraded byte stream.
pub type UpgradedStream = TokioIo<Upgraded>;

impl<T> Upgrade<T> {
    /// Accepts a handshake with the headers that [`crate::upgrade::accept`] returned.
    pub fn new(mut request: Request<Incoming>, accepted: HeaderMap, context: T) -> Self {
        let mut reply = Response::new(Full::default());
        *reply.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        *reply.headers_mut() = accepted;
        Self { reply, stream: hyper::upgrade::on(&mut request), context }
    }
}

impl<T> From<Result<Upgrade<T>, Reply>> for Answer<T> {
    fn from(result: Result<Upgrade<T>, Reply>) -> Self {
        match result {
            Ok(upgrade) => Self::Upgrade(upgrade),
            Err(reply) => Self::Reply(reply),
        }
    }
}

/// Serves requests on one stream until it ends or is upgraded; after `stop` the request in progress is the last.
pub async fn serve<S, T, F, A>(
    stream: S,
    peer: impl Display,
    header_timeout: Duration,
    stop: impl Future<Output = ()>,
    answer: F,
) -> Option<(UpgradedStream, T)>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    F: Fn(Request<Incoming>) -> A,
    A: Future<Output = Answer<T>>,
{
    let upgraded = Mutex::new(None);
    let service = service_fn(|request| {
        let answer = answer(request);
        let upgraded = &upgraded;
        async move {
            let reply = match answer.await {
                Answer::Reply(reply) => reply,
                Answer::Upgrade(Upgrade { reply, stream, context }) => {
                    *upgraded.lock().expect("no holder panics") = Some((stream, context));
                    reply
                }
            };
            Ok::<_, Infallible>(reply)
        }
    });
    let serving = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(header_timeout)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades();
    {
        let mut serving = pin!(serving);
        let result = tokio::select! {
            result = serving.as_mut() => result,
            () = stop => {
                serving.as_mut().graceful_shutdown();
                serving.await
            }
        };
        if let Err(error) = result {
            tracing::debug!(%peer, %error, "HTTP connection failed");
        }
    }
    let (stream, context) = upgraded.into_inner().expect("no holder panics")?;
    match stream.await {
        Ok(stream) => Some((TokioIo::new(stream), context)),
        Err(error) => {
            tracing::debug!(%peer, %error, "websocket upgrade failed");
            None
        }
    }
}

/// Serves requests that are never upgraded, until the stream ends.
pub async fn serve_replies<S>(
    stream: S,
    peer: impl Display,
    header_timeout: Duration,
    answer: impl Fn(&Request<Incoming>) -> Reply,
) where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let answer = |request: Request<Incoming>| std::future::ready(Answer::Reply(answer(&request)));
    serve::<_, Infallible, _, _>(stream, peer, header_timeout, std::future::pending(), answer)
        .await;
}

/// Retries until a connection is accepted.
pub async fn accept_next<T, A>(mut accept: impl FnMut() -> A) -> T
where
    A: Future<Output = io::Result<T>>,
{
    loop {
        match accept().await {
            Ok(accepted) => return accepted,
            Err(error) => {
                tracing::warn!(%error, "could not accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Serves every connection of a listener in a task of its own, until the future is dropped.
pub async fn serve_each<F>(listener: &TcpListener, serve: impl Fn(TcpStream, SocketAddr) -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        let (stream, peer) = accept_next(|| listener.accept()).await;
        connections.spawn(serve(stream, peer));
    }
}

/// Whether only this machine can reach a listener.
pub fn is_local(listener: &TcpListener) -> bool {
    listener.local_addr().is_ok_and(|bound| bound.ip().to_canonical().is_loopback())
}

/// Performs the server's side of the TLS handshake; a failure is logged.
pub async fn accept_tls<S>(
    acceptor: &TlsAcceptor,
    stream: S,
    peer: impl Display,
    timeout: Duration,
) -> Option<TlsStream<S>>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    match tokio::time::timeout(timeout, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => Some(stream),
        Ok(Err(error)) => {
            tracing::debug!(%peer, %error, "TLS handshake failed");
            None
        }
        Err(_) => {
            tracing::debug!(%peer, "TLS handshake timed out");
            None
        }
    }
}

#[cfg(test)]
mod tests;
