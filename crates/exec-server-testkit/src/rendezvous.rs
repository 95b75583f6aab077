//! A rendezvous for each test, and raw relay sockets.

use std::time::Duration;

use bytes::Bytes;
use exec_server_relay::frame::{RelayBody, RelayData, RelayFrame};
use exec_server_relay::registry_types::{
    MLKEM768_PUBLIC_KEY_BYTES, PublicKey, SECURITY_PROFILE, X25519_PUBLIC_KEY_BYTES,
};
use exec_server_rendezvous::admin::{NewToken, create_token};
use exec_server_rendezvous::store::{SharedStore, Store, TokenRole};
use exec_server_rendezvous::{BoundRendezvous, RendezvousConfig, clock};
use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_websockets::{
    ClientBuilder, Limits, MaybeTlsStream, Message, ServerBuilder, WebSocketStream,
};

use crate::DEADLINE;
use crate::http::{HttpConnection, HttpReply, UPGRADE, request_with_body};

/// A rendezvous in this process; it stops with the test.
pub struct TestRendezvous {
    url: String,
    address: std::net::SocketAddr,
    admin_token: String,
    store: SharedStore,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<()>,
    _data: tempfile::TempDir,
}

impl TestRendezvous {
    /// A rendezvous on a free loopback port.
    pub async fn start() -> Self {
        Self::start_with(|_| {}).await
    }

    /// A rendezvous with a changed configuration.
    pub async fn start_with(change: impl FnOnce(&mut RendezvousConfig)) -> Self {
        let data = tempfile::tempdir().expect("there is room for a directory");
        let listen = "127.0.0.1:0".parse().expect("an address");
        let mut config = RendezvousConfig::new(listen, data.path().join("data"));
        change(&mut config);
        let bound = BoundRendezvous::bind(config).await.expect("a rendezvous can be started");
        let url = bound.base_url().to_owned();
        let address = bound.local_addr().expect("it is bound");
        let admin_token = bound.admin_token().expect("its data is new").to_owned();
        let store = bound.store();
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(bound.serve(async move {
            let _ = stopped.await;
        }));
        Self { url, address, admin_token, store, stop: Some(stop), task, _data: data }
    }

    /// Its public URL.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Its listening address, which may differ from the public URL.
    pub fn address(&self) -> std::net::SocketAddr {
        self.address
    }

    /// The admin token.
    pub fn admin_token(&self) -> &str {
        &self.admin_token
    }

    /// Its store.
    pub fn store(&self) -> &dyn Store {
        &*self.store
    }

    /// A token for an environment.
    pub async fn token(&self, role: TokenRole, environment: &str) -> String {
        let environment = Some(environment.to_owned());
        self.new_token(NewToken {
            role,
            environment,
            expires_in_seconds: None,
            max_streams: None,
            label: None,
        })
        .await
    }

    /// A token with the given limits.
    pub async fn new_token(&self, new: NewToken) -> String {
        let made = create_token(&*self.store, &new, clock::now()).await;
        made.expect("a valid token, and the store works").secret
    }

    /// Stops it and waits for its end.
    pub async fn stop(mut self) {
        self.begin_stop();
        timeout(DEADLINE, &mut self.task).await.expect("it stops in time").expect("no panic");
    }

    /// The `/metrics` text, requested without a proxy.
    pub async fn metrics(&self) -> String {
        let authorization = format!("Bearer {}", self.admin_token);
        let headers = [("Authorization", authorization.as_str())];
        let url = format!("http://{}", self.address);
        request_with_body(&url, "GET", "/metrics", &headers, b"").await.body
    }

    /// Waits until `/metrics` has this line.
    pub async fn wait_for_metric(&self, line: &str) {
        let asking = async {
            while !self.metrics().await.lines().any(|it| it == line) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        assert!(timeout(DEADLINE, asking).await.is_ok(), "`{line}` never came");
    }

    /// Starts the shutdown.
    pub fn begin_stop(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
    }

    /// Posts a JSON body to a path below an environment.
    pub async fn post(&self, path: &str, token: &str, body: &Value) -> HttpReply {
        self.ask("POST", &format!("/cloud/environment/{path}"), token, body).await
    }

    /// Sends a request with a JSON body.
    pub async fn ask(&self, method: &str, path: &str, token: &str, body: &Value) -> HttpReply {
        let authorization = format!("Bearer {token}");
        let headers =
            [("Authorization", authorization.as_str()), ("Content-Type", "application/json")];
        let body = if body.is_null() { String::new() } else { body.to_string() };
        request_with_body(&self.url, method, path, &headers, body.as_bytes()).await
    }

    /// Registers an executor and returns the response.
    pub async fn register(&self, environment: &str, token: &str, key: &PublicKey) -> Value {
        let reply = self.post(&format!("{environment}/register"), token, &register_body(key)).await;
        assert_eq!(reply.status, 200, "{reply:?}");
        serde_json::from_str(&reply.body).expect("JSON")
    }

    /// Sends a connect request and returns the response.
    pub async fn connect(&self, environment: &str, token: &str, key: &PublicKey) -> Value {
        let reply = self.post(&format!("{environment}/connect"), token, &connect_body(key)).await;
        assert_eq!(reply.status, 200, "{reply:?}");
        serde_json::from_str(&reply.body).expect("JSON")
    }
}

impl Drop for TestRendezvous {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Body of a register request with this key.
pub fn register_body(key: &PublicKey) -> Value {
    json!({"security_profile": SECURITY_PROFILE, "executor_public_key": key})
}

/// Body of a connect request with this key.
pub fn connect_body(key: &PublicKey) -> Value {
    json!({"harness_public_key": key})
}

/// A public key without a private key; a rendezvous does not check this.
pub fn public_key(number: u8) -> PublicKey {
    PublicKey {
        x25519: [number; X25519_PUBLIC_KEY_BYTES],
        mlkem768: Box::new([number; MLKEM768_PUBLIC_KEY_BYTES]),
    }
}

/// Requests a websocket at a URL; returns the response.
pub async fn upgrade_at(url: &str) -> HttpReply {
    let (base, path) = split(url);
    HttpConnection::open(&base).await.request("GET", &path, &UPGRADE).await
}

/// The address and the path of a URL.
fn split(url: &str) -> (String, String) {
    let (scheme, rest) = url.split_once("://").expect("a URL has a scheme");
    let (host, path) = rest.split_once('/').expect("a URL has a path");
    (format!("{scheme}://{host}"), format!("/{path}"))
}

/// An unencrypted relay socket of an executor or a harness, controlled by the test.
pub struct RelaySocket<S = MaybeTlsStream<TcpStream>> {
    socket: WebSocketStream<S>,
}

/// A message from a relay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Relayed {
    /// A frame.
    Frame(RelayFrame),
    /// A websocket close frame: code and reason.
    Closed(u16, String),
    /// The end of the connection without a close frame.
    Cut,
}

impl RelaySocket {
    /// Opens the websocket at a URL from a registry.
    pub async fn open(url: &str) -> Self {
        Self::try_open(url).await.expect("the websocket is opened")
    }

    /// The same; none if it is refused, or the connection ends.
    pub async fn try_open(url: &str) -> Option<Self> {
        let uri = url.parse().expect("a URL");
        let limits = Limits::default().max_payload_len(None);
        let client = ClientBuilder::from_uri(uri).limits(limits);
        let connected = timeout(DEADLINE, client.connect()).await.expect("an answer comes in time");
        Some(Self { socket: connected.ok()?.0 })
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> RelaySocket<S> {
    /// The relay's end of a websocket that a peer has opened.
    pub fn serve(link: S) -> Self {
        let limits = Limits::default().max_payload_len(None);
        Self { socket: ServerBuilder::new().limits(limits).serve(link) }
    }

    /// Sends a frame.
    pub async fn send(&mut self, stream: &str, body: RelayBody) {
        self.send_bytes(RelayFrame::new(stream, body).encode()).await;
    }

    /// Sends a record.
    pub async fn send_data(&mut self, stream: &str, payload: impl Into<Bytes>) {
        let data =
            RelayData { seq: 0, segment_index: 0, segment_count: 1, payload: payload.into() };
        self.send(stream, RelayBody::Data(data)).await;
    }

    /// Sends a record unless the socket is closed; returns whether it was sent. Waits as long as the socket takes nothing.
    pub async fn try_send_data(&mut self, stream: &str, payload: impl Into<Bytes>) -> bool {
        let data =
            RelayData { seq: 0, segment_index: 0, segment_count: 1, payload: payload.into() };
        let frame = RelayFrame::new(stream, RelayBody::Data(data)).encode();
        self.socket.send(Message::binary(Bytes::from(frame))).await.is_ok()
    }

    /// Claims a stream.
    pub async fn resume(&mut self, stream: &str) {
        self.send(stream, RelayBody::Resume { next_seq: 0 }).await;
    }

    /// Sends any binary message.
    pub async fn send_bytes(&mut self, bytes: impl Into<Bytes>) {
        self.send_message(Message::binary(bytes.into())).await;
    }

    /// Sends a text message.
    pub async fn send_text(&mut self, text: &str) {
        self.send_message(Message::text(text.to_owned())).await;
    }

    async fn send_message(&mut self, message: Message) {
        let sent = timeout(DEADLINE, self.socket.send(message)).await;
        sent.expect("it is taken in time").expect("the socket holds");
    }

    /// Sends a ping and waits for its pong.
    pub async fn ping(&mut self) {
        self.send_message(Message::ping("are you there?")).await;
        loop {
            let next = timeout(DEADLINE, self.socket.next()).await.expect("an answer in time");
            let message = next.expect("the socket stays").expect("the socket holds");
            if message.is_pong() {
                assert_eq!(&message.as_payload()[..], b"are you there?");
                return;
            }
        }
    }

    /// The next message.
    pub async fn next(&mut self) -> Relayed {
        loop {
            let next =
                timeout(DEADLINE, self.socket.next()).await.expect("something comes in time");
            let Some(Ok(message)) = next else { return Relayed::Cut };
            if let Some((code, reason)) = message.as_close() {
                return Relayed::Closed(code.into(), reason.to_owned());
            }
            if message.is_binary() {
                let bytes = Bytes::from(message.into_payload());
                return Relayed::Frame(RelayFrame::decode(bytes).expect("a frame"));
            }
        }
    }

    /// Stream and payload of the next frame, which must be a record.
    pub async fn next_data(&mut self) -> (String, Bytes) {
        match self.next().await {
            Relayed::Frame(RelayFrame { stream_id, body: RelayBody::Data(data), .. }) => {
                (stream_id, data.payload)
            }
            other => panic!("a record was expected: {other:?}"),
        }
    }

    /// Expects the next frame to have this stream and body.
    pub async fn expect(&mut self, stream: &str, body: RelayBody) {
        assert_eq!(self.next().await, Relayed::Frame(RelayFrame::new(stream, body)));
    }

    /// Expects a close frame next.
    pub async fn expect_closed(&mut self, code: u16, reason: &str) {
        assert_eq!(self.next().await, Relayed::Closed(code, reason.to_owned()));
    }
}
