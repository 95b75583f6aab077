//! HTTP routes, and rejected upgrades.

use exec_server_testkit::http::{HttpConnection, UPGRADE, request, upgrade};
use exec_server_testkit::{TestClient, TestExecutor};
use serde_json::{Value, json};

#[tokio::test]
async fn health_and_version_answer_get_and_head_and_nothing_else() {
    let server = TestExecutor::start().await;
    let url = server.url();
    let version = env!("CARGO_PKG_VERSION");
    let health = json!({"status": "ok", "version": version});
    for (path, expected) in [
        ("/readyz", health.clone()),
        ("/healthz", health.clone()),
        ("/livez", health),
        ("/version", json!({"name": "exec-server", "version": version})),
    ] {
        let get = request(url, "GET", path, &[]).await;
        assert_eq!(get.status, 200, "{path}");
        assert_eq!(serde_json::from_str::<Value>(&get.body).unwrap(), expected);
        assert_eq!(get.header("content-type"), Some("application/json"));
        let with_query = request(url, "GET", &format!("{path}?verbose"), &[]).await;
        assert_eq!((with_query.status, with_query.body), (200, get.body));

        let mut connection = HttpConnection::open(url).await;
        assert_eq!(connection.request("HEAD", path, &[]).await.status, 200);
        // A body after HEAD would be read as the next reply.
        assert_eq!(connection.request("GET", path, &[]).await.status, 200);

        for method in ["POST", "PUT", "DELETE", "OPTIONS"] {
            let refused = request(url, method, path, &[("Content-Length", "0")]).await;
            assert_eq!((refused.status, refused.body.as_str()), (405, ""), "{method} {path}");
            assert_eq!(refused.header("allow"), Some("GET,HEAD"));
        }
    }
}

#[tokio::test]
async fn there_is_nothing_anywhere_else() {
    let server = TestExecutor::start().await;
    for path in ["/ws", "/metrics", "/readyz/", "//", "/favicon.ico", "/../etc/passwd"] {
        for method in ["GET", "POST"] {
            let reply = request(server.url(), method, path, &[("Content-Length", "0")]).await;
            assert_eq!((reply.status, reply.body.as_str()), (404, ""), "{method} {path}");
        }
    }
}

#[tokio::test]
async fn the_root_explains_what_is_wrong_with_an_upgrade() {
    let server = TestExecutor::start().await;
    let url = server.url();
    let plain = request(url, "GET", "/", &[]).await;
    assert_eq!(plain.status, 400);
    assert_eq!(plain.body, "Connection header did not include 'upgrade'");
    assert!(plain.header("content-type").unwrap().starts_with("text/plain"));

    let post = request(url, "POST", "/", &[("Content-Length", "0")]).await;
    assert_eq!((post.status, post.header("allow")), (405, Some("GET")));

    for (changed, value, complaint) in [
        ("Connection", Some("keep-alive"), "Connection header did not include 'upgrade'"),
        ("Upgrade", Some("h2c"), "Upgrade header did not include 'websocket'"),
        ("Sec-WebSocket-Version", Some("8"), "Sec-WebSocket-Version header must be '13'"),
        ("Sec-WebSocket-Version", None, "Sec-WebSocket-Version header must be '13'"),
        ("Sec-WebSocket-Key", None, "Sec-WebSocket-Key header is missing"),
    ] {
        let headers: Vec<_> = UPGRADE
            .into_iter()
            .filter_map(|(name, usual)| match name == changed {
                true => value.map(|value| (name, value)),
                false => Some((name, usual)),
            })
            .collect();
        let reply = request(url, "GET", "/", &headers).await;
        assert_eq!((reply.status, reply.body.as_str()), (400, complaint), "{changed}: {value:?}");
    }
}

#[tokio::test]
async fn an_upgrade_is_answered_as_the_standard_says() {
    let server = TestExecutor::start().await;
    let reply = upgrade(server.url(), &[("Sec-WebSocket-Extensions", "permessage-deflate")]).await;
    assert_eq!(reply.status, 101);
    assert_eq!(reply.header("sec-websocket-accept"), Some("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="));
    assert!(reply.header("connection").unwrap().eq_ignore_ascii_case("upgrade"));
    assert!(reply.header("upgrade").unwrap().eq_ignore_ascii_case("websocket"));
    assert_eq!(reply.header("sec-websocket-extensions"), None);
    assert_eq!(reply.header("sec-websocket-protocol"), None);

    // As a browser-like client or a proxy would write it; the query is ignored.
    let headers = [
        ("connection", "keep-alive, UPGRADE"),
        ("upgrade", "WebSocket"),
        ("sec-websocket-version", "13"),
        ("sec-websocket-key", "x"),
    ];
    assert_eq!(request(server.url(), "GET", "/?token=x", &headers).await.status, 101);
}

#[tokio::test]
async fn a_message_sent_along_with_the_upgrade_is_not_lost() {
    let server = TestExecutor::start().await;
    let mut connection = HttpConnection::open(server.url()).await;
    let head: String = UPGRADE.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let mut bytes = format!("GET / HTTP/1.1\r\nHost: localhost\r\n{head}\r\n").into_bytes();
    let message = br#"{"id":7,"method":"nope"}"#;
    // One text frame with a zero mask, which leaves the payload unchanged.
    bytes.extend([0x81, 0x80 | message.len() as u8, 0, 0, 0, 0]);
    bytes.extend(message);
    connection.send(&bytes).await;
    assert_eq!(connection.reply("GET").await.status, 101);
    let head = connection.bytes(2).await;
    assert!(head[0] == 0x81 && head[1] < 126, "one short, unmasked text frame: {head:?}");
    let length = usize::from(head[1]);
    let reply: Value = serde_json::from_slice(&connection.bytes(length).await).unwrap();
    assert_eq!((&reply["id"], &reply["error"]["code"]), (&json!(7), &json!(-32601)));
}

#[tokio::test]
async fn requests_from_web_pages_are_rejected_first() {
    let token = ["--ws-auth", "capability-token", "--ws-token-sha256", &"ab".repeat(32)];
    for arguments in [&[][..], &token] {
        let server = TestExecutor::start_with(arguments).await;
        for origin in ["http://evil.example", "null", "", "http://localhost"] {
            for (method, path) in
                [("GET", "/readyz"), ("POST", "/readyz"), ("GET", "/nowhere"), ("GET", "/")]
            {
                let headers = [("Origin", origin), ("Content-Length", "0")];
                let reply = request(server.url(), method, path, &headers).await;
                assert_eq!((reply.status, reply.body.as_str()), (403, ""), "{method} {path}");
            }
            let reply = upgrade(server.url(), &[("Origin", origin)]).await;
            assert_eq!((reply.status, reply.body.as_str()), (403, ""), "{origin:?}");
        }
    }
}

#[tokio::test]
async fn a_server_on_loopback_answers_to_no_other_host_name() {
    let server = TestExecutor::start().await;
    let url = server.url();
    for host in [
        "evil.example",
        "evil.example:80",
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "evil.example:127.0.0.1",
        "10.0.0.1",
        "[2001:db8::1]:80",
        "0.0.0.0",
        "[::1]evil.example",
        "localhost:evil.example",
        "[localhost]",
        "evil\u{e9}.example",
    ] {
        for path in ["/readyz", "/version", "/nowhere"] {
            let reply = request(url, "GET", path, &[("Host", host)]).await;
            assert_eq!(reply.status, 403, "{host} {path}");
        }
        let reply = upgrade(url, &[("Host", host)]).await;
        assert_eq!(reply.status, 403, "{host}");
        assert!(reply.body.contains("loopback"), "{}", reply.body);
    }
    for host in ["localhost", "LOCALHOST:1", "127.0.0.1", "127.1.2.3:9", "[::1]", "[::1]:5"] {
        assert_eq!(upgrade(url, &[("Host", host)]).await.status, 101, "{host}");
        assert_eq!(request(url, "GET", "/readyz", &[("Host", host)]).await.status, 200, "{host}");
    }
}

#[tokio::test]
async fn a_server_on_the_network_may_have_any_name() {
    let server =
        TestExecutor::start_with(&["--listen", "ws://0.0.0.0:0", "--insecure-no-auth"]).await;
    let local = server.url().replace("0.0.0.0", "127.0.0.1");
    assert_eq!(upgrade(&local, &[("Host", "build.example")]).await.status, 101);
    assert_eq!(upgrade(&local, &[("Origin", "http://build.example")]).await.status, 403);
}

#[tokio::test]
async fn garbage_instead_of_http_does_no_harm() {
    let server = TestExecutor::start().await;
    for garbage in
        ["\0\0\0\0\r\n\r\n", "GET\r\n\r\n", "\u{16}\u{3}\u{1}\r\n\r\n", "PRI * HTTP/2.0\r\n\r\n"]
    {
        let mut connection = HttpConnection::open(server.url()).await;
        connection.send(garbage.as_bytes()).await;
        assert_eq!(connection.reply("GET").await.status, 400, "{garbage:?}");
    }
    let long = format!("GET / HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(1 << 20));
    let mut connection = HttpConnection::open(server.url()).await;
    connection.send(&long.as_bytes()[..600_000]).await;
    assert_eq!(connection.reply("GET").await.status, 431);
    let mut client = TestClient::connect(server.url()).await;
    client.initialize().await;
}
