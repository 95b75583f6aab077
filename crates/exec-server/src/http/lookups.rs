//! How many questions for the addresses of names may be open.
//!
//! One may take a minute where nobody answers it, and meanwhile a thread, also when nobody waits for it any more. Files
//! and new connections need those threads too, and other clients have names of their own.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Half of the threads that an event loop has.
const MAX_OF_SERVER: usize = 256;
/// So many that a client hardly notices, and so few that it takes several to be noticed by others.
const MAX_OF_CLIENT: usize = 64;

/// How many questions one client may have open; cheap to clone.
#[derive(Debug, Clone)]
pub struct Lookups {
    server: Arc<Semaphore>,
    client: Arc<Semaphore>,
}

/// The right to one question; to be held until it is answered.
#[derive(Debug)]
pub struct Turn {
    _client: OwnedSemaphorePermit,
    _server: OwnedSemaphorePermit,
}

impl Lookups {
    /// Those of a server.
    pub fn of_server() -> Self {
        let server = Arc::new(Semaphore::new(MAX_OF_SERVER));
        Self { server, client: Arc::new(Semaphore::new(MAX_OF_CLIENT)) }
    }

    /// Those of one more client of the same server.
    pub fn of_client(&self) -> Self {
        Self { client: Arc::new(Semaphore::new(MAX_OF_CLIENT)), ..self.clone() }
    }

    /// Waits until a question may be asked.
    pub async fn turn(&self) -> Turn {
        const OPEN: &str = "nobody closes it";
        let client = self.client.clone().acquire_owned().await.expect(OPEN);
        let server = self.server.clone().acquire_owned().await.expect(OPEN);
        Turn { _client: client, _server: server }
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Waker};

    use super::*;

    fn take(lookups: &Lookups) -> Option<Turn> {
        match pin!(lookups.turn()).poll(&mut Context::from_waker(Waker::noop())) {
            std::task::Poll::Ready(turn) => Some(turn),
            std::task::Poll::Pending => None,
        }
    }

    #[test]
    fn a_client_is_bounded_before_all_of_them_are() {
        let server = Lookups::of_server();
        let clients: Vec<_> = (0..5).map(|_| server.of_client()).collect();
        let mut turns: Vec<_> =
            clients[..4].iter().flat_map(|client| std::iter::from_fn(|| take(client))).collect();
        assert_eq!(turns.len(), MAX_OF_SERVER);
        assert!(take(&clients[4]).is_none(), "nothing is left for anyone");
        turns.pop();
        assert!(take(&clients[4]).is_some());
    }
}
