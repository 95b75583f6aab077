//! A client that does not read slows down its own exchange only.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use exec_server_protocol::limits::MAX_HTTP_EXCHANGES;
use exec_server_testkit::web::answer;
use exec_server_testkit::{DEADLINE, RawClient, Web};
use serde_json::json;

use super::egress_policy::with_file;
use super::{body, delta, get, request, server};

/// An unread response, and a concurrent request of another client.
const UNREAD: usize = 1 << 30;
const READ: usize = 256 << 20;

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
                let length = if counts { UNREAD } else { READ };
                visit.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n")).await;
                let piece = vec![0; 1 << 20];
                for _ in 0..length / piece.len() {
                    if !visit.send(&piece).await {
                        return;
                    }
                    if counts {
                        written.fetch_add(piece.len(), Ordering::SeqCst);
                    }
                }
                visit.closed().await;
            }
        }
    })
    .await;
    let idle = resident_kib(server.serving_pid());
    let mut stalled = RawClient::connect_with_little_room(server.url()).await;
    stalled.initialize().await;
    let more = json!({"streamResponse": true, "requestId": "stalled"});
    stalled.send("http/request", get(&web.url("/stalled"), more)).await;

    // A client that reads receives everything; without backpressure the other exchange would finish as well.
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
    assert_eq!(bytes, READ);
    let written = written.load(Ordering::SeqCst);
    assert!(written < READ / 4, "{written} bytes were taken for a client that reads nothing");
    let memory = resident_kib(server.serving_pid());
    assert!(memory < idle + 64 * 1024, "{idle} KiB became {memory} KiB");
}

/// Buffered bodies are counted by their base64 length.
#[tokio::test]
async fn bodies_count_with_the_memory_that_they_take() {
    const ALMOST_ALL: usize = 30 << 20;
    let server = server().await;
    let web = Web::start(|mut visit| async move {
        visit.request().await;
        let length = ALMOST_ALL + 1;
        visit.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n")).await;
        visit.send(vec![0; ALMOST_ALL]).await;
        visit.closed().await;
    })
    .await;
    let mut client = server.client().await;
    let mut asked = Vec::new();
    // The bytes of eight would fit into the 256 MiB of a connection, their base64 does not.
    for _ in 0..8 {
        asked.push(client.send("http/request", get(&web.url("/"), json!({}))).await);
    }
    let refused = client.next_json().await;
    let error = &refused["error"];
    assert_eq!(error["data"]["kind"], "tooLarge", "{refused}");
    assert!(error["message"].as_str().unwrap().ends_with("ask with streamResponse"), "{refused}");
    // That leaves room for the others, which are awaited.
    asked.retain(|id| refused["id"] != *id);
    assert_eq!(asked.len(), 7);
    client.call("http/cancel", json!({"requestId": "r"})).await.unwrap();
    let mut kinds = Vec::new();
    for id in asked {
        kinds.push(client.reply(id).await.unwrap_err()["data"]["kind"].clone());
    }
    assert!(kinds.iter().filter(|kind| *kind == "cancelled").count() >= 4, "{kinds:?}");
}

/// Unanswered DNS lookups block threads for half a minute and more; some threads must stay free.
#[tokio::test]
async fn unanswered_dns_lookups_do_not_delay_files_or_other_clients() {
    const ADDRESS: &str = "127.0.0.77:53";
    let Ok(silent) = tokio::net::UdpSocket::bind(ADDRESS).await else {
        return eprintln!("skipped, {ADDRESS} cannot be bound");
    };
    let resolver = "nameserver 127.0.0.77\noptions timeout:30 attempts:3\n";
    let Some((server, folder)) = with_file("/etc/resolv.conf", resolver, &[]).await else { return };
    let mut client = server.client().await;
    for number in 0..MAX_HTTP_EXCHANGES {
        let more = json!({"requestId": "names"});
        client.send("http/request", get(&format!("http://n{number}.test/"), more)).await;
    }
    // Each lookup uses its own thread; the socket buffers some of the queries.
    let mut names = HashSet::new();
    while names.len() < 40 {
        let mut message = [0; 512];
        let received = tokio::time::timeout(DEADLINE, silent.recv(&mut message)).await;
        let length = received.expect("names are asked for").unwrap();
        names.insert(message[12..length].split(|byte| *byte == 0).next().unwrap().to_vec());
    }
    let begun = Instant::now();
    let path = format!("file://{}/written", folder.path().display());
    let params = json!({"path": path, "dataBase64": "aGk="});
    client.call("fs/writeFile", params).await.unwrap();
    // Nor other clients, which have their own lookup limits.
    let web = Web::answering(|_| answer(200, &[], "quick")).await;
    let mut other = server.client().await;
    let reply = request(&mut other, &web.local_url("/"), json!({})).await.unwrap();
    assert_eq!(body(&reply), "quick");
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    client.call("http/cancel", json!({"requestId": "names"})).await.unwrap();
}

fn resident_kib(pid: u32) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("a line");
    line.split_whitespace().nth(1).expect("a number").parse().expect("a number")
}
