//! Routes, checks and the upgrade from HTTP to a websocket.

#![allow(
    clippy::result_large_err,
    reason = "the error is the HTTP response, which is sent at once"
)]

use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use exec_server_relay::registry_types::FORWARDED_FOR_HEADER;
use exec_server_transport::connection::{Connection, KeepaliveConfig};
use exec_server_transport::host;
use exec_server_transport::upgrade;
use exec_server_transport::websocket::WebSocketWire;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{
    ALLOW, AUTHORIZATION, CONNECTION, CONTENT_TYPE, HeaderMap, HeaderValue, ORIGIN,
};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;

use super::trust::{Refusal, Trust, Verdict};
use crate::auth::{Authenticated, Principal};
use crate::connection::run_connection;
use crate::listen_url::ListenUrl;
use crate::server::{NotTaken, Server};

type Reply = Response<Full<Bytes>>;

/// Serves HTTP on one stream, and the websocket that it may become.
pub async fn serve<S>(server: Arc<Server>, stream: S, peer: String, refusal: Option<Refusal>)
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let upgraded = Mutex::new(None);
    let service = service_fn(|request| {
        let answered = match refusal {
            None => answer(&server, request),
            Some(refusal) => Err(refuse(refusal)),
        };
        let reply = match answered {
            Ok(upgrade) => {
                *upgraded.lock().expect("no holder panics") =
                    Some((upgrade.stream, upgrade.authenticated));
                upgrade.reply
            }
            Err(reply) => reply,
        };
        async move { Ok::<_, Infallible>(reply) }
    });
    let serving = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(server.config.timings.handshake)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades()
        .await;
    if let Err(error) = serving {
        tracing::debug!(%peer, %error, "HTTP connection failed");
    }
    let upgraded = upgraded.into_inner().expect("no holder panics");
    let Some((stream, authenticated)) = upgraded else { return };
    match stream.await {
        Ok(stream) => {
            let wire = WebSocketWire::serve(
                TokioIo::new(stream),
                peer,
                server.config.limits.message_bytes,
            );
            let timings = &server.config.timings;
            let pings = KeepaliveConfig {
                interval: timings.ping_interval,
                deadline: timings.pong_deadline,
            };
            run_connection(server, Connection::new(Box::new(wire), pings), authenticated).await;
        }
        Err(error) => tracing::debug!(%peer, %error, "upgrade failed"),
    }
}

struct Upgrade {
    reply: Reply,
    stream: hyper::upgrade::OnUpgrade,
    authenticated: Authenticated,
}

/// Routes a request. Requests from web pages (with `Origin`, or for a foreign host) are rejected before any route.
fn answer(server: &Server, request: Request<Incoming>) -> Result<Upgrade, Reply> {
    if request.headers().contains_key(ORIGIN) {
        return Err(text(StatusCode::FORBIDDEN, ""));
    }
    check_host(server, &request)?;
    match request.uri().path() {
        "/" => open_websocket(server, request),
        "/readyz" | "/healthz" | "/livez" => Err(health(server, &request)),
        "/version" => Err(only_get(&request).unwrap_or_else(|| {
            let version = env!("CARGO_PKG_VERSION");
            json(StatusCode::OK, &serde_json::json!({"name": "exec-server", "version": version}))
        })),
        _ => Err(text(StatusCode::NOT_FOUND, "")),
    }
}

/// Prevents DNS rebinding: a web site's name that resolves to loopback must not reach an open loopback server.
fn check_host(server: &Server, request: &Request<Incoming>) -> Result<(), Reply> {
    // Not checked with auth: a web site has no token, and behind a proxy the host name is the proxy's.
    let trusts_loopback = matches!(server.config.listen, ListenUrl::WebSocket(_))
        && server.config.listen.is_local()
        && server.config.auth.is_open();
    if trusts_loopback { check_loopback_host(request) } else { Ok(()) }
}

fn check_loopback_host(request: &Request<Incoming>) -> Result<(), Reply> {
    if host::is_for_loopback(request.uri(), request.headers()) {
        return Ok(());
    }
    Err(text(
        StatusCode::FORBIDDEN,
        "this server listens on loopback and answers to no other host name",
    ))
}

/// The response on every route to a peer that is not served.
fn refuse(refusal: Refusal) -> Reply {
    let mut reply = text(StatusCode::FORBIDDEN, &refusal.to_string());
    reply.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    reply
}

fn health(server: &Server, request: &Request<Incoming>) -> Reply {
    if let Some(refusal) = only_get(request) {
        return refusal;
    }
    let version = env!("CARGO_PKG_VERSION");
    // `/readyz` fails on a full server, `/healthz` only while draining, `/livez` never.
    let is_ok = matches!(
        (request.uri().path(), server.check_room()),
        ("/livez", _) | (_, Ok(())) | ("/healthz", Err(NotTaken::Full(_)))
    );
    let (code, status) = if is_ok {
        (StatusCode::OK, "ok")
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "unavailable")
    };
    json(code, &serde_json::json!({"status": status, "version": version}))
}

fn only_get(request: &Request<Incoming>) -> Option<Reply> {
    if matches!(*request.method(), Method::GET | Method::HEAD) {
        return None;
    }
    let mut reply = text(StatusCode::METHOD_NOT_ALLOWED, "");
    reply.headers_mut().insert(ALLOW, HeaderValue::from_static("GET,HEAD"));
    Some(reply)
}

fn open_websocket(server: &Server, mut request: Request<Incoming>) -> Result<Upgrade, Reply> {
    if request.method() != Method::GET {
        let mut reply = text(StatusCode::METHOD_NOT_ALLOWED, "");
        reply.headers_mut().insert(ALLOW, HeaderValue::from_static("GET"));
        return Err(reply);
    }
    let accepted = upgrade::accept(request.headers())
        .map_err(|error| text(StatusCode::BAD_REQUEST, &error.to_string()))?;
    let Authenticated { principal, credential } = authenticate(server, request.headers())?;
    let principal = narrow(principal, request.headers())?;
    server
        .check_room()
        .map_err(|error| text(StatusCode::SERVICE_UNAVAILABLE, &error.to_string()))?;
    let mut reply = Response::new(Full::default());
    *reply.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    *reply.headers_mut() = accepted;
    let authenticated = Authenticated { principal, credential };
    Ok(Upgrade { reply, stream: hyper::upgrade::on(&mut request), authenticated })
}

fn authenticate(server: &Server, headers: &HeaderMap) -> Result<Authenticated, Reply> {
    let shown = server.config.auth.authenticate(headers.get(AUTHORIZATION));
    shown.map_err(|error| text(StatusCode::UNAUTHORIZED, &error.to_string()))
}

/// Narrows the principal to the harness that a forwarder names. This only removes rights, so any client may send it.
fn narrow(principal: Principal, headers: &HeaderMap) -> Result<Principal, Reply> {
    let mut harnesses = headers.get_all(FORWARDED_FOR_HEADER).iter();
    let Some(harness) = harnesses.next() else { return Ok(principal) };
    let harness = harness.to_str().ok().and_then(|text| text.parse().ok());
    match harness {
        Some(harness) if harnesses.next().is_none() => Ok(principal.on_behalf_of(&harness)),
        // An invalid header must not be ignored: the connection would get more rights than requested.
        _ => Err(text(
            StatusCode::BAD_REQUEST,
            &format!("{FORWARDED_FOR_HEADER} must be the fingerprint of one key"),
        )),
    }
}

fn text(status: StatusCode, body: &str) -> Reply {
    let mut reply = Response::new(Full::from(body.to_owned()));
    *reply.status_mut() = status;
    if !body.is_empty() {
        let kind = HeaderValue::from_static("text/plain; charset=utf-8");
        reply.headers_mut().insert(CONTENT_TYPE, kind);
    }
    reply
}

fn json(status: StatusCode, body: &serde_json::Value) -> Reply {
    let mut reply = Response::new(Full::from(body.to_string()));
    *reply.status_mut() = status;
    reply.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    reply
}

/// Applies the listener's checks: no requests from web pages, and the same authentication.
fn answer_metrics(
    server: &Server,
    is_local: bool,
    request: &Request<Incoming>,
) -> Result<Reply, Reply> {
    if request.headers().contains_key(ORIGIN) {
        return Err(text(StatusCode::FORBIDDEN, ""));
    }
    if is_local && server.config.auth.is_open() {
        check_loopback_host(request)?;
    }
    if request.uri().path() != "/metrics" {
        return Err(text(StatusCode::NOT_FOUND, ""));
    }
    if let Some(refusal) = only_get(request) {
        return Err(refusal);
    }
    authenticate(server, request.headers())?;
    Ok(metrics(server))
}

fn metrics(server: &Server) -> Reply {
    let mut reply = text(StatusCode::OK, &server.metrics.render());
    // Parsed as text/plain, counters would lose their type.
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    reply.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    reply
}

/// Serves `/metrics` until the future is dropped.
pub async fn serve_metrics(server: &Arc<Server>, listener: &TcpListener) {
    let mut connections = tokio::task::JoinSet::new();
    let is_local = listener.local_addr().is_ok_and(|bound| bound.ip().to_canonical().is_loopback());
    loop {
        while connections.try_join_next().is_some() {}
        let Ok((stream, peer)) = listener.accept().await else {
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
            continue;
        };
        let server = server.clone();
        connections.spawn(async move {
            let trust = Trust::of(&server.config, is_local);
            let refusal = match super::judge_tcp(&server, trust, peer, stream.local_addr()).await {
                Verdict::Serve => None,
                Verdict::Refuse(refusal) => Some(refusal),
                Verdict::Close(_) => return,
            };
            let service = service_fn(|request: Request<Incoming>| {
                let answered = match refusal {
                    None => answer_metrics(&server, is_local, &request),
                    Some(refusal) => Err(refuse(refusal)),
                };
                let reply = answered.unwrap_or_else(|refusal| refusal);
                async move { Ok::<_, Infallible>(reply) }
            });
            let serving = hyper::server::conn::http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(server.config.timings.handshake)
                .serve_connection(TokioIo::new(stream), service)
                .await;
            if let Err(error) = serving {
                tracing::debug!(%error, "metrics connection failed");
            }
        });
    }
}
