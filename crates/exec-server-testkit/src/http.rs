//! Hand-written HTTP requests that client libraries would not send.

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::DEADLINE;

/// The headers of a well-formed websocket upgrade; the key is the one of RFC 6455's example.
pub const UPGRADE: [(&str, &str); 4] = [
    ("Connection", "Upgrade"),
    ("Upgrade", "websocket"),
    ("Sec-WebSocket-Version", "13"),
    ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
];

/// A keep-alive connection.
pub struct HttpConnection<S = TcpStream> {
    stream: S,
    host: String,
    received: Vec<u8>,
}

/// An HTTP response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpReply {
    /// The status code.
    pub status: u16,
    /// The headers, names in lower case.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: String,
}

impl HttpReply {
    /// A header's value.
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(given, _)| given == name);
        found.map(|(_, value)| value.as_str())
    }
}

/// Sends one request on a new connection.
pub async fn request(url: &str, method: &str, path: &str, headers: &[(&str, &str)]) -> HttpReply {
    HttpConnection::open(url).await.request(method, path, headers).await
}

/// Sends one request with a body on a new connection.
pub async fn request_with_body(
    url: &str,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> HttpReply {
    let mut connection = HttpConnection::open(url).await;
    let mut text = format!("{method} {path} HTTP/1.1\r\nHost: {}\r\n", connection.host);
    for (name, value) in headers {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    text.push_str(&format!("Content-Length: {}\r\n\r\n", body.len()));
    connection.send(&[text.as_bytes(), body].concat()).await;
    connection.reply(method).await
}

/// Requests a websocket upgrade with more headers; returns the response.
pub async fn upgrade(url: &str, more: &[(&str, &str)]) -> HttpReply {
    let headers: Vec<_> = UPGRADE.iter().chain(more).copied().collect();
    request(url, "GET", "/", &headers).await
}

impl HttpConnection {
    /// Connects to the address of a `ws://` or `http://` URL.
    pub async fn open(url: &str) -> Self {
        let (_, address) = url.split_once("://").expect("a URL has a scheme");
        let stream = TcpStream::connect(address).await.expect("the server listens");
        Self::over(stream, address)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> HttpConnection<S> {
    /// Uses an existing byte stream.
    pub fn over(stream: S, host: &str) -> Self {
        Self { stream, host: host.to_owned(), received: Vec::new() }
    }

    /// The underlying stream.
    pub fn link(&self) -> &S {
        &self.stream
    }

    /// Sends a request with the default `Host`, unless `headers` have one, and reads the response.
    pub async fn request(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
    ) -> HttpReply {
        let mut text = format!("{method} {path} HTTP/1.1\r\n");
        if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
            text.push_str(&format!("Host: {}\r\n", self.host));
        }
        for (name, value) in headers {
            text.push_str(&format!("{name}: {value}\r\n"));
        }
        text.push_str("\r\n");
        self.send(text.as_bytes()).await;
        self.reply(method).await
    }

    /// Sends bytes unchanged.
    pub async fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).await.expect("the link holds");
        self.stream.flush().await.expect("the link holds");
    }

    /// Reads the reply to a request with this method.
    pub async fn reply(&mut self, method: &str) -> HttpReply {
        let end = loop {
            if let Some(end) = self.received.windows(4).position(|four| four == b"\r\n\r\n") {
                break end + 4;
            }
            assert!(self.read_more().await > 0, "the server hung up without a reply");
        };
        let head = String::from_utf8(self.received.drain(..end).collect()).expect("ASCII headers");
        let mut lines = head.lines();
        let status = lines.next().and_then(|line| line.split(' ').nth(1));
        let headers = lines
            .filter_map(|line| line.split_once(':'))
            .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
            .collect();
        let status = status.expect("a status line").parse().expect("a number");
        let mut reply = HttpReply { status, headers, body: String::new() };
        let length = reply.header("content-length").map(|length| length.parse().expect("a number"));
        if method != "HEAD" && status != 101 {
            let length = length.unwrap_or(0);
            let body = self.bytes(length).await;
            reply.body = String::from_utf8(body).expect("a text body");
        }
        reply
    }

    /// Reads exactly `count` bytes.
    pub async fn bytes(&mut self, count: usize) -> Vec<u8> {
        while self.received.len() < count {
            assert!(self.read_more().await > 0, "the server hung up in the middle");
        }
        self.received.drain(..count).collect()
    }

    async fn read_more(&mut self) -> usize {
        let reading = self.stream.read_buf(&mut self.received);
        timeout(DEADLINE, reading).await.expect("a reply comes in time").expect("the link holds")
    }
}
