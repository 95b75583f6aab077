//! With `waitWhenDetached`, output is kept until the client has received it.

use exec_server_testkit::client::{chunk, start_params};
use exec_server_testkit::{DEADLINE, TestClient, TestExecutor};
use serde_json::{Value, json};
use tokio::time::timeout;

/// A chunk is at most this long, so that a log with less room than that is full.
const CHUNK: usize = 64 * 1024;
const RETAINED: usize = 2 * CHUNK;
/// More than a log keeps, and more than waits for a peer that takes nothing.
const TOTAL: usize = 8 * 1024 * 1024;

#[tokio::test]
async fn output_lost_in_transit_is_still_retained() {
    let server = TestExecutor::start().await;
    let mut watcher = server.client().await;
    let (client, id) = flood(&server).await;
    until_full(&mut watcher, &id).await;
    // Data in the socket buffers is lost with the socket.
    drop(client);
    let mut client = resume(&server, &id).await;
    assert_eq!(read_all(&mut client).await, TOTAL);
}

#[tokio::test]
async fn a_reader_over_another_connection_does_not_speak_for_the_client() {
    let server = TestExecutor::start().await;
    let mut watcher = server.client().await;
    let (client, id) = flood(&server).await;
    until_full(&mut watcher, &id).await;
    drop(client);
    let mut client = resume(&server, &id).await;
    let before = look(&mut watcher, &id).await.unwrap();
    for _ in 0..50 {
        let kept = look(&mut watcher, &id).await.unwrap();
        assert_eq!(kept["nextSeq"], before["nextSeq"], "output waits for what was missed");
    }
    assert_eq!(read_all(&mut client).await, TOTAL);
}

#[tokio::test]
async fn a_client_that_takes_everything_gets_more_than_is_kept() {
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    client.start("p", &flooding(), waiting(1)).await.unwrap();
    assert_eq!(client.finish("p").await.stdout.len(), TOTAL);
}

/// A client that reads nothing of a flood, not even the reply to its start, and its session.
async fn flood(server: &TestExecutor) -> (TestClient, String) {
    let mut client = server.client().await;
    client.send("process/start", start_params("p", &flooding(), waiting(RETAINED))).await;
    let id = client.session_id.clone();
    (client, id)
}

fn flooding() -> [&'static str; 4] {
    ["head", "-c", "8388608", "/dev/zero"]
}

fn waiting(retention: usize) -> Value {
    json!({"waitWhenDetached": true, "outputRetention": retention})
}

/// Retained state of the process, seen by another connection; `None` before its start.
async fn look(watcher: &mut TestClient, session_id: &str) -> Option<Value> {
    let params = json!({"processId": "p", "sessionId": session_id, "afterSeq": 0, "waitMs": 0});
    watcher.call("process/read", params).await.ok()
}

async fn until_full(watcher: &mut TestClient, session_id: &str) {
    let filling = async {
        loop {
            let Some(kept) = look(watcher, session_id).await else { continue };
            let chunks = kept["chunks"].as_array().unwrap();
            if chunks.iter().map(|piece| chunk(piece).len()).sum::<usize>() > RETAINED - CHUNK {
                break;
            }
        }
    };
    timeout(DEADLINE, filling).await.expect("the log fills");
}

async fn resume(server: &TestExecutor, session_id: &str) -> TestClient {
    let mut client = TestClient::connect(server.url()).await;
    while let Err(error) = client.resume(session_id).await {
        assert_eq!(error["code"], -32010, "{error}");
    }
    client
}

/// Reads from the first byte to the end and counts.
async fn read_all(client: &mut TestClient) -> usize {
    let (mut seen, mut total) = (0, 0);
    loop {
        let read = client.read("p", seen, 30_000).await;
        assert_eq!(read.get("evictedBytes"), None, "evicted after {total} bytes");
        total += read["chunks"].as_array().unwrap().iter().map(|it| chunk(it).len()).sum::<usize>();
        seen = read["nextSeq"].as_u64().unwrap() - 1;
        client.forget_order("p");
        if read["closed"] == true {
            return total;
        }
    }
}
