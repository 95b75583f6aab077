//! Redirects.

use exec_server_testkit::Web;
use exec_server_testkit::web::answer;
use serde_json::json;

use super::{body, deltas, refusal, request, server, without_proxies};

/// `/STATUS/TARGET` redirects to the target, whose slashes are written as `|`; other paths answer 200.
async fn pointing() -> Web {
    Web::answering(|request| {
        let mut parts = request.target.splitn(3, '/').skip(1);
        let status = parts.next().and_then(|status| status.parse().ok());
        match (status, parts.next()) {
            (Some(status), Some(target)) => {
                answer(status, &[("Location", &target.replace('|', "/"))], "elsewhere")
            }
            _ => answer(200, &[], "here"),
        }
    })
    .await
}

#[tokio::test]
async fn a_redirect_is_followed_with_the_method_and_body_that_it_leaves() {
    let server = server().await;
    let mut client = server.client().await;
    for (status, method, then) in [
        (301, "POST", "GET"),
        (302, "POST", "GET"),
        (303, "POST", "GET"),
        (302, "PUT", "PUT"),
        (303, "PUT", "GET"),
        (307, "POST", "POST"),
        (308, "POST", "POST"),
    ] {
        let web = pointing().await;
        let more = json!({
            "method": method, "bodyBase64": "aGk=",
            "headers": [{"name": "content-type", "value": "text/plain"}, {"name": "x-kept", "value": "1"}],
        });
        let answer =
            request(&mut client, &web.url(&format!("/{status}/|end?q=1")), more).await.unwrap();
        assert_eq!(body(&answer), "here");
        assert_eq!(answer["finalUrl"], web.url("/end?q=1"));
        let last = web.requests().pop().unwrap();
        assert_eq!((last.method.as_str(), last.target.as_str()), (then, "/end?q=1"), "{status}");
        let has_body = then != "GET";
        assert_eq!(last.body, if has_body { b"hi".to_vec() } else { Vec::new() });
        assert_eq!(last.header("content-type").is_some(), has_body);
        assert_eq!(last.header("content-length"), has_body.then_some("2"));
        assert_eq!(last.header("x-kept"), Some("1"));
        assert_eq!(last.header("referer"), Some(web.url(&format!("/{status}/|end?q=1")).as_str()));
    }
}

#[tokio::test]
async fn with_redirect_policy_stop_the_redirect_is_returned() {
    let (server, web) = (server().await, pointing().await);
    let mut client = server.client().await;
    let stop = json!({"redirectPolicy": "stop"});
    let answer = request(&mut client, &web.url("/302/|end"), stop).await.unwrap();
    assert_eq!((answer["status"].as_u64(), body(&answer).as_str()), (Some(302), "elsewhere"));
    assert_eq!(answer["headers"][0], json!({"name": "location", "value": "/end"}));
    assert_eq!(answer.get("finalUrl"), None);

    let stop = json!({"redirectPolicy": "stop", "streamResponse": true});
    request(&mut client, &web.url("/302/|end"), stop).await.unwrap();
    assert_eq!(deltas(&mut client, "r").await.0, [b"elsewhere"]);
    let follow = json!({"streamResponse": true});
    request(&mut client, &web.url("/302/|end"), follow).await.unwrap();
    assert_eq!(deltas(&mut client, "r").await.0, [b"here"]);
}

#[tokio::test]
async fn ten_redirects_are_followed_and_no_more() {
    let server = server().await;
    let web = Web::answering(|request| {
        let left: u32 = request.target[1..].parse().unwrap();
        match left {
            0 => answer(200, &[], "arrived"),
            left => answer(307, &[("location", &format!("/{}", left - 1))], ""),
        }
    })
    .await;
    let mut client = server.client().await;
    let reached = request(&mut client, &web.url("/10"), json!({})).await.unwrap();
    assert_eq!(body(&reached), "arrived");
    let (code, kind, message) = refusal(&mut client, &web.url("/11"), json!({})).await;
    assert_eq!((code, kind.as_str()), (-32603, "redirect"));
    assert!(message.contains("too many redirects"), "{message}");
    assert_eq!(web.requests().len(), 22);
    assert_eq!(web.connections(), 1, "one connection does for all");
}

#[tokio::test]
async fn secrets_do_not_cross_to_another_origin() {
    let server = without_proxies().env("HTTP_TEST_TOKEN", "s3cret").start().await;
    let (web, other) = (pointing().await, pointing().await);
    let mut client = server.client().await;
    let headers = json!([
        {"name": "cookie", "value": "c"},
        {"name": "x-key", "value": "", "valueEnvVar": "HTTP_TEST_TOKEN"},
        {"name": "host", "value": "virtual.example"},
        {"name": "x-kept", "value": "1"},
    ]);
    let target = other.url("|end?q=2").replace('/', "|");
    let from = web.url(&format!("/302/{target}")).replace("://", "://u:p@");
    let answer = request(&mut client, &from, json!({"headers": headers})).await.unwrap();
    assert_eq!(body(&answer), "here");
    let first = web.request();
    assert_eq!(first.header("authorization"), Some("Basic dTpw"));
    assert_eq!(first.header("x-key"), Some("s3cret"));
    assert_eq!(first.header("host"), Some("virtual.example"));
    let last = other.request();
    let mut names = last.names();
    names.sort_unstable();
    assert_eq!(names, ["accept", "host", "referer", "x-kept"]);
    assert_eq!(last.header("host"), Some(other.address().to_string().as_str()));
    assert_eq!(last.header("referer"), Some(web.url("/").as_str()));
}

#[tokio::test]
async fn a_redirect_to_nowhere_is_an_error_or_an_answer() {
    let (server, web) = (server().await, pointing().await);
    let mut client = server.client().await;
    let (code, kind, message) = refusal(&mut client, &web.url("/302/ftp:||x|"), json!({})).await;
    assert_eq!((code, kind.as_str()), (-32603, "redirect"));
    assert_eq!(message, "http/request failed: redirect target uses unsupported URL scheme: ftp");
    for path in ["/302/http:||[::", "/300/|end", "/304/|end"] {
        let answer = request(&mut client, &web.url(path), json!({})).await;
        let status = path[1..4].parse::<u64>().unwrap();
        assert_eq!(answer.unwrap()["status"].as_u64(), Some(status), "{path}");
    }
}

#[tokio::test]
async fn a_redirect_may_be_written_in_any_way_that_leads_somewhere() {
    let server = server().await;
    let mut client = server.client().await;
    for (location, end) in [
        ("end", "/a/end"),
        ("../end", "/end"),
        ("././../end?a=b", "/end?a=b"),
        ("?only=query", "/a/from?only=query"),
        ("/end#part", "/end"),
        ("/\u{fc}", "/%C3%BC"),
        ("//HOST/end", "/end"),
        ("HTTP://HOST", "/"),
        ("http://somebody:s3cret@HOST/end", "/end"),
    ] {
        let web = Web::answering(move |request| match request.target.as_str() {
            "/a/from" => {
                let location = location.replace("HOST", request.header("host").unwrap());
                answer(302, &[("location", &location)], "")
            }
            _ => answer(200, &[], "here"),
        })
        .await;
        let reply = request(&mut client, &web.url("/a/from"), json!({})).await.unwrap();
        let last = web.requests().pop().unwrap();
        assert_eq!((body(&reply).as_str(), last.target.as_str()), ("here", end), "{location}");
        assert_eq!(last.header("authorization"), None, "{location}");
        assert!(reply["finalUrl"].as_str().unwrap().starts_with(&web.url(end)), "{reply}");
    }
    let web = Web::answering(|_| answer(302, &[("location", "")], "")).await;
    let (_, kind, message) = refusal(&mut client, &web.url("/"), json!({})).await;
    assert_eq!(kind, "redirect", "it points to itself: {message}");
}

#[tokio::test]
async fn a_redirect_leads_out_of_the_web_nowhere() {
    let server = server().await;
    let mut client = server.client().await;
    for location in [
        "file:///etc/passwd",
        "FILE:/etc/passwd",
        "data:text/plain,x",
        "javascript:alert(1)",
        "gopher://127.0.0.1/x",
        "ws://127.0.0.1/",
        "unix:/run/x.sock",
        "mailto:a@b",
    ] {
        let web = Web::answering(move |_| answer(307, &[("location", location)], "")).await;
        let (code, kind, message) = refusal(&mut client, &web.url("/?s3cret"), json!({})).await;
        assert_eq!((code, kind.as_str()), (-32603, "redirect"), "{location}: {message}");
        assert!(message.contains("unsupported URL scheme"), "{message}");
        assert!(!message.contains("s3cret") && !message.contains("passwd"), "{message}");
        assert_eq!(web.requests().len(), 1);
    }
}

#[tokio::test]
async fn a_redirect_that_cannot_be_read_is_left_to_the_client_with_its_bytes() {
    let server = server().await;
    let mut client = server.client().await;
    let web = Web::answering(|_| {
        b"HTTP/1.1 302 Go\r\nLocation: /\xff\xfe\r\nContent-Length: 0\r\n\r\n".to_vec()
    })
    .await;
    let reply = request(&mut client, &web.url("/"), json!({})).await.unwrap();
    assert_eq!(reply["status"], 302);
    assert_eq!(
        reply["headers"][0],
        json!({"name": "location", "value": "/ÿþ", "valueBase64": "L//+"})
    );
    let web = Web::answering(|_| answer(302, &[], "nowhere")).await;
    let reply = request(&mut client, &web.url("/"), json!({})).await.unwrap();
    assert_eq!((reply["status"].as_u64(), body(&reply).as_str()), (Some(302), "nowhere"));
}

#[tokio::test]
async fn the_body_of_a_redirect_is_not_waited_for() {
    let server = server().await;
    let mut client = server.client().await;
    let web = Web::start(|mut visit| async move {
        while let Some(request) = visit.request().await {
            if request.target == "/end" {
                visit.send(answer(200, &[], request.method)).await;
                continue;
            }
            visit.send("HTTP/1.1 303 Go\r\nLocation: /end\r\nContent-Length: 9999\r\n\r\nx").await;
            visit.closed().await;
            return;
        }
    })
    .await;
    let answer = request(&mut client, &web.url("/"), json!({"method": "PATCH"})).await.unwrap();
    assert_eq!(body(&answer), "GET");
    let more = json!({"method": "HEAD"});
    let answer = request(&mut client, &web.url("/"), more).await.unwrap();
    assert_eq!(
        (answer["status"].as_u64(), &answer["finalUrl"]),
        (Some(200), &json!(web.url("/end")))
    );
    assert_eq!(web.requests().pop().unwrap().method, "HEAD");
}
