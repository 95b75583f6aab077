//! The listener.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;

use http::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::{E2bServer, Shared, routes};

/// Connections at once: every running command and watch of an SDK has one.
const MAX_CONNECTIONS: usize = 2048;

/// Whether the peer of an accepted connection may connect, by its address and the local one; may block.
pub type Gate = Arc<dyn Fn(SocketAddr, SocketAddr) -> bool + Send + Sync>;

/// A bound address.
pub struct HttpEndpoint {
    listener: TcpListener,
}

/// Why an address is refused.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// The network reaches the address, and there is no token.
    #[error("{0} is not a loopback address, so that a token is needed (--http-token-file)")]
    NeedsToken(SocketAddr),
    /// The address cannot be bound.
    #[error("cannot listen on {0}")]
    Bind(SocketAddr, #[source] std::io::Error),
}

impl HttpEndpoint {
    /// Binds an address; one that the network reaches needs a token.
    pub async fn bind(address: SocketAddr, has_token: bool) -> Result<Self, BindError> {
        if !address.ip().is_loopback() && !has_token {
            return Err(BindError::NeedsToken(address));
        }
        let listener =
            TcpListener::bind(address).await.map_err(|error| BindError::Bind(address, error))?;
        Ok(Self { listener })
    }

    /// The URL for `E2B_SANDBOX_URL` and `E2B_API_URL`.
    pub fn url(&self) -> std::io::Result<String> {
        Ok(format!("http://{}", self.listener.local_addr()?))
    }

    /// Serves until the future is dropped; then all connections end.
    pub async fn serve(self, gate: Gate, server: E2bServer) {
        let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        let mut connections = JoinSet::new();
        loop {
            let slot = slots.clone().acquire_owned().await.expect("it is never closed");
            while connections.try_join_next().is_some() {}
            let (stream, peer) = match self.listener.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "could not accept a connection");
                    continue;
                }
            };
            let (shared, gate) = (server.shared.clone(), gate.clone());
            connections.spawn(async move {
                let Ok(local) = stream.local_addr() else { return };
                let admitted = tokio::task::spawn_blocking(move || gate(peer, local)).await;
                if admitted.unwrap_or(false) {
                    serve_connection(stream, shared).await;
                }
                drop(slot);
            });
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
