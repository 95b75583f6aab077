//! Large output: no byte is lost, and no other process starves.

use std::collections::HashMap;

use exec_server_testkit::client::chunk;
use exec_server_testkit::{Fifo, TestClient, TestExecutor};
use serde_json::json;

use super::sha256;

const MIB: usize = 1024 * 1024;

#[tokio::test]
async fn sixty_four_mebibytes_arrive_byte_by_byte() {
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    let digest = Fifo::new();
    let script = format!(
        "sha256sum <{0} >&2 & head -c 67108864 /dev/urandom | tee {0}; wait",
        digest.folder().join("copy").display()
    );
    let script = format!("mkfifo {}; {script}", digest.folder().join("copy").display());
    let finished = client.sh("p", &script).await;
    assert_eq!((finished.stdout.len(), finished.exit_code), (64 * MIB, 0));
    assert_eq!(finished.error_text(), format!("{}  -\n", sha256(&finished.stdout)));
}

#[tokio::test]
async fn both_streams_of_a_flood_arrive_whole() {
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    let script = "seq 1 300000 & seq 300001 600000 >&2 & wait";
    let finished = client.sh("p", script).await;
    let numbers = |from: u32| (from..from + 300_000).map(|n| format!("{n}\n")).collect::<String>();
    assert_eq!(finished.text(), numbers(1));
    assert_eq!(finished.error_text(), numbers(300_001));
}

#[tokio::test]
async fn four_floods_share_a_connection_fairly() {
    const EACH: usize = 16 * MIB;
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    let mut gates = Vec::new();
    for id in ["a", "b", "c", "d"] {
        let gate = Fifo::new();
        let script = format!("read _ <{}; yes flood-{id} | head -c {EACH}", gate.path());
        client.start(id, &["/bin/sh", "-c", &script], json!({})).await.unwrap();
        gates.push(gate);
    }
    for gate in &mut gates {
        gate.open().await;
    }
    let mut got: HashMap<String, Vec<u8>> = HashMap::new();
    let mut exits = 0;
    let mut least_at_first_end = None;
    let status = client.send("environment/status", json!({})).await;
    while exits < 4 {
        let event = client.notification().await;
        let id = event["params"]["processId"].as_str().unwrap().to_owned();
        match event["method"].as_str().unwrap() {
            "process/output" => got.entry(id).or_default().extend(chunk(&event["params"])),
            "process/closed" => {
                exits += 1;
                let least = ["a", "b", "c", "d"].map(|id| got.get(id).map_or(0, Vec::len));
                least_at_first_end.get_or_insert(least);
            }
            _ => {}
        }
    }
    assert_eq!(client.reply(status).await.unwrap()["status"], "ready");
    for (id, bytes) in &got {
        let line = format!("flood-{id}\n");
        let expected: Vec<u8> = line.bytes().cycle().take(EACH).collect();
        assert!(*bytes == expected, "the output of {id} is not what it wrote");
    }
    // A fair share is equal; a quarter of it is far from starvation.
    let at_first_end = least_at_first_end.expect("one was first");
    assert!(at_first_end.iter().all(|bytes| *bytes >= EACH / 4), "{at_first_end:?}");
}

#[tokio::test]
async fn a_flood_does_not_keep_others_from_being_answered() {
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    client.start("flood", &["/usr/bin/yes"], json!({})).await.unwrap();
    client.wait_output("flood", "y").await;
    for round in 0..20 {
        let id = format!("p{round}");
        assert_eq!(client.sh(&id, "echo through").await.text(), "through\n");
        client.call("environment/status", json!({})).await.unwrap();
    }
    assert!(client.terminate("flood", None).await);
    assert_eq!(client.finish("flood").await.exited["reason"], "terminated");
}

#[tokio::test]
async fn a_detached_flood_runs_to_its_end_and_its_last_words_can_be_read() {
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    let mut gate = Fifo::new();
    let mut done = Fifo::new();
    let script = format!(
        "echo ready; read _ <{}; seq 1 3000000; echo done >{}; exit 3",
        gate.path(),
        done.path()
    );
    client.start("p", &["/bin/sh", "-c", &script], json!({})).await.unwrap();
    client.wait_output("p", "ready\n").await;
    let session = client.session_id.clone();
    drop(client);
    gate.open().await;
    // The output is not read, and yet the child is not held up.
    assert_eq!(done.line().await, "done");

    let mut client = TestClient::connect(server.url()).await;
    client.resume(&session).await.unwrap();
    loop {
        let state = client.read("p", u64::MAX, 60_000).await;
        if state["closed"] == true {
            break;
        }
    }
    let result = client.read("p", 1, 0).await;
    assert_eq!((&result["exitCode"], &result["closed"]), (&json!(3), &json!(true)));
    let kept: Vec<u8> = result["chunks"].as_array().unwrap().iter().flat_map(chunk).collect();
    let all: usize = (1..=3_000_000_u32).map(|n| n.to_string().len() + 1).sum();
    // The output before the flood was evicted as well.
    let evicted = usize::try_from(result["evictedBytes"].as_u64().expect("a gap")).unwrap();
    assert_eq!(evicted + kept.len(), all + "ready\n".len());
    assert!(kept.len() <= MIB && kept.ends_with(b"\n2999999\n3000000\n"));
    let first: u32 = String::from_utf8_lossy(&kept).lines().nth(1).unwrap().parse().unwrap();
    let lines = String::from_utf8_lossy(&kept).lines().count();
    assert_eq!(first as usize + lines - 2, 3_000_000, "the kept text has no hole");
}
