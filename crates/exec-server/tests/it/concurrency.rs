//! Concurrent requests of one connection, and requests whose order matters.

use exec_server_protocol::base64;
use exec_server_testkit::{TestClient, TestExecutor};
use serde_json::{Value, json};

/// Longer than any test may take.
const FOREVER: u64 = 600_000;

#[tokio::test]
async fn a_long_poll_holds_up_nothing_else() {
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    client.start("p", &["cat"], json!({"pipeStdin": true})).await.unwrap();
    let poll = client.send("process/read", read("p", 0, FOREVER)).await;
    client.call("environment/status", Value::Null).await.unwrap();
    client.call("environment/info", Value::Null).await.unwrap();
    assert_eq!(client.sh("q", "echo beside").await.text(), "beside\n");
    assert_eq!(client.read("p", 0, 0).await["chunks"], json!([]));
    client.write("p", "1", "wake up\n").await.unwrap();
    let woken = client.reply(poll).await.unwrap();
    assert_eq!(woken["chunks"][0]["chunk"], base64::encode(b"wake up\n"));
    let poll = client.send("process/read", read("p", 1, FOREVER)).await;
    let ended = client.call("process/terminate", json!({"processId": "p"})).await.unwrap();
    assert_eq!(ended, json!({"running": true}));
    assert_eq!(client.reply(poll).await.unwrap()["exited"], true);
}

#[tokio::test]
async fn a_stdin_that_the_child_does_not_read_blocks_nothing_else() {
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    client.start("p", &["sleep", "1000"], json!({"pipeStdin": true})).await.unwrap();
    let chunk = base64::encode(&vec![b'x'; 512 * 1024]);
    let mut writes = Vec::new();
    for index in 0..8 {
        let params = json!({"processId": "p", "chunk": chunk, "writeId": index.to_string()});
        writes.push(client.send("process/write", params).await);
    }
    assert_eq!(client.sh("q", "echo beside").await.text(), "beside\n");
    let ended = client.call("process/terminate", json!({"processId": "p"})).await.unwrap();
    assert_eq!(ended, json!({"running": true}));
    let mut statuses = Vec::new();
    for write in writes {
        let result = client.reply(write).await.unwrap();
        statuses.push(result["status"].as_str().unwrap().to_owned());
    }
    assert_eq!(statuses.first().unwrap(), "accepted");
    assert_eq!(statuses.last().unwrap(), "stdinClosed", "it never fitted: {statuses:?}");
}

#[tokio::test]
async fn pipelined_writes_to_one_process_keep_their_order() {
    const LINES: usize = 5000;
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    client.start("p", &["cat"], json!({"pipeStdin": true})).await.unwrap();
    let mut asked = Vec::new();
    for index in 0..LINES {
        let chunk = base64::encode(format!("{index}\n").as_bytes());
        let params = json!({"processId": "p", "chunk": chunk, "writeId": index.to_string()});
        asked.push(client.send("process/write", params).await);
    }
    asked.push(client.send("process/closeStdin", json!({"processId": "p"})).await);
    for id in asked {
        assert_eq!(client.reply(id).await.unwrap(), json!({"status": "accepted"}));
    }
    let all: String = (0..LINES).map(|index| format!("{index}\n")).collect();
    assert_eq!(client.finish("p").await.text(), all);
}

#[tokio::test]
async fn a_request_may_follow_the_start_of_its_process_unanswered() {
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    for round in 0..20 {
        let id = format!("p{round}");
        let argv = ["/bin/sh", "-c", "read line; echo got $line"];
        let params =
            exec_server_testkit::client::start_params(&id, &argv, json!({"pipeStdin": true}));
        let start = client.send("process/start", params).await;
        let chunk = base64::encode(b"it\n");
        let write = json!({"processId": id, "chunk": chunk, "writeId": "1"});
        let write = client.send("process/write", write).await;
        let read = client.send("process/read", read(&id, 0, FOREVER)).await;
        client.reply(start).await.unwrap();
        assert_eq!(client.reply(write).await.unwrap(), json!({"status": "accepted"}));
        let output = client.reply(read).await.unwrap();
        assert_eq!(output["chunks"][0]["chunk"], base64::encode(b"got it\n"));
        assert_eq!(client.finish(&id).await.exit_code, 0);
    }
}

#[tokio::test]
async fn of_many_starts_with_one_id_exactly_one_wins() {
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    let mut asked = Vec::new();
    for index in 0..8 {
        let argv = ["echo", &index.to_string()];
        let params = exec_server_testkit::client::start_params("proc-1", &argv, json!({}));
        asked.push(client.send("process/start", params).await);
    }
    let mut winners = Vec::new();
    for (index, id) in asked.into_iter().enumerate() {
        match client.reply(id).await {
            Ok(_) => winners.push(index),
            Err(error) => {
                assert_eq!(error["code"], -32600);
                assert_eq!(error["message"], "process proc-1 already exists");
            }
        }
    }
    assert_eq!(winners.len(), 1);
    assert_eq!(client.finish("proc-1").await.text(), format!("{}\n", winners[0]));
}

#[tokio::test]
async fn one_request_at_a_time_means_replies_in_order_and_control_still_passes() {
    let server = TestExecutor::start_with(&["--concurrent-requests", "1"]).await;
    let mut client = server.client().await;
    client.start("p", &["cat"], json!({"pipeStdin": true})).await.unwrap();
    let poll = client.send("process/read", read("p", 0, FOREVER)).await;
    let write = json!({"processId": "p", "chunk": "", "writeId": "1"});
    let write = client.send("process/write", write).await;
    let params = exec_server_testkit::client::start_params("q", &["true"], json!({}));
    let start = client.send("process/start", params).await;
    // Only control requests are answered while the long poll runs.
    for method in ["environment/status", "environment/info", "process/list"] {
        let id = client.send(method, Value::Null).await;
        assert_eq!(client.next_json().await["id"], id, "{method}");
    }
    let signal = json!({"processId": "p", "signal": "continue"});
    let signal = client.send("process/signal", signal).await;
    assert_eq!(client.next_json().await["id"], signal);
    let terminate = client.send("process/terminate", json!({"processId": "p"})).await;
    assert_eq!(next_reply(&mut client).await, terminate);
    for id in [poll, write, start] {
        assert_eq!(next_reply(&mut client).await, id, "in the order of the requests");
    }
}

#[tokio::test]
async fn requests_beyond_the_bound_wait_and_are_answered_later() {
    let server = TestExecutor::start_with(&["--concurrent-requests", "32"]).await;
    let mut client = server.client().await;
    client.start("p", &["cat"], json!({"pipeStdin": true})).await.unwrap();
    let mut polls = Vec::new();
    for _ in 0..33 {
        polls.push(client.send("process/read", read("p", 0, FOREVER)).await);
    }
    client.call("environment/info", Value::Null).await.unwrap();
    client.call("environment/status", Value::Null).await.unwrap();
    let ended = client.call("process/terminate", json!({"processId": "p"})).await.unwrap();
    assert_eq!(ended, json!({"running": true}));
    for poll in polls {
        assert_eq!(client.reply(poll).await.unwrap()["exited"], true);
    }
}

#[tokio::test]
async fn requests_that_wait_end_with_their_connection() {
    let server = TestExecutor::start_with(&["--concurrent-requests", "1"]).await;
    let mut client = server.client().await;
    let id = client.session_id.clone();
    client.start("p", &["cat"], json!({"pipeStdin": true})).await.unwrap();
    client.send("process/read", read("p", 0, FOREVER)).await;
    let start = exec_server_testkit::client::start_params("never", &["cat"], json!({}));
    client.send("process/start", start).await;
    client.call("environment/status", Value::Null).await.unwrap();
    drop(client);
    let mut client = crate::sessions::come_back(&server, &id).await;
    // The poll of the old connection neither blocks the new one nor lets the start behind it run.
    assert_eq!(client.read("p", 0, 0).await["exited"], false);
    let list = client.call("process/list", Value::Null).await.unwrap();
    assert_eq!(list["processes"].as_array().unwrap().len(), 1, "{list}");
}

/// The id of the next reply; notifications are passed over.
async fn next_reply(client: &mut TestClient) -> i64 {
    loop {
        if let Some(id) = client.next_json().await["id"].as_i64() {
            return id;
        }
    }
}

fn read(id: &str, after: u64, wait_ms: u64) -> Value {
    json!({"processId": id, "afterSeq": after, "maxBytes": null, "waitMs": wait_ms})
}
