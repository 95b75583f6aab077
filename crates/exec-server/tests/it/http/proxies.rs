//! Proxies from the server's environment.

use exec_server_testkit::Web;
use exec_server_testkit::web::{Visit, answer};
use serde_json::json;
use tokio::io::copy_bidirectional;
use tokio::net::TcpStream;

use super::tls::TestCa;
use super::{body, refusal, request, without_proxies};

/// A proxy that answers every request itself, or tunnels bytes after `CONNECT`.
async fn proxy() -> Web {
    Web::start(|mut visit: Visit| async move {
        while let Some(request) = visit.request().await {
            if request.method != "CONNECT" {
                visit.send(answer(200, &[], format!("for {}", request.target))).await;
                continue;
            }
            if request.target.starts_with("refused") {
                visit.send(answer(403, &[], "no")).await;
                return;
            }
            let target = request.target.replace("far.test", "localhost");
            let Ok(mut far) = TcpStream::connect(target).await else { return };
            visit.send("HTTP/1.1 200 Connected\r\n\r\n").await;
            let mut near = visit.into_link();
            let _ = copy_bidirectional(&mut near, &mut far).await;
            return;
        }
    })
    .await
}

#[tokio::test]
async fn plain_requests_go_to_the_proxy_with_their_whole_url() {
    let proxy = proxy().await;
    let url = format!("http://us:pa@{}", proxy.address());
    let server =
        without_proxies().env("HTTP_PROXY", &url).env("NO_PROXY", "direct.test").start().await;
    let mut client = server.client().await;
    let answer = request(&mut client, "http://me:pw@far.test:81/a?b=1#c", json!({})).await.unwrap();
    assert_eq!(body(&answer), "for http://far.test:81/a?b=1");
    let sent = proxy.request();
    assert_eq!(sent.header("host"), Some("far.test:81"));
    assert_eq!(sent.header("proxy-authorization"), Some("Basic dXM6cGE="));
    assert_eq!(sent.header("authorization"), Some("Basic bWU6cHc="));
    // The proxy resolves names, so only literal addresses and known names can be rejected.
    for url in ["http://169.254.169.254/", "http://metadata.google.internal/"] {
        assert_eq!(refusal(&mut client, url, json!({})).await.1, "forbidden");
    }
    assert_eq!(refusal(&mut client, "http://direct.test/", json!({})).await.1, "dns");
    assert_eq!(proxy.requests().len(), 1);
    for url in ["http://127.0.0.1:1/", "http://localhost:1/", "http://[::1]:1/"] {
        assert_eq!(refusal(&mut client, url, json!({})).await.1, "connect", "{url}");
    }
    assert_eq!(proxy.requests().len(), 1, "loopback is reached directly");
    let answer = request(&mut client, "http://bücher.test/ü", json!({})).await.unwrap();
    assert_eq!(body(&answer), "for http://xn--bcher-kva.test/%C3%BC");
    assert_eq!(proxy.connections(), 1, "one connection does for all hosts");
}

#[tokio::test]
async fn tls_goes_through_a_tunnel() {
    let (proxy, ca) = (proxy().await, TestCa::new());
    let web = ca.web(|_| answer(200, &[], "inside")).await;
    let url = proxy.url("");
    let server =
        without_proxies().env("ALL_PROXY", &url).env("SSL_CERT_FILE", ca.file()).start().await;
    let mut client = server.client().await;
    for _ in 0..2 {
        let url = format!("https://far.test:{}/x", web.address().port());
        let answer = request(&mut client, &url, json!({})).await.unwrap();
        assert_eq!(body(&answer), "inside");
    }
    let asked = proxy.request();
    assert_eq!(
        (asked.method.as_str(), asked.target.as_str()),
        ("CONNECT", &*format!("far.test:{}", web.address().port()))
    );
    let (_, kind, message) = refusal(&mut client, "https://refused.test/", json!({})).await;
    assert_eq!(kind, "connect");
    assert!(message.ends_with("refused to connect: status 403"), "{message}");
}

#[tokio::test]
async fn a_proxy_may_use_tls() {
    let ca = TestCa::new();
    let proxy = ca.web(|request| answer(200, &[], &request.target)).await;
    let with = |trusted: &TestCa| {
        let builder = without_proxies().env("HTTP_PROXY", proxy.local_url(""));
        builder.env("SSL_CERT_FILE", trusted.file())
    };
    let server = with(&ca).start().await;
    let mut client = server.client().await;
    for url in ["http://far.test/a", "http://farther.test/b"] {
        assert_eq!(body(&request(&mut client, url, json!({})).await.unwrap()), url);
    }
    assert_eq!(proxy.connections(), 1);
    let server = with(&TestCa::new()).start().await;
    let mut client = server.client().await;
    assert_eq!(refusal(&mut client, "http://far.test/", json!({})).await.1, "tls");
}

#[tokio::test]
async fn an_unusable_proxy_is_an_error_and_not_bypassed() {
    let web = Web::answering(|_| answer(200, &[], "direct")).await;
    // An address of this machine that does not count as loopback.
    let url = format!("http://0.0.0.0:{}/", web.address().port());
    for proxy in ["socks5://127.0.0.1:1", "http://127.0.0.1:1", "ftp://127.0.0.1:1", "no proxy"] {
        let server = without_proxies().env("http_proxy", proxy).start().await;
        let mut client = server.client().await;
        assert_eq!(refusal(&mut client, &url, json!({})).await.1, "connect", "{proxy}");
    }
    assert_eq!(web.connections(), 0);
}

#[tokio::test]
async fn a_proxy_that_opens_no_tunnel_is_distinguished_from_the_server_behind_it() {
    for (answers, reason) in [
        ("", "broke the connection"),
        ("SSH-2.0-OpenSSH\r\n\r\n", "does not speak HTTP"),
        ("HTTP/1.1 407 Who?\r\ncontent-length: 0\r\n\r\n", "refused to connect: status 407"),
        ("HTTP/1.1 302 Go\r\nlocation: http://127.0.0.1/\r\n\r\n", "status 302"),
        ("HTTP/1.1 200 OK\r\nx: endless", "does not speak HTTP"),
    ] {
        let proxy = Web::start(move |mut visit: Visit| async move {
            visit.request().await;
            visit.send(answers).await;
            while answers.ends_with("endless") && visit.send("y".repeat(1000)).await {}
        })
        .await;
        let url = format!("http://user:s3cret@{}", proxy.address());
        let server = without_proxies().env("https_proxy", &url).start().await;
        let mut client = server.client().await;
        let url = "https://far.test/path?s3cret";
        let (code, kind, message) = refusal(&mut client, url, json!({})).await;
        assert_eq!((code, kind.as_str()), (-32603, "connect"), "{message}");
        assert!(message.contains(reason), "{message}");
        assert!(message.contains(&proxy.address().to_string()), "{message}");
        assert!(!message.contains("s3cret"), "{message}");
        let asked = proxy.request();
        assert_eq!(asked.header("proxy-authorization"), Some("Basic dXNlcjpzM2NyZXQ="));
    }
}
