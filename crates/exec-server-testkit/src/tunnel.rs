//! An HTTP CONNECT proxy that counts its tunnels and can cut them.

use std::sync::{Arc, Mutex};

use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::web::{Visit, Web, WebRequest};

/// A proxy; it stops with the test, and closes its tunnels.
pub struct Tunnels {
    web: Web,
    open: Arc<Mutex<JoinSet<()>>>,
}

impl Tunnels {
    /// Starts a proxy for any destination.
    pub async fn start() -> Self {
        let open = Arc::new(Mutex::new(JoinSet::new()));
        let tunnels = open.clone();
        let web = Web::start(move |visit| dig(visit, tunnels.clone())).await;
        Self { web, open }
    }

    /// Proxy URL with a password, so that a test can check that it is sent.
    pub fn url(&self) -> String {
        self.web.url("").replace("http://", "http://me:pass@")
    }

    /// All CONNECT requests so far.
    pub fn requests(&self) -> Vec<WebRequest> {
        self.web.requests()
    }

    /// Closes every tunnel; new tunnels are accepted.
    pub fn cut(&self) {
        self.open.lock().expect("no holder panics").abort_all();
    }
}

async fn dig(mut visit: Visit, tunnels: Arc<Mutex<JoinSet<()>>>) {
    let Some(request) = visit.request().await else { return };
    assert_eq!(request.method, "CONNECT", "{request:?}");
    let Ok(mut far) = TcpStream::connect(&request.target).await else {
        visit.send("HTTP/1.1 502 Bad Gateway\r\n\r\n").await;
        return;
    };
    visit.send("HTTP/1.1 200 Connection established\r\n\r\n").await;
    let mut near = visit.into_link();
    let mut tunnels = tunnels.lock().expect("no holder panics");
    tunnels.spawn(async move {
        let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
    });
}

/// A reverse proxy that serves `server` below a path prefix; returns its address.
///
/// The prefix is removed from the first request of each connection only; our programs send one request per
/// connection.
pub async fn strip_path(path: &'static str, server: std::net::SocketAddr) -> std::net::SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
    let address = listener.local_addr().expect("it is bound");
    tokio::spawn(async move {
        while let Ok((near, _)) = listener.accept().await {
            tokio::spawn(pass_on(near, path, server));
        }
    });
    address
}

async fn pass_on(mut near: TcpStream, path: &str, server: std::net::SocketAddr) {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut head = Vec::new();
    while !head.windows(2).any(|pair| pair == b"\r\n") {
        if near.read_buf(&mut head).await.unwrap_or(0) == 0 {
            return;
        }
    }
    let text = String::from_utf8_lossy(&head);
    let wanted = format!(" {path}/");
    // A request without the path prefix is dropped.
    let Some((method, rest)) = text.split_once(&wanted) else { return };
    assert!(!method.contains(' '), "the path comes first");
    let mut far = TcpStream::connect(server).await.expect("the server is there");
    let begin = format!("{method} /").into_bytes();
    let rest = head[head.len() - rest.len()..].to_vec();
    far.write_all(&[begin, rest].concat()).await.expect("it is taken");
    let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
}
