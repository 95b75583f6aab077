//! A websocket client at frame level: sends any frame, reads on request, and answers nothing by itself.

use std::net::SocketAddr;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;

use crate::DEADLINE;

/// Continuation frame.
pub const CONTINUATION: u8 = 0;
/// Text frame.
pub const TEXT: u8 = 1;
/// Binary frame.
pub const BINARY: u8 = 2;
/// Close frame.
pub const CLOSE: u8 = 8;
/// Ping frame.
pub const PING: u8 = 9;
/// Pong frame.
pub const PONG: u8 = 10;

/// A websocket client at frame level.
pub struct RawClient {
    stream: TcpStream,
    next_id: i64,
    answers_pings: bool,
}

/// One websocket frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// Frame type.
    pub opcode: u8,
    /// Whether this is the last frame of the message.
    pub is_last: bool,
    /// Payload.
    pub payload: Vec<u8>,
}

impl Frame {
    /// Code and reason of a close frame.
    pub fn close_reason(&self) -> (u16, String) {
        assert_eq!(self.opcode, CLOSE, "not a close frame");
        let (code, reason) = self.payload.split_at(2);
        let code = u16::from_be_bytes(code.try_into().expect("a close code has two bytes"));
        (code, String::from_utf8(reason.to_vec()).expect("a reason is text"))
    }
}

impl RawClient {
    /// Connects without a session.
    pub async fn connect(url: &str) -> Self {
        Self::connect_on(TcpSocket::new_v4().expect("there are sockets"), url).await
    }

    /// Connects with a small receive buffer, so that the server soon blocks on writing.
    pub async fn connect_with_little_room(url: &str) -> Self {
        let socket = TcpSocket::new_v4().expect("there are sockets");
        socket.set_recv_buffer_size(16 * 1024).expect("the size can be set");
        Self::connect_on(socket, url).await
    }

    async fn connect_on(socket: TcpSocket, url: &str) -> Self {
        let address = url.trim_start_matches("ws://");
        let target: SocketAddr = address.parse().expect("the server's URL has a numeric address");
        let mut stream = socket.connect(target).await.expect("the server takes the connection");
        stream.set_nodelay(true).expect("it is a TCP socket");
        let request = format!(
            "GET / HTTP/1.1\r\nHost: {address}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        );
        stream.write_all(request.as_bytes()).await.expect("the link holds");
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let byte = timeout(DEADLINE, stream.read_u8()).await.expect("an answer comes in time");
            head.push(byte.expect("the link holds"));
        }
        assert!(head.starts_with(b"HTTP/1.1 101 "), "{}", String::from_utf8_lossy(&head));
        Self { stream, next_id: 1, answers_pings: false }
    }

    /// Answers pings from now on.
    pub fn answer_pings(&mut self) {
        self.answers_pings = true;
    }

    /// Sends one frame.
    pub async fn send_frame(&mut self, opcode: u8, is_last: bool, payload: &[u8]) {
        self.try_send_frame(opcode, is_last, payload).await.expect("the link holds");
    }

    /// Sends one frame to a server that may have closed the connection.
    pub async fn try_send_frame(
        &mut self,
        opcode: u8,
        is_last: bool,
        payload: &[u8],
    ) -> std::io::Result<()> {
        let mut bytes = vec![opcode | if is_last { 0x80 } else { 0 }];
        match payload.len() {
            length @ 0..126 => bytes.push(0x80 | length as u8),
            length @ 126..65536 => {
                bytes.push(0x80 | 126);
                bytes.extend((length as u16).to_be_bytes());
            }
            length => {
                bytes.push(0x80 | 127);
                bytes.extend((length as u64).to_be_bytes());
            }
        }
        // A zero mask leaves the payload unchanged.
        bytes.extend([0; 4]);
        bytes.extend_from_slice(payload);
        timeout(DEADLINE, self.stream.write_all(&bytes)).await.expect("the server reads in time")
    }

    /// Sends a request; [`RawClient::reply`] returns the reply.
    pub async fn send(&mut self, method: &str, params: Value) -> i64 {
        let id = self.next_id;
        self.next_id += 1;
        let text = json!({"id": id, "method": method, "params": params}).to_string();
        self.send_frame(TEXT, true, text.as_bytes()).await;
        id
    }

    /// Sends a text message `count` times, or until the server reads nothing more and `is_quiet`.
    ///
    /// The last message may be incomplete, so nothing else can be sent afterwards.
    pub async fn flood(&mut self, text: &str, count: usize, is_quiet: impl Fn() -> bool) {
        assert!(text.len() >= 126, "a shorter text has another form");
        let mut frame = vec![TEXT | 0x80, 0x80 | 126];
        frame.extend(u16::try_from(text.len()).expect("a short text").to_be_bytes());
        frame.extend([0; 4]);
        frame.extend(text.as_bytes());
        self.flood_frames(&frame, count, is_quiet).await;
    }

    /// Sends a ping with 125 bytes so many times; stops as [`RawClient::flood`] does.
    pub async fn flood_pings(&mut self, count: usize, is_quiet: impl Fn() -> bool) {
        let frame = [&[PING | 0x80, 0x80 | 125][..], &[0; 4], &[b'x'; 125]].concat();
        self.flood_frames(&frame, count, is_quiet).await;
    }

    async fn flood_frames(&mut self, frame: &[u8], count: usize, is_quiet: impl Fn() -> bool) {
        let frames = frame.repeat(count);
        let mut rest = &frames[..];
        let mut refused = 0;
        while !rest.is_empty() && refused < 20 {
            let moment = std::time::Duration::from_millis(10);
            match timeout(moment, self.stream.write(rest)).await {
                Ok(sent) => rest = &rest[sent.expect("the link holds")..],
                Err(_) => refused = if is_quiet() { refused + 1 } else { 0 },
            }
        }
    }

    /// Opens a session and returns its id.
    pub async fn initialize(&mut self) -> String {
        let id = self.send("initialize", json!({"clientName": "raw"})).await;
        let reply = self.reply(id).await;
        self.send_frame(TEXT, true, br#"{"method":"initialized"}"#).await;
        reply["result"]["sessionId"].as_str().expect("a session id").to_owned()
    }

    /// The next frame; `None` at the end.
    pub async fn frame(&mut self) -> Option<Frame> {
        timeout(DEADLINE, self.read_frame()).await.expect("a frame or the end comes in time").ok()
    }

    async fn read_frame(&mut self) -> std::io::Result<Frame> {
        let first = self.stream.read_u8().await?;
        let length = match self.stream.read_u8().await? {
            126 => u64::from(self.stream.read_u16().await?),
            127 => self.stream.read_u64().await?,
            length => u64::from(length),
        };
        let mut payload = vec![0; usize::try_from(length).expect("fits into memory")];
        self.stream.read_exact(&mut payload).await?;
        Ok(Frame { opcode: first & 0x0f, is_last: first & 0x80 != 0, payload })
    }

    /// Frames of the next text message, without control frames.
    pub async fn message(&mut self) -> Vec<Frame> {
        let mut frames: Vec<Frame> = Vec::new();
        loop {
            let frame = self.frame().await.expect("the link holds");
            assert_ne!(frame.opcode, CLOSE, "the server closed: {:?}", frame.close_reason());
            if frame.opcode == PING && self.answers_pings {
                self.send_frame(PONG, true, &frame.payload).await;
            }
            if frame.opcode > CLOSE {
                continue;
            }
            let expected = if frames.is_empty() { TEXT } else { CONTINUATION };
            assert_eq!(frame.opcode, expected, "fragments come in a row");
            let is_last = frame.is_last;
            frames.push(frame);
            if is_last {
                return frames;
            }
        }
    }

    /// The reply to an earlier request; earlier messages are dropped.
    pub async fn reply(&mut self, id: i64) -> Value {
        loop {
            let value = parse(&self.message().await);
            if value["id"] == id {
                return value;
            }
        }
    }

    /// The server's close frame; `None` if the link ended. Earlier messages are dropped.
    pub async fn close_frame(&mut self) -> Option<(u16, String)> {
        loop {
            let frame = self.frame().await?;
            if frame.opcode == CLOSE {
                return Some(frame.close_reason());
            }
        }
    }
}

/// The JSON of a message in frames.
pub fn parse(frames: &[Frame]) -> Value {
    let bytes: Vec<u8> = frames.iter().flat_map(|frame| frame.payload.iter().copied()).collect();
    serde_json::from_slice(&bytes).expect("the server sends JSON")
}
