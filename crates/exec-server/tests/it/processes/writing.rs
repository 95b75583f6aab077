//! `process/write` and `process/closeStdin`.

use exec_server_protocol::base64;
use exec_server_testkit::{Fifo, TestClient, TestExecutor};
use serde_json::{Value, json};

#[tokio::test]
async fn writes_reach_the_child_and_close_ends_its_input() {
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    client.start("p", &["/bin/cat"], json!({"pipeStdin": true})).await.unwrap();
    assert_eq!(client.write("p", "1", "hello ").await.unwrap(), json!({"status": "accepted"}));
    assert_eq!(client.write("p", "2", "").await.unwrap(), json!({"status": "accepted"}));
    assert_eq!(client.write("p", "3", "world").await.unwrap(), json!({"status": "accepted"}));
    assert_eq!(close_stdin(&mut client, "p").await, "accepted");
    let finished = client.finish("p").await;
    assert_eq!((finished.text().as_str(), finished.exit_code), ("hello world", 0));
    assert_eq!(close_stdin(&mut client, "p").await, "stdinClosed");
}

#[tokio::test]
async fn a_closed_stdin_takes_nothing_more() {
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    let mut gate = Fifo::new();
    let script = format!("cat; echo end of input; read _ <{}", gate.path());
    client.start("p", &["/bin/sh", "-c", &script], json!({"pipeStdin": true})).await.unwrap();
    assert_eq!(close_stdin(&mut client, "p").await, "accepted");
    assert_eq!(status(client.write("p", "1", "late").await), "stdinClosed");
    client.wait_output("p", "end of input").await;
    assert_eq!(close_stdin(&mut client, "p").await, "stdinClosed");
    gate.open().await;
    assert_eq!(client.finish("p").await.exit_code, 0);
}

#[tokio::test]
async fn without_a_pipe_stdin_is_empty_and_closed() {
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    let mut gate = Fifo::new();
    let script = format!("cat; echo end of input; read _ <{}", gate.path());
    client.start("p", &["/bin/sh", "-c", &script], json!({})).await.unwrap();
    client.wait_output("p", "end of input").await;
    assert_eq!(status(client.write("p", "1", "x").await), "stdinClosed");
    assert_eq!(close_stdin(&mut client, "p").await, "stdinClosed");
    gate.open().await;
    client.finish("p").await;
    assert_eq!(status(client.write("p", "2", "x").await), "stdinClosed");
}

#[tokio::test]
async fn an_ended_process_takes_nothing() {
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    for tty in [false, true] {
        let id = &format!("{tty}");
        let more = json!({"pipeStdin": true, "tty": tty});
        client.run(id, &["/bin/true"], more).await;
        assert_eq!(status(client.write(id, "1", "x").await), "stdinClosed");
    }
    client.start("killed", &["/bin/cat"], json!({"pipeStdin": true})).await.unwrap();
    client.terminate("killed", None).await;
    client.finish("killed").await;
    assert_eq!(status(client.write("killed", "1", "x").await), "stdinClosed");
}

#[tokio::test]
async fn a_child_that_closes_its_stdin_is_found_out() {
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    let mut gate = Fifo::new();
    let script = format!("exec 0<&-; echo closed; read _ <{}; echo alive", gate.path());
    client.start("p", &["/bin/sh", "-c", &script], json!({"pipeStdin": true})).await.unwrap();
    client.wait_output("p", "closed\n").await;
    // A closed pipe is detected by a write, so the first writes may be accepted.
    let mut writes = 0;
    while status(client.write("p", &writes.to_string(), "x").await) == "accepted" {
        writes += 1;
        assert!(writes < 1000, "a pipe without a reader takes everything");
    }
    gate.open().await;
    assert_eq!(client.finish("p").await.text(), "alive\n");
}

#[tokio::test]
async fn a_write_to_an_unknown_process_is_reported() {
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    assert_eq!(status(client.write("gone", "1", "x").await), "unknownProcess");
    assert_eq!(close_stdin(&mut client, "gone").await, "unknownProcess");
    for id in ["gone", "p"] {
        let error = client.write(id, "", "x").await.unwrap_err();
        assert_eq!(error["code"], -32602);
        assert_eq!(error["message"], "writeId must not be empty");
    }
    let params = json!({"processId": "gone", "writeId": "1", "chunk": "not base64!"});
    assert_eq!(client.call("process/write", params).await.unwrap_err()["code"], -32602);
}

#[tokio::test]
async fn a_write_of_the_same_name_is_applied_once_also_after_a_reconnect() {
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    client.start("p", &["/bin/cat"], json!({"pipeStdin": true})).await.unwrap();
    assert_eq!(status(client.write("p", "1", "once\n").await), "accepted");
    assert_eq!(status(client.write("p", "1", "other bytes\n").await), "accepted");
    client.wait_output("p", "once\n").await;
    let session = client.session_id.clone();
    drop(client);
    let mut client = TestClient::connect(server.url()).await;
    client.resume(&session).await.unwrap();
    assert_eq!(status(client.write("p", "1", "once more\n").await), "accepted");
    assert_eq!(status(client.write("p", "2", "two\n").await), "accepted");
    close_stdin(&mut client, "p").await;
    client.finish("p").await;
    let all = client.read("p", 0, 0).await;
    let text: Vec<u8> = all["chunks"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(exec_server_testkit::client::chunk)
        .collect();
    assert_eq!(String::from_utf8_lossy(&text), "once\ntwo\n");
}

#[tokio::test]
async fn a_write_without_a_name_is_applied_each_time() {
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    client.start("p", &["/bin/cat"], json!({"pipeStdin": true})).await.unwrap();
    for write_id in [json!({}), json!({"writeId": null})] {
        let mut params = json!({"processId": "p", "chunk": base64::encode(b"again ")});
        params.as_object_mut().unwrap().extend(write_id.as_object().unwrap().clone());
        for _ in 0..2 {
            assert_eq!(status(client.call("process/write", params.clone()).await), "accepted");
        }
    }
    close_stdin(&mut client, "p").await;
    assert_eq!(client.finish("p").await.text(), "again again again again ");
}

#[tokio::test]
async fn pipelined_writes_keep_their_order() {
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    client.start("p", &["/bin/cat"], json!({"pipeStdin": true})).await.unwrap();
    let mut expected = String::new();
    let mut sent = Vec::new();
    for number in 0..3000 {
        let line = format!("line {number}\n");
        let params = json!({
            "processId": "p", "writeId": number.to_string(),
            "chunk": base64::encode(line.as_bytes()),
        });
        sent.push(client.send("process/write", params).await);
        expected.push_str(&line);
        // As many as a typical client keeps in flight.
        if sent.len() == 500 {
            for id in sent.drain(..) {
                assert_eq!(status(client.reply(id).await), "accepted");
            }
        }
    }
    close_stdin(&mut client, "p").await;
    assert_eq!(client.finish("p").await.text(), expected);
}

#[tokio::test]
async fn a_child_that_never_reads_holds_up_its_own_writes_only() {
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    client.start("p", &["/bin/sleep", "1000"], json!({"pipeStdin": true})).await.unwrap();
    let chunk = base64::encode(&vec![b'x'; 256 * 1024]);
    let mut writes = Vec::new();
    for number in 0..16 {
        let params = json!({"processId": "p", "writeId": number.to_string(), "chunk": chunk});
        writes.push(client.send("process/write", params).await);
    }
    let close = client.send("process/closeStdin", json!({"processId": "p"})).await;
    // A mebibyte waits in the server and another in the enlarged pipe; the rest of these four has to wait.
    assert_eq!(client.call("environment/status", json!({})).await.unwrap()["status"], "ready");
    assert_eq!(client.sh("other", "echo fine").await.text(), "fine\n");
    client.signal("p", "winch").await;
    assert!(client.terminate("p", None).await);
    let mut answers = Vec::new();
    for id in writes {
        answers.push(status(client.reply(id).await));
    }
    assert_eq!(status(client.reply(close).await), "stdinClosed");
    client.finish("p").await;
    let accepted = answers.iter().take_while(|answer| *answer == "accepted").count();
    assert!((4..=9).contains(&accepted), "{answers:?}");
    assert!(answers[accepted..].iter().all(|answer| answer == "stdinClosed"), "{answers:?}");
}

#[tokio::test]
async fn a_slow_child_gets_everything_in_the_end() {
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    let mut gate = Fifo::new();
    let script = format!("read _ <{}; exec sha256sum", gate.path());
    client.start("p", &["/bin/sh", "-c", &script], json!({"pipeStdin": true})).await.unwrap();
    let all: Vec<u8> =
        (0..8 * 1024 * 1024_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let mut writes = Vec::new();
    for (number, part) in all.chunks(512 * 1024).enumerate() {
        let params = json!({
            "processId": "p", "writeId": number.to_string(), "chunk": base64::encode(part),
        });
        writes.push(client.send("process/write", params).await);
    }
    let close = client.send("process/closeStdin", json!({"processId": "p"})).await;
    client.call("environment/status", json!({})).await.unwrap();
    gate.open().await;
    for id in writes {
        assert_eq!(status(client.reply(id).await), "accepted");
    }
    assert_eq!(status(client.reply(close).await), "accepted");
    assert_eq!(client.finish("p").await.text(), format!("{}  -\n", super::sha256(&all)));
}

async fn close_stdin(client: &mut TestClient, id: &str) -> String {
    status(client.call("process/closeStdin", json!({"processId": id})).await)
}

fn status(reply: Result<Value, Value>) -> String {
    reply.expect("a status")["status"].as_str().expect("a text").to_owned()
}
