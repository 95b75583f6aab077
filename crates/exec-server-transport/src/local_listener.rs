//! A TCP listener of a client command: on loopback for the processes that a gate admits, elsewhere behind a token.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::http_front::accept_next;

/// Whether the peer of an accepted connection may connect, by its address and the local one; may block.
pub type Gate = Arc<dyn Fn(SocketAddr, SocketAddr) -> bool + Send + Sync>;

/// A bound listener with a limit of connections.
#[derive(Debug)]
pub struct LocalListener {
    listener: TcpListener,
    slots: Arc<Semaphore>,
}

/// Why an address is refused.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// The network reaches the address, and there is no token.
    #[error("{0} is not a loopback address, so that a token is needed (--http-token-file)")]
    NeedsToken(SocketAddr),
    /// The address cannot be bound.
    #[error("cannot listen on {0}")]
    Bind(SocketAddr, #[source] io::Error),
}

/// An accepted connection that is not served yet.
pub struct Accepted {
    stream: TcpStream,
    peer: SocketAddr,
    slot: OwnedSemaphorePermit,
}

impl LocalListener {
    /// Binds an address; one that the network reaches needs a token.
    pub async fn bind(
        address: SocketAddr,
        has_token: bool,
        most_connections: usize,
    ) -> Result<Self, BindError> {
        if !address.ip().is_loopback() && !has_token {
            return Err(BindError::NeedsToken(address));
        }
        let bound = TcpListener::bind(address).await;
        let listener = bound.map_err(|error| BindError::Bind(address, error))?;
        Ok(Self { listener, slots: Arc::new(Semaphore::new(most_connections)) })
    }

    /// The address, with the port that the system has chosen.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Waits for a connection, and before for the end of another one if there are too many.
    pub async fn accept(&self) -> Accepted {
        let slot = self.slots.clone().acquire_owned().await.expect("it is never closed");
        let (stream, peer) = accept_next(|| self.listener.accept()).await;
        Accepted { stream, peer, slot }
    }
}

impl Accepted {
    /// Serves the connection if the gate admits its peer, and closes it otherwise.
    pub async fn serve<F: Future<Output = ()>>(
        self,
        gate: Gate,
        serve: impl FnOnce(TcpStream) -> F,
    ) {
        let Self { stream, peer, slot } = self;
        let Ok(local) = stream.local_addr() else { return };
        let admitted = tokio::task::spawn_blocking(move || gate(peer, local)).await;
        if admitted.unwrap_or(false) {
            serve(stream).await;
        }
        drop(slot);
    }
}

/// Compares a token in a time that does not depend on where the first difference is.
pub fn is_same_token(given: &[u8], token: &[u8]) -> bool {
    let differences = given.iter().zip(token).fold(0, |sum, (a, b)| sum | (a ^ b));
    given.len() == token.len() && differences == 0
}
