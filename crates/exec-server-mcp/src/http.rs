//! The streamable HTTP transport: one endpoint, `/mcp`, on a loopback address or behind a token.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use exec_server_transport::local_listener::{BindError, Gate, LocalListener, is_same_token};
use http::{Request, Response, StatusCode, header};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use tokio::net::TcpStream;

use rmcp::ServerHandler;

/// The path of the endpoint.
pub const ENDPOINT: &str = "/mcp";

/// Connections at once; each has little memory, and an agent needs a few.
const MAX_CONNECTIONS: usize = 256;

/// A bound endpoint.
pub struct HttpEndpoint {
    listener: LocalListener,
    token: Option<String>,
}

type Body = BoxBody<Bytes, Infallible>;

impl HttpEndpoint {
    /// Binds an address; with a token, requests need it as their bearer token.
    pub async fn bind(address: SocketAddr, token: Option<String>) -> Result<Self, BindError> {
        let listener = LocalListener::bind(address, token.is_some(), MAX_CONNECTIONS).await?;
        Ok(Self { listener, token })
    }

    /// The URL to give to clients.
    pub fn url(&self) -> std::io::Result<String> {
        Ok(format!("http://{}{ENDPOINT}", self.listener.address()?))
    }

    /// What a page of this very address has as its origin; every other page is refused.
    fn own_origins(&self) -> Vec<String> {
        let Ok(address) = self.listener.address() else { return Vec::new() };
        let port = address.port();
        ["localhost", "127.0.0.1", "[::1]"].map(|host| format!("http://{host}:{port}")).to_vec()
    }

    /// Serves until the future is dropped; each MCP session, or request without one, has a handler of its own.
    pub async fn serve<H: ServerHandler>(
        self,
        gate: Gate,
        handler: impl Fn() -> H + Send + Sync + 'static,
    ) {
        // With a token a request proves itself, so that it may name the machine as it likes.
        let mut config = StreamableHttpServerConfig::default()
            .enforce_origin_validation()
            .with_allowed_origins(self.own_origins());
        if self.token.is_some() {
            config = config.disable_allowed_hosts();
        }
        let sessions = Arc::new(LocalSessionManager::default());
        let service = StreamableHttpService::new(move || Ok(handler()), sessions, config);
        let token: Option<Arc<str>> = self.token.map(Into::into);
        loop {
            let accepted = self.listener.accept().await;
            let (service, token) = (service.clone(), token.clone());
            tokio::spawn(
                accepted
                    .serve(gate.clone(), move |stream| serve_connection(stream, service, token)),
            );
        }
    }
}

async fn serve_connection<H: ServerHandler>(
    stream: TcpStream,
    service: StreamableHttpService<H, LocalSessionManager>,
    token: Option<Arc<str>>,
) {
    let answer = service_fn(move |request: Request<Incoming>| {
        let (service, token) = (service.clone(), token.clone());
        async move { Ok::<_, Infallible>(handle(request, &service, token.as_deref()).await) }
    });
    let connection =
        hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), answer);
    if let Err(error) = connection.await {
        tracing::debug!(%error, "a connection ended");
    }
}

async fn handle<H: ServerHandler>(
    request: Request<Incoming>,
    service: &StreamableHttpService<H, LocalSessionManager>,
    token: Option<&str>,
) -> Response<Body> {
    if request.uri().path() != ENDPOINT {
        return refusal(StatusCode::NOT_FOUND, "the endpoint is /mcp");
    }
    if token.is_some_and(|token| !has_token(&request, token)) {
        return refusal(StatusCode::UNAUTHORIZED, "a bearer token is needed");
    }
    service.handle(request).await
}

fn has_token(request: &Request<Incoming>, token: &str) -> bool {
    let given = request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let given = given.and_then(|value| value.split_once(' '));
    given.is_some_and(|(scheme, given)| {
        scheme.eq_ignore_ascii_case("bearer")
            && is_same_token(given.trim().as_bytes(), token.as_bytes())
    })
}

fn refusal(status: StatusCode, text: &'static str) -> Response<Body> {
    let mut response = Response::new(Full::new(Bytes::from_static(text.as_bytes())).boxed());
    *response.status_mut() = status;
    response
}
