//! The reference client hangs up on a notification of the server that is too large: more than 2 MiB for output and bodies,
//! more than 8 KiB for everything else.

use std::collections::BTreeMap;

use exec_server_testkit::web::answer;
use exec_server_testkit::{TestClient, TestExecutor, Web};
use serde_json::{Value, json};

const MAX_DATA_BYTES: usize = 2 << 20;
const MAX_OTHER_BYTES: usize = 8 << 10;
const DATA: [&str; 4] =
    ["process/output", "process/exited", "process/closed", "http/request/bodyDelta"];

#[tokio::test]
async fn no_notification_is_too_large_for_the_reference_client() {
    let web = Web::answering(|_| answer(200, &[], "x".repeat(9 << 20))).await;
    let mut builder = TestExecutor::builder();
    for name in ["http_proxy", "https_proxy", "all_proxy", "no_proxy"] {
        builder.command().env_remove(name).env_remove(name.to_uppercase());
    }
    let server = builder.start().await;
    let folder = tempfile::tempdir().unwrap();
    let mut client = server.client().await;
    let missing = format!("file://{}/{}", folder.path().display(), "x".repeat(200));
    let names: Vec<String> = (0..60).map(|number| format!("{missing}{number}")).collect();
    let watch = json!({"watchId": 1, "missing": names, "present": null});
    client.call("fs/watchMissing", watch).await.unwrap();

    let request = json!({"requestId": "body", "method": "GET", "url": web.url("/"), "headers": [],
        "streamResponse": true});
    client.send("http/request", request).await;
    let flood = ["/bin/sh", "-c", "head -c 9000000 /dev/zero; head -c 9000000 /dev/zero >&2"];
    for (id, tty) in [("pipes", false), ("terminal", true)] {
        client.start(id, &flood, json!({"tty": tty})).await.unwrap();
    }
    std::fs::write(folder.path().join(format!("{}0", "x".repeat(200))), "").unwrap();

    let mut largest: BTreeMap<String, usize> = BTreeMap::new();
    let mut open = 4;
    while open > 0 {
        let (message, size) = next(&mut client).await;
        let Some(method) = message["method"].as_str() else { continue };
        let is_last = match method {
            "process/closed" | "fs/missingChanged" => true,
            "http/request/bodyDelta" => message["params"]["done"] == true,
            _ => false,
        };
        open -= usize::from(is_last);
        let seen = largest.entry(method.to_owned()).or_default();
        *seen = size.max(*seen);
    }
    for (method, size) in &largest {
        let limit = if DATA.contains(&method.as_str()) { MAX_DATA_BYTES } else { MAX_OTHER_BYTES };
        assert!(*size <= limit, "{method} had {size} bytes");
    }
    let seen: Vec<&str> = largest.keys().map(String::as_str).collect();
    assert!(DATA.iter().all(|method| seen.contains(method)), "{seen:?}");
    assert!(largest["fs/missingChanged"] > 0);
}

/// The next message, and how long it was.
async fn next(client: &mut TestClient) -> (Value, usize) {
    let message = client.raw_message().await.expect("the link lasts").expect("a message");
    let bytes = message.as_payload();
    (serde_json::from_slice(bytes).unwrap_or_default(), bytes.len())
}
