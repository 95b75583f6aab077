//! A relay between a harness and our executor can stop a stream, and nothing else.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use exec_server_relay::frame::{RelayBody, RelayData, RelayFrame};
use exec_server_rendezvous::store::TokenRole;
use exec_server_testkit::executor::TestExecutor;
use exec_server_testkit::harness::{client_over, receive, send};
use exec_server_testkit::remote::{join, wait_for_presence};
use exec_server_testkit::{HostileRelay, Leg, TestClient, TestHarness, TestRendezvous, eventually};
use futures_util::FutureExt;
use serde_json::json;

/// Plaintext that only the two ends may see.
const CANARY: &str = "canary-8d1f7c5e";

#[tokio::test]
async fn a_relay_reads_nothing() {
    let fixture = Fixture::start().await;
    let mut client = fixture.client().await;
    let output = client.sh("p", &format!("echo {CANARY}; echo {CANARY} >&2")).await;
    assert_eq!(output.text(), format!("{CANARY}\n"));
    let file = fixture.state.path().join(CANARY);
    let uri = format!("file://{}", file.display());
    client.call("fs/writeFile", json!({"path": uri, "dataBase64": "Y2FuYXJ5"})).await.unwrap();
    client.call("fs/readFile", json!({"path": uri})).await.unwrap();
    let captured = fixture.relay.captured();
    assert!(captured.len() > 10, "the relay saw frames");
    // The plaintext, and its base64 at every alignment.
    let words = [CANARY, "Y2FuYXJ5", "NhbmFye", "jYW5hcn", "process/", "initialize", "sessionId"];
    for (leg, frame) in &captured {
        for word in words {
            let is_there = frame.windows(word.len()).any(|window| window == word.as_bytes());
            assert!(!is_there, "`{word}` in a frame on {leg:?}");
        }
    }
}

#[tokio::test]
async fn duplicated_and_reordered_frames_change_nothing() {
    let fixture = Fixture::start().await;
    let mut client = fixture.client().await;
    fixture.relay.set_filter(|_, frame| vec![frame.clone(), frame]);
    assert_eq!(client.sh("twice", "seq 1 2000 | tail -1").await.text(), "2000\n");
    // Full records wait for each other and leave the last one first.
    let held = Mutex::new(Vec::new());
    fixture.relay.set_filter(move |leg, frame| {
        if !(leg == Leg::ToHarness && data(&frame).is_some()) {
            return vec![frame];
        }
        let mut held = held.lock().unwrap();
        let is_full = frame.len() > 60_000;
        held.push(frame);
        if is_full && held.len() < 8 {
            return Vec::new();
        }
        held.drain(..).rev().collect()
    });
    let output = client.sh("order", "seq 1 300000").await.text();
    let expected: String = (1..=300_000).map(|number| format!("{number}\n")).collect();
    assert!(output == expected, "every byte is in its place");
}

#[tokio::test]
async fn delayed_frames_arrive_late_and_complete() {
    let fixture = Fixture::start().await;
    let mut client = fixture.client().await;
    let kept = Arc::new(Mutex::new(Vec::new()));
    let keeping = kept.clone();
    fixture.relay.set_filter(move |leg, frame| {
        if leg == Leg::ToHarness {
            keeping.lock().unwrap().push(frame);
            return Vec::new();
        }
        vec![frame]
    });
    let id = client.send("environment/status", json!({})).await;
    eventually("the answer was kept back", || !kept.lock().unwrap().is_empty()).await;
    // Other streams are not affected.
    fixture.relay.set_filter({
        let kept = kept.clone();
        let stream = stream_of(&kept.lock().unwrap()[0]);
        move |leg, frame| {
            if leg == Leg::ToHarness && stream_of(&frame) == stream {
                kept.lock().unwrap().push(frame);
                return Vec::new();
            }
            vec![frame]
        }
    });
    let mut other = fixture.client().await;
    assert_eq!(other.sh("p", "echo meanwhile").await.text(), "meanwhile\n");
    assert!(client.raw_message().now_or_never().is_none(), "nothing has come");
    fixture.relay.clear_filter();
    for frame in kept.lock().unwrap().drain(..) {
        fixture.relay.inject(Leg::ToHarness, frame);
    }
    client.reply(id).await.expect("the answer");
}

#[tokio::test]
async fn a_frame_that_is_lost_stops_its_stream_and_no_other() {
    let fixture = Fixture::start().await;
    for leg in [Leg::ToExecutor, Leg::ToHarness] {
        let mut stream = fixture.harness.open().await.unwrap();
        let lost = Arc::new(Mutex::new(0));
        let losing = lost.clone();
        fixture.relay.set_filter(move |at, frame| {
            if at == leg && data(&frame).is_some() && *losing.lock().unwrap() == 0 {
                *losing.lock().unwrap() += 1;
                return Vec::new();
            }
            vec![frame]
        });
        send(&mut stream, INITIALIZE).await.unwrap();
        eventually("a frame was lost", || *lost.lock().unwrap() == 1).await;
        fixture.relay.clear_filter();
        send(&mut stream, INITIALIZED).await.unwrap();
        let mut other = fixture.client().await;
        assert_eq!(other.sh("p", "echo still").await.text(), "still\n");
        assert!(receive(&mut stream).now_or_never().is_none(), "what came later is not shown");
    }
}

#[tokio::test]
async fn a_frame_that_is_changed_ends_its_stream_and_is_not_believed() {
    let fixture = Fixture::start().await;
    type Change = fn(&mut Vec<u8>);
    let changes: [(&str, Change); 5] = [
        ("a bit", |payload| payload[0] ^= 1),
        ("the seal", |payload| *payload.last_mut().unwrap() ^= 0x80),
        ("shorter", |payload| payload.truncate(payload.len() - 1)),
        ("next to nothing", |payload| payload.truncate(3)),
        ("longer", |payload| payload.extend([0; 7])),
    ];
    for leg in [Leg::ToExecutor, Leg::ToHarness] {
        for (what, change) in changes {
            let mut stream = fixture.harness.open().await.unwrap();
            fixture.relay.set_filter(move |at, frame| match data(&frame) {
                Some((stream_id, mut data)) if at == leg => {
                    let mut payload = data.payload.to_vec();
                    change(&mut payload);
                    data.payload = payload.into();
                    vec![RelayFrame::new(stream_id, RelayBody::Data(data)).encode().into()]
                }
                _ => vec![frame],
            });
            send(&mut stream, INITIALIZE).await.unwrap();
            let heard = receive(&mut stream).await;
            assert!(heard.is_err(), "{what} on {leg:?}: {heard:?}");
            fixture.relay.clear_filter();
        }
    }
    assert_eq!(fixture.client().await.sh("p", "echo fine").await.text(), "fine\n");
}

#[tokio::test]
async fn forged_frames_end_a_stream_at_most() {
    let fixture = Fixture::start().await;
    let mut bystander = fixture.client().await;
    for seed in 0..24_u64 {
        let mut random = Random(seed);
        let mut stream = fixture.harness.open().await.unwrap();
        let id = fixture.newest_stream().await;
        let length = 1 + random.below(2000);
        let payload = random.bytes(length);
        let made_up = match seed % 6 {
            0 => data_frame(&id, 0, payload),
            1 => data_frame(&id, u32::MAX, payload),
            2 => RelayFrame::new(&*id, RelayBody::Handshake(payload.into())).encode(),
            3 => RelayFrame::new(&*id, RelayBody::Reset { reason: "made up".into() }).encode(),
            4 => data_frame(&id, length as u32 % 64, random.bytes(61_440 + 16)),
            _ => data_frame(&id, 0, random.bytes(100_000)),
        };
        let leg = if seed % 2 == 0 { Leg::ToExecutor } else { Leg::ToHarness };
        fixture.relay.inject(leg, made_up);
        // Every message is one that the executor sent, or the stream ends.
        if send(&mut stream, INITIALIZE).await.is_ok()
            && let Ok(answer) = receive(&mut stream).await
        {
            let answer: serde_json::Value = serde_json::from_slice(&answer).expect("JSON");
            assert!(answer["result"]["sessionId"].is_string(), "{answer}");
        }
        // Frames for unknown streams, and bytes that are no frames.
        fixture.relay.inject(Leg::ToExecutor, data_frame("nobody", 0, random.bytes(100)));
        fixture.relay.inject(Leg::ToExecutor, random.bytes(300));
    }
    assert_eq!(bystander.sh("p", "echo untouched").await.text(), "untouched\n");
}

#[tokio::test]
async fn replayed_records_are_not_executed_again() {
    let fixture = Fixture::start().await;
    let file = fixture.state.path().join("lines");
    let mut client = fixture.client().await;
    let id = fixture.newest_stream().await;
    client.sh("p", &format!("echo once >> {}", file.display())).await;
    let said: Vec<Bytes> = fixture
        .relay
        .captured()
        .into_iter()
        .filter(|(leg, frame)| *leg == Leg::ToExecutor && stream_of(frame) == id)
        .map(|(_, frame)| frame)
        .collect();
    // While the stream is open, replayed records are old; the handshake would be a second one and is left out.
    for frame in said.iter().filter(|frame| data(frame).is_some()) {
        fixture.relay.inject(Leg::ToExecutor, frame.clone());
    }
    assert_eq!(client.sh("q", "echo on").await.text(), "on\n");
    drop(client);
    fixture.relay.wait_for(Leg::ToExecutor, |frame| is_reset(frame, &id)).await;
    // Afterwards everything is replayed: its authorization is used up.
    for frame in said {
        fixture.relay.inject(Leg::ToExecutor, frame);
    }
    fixture.relay.wait_for(Leg::FromExecutor, |frame| is_reset(frame, &id)).await;
    assert_eq!(fixture.client().await.sh("p", "echo new").await.text(), "new\n");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "once\n");
    let metrics = fixture.relay.rendezvous.metrics().await;
    assert!(metrics.contains("noise_handshakes_total{result=\"refused\"} 1\n"), "{metrics}");
}

#[tokio::test]
async fn records_of_one_stream_mean_nothing_on_another() {
    let fixture = Fixture::start().await;
    let mut first = fixture.client().await;
    let first_id = fixture.newest_stream().await;
    let mut second = fixture.client().await;
    let second_id = fixture.newest_stream().await;
    let file = fixture.state.path().join("crossed");
    // The next message of the first harness is delivered as the second one's.
    let (from, to) = (first_id.clone(), second_id.clone());
    fixture.relay.set_filter(move |leg, frame| match data(&frame) {
        Some((stream, data)) if leg == Leg::ToExecutor && stream == from => {
            vec![RelayFrame::new(&*to, RelayBody::Data(data)).encode().into()]
        }
        _ => vec![frame],
    });
    let script = format!("touch {}", file.display());
    let argv = ["/bin/sh", "-c", script.as_str()];
    first
        .send("process/start", exec_server_testkit::client::start_params("p", &argv, json!({})))
        .await;
    fixture.relay.wait_for(Leg::FromExecutor, |frame| is_reset(frame, &second_id)).await;
    let ended = second.raw_message().await;
    assert!(ended.is_none_or(|message| message.is_err()), "the second one is over");
    fixture.relay.clear_filter();
    assert_eq!(fixture.client().await.sh("p", "echo new").await.text(), "new\n");
    assert!(!file.exists(), "the request on the wrong stream ran");
}

#[tokio::test]
async fn a_message_that_is_too_large_costs_the_socket_and_no_session() {
    let fixture = Fixture::start().await;
    let mut client = fixture.client().await;
    client.start("p", &["/bin/cat"], json!({"pipeStdin": true})).await.unwrap();
    let session = client.session_id.clone();
    fixture.relay.inject(Leg::ToExecutor, vec![0; 256 * 1024 + 1]);
    assert!(client.raw_message().await.is_none_or(|message| message.is_err()));
    let mut client = client_over(fixture.harness.open().await.unwrap()).await;
    client.resume(&session).await.expect("the session is there");
    client.write("p", "w", "alive\n").await.unwrap();
    client.wait_output("p", "alive").await;
}

#[tokio::test]
async fn a_flood_fills_no_memory_and_blocks_no_other_client() {
    let fixture = Fixture::start().await;
    let mut ahead = fixture.harness.open().await.unwrap();
    let stream = fixture.newest_stream().await;
    let mut client = fixture.client().await;
    client.sh("warm", "true").await;
    let before = rss(fixture.executor.serving_pid());
    let mut random = Random(7);
    for round in 0..20 {
        // Invalid handshakes on new streams, and records on unknown streams.
        for number in 0..500_u32 {
            let id = format!("flood-{round}-{number}");
            let payload = random.bytes(3600);
            let body = RelayBody::Handshake(payload.clone().into());
            fixture.relay.inject(Leg::ToExecutor, RelayFrame::new(&*id, body).encode());
            fixture.relay.inject(Leg::ToExecutor, data_frame(&id, number, payload));
        }
        // Each round is processed before the next one.
        assert_eq!(client.sh(&format!("p{round}"), "echo here").await.text(), "here\n");
    }
    // Records far ahead on an open stream: it ends, and its buffered records are dropped.
    for seq in 1_000..1_064 {
        fixture.relay.inject(Leg::ToExecutor, data_frame(&stream, seq, random.bytes(61_000)));
    }
    assert!(receive(&mut ahead).await.is_err());
    assert_eq!(client.sh("last", "echo here").await.text(), "here\n");
    let after = rss(fixture.executor.serving_pid());
    assert!(after < before + (64 << 20), "{before} became {after}");
}

#[tokio::test]
async fn an_authorization_is_for_one_key_and_one_time() {
    let mut fixture = Fixture::start().await;
    let stranger = TestHarness::new(fixture.relay.rendezvous.url(), "env", &fixture.token);
    let response = fixture.harness.connect().await;
    assert!(stranger.open_at(&response).await.is_err(), "another key");
    let used = fixture.harness.connect().await;
    drop(fixture.harness.open_at(&used).await.expect("the first time"));
    let mut again = fixture.harness.connect().await;
    again.harness_key_authorization = used.harness_key_authorization;
    assert!(fixture.harness.open_at(&again).await.is_err(), "a second time");
    let mut stale = fixture.harness.connect().await;
    stale.executor_registration_id = "reg_of_yesterday".to_owned();
    assert!(fixture.harness.open_at(&stale).await.is_err(), "another registration");
    let metrics = fixture.relay.rendezvous.metrics().await;
    assert!(metrics.contains("noise_handshakes_total{result=\"refused\"} 2\n"), "{metrics}");
    assert!(metrics.contains("noise_handshakes_total{result=\"ok\"} 1\n"), "{metrics}");
    for _ in 0..2 {
        while !fixture.log_line().await.contains("the registry refused a harness") {}
    }
    assert_eq!(fixture.client().await.sh("p", "echo fine").await.text(), "fine\n");
}

#[tokio::test]
async fn an_authorization_that_was_kept_back_too_long_is_refused() {
    let second = std::time::Duration::from_secs(1);
    let relay = HostileRelay::start_with(|config| config.timings.harness_bundle = second).await;
    let fixture = Fixture::start_at(relay).await;
    let kept = Arc::new(Mutex::new(Vec::new()));
    let keeping = kept.clone();
    fixture.relay.set_filter(move |leg, frame| {
        let handshake = RelayFrame::decode(frame.clone()).unwrap().body;
        if leg == Leg::ToExecutor && matches!(handshake, RelayBody::Handshake(_)) {
            keeping.lock().unwrap().push(frame);
            return Vec::new();
        }
        vec![frame]
    });
    let opening = fixture.harness.open();
    let releasing = async {
        eventually("the handshake was kept back", || !kept.lock().unwrap().is_empty()).await;
        // Expiry is counted in whole seconds.
        tokio::time::sleep(2 * second).await;
        fixture.relay.inject(Leg::ToExecutor, kept.lock().unwrap().remove(0));
    };
    let (opened, ()) = tokio::join!(opening, releasing);
    assert!(opened.is_err());
    let metrics = fixture.relay.rendezvous.metrics().await;
    assert!(metrics.contains("noise_handshakes_total{result=\"refused\"} 1\n"), "{metrics}");
}

#[tokio::test]
async fn misdirected_handshakes_are_rejected_and_counted() {
    let rendezvous = &TestRendezvous::start().await;
    let env = super::env(rendezvous, "env").await;
    let other = super::env(rendezvous, "other").await;
    let _executor = env.executor(rendezvous).await;
    let mut victim = env.harness(rendezvous).await;
    let mut intruder = env.harness(rendezvous).await;
    victim.resume("victim").await;
    intruder.resume("intruder").await;
    intruder.send_data("victim", "forged").await;
    intruder.send_text("the end").await;
    intruder.expect_closed(1003, "text_message").await;
    let key = exec_server_testkit::rendezvous::public_key(3);
    let body = exec_server_testkit::rendezvous::connect_body(&key);
    let reply = rendezvous.post("env/connect", &other.harness, &body).await;
    assert_eq!(super::refusal(&reply), (403, "forbidden".to_owned()));
    let metrics = rendezvous.ask("GET", "/metrics", rendezvous.admin_token(), &json!(null)).await;
    for line in [
        "exec_server_relay_dropped_frames_total{reason=\"foreign_stream\"} 1",
        "exec_server_request_refusals_total{method=\"connect\",code=\"forbidden\"} 1",
    ] {
        assert!(metrics.body.lines().any(|it| it == line), "{line}: {}", metrics.body);
    }
}

#[tokio::test]
async fn a_session_is_resumed_only_by_the_key_that_began_it() {
    let fixture = Fixture::start().await;
    let mut client = fixture.client().await;
    client.start("p", &["/bin/cat"], json!({"pipeStdin": true})).await.unwrap();
    let session = client.session_id.clone();
    let stranger = TestHarness::new(fixture.relay.rendezvous.url(), "env", &fixture.token);
    let mut stolen = client_over(stranger.open().await.unwrap()).await;
    let refused = stolen.resume(&session).await.expect_err("it is another's");
    assert!(refused["message"].as_str().unwrap().contains("unknown session"), "{refused}");
    assert_eq!(client.sh("q", "echo mine").await.text(), "mine\n");
}

const INITIALIZE: &str =
    r#"{"id":1,"method":"initialize","params":{"clientName":"test","resumeSessionId":null}}"#;
const INITIALIZED: &str = r#"{"method":"initialized","params":{}}"#;

/// A hostile relay between our executor and a harness.
pub(super) struct Fixture {
    pub(super) relay: HostileRelay,
    executor: TestExecutor,
    harness: TestHarness,
    token: String,
    state: tempfile::TempDir,
}

impl Fixture {
    pub(super) async fn start() -> Self {
        Self::start_at(HostileRelay::start().await).await
    }

    async fn start_at(relay: HostileRelay) -> Self {
        let state = tempfile::tempdir().unwrap();
        let url = relay.rendezvous.url().to_owned();
        let executor_token = relay.rendezvous.token(TokenRole::Executor, "env").await;
        let executor = join(&url, state.path(), &executor_token).piped_stderr().spawn();
        let token = relay.rendezvous.token(TokenRole::Harness, "env").await;
        let harness = TestHarness::new(&url, "env", &token);
        wait_for_presence(&url, relay.rendezvous.admin_token(), true).await;
        Self { relay, executor, harness, token, state }
    }

    /// A client with a session.
    pub(super) async fn client(&self) -> TestClient {
        let mut client = self.harness.client().await;
        client.initialize().await;
        client
    }

    /// The stream that was opened last.
    async fn newest_stream(&self) -> String {
        let captured = self.relay.captured();
        let handshakes = captured.iter().rev().filter(|(leg, _)| *leg == Leg::FromHarness);
        let is_handshake = |frame: &RelayFrame| matches!(frame.body, RelayBody::Handshake(_));
        let mut frames = handshakes.filter_map(|(_, frame)| RelayFrame::decode(frame.clone()).ok());
        frames.find(is_handshake).expect("a stream was opened").stream_id
    }

    async fn log_line(&mut self) -> String {
        self.executor.next_stderr_line().await.expect("it says so")
    }
}

fn data(frame: &Bytes) -> Option<(String, RelayData)> {
    match RelayFrame::decode(frame.clone()) {
        Ok(RelayFrame { stream_id, body: RelayBody::Data(data), .. }) => Some((stream_id, data)),
        _ => None,
    }
}

fn stream_of(frame: &Bytes) -> String {
    RelayFrame::decode(frame.clone()).map(|frame| frame.stream_id).unwrap_or_default()
}

fn is_reset(frame: &RelayFrame, stream: &str) -> bool {
    frame.stream_id == stream && matches!(frame.body, RelayBody::Reset { .. })
}

fn data_frame(stream: &str, seq: u32, payload: Vec<u8>) -> Vec<u8> {
    let data = RelayData { seq, segment_index: 0, segment_count: 1, payload: payload.into() };
    RelayFrame::new(stream, RelayBody::Data(data)).encode()
}

pub(super) fn rss(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("it has memory");
    let kib: u64 = line.split_ascii_whitespace().nth(1).unwrap().parse().unwrap();
    kib * 1024
}

/// Deterministic bytes for a seed.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.next() as u8).collect()
    }
}
