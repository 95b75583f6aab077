//! A TCP link to a server that can be cut and mended.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Forwards connections to a server until it is dropped.
pub struct Link {
    address: SocketAddr,
    is_up: watch::Sender<bool>,
    connections: Arc<AtomicUsize>,
    accepting: JoinHandle<()>,
}

impl Link {
    /// A link to the server at this address.
    pub async fn to(server: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let (is_up, watched) = watch::channel(true);
        let connections = Arc::new(AtomicUsize::new(0));
        let accepting = tokio::spawn({
            let connections = connections.clone();
            async move {
                while let Ok((stream, _)) = listener.accept().await {
                    // A connection on a link that is down is closed at once.
                    if *watched.borrow() {
                        connections.fetch_add(1, Ordering::Relaxed);
                        tokio::spawn(forward(stream, server, watched.clone()));
                    }
                }
            }
        });
        Ok(Self { address, is_up, connections, accepting })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Closes all connections, and new ones as soon as they come.
    pub fn cut(&self) {
        self.is_up.send_replace(false);
    }

    pub fn mend(&self) {
        self.is_up.send_replace(true);
    }

    /// Number of connections that were forwarded.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn forward(mut stream: TcpStream, server: SocketAddr, mut is_up: watch::Receiver<bool>) {
    let Ok(mut far) = TcpStream::connect(server).await else { return };
    tokio::select! {
        _ = copy_bidirectional(&mut stream, &mut far) => {}
        _ = is_up.wait_for(|is_up| !is_up) => {}
    }
}
