//! Start, shutdown and crashes of a rendezvous.

use exec_server_relay::frame::RelayBody;
use exec_server_testkit::http::{HttpConnection, UPGRADE};
use exec_server_testkit::rendezvous::public_key;
use exec_server_testkit::{RelaySocket, TestRendezvous};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::env;

#[tokio::test]
async fn a_rendezvous_that_stops_sends_a_close_frame_to_every_socket() {
    let mut rendezvous = TestRendezvous::start().await;
    let env = env(&rendezvous, "env").await;
    let mut executor = env.executor(&rendezvous).await;
    let mut harness = env.harness(&rendezvous).await;
    harness.resume("s").await;
    executor.expect("s", RelayBody::Resume { next_seq: 0 }).await;
    let mut waiting = HttpConnection::open(rendezvous.url()).await;
    assert_eq!(waiting.request("GET", "/readyz", &[]).await.status, 200);
    rendezvous.begin_stop();
    executor.expect_closed(1001, "draining").await;
    // The executor may be closed first; the harness then gets that as the reason.
    match harness.next().await {
        exec_server_testkit::Relayed::Closed(1001 | 1012, _) => {}
        other => panic!("{other:?}"),
    }
    drop((executor, harness, waiting));
    rendezvous.stop().await;
}

#[tokio::test]
async fn requests_during_shutdown_are_rejected_as_retryable() {
    let mut rendezvous = TestRendezvous::start().await;
    let env = env(&rendezvous, "env").await;
    let registered = rendezvous.register("env", &env.executor, &public_key(1)).await;
    let mut executor = RelaySocket::open(super::url(&registered)).await;
    let response = rendezvous.connect("env", &env.harness, &public_key(2)).await;
    let websocket = |answer: &serde_json::Value| {
        let (_, path) = super::url(answer).split_once("/cloud-agent").expect("it is below that");
        let upgrade = UPGRADE.map(|(name, value)| format!("{name}: {value}\r\n")).concat();
        format!("GET /cloud-agent{path} HTTP/1.1\r\nhost: localhost\r\n{upgrade}")
    };
    let connect = "POST /cloud/environment/env/connect HTTP/1.1\r\nhost: localhost\r\n";
    let mut asking = Vec::new();
    let ready = "GET /readyz HTTP/1.1\r\nhost: localhost\r\n";
    for head in [websocket(&registered), websocket(&response), connect.to_owned(), ready.to_owned()]
    {
        let mut socket = TcpStream::connect(rendezvous.address()).await.unwrap();
        socket.write_all(head.as_bytes()).await.unwrap();
        asking.push(socket);
    }
    // Including the one that asks.
    rendezvous.wait_for_metric("exec_server_connections_active 6").await;
    rendezvous.begin_stop();
    executor.expect_closed(1001, "draining").await;
    let mut answers = Vec::new();
    for mut socket in asking {
        socket.write_all(b"content-length: 0\r\n\r\n").await.unwrap();
        let mut answer = String::new();
        socket.read_to_string(&mut answer).await.unwrap();
        answers.push(answer);
    }
    // An executor reconnects to the same URL; a harness gives up on every status but 401, on which it sends a new
    // connect request.
    for (answer, status) in [(&answers[0], 503), (&answers[1], 401)] {
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
        assert!(answer.contains("x-codex-rendezvous-rejection-reason: pod_draining"), "{answer}");
    }
    assert!(answers[2].starts_with("HTTP/1.1 503 "), "{answers:?}");
    assert!(answers[3].starts_with("HTTP/1.1 503 "), "{answers:?}");
    assert!(answers[2].contains("the rendezvous is shutting down; retry"), "{answers:?}");
    drop(executor);
    rendezvous.stop().await;
}

#[cfg(unix)]
#[tokio::test]
async fn after_a_crash_an_executor_reconnects_with_its_url() {
    use super::commands::Program;
    let data = tempfile::tempdir().unwrap();
    let mut program = Program::start(data.path(), "http://127.0.0.1:0").await;
    let address = program.url.clone();
    let admin = program.admin_token.clone().expect("the first start makes one");
    let executor = program.token("executor").await;
    let harness = program.token("harness").await;
    let key = public_key(1);
    let registered = program.register(&executor, &key).await;
    let socket = RelaySocket::open(super::url(&registered)).await;
    program.kill().await;
    drop(socket);
    let program = Program::start(data.path(), &address).await;
    assert_eq!((program.url.as_str(), program.admin_token.as_ref()), (address.as_str(), None));
    let mut socket = RelaySocket::open(super::url(&registered)).await;
    let bundle = program.connect(&harness, &key).await;
    let mut stream = RelaySocket::open(super::url(&bundle)).await;
    stream.resume("s").await;
    socket.expect("s", RelayBody::Resume { next_seq: 0 }).await;
    assert!(!admin.is_empty());
}

#[cfg(unix)]
#[tokio::test]
async fn sigterm_ends_it_in_order_and_with_0() {
    use super::commands::Program;
    let data = tempfile::tempdir().unwrap();
    let mut program = Program::start(data.path(), "http://127.0.0.1:0").await;
    let executor = program.token("executor").await;
    let key = public_key(1);
    let registered = program.register(&executor, &key).await;
    let mut socket = RelaySocket::open(super::url(&registered)).await;
    program.terminate();
    socket.expect_closed(1001, "draining").await;
    drop(socket);
    assert_eq!(program.wait().await, Some(0));
}

#[cfg(unix)]
#[tokio::test]
async fn only_the_owner_can_read_the_data_directory() {
    use std::os::unix::fs::PermissionsExt;

    use super::commands::Program;
    let data = tempfile::tempdir().unwrap();
    let data_dir = data.path().join("new");
    let program = Program::start(&data_dir, "http://127.0.0.1:0").await;
    program.token("executor").await;
    let mode =
        |path: &std::path::Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&data_dir), 0o700);
    let names: Vec<_> =
        std::fs::read_dir(&data_dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(names.len() >= 2, "{names:?}");
    for name in names {
        assert_eq!(mode(&name), 0o600, "{}", name.display());
    }
}
