//! Every failure has its own kind, and no error text contains a secret.

use exec_server_testkit::Web;
use exec_server_testkit::web::answer;
use serde_json::json;

use super::{body, deltas, refusal, request, server, without_proxies};

#[tokio::test]
async fn failures_are_distinguished() {
    let server = server().await;
    let garbage = Web::answering(|_| b"SSH-2.0-OpenSSH\r\n\r\n".to_vec()).await;
    let no_tls = Web::start(|mut visit| async move {
        visit.send("SSH-2.0-OpenSSH\r\n\r\n").await;
        visit.closed().await;
    })
    .await;
    let hangs_up = Web::start(|mut visit| async move {
        visit.request().await;
    })
    .await;
    let huge_head = Web::answering(|_| {
        let head = format!("HTTP/1.1 200 OK\r\nX: {}\r\n\r\n", "y".repeat(2_000_000));
        head.into_bytes()
    })
    .await;
    let many_headers = Web::answering(|_| {
        let lines: String = (0..5000).map(|number| format!("x-{number}: y\r\n")).collect();
        format!("HTTP/1.1 200 OK\r\n{lines}\r\n").into_bytes()
    })
    .await;
    let silent = Web::start(|mut visit| async move { visit.closed().await }).await;
    let trickling = Web::start(|mut visit| async move {
        visit.head().await;
        visit.send("HTTP/1.1 200 OK\r\n").await;
        while visit.send("x: y\r\n").await {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    })
    .await;
    let mut client = server.client().await;
    for (url, more, kind) in [
        ("http://127.0.0.1:1/".to_owned(), json!({}), "connect"),
        ("http://name.invalid/".to_owned(), json!({}), "dns"),
        (hangs_up.url("/"), json!({}), "connect"),
        (garbage.url("/"), json!({}), "body"),
        (huge_head.url("/"), json!({}), "tooLarge"),
        (many_headers.url("/"), json!({}), "tooLarge"),
        (silent.url("/"), json!({"timeoutMs": 200}), "timeout"),
        (silent.url("/"), json!({"timeoutMs": 0}), "timeout"),
        (trickling.url("/"), json!({"timeoutMs": 200}), "timeout"),
        (silent.url("/").replace("http:", "https:"), json!({"timeoutMs": 200}), "timeout"),
        (no_tls.url("/").replace("http:", "https:"), json!({}), "tls"),
    ] {
        let secret = url.replace("://", "://me:pw@") + "path?token=s3cret";
        for streamed in [false, true] {
            let mut more = more.clone();
            more["streamResponse"] = json!(streamed);
            let (code, got, message) = refusal(&mut client, &secret, more).await;
            assert_eq!((code, got.as_str()), (-32603, kind), "{url}: {message}");
            for word in ["s3cret", "token", "path", "me:pw", "pw@"] {
                assert!(!message.contains(word), "{message}");
            }
        }
    }
    let error = request(&mut client, "http://127.0.0.1:1/", json!({})).await.unwrap_err();
    assert_eq!(error["data"]["errno"], "ECONNREFUSED");
}

#[tokio::test]
async fn a_body_has_bounds() {
    let server = server().await;
    let web = Web::start(|mut visit| async move {
        while let Some(request) = visit.request().await {
            let length: usize = request.target[1..].parse().unwrap();
            if request.header("x-chunked").is_some() {
                visit.send("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").await;
                visit.send(format!("{length:x}\r\n{}\r\n0\r\n\r\n", "z".repeat(length))).await;
            } else {
                visit.send(answer(200, &[], "z".repeat(length))).await;
            }
        }
    })
    .await;
    let mut client = server.client().await;
    let chunked = json!([{"name": "x-chunked", "value": "1"}]);
    for headers in [json!([]), chunked.clone()] {
        let fits = json!({"maxBodyBytes": 10, "headers": headers});
        let answer = request(&mut client, &web.url("/10"), fits.clone()).await.unwrap();
        assert_eq!(body(&answer), "zzzzzzzzzz");
        let (code, kind, message) = refusal(&mut client, &web.url("/11"), fits).await;
        assert_eq!((code, kind.as_str()), (-32603, "tooLarge"));
        assert_eq!(message, "the body of the answer is longer than the 10 bytes of maxBodyBytes");
        let stream = json!({"maxBodyBytes": 10, "headers": headers, "streamResponse": true});
        request(&mut client, &web.url("/11"), stream).await.unwrap();
        assert_eq!(deltas(&mut client, "r").await.1["errorKind"], "tooLarge");
    }
    for headers in [json!([]), chunked] {
        let too_much = web.url("/60000000");
        let more = json!({"headers": headers});
        let (code, kind, message) = refusal(&mut client, &too_much, more).await;
        assert_eq!((code, kind.as_str()), (-32603, "tooLarge"));
        assert!(message.ends_with("ask with streamResponse"), "{message}");
    }
    let most = request(&mut client, &web.url("/50000000"), json!({})).await.unwrap();
    assert_eq!(super::decode(&most["bodyBase64"]).len(), 50_000_000);
}

#[tokio::test]
async fn logs_and_metrics_have_no_secrets() {
    let mut server = without_proxies()
        .env("RUST_LOG", "trace")
        .env("HTTP_TEST_TOKEN", "token-s3cret")
        .args(&["--metrics-listen", "127.0.0.1:0"])
        .piped_stderr()
        .start()
        .await;
    let metrics = loop {
        let line = server.next_stderr_line().await.expect("it says where metrics are");
        if let Some((_, rest)) = line.split_once("http://") {
            let end = rest.find("/metrics").expect("a path");
            break format!("http://{}", &rest[..end]);
        }
    };
    let web =
        Web::answering(|_| answer(200, &[("x-answer", "answer-s3cret")], "body-s3cret")).await;
    let mut client = server.client().await;
    let more = json!({
        "method": "POST", "bodyBase64": "cmVxdWVzdC1zM2NyZXQ=",
        "headers": [{"name": "authorization", "value": "Bearer ", "valueEnvVar": "HTTP_TEST_TOKEN"}],
    });
    let url = web.url("/path-s3cret?query-s3cret").replace("://", "://user-s3cret@");
    request(&mut client, &url, more.clone()).await.unwrap();
    let (.., message) =
        refusal(&mut client, "http://user-s3cret@127.0.0.1:1/path-s3cret?query-s3cret", more).await;
    assert!(!message.contains("s3cret"), "{message}");
    let counted = exec_server_testkit::http::request(&metrics, "GET", "/metrics", &[]).await.body;
    for line in [
        "exec_server_http_exchanges_total{outcome=\"ok\"} 1\n",
        "exec_server_http_exchanges_total{outcome=\"connect\"} 1\n",
        "exec_server_http_exchanges_total{outcome=\"timeout\"} 0\n",
        "exec_server_http_exchanges_active 0\n",
    ] {
        assert!(counted.contains(line), "{line} in {counted}");
    }
    drop(client);
    server.close_stdin();
    #[cfg(unix)]
    server.signal(exec_server_testkit::executor::Signal::TERM);
    while let Some(line) = server.next_stderr_line().await {
        assert!(!line.contains("s3cret"), "{line}");
    }
}
