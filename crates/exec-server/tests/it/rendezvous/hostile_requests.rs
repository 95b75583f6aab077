//! Hostile requests from the network: slow, oversized, to unknown paths, with names that path syntax treats specially.

use std::time::Duration;

use exec_server_relay::frame::RelayBody;
use exec_server_rendezvous::store::TokenRole;
use exec_server_testkit::http::UPGRADE;
use exec_server_testkit::rendezvous::{public_key, register_body, upgrade_at};
use exec_server_testkit::{DEADLINE, Relayed, TestRendezvous};
use futures_util::future::join_all;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{env, refusal, url};

#[tokio::test]
async fn a_request_that_never_ends_is_closed_and_writes_nothing() {
    let rendezvous = TestRendezvous::start_with(|config| {
        config.timings.handshake = Duration::from_secs(1);
    })
    .await;
    let env = env(&rendezvous, "env").await;
    let authorization = format!("authorization: Bearer {}\r\n", env.executor);
    let head = "POST /cloud/environment/env/register HTTP/1.1\r\nhost: x\r\n";
    let body = "content-length: 2000\r\n\r\n{\"security_profile\":";
    let cases = [
        (String::new(), ""),
        ("POST /cloud/envir".to_owned(), ""),
        (format!("{head}{authorization}"), ""),
        (format!("{head}{authorization}{body}"), "registration_conflict"),
    ];
    let address = rendezvous.address();
    join_all(cases.map(async |(said, answer)| {
        let mut stranger = TcpStream::connect(address).await.unwrap();
        stranger.write_all(said.as_bytes()).await.unwrap();
        let mut heard = String::new();
        let heard_all = tokio::time::timeout(DEADLINE, stranger.read_to_string(&mut heard)).await;
        heard_all.expect("it is let go").unwrap_or_default();
        assert!(heard.contains(answer), "{said}: {heard}");
    }))
    .await;
    let stored = rendezvous.store().environment("env".to_owned()).await.unwrap().unwrap();
    assert_eq!(stored.generation, 0);
}

#[tokio::test]
async fn names_that_mean_something_to_a_path_lead_nowhere_else() {
    let rendezvous = TestRendezvous::start().await;
    let env = env(&rendezvous, "env").await;
    let long = "x".repeat(129);
    let body = register_body(&public_key(1));
    for id in [
        "..%2F..%2Fadmin",
        "%2e%2e",
        "%2E%2E%2Fenv",
        "env%2F..%2Fenv",
        "env%00",
        "env%0d%0ax-header:%201",
        "%20env",
        "env%3Fx=1",
        "%25",
        &long,
    ] {
        for action in ["register", "connect", "validate"] {
            let token = if action == "connect" { &env.harness } else { &env.executor };
            let reply = rendezvous.post(&format!("{id}/{action}"), token, &body).await;
            assert_eq!(refusal(&reply), (403, "forbidden".to_owned()), "{id}");
            assert_eq!(reply.header("x-header"), None);
        }
        let wanted = json!({"role": "executor", "environment": decoded(id)});
        let reply =
            rendezvous.ask("POST", "/admin/tokens", rendezvous.admin_token(), &wanted).await;
        assert_eq!(refusal(&reply), (400, "invalid_request".to_owned()), "{id}");
        let change = json!({"policy": "first-wins"});
        let path = format!("/admin/environments/{id}");
        assert_eq!(
            rendezvous.ask("PATCH", &path, rendezvous.admin_token(), &change).await.status,
            404,
            "{id}"
        );
    }
    // Peers of this protocol encode nothing, and `..` in a path has no meaning.
    for path in ["/cloud/environment/../admin/tokens", "/cloud/environment/env/../env/register"] {
        let reply = rendezvous.ask("POST", path, rendezvous.admin_token(), &body).await;
        assert_eq!(refusal(&reply), (404, "not_found".to_owned()), "{path}");
    }
}

#[tokio::test]
async fn unknown_routes_and_methods_are_rejected() {
    let rendezvous = TestRendezvous::start().await;
    for path in [
        "/",
        "/cloud",
        "/cloud/environment/env",
        "/cloud/environment/env/register/",
        "/cloud/environment/env/lease",
        "/cloud/environment/%ff/register",
        "/cloud/executor/env/register",
        "/admin",
        "/admin/tokens/a/b",
        "/cloud-agent/other/ws/environment/env",
    ] {
        let reply = rendezvous.ask("POST", path, rendezvous.admin_token(), &Value::Null).await;
        assert_eq!(refusal(&reply), (404, "not_found".to_owned()), "{path}");
    }
    for (path, allowed) in [
        ("/cloud/environment/env/register", "POST"),
        ("/cloud/environment/env/connect", "POST"),
        ("/cloud/environment/env/validate", "POST"),
        ("/admin/tokens", "GET,POST"),
        ("/admin/tokens/tok_1", "DELETE"),
        ("/admin/environments", "GET"),
        ("/admin/environments/env", "PATCH,DELETE"),
        ("/readyz", "GET,HEAD"),
    ] {
        let reply = rendezvous.ask("PUT", path, rendezvous.admin_token(), &Value::Null).await;
        assert_eq!(refusal(&reply), (405, "method_not_allowed".to_owned()), "{path}");
        assert_eq!(reply.header("allow"), Some(allowed));
    }
    let path = "/cloud-agent/default/ws/environment/env";
    let reply = rendezvous.ask("GET", path, rendezvous.admin_token(), &Value::Null).await;
    assert_eq!(reply.status, 400, "not a websocket");
}

#[tokio::test]
async fn of_concurrent_uses_of_one_connect_url_one_succeeds() {
    let rendezvous = TestRendezvous::start().await;
    let env = env(&rendezvous, "env").await;
    let _executor = env.executor(&rendezvous).await;
    let bundle = rendezvous.connect("env", &env.harness, &public_key(2)).await;
    let replies = join_all((0..16).map(|_| upgrade_at(url(&bundle)))).await;
    let arrived = replies.iter().filter(|reply| reply.status == 101).count();
    let refused = replies.iter().filter(|reply| reply.status == 401).count();
    assert_eq!((arrived, refused), (1, 15));
    let line = "exec_server_relay_rejections_total{reason=\"expired\"} 15";
    rendezvous.wait_for_metric(line).await;
}

#[tokio::test]
async fn a_websocket_that_does_not_become_one_keeps_no_place() {
    let rendezvous = TestRendezvous::start_with(|config| {
        config.timings.handshake = Duration::from_secs(1);
        config.timings.claim = Duration::from_secs(1);
    })
    .await;
    let env = env(&rendezvous, "env").await;
    let _executor = env.executor(&rendezvous).await;
    let upgrade = UPGRADE.map(|(name, value)| format!("{name}: {value}\r\n")).concat();
    let mut strangers = Vec::new();
    for body in ["content-length: 100\r\n\r\n", "transfer-encoding: chunked\r\n\r\n5\r\nab"] {
        let bundle = rendezvous.connect("env", &env.harness, &public_key(2)).await;
        let (_, path) = url(&bundle).split_once("/cloud-agent").unwrap();
        let mut stranger = TcpStream::connect(rendezvous.address()).await.unwrap();
        let head = format!("GET /cloud-agent{path} HTTP/1.1\r\nhost: x\r\n{upgrade}{body}");
        stranger.write_all(head.as_bytes()).await.unwrap();
        let mut heard = [0; 12];
        stranger.read_exact(&mut heard).await.unwrap();
        assert_eq!(&heard, b"HTTP/1.1 101");
        strangers.push(stranger);
    }
    rendezvous.wait_for_metric("exec_server_relay_streams_active 0").await;
}

#[tokio::test]
async fn the_largest_message_passes_and_one_more_byte_does_not() {
    const LARGEST: usize = 262_144;
    let rendezvous = TestRendezvous::start().await;
    let env = env(&rendezvous, "env").await;
    let mut executor = env.executor(&rendezvous).await;
    let mut harness = env.harness(&rendezvous).await;
    harness.resume("s").await;
    executor.expect("s", RelayBody::Resume { next_seq: 0 }).await;
    let payload = LARGEST - (frame(LARGEST).len() - LARGEST);
    let exact = frame(payload);
    assert_eq!(exact.len(), LARGEST);
    harness.send_bytes(exact.clone()).await;
    assert_eq!(executor.next_data().await.1.len(), payload);
    executor.send_bytes(exact).await;
    assert_eq!(harness.next_data().await.1.len(), payload);

    harness.send_bytes(frame(payload + 1)).await;
    assert!(matches!(harness.next().await, Relayed::Closed(1009, _)));
    let Relayed::Frame(reset) = executor.next().await else { panic!("the executor stays") };
    assert!(matches!(reset.body, RelayBody::Reset { .. }), "{reset:?}");
    let mut harness = env.harness(&rendezvous).await;
    harness.resume("s").await;
    executor.expect("s", RelayBody::Resume { next_seq: 0 }).await;
    executor.send_bytes(frame(payload + 1)).await;
    assert!(matches!(executor.next().await, Relayed::Closed(1009, _)));
    harness.expect_closed(1012, "executor_gone").await;
}

#[tokio::test]
async fn pings_are_answered() {
    let rendezvous = TestRendezvous::start().await;
    let env = env(&rendezvous, "env").await;
    let mut executor = env.executor(&rendezvous).await;
    executor.ping().await;
    let mut harness = env.harness(&rendezvous).await;
    harness.ping().await;
}

#[tokio::test]
async fn a_token_opens_only_its_own_place_whatever_else_is_right() {
    let rendezvous = TestRendezvous::start().await;
    let one = env(&rendezvous, "one").await;
    let two = env(&rendezvous, "two").await;
    let _executor = one.executor(&rendezvous).await;
    let bundle = rendezvous.connect("one", &one.harness, &public_key(2)).await;
    let validate = super::registry::validate_body(&bundle, 2);
    let reply = rendezvous.post("one/validate", &two.executor, &validate).await;
    assert_eq!(refusal(&reply), (403, "forbidden".to_owned()));
    assert!(!super::registry::valid(&rendezvous, &two, &validate).await);
    let unknown = rendezvous.token(TokenRole::Executor, "three").await;
    let reply = rendezvous.post("one/validate", &unknown, &validate).await;
    assert_eq!(refusal(&reply), (403, "forbidden".to_owned()));
    for (code, count) in [("other_environment", 1), ("forbidden", 2)] {
        let labels = format!("{{method=\"validate\",code=\"{code}\"}}");
        let line = format!("exec_server_request_refusals_total{labels} {count}");
        rendezvous.wait_for_metric(&line).await;
    }
    assert!(super::registry::valid(&rendezvous, &one, &validate).await, "nothing used it up");
}

fn decoded(id: &str) -> String {
    percent_encoding::percent_decode_str(id).decode_utf8().unwrap().into_owned()
}

/// A record of stream `s` with this many bytes.
fn frame(bytes: usize) -> Vec<u8> {
    use exec_server_relay::frame::{RelayData, RelayFrame};
    let payload = vec![7; bytes].into();
    let data = RelayData { seq: 0, segment_index: 0, segment_count: 1, payload };
    RelayFrame::new("s", RelayBody::Data(data)).encode()
}
