//! An HTTP proxy that only opens tunnels, for a test to count and to cut.

use std::sync::{Arc, Mutex};

use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::web::{Visit, Web, WebRequest};

/// A proxy; it ends with the test, and its tunnels with it.
pub struct Tunnels {
    web: Web,
    open: Arc<Mutex<JoinSet<()>>>,
}

impl Tunnels {
    /// A proxy that leads anywhere.
    pub async fn start() -> Self {
        let open = Arc::new(Mutex::new(JoinSet::new()));
        let tunnels = open.clone();
        let web = Web::start(move |visit| dig(visit, tunnels.clone())).await;
        Self { web, open }
    }

    /// What a variable says that names it; with a password, so that it can be seen to arrive.
    pub fn url(&self) -> String {
        self.web.url("").replace("http://", "http://me:pass@")
    }

    /// What it was asked for.
    pub fn requests(&self) -> Vec<WebRequest> {
        self.web.requests()
    }

    /// Ends every tunnel; the next one gets through.
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

/// A server in front of another one that knows it by a path of its own; its address.
///
/// The path is taken away from the first request of each connection, which is all that our programs send on one.
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
