//! The log lines of one stream can be found and joined.

use exec_server_testkit::http::{HttpConnection, UPGRADE, request_with_body};
use exec_server_testkit::remote::join;
use exec_server_testkit::rendezvous::{connect_body, public_key, upgrade_at};
use exec_server_testkit::{RelaySocket, TestHarness};
use serde_json::Value;

use super::commands::Program;

#[tokio::test]
async fn a_stream_can_be_followed_through_registry_relay_and_executor() {
    let data_dir = tempfile::tempdir().unwrap();
    let mut program = Program::start(&data_dir.path().join("data"), "http://127.0.0.1:0").await;
    let (token, harness) = (program.token("executor").await, program.token("harness").await);
    let executor =
        join(&program.url, &data_dir.path().join("state"), &token).env("RUST_LOG", "info");
    let mut executor = executor.piped_stderr().spawn();
    let mut log = Log::default();
    let registered = log.until(&mut program, |line| is(line, "executor registered")).await;
    let attached = log.until(&mut program, |line| is(line, "attached")).await;
    assert_eq!(attached["span"]["registration"], registered["registration"]);
    assert_eq!(attached["span"]["token"], registered["token"]);

    let harness = TestHarness::new(&program.url, "env", &harness);
    let mut client = harness.client().await;
    client.initialize().await;
    drop(client);
    let given = log.until(&mut program, |line| is(line, "harness connect authorized")).await;
    let claimed = log.until(&mut program, |line| is(line, "stream claimed")).await;
    let stream = claimed["stream_id"].clone();
    assert!(stream.as_str().is_some_and(|id| id.starts_with("stream-")), "{claimed}");
    assert!(given["connect_id"].is_string());
    assert_eq!(
        claimed["span"]["connect_id"], given["connect_id"],
        "the connect request and its socket have the same id"
    );
    let asked = log.until(&mut program, |line| is(line, "harness validated")).await;
    assert_eq!((&asked["stream_id"], &asked["valid"]), (&stream, &true.into()));
    let ended =
        log.until(&mut program, |line| is(line, "detached") && line["stream_id"] == stream).await;
    assert_eq!(ended["reason"], "closed_by_peer");
    assert_eq!(ended["span"]["registration"], registered["registration"]);

    let in_executor = format!("\"stream_id\":{stream}");
    loop {
        let line = executor.next_stderr_line().await.expect("it says who came in");
        if line.contains("harness admitted") {
            assert!(line.contains(&in_executor), "{line}");
            break;
        }
    }
}

#[tokio::test]
async fn rejections_are_logged_with_their_reason_and_the_peer() {
    let data_dir = tempfile::tempdir().unwrap();
    let mut program = Program::start(data_dir.path(), "http://127.0.0.1:0").await;
    let harness = program.token("harness").await;
    let path = "/cloud/environment/env/connect";
    let body = connect_body(&public_key(2)).to_string();
    let authorization = format!("Bearer {harness}");
    let mut log = Log::default();
    for (token, code) in [("Bearer x", "invalid_token"), (&authorization, "environment_offline")] {
        let headers = [
            ("Authorization", token),
            ("x-request-id", "req_7"),
            ("x-codex-noise-stream-id", "stream-7"),
        ];
        request_with_body(&program.url, "POST", path, &headers, body.as_bytes()).await;
        let line = log.until(&mut program, |line| is(line, "request refused")).await;
        let facts = [&line["code"], &line["request_id"], &line["stream_id"], &line["environment"]];
        assert_eq!(facts, [code, "req_7", "stream-7", "env"], "{line}");
    }
    let executor = program.token("executor").await;
    let registered = program.register(&executor, &public_key(1)).await;
    program.register(&executor, &public_key(1)).await;
    assert_eq!(upgrade_at(super::url(&registered)).await.status, 401);
    let line = log.until(&mut program, |line| is(line, "websocket refused")).await;
    assert_eq!(line["reason"], "expired");
    assert_eq!(line["registration"], registered["executor_registration_id"]);
}

#[tokio::test]
async fn rejected_harnesses_and_foreign_frames_are_logged() {
    let data_dir = tempfile::tempdir().unwrap();
    let mut program = Program::start(data_dir.path(), "http://127.0.0.1:0").await;
    let (executor, harness) = (program.token("executor").await, program.token("harness").await);
    let registered = program.register(&executor, &public_key(1)).await;
    let mut socket = RelaySocket::open(super::url(&registered)).await;
    let response = program.connect(&harness, &public_key(2)).await;
    let mut log = Log::default();
    for (key, reason) in [(3, "other_key"), (2, ""), (2, "used_authorization")] {
        let body = super::registry::validate_body(&response, key).to_string();
        let authorization = format!("Bearer {executor}");
        let headers =
            [("Authorization", authorization.as_str()), ("x-codex-noise-stream-id", "stream-1")];
        let path = "/cloud/environment/env/validate";
        request_with_body(&program.url, "POST", path, &headers, body.as_bytes()).await;
        let line = log.until(&mut program, |it| is(it, "harness validated")).await;
        assert_eq!(line["reason"].as_str().unwrap_or_default(), reason, "{line}");
        assert_eq!(
            (&line["valid"], &line["stream_id"]),
            (&reason.is_empty().into(), &"stream-1".into())
        );
    }
    let mut stream = RelaySocket::open(super::url(&response)).await;
    stream.resume("stream-1").await;
    stream.send_data("stream-2", "forged").await;
    let line = log.until(&mut program, |it| it["level"] == "WARN").await;
    assert_eq!(line["message"], "frames for a stream of another harness are dropped");
    assert_eq!(
        (&line["stream_id"], &line["span"]["role"]),
        (&"stream-1".into(), &"harness".into())
    );
    stream.send_text("the end").await;
    let line = log.until(&mut program, |it| is(it, "detached")).await;
    assert_eq!((&line["stream_id"], &line["reason"]), (&"stream-1".into(), &"text_message".into()));
    socket.next().await;
}

#[tokio::test]
async fn the_forwarded_for_address_of_a_proxy_is_logged() {
    let data_dir = tempfile::tempdir().unwrap();
    let mut program = Program::start(data_dir.path(), "http://127.0.0.1:0").await;
    let executor = program.token("executor").await;
    let registered = program.register(&executor, &public_key(1)).await;
    let path = super::url(&registered).split_once("/cloud-agent").unwrap().1;
    let proxy = [("X-Forwarded-For", "192.0.2.7"), ("x-request-id", "req_9")];
    let headers = [&UPGRADE[..], &proxy].concat();
    let mut connection = HttpConnection::open(&program.url).await;
    let reply = connection.request("GET", &format!("/cloud-agent{path}"), &headers).await;
    assert_eq!(reply.status, 101, "{reply:?}");
    let line = Log::default().until(&mut program, |line| is(line, "attached")).await;
    let span = &line["span"];
    assert_eq!([&span["forwarded_for"], &span["request_id"]], ["192.0.2.7", "req_9"], "{line}");
}

/// The complete log of a rendezvous.
#[derive(Default)]
struct Log(Vec<Value>);

impl Log {
    /// Waits for the first new line that matches.
    async fn until(&mut self, program: &mut Program, is_meant: impl Fn(&Value) -> bool) -> Value {
        loop {
            if let Some(at) = self.0.iter().position(&is_meant) {
                return self.0.remove(at);
            }
            let line = program.next_log_line().await;
            self.0.extend(serde_json::from_str::<Value>(&line));
        }
    }
}

fn is(line: &Value, message: &str) -> bool {
    line["message"] == message
}
