//! A client that does not read slows the other side down, and nobody else.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use exec_server_testkit::{RawClient, Web};
use serde_json::json;

use super::{delta, get, request, server};

const LENGTH: usize = 256 << 20;

#[tokio::test]
async fn a_client_that_does_not_read_does_not_fill_our_memory() {
    let server = server().await;
    let written = Arc::new(AtomicUsize::new(0));
    let web = Web::start({
        let written = written.clone();
        move |mut visit| {
            let written = written.clone();
            async move {
                let Some(request) = visit.request().await else { return };
                let counts = request.target == "/stalled";
                visit.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {LENGTH}\r\n\r\n")).await;
                let piece = vec![0; 1 << 20];
                for _ in 0..LENGTH / piece.len() {
                    if !visit.send(&piece).await {
                        return;
                    }
                    if counts {
                        written.fetch_add(piece.len(), Ordering::SeqCst);
                    }
                }
                visit.hung_up().await;
            }
        }
    })
    .await;
    let mut stalled = RawClient::connect_with_little_room(server.url()).await;
    stalled.initialize().await;
    let more = json!({"streamResponse": true, "requestId": "stalled"});
    stalled.send("http/request", get(&web.url("/stalled"), more)).await;

    // Whoever reads gets everything meanwhile, and then the other would be through as well if nothing held it.
    let mut client = server.client().await;
    request(&mut client, &web.url("/read"), json!({"streamResponse": true})).await.unwrap();
    let mut bytes = 0;
    loop {
        let params = delta(&mut client, "r").await;
        assert_eq!(params["error"], serde_json::Value::Null);
        bytes += super::decode(&params["deltaBase64"]).len();
        if params["done"] == true {
            break;
        }
    }
    assert_eq!(bytes, LENGTH);
    let written = written.load(Ordering::SeqCst);
    assert!(written < LENGTH / 4, "{written} bytes were taken for a client that reads nothing");
    let memory = resident_kib(server.serving_pid());
    assert!(memory < 128 * 1024, "{memory} KiB");
}

fn resident_kib(pid: u32) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("a line");
    line.split_whitespace().nth(1).expect("a number").parse().expect("a number")
}
