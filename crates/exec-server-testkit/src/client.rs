//! A plain client that checks the order of events as it reads them.

use std::collections::{HashMap, VecDeque};

use exec_server_protocol::{base64, binary};
use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_websockets::upgrade::Error as UpgradeError;
use tokio_websockets::{ClientBuilder, Error, Limits, Message, WebSocketStream};

use crate::DEADLINE;

/// A byte stream that a websocket can run over.
pub trait Link: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Link for T {}

/// A client of one connection.
pub struct TestClient {
    socket: WebSocketStream<Box<dyn Link>>,
    next_id: i64,
    replies: HashMap<String, Value>,
    notifications: VecDeque<Value>,
    last_seq: HashMap<String, u64>,
    /// The session, once `initialize` was answered.
    pub session_id: String,
    /// Binary messages that were read so far; all readers return their JSON form.
    pub binary_messages: usize,
}

/// All events of a process until its close.
#[derive(Debug, Default, PartialEq)]
pub struct Finished {
    /// All of stdout.
    pub stdout: Vec<u8>,
    /// All of stderr.
    pub stderr: Vec<u8>,
    /// All of the terminal.
    pub pty: Vec<u8>,
    /// The exit code.
    pub exit_code: i64,
    /// The params of `process/exited`.
    pub exited: Value,
    /// The events in the order in which they came, as `output`, `exited` and `closed`.
    pub order: Vec<String>,
}

impl Finished {
    /// Stdout as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// Stderr as text.
    pub fn error_text(&self) -> String {
        String::from_utf8_lossy(&self.stderr).into_owned()
    }

    /// The terminal as text.
    pub fn pty_text(&self) -> String {
        String::from_utf8_lossy(&self.pty).into_owned()
    }
}

impl TestClient {
    /// Connects without a session.
    pub async fn connect(url: &str) -> Self {
        Self::try_connect(url, &[]).await.expect("the server takes the connection")
    }

    /// Connects with headers; returns the HTTP status if the upgrade is rejected.
    pub async fn try_connect(url: &str, headers: &[(&str, &str)]) -> Result<Self, u16> {
        #[cfg(unix)]
        if let Some(path) = url.strip_prefix("unix://") {
            let link = tokio::net::UnixStream::connect(path).await.expect("the server listens");
            return Self::over(link, "ws://localhost", headers).await;
        }
        let address = url.strip_prefix("ws://").expect("a ws:// or unix:// URL");
        let link = TcpStream::connect(address).await.expect("the server listens");
        link.set_nodelay(true).expect("a socket has options");
        Self::over(link, url, headers).await
    }

    /// Requests the websocket upgrade on an existing byte stream, such as TLS.
    pub async fn over(
        link: impl Link + 'static,
        url: &str,
        headers: &[(&str, &str)],
    ) -> Result<Self, u16> {
        let mut builder = ClientBuilder::new()
            .uri(url)
            .expect("a valid URL")
            .limits(Limits::default().max_payload_len(Some(256 * 1024 * 1024)));
        for (name, value) in headers {
            let name = name.parse().expect("a valid header name");
            let value = value.parse().expect("a valid header value");
            builder = builder.add_header(name, value).expect("a header that may be set");
        }
        let link: Box<dyn Link> = Box::new(link);
        match timeout(DEADLINE, builder.connect_on(link)).await.expect("an answer comes in time") {
            Ok((socket, _)) => Ok(Self {
                socket,
                next_id: 1,
                replies: HashMap::new(),
                notifications: VecDeque::new(),
                last_seq: HashMap::new(),
                session_id: String::new(),
                binary_messages: 0,
            }),
            Err(Error::Upgrade(UpgradeError::DidNotSwitchProtocols(status))) => Err(status),
            Err(error) => panic!("could not connect: {error}"),
        }
    }

    /// Opens a session, and returns the result of `initialize`.
    pub async fn initialize(&mut self) -> Value {
        let result = self.try_initialize(None).await.expect("initialize succeeds");
        self.notify("initialized", json!({})).await;
        result
    }

    /// Resumes a session.
    pub async fn resume(&mut self, session_id: &str) -> Result<Value, Value> {
        let result = self.try_initialize(Some(session_id)).await?;
        self.notify("initialized", json!({})).await;
        Ok(result)
    }

    /// Sends `initialize`, but not `initialized`.
    pub async fn try_initialize(&mut self, resume: Option<&str>) -> Result<Value, Value> {
        let params = json!({"clientName": "test", "resumeSessionId": resume});
        let result = self.call("initialize", params).await?;
        self.session_id = result["sessionId"].as_str().expect("a session id").to_owned();
        Ok(result)
    }

    /// Sends a request and waits for its reply.
    pub async fn call(&mut self, method: &str, params: Value) -> Result<Value, Value> {
        let id = self.send(method, params).await;
        self.reply(id).await
    }

    /// Sends a request; [`TestClient::reply`] returns the reply.
    pub async fn send(&mut self, method: &str, params: Value) -> i64 {
        let id = self.next_id;
        self.next_id += 1;
        self.send_text(json!({"id": id, "method": method, "params": params}).to_string()).await;
        id
    }

    /// The reply to an earlier request.
    pub async fn reply(&mut self, id: i64) -> Result<Value, Value> {
        let deadline = Instant::now() + DEADLINE;
        loop {
            if let Some(mut reply) = self.replies.remove(&id.to_string()) {
                return match reply.get_mut("error") {
                    Some(error) => Err(error.take()),
                    None => Ok(reply["result"].take()),
                };
            }
            self.read_one(deadline).await;
        }
    }

    /// The error of the reply with id -1.
    pub async fn malformed_reply(&mut self) -> Value {
        self.reply(-1).await.expect_err("a reply with id -1 is an error")
    }

    /// Sends a notification.
    pub async fn notify(&mut self, method: &str, params: Value) {
        self.send_text(json!({"method": method, "params": params}).to_string()).await;
    }

    /// Sends a text message unchanged.
    pub async fn send_text(&mut self, text: String) {
        self.send_message(Message::text(text)).await;
    }

    /// Sends a text message that the server may cut off; returns whether all of it was sent.
    pub async fn try_send_text(&mut self, text: String) -> bool {
        let sending = self.socket.send(Message::text(text));
        timeout(DEADLINE, sending).await.expect("the server reads or hangs up in time").is_ok()
    }

    /// Sends any websocket message.
    pub async fn send_message(&mut self, message: Message) {
        timeout(DEADLINE, self.socket.send(message))
            .await
            .expect("the server reads in time")
            .expect("the link holds");
    }

    /// Sends bytes as one binary message.
    pub async fn send_binary(&mut self, bytes: Vec<u8>) {
        self.send_message(Message::binary(bytes)).await;
    }

    /// The next message in wire order, a reply or a notification.
    pub async fn next_json(&mut self) -> Value {
        loop {
            let message = self.raw_message().await.expect("the link holds");
            let message = message.expect("the server keeps to the protocol");
            let close = message.as_close();
            assert!(close.is_none(), "the server closed the connection: {close:?}");
            if let Some(value) = self.json_of(&message) {
                return value;
            }
        }
    }

    /// The JSON form of a text or binary message; `None` for other frames.
    fn json_of(&mut self, message: &Message) -> Option<Value> {
        let parsed = if let Some(text) = message.as_text() {
            serde_json::from_str(text)
        } else if message.is_binary() {
            self.binary_messages += 1;
            let text = binary::to_text(message.as_payload()).expect("a binary message has a chunk");
            serde_json::from_slice(&text)
        } else {
            return None;
        };
        Some(parsed.expect("the server sends JSON"))
    }

    /// The next notification in wire order.
    pub async fn notification(&mut self) -> Value {
        let deadline = Instant::now() + DEADLINE;
        loop {
            if let Some(notification) = self.notifications.pop_front() {
                return notification;
            }
            self.read_one(deadline).await;
        }
    }

    /// Number of notifications that were read but not returned yet.
    pub fn pending_notifications(&self) -> usize {
        self.notifications.len()
    }

    /// The next websocket message; `None` at the end.
    pub async fn raw_message(&mut self) -> Option<Result<Message, Error>> {
        timeout(DEADLINE, self.socket.next()).await.expect("a message or the end comes in time")
    }

    /// Code and reason of the server's close frame; `None` if the link broke.
    pub async fn close_frame(&mut self) -> Option<(u16, String)> {
        loop {
            match self.raw_message().await {
                Some(Ok(message)) => {
                    if let Some((code, reason)) = message.as_close() {
                        return Some((code.into(), reason.to_owned()));
                    }
                }
                Some(Err(_)) | None => return None,
            }
        }
    }

    /// Starts `argv` with pipes in `/`; `more` overrides the default params.
    pub async fn start(&mut self, id: &str, argv: &[&str], more: Value) -> Result<Value, Value> {
        let params = start_params(id, argv, more);
        self.call("process/start", params).await
    }

    /// Starts `argv` and collects its events until the close.
    pub async fn run(&mut self, id: &str, argv: &[&str], more: Value) -> Finished {
        self.start(id, argv, more).await.expect("the process starts");
        self.finish(id).await
    }

    /// Runs a shell script to its end.
    pub async fn sh(&mut self, id: &str, script: &str) -> Finished {
        self.run(id, &["/bin/sh", "-c", script], json!({})).await
    }

    /// Collects the events of a process until its close.
    pub async fn finish(&mut self, id: &str) -> Finished {
        let mut finished = Finished::default();
        loop {
            let event = self.process_event(id).await;
            if collect(&mut finished, &event) {
                return finished;
            }
        }
    }

    /// Waits until the output of a process contains `text`; returns the output so far.
    pub async fn wait_output(&mut self, id: &str, text: &str) -> String {
        let mut all = String::new();
        while !all.contains(text) {
            let event = self.process_event(id).await;
            assert_eq!(
                event["method"], "process/output",
                "the process ended before it said {text:?}: {all:?}"
            );
            all.push_str(&String::from_utf8_lossy(&chunk(&event["params"])));
        }
        all
    }

    /// The next notification of one process; others are kept.
    pub async fn process_event(&mut self, id: &str) -> Value {
        let deadline = Instant::now() + DEADLINE;
        loop {
            let place =
                self.notifications.iter().position(|event| event["params"]["processId"] == id);
            if let Some(place) = place {
                return self.notifications.remove(place).expect("was just found");
            }
            self.read_one(deadline).await;
        }
    }

    /// Writes text to stdin.
    pub async fn write(&mut self, id: &str, write_id: &str, text: &str) -> Result<Value, Value> {
        let chunk = base64::encode(text.as_bytes());
        self.call("process/write", json!({"processId": id, "chunk": chunk, "writeId": write_id}))
            .await
    }

    /// Terminates a process; returns whether its root was still running.
    pub async fn terminate(&mut self, id: &str, grace_ms: Option<u64>) -> bool {
        let params = json!({"processId": id, "graceMs": grace_ms});
        let reply = self.call("process/terminate", params).await.expect("terminate never fails");
        reply["running"].as_bool().expect("yes or no")
    }

    /// Sends a signal by its name on the wire.
    pub async fn signal(&mut self, id: &str, signal: &str) {
        let params = json!({"processId": id, "signal": signal});
        let reply = self.call("process/signal", params).await.expect("the signal is known");
        assert_eq!(reply, json!({}));
    }

    /// Reads retained output.
    pub async fn read(&mut self, id: &str, after: u64, wait_ms: u64) -> Value {
        let params =
            json!({"processId": id, "afterSeq": after, "maxBytes": null, "waitMs": wait_ms});
        self.call("process/read", params).await.expect("the process is known")
    }

    /// Reads one message; pings do not extend the deadline.
    async fn read_one(&mut self, deadline: Instant) {
        let message = timeout_at(deadline, self.socket.next())
            .await
            .expect("what is waited for comes in time")
            .expect("the link holds")
            .expect("the server keeps to the protocol");
        let close = message.as_close();
        assert!(close.is_none(), "the server closed the connection: {close:?}");
        if let Some(value) = self.json_of(&message) {
            self.put_back(value);
        }
    }

    /// Queues a message that was read by other means.
    pub fn put_back(&mut self, value: Value) {
        if let Some(id) = value.get("id") {
            self.replies.insert(id.to_string(), value);
        } else {
            self.check_order(&value);
            self.notifications.push_back(value);
        }
    }

    /// Checks that the events of a process arrive in order without a gap.
    fn check_order(&mut self, notification: &Value) {
        let params = &notification["params"];
        let (Some(id), Some(seq)) = (params["processId"].as_str(), params["seq"].as_u64()) else {
            return;
        };
        if let Some(last) = self.last_seq.insert(id.to_owned(), seq) {
            assert_eq!(seq, last + 1, "events of {id} are out of order");
        }
    }

    /// Resets the order check of a process whose id is reused, or whose events were skipped on purpose.
    pub fn forget_order(&mut self, id: &str) {
        self.last_seq.remove(id);
    }
}

/// Params of `process/start` for a process with pipes in `/`; `more` overrides them.
pub fn start_params(id: &str, argv: &[&str], more: Value) -> Value {
    let mut params = json!({
        "processId": id, "argv": argv, "cwd": "file:///", "tty": false,
        "env": {"PATH": std::env::var("PATH").unwrap_or_default()},
    });
    if let (Some(params), Value::Object(more)) = (params.as_object_mut(), more) {
        params.extend(more);
    }
    params
}

/// The bytes of an output event or a retained chunk.
pub fn chunk(params: &Value) -> Vec<u8> {
    base64::decode(params["chunk"].as_str().expect("a chunk")).expect("base64")
}

/// Adds an event; returns whether it was the last.
fn collect(finished: &mut Finished, event: &Value) -> bool {
    let params = &event["params"];
    let kind = event["method"].as_str().expect("a method").trim_start_matches("process/");
    finished.order.push(kind.to_owned());
    match kind {
        "output" => {
            let stream = match params["stream"].as_str() {
                Some("stdout") => &mut finished.stdout,
                Some("stderr") => &mut finished.stderr,
                _ => &mut finished.pty,
            };
            stream.extend(chunk(params));
        }
        "exited" => {
            finished.exit_code = params["exitCode"].as_i64().expect("an exit code");
            finished.exited = params.clone();
        }
        _ => return kind == "closed",
    }
    false
}
