//! Admission of harness streams at our executor: limits, rejection reasons in logs and metrics.

use std::collections::BTreeMap;

use exec_server_relay::frame::{RelayBody, RelayFrame};
use exec_server_testkit::executor::TestExecutor;
use exec_server_testkit::remote::join;
use exec_server_testkit::web::{Link, answer};
use exec_server_testkit::{MockRegistry, RelaySocket, Relayed, eventually};
use serde_json::Value;

use crate::metrics::{metrics_url, scrape};

#[tokio::test]
async fn no_more_than_128_streams_are_open_and_no_more_than_32_are_being_checked() {
    let mut fixture = Fixture::start().await;
    fixture.registry.set_verdict(None);
    for number in 0..33 {
        fixture.knock(&format!("stream-{number}")).await;
    }
    assert_eq!(fixture.next().await, ("stream-32".to_owned(), false));
    eventually("the registry was asked", || fixture.registry.count("validate") == 32).await;
    // A harness that left before the answer still has a request pending.
    for number in 0..16 {
        let reset = RelayBody::Reset { reason: "gone".to_owned() };
        fixture.socket.send(&format!("stream-{number}"), reset).await;
    }
    fixture.knock("stream-33").await;
    assert_eq!(fixture.next().await, ("stream-33".to_owned(), false));
    fixture.registry.set_verdict(Some(true));
    for _ in 16..32 {
        assert!(fixture.next().await.1);
    }
    for number in 34..=146 {
        fixture.knock(&format!("stream-{number}")).await;
        let is_one_too_many = number == 146;
        assert_eq!(fixture.next().await, (format!("stream-{number}"), !is_one_too_many));
    }
    let counts = fixture.handshakes().await;
    assert_eq!((counts["ok"], counts["too_many_streams"]), (128.0, 1.0), "{counts:?}");
    assert_eq!(counts["too_many_pending"], 2.0, "{counts:?}");
    // A harness that disconnects frees its slot.
    fixture.socket.send("stream-20", RelayBody::Reset { reason: "gone".to_owned() }).await;
    fixture.knock("newcomer").await;
    assert_eq!(fixture.next().await, ("newcomer".to_owned(), true));
}

#[tokio::test]
async fn a_handshake_that_fails_is_logged_with_its_stream_and_counted_by_its_reason() {
    let mut fixture = Fixture::start().await;
    let nonsense = RelayBody::Handshake(vec![7; 3600].into());
    fixture.socket.send("malformed", nonsense.clone()).await;
    assert_eq!(fixture.next().await, ("malformed".to_owned(), false));
    fixture.log("malformed", "a handshake failed").await;
    fixture.registry.set_verdict(None);
    fixture.knock("hasty").await;
    eventually("the registry was asked", || fixture.registry.count("validate") == 1).await;
    fixture.socket.send("hasty", nonsense).await;
    assert_eq!(fixture.next().await, ("hasty".to_owned(), false));
    fixture.log("hasty", "a handshake failed").await;
    fixture.registry.set_verdict(Some(false));
    fixture.knock("refused").await;
    assert_eq!(fixture.next().await, ("refused".to_owned(), false));
    fixture.log("refused", "the registry refused a harness").await;
    fixture.registry.set_verdict(Some(true));
    fixture.knock("welcome").await;
    assert_eq!(fixture.next().await, ("welcome".to_owned(), true));
    fixture.log("welcome", "harness admitted").await;
    fixture.socket.send("welcome", RelayBody::Reset { reason: "\u{1b}[2J".to_owned() }).await;
    let left = fixture.log("welcome", "harness disconnected").await;
    assert_eq!(left["why"], "the stream was reset (\\u{1b}[2J)");
    let counts = fixture.handshakes().await;
    for result in ["ok", "bad_handshake", "early_frame", "refused"] {
        assert_eq!(counts[result], 1.0, "{result}: {counts:?}");
    }
    // The request to the registry names the stream.
    let validations = fixture.registry.requests().into_iter();
    let validations = validations.filter(|request| request.target.ends_with("/validate"));
    let streams: Vec<_> = validations
        .map(|request| request.header("x-codex-noise-stream-id").unwrap_or_default().to_owned())
        .collect();
    assert_eq!(streams, ["hasty", "refused", "welcome"]);
}

#[tokio::test]
async fn a_registry_that_does_not_answer_admits_no_harness_and_delays_no_other() {
    // Each verdict belongs to the stream with its number.
    let answers = [
        answer(200, &[], "{}"),
        answer(200, &[], "<html>"),
        answer(200, &[], r#"{"valid":"true"}"#),
        answer(401, &[], r#"{"error":{"code":"invalid_token"}}"#),
        answer(410, &[], ""),
        answer(503, &[], r#"{"valid":true}"#),
        Vec::new(),
    ];
    let count = answers.len();
    let registry = MockRegistry::with_answers(move |request| {
        let stream = request.header("x-codex-noise-stream-id")?;
        answers.get(stream.parse::<usize>().ok()?).cloned()
    });
    let mut fixture = Fixture::at(registry.await).await;
    fixture.knock("open").await;
    assert_eq!(fixture.next().await, ("open".to_owned(), true));
    for number in 0..count {
        fixture.knock(&number.to_string()).await;
        assert_eq!(fixture.next().await, (number.to_string(), false));
        fixture.log(&number.to_string(), "a harness could not be checked").await;
    }
    let counts = fixture.handshakes().await;
    assert_eq!((counts["ok"], counts["unchecked"]), (1.0, 7.0), "{counts:?}");
    // Each harness is validated once.
    assert_eq!(fixture.registry.count("validate"), count + 1);
    fixture.knock("another").await;
    assert_eq!(fixture.next().await, ("another".to_owned(), true));
    assert_eq!(fixture.registry.count("register"), 1);
}

/// An executor with a mock registry and relay.
struct Fixture {
    registry: MockRegistry,
    executor: TestExecutor,
    socket: RelaySocket<Box<dyn Link>>,
    metrics: String,
    _state: tempfile::TempDir,
}

impl Fixture {
    async fn start() -> Self {
        Self::at(MockRegistry::start().await).await
    }

    async fn at(registry: MockRegistry) -> Self {
        let state = tempfile::tempdir().unwrap();
        let builder = join(&registry.url(), state.path(), "token").env("RUST_LOG", "info");
        let builder = builder.args(&["--metrics-listen", "127.0.0.1:0"]);
        let mut executor = builder.piped_stderr().spawn();
        let metrics = metrics_url(&mut executor).await;
        let socket = registry.socket().await;
        Self { registry, executor, socket, metrics, _state: state }
    }

    /// A new harness starts a handshake.
    async fn knock(&mut self, stream_id: &str) {
        let frame = self.registry.handshake(stream_id, &self.registry.executor_key());
        self.socket.send_bytes(frame).await;
    }

    /// The next verdict: stream id, and whether the harness was admitted.
    async fn next(&mut self) -> (String, bool) {
        match self.socket.next().await {
            Relayed::Frame(RelayFrame { stream_id, body: RelayBody::Handshake(_), .. }) => {
                (stream_id, true)
            }
            Relayed::Frame(RelayFrame { stream_id, body: RelayBody::Reset { .. }, .. }) => {
                (stream_id, false)
            }
            other => panic!("{other:?}"),
        }
    }

    /// The log line of a stream with this message.
    async fn log(&mut self, stream_id: &str, message: &str) -> Value {
        loop {
            let line = self.executor.next_stderr_line().await.expect("it says so");
            let line: Value = serde_json::from_str(&line).expect("a line of JSON");
            if line["message"] == message && line["stream_id"] == stream_id {
                return line;
            }
        }
    }

    /// Handshake counters by result.
    async fn handshakes(&self) -> BTreeMap<String, f64> {
        let counts = scrape(&self.metrics).await.into_iter().filter_map(|(name, count)| {
            let result = name.strip_prefix("exec_server_noise_handshakes_total{result=\"")?;
            Some((result.strip_suffix("\"}")?.to_owned(), count))
        });
        counts.collect()
    }
}
