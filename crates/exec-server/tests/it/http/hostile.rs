//! Responses of hostile servers: each is an error of the right kind, or harmless.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use exec_server_testkit::Web;
use exec_server_testkit::web::answer;
use serde_json::{Value, json};

use super::{body, deltas, refusal, request, server};

/// Answers every request with the same bytes, and keeps the connection open.
async fn with_answers(bytes: impl Into<Vec<u8>>) -> Web {
    let bytes = bytes.into();
    Web::answering(move |_| bytes.clone()).await
}

fn chunked(chunks: &str) -> String {
    format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{chunks}")
}

#[tokio::test]
async fn an_answer_whose_length_is_in_doubt_is_refused() {
    let server = server().await;
    let mut client = server.client().await;
    for head in [
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 0\r\n\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: identity\r\nContent-Length: 2\r\n\r\nok",
        "HTTP/1.1 302 Go\r\nLocation: /\r\nTransfer-Encoding: chunked\r\nContent-Length: 0\r\n\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok!",
        "HTTP/1.1 200 OK\r\nContent-Length: 2, 3\r\n\r\nok!",
        "HTTP/1.1 200 OK\r\nContent-Length: -2\r\n\r\nok",
        "HTTP/1.1 200 OK\r\nContent-Length: +2\r\n\r\nok",
        "HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\nok",
        "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ] {
        let web = with_answers(head).await;
        for streamed in [false, true] {
            let more = json!({"streamResponse": streamed});
            let (code, kind, message) = refusal(&mut client, &web.url("/?s3cret"), more).await;
            assert_eq!((code, kind.as_str()), (-32603, "body"), "{head}: {message}");
            assert!(!message.contains("s3cret"), "{message}");
        }
        assert_eq!(web.connections(), 2, "nothing is asked again on such a connection: {head}");
    }
    let twice = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\nok";
    let answer =
        request(&mut client, &with_answers(twice).await.url("/"), json!({})).await.unwrap();
    assert_eq!(body(&answer), "ok");
}

#[tokio::test]
async fn invalid_http_is_reported_as_such() {
    let server = server().await;
    let mut client = server.client().await;
    for bytes in [
        &b"hello, this is HTTP/0.9\r\n\r\n"[..],
        b"HTTP/2.0 200 OK\r\n\r\n",
        b"HTTP/1.1 20 OK\r\n\r\n",
        b"HTTP/1.1 99999 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX-A: 1\r\n folded\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX-A: a\0b\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX-A: a\rb\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX\0A: a\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX-A : a\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n: nameless\r\nContent-Length: 0\r\n\r\n",
        b"\x16\x03\x03\x00\x02\x02\x28",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\nxxxx",
    ] {
        let web = with_answers(bytes).await;
        let (code, kind, message) = refusal(&mut client, &web.url("/"), json!({})).await;
        let shown = String::from_utf8_lossy(bytes);
        assert_eq!((code, kind.as_str()), (-32603, "body"), "{shown}: {message}");
    }
}

#[tokio::test]
async fn a_change_of_protocol_that_was_asked_for_is_an_answer_without_a_body() {
    let server = server().await;
    let mut client = server.client().await;
    let web =
        with_answers("HTTP/1.1 101 Go\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\nnot http").await;
    let headers =
        json!([{"name": "connection", "value": "upgrade"}, {"name": "upgrade", "value": "x"}]);
    for number in 1..=2 {
        let more = json!({"headers": headers});
        let reply = request(&mut client, &web.url("/"), more).await.unwrap();
        assert_eq!((reply["status"].as_u64(), &reply["bodyBase64"]), (Some(101), &json!("")));
        assert_eq!(web.connections(), number, "what follows is not for us");
    }
}

#[tokio::test]
async fn provisional_answers_are_skipped_but_not_for_ever() {
    let server = server().await;
    let mut client = server.client().await;
    let some = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n";
    let web = with_answers([some.as_bytes(), &answer(200, &[], "at last")].concat()).await;
    let reply = request(&mut client, &web.url("/"), json!({})).await.unwrap();
    assert_eq!((reply["status"].as_u64(), body(&reply).as_str()), (Some(200), "at last"));

    let endless = Web::start(|mut visit| async move {
        visit.head().await;
        while visit.send("HTTP/1.1 102 Processing\r\nX-Wait: a little longer\r\n\r\n").await {}
    })
    .await;
    let (code, kind, message) = refusal(&mut client, &endless.url("/"), json!({})).await;
    assert_eq!((code, kind.as_str()), (-32603, "tooLarge"), "{message}");
}

#[tokio::test]
async fn invalid_chunks_are_rejected_and_unusual_ones_are_read() {
    let server = server().await;
    let mut client = server.client().await;
    let flood = format!("1;{}\r\nx\r\n0\r\n\r\n", "e".repeat(1 << 20));
    let trailers: String = (0..5000).map(|number| format!("x-{number}: y\r\n")).collect();
    let trailers = format!("1\r\nx\r\n0\r\n{trailers}\r\n");
    for chunks in [
        "zz\r\nx\r\n0\r\n\r\n",
        "-1\r\nx\r\n0\r\n\r\n",
        "\r\nx\r\n0\r\n\r\n",
        "0x1\r\nx\r\n0\r\n\r\n",
        "fffffffffffffffff\r\nx\r\n0\r\n\r\n",
        "1\r\nxy\r\n0\r\n\r\n",
        "1 1\r\nx\r\n0\r\n\r\n",
        "1;a\nb\r\nx\r\n0\r\n\r\n",
        "1\r\nx\r\n0\r\nno colon\r\n\r\n",
        &flood,
        &trailers,
    ] {
        let web = with_answers(chunked(chunks)).await;
        let shown = &chunks[..chunks.len().min(40)];
        let (code, kind, message) = refusal(&mut client, &web.url("/"), json!({})).await;
        assert_eq!((code, kind.as_str()), (-32603, "body"), "{shown:?}: {message}");
        request(&mut client, &web.url("/"), json!({"streamResponse": true})).await.unwrap();
        let (_, last) = deltas(&mut client, "r").await;
        assert_eq!(last["errorKind"], "body", "{shown:?}: {last}");
    }
    let odd = "1;name=\"value\"\r\nx\r\n00002 \r\nyz\r\n0;last\r\nX-Trailer: dropped\r\n\r\n";
    let web = with_answers(chunked(odd)).await;
    for _ in 0..2 {
        let reply = request(&mut client, &web.url("/"), json!({})).await.unwrap();
        assert_eq!(body(&reply), "xyz");
        let names = reply["headers"].as_array().unwrap().len();
        assert_eq!(names, 1, "trailers have no place in this protocol: {reply}");
    }
    assert_eq!(web.connections(), 1, "everything was read");
}

#[tokio::test]
async fn bytes_after_a_bodyless_response_are_not_the_next_response() {
    let server = server().await;
    let mut client = server.client().await;
    let forged = String::from_utf8(answer(200, &[], "forged")).unwrap();
    for (method, head) in [
        ("HEAD", "HTTP/1.1 200 OK\r\nContent-Length: 48\r\n\r\n"),
        ("HEAD", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"),
        ("GET", "HTTP/1.1 204 No Content\r\nContent-Length: 48\r\n\r\n"),
        ("GET", "HTTP/1.1 304 Not Modified\r\nContent-Length: 48\r\n\r\n"),
        ("GET", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"),
    ] {
        let first = format!("{head}{forged}");
        let web = Web::answering(move |request| match request.target.as_str() {
            "/first" => first.clone().into_bytes(),
            _ => answer(200, &[], "genuine"),
        })
        .await;
        let more = json!({"method": method});
        let reply = request(&mut client, &web.url("/first"), more).await.unwrap();
        assert_eq!(reply["bodyBase64"], "", "{head}");
        assert_eq!(reply["headers"].as_array().unwrap().len(), 1, "{head}");
        let reply = request(&mut client, &web.url("/second"), json!({})).await.unwrap();
        assert_eq!(body(&reply), "genuine", "{method} {head}");
    }
    // An honest server keeps its connection.
    let web = with_answers("HTTP/1.1 200 OK\r\nContent-Length: 1000000000000\r\n\r\n").await;
    for _ in 0..2 {
        let more = json!({"method": "HEAD", "maxBodyBytes": 1});
        let reply = request(&mut client, &web.url("/"), more).await.unwrap();
        assert_eq!(reply["headers"][0]["value"], "1000000000000");
    }
    assert_eq!(web.connections(), 1);
}

/// Answers the first request of a connection and closes at the second. After `stop` it closes at every request.
async fn fickle() -> (Web, Arc<AtomicBool>) {
    let stop = Arc::new(AtomicBool::new(false));
    let web = Web::start({
        let stop = stop.clone();
        move |mut visit| {
            let stop = stop.clone();
            async move {
                let Some(_) = visit.request().await else { return };
                if !stop.load(Ordering::SeqCst) {
                    visit.send(answer(200, &[], "ok")).await;
                    visit.request().await;
                }
            }
        }
    })
    .await;
    (web, stop)
}

#[tokio::test]
async fn a_request_that_may_have_arrived_is_sent_again_once_and_only_if_that_is_harmless() {
    let server = server().await;
    let mut client = server.client().await;
    for (method, is_repeated) in [("GET", true), ("PUT", true), ("POST", false), ("LOCK", false)] {
        let (web, _) = fickle().await;
        let more = json!({"method": method, "bodyBase64": "aGk="});
        request(&mut client, &web.url("/"), more.clone()).await.unwrap();
        let again = request(&mut client, &web.url("/"), more).await;
        match is_repeated {
            true => assert_eq!(body(&again.unwrap()), "ok", "{method}"),
            false => assert_eq!(again.unwrap_err()["data"]["kind"], "connect", "{method}"),
        }
        assert_eq!(web.requests().len(), 2 + usize::from(is_repeated), "{method}");
    }

    // Several connections are pooled, and all of them will be closed.
    let (web, stop) = fickle().await;
    let params = |id: usize| super::get(&web.url("/"), json!({"requestId": id.to_string()}));
    let mut asked = Vec::new();
    for id in 0..4 {
        asked.push(client.send("http/request", params(id)).await);
    }
    for id in asked {
        client.reply(id).await.unwrap();
    }
    stop.store(true, Ordering::SeqCst);
    let before = web.requests().len();
    let (_, kind, _) = refusal(&mut client, &web.url("/"), json!({})).await;
    assert_eq!(kind, "connect");
    assert_eq!(web.requests().len() - before, 2, "once, and once again");
}

#[tokio::test]
async fn a_body_that_trickles_is_passed_on_and_can_be_given_up() {
    let server = server().await;
    let mut client = server.client().await;
    let web = Web::start(|mut visit| async move {
        visit.request().await;
        visit.send("HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n").await;
        while visit.send("x").await {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let stream = json!({"streamResponse": true});
    request(&mut client, &web.url("/"), stream).await.unwrap();
    super::delta(&mut client, "r").await;
    client.call("http/cancel", json!({"requestId": "r"})).await.unwrap();
    let last = loop {
        let delta = client.notification().await["params"].clone();
        if delta["done"] == true {
            break delta;
        }
    };
    assert_eq!((&last["errorKind"], &last["deltaBase64"]), (&json!("cancelled"), &Value::from("")));
}
