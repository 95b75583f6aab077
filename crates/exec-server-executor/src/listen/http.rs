//! Routes, checks and the upgrade from HTTP to a websocket.

#![allow(
    clippy::result_large_err,
    reason = "the error is the HTTP response, which is sent at once"
)]

use std::future::{pending, ready};
use std::sync::Arc;

use exec_server_relay::registry_types::FORWARDED_FOR_HEADER;
use exec_server_transport::connection::{Connection, KeepaliveConfig};
use exec_server_transport::http_front::{self, Answer, Reply, Upgrade, text};
use exec_server_transport::upgrade;
use exec_server_transport::websocket::WebSocketWire;
use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, CONNECTION, HeaderMap, HeaderValue};
use hyper::{Method, Request, StatusCode};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};

use super::trust::{Refusal, Trust, Verdict};
use crate::auth::{Authenticated, Origin, Principal};
use crate::connection::run_connection;
use crate::listen_url::ListenUrl;
use crate::server::{NotTaken, Server};

/// Serves HTTP on one stream, and the websocket that it may become.
pub async fn serve<S>(server: Arc<Server>, stream: S, origin: Origin, refusal: Option<Refusal>)
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let timings = &server.config.timings;
    let answer = |request| {
        let answer = match refusal {
            None => answer(&server, request),
            Some(refusal) => Answer::Reply(refuse(refusal)),
        };
        if let Answer::Reply(reply) = &answer {
            record_refusal(&server, &origin, reply.status());
        }
        ready(answer)
    };
    let upgraded =
        http_front::serve(stream, &origin.peer, timings.handshake, pending(), answer).await;
    let Some((stream, authenticated)) = upgraded else { return };
    let wire =
        WebSocketWire::serve(stream, origin.peer.clone(), server.config.limits.message_bytes);
    let pings =
        KeepaliveConfig { interval: timings.ping_interval, deadline: timings.pong_deadline };
    let authenticated = Authenticated { origin, ..authenticated };
    run_connection(server, Connection::new(Box::new(wire), pings), authenticated).await;
}

/// Records a peer that has no valid credential, or that is not served.
fn record_refusal(server: &Server, origin: &Origin, status: StatusCode) {
    let Some(audit) = &server.audit else { return };
    if matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) {
        let (peer, uid) = (&origin.peer, origin.uid);
        let details = serde_json::json!({ "peer": peer, "uid": uid, "status": status.as_u16() });
        audit.record("connection/refused", None, details);
    }
}

/// Routes a request. Requests from web pages (with `Origin`, or for a foreign host) are rejected before any route.
fn answer(server: &Server, request: Request<Incoming>) -> Answer<Authenticated> {
    if let Err(reply) = check_host(server, &request) {
        return Answer::Reply(reply);
    }
    let reply = match request.uri().path() {
        "/" => return open_websocket(server, request).into(),
        path @ ("/readyz" | "/healthz" | "/livez" | "/version") => {
            http_front::check_read_method(&request).err().unwrap_or_else(|| observe(server, path))
        }
        _ => text(StatusCode::NOT_FOUND, ""),
    };
    Answer::Reply(reply)
}

fn check_host(server: &Server, request: &Request<Incoming>) -> Result<(), Reply> {
    http_front::check_origin(request)?;
    // Not checked with auth: a web site has no token, and behind a proxy the host name is the proxy's.
    let trusts_loopback = matches!(server.config.listen, ListenUrl::WebSocket(_))
        && server.config.listen.is_local()
        && server.config.auth.is_open();
    if trusts_loopback { http_front::check_loopback_host(request) } else { Ok(()) }
}

/// The response on every route to a peer that is not served.
fn refuse(refusal: Refusal) -> Reply {
    let mut reply = text(StatusCode::FORBIDDEN, refusal.to_string());
    reply.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    reply
}

fn observe(server: &Server, path: &str) -> Reply {
    let version = env!("CARGO_PKG_VERSION");
    // `/readyz` fails on a full server, `/healthz` only while draining, `/livez` never.
    match (path, server.check_room()) {
        ("/version", _) => http_front::version("exec-server", version),
        ("/livez", _) | (_, Ok(())) | ("/healthz", Err(NotTaken::Full(_))) => {
            http_front::health(true, version)
        }
        _ => http_front::health(false, version),
    }
}

fn open_websocket(
    server: &Server,
    request: Request<Incoming>,
) -> Result<Upgrade<Authenticated>, Reply> {
    if request.method() != Method::GET {
        return Err(http_front::method_not_allowed(&[Method::GET]));
    }
    let accepted = upgrade::accept(request.headers())
        .map_err(|error| text(StatusCode::BAD_REQUEST, error.to_string()))?;
    let authenticated = authenticate(server, request.headers())?;
    let principal = narrow(authenticated.principal.clone(), request.headers())?;
    server
        .check_room()
        .map_err(|error| text(StatusCode::SERVICE_UNAVAILABLE, error.to_string()))?;
    Ok(Upgrade::new(request, accepted, Authenticated { principal, ..authenticated }))
}

fn authenticate(server: &Server, headers: &HeaderMap) -> Result<Authenticated, Reply> {
    let shown = server.config.auth.authenticate(headers.get(AUTHORIZATION));
    shown.map_err(|error| text(StatusCode::UNAUTHORIZED, error.to_string()))
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
            format!("{FORWARDED_FOR_HEADER} must be the fingerprint of one key"),
        )),
    }
}

/// Applies the listener's checks: no requests from web pages, and the same authentication.
fn answer_metrics(
    server: &Server,
    is_local: bool,
    request: &Request<Incoming>,
) -> Result<Reply, Reply> {
    http_front::check_metrics_route(request, is_local && server.config.auth.is_open())?;
    authenticate(server, request.headers())?;
    Ok(http_front::openmetrics(server.metrics.render()))
}

/// Serves `/metrics` until the future is dropped.
pub async fn serve_metrics(server: &Arc<Server>, listener: &TcpListener) {
    let is_local = http_front::is_local(listener);
    http_front::serve_each(listener, |stream: TcpStream, peer| {
        let server = server.clone();
        async move {
            let trust = Trust::of(&server.config, is_local);
            let (verdict, _) = super::judge_tcp(&server, trust, peer, stream.local_addr()).await;
            let refusal = match verdict {
                Verdict::Serve => None,
                Verdict::Refuse(refusal) => Some(refusal),
                Verdict::Close(_) => return,
            };
            let answer = |request: &Request<Incoming>| match refusal {
                None => answer_metrics(&server, is_local, request).unwrap_or_else(|reply| reply),
                Some(refusal) => refuse(refusal),
            };
            http_front::serve_replies(stream, peer, server.config.timings.handshake, answer).await;
        }
    })
    .await;
}
