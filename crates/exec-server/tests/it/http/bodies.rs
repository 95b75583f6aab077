//! Request bodies, whole and in chunks.

use exec_server_protocol::base64;
use exec_server_testkit::web::answer;
use exec_server_testkit::{TestClient, Web};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::{body, get, refusal, request, server};

/// Answers with what it was sent.
async fn echo() -> Web {
    Web::answering(|request| answer(200, &[], &request.body)).await
}

fn chunk(seq: u64, bytes: &[u8], done: bool) -> Value {
    json!({"requestId": "r", "seq": seq, "chunk": base64::encode(bytes), "done": done})
}

async fn send_chunk(client: &mut TestClient, seq: u64, bytes: &[u8], done: bool) -> Value {
    client.call("http/requestBody", chunk(seq, bytes, done)).await.unwrap()
}

#[tokio::test]
async fn a_body_is_announced_with_its_length() {
    let (server, web) = (server().await, echo().await);
    let mut client = server.client().await;
    let large = vec![0xa5; 3_000_000];
    for (sent, announced) in [
        (json!({"bodyBase64": base64::encode(b"hi")}), Some("2")),
        (json!({"bodyBase64": ""}), Some("0")),
        (json!({"bodyBase64": null}), None),
        (json!({}), None),
        (json!({"bodyBase64": base64::encode(&large)}), Some("3000000")),
    ] {
        let mut more = sent.clone();
        more["method"] = json!("POST");
        let answer = request(&mut client, &web.url("/"), more).await.unwrap();
        assert_eq!(
            answer["bodyBase64"],
            *sent.get("bodyBase64").filter(|b| b.is_string()).unwrap_or(&json!(""))
        );
        let last = web.requests().pop().unwrap();
        assert_eq!(last.header("content-length"), announced);
        assert_eq!(last.header("transfer-encoding"), None);
    }
}

#[tokio::test]
async fn a_length_is_honoured_if_it_is_true_and_chunks_if_they_are_wanted() {
    let (server, web) = (server().await, echo().await);
    let mut client = server.client().await;
    let with = |name: &str, value: &str| json!({"method": "POST", "bodyBase64": "aGk=", "headers": [{"name": name, "value": value}]});
    let answer = request(&mut client, &web.url("/"), with("Content-Length", "2")).await.unwrap();
    assert_eq!(body(&answer), "hi");
    let answer =
        request(&mut client, &web.url("/"), with("transfer-encoding", "chunked")).await.unwrap();
    assert_eq!(body(&answer), "hi");
    assert_eq!(web.requests()[1].header("content-length"), None);
    for length in ["1", "3", "x", "2, 2"] {
        let (code, ..) = refusal(&mut client, &web.url("/"), with("content-length", length)).await;
        assert_eq!(code, -32602, "{length}");
    }
    assert_eq!(web.requests().len(), 2);
}

#[tokio::test]
async fn a_streamed_body_arrives_in_order_and_whole() {
    let (server, web) = (server().await, echo().await);
    let mut client = server.client().await;
    for method in ["POST", "GET"] {
        let asked = client
            .send("http/request", get(&web.url("/"), json!({"method": method, "streamBody": true})))
            .await;
        let mut all = Vec::new();
        let mut sent = Vec::new();
        for seq in 1..=20u64 {
            let bytes = vec![seq as u8; 70_000];
            all.extend_from_slice(&bytes);
            sent.push(client.send("http/requestBody", chunk(seq, &bytes, false)).await);
        }
        sent.push(client.send("http/requestBody", chunk(21, b"", true)).await);
        for id in sent {
            assert_eq!(client.reply(id).await.unwrap(), json!({"accepted": true}));
        }
        let answer = client.reply(asked).await.unwrap();
        assert_eq!(super::decode(&answer["bodyBase64"]), all);
        let got = web.requests().pop().unwrap();
        assert_eq!(got.header("transfer-encoding"), Some("chunked"));
    }
}

#[tokio::test]
async fn a_streamed_body_keeps_to_its_numbers_and_its_length() {
    let (server, web) = (server().await, echo().await);
    let mut client = server.client().await;
    let more = json!({
        "method": "PUT", "streamBody": true,
        "headers": [{"name": "content-length", "value": "6"}],
    });
    let asked = client.send("http/request", get(&web.url("/"), more)).await;
    send_chunk(&mut client, 1, b"abc", false).await;
    for (wrong, text) in [
        (chunk(1, b"abc", false), "received seq 1, expected 2"),
        (chunk(3, b"abc", false), "received seq 3, expected 2"),
        (chunk(2, b"defg", false), "the body is longer than its content-length"),
        (chunk(2, b"d", true), "the body is shorter than its content-length"),
    ] {
        let error = client.call("http/requestBody", wrong).await.unwrap_err();
        assert_eq!((error["code"].as_i64(), error["message"].as_str()), (Some(-32602), Some(text)));
    }
    send_chunk(&mut client, 2, b"def", true).await;
    let answer = client.reply(asked).await.unwrap();
    assert_eq!(body(&answer), "abcdef");
    assert_eq!(web.request().header("content-length"), Some("6"));
    assert_eq!(send_chunk(&mut client, 3, b"late", false).await, json!({"accepted": false}));
}

#[tokio::test]
async fn an_early_answer_ends_the_upload_and_pressure_reaches_the_client() {
    let server = server().await;
    let (go, may_answer) = mpsc::channel::<()>(1);
    let may_answer = std::sync::Arc::new(tokio::sync::Mutex::new(may_answer));
    let web = Web::start(move |mut visit| {
        let may_answer = may_answer.clone();
        async move {
            let Some(_) = visit.head().await else { return };
            may_answer.lock().await.recv().await;
            visit.send(answer(413, &[("connection", "close")], "too much")).await;
        }
    })
    .await;
    let mut client = server.client().await;
    let asked = client
        .send("http/request", get(&web.url("/"), json!({"method": "POST", "streamBody": true})))
        .await;
    // The web server reads nothing, so that a chunk is eventually left without a reply.
    let mut pending = Vec::new();
    for seq in 1..=24 {
        pending.push(client.send("http/requestBody", chunk(seq, &vec![7; 1 << 20], false)).await);
    }
    assert_eq!(client.reply(pending.remove(0)).await.unwrap(), json!({"accepted": true}));
    client.call("environment/status", json!({})).await.unwrap();
    go.send(()).await.unwrap();
    let reply = client.reply(asked).await.unwrap();
    assert_eq!((reply["status"].as_u64(), body(&reply).as_str()), (Some(413), "too much"));
    let last = client.reply(pending.pop().unwrap()).await.unwrap();
    assert_eq!(last, json!({"accepted": false}));
}

#[tokio::test]
async fn a_streamed_body_cannot_be_sent_twice() {
    let server = server().await;
    let web = Web::answering(|request| match request.target.as_str() {
        "/307" => answer(307, &[("location", "/end")], ""),
        "/303" => answer(303, &[("location", "/end")], ""),
        _ => answer(200, &[], &request.method),
    })
    .await;
    let mut client = server.client().await;
    for path in ["/307", "/303"] {
        let asked = client
            .send(
                "http/request",
                get(&web.url(path), json!({"method": "POST", "streamBody": true})),
            )
            .await;
        send_chunk(&mut client, 1, b"all of it", true).await;
        let reply = client.reply(asked).await;
        match path {
            "/307" => assert_eq!(reply.unwrap_err()["data"]["kind"], "redirect"),
            _ => assert_eq!(body(&reply.unwrap()), "GET"),
        }
    }
}
