//! A web server scripted byte by byte, for responses that no server library would send.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use crate::DEADLINE;

/// A web server; it stops with the test.
pub struct Web {
    address: SocketAddr,
    scheme: &'static str,
    shared: Arc<Shared>,
    serving: JoinHandle<()>,
}

#[derive(Default)]
struct Shared {
    requests: Mutex<Vec<WebRequest>>,
    connections: AtomicUsize,
}

/// A received request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WebRequest {
    /// The method.
    pub method: String,
    /// Request target.
    pub target: String,
    /// Headers as received.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Vec<u8>,
}

impl WebRequest {
    /// A header's value.
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(given, _)| given.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }

    /// Header names in order.
    pub fn names(&self) -> Vec<&str> {
        self.headers.iter().map(|(name, _)| name.as_str()).collect()
    }
}

/// The byte stream of a connection.
pub trait Link: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Link for T {}

/// One accepted connection.
pub struct Visit {
    link: Box<dyn Link>,
    received: Vec<u8>,
    shared: Arc<Shared>,
}

impl Web {
    /// A server that passes each connection to `serve`.
    pub async fn start<S, F>(serve: S) -> Self
    where
        S: Fn(Visit) -> F + Send + Sync + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        Self::listen(None, serve).await
    }

    /// The same with TLS.
    pub async fn start_tls<S, F>(acceptor: TlsAcceptor, serve: S) -> Self
    where
        S: Fn(Visit) -> F + Send + Sync + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        Self::listen(Some(acceptor), serve).await
    }

    /// A server that answers each request with the bytes of `answer`, with keep-alive.
    pub async fn answering(
        answer: impl Fn(&WebRequest) -> Vec<u8> + Send + Sync + 'static,
    ) -> Self {
        let answer = Arc::new(answer);
        Self::start(move |mut visit| {
            let answer = answer.clone();
            async move {
                while let Some(request) = visit.request().await {
                    visit.send(&answer(&request)).await;
                }
            }
        })
        .await
    }

    async fn listen<S, F>(acceptor: Option<TlsAcceptor>, serve: S) -> Self
    where
        S: Fn(Visit) -> F + Send + Sync + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let address = listener.local_addr().expect("it is bound");
        let shared = Arc::new(Shared::default());
        let scheme = if acceptor.is_some() { "https" } else { "http" };
        let serve = Arc::new(serve);
        let serving = tokio::spawn({
            let shared = shared.clone();
            async move {
                while let Ok((stream, _)) = listener.accept().await {
                    shared.connections.fetch_add(1, Ordering::SeqCst);
                    let (shared, acceptor, serve) =
                        (shared.clone(), acceptor.clone(), serve.clone());
                    tokio::spawn(async move {
                        if let Some(visit) = Visit::accept(stream, acceptor, shared).await {
                            serve(visit).await;
                        }
                    });
                }
            }
        });
        Self { address, scheme, shared, serving }
    }

    /// Listening address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The URL of a path.
    pub fn url(&self, path: &str) -> String {
        format!("{}://{}{path}", self.scheme, self.address)
    }

    /// The URL of a path with the host name of the TLS certificates.
    pub fn local_url(&self, path: &str) -> String {
        format!("{}://localhost:{}{path}", self.scheme, self.address.port())
    }

    /// All requests so far.
    pub fn requests(&self) -> Vec<WebRequest> {
        self.shared.requests.lock().expect("no holder panics").clone()
    }

    /// The only request so far.
    pub fn request(&self) -> WebRequest {
        let mut requests = self.requests();
        assert_eq!(requests.len(), 1, "{requests:#?}");
        requests.remove(0)
    }

    /// Number of connections so far.
    pub fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::SeqCst)
    }
}

impl Drop for Web {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl Visit {
    async fn accept(
        stream: TcpStream,
        acceptor: Option<TlsAcceptor>,
        shared: Arc<Shared>,
    ) -> Option<Self> {
        stream.set_nodelay(true).ok()?;
        let link: Box<dyn Link> = match acceptor {
            Some(acceptor) => Box::new(acceptor.accept(stream).await.ok()?),
            None => Box::new(stream),
        };
        Some(Self { link, received: Vec::new(), shared })
    }

    /// The next request with its body; `None` at the end of the connection.
    pub async fn request(&mut self) -> Option<WebRequest> {
        let mut request = self.head().await?;
        let length = request.header("content-length").and_then(|length| length.parse().ok());
        if request.header("transfer-encoding") == Some("chunked") {
            request.body = self.chunked_body().await?;
        } else {
            request.body = self.take(length.unwrap_or(0)).await?;
        }
        self.shared.requests.lock().expect("no holder panics").push(request.clone());
        Some(request)
    }

    /// The next request without its body; `None` at the end of the connection.
    pub async fn head(&mut self) -> Option<WebRequest> {
        let end = self.find(b"\r\n\r\n").await?;
        let head: Vec<u8> = self.received.drain(..end + 4).collect();
        let head = String::from_utf8_lossy(&head).into_owned();
        let mut lines = head.lines();
        let mut words = lines.next()?.split(' ');
        let (method, target) = (words.next()?.to_owned(), words.next()?.to_owned());
        let headers = lines
            .filter_map(|line| line.split_once(':'))
            .map(|(name, value)| (name.to_owned(), value.trim().to_owned()))
            .collect();
        Some(WebRequest { method, target, headers, body: Vec::new() })
    }

    async fn chunked_body(&mut self) -> Option<Vec<u8>> {
        let mut body = Vec::new();
        while let Some(chunk) = self.chunk().await? {
            body.extend(chunk);
        }
        Some(body)
    }

    /// The next chunk of a body; `Some(None)` after the last.
    pub async fn chunk(&mut self) -> Option<Option<Vec<u8>>> {
        let end = self.find(b"\r\n").await?;
        let line: Vec<u8> = self.received.drain(..end + 2).collect();
        let length = usize::from_str_radix(std::str::from_utf8(&line).ok()?.trim(), 16).ok()?;
        let chunk = self.take(length).await?;
        self.take(2).await?;
        Some((length > 0).then_some(chunk))
    }

    /// The next `count` bytes; `None` if the connection ends before.
    pub async fn take(&mut self, count: usize) -> Option<Vec<u8>> {
        while self.received.len() < count {
            self.read_more().await?;
        }
        Some(self.received.drain(..count).collect())
    }

    async fn find(&mut self, wanted: &[u8]) -> Option<usize> {
        loop {
            let found = self.received.windows(wanted.len()).position(|bytes| bytes == wanted);
            if found.is_some() {
                return found;
            }
            self.read_more().await?;
        }
    }

    async fn read_more(&mut self) -> Option<()> {
        let count = self.link.read_buf(&mut self.received).await.ok()?;
        (count > 0).then_some(())
    }

    /// Sends bytes unchanged; returns whether the connection was still open.
    pub async fn send(&mut self, bytes: impl AsRef<[u8]>) -> bool {
        let sent = self.link.write_all(bytes.as_ref()).await.is_ok();
        sent && self.link.flush().await.is_ok()
    }

    /// The underlying stream, once all received bytes are taken.
    pub fn into_link(self) -> Box<dyn Link> {
        assert!(self.received.is_empty(), "nothing may be lost");
        self.link
    }

    /// Waits until the client closes the connection.
    pub async fn closed(&mut self) {
        let leaving = async { while self.read_more().await.is_some() {} };
        timeout(DEADLINE, leaving).await.expect("the visitor leaves in time");
    }
}

/// A response with a body.
pub fn answer(status: u16, headers: &[(&str, &str)], body: impl AsRef<[u8]>) -> Vec<u8> {
    let body = body.as_ref();
    let mut text = format!("HTTP/1.1 {status} Whatever\r\n");
    for (name, value) in headers {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    text.push_str(&format!("Content-Length: {}\r\n\r\n", body.len()));
    [text.as_bytes(), body].concat()
}
