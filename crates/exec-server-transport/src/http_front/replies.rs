//! Responses and checks that both servers share.

#![allow(
    clippy::result_large_err,
    reason = "the error is the HTTP response, which is sent at once"
)]

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue, ORIGIN};
use hyper::{Method, Request, Response, StatusCode};
use serde::Serialize;

use crate::host::is_for_loopback;

/// An HTTP response.
pub type Reply = Response<Full<Bytes>>;

/// Methods of the routes that change nothing.
pub const READ_METHODS: &[Method] = &[Method::GET, Method::HEAD];

/// A plain-text response; an empty body has no content type.
pub fn text(status: StatusCode, body: impl Into<String>) -> Reply {
    let body = body.into();
    let kind = (!body.is_empty()).then_some("text/plain; charset=utf-8");
    reply(status, Bytes::from(body), kind)
}

/// A JSON response.
pub fn json(status: StatusCode, body: &impl Serialize) -> Reply {
    let body = serde_json::to_vec(body).expect("plain data can be written");
    reply(status, Bytes::from(body), Some("application/json"))
}

/// Metrics in the OpenMetrics format; parsed as text/plain, counters would lose their type.
pub fn openmetrics(body: String) -> Reply {
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    reply(StatusCode::OK, Bytes::from(body), Some(kind))
}

/// The response of a health route.
pub fn health(is_ok: bool, version: &str) -> Reply {
    let (code, status) = match is_ok {
        true => (StatusCode::OK, "ok"),
        false => (StatusCode::SERVICE_UNAVAILABLE, "unavailable"),
    };
    json(code, &serde_json::json!({"status": status, "version": version}))
}

/// The response of `/version`.
pub fn version(name: &str, version: &str) -> Reply {
    json(StatusCode::OK, &serde_json::json!({"name": name, "version": version}))
}

/// The response to a method that the route does not have.
pub fn method_not_allowed(allowed: &[Method]) -> Reply {
    with_allow(text(StatusCode::METHOD_NOT_ALLOWED, ""), allowed)
}

/// Adds the methods of the route to a response.
pub fn with_allow(mut reply: Reply, allowed: &[Method]) -> Reply {
    let names: Vec<&str> = allowed.iter().map(Method::as_str).collect();
    let names = HeaderValue::try_from(names.join(",")).expect("methods are tokens");
    reply.headers_mut().insert(ALLOW, names);
    reply
}

/// Rejects requests of web pages: browsers send `Origin`, programs do not.
pub fn check_origin<B>(request: &Request<B>) -> Result<(), Reply> {
    match request.headers().contains_key(ORIGIN) {
        true => Err(text(StatusCode::FORBIDDEN, "")),
        false => Ok(()),
    }
}

/// Prevents DNS rebinding: a web site's name that resolves to loopback must not reach a loopback listener.
pub fn check_loopback_host<B>(request: &Request<B>) -> Result<(), Reply> {
    if is_for_loopback(request.uri(), request.headers()) {
        return Ok(());
    }
    Err(text(
        StatusCode::FORBIDDEN,
        "this server listens on loopback and answers to no other host name",
    ))
}

/// Rejects methods other than [`READ_METHODS`].
pub fn check_read_method<B>(request: &Request<B>) -> Result<(), Reply> {
    match READ_METHODS.contains(request.method()) {
        true => Ok(()),
        false => Err(method_not_allowed(READ_METHODS)),
    }
}

/// Checks a request of a metrics listener; `is_loopback_only` rejects foreign host names.
pub fn check_metrics_route<B>(request: &Request<B>, is_loopback_only: bool) -> Result<(), Reply> {
    check_origin(request)?;
    if is_loopback_only {
        check_loopback_host(request)?;
    }
    match request.uri().path() {
        "/metrics" => check_read_method(request),
        _ => Err(text(StatusCode::NOT_FOUND, "")),
    }
}

fn reply(status: StatusCode, body: Bytes, kind: Option<&'static str>) -> Reply {
    let mut reply = Response::new(Full::from(body));
    *reply.status_mut() = status;
    if let Some(kind) = kind {
        reply.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    }
    reply
}
