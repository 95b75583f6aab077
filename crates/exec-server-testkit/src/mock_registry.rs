//! Mock registry and relay, scripted by a test.

use std::sync::Arc;

use bytes::Bytes;
use exec_server_relay::harness_stream::HarnessStream;
use exec_server_relay::noise::SystemRandom;
use exec_server_relay::noise::identity::Identity;
use exec_server_relay::registry_types::{
    ConnectResponse, PublicKey, RegisterRequest, RegisterResponse, SECURITY_PROFILE,
};
use exec_server_transport::upgrade::accept;
use serde_json::json;
use tokio::sync::{Mutex, mpsc, watch};
use tokio::time::timeout;

use crate::DEADLINE;
use crate::rendezvous::RelaySocket;
use crate::web::{Link, Visit, Web, WebRequest, answer};

/// A registry and relay for the environment `env`.
pub struct MockRegistry {
    web: Web,
    shared: Arc<Shared>,
    sockets: Mutex<mpsc::UnboundedReceiver<RelaySocket<Box<dyn Link>>>>,
}

/// Answer to a registry request; `None` gives the default answer.
pub type Answers = Box<dyn Fn(&WebRequest) -> Option<Vec<u8>> + Send + Sync>;

struct Shared {
    answers: Answers,
    /// Verdict about harnesses; `None` delays the answer.
    verdict: watch::Sender<Option<bool>>,
    sockets: mpsc::UnboundedSender<RelaySocket<Box<dyn Link>>>,
}

impl MockRegistry {
    /// Accepts every registration and every harness.
    pub async fn start() -> Self {
        Self::with_answers(|_| None).await
    }

    /// Accepts everything; `answers` may override the answer to a request.
    pub async fn with_answers(
        answers: impl Fn(&WebRequest) -> Option<Vec<u8>> + Send + Sync + 'static,
    ) -> Self {
        let (sender, sockets) = mpsc::unbounded_channel();
        let verdict = watch::Sender::new(Some(true));
        let shared = Arc::new(Shared { answers: Box::new(answers), verdict, sockets: sender });
        let serving = shared.clone();
        let web = Web::start(move |visit| serve(visit, serving.clone())).await;
        Self { web, shared, sockets: Mutex::new(sockets) }
    }

    /// Base URL.
    pub fn url(&self) -> String {
        self.web.url("")
    }

    /// All requests so far.
    pub fn requests(&self) -> Vec<WebRequest> {
        self.web.requests()
    }

    /// Number of requests of this kind: `register` or `validate`.
    pub fn count(&self, action: &str) -> usize {
        let asked = self.requests();
        asked.iter().filter(|request| request.target.ends_with(&format!("/{action}"))).count()
    }

    /// Sets the verdict about harnesses; `None` makes the executor wait.
    pub fn set_verdict(&self, verdict: Option<bool>) {
        self.shared.verdict.send_replace(verdict);
    }

    /// The relay's end of the next websocket from the executor.
    pub async fn socket(&self) -> RelaySocket<Box<dyn Link>> {
        let mut sockets = self.sockets.lock().await;
        let next = timeout(DEADLINE, sockets.recv()).await.expect("the executor comes in time");
        next.expect("the sender is held")
    }

    /// The key that the executor registered last.
    pub fn executor_key(&self) -> PublicKey {
        let registrations = self.requests().into_iter().rev();
        let mut bodies =
            registrations.filter_map(|request| serde_json::from_slice(&request.body).ok());
        let request: RegisterRequest = bodies.next().expect("it has registered");
        request.executor_public_key
    }

    /// The handshake frame of a harness.
    pub fn handshake(&self, stream_id: &str, executor: &PublicKey) -> Bytes {
        let response = ConnectResponse {
            environment_id: "env".to_owned(),
            url: "ws://relay".to_owned(),
            security_profile: SECURITY_PROFILE.to_owned(),
            executor_registration_id: "registration".to_owned(),
            executor_public_key: executor.clone(),
            harness_key_authorization: "authorization".to_owned(),
        };
        let identity = Identity::generate(&mut SystemRandom);
        let stream = HarnessStream::<SystemRandom>::new(
            stream_id.to_owned(),
            &identity,
            &response,
            executor,
        );
        let mut stream = stream.expect("a key of this suite");
        let frames = std::iter::from_fn(|| stream.poll_frame().expect("the stream is new"));
        frames.last().expect("a handshake follows the claim").into()
    }
}

async fn serve(mut visit: Visit, shared: Arc<Shared>) {
    while let Some(request) = visit.request().await {
        if let Some(answer) = (shared.answers)(&request) {
            // An empty answer closes the connection.
            if answer.is_empty() || !visit.send(answer).await {
                return;
            }
            continue;
        }
        let body = match request.target.rsplit('/').next() {
            Some("register") => registration(&request),
            Some("validate") => {
                let mut verdict = shared.verdict.subscribe();
                let verdict = *verdict.wait_for(Option::is_some).await.expect("it is held");
                json!({"valid": verdict}).to_string()
            }
            _ => {
                visit.send(switch(&request)).await;
                let _ = shared.sockets.send(RelaySocket::serve(visit.into_link()));
                return;
            }
        };
        visit.send(answer(200, &[], body)).await;
    }
}

/// The default answer to `register`; the relay has the same address.
pub fn registration(request: &WebRequest) -> String {
    let host = request.header("host").expect("every request has one");
    let registration = RegisterResponse {
        environment_id: "env".to_owned(),
        url: format!("ws://{host}/relay"),
        security_profile: SECURITY_PROFILE.to_owned(),
        executor_registration_id: "registration".to_owned(),
    };
    serde_json::to_string(&registration).expect("plain data")
}

/// The response that upgrades a connection to a websocket.
pub fn switch(request: &WebRequest) -> Vec<u8> {
    let given = request
        .headers
        .iter()
        .map(|(name, value)| (name.parse().expect("a name"), value.parse().expect("a value")));
    let accepted = accept(&given.collect()).expect("it asks for a websocket");
    let mut text = String::from("HTTP/1.1 101 Switching Protocols\r\n");
    for (name, value) in &accepted {
        text.push_str(&format!("{name}: {}\r\n", value.to_str().expect("text")));
    }
    (text + "\r\n").into_bytes()
}
