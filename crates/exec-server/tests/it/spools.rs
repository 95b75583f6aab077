//! `outputSpool` in `process/start`, and `view` in `process/read`.

mod failing;
mod reading;
mod shown;

use exec_server_protocol::base64;
use exec_server_testkit::TestClient;
use serde_json::{Value, json};

/// The bytes of all chunks of an answer.
fn bytes(answer: &Value) -> Vec<u8> {
    let chunks = answer["chunks"].as_array().expect("an answer has chunks");
    let decode = |chunk: &Value| base64::decode(chunk["chunk"].as_str().unwrap()).unwrap();
    chunks.iter().flat_map(decode).collect()
}

fn text(answer: &Value) -> String {
    String::from_utf8(bytes(answer)).unwrap()
}

async fn view(client: &mut TestClient, id: &str, view: Value) -> Value {
    client.call("process/read", json!({"processId": id, "view": view})).await.unwrap()
}

/// Reads everything after a number, page by page; returns the bytes and the gaps that were reported.
async fn read_all(client: &mut TestClient, id: &str, mut after: u64) -> (Vec<u8>, Vec<Value>) {
    let (mut all, mut gaps) = (Vec::new(), Vec::new());
    loop {
        let params = json!({"processId": id, "afterSeq": after, "maxBytes": 300_000});
        let answer = client.call("process/read", params).await.unwrap();
        all.extend(bytes(&answer));
        if !answer["evictedBytes"].is_null() {
            gaps.push(json!([answer["evictedBytes"], answer["firstSeq"]]));
        }
        let next = answer["nextSeq"].as_u64().unwrap();
        if answer["closed"] == true && answer["chunks"].as_array().unwrap().is_empty() {
            return (all, gaps);
        }
        assert!(
            next > after + 1 || answer["chunks"].as_array().unwrap().is_empty(),
            "{next} after {after}"
        );
        after = next - 1;
    }
}

/// The lines from 1 to `last`.
fn numbers(last: u32) -> String {
    (1..=last).map(|number| format!("{number}\n")).collect()
}
