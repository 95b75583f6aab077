//! Limits concurrent DNS lookups.
//!
//! A lookup blocks a thread, up to a minute if no DNS server answers, even after its exchange is cancelled. File
//! requests and new connections use the same threads, so lookups are bounded per server and per client.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Half of the 512 blocking threads that tokio allows per event loop.
const MAX_OF_SERVER: usize = 256;
/// Enough for one client, and few enough that one client cannot exhaust the server's limit.
const MAX_OF_CLIENT: usize = 64;

/// The lookup limit of one client; cheap to clone.
#[derive(Debug, Clone)]
pub struct DnsLimit {
    server: Arc<Semaphore>,
    client: Arc<Semaphore>,
}

/// Permit for one lookup; held until the lookup has returned.
#[derive(Debug)]
pub struct DnsPermit {
    _client: OwnedSemaphorePermit,
    _server: OwnedSemaphorePermit,
}

impl DnsLimit {
    /// Creates the limit of a server; clients get theirs from `of_client`.
    pub fn of_server() -> Self {
        let server = Arc::new(Semaphore::new(MAX_OF_SERVER));
        Self { server, client: Arc::new(Semaphore::new(MAX_OF_CLIENT)) }
    }

    /// Creates the limit of another client of the same server.
    pub fn of_client(&self) -> Self {
        Self { client: Arc::new(Semaphore::new(MAX_OF_CLIENT)), ..self.clone() }
    }

    /// Waits for a permit.
    pub async fn acquire(&self) -> DnsPermit {
        const OPEN: &str = "the semaphore is never closed";
        let client = self.client.clone().acquire_owned().await.expect(OPEN);
        let server = self.server.clone().acquire_owned().await.expect(OPEN);
        DnsPermit { _client: client, _server: server }
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Waker};

    use super::*;

    fn take(dns_limit: &DnsLimit) -> Option<DnsPermit> {
        match pin!(dns_limit.acquire()).poll(&mut Context::from_waker(Waker::noop())) {
            std::task::Poll::Ready(permit) => Some(permit),
            std::task::Poll::Pending => None,
        }
    }

    #[test]
    fn a_client_reaches_its_limit_before_the_limit_of_the_server() {
        let server = DnsLimit::of_server();
        let clients: Vec<_> = (0..5).map(|_| server.of_client()).collect();
        let mut turns: Vec<_> =
            clients[..4].iter().flat_map(|client| std::iter::from_fn(|| take(client))).collect();
        assert_eq!(turns.len(), MAX_OF_SERVER);
        assert!(take(&clients[4]).is_none(), "the limit of the server is reached");
        turns.pop();
        assert!(take(&clients[4]).is_some());
    }
}
