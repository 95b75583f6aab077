//! `process/read`: cursors, long polls, and retention.

use std::time::{Duration, Instant};

use exec_server_testkit::client::chunk;
use exec_server_testkit::{Fifo, TestClient, TestExecutor};
use serde_json::{Value, json};

const MIB: u64 = 1024 * 1024;

#[tokio::test]
async fn the_next_number_depends_on_whether_the_reader_set_a_limit() {
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    three_chunks(&mut client, "p").await;
    let all = read(&mut client, json!({"processId": "p"})).await;
    let expected = json!([
        {"seq": 1, "stream": "stdout", "chunk": "b25lCg=="},
        {"seq": 2, "stream": "stderr", "chunk": "dHdvCg=="},
        {"seq": 3, "stream": "stdout", "chunk": "dGhyZWUK"},
    ]);
    assert_eq!((&all["chunks"], &all["nextSeq"]), (&expected, &json!(6)));
    for (after, max_bytes, seqs, next) in [
        (0, json!(null), vec![1, 2, 3], 6),
        (0, json!(0), vec![1], 2),
        (0, json!(1), vec![1], 2),
        (0, json!(4), vec![1], 2),
        (0, json!(7), vec![1], 2),
        (0, json!(8), vec![1, 2], 3),
        (1, json!(1), vec![2], 3),
        (0, json!(10_000), vec![1, 2, 3], 4),
        (3, json!(1), vec![], 6),
        (3, json!(null), vec![], 6),
        (99, json!(null), vec![], 6),
        (99, json!(1), vec![], 6),
        (u64::MAX, json!(null), vec![], 6),
    ] {
        let params = json!({"processId": "p", "afterSeq": after, "maxBytes": max_bytes});
        let result = read(&mut client, params.clone()).await;
        assert_eq!(numbers(&result), seqs, "{params}");
        assert_eq!(result["nextSeq"], next, "{params}");
        // The state is current, whatever the cursor.
        assert_eq!((&result["exited"], &result["exitCode"]), (&json!(true), &json!(0)));
        assert_eq!((&result["closed"], &result["failure"]), (&json!(true), &Value::Null));
        assert_eq!(result["sandboxDenied"], false);
        assert_eq!((&result["evictedBytes"], &result["firstSeq"]), (&Value::Null, &Value::Null));
    }
}

#[tokio::test]
async fn a_reader_of_a_running_process_sees_it_running() {
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    client.start("p", &["/bin/cat"], json!({"pipeStdin": true})).await.unwrap();
    let result = client.read("p", 0, 0).await;
    let expected = json!({
        "chunks": [], "nextSeq": 1, "exited": false, "exitCode": null, "closed": false,
        "failure": null, "sandboxDenied": false,
    });
    assert_eq!(result, expected);
    assert_eq!(client.read("p", 1000, 0).await, expected);
}

#[tokio::test]
async fn a_long_poll_ends_with_output_then_exit_then_late_output_then_close() {
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    let mut gate = Fifo::new();
    let script = format!(
        "read _ <{0}; echo early; read _ <{0}; (read _ <{0}; echo late; read _ <{0}) & exit 5",
        gate.path()
    );
    client.start("p", &["/bin/sh", "-c", &script], json!({})).await.unwrap();

    let early = poll(&mut client, &mut gate, 0).await;
    assert_eq!((numbers(&early), &early["nextSeq"]), (vec![1], &json!(2)));
    let exit = poll(&mut client, &mut gate, 1).await;
    assert_eq!((numbers(&exit), &exit["nextSeq"]), (vec![], &json!(3)));
    assert_eq!((&exit["exitCode"], &exit["closed"]), (&json!(5), &json!(false)));
    let late = poll(&mut client, &mut gate, 2).await;
    assert_eq!((numbers(&late), &late["nextSeq"]), (vec![3], &json!(4)));
    let closed = poll(&mut client, &mut gate, 3).await;
    assert_eq!((numbers(&closed), &closed["nextSeq"]), (vec![], &json!(5)));
    assert_eq!(closed["closed"], true);
    assert_eq!(client.finish("p").await.order, ["output", "exited", "output", "closed"]);
    // After the close, reads return at once.
    assert_eq!(client.read("p", 1000, u64::MAX).await["closed"], true);
}

/// Sends the read first, and lets the child continue when the server has received it.
async fn poll(client: &mut TestClient, gate: &mut Fifo, after: u64) -> Value {
    let params = json!({"processId": "p", "afterSeq": after, "waitMs": u64::MAX});
    let waiting = client.send("process/read", params).await;
    client.call("environment/status", json!({})).await.unwrap();
    gate.open().await;
    client.reply(waiting).await.expect("a long poll is answered")
}

#[tokio::test]
async fn every_long_poll_of_a_process_is_answered_at_its_end() {
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    client.start("p", &["/bin/cat"], json!({"pipeStdin": true})).await.unwrap();
    let mut waiting = Vec::new();
    for after in [0, 1, 2, 3, 100, u64::MAX] {
        let params = json!({"processId": "p", "afterSeq": after, "waitMs": 600_000});
        waiting.push(client.send("process/read", params).await);
    }
    assert!(client.terminate("p", None).await);
    for id in waiting {
        let result = client.reply(id).await.expect("a long poll is answered");
        assert_eq!(result["exited"], true, "{result}");
    }
}

#[tokio::test]
async fn a_long_poll_without_news_ends_after_its_time() {
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    client.start("p", &["/bin/cat"], json!({"pipeStdin": true})).await.unwrap();
    let start = Instant::now();
    let result = client.read("p", 0, 150).await;
    assert!(start.elapsed() >= Duration::from_millis(150), "{:?}", start.elapsed());
    assert_eq!((&result["nextSeq"], &result["exited"]), (&json!(1), &json!(false)));
}

#[tokio::test]
async fn an_unknown_process_cannot_be_read() {
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    let error = client.call("process/read", json!({"processId": "gone"})).await.unwrap_err();
    assert_eq!(
        error,
        json!({
            "code": -32600, "message": "unknown process id gone",
            "data": {"kind": "unknown_process"},
        })
    );
}

#[tokio::test]
async fn reading_takes_nothing_away_and_notifications_carry_the_same() {
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    let finished = client.sh("p", "seq 1 20000").await;
    let first = client.read("p", 0, 0).await;
    assert_eq!(client.read("p", 0, 0).await, first);
    assert_eq!(bytes(&first), finished.stdout);
    // Page by page it is the same text.
    let (mut cursor, mut pieces) = (0, Vec::new());
    loop {
        let params = json!({"processId": "p", "afterSeq": cursor, "maxBytes": 1});
        let piece = read(&mut client, params).await;
        if numbers(&piece).is_empty() {
            break;
        }
        pieces.extend(bytes(&piece));
        cursor = piece["nextSeq"].as_u64().unwrap() - 1;
    }
    assert_eq!(pieces, finished.stdout);
}

#[tokio::test]
async fn the_last_mebibyte_is_retained_and_the_gap_is_reported() {
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    let finished = client.sh("p", "seq 1 450000").await;
    let total = finished.stdout.len() as u64;
    assert!(total > 2 * MIB);
    let result = client.read("p", 0, 0).await;
    let kept = bytes(&result);
    let evicted = result["evictedBytes"].as_u64().expect("a gap");
    assert_eq!(evicted + kept.len() as u64, total);
    assert!(kept.len() as u64 <= MIB && kept.len() as u64 > MIB - 64 * 1024, "{}", kept.len());
    assert!(finished.stdout.ends_with(&kept));
    let first = result["firstSeq"].as_u64().unwrap();
    assert_eq!(numbers(&result)[0], first);
    // A reader with this cursor misses nothing, and gets no gap.
    let caught_up = client.read("p", first - 1, 0).await;
    assert_eq!((&caught_up["evictedBytes"], &caught_up["firstSeq"]), (&Value::Null, &Value::Null));
    assert_eq!(caught_up["chunks"], result["chunks"]);
    let behind = client.read("p", first - 2, 0).await;
    assert_eq!(behind["firstSeq"], first);
}

#[tokio::test]
async fn a_start_request_sets_the_retention() {
    let server = TestExecutor::start_with(&["--max-retained-output", "2097152"]).await;
    let mut client = server.client().await;
    for (id, wanted, least, most) in [
        ("none", 0, 0, 0),
        ("little", 1000, 0, 1000),
        ("as much as there is", 2 * MIB, 1_800_000, 2 * MIB),
        ("more than allowed", u64::MAX, 1_800_000, 2 * MIB),
    ] {
        let argv = ["/bin/sh", "-c", "seq 1 450000; read _; echo end"];
        let more = json!({"outputRetention": wanted, "pipeStdin": true});
        client.start(id, &argv, more).await.unwrap();
        client.wait_output(id, "450000\n").await;
        client.write(id, "w", "\n").await.unwrap();
        let end = client.finish(id).await;
        let result = client.read(id, 0, 0).await;
        let kept = bytes(&result);
        assert!((least..=most).contains(&(kept.len() as u64)), "{id}: {}", kept.len());
        if wanted > 0 {
            assert!(kept.ends_with(&end.stdout), "{id}");
        }
        assert!(result["evictedBytes"].as_u64().unwrap() > 0, "{id}");
    }
}

/// Runs a process that writes `one`, `two` (stderr) and `three`, each in its own chunk, and exits.
async fn three_chunks(client: &mut TestClient, id: &str) {
    let script = "echo one; read _; echo two >&2; read _; echo three; read _; exit 0";
    client.start(id, &["/bin/sh", "-c", script], json!({"pipeStdin": true})).await.unwrap();
    for text in ["one\n", "two\n", "three\n"] {
        client.wait_output(id, text).await;
        client.write(id, text, "\n").await.unwrap();
    }
    client.finish(id).await;
}

async fn read(client: &mut TestClient, params: Value) -> Value {
    client.call("process/read", params).await.expect("the process is known")
}

fn numbers(result: &Value) -> Vec<u64> {
    result["chunks"].as_array().unwrap().iter().map(|c| c["seq"].as_u64().unwrap()).collect()
}

fn bytes(result: &Value) -> Vec<u8> {
    result["chunks"].as_array().unwrap().iter().flat_map(chunk).collect()
}
