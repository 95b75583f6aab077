//! A load balancer for tests: one address, several servers, connections of a removed server are cut.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinHandle};

/// Passes each connection on to the first server in its list that accepts it.
pub struct Balancer {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
    task: JoinHandle<()>,
}

#[derive(Default)]
struct State {
    servers: Vec<SocketAddr>,
    links: Vec<(SocketAddr, AbortHandle)>,
}

impl Balancer {
    /// Starts without servers, on a free loopback port.
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let address = listener.local_addr().expect("it is bound");
        let state = Arc::<Mutex<State>>::default();
        let shared = state.clone();
        let task = tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let link = tokio::spawn(pass_on(near, shared.clone()));
                drop(link);
            }
        });
        Self { address, state, task }
    }

    /// Its URL.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Uses these servers for new connections, the first one first; other connections stay.
    pub fn prefer(&self, servers: &[SocketAddr]) {
        self.state.lock().expect("no holder panics").servers = servers.to_vec();
    }

    /// Uses these servers for new connections, the first one first; connections of others are cut.
    pub fn set(&self, servers: &[SocketAddr]) {
        let mut state = self.state.lock().expect("no holder panics");
        state.servers = servers.to_vec();
        state.links.retain(|(server, link)| {
            let stays = servers.contains(server);
            if !stays {
                link.abort();
            }
            stays && !link.is_finished()
        });
    }
}

impl Drop for Balancer {
    fn drop(&mut self) {
        self.task.abort();
        self.set(&[]);
    }
}

async fn pass_on(mut near: TcpStream, state: Arc<Mutex<State>>) {
    let servers = state.lock().expect("no holder panics").servers.clone();
    for server in servers {
        let Ok(mut far) = TcpStream::connect(server).await else { continue };
        let _ = (near.set_nodelay(true), far.set_nodelay(true));
        let mut state = state.lock().expect("no holder panics");
        // The list may have changed meanwhile.
        if !state.servers.contains(&server) {
            return;
        }
        let carrying = async move {
            let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
        };
        let link = tokio::spawn(carrying).abort_handle();
        state.links.push((server, link));
        return;
    }
}
