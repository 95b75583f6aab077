//! HTTP routes of the rendezvous and the upgrade to a websocket.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use exec_server_protocol::trace_context::TraceContext;
use exec_server_relay::registry_types::{REJECTION_REASON_HEADER, STREAM_ID_HEADER};
use exec_server_relay::switchboard::{AttachError, Ticket};
use exec_server_transport::http_front::{self, Answer, READ_METHODS, Reply, Upgrade, text};
use exec_server_transport::spans::{Parent, Span, SpanKind};
use exec_server_transport::upgrade::accept;
use hyper::body::Incoming;
use hyper::header::HeaderValue;
use hyper::{Method, Request, StatusCode};
use tokio::io::{AsyncRead, AsyncWrite};
use tracing::Instrument;

use crate::api::{self, REQUEST_ID, Refusal, Route, header_for_logs};
use crate::bus::Link;
use crate::server::Rendezvous;
use crate::signed_url::{self, Claims, SocketRole};
use crate::socket::run_socket;
use crate::store::{Denial, StoreError, TokenRole};

/// What a websocket is attached to, from its handshake.
struct Attached {
    link: Box<dyn Link>,
    claims: Claims,
    request_id: Option<String>,
    /// `X-Forwarded-For` as received; unverified.
    forwarded_for: Option<String>,
}

/// Serves HTTP on one connection, then the websocket if it is upgraded.
pub async fn serve<S>(rendezvous: Arc<Rendezvous>, stream: S, peer: SocketAddr)
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let timeout = rendezvous.config.timings.handshake;
    let (stop, answer) = (rendezvous.wait_for_draining(), |request| answer(&rendezvous, request));
    let upgraded = http_front::serve(stream, peer, timeout, stop, answer).await;
    let Some((stream, attached)) = upgraded else { return };
    let Attached { link, claims, request_id, forwarded_for } = attached;
    let Claims { environment, registration, role, token, .. } = &claims;
    let (connect_id, role) = (role.connect_id(), role.name());
    let span = tracing::info_span!("socket", %peer, forwarded_for, %environment, %registration, role, %token, connect_id, request_id);
    let running = async {
        tracing::info!("attached");
        let meter = rendezvous.metrics.relay_meter();
        let timings = &rendezvous.config.timings;
        let ended = run_socket(stream, link, timings, meter).await;
        let reason = ended.end.reason();
        rendezvous.metrics.close(reason);
        tracing::info!(stream_id = ended.stream_id, reason, "detached");
        ended.finish_close(timings.close).await;
    };
    running.instrument(span).await;
}

/// Routes a request.
async fn answer(rendezvous: &Rendezvous, request: Request<Incoming>) -> Answer<Attached> {
    if let Err(reply) = http_front::check_origin(&request) {
        return Answer::Reply(reply);
    }
    let started = Instant::now();
    let mut span = request_span(rendezvous, &request);
    let path = request.uri().path();
    if let Some(segment) = path.strip_prefix(signed_url::PATH).filter(|it| !it.contains('/')) {
        let segment = segment.to_owned();
        let opened = open_websocket(rendezvous, request, &segment).await;
        rendezvous.metrics.request("attach", opened.is_ok(), started);
        if let Err(Rejection { reason, .. }) = &opened {
            span.fail(reason.unwrap_or("not_a_websocket"));
        }
        return opened.map_err(|rejection| rejection.into_reply(rendezvous)).into();
    }
    if let Some(route) = Route::find(path) {
        let method = route.name();
        let environment = route.environment().map(str::to_owned);
        let request_id = header_for_logs(&request, REQUEST_ID.as_str());
        let stream_id = header_for_logs(&request, STREAM_ID_HEADER);
        let answered = if rendezvous.is_draining() {
            Err(Refusal::Draining)
        } else {
            api::answer(rendezvous, route, request).await
        };
        rendezvous.metrics.request(method, answered.is_ok(), started);
        return Answer::Reply(answered.unwrap_or_else(|refusal| {
            let code = refusal.code();
            rendezvous.metrics.refusal(method, code);
            span.fail(code);
            tracing::info!(method, environment, request_id, stream_id, code, "request refused");
            refusal.into_reply()
        }));
    }
    Answer::Reply(observe(rendezvous, &request).await.unwrap_or_else(|refusal| {
        // Debug level: unauthenticated requests can arrive at any rate.
        tracing::debug!(path = request.uri().path(), code = refusal.code(), "request refused");
        refusal.into_reply()
    }))
}

/// The span of a request for the API or a websocket, as a child of the trace context in its headers.
fn request_span(rendezvous: &Rendezvous, request: &Request<Incoming>) -> Span {
    let tracer = &rendezvous.config.tracer;
    if !tracer.is_on() {
        return Span::default();
    }
    let (path, route) = (request.uri().path(), Route::find(request.uri().path()));
    let name = match &route {
        Some(route) => route.name(),
        None if path.starts_with(signed_url::PATH) => "attach",
        None => return Span::default(),
    };
    let header = |name| request.headers().get(name).and_then(|value| value.to_str().ok());
    let context =
        header("traceparent").and_then(|parent| TraceContext::parse(parent, header("tracestate")));
    let parent = context.as_ref().map_or(Parent::None, Parent::Remote);
    let mut span = tracer.start(SpanKind::Server, name, parent);
    if let Some(environment) = route.as_ref().and_then(Route::environment) {
        span.set("exec_server.environment", environment.to_owned());
    }
    span
}

/// Serves the health, version and metrics endpoints.
async fn observe(rendezvous: &Rendezvous, request: &Request<Incoming>) -> Result<Reply, Refusal> {
    let version = env!("CARGO_PKG_VERSION");
    let path = request.uri().path();
    if !matches!(path, "/livez" | "/readyz" | "/healthz" | "/version" | "/metrics") {
        return Err(Refusal::NotFound);
    }
    if !READ_METHODS.contains(request.method()) {
        return Err(Refusal::Method(READ_METHODS));
    }
    match path {
        "/version" => Ok(http_front::version("exec-server-rendezvous", version)),
        "/metrics" => {
            // Metrics reveal communication patterns, so they need an admin token.
            let token = api::authenticate(rendezvous, request).await?;
            if token.role != TokenRole::Admin {
                return Err(Refusal::Forbidden);
            }
            Ok(metrics(rendezvous))
        }
        path => {
            let is_ready = path == "/livez" || rendezvous.is_ready().await;
            Ok(http_front::health(is_ready, version))
        }
    }
}

/// Renders the metrics in the OpenMetrics format.
pub fn metrics(rendezvous: &Rendezvous) -> Reply {
    http_front::openmetrics(rendezvous.render_metrics())
}

/// Why a websocket is rejected. The status decides what the peer does next; the reason is for its log.
///
/// An executor registers again on 4xx and retries on 5xx. A harness that connects for the first time requests a new URL
/// on 401 and gives up on all other statuses.
struct Rejection {
    status: StatusCode,
    reason: Option<&'static str>,
    text: String,
}

impl Rejection {
    fn new(status: StatusCode, reason: &'static str) -> Self {
        Self { status, reason: Some(reason), text: reason.to_owned() }
    }

    fn into_reply(self, rendezvous: &Rendezvous) -> Reply {
        let mut reply = text(self.status, self.text);
        let reason = self.reason.unwrap_or("not_a_websocket");
        rendezvous.metrics.rejection(reason);
        if self.reason.is_some() {
            let value = HeaderValue::from_static(reason);
            reply.headers_mut().insert(REJECTION_REASON_HEADER, value);
        }
        reply
    }
}

async fn open_websocket(
    rendezvous: &Rendezvous,
    request: Request<Incoming>,
    segment: &str,
) -> Result<Upgrade<Attached>, Rejection> {
    let request_id = header_for_logs(&request, REQUEST_ID.as_str());
    let accepted = match accept(request.headers()) {
        Ok(accepted) if request.method() == Method::GET => accepted,
        Ok(_) => return Err(no_websocket("a websocket handshake must use GET")),
        Err(error) => return Err(no_websocket(&error.to_string())),
    };
    let query = request.uri().query().unwrap_or_default();
    let now = rendezvous.config.clock.now();
    let claims = rendezvous.keys.current().verify(segment, query, now).map_err(|error| {
        let status = match error.0 {
            "unknown_route" => StatusCode::NOT_FOUND,
            _ => StatusCode::UNAUTHORIZED,
        };
        // Debug level: unauthenticated requests can arrive at any rate.
        tracing::debug!(request_id, reason = error.0, "websocket refused");
        Rejection::new(status, error.0)
    })?;
    let is_executor = matches!(claims.role, SocketRole::Executor);
    let is_leaving = || {
        rendezvous.is_draining()
            || is_executor && rendezvous.is_handing_over.load(Ordering::Relaxed)
    };
    let attached = match is_leaving() {
        true => Err(away(&claims.role, "pod_draining")),
        false => attach(rendezvous, &claims).await,
    };
    let attached = match attached {
        // Re-check: a socket attached during drain would never be closed.
        Ok(_) if is_leaving() => Err(away(&claims.role, "pod_draining")),
        attached => attached,
    };
    let link = attached.inspect_err(|rejection| {
        let Claims { environment, registration, token, role, .. } = &claims;
        let (connect_id, role, reason) = (role.connect_id(), role.name(), rejection.reason);
        tracing::info!(%environment, %registration, %token, role, connect_id, request_id, reason, "websocket refused");
    })?;
    let forwarded_for = header_for_logs(&request, "x-forwarded-for");
    let attached = Attached { link, claims, request_id, forwarded_for };
    Ok(Upgrade::new(request, accepted, attached))
}

/// Temporarily unavailable: an executor retries the same URL on 503, while a harness would give up on 503.
fn away(role: &SocketRole, reason: &'static str) -> Rejection {
    let status = match role {
        SocketRole::Executor => StatusCode::SERVICE_UNAVAILABLE,
        SocketRole::Harness { .. } => StatusCode::UNAUTHORIZED,
    };
    Rejection::new(status, reason)
}

fn no_websocket(why: &str) -> Rejection {
    tracing::debug!(why, "websocket refused");
    Rejection { status: StatusCode::BAD_REQUEST, reason: None, text: why.to_owned() }
}

/// Checks what the signature does not cover: that token, registration and nonce are still valid.
async fn attach(rendezvous: &Rendezvous, claims: &Claims) -> Result<Box<dyn Link>, Rejection> {
    let attached = match &claims.role {
        SocketRole::Executor => attach_executor(rendezvous, claims).await,
        SocketRole::Harness { nonce } => attach_harness(rendezvous, claims, nonce).await,
    };
    let unauthorized = |reason| Rejection::new(StatusCode::UNAUTHORIZED, reason);
    attached.map_err(|refused| match refused {
        Refused::Store(error) => {
            tracing::error!(%error, "the store failed");
            away(&claims.role, "route_unavailable")
        }
        Refused::Denied(Denial::EndedToken) => unauthorized("invalid_secret"),
        Refused::Denied(Denial::OldRegistration | Denial::UsedNonce)
        | Refused::Unattached(AttachError::Stale) => unauthorized("expired"),
        // A harness retries once on 401 and then gets the detailed error from the registry.
        Refused::Unattached(AttachError::Offline | AttachError::Full) => {
            unauthorized("route_unavailable")
        }
        Refused::Unattached(AttachError::Unavailable) => away(&claims.role, "route_unavailable"),
        Refused::Unattached(AttachError::TokenFull) => {
            Rejection::new(StatusCode::TOO_MANY_REQUESTS, "route_unavailable")
        }
    })
}

/// Why a socket with a valid signature is not attached.
enum Refused {
    Store(StoreError),
    Denied(Denial),
    Unattached(AttachError),
}

async fn attach_executor(
    rendezvous: &Rendezvous,
    claims: &Claims,
) -> Result<Box<dyn Link>, Refused> {
    let admit = async || {
        let now = rendezvous.config.clock.now();
        let admitted = rendezvous.store.admit_executor(claims.clone(), now).await;
        admitted.map_err(Refused::Store)?.map_err(Refused::Denied)
    };
    let generation = admit().await?;
    let attached = rendezvous.bus.attach_executor(ticket(claims), generation).await;
    // A registration made in the meantime did not see this socket and so did not close it.
    admit().await?;
    attached.map_err(Refused::Unattached)
}

async fn attach_harness(
    rendezvous: &Rendezvous,
    claims: &Claims,
    nonce: &str,
) -> Result<Box<dyn Link>, Refused> {
    let now = rendezvous.config.clock.now();
    let admitted = rendezvous.store.admit_harness(claims.clone(), nonce.to_owned(), now).await;
    let max_streams = admitted.map_err(Refused::Store)?.map_err(Refused::Denied)?;
    let max_streams = max_streams.and_then(|max| usize::try_from(max).ok());
    let attached = rendezvous.bus.attach_harness(ticket(claims), max_streams).await;
    attached.map_err(Refused::Unattached)
}

fn ticket(claims: &Claims) -> Ticket {
    Ticket {
        environment: claims.environment.clone(),
        registration: claims.registration.clone(),
        token: claims.token.clone(),
    }
}
