//! What the examples share: a server on a loopback port, in this process.

use std::sync::Arc;

use exec_server::{DEFAULT_LISTEN_URL, Listener, Server, ServerConfig};

/// Any error that ends an example.
pub type Error = Box<dyn std::error::Error>;

/// Starts a server and returns it with its URL.
pub async fn start_server() -> Result<(Arc<Server>, String), Error> {
    let server = Server::new(ServerConfig::new(DEFAULT_LISTEN_URL.parse()?))?;
    let listener = Listener::bind(&server).await?;
    let url = listener.url()?;
    let serving = server.clone();
    tokio::spawn(async move { listener.serve(&serving).await });
    Ok((server, url))
}
