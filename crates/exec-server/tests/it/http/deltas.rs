//! Streamed responses and their ends.

use std::sync::Arc;

use exec_server_testkit::Web;
use exec_server_testkit::web::answer;
use serde_json::{Value, json};
use tokio::sync::{Mutex, mpsc};

use super::{body, delta, deltas, get, refusal, request, server, without_proxies};

fn stream(id: &str) -> Value {
    json!({"streamResponse": true, "requestId": id})
}

const CHUNKED: &str = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";

/// Sends a chunk for every message of the test, and ends the body when there are no more.
async fn on_command() -> (Web, mpsc::Sender<&'static str>) {
    let (say, said) = mpsc::channel::<&'static str>(8);
    let said = Arc::new(Mutex::new(said));
    let web = Web::start(move |mut visit| {
        let said = said.clone();
        async move {
            let mut said = said.lock().await;
            while visit.request().await.is_some() {
                visit.send(CHUNKED).await;
                loop {
                    match said.recv().await {
                        Some("") => {
                            visit.send("0\r\n\r\n").await;
                            break;
                        }
                        Some("reset") | None => return,
                        Some(text) => visit.send(format!("{:x}\r\n{text}\r\n", text.len())).await,
                    };
                }
            }
        }
    })
    .await;
    (web, say)
}

#[tokio::test]
async fn the_reply_precedes_the_deltas() {
    let (server, (web, say)) = (server().await, on_command().await);
    let mut client = server.client().await;
    let answer = request(&mut client, &web.url("/"), stream("http-1")).await.unwrap();
    assert_eq!((answer["status"].as_u64(), &answer["bodyBase64"]), (Some(200), &json!("")));
    for (seq, text) in [(1, "one"), (2, "two")] {
        say.send(text).await.unwrap();
        let params = delta(&mut client, "http-1").await;
        assert_eq!(super::decode(&params["deltaBase64"]), text.as_bytes());
        assert_eq!(params["seq"], seq);
        assert_eq!((&params["done"], &params["error"]), (&json!(false), &Value::Null));
    }
    say.send("").await.unwrap();
    let last = delta(&mut client, "http-1").await;
    let expected =
        json!({"requestId": "http-1", "seq": 3, "deltaBase64": "", "done": true, "error": null});
    assert_eq!(last, expected);
}

#[tokio::test]
async fn an_empty_body_is_one_last_delta() {
    let server = server().await;
    let web = Web::answering(|_| b"HTTP/1.1 204 No\r\n\r\n".to_vec()).await;
    let mut client = server.client().await;
    request(&mut client, &web.url("/"), stream("")).await.unwrap();
    let (pieces, last) = deltas(&mut client, "").await;
    assert!(pieces.is_empty());
    assert_eq!(last["seq"], 1);
}

#[tokio::test]
async fn a_large_body_arrives_whole_in_pieces_that_clients_take() {
    let server = server().await;
    let bytes: Vec<u8> = (0..20_000_000u32).map(|number| (number % 251) as u8).collect();
    let sent = Arc::new(bytes);
    let web = Web::answering({
        let sent = sent.clone();
        move |_| answer(200, &[], &*sent)
    })
    .await;
    let mut client = server.client().await;
    request(&mut client, &web.url("/"), stream("big")).await.unwrap();
    let (pieces, last) = deltas(&mut client, "big").await;
    assert_eq!(last["error"], Value::Null);
    assert!(pieces.iter().all(|piece| piece.len() <= 1 << 20));
    assert!(pieces.concat() == *sent, "the bytes are those that were sent");
}

#[tokio::test]
async fn a_name_belongs_to_one_stream_at_a_time() {
    let (server, (web, say)) = (server().await, on_command().await);
    let plain = Web::answering(|_| answer(200, &[], "plain")).await;
    let mut client = server.client().await;
    request(&mut client, &web.url("/"), stream("x")).await.unwrap();
    let (code, kind, message) = refusal(&mut client, &plain.url("/"), stream("x")).await;
    assert_eq!((code, kind.as_str()), (-32602, "request_exists"));
    assert_eq!(message, "http/request `x` is already active");
    assert_eq!(plain.connections(), 0);
    // A buffered request needs no id.
    let answer = request(&mut client, &plain.url("/"), json!({"requestId": "x"})).await.unwrap();
    assert_eq!(body(&answer), "plain");
    // Ids are separate for each connection.
    let mut other = server.client().await;
    request(&mut other, &plain.url("/"), stream("x")).await.unwrap();
    deltas(&mut other, "x").await;
    say.send("").await.unwrap();
    deltas(&mut client, "x").await;
    request(&mut client, &plain.url("/"), stream("x")).await.unwrap();
    deltas(&mut client, "x").await;
    // A failed request frees the id as well.
    refusal(&mut client, "http://127.0.0.1:1/", stream("x")).await;
    request(&mut client, &plain.url("/"), stream("x")).await.unwrap();
    deltas(&mut client, "x").await;
}

#[tokio::test]
async fn a_body_that_breaks_off_ends_with_an_error_after_the_good_bytes() {
    let server = server().await;
    for rest in [
        "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\ngood",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\ngood\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\ngood\r\nzzz\r\nrest",
    ] {
        let web = Web::start(move |mut visit| async move {
            visit.request().await;
            visit.send(rest).await;
        })
        .await;
        let mut client = server.client().await;
        request(&mut client, &web.url("/?secret=1"), stream("s")).await.unwrap();
        let (pieces, last) = deltas(&mut client, "s").await;
        assert_eq!(pieces.concat(), b"good", "{rest}");
        assert_eq!(last["errorKind"], "body", "{last}");
        let text = last["error"].as_str().unwrap();
        assert!(text.starts_with("failed to read http/request response body"), "{text}");
        assert!(!text.contains("secret"), "{text}");
        let (code, kind, _) = refusal(&mut client, &web.url("/"), json!({})).await;
        assert_eq!((code, kind.as_str()), (-32603, "body"), "{rest}");
    }
}

#[cfg(unix)]
#[tokio::test]
async fn a_connection_that_is_reset_in_the_middle_of_a_body_is_an_error() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let server = server().await;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let mut client = server.client().await;
    let asked = client.send("http/request", get(&url, stream("reset"))).await;
    let (mut link, _) = listener.accept().await.unwrap();
    assert!(link.read(&mut [0; 4096]).await.unwrap() > 0);
    link.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\ngood").await.unwrap();
    client.reply(asked).await.unwrap();
    assert_eq!(super::decode(&delta(&mut client, "reset").await["deltaBase64"]), b"good");
    rustix::net::sockopt::set_socket_linger(&link, Some(std::time::Duration::ZERO)).unwrap();
    drop(link);
    let last = delta(&mut client, "reset").await;
    assert_eq!((&last["done"], &last["errorKind"]), (&json!(true), &json!("body")), "{last}");
}

#[tokio::test]
async fn a_body_without_a_length_ends_with_its_connection() {
    let server = server().await;
    let web = Web::start(|mut visit| async move {
        visit.request().await;
        visit.send("HTTP/1.0 200 OK\r\n\r\nuntil the end").await;
    })
    .await;
    let mut client = server.client().await;
    let answer = request(&mut client, &web.url("/"), json!({})).await.unwrap();
    assert_eq!(body(&answer), "until the end");
}

#[tokio::test]
async fn time_is_up_for_the_body_as_well() {
    let server = server().await;
    // A busy machine may need longer than the minimum for the head alone.
    for time in [300, 3_000, 30_000] {
        let (web, say) = on_command().await;
        let mut client = server.client().await;
        let mut more = stream("t");
        more["timeoutMs"] = json!(time);
        if let Err(error) = request(&mut client, &web.url("/"), more).await {
            assert_eq!(error["data"]["kind"], "timeout", "{error}");
            continue;
        }
        say.send("one").await.unwrap();
        let (pieces, last) = deltas(&mut client, "t").await;
        assert!(pieces.len() <= 1);
        assert_eq!(last["errorKind"], "timeout");
        assert_eq!(last["error"], format!("http/request failed: timed out after {time} ms"));
        return;
    }
    panic!("no answer had a head in time");
}

#[tokio::test]
async fn a_cancelled_stream_ends_with_that_error() {
    let (server, (web, say)) = (server().await, on_command().await);
    let mut client = server.client().await;
    request(&mut client, &web.url("/"), stream("c")).await.unwrap();
    say.send("one").await.unwrap();
    assert_eq!(delta(&mut client, "c").await["seq"], 1);
    let cancelled = client.call("http/cancel", json!({"requestId": "c"})).await.unwrap();
    assert_eq!(cancelled, json!({"cancelled": true}));
    let last = delta(&mut client, "c").await;
    assert_eq!((&last["seq"], &last["done"]), (&json!(2), &json!(true)));
    assert_eq!(
        (&last["errorKind"], &last["error"]),
        (&json!("cancelled"), &json!("the request was cancelled"))
    );
    let again = client.call("http/cancel", json!({"requestId": "c"})).await.unwrap();
    assert_eq!(again, json!({"cancelled": false}));
}

/// Accepts requests and never answers; reports when a request arrived and when its connection closed.
async fn silent() -> (Web, mpsc::Receiver<&'static str>) {
    let (tell, told) = mpsc::channel(16);
    let web = Web::start(move |mut visit| {
        let tell = tell.clone();
        async move {
            if visit.head().await.is_some() {
                tell.send("asked").await.unwrap();
                visit.closed().await;
                tell.send("left").await.unwrap();
            }
        }
    })
    .await;
    (web, told)
}

#[tokio::test]
async fn a_request_without_an_answer_can_be_cancelled_and_hangs_up() {
    let (server, (web, mut told)) = (server().await, silent().await);
    let mut client = server.client().await;
    let buffered = client.send("http/request", get(&web.url("/"), json!({}))).await;
    assert_eq!(told.recv().await, Some("asked"));
    let cancelled = client.call("http/cancel", json!({"requestId": "r"})).await.unwrap();
    assert_eq!(cancelled, json!({"cancelled": true}));
    let error = client.reply(buffered).await.unwrap_err();
    assert_eq!(
        (error["code"].as_i64(), &error["data"]["kind"]),
        (Some(-32603), &json!("cancelled"))
    );
    assert_eq!(told.recv().await, Some("left"));
}

#[tokio::test]
async fn exchanges_end_with_their_connection() {
    let (server, (web, mut told)) = (server().await, silent().await);
    for more in [json!({}), stream("s"), json!({"method": "POST", "streamBody": true})] {
        let mut client = server.client().await;
        client.send("http/request", get(&web.url("/"), more)).await;
        assert_eq!(told.recv().await, Some("asked"));
        drop(client);
        assert_eq!(told.recv().await, Some("left"));
    }
}

#[tokio::test]
async fn a_slow_exchange_does_not_delay_others() {
    for arguments in [&[][..], &["--concurrent-requests", "1"]] {
        let server = without_proxies().args(arguments).start().await;
        let ((web, mut told), plain) =
            (silent().await, Web::answering(|_| answer(200, &[], "quick")).await);
        let mut client = server.client().await;
        for _ in 0..8 {
            client.send("http/request", get(&web.url("/"), json!({}))).await;
            assert_eq!(told.recv().await, Some("asked"));
        }
        client.call("environment/status", json!({})).await.unwrap();
        let answer = request(&mut client, &plain.url("/"), json!({})).await.unwrap();
        assert_eq!(body(&answer), "quick");
        assert_eq!(client.sh("p", "echo too").await.text(), "too\n");
    }
}

#[tokio::test]
async fn concurrent_exchanges_are_limited() {
    let server = server().await;
    let (web, _told) = silent().await;
    let mut client = server.client().await;
    let limit = exec_server_protocol::limits::MAX_HTTP_EXCHANGES;
    let mut asked = Vec::new();
    for _ in 0..=limit {
        asked.push(client.send("http/request", get(&web.url("/"), json!({}))).await);
    }
    let error = client.reply(asked[limit]).await.unwrap_err();
    assert_eq!(error["data"], json!({"kind": "too_many_requests", "retryable": true}));
    client.call("http/cancel", json!({"requestId": "r"})).await.unwrap();
    for id in asked.drain(..limit) {
        assert_eq!(client.reply(id).await.unwrap_err()["data"]["kind"], "cancelled");
    }
}
