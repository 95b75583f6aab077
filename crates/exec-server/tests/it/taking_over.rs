//! Concurrent take-overs of one session.

use std::sync::Arc;

use exec_server_protocol::base64;
use exec_server_testkit::{TestClient, TestExecutor};
use serde_json::{Value, json};
use tokio::sync::Barrier;

const ROUNDS: usize = 100;
const CLAIMANTS: usize = 3;
/// Id of the request that identifies the holder.
const WRITE: i64 = 1000;

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn the_connection_that_wins_a_session_gets_its_events() {
    let server = TestExecutor::start().await;
    let mut first = server.client().await;
    let session = first.session_id.clone();
    first.start("p", &["cat"], json!({"pipeStdin": true})).await.unwrap();
    let mut holder = first;
    for round in 0..ROUNDS {
        let barrier = Arc::new(Barrier::new(CLAIMANTS));
        let mut claims = Vec::new();
        for _ in 0..CLAIMANTS {
            let client = TestClient::connect(server.url()).await;
            claims.push(tokio::spawn(claim(client, session.clone(), barrier.clone())));
        }
        // All claims are settled before the winner is looked for, so that there is exactly one.
        let mut settled = Vec::new();
        for claim in claims {
            settled.extend(claim.await.unwrap());
        }
        let text = format!("round {round}\n");
        let mut winners = Vec::new();
        for mut client in settled {
            let chunk = base64::encode(text.as_bytes());
            let params = json!({"processId": "p", "writeId": format!("w{round}"), "chunk": chunk});
            let write = json!({"id": WRITE, "method": "process/write", "params": params});
            // A connection that lost the session may be closed by now.
            if client.try_send_text(write.to_string()).await
                && let Some(reply) = reply_or_close(&mut client, WRITE).await
                && reply["result"]["status"] == "accepted"
            {
                winners.push(client);
            }
        }
        assert_eq!(winners.len(), 1, "round {round}");
        drop(holder);
        holder = winners.remove(0);
        holder.wait_output("p", &text).await;
    }
}

/// Resumes the session; `None` if another connection took it first.
async fn claim(
    mut client: TestClient,
    session: String,
    barrier: Arc<Barrier>,
) -> Option<TestClient> {
    barrier.wait().await;
    let params = json!({"clientName": "c", "resumeSessionId": session, "takeOver": true});
    let id = client.send("initialize", params).await;
    let reply = reply_or_close(&mut client, id).await?;
    assert_eq!(reply["result"]["sessionId"], session.as_str(), "{reply}");
    client.try_send_text(json!({"method": "initialized"}).to_string()).await;
    Some(client)
}

/// The reply to a request; `None` if the server closes the connection first. Notifications are kept.
async fn reply_or_close(client: &mut TestClient, id: i64) -> Option<Value> {
    loop {
        let message = client.raw_message().await?.ok()?;
        let Some(text) = message.as_text() else {
            if message.as_close().is_some() {
                return None;
            }
            continue;
        };
        let value: Value = serde_json::from_str(text).unwrap();
        if value["id"] == id {
            return Some(value);
        }
        client.put_back(value);
    }
}
