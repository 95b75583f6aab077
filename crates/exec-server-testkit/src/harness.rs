//! A harness that connects to an executor through a rendezvous, with its own key.

use std::future::poll_fn;
use std::time::Duration;

use bytes::Bytes;
use exec_server_relay::harness_wire::HarnessWire;
use exec_server_relay::noise::SystemRandom;
use exec_server_relay::noise::identity::Identity;
use exec_server_relay::registry_types::ConnectResponse;
use exec_server_relay::splice::splice;
use exec_server_transport::connection::{InMessage, KeepaliveConfig, Received, Wire, WireError};
use exec_server_transport::dial::{DialOptions, dial_relay};
use exec_server_transport::websocket::WebSocketWire;
use tokio::time::timeout;
use tokio_websockets::ServerBuilder;

use crate::DEADLINE;
use crate::client::TestClient;
use crate::http::request_with_body;
use crate::rendezvous::connect_body;

/// Longer than any test.
const NO_PINGS: KeepaliveConfig =
    KeepaliveConfig { interval: Duration::from_secs(3600), deadline: Duration::from_secs(3600) };
/// Largest message of a test.
const MAX_MESSAGE: usize = 128 << 20;

/// A harness with a key and a token.
pub struct TestHarness {
    registry: String,
    environment: String,
    token: String,
    identity: Identity,
}

impl TestHarness {
    /// A new harness that is authorised for this environment.
    pub fn new(registry: &str, environment: &str, token: &str) -> Self {
        Self {
            registry: registry.to_owned(),
            environment: environment.to_owned(),
            token: token.to_owned(),
            identity: Identity::generate(&mut SystemRandom),
        }
    }

    /// Sends connect requests to the registry until the executor is attached.
    pub async fn connect(&self) -> ConnectResponse {
        let path = format!("/cloud/environment/{}/connect", self.environment);
        let authorization = format!("Bearer {}", self.token);
        let headers =
            [("Authorization", authorization.as_str()), ("Content-Type", "application/json")];
        let body = connect_body(&self.identity.public_key()).to_string();
        let asking = async {
            loop {
                let reply =
                    request_with_body(&self.registry, "POST", &path, &headers, body.as_bytes())
                        .await;
                match reply.status {
                    200 => return serde_json::from_str(&reply.body).expect("a connect response"),
                    409 | 503 => tokio::time::sleep(Duration::from_millis(10)).await,
                    _ => panic!("{reply:?}"),
                }
            }
        };
        timeout(DEADLINE, asking).await.expect("the executor comes in time")
    }

    /// Connects and runs the handshake with the executor.
    pub async fn open_at(&self, response: &ConnectResponse) -> Result<HarnessWire, WireError> {
        let url = response.url.parse().expect("a URL");
        let socket = dial_relay(&url, &DialOptions::default()).await;
        let socket = socket.map_err(|error| WireError::Protocol(error.to_string()))?;
        let stream_id = format!("stream-{:032x}", fresh_number());
        let opening = HarnessWire::open(
            socket,
            stream_id,
            &self.identity,
            response,
            &response.executor_public_key,
        );
        timeout(DEADLINE, opening).await.expect("the handshake ends in time")
    }

    /// A stream to the executor.
    pub async fn open(&self) -> Result<HarnessWire, WireError> {
        self.open_at(&self.connect().await).await
    }

    /// A client over its own stream; it has no session yet.
    pub async fn client(&self) -> TestClient {
        client_over(self.open().await.expect("the executor lets it in")).await
    }
}

/// A client over an open stream.
pub async fn client_over(stream: HarnessWire) -> TestClient {
    let (here, there) = tokio::io::duplex(1 << 20);
    tokio::spawn(async move {
        let (_, near) = ServerBuilder::new().accept(there).await.expect("the client asks for it");
        let near = WebSocketWire::serve(near.into_inner(), "test".to_owned(), MAX_MESSAGE);
        splice(near, Box::new(stream), NO_PINGS).await;
    });
    TestClient::over(here, "ws://localhost/", &[]).await.expect("it is taken")
}

/// Sends a message.
pub async fn send(stream: &mut HarnessWire, message: impl Into<Bytes>) -> Result<(), WireError> {
    stream.start_send(message.into())?;
    timeout(DEADLINE, poll_fn(|cx| stream.poll_flush(cx))).await.expect("it is taken in time")
}

/// Receives the next message.
pub async fn receive(stream: &mut HarnessWire) -> Result<Bytes, WireError> {
    loop {
        let next = poll_fn(|cx| stream.poll_next(cx));
        match timeout(DEADLINE, next).await.expect("something comes in time") {
            Some(Ok(Received::Message(InMessage::Bytes(message)))) => return Ok(message),
            Some(Ok(_)) => {}
            Some(Err(error)) => return Err(error),
            None => return Err(WireError::Protocol("the end".to_owned())),
        }
    }
}

/// A random number.
fn fresh_number() -> u128 {
    use std::hash::{BuildHasher, RandomState};
    let half = || u128::from(RandomState::new().hash_one(std::time::Instant::now()));
    half() << 64 | half()
}
