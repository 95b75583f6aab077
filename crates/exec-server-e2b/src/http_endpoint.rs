//! The listener.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;

use exec_server_transport::local_listener::{BindError, Gate, LocalListener};
use http::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::{E2bServer, Shared, routes};

/// Connections at once: every running command and watch of an SDK has one.
const MAX_CONNECTIONS: usize = 2048;

/// A bound address.
pub struct HttpEndpoint {
    listener: LocalListener,
}

impl HttpEndpoint {
    /// Binds an address; one that the network reaches needs a token.
    pub async fn bind(address: SocketAddr, has_token: bool) -> Result<Self, BindError> {
        Ok(Self { listener: LocalListener::bind(address, has_token, MAX_CONNECTIONS).await? })
    }

    /// The URL for `E2B_SANDBOX_URL` and `E2B_API_URL`.
    pub fn url(&self) -> std::io::Result<String> {
        Ok(format!("http://{}", self.listener.address()?))
    }

    /// Serves until the future is dropped; then all connections end.
    pub async fn serve(self, gate: Gate, server: E2bServer) {
        let mut connections = JoinSet::new();
        loop {
            while connections.try_join_next().is_some() {}
            let accepted = self.listener.accept().await;
            let shared = server.shared.clone();
            connections
                .spawn(accepted.serve(gate.clone(), |stream| serve_connection(stream, shared)));
        }
    }
}

async fn serve_connection(stream: TcpStream, shared: Arc<Shared>) {
    // Small messages of streams are not held back.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "could not set TCP_NODELAY");
    }
    let answer = service_fn(move |request: Request<Incoming>| {
        let shared = shared.clone();
        async move { Ok::<_, Infallible>(routes::handle(shared, request).await) }
    });
    let connection =
        hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), answer);
    if let Err(error) = connection.await {
        tracing::debug!(%error, "a connection ended");
    }
}
