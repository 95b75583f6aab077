//! Limits of the server, and the errors when they are reached.

use exec_server_testkit::http::{request, upgrade};
use exec_server_testkit::{TestClient, TestExecutor};
use serde_json::{Value, json};

#[tokio::test]
async fn one_connection_too_many_is_rejected_as_retryable() {
    let server = TestExecutor::start_with(&["--max-connections", "2"]).await;
    let url = server.url();
    let (_first, second) = (server.client().await, server.client().await);
    let refused = upgrade(url, &[]).await;
    assert_eq!(refused.status, 503);
    let text = "this server already has its maximum of 2 connections; see --max-connections";
    assert_eq!(refused.body, text);
    // A full server is live, but not ready.
    assert_eq!(request(url, "GET", "/readyz", &[]).await.status, 503);
    assert_eq!(request(url, "GET", "/livez", &[]).await.status, 200);
    drop(second);
    while request(url, "GET", "/readyz", &[]).await.status == 503 {
        tokio::task::yield_now().await;
    }
    server.client().await;
}

#[tokio::test]
async fn one_session_too_many_is_rejected_as_retryable() {
    let arguments = ["--max-sessions", "1", "--session-linger", "0"];
    let server = TestExecutor::start_with(&arguments).await;
    let first = server.client().await;
    let mut second = TestClient::connect(server.url()).await;
    let error = second.try_initialize(None).await.unwrap_err();
    let text =
        "this server already has its maximum of 1 sessions; end one, or raise --max-sessions";
    is_retryable(&error, "too_many_sessions", text);
    drop(first);
    while let Err(error) = second.try_initialize(None).await {
        assert_eq!(error["data"]["kind"], "too_many_sessions");
    }
}

#[tokio::test]
async fn one_process_too_many_is_rejected_and_other_sessions_have_their_own_limit() {
    let server = TestExecutor::start_with(&["--max-processes", "2"]).await;
    let mut client = server.client().await;
    for id in ["a", "b"] {
        client.start(id, &["/bin/sleep", "1000"], json!({})).await.unwrap();
    }
    let error = client.start("c", &["/bin/true"], json!({})).await.unwrap_err();
    let text =
        "this session already has its maximum of 2 processes; end one, or raise --max-processes";
    is_retryable(&error, "too_many_processes", text);
    // A duplicate id is rejected as such, not because of the limit.
    let error = client.start("a", &["/bin/true"], json!({})).await.unwrap_err();
    assert_eq!(error["message"], "process a already exists");
    assert_eq!(server.client().await.sh("c", "echo room").await.text(), "room\n");
}

#[tokio::test]
async fn a_closed_process_makes_room_for_another_and_the_oldest_goes_first() {
    let server = TestExecutor::start_with(&["--max-processes", "2"]).await;
    let mut client = server.client().await;
    for id in ["a", "b", "c", "a", "d"] {
        assert_eq!(client.sh(id, "echo room").await.text(), "room\n");
        client.forget_order(id);
    }
    // Only the two latest are left.
    for (id, is_known) in [("b", false), ("c", false), ("a", true), ("d", true)] {
        let read = client.call("process/read", json!({"processId": id, "afterSeq": 0})).await;
        assert_eq!(read.is_ok(), is_known, "{id}: {read:?}");
    }
    client.start("e", &["/bin/sleep", "1000"], json!({})).await.unwrap();
    client.start("f", &["/bin/sleep", "1000"], json!({})).await.unwrap();
    let error = client.start("g", &["/bin/true"], json!({})).await.unwrap_err();
    assert_eq!(error["data"]["kind"], "too_many_processes");
}

#[tokio::test]
async fn a_message_may_be_as_large_as_the_limit_and_no_larger() {
    let server = TestExecutor::start_with(&["--max-message-bytes", "1000"]).await;
    let mut client = server.client().await;
    let message = |length: usize| {
        let start = r#"{"id":77,"method":"environment/status","x":""#;
        format!(r#"{start}{}"}}"#, "x".repeat(length - start.len() - 2))
    };
    client.send_text(message(1000)).await;
    assert_eq!(client.reply(77).await.unwrap(), json!({"status": "ready"}));
    client.send_text(message(1001)).await;
    let (code, reason) = client.close_frame().await.expect("a close frame says why");
    assert_eq!(code, 1009);
    assert!(reason.contains("1000"), "{reason}");
}

#[tokio::test]
async fn a_client_that_sends_too_much_gets_the_close_reason() {
    let server = TestExecutor::start_with(&["--max-message-bytes", "100000"]).await;
    for _ in 0..10 {
        let mut client = server.client().await;
        // More than the sockets between us hold, so the server hangs up while we are still sending.
        client.try_send_text("x".repeat(20_000_000)).await;
        let (code, _) = client.close_frame().await.expect("a close frame says why");
        assert_eq!(code, 1009);
    }
    server.client().await;
}

fn is_retryable(error: &Value, kind: &str, text: &str) {
    assert_eq!(error["code"], -32600, "{error}");
    assert_eq!(error["message"], text);
    assert_eq!(error["data"], json!({"kind": kind, "retryable": true}));
}
