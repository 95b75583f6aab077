//! Metrics, in the form that Prometheus reads.

use std::collections::BTreeMap;

use exec_server_testkit::TestExecutor;
use exec_server_testkit::http::request;
use serde_json::{Value, json};

#[tokio::test]
async fn metrics_have_an_address_of_their_own() {
    let (server, metrics) = start().await;
    let reply = request(&metrics, "GET", "/metrics", &[]).await;
    assert_eq!(reply.status, 200);
    // Without this content type, a scraper reads counters as untyped.
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    assert_eq!(reply.header("content-type"), Some(kind));
    assert!(reply.body.ends_with("# EOF\n"), "{}", reply.body);
    assert_eq!(request(&metrics, "HEAD", "/metrics", &[]).await.status, 200);
    assert_eq!(request(&metrics, "POST", "/metrics", &[("Content-Length", "0")]).await.status, 405);
    assert_eq!(request(&metrics, "GET", "/", &[]).await.status, 404);
    assert_eq!(request(server.url(), "GET", "/metrics", &[]).await.status, 404);
}

#[tokio::test]
async fn metrics_are_guarded_like_the_listener() {
    let (_server, metrics) = start().await;
    for (header, status) in [
        (("Origin", "http://evil.example"), 403),
        (("Host", "evil.example"), 403),
        (("Host", "[::1]evil.example"), 403),
        (("Host", "localhost:1"), 200),
    ] {
        let reply = request(&metrics, "GET", "/metrics", &[header]).await;
        assert_eq!(reply.status, status, "{header:?}");
    }
    let token = "a-token-of-some-length";
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, token.as_bytes());
    let digest = exec_server::protocol::hex::encode(digest.as_ref());
    let mut server = TestExecutor::builder()
        .args(&["--metrics-listen", "0.0.0.0:0", "--ws-auth", "capability-token"])
        .args(&["--ws-token-sha256", &digest])
        .env("RUST_LOG", "info")
        .piped_stderr()
        .start()
        .await;
    let metrics = metrics_url(&mut server).await.replace("0.0.0.0", "127.0.0.1");
    assert_eq!(request(&metrics, "GET", "/metrics", &[]).await.status, 401);
    let shown = format!("Bearer {token}");
    let reply = request(&metrics, "GET", "/metrics", &[("Authorization", &shown)]).await;
    assert_eq!(reply.status, 200);
    let open = ["--metrics-listen", "0.0.0.0:0"];
    let (code, _, errors) = TestExecutor::builder().args(&open).run().await;
    assert!(code == 1 && errors.contains("--insecure-no-auth"), "{errors}");
}

#[tokio::test]
async fn counters_follow_events() {
    let (server, metrics) = start().await;
    let before = scrape(&metrics).await;
    assert!(before.keys().all(|name| name.starts_with("exec_server_")), "{before:?}");
    for name in ["connections_active", "connections_total", "sessions_active", "processes_active"] {
        assert_eq!(before[&format!("exec_server_{name}")], 0.0, "{name}");
    }

    let mut client = server.client().await;
    client.start("long", &["/bin/sleep", "1000"], json!({})).await.unwrap();
    assert_eq!(client.sh("short", "printf 12345").await.text(), "12345");
    client.start("long", &["/bin/sleep", "1000"], json!({})).await.unwrap_err();
    until(&metrics, |now| now["exec_server_processes_active"] == 1.0).await;
    let during = scrape(&metrics).await;
    for (name, value) in [
        ("connections_active", 1.0),
        ("connections_total", 1.0),
        ("sessions_active", 1.0),
        ("processes_finished_total", 1.0),
        ("process_duration_seconds_count", 1.0),
        ("output_bytes_total", 5.0),
        (r#"requests_total{method="initialize",result="ok"}"#, 1.0),
        (r#"requests_total{method="process/start",result="ok"}"#, 2.0),
        (r#"requests_total{method="process/start",result="error"}"#, 1.0),
        (r#"request_duration_seconds_count{method="process/start"}"#, 3.0),
    ] {
        assert_eq!(during.get(&format!("exec_server_{name}")), Some(&value), "{name}");
    }

    client.call("process/terminate", json!({"processId": "long"})).await.unwrap();
    client.finish("long").await;
    drop(client);
    until(&metrics, |now| {
        now["exec_server_processes_finished_total"] == 2.0
            && now["exec_server_processes_active"] == 0.0
            && now["exec_server_connections_active"] == 0.0
            && now["exec_server_connections_total"] == 1.0
    })
    .await;
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn denied_processes_are_counted() {
    let (server, metrics) = start().await;
    assert_eq!(scrape(&metrics).await["exec_server_sandbox_denials_total"], 0.0);
    let mut client = server.client().await;
    let sandbox = json!({
        "permissions": {"type": "managed", "network": "restricted", "file_system": {
            "type": "restricted",
            "entries": [{"path": {"type": "special", "value": {"kind": "root"}}, "access": "read"}],
        }},
        "windowsSandboxLevel": "disabled",
    });
    for (id, script) in
        [("denied", "echo > /exec-server-canary"), ("failed", "exit 1"), ("fine", ":")]
    {
        client.run(id, &["/bin/sh", "-c", script], json!({"sandbox": sandbox})).await;
    }
    assert_eq!(scrape(&metrics).await["exec_server_sandbox_denials_total"], 1.0);
}

/// A server with metrics on a free port, which only its log names.
pub async fn start() -> (TestExecutor, String) {
    let mut server = TestExecutor::builder()
        .args(&["--metrics-listen", "127.0.0.1:0"])
        .env("RUST_LOG", "info")
        .piped_stderr()
        .start()
        .await;
    let url = metrics_url(&mut server).await;
    (server, url)
}

/// The metrics address, from the log of the server.
pub async fn metrics_url(server: &mut TestExecutor) -> String {
    loop {
        let line = server.next_stderr_line().await.expect("the log says where metrics are");
        let line: Value = serde_json::from_str(&line).unwrap();
        if line["message"] == "serving metrics" {
            let url = line["url"].as_str().expect("a URL").to_owned();
            return url.strip_suffix("/metrics").expect("the whole URL").to_owned();
        }
    }
}

/// All samples by name and labels.
pub async fn scrape(url: &str) -> BTreeMap<String, f64> {
    let body = request(url, "GET", "/metrics", &[]).await.body;
    body.lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| line.rsplit_once(' ').expect("a name and a value"))
        .map(|(name, value)| (name.to_owned(), value.parse().expect("a number")))
        .collect()
}

/// Waits until the samples satisfy a condition.
pub async fn until(url: &str, is_so: impl Fn(&BTreeMap<String, f64>) -> bool) {
    let waiting = async { while !is_so(&scrape(url).await) {} };
    if tokio::time::timeout(exec_server_testkit::DEADLINE, waiting).await.is_err() {
        panic!("never so: {:#?}", scrape(url).await);
    }
}
