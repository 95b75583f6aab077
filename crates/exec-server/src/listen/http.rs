//! Routes, checks and the upgrade from HTTP to a websocket.

#![allow(clippy::result_large_err, reason = "a refusal is the reply itself, and goes straight out")]

use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};

use exec_server_protocol::registry::FORWARDED_FOR_HEADER;
use exec_server_transport::connection::{Connection, PingTimes};
use exec_server_transport::upgrade;
use exec_server_transport::websocket::WebSocketWire;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, AUTHORIZATION, CONTENT_TYPE, HOST, HeaderMap, HeaderValue, ORIGIN};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;

use crate::auth::{Auth, Principal};
use crate::connection::run_connection;
use crate::listen_url::ListenUrl;
use crate::server::{NotTaken, Server};

type Reply = Response<Full<Bytes>>;

/// Serves HTTP on one stream, and the websocket that it may become.
pub async fn serve<S>(server: Arc<Server>, stream: S, peer: String)
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let upgraded = Mutex::new(None);
    let service = service_fn(|request| {
        let reply = match answer(&server, request) {
            Ok(upgrade) => {
                *upgraded.lock().expect("no holder panics") =
                    Some((upgrade.stream, upgrade.principal));
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
    let Some((stream, principal)) = upgraded else { return };
    match stream.await {
        Ok(stream) => {
            let wire = WebSocketWire::serve(
                TokioIo::new(stream),
                peer,
                server.config.limits.message_bytes,
            );
            let timings = &server.config.timings;
            let pings =
                PingTimes { interval: timings.ping_interval, deadline: timings.pong_deadline };
            run_connection(server, Connection::new(Box::new(wire), pings), principal).await;
        }
        Err(error) => tracing::debug!(%peer, %error, "upgrade failed"),
    }
}

struct Upgrade {
    reply: Reply,
    stream: hyper::upgrade::OnUpgrade,
    principal: Principal,
}

/// The order matters: what a browser or another site could send is refused before anything else is said.
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

/// A name that some site points at loopback must not reach a server that trusts loopback.
fn check_host(server: &Server, request: &Request<Incoming>) -> Result<(), Reply> {
    // With auth, a site would also need a token; and behind a proxy, the name is the proxy's.
    let trusts_loopback = matches!(server.config.listen, ListenUrl::WebSocket(_))
        && server.config.listen.is_local()
        && matches!(server.config.auth, Auth::Open);
    if !trusts_loopback {
        return Ok(());
    }
    let is_local = |host: &HeaderValue| {
        let Ok(host) = host.to_str() else { return false };
        let name = host_name(host);
        host.is_empty()
            || name.eq_ignore_ascii_case("localhost")
            || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
    };
    if request.headers().get_all(HOST).iter().all(is_local) {
        return Ok(());
    }
    Err(text(
        StatusCode::FORBIDDEN,
        "this server listens on loopback and answers to no other host name",
    ))
}

/// The host without its port and brackets.
fn host_name(host: &str) -> &str {
    if let Some(rest) = host.strip_prefix('[') {
        return rest.split(']').next().unwrap_or_default();
    }
    host.rsplit_once(':').map_or(host, |(name, _)| name)
}

fn health(server: &Server, request: &Request<Incoming>) -> Reply {
    if let Some(refusal) = only_get(request) {
        return refusal;
    }
    let version = env!("CARGO_PKG_VERSION");
    // A server that is full is healthy, but not ready for another client; one that is going away is only alive.
    let is_ready = matches!(
        (request.uri().path(), server.check_room()),
        ("/livez", _) | (_, Ok(())) | ("/healthz", Err(NotTaken::Full(_)))
    );
    let (code, status) = if is_ready {
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
    let principal = server
        .config
        .auth
        .authenticate(request.headers().get(AUTHORIZATION))
        .map_err(|error| text(StatusCode::UNAUTHORIZED, &error.to_string()))?;
    let principal = narrow(principal, request.headers())?;
    server
        .check_room()
        .map_err(|error| text(StatusCode::SERVICE_UNAVAILABLE, &error.to_string()))?;
    let mut reply = Response::new(Full::default());
    *reply.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    *reply.headers_mut() = accepted;
    Ok(Upgrade { reply, stream: hyper::upgrade::on(&mut request), principal })
}

/// Whoever brings others says for whom each connection is. That takes rights away and gives none, so anybody may say it.
fn narrow(principal: Principal, headers: &HeaderMap) -> Result<Principal, Reply> {
    let mut harnesses = headers.get_all(FORWARDED_FOR_HEADER).iter();
    let Some(harness) = harnesses.next() else { return Ok(principal) };
    let harness = harness.to_str().ok().and_then(|text| text.parse().ok());
    match harness {
        Some(harness) if harnesses.next().is_none() => Ok(principal.on_behalf_of(&harness)),
        // Not as if nothing had been said: that would be more rights than were asked for.
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

fn metrics(server: &Server) -> Reply {
    let mut reply = text(StatusCode::OK, &server.metrics.render());
    // Read as plain text, counters would lose their type.
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    reply.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    reply
}

/// Serves `/metrics` until the future is dropped.
pub async fn serve_metrics(server: &Arc<Server>, listener: &TcpListener) {
    let mut connections = tokio::task::JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        let Ok((stream, peer)) = listener.accept().await else {
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
            continue;
        };
        let server = server.clone();
        connections.spawn(async move {
            if super::is_refused(&server, peer, stream.local_addr()).await {
                return;
            }
            let service = service_fn(|request: Request<Incoming>| {
                let reply = match request.uri().path() {
                    "/metrics" => only_get(&request).unwrap_or_else(|| metrics(&server)),
                    _ => text(StatusCode::NOT_FOUND, ""),
                };
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_names_lose_their_port_and_brackets() {
        for (host, name) in [
            ("a:1", "a"),
            ("a", "a"),
            ("[::1]:80", "::1"),
            ("[::1]", "::1"),
            ("127.0.0.1:5", "127.0.0.1"),
        ] {
            assert_eq!(host_name(host), name);
        }
    }
}
