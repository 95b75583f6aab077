//! `exec-server forward`: connects harnesses with a server elsewhere.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use bytes::Bytes;
use exec_server::RelayConnectArgs;
use exec_server::client::TokenSource;
use exec_server_relay::registry_types::FORWARDED_FOR_HEADER as HEADER;
use exec_server_rendezvous::store::TokenRole;
use exec_server_testkit::executor::{ExecutorBuilder, Signal, TestExecutor};
use exec_server_testkit::fault_proxy::Ending;
use exec_server_testkit::harness::{client_over, receive, send};
use exec_server_testkit::http::upgrade;
use exec_server_testkit::isolation::free_address;
use exec_server_testkit::reference::{ClientTarget, ReferenceClient, Scenario, ToolCall};
use exec_server_testkit::remote::{connect, join_with, wait_for_presence};
use exec_server_testkit::{DEADLINE, FaultProxy, TestClient, TestHarness, TestRendezvous};
use futures_util::{SinkExt, StreamExt};
use serde_json::json;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_websockets::{CloseCode, Message, ServerBuilder, WebSocketStream};

use crate::client::reference::ReferenceServer;
use crate::reference_client::{DEADLINE as REFERENCE_DEADLINE, blocking};

#[tokio::test]
async fn a_harness_works_on_the_server_as_if_it_were_there() {
    let server = TestExecutor::start().await;
    let fixture = Fixture::start(server.url()).await;
    let mut client = fixture.harness.client().await;
    client.initialize().await;
    assert_eq!(client.sh("p", "echo through; exit 3").await.text(), "through\n");
    let output = client.sh("many", "head -c 20000000 /dev/zero | tr '\\0' x").await;
    assert_eq!(output.text().len(), 20_000_000);
    // Larger than any relay frame.
    let file = fixture.state.path().join("large");
    let uri = format!("file://{}", file.display());
    let params = json!({"path": uri, "dataBase64": "eHh4".repeat(4 << 20)});
    client.call("fs/writeFile", params).await.expect("it is written");
    assert_eq!(std::fs::metadata(&file).unwrap().len(), 3 * (4 << 20));
}

#[tokio::test]
async fn each_key_has_its_own_sessions_on_the_server() {
    let server = TestExecutor::start().await;
    let fixture = Fixture::start(server.url()).await;
    let other = TestHarness::new(fixture.rendezvous.url(), "env", &fixture.token);
    let mut first = fixture.harness.client().await;
    first.initialize().await;
    first.start("p", &["/bin/cat"], json!({"pipeStdin": true})).await.expect("it starts");
    let mut second = other.client().await;
    second.initialize().await;
    let mut local = server.client().await;
    let session = first.session_id.clone();
    assert_eq!(sessions(&mut first).await, [&*session]);
    assert_eq!(sessions(&mut second).await, [second.session_id.clone()]);
    assert_eq!(sessions(&mut local).await, [local.session_id.clone()]);
    drop(first);
    let direct = TestClient::connect(server.url()).await;
    for mut stranger in [other.client().await, direct] {
        let refused = stranger.resume(&session).await.expect_err("it is another's");
        assert!(refused["message"].as_str().unwrap().contains("unknown session"), "{refused}");
    }
    let mut again = fixture.harness.client().await;
    again.resume(&session).await.expect("it is its own");
    again.write("p", "w", "still\n").await.unwrap();
    again.wait_output("p", "still").await;
}

#[tokio::test]
async fn a_server_token_gives_no_harness_the_sessions_of_another() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token").display().to_string();
    std::fs::write(&file, "a-token-of-some-length-for-tests\n").unwrap();
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).unwrap();
    let server =
        TestExecutor::start_with(&["--ws-auth", "capability-token", "--ws-token-file", &file])
            .await;
    let fixture = Fixture::start_with(server.url(), &["--connect-token-file", &file]).await;
    let mut first = fixture.harness.client().await;
    first.initialize().await;
    let other = TestHarness::new(fixture.rendezvous.url(), "env", &fixture.token);
    let mut second = other.client().await;
    second.initialize().await;
    assert_eq!(sessions(&mut first).await, [first.session_id.clone()]);
    let authorization = [("authorization", "Bearer a-token-of-some-length-for-tests")];
    let mut direct = TestClient::try_connect(server.url(), &authorization).await.unwrap();
    let refused = direct.resume(&first.session_id).await.expect_err("it is another's");
    assert!(refused["message"].as_str().unwrap().contains("unknown session"), "{refused}");
    let token = ["--connect-token-file", file.as_str()];
    let state = folder.path();
    for (connect, more, answers) in [
        ("ws://192.0.2.1:1", token, "without TLS"),
        ("ws://127.0.0.1:1", ["--connect-token-file", "/dev/null"], "is empty"),
    ] {
        let builder = forward(connect, "http://127.0.0.1:7780", state, "t").args(&more);
        let (code, _, stderr) = builder.run().await;
        assert!(code == 1 && stderr.contains(answers) && stderr.lines().count() == 1, "{stderr}");
    }
}

#[tokio::test]
async fn the_forwarded_for_header_grants_nothing() {
    let server = TestExecutor::start().await;
    let mut unrestricted = server.client().await;
    let key = format!("SHA256:{}", "A".repeat(43));
    let narrowed = async || TestClient::try_connect(server.url(), &[(HEADER, &key)]).await.unwrap();
    let refused = narrowed().await.resume(&unrestricted.session_id.clone()).await;
    assert!(refused.is_err(), "{refused:?}");
    let mut narrowed = narrowed().await;
    narrowed.initialize().await;
    assert_eq!(sessions(&mut narrowed).await, [narrowed.session_id.clone()]);
    assert_eq!(sessions(&mut unrestricted).await, [unrestricted.session_id.clone()]);
    for wrong in [&[""][..], &["SHA256:"], &["somebody"], &[&key, &key]] {
        let headers: Vec<_> = wrong.iter().map(|value| (HEADER, *value)).collect();
        let reply = upgrade(server.url(), &headers).await;
        assert_eq!(reply.status, 400, "{wrong:?}: {reply:?}");
    }
}

#[tokio::test]
async fn the_server_may_be_the_reference() {
    let Some(server) = ReferenceServer::start().await else { return };
    let fixture = Fixture::start(&server.url).await;
    let source = TokenSource::fixed(fixture.token.clone());
    let client = connect(RelayConnectArgs::new(fixture.rendezvous.url(), "env", source)).await;
    let mut shell = client.command("/bin/sh");
    let output = shell.args(["-c", "echo through; exit 3"]).output().await.unwrap();
    assert_eq!((output.stdout_text().as_ref(), output.status.code()), ("through\n", 3));
    let output = client.command("seq").arg("200000").output().await.unwrap();
    assert_eq!(output.stdout_text().lines().count(), 200_000);
}

#[tokio::test]
async fn a_session_outlives_the_way_of_its_harness() {
    let server = TestExecutor::start().await;
    let fixture = Fixture::start(server.url()).await;
    let mut client = fixture.harness.client().await;
    client.initialize().await;
    let session = client.session_id.clone();
    client.start("p", &["/bin/cat"], json!({"pipeStdin": true})).await.expect("it starts");
    drop(client);
    let mut client = fixture.harness.client().await;
    // The server may not have noticed yet that the first one disconnected.
    let resumed = client.resume(&session).await;
    assert!(resumed.is_ok(), "{resumed:?}");
    client.write("p", "w", "still there\n").await.expect("it is written");
    client.wait_output("p", "still there").await;
}

#[tokio::test]
async fn a_server_that_cuts_ends_the_stream_and_the_next_one_gets_through() {
    let server = TestExecutor::start().await;
    let proxy = FaultProxy::to(server.url()).await;
    let fixture = Fixture::start(proxy.url()).await;
    for ending in [Ending::Reset, Ending::Close] {
        let mut client = fixture.harness.client().await;
        client.initialize().await;
        proxy.end_all(ending);
        assert!(client.raw_message().await.is_none_or(|message| message.is_err()));
    }
    let mut client = fixture.harness.client().await;
    client.initialize().await;
    assert_eq!(client.sh("p", "echo here").await.text(), "here\n");
}

#[tokio::test]
async fn messages_pass_as_they_are() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let fixture = Fixture::start(&format!("ws://{}", listener.local_addr().unwrap())).await;
    let (stream, mut server) = tokio::join!(fixture.harness.open(), accept(&listener));
    let mut stream = stream.unwrap();
    let odd = Bytes::from_static(&[0xff, 0, b'{', 0xfe]);
    send(&mut stream, odd.clone()).await.unwrap();
    let came = next(&mut server).await;
    assert!(came.is_binary(), "{came:?}");
    assert_eq!(came.as_payload()[..], odd);
    // A stream carries text and binary messages alike.
    for message in [Message::text("text"), Message::binary(odd.clone())] {
        let expected = Bytes::copy_from_slice(message.as_payload());
        server.send(message).await.unwrap();
        assert_eq!(receive(&mut stream).await.unwrap(), expected);
    }
}

#[tokio::test]
async fn messages_before_a_close_frame_arrive() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let fixture = Fixture::start(&format!("ws://{}", listener.local_addr().unwrap())).await;
    let (stream, mut server) = tokio::join!(fixture.harness.open(), accept(&listener));
    let mut client = client_over(stream.unwrap()).await;
    for number in 0..100 {
        server.send(Message::text(format!("{number}").repeat(10_000))).await.unwrap();
    }
    server.send(Message::close(Some(CloseCode::GOING_AWAY), "bye")).await.unwrap();
    for number in 0..100 {
        let came = client.raw_message().await.unwrap().unwrap();
        assert_eq!(came.as_payload()[..], *format!("{number}").repeat(10_000).as_bytes());
    }
    assert!(client.raw_message().await.is_none_or(|message| message.is_err()));
    let answer = next(&mut server).await;
    assert!(answer.is_close(), "the close frame is answered: {answer:?}");
}

#[tokio::test]
async fn a_harness_that_disconnects_closes_only_its_own_connection() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let fixture = Fixture::start(&format!("ws://{}", listener.local_addr().unwrap())).await;
    let (first, mut first_server) = tokio::join!(fixture.harness.open(), accept(&listener));
    let (second, mut second_server) = tokio::join!(fixture.harness.open(), accept(&listener));
    drop(first);
    // Without a close frame: a server keeps the session of a client that was cut off.
    let end = timeout(DEADLINE, first_server.next()).await.expect("it hears in time");
    assert!(end.is_none_or(|message| message.is_err()));
    let mut client = client_over(second.unwrap()).await;
    client.send_text("still here".to_owned()).await;
    assert_eq!(next(&mut second_server).await.as_payload()[..], *b"still here");
}

#[tokio::test]
async fn an_unreachable_server_is_reported_and_found_later() {
    let address = free_address();
    let mut fixture = Fixture::start(&format!("ws://{address}")).await;
    let stream = fixture.harness.open().await.expect("the forwarder itself is there");
    let mut client = client_over(stream).await;
    assert!(client.raw_message().await.is_none_or(|message| message.is_err()));
    let line = loop {
        let line = fixture.forward.next_stderr_line().await.expect("it says so");
        if line.contains("could not reach the server") {
            break line;
        }
    };
    assert!(line.contains(&address.to_string()) && line.contains("refused"), "{line}");
    // A server that starts while a harness waits is found without another stream.
    let (stream, listener) = tokio::join!(fixture.harness.open(), async {
        tokio::task::yield_now().await;
        TcpListener::bind(address).await.unwrap()
    });
    let mut server = accept(&listener).await;
    let mut client = client_over(stream.unwrap()).await;
    client.send_text("at last".to_owned()).await;
    assert_eq!(next(&mut server).await.as_payload()[..], *b"at last");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_reference_as_harness_runs_a_command_on_the_server() {
    for client in blocking(ReferenceClient::find_all).await {
        eprintln!("with the reference {}:", client.version());
        runs_a_command_on_the_server(client).await;
    }
}

async fn runs_a_command_on_the_server(client: ReferenceClient) {
    let server = TestExecutor::start().await;
    let fixture = Fixture::start(server.url()).await;
    let rendezvous = &fixture.rendezvous;
    wait_for_presence(rendezvous.url(), rendezvous.admin_token(), true).await;
    let (url, token) = (rendezvous.url().to_owned(), fixture.token.clone());
    let run = blocking(move || {
        let scenario = Scenario::new().turn([ToolCall::exec("hello", "echo forwarded; exit 3")]);
        let target = ClientTarget::Rendezvous { url: &url, environment: "env", token: &token };
        client.run_at(&target, scenario.say("done"), REFERENCE_DEADLINE)
    })
    .await;
    let hello = run.result("hello");
    assert_eq!((hello.exit_code, hello.output.as_str()), (Some(3), "forwarded\n"), "{hello:?}");
}

#[tokio::test]
async fn sigterm_closes_all_connections_and_exits_with_0() {
    let server = TestExecutor::start().await;
    let mut fixture = Fixture::start(server.url()).await;
    let mut client = fixture.harness.client().await;
    client.initialize().await;
    fixture.forward.signal(Signal::TERM);
    assert_eq!(fixture.forward.wait().await.code(), Some(0));
    assert!(client.raw_message().await.is_none_or(|message| message.is_err()));
    let rendezvous = &fixture.rendezvous;
    wait_for_presence(rendezvous.url(), rendezvous.admin_token(), false).await;
    let mut direct = server.client().await;
    assert_eq!(direct.sh("p", "echo it lives").await.text(), "it lives\n");
}

#[tokio::test]
async fn forward_failures_are_reported_in_one_line() {
    let state = tempfile::tempdir().unwrap();
    for (connect, url, answers) in [
        ("http://127.0.0.1:1", "http://127.0.0.1:7780", "--connect: unsupported scheme"),
        ("nowhere", "http://127.0.0.1:7780", "is no URL"),
        ("ws://127.0.0.1:1", "http://192.0.2.1:7780", "without TLS"),
    ] {
        let (code, stdout, stderr) = forward(connect, url, state.path(), "t").run().await;
        assert_eq!((code, stdout.as_str()), (1, ""), "{stderr}");
        assert!(stderr.contains(answers) && stderr.lines().count() == 1, "{stderr}");
    }
    for missing in ["--connect", "--remote", "--environment-id"] {
        let all = ["--connect", "ws://h", "--remote", "http://h", "--environment-id", "e"];
        let kept: Vec<_> = all.chunks(2).filter(|pair| pair[0] != missing).flatten().collect();
        let builder = TestExecutor::builder().args(&["forward"]);
        let (code, _, stderr) =
            builder.args(&kept.into_iter().copied().collect::<Vec<_>>()).run().await;
        assert!(code == 2 && stderr.contains(missing), "{code} {stderr}");
    }
}

/// A rendezvous, a forwarder registered there, and a harness.
struct Fixture {
    rendezvous: TestRendezvous,
    harness: TestHarness,
    token: String,
    forward: TestExecutor,
    state: tempfile::TempDir,
}

impl Fixture {
    async fn start(server: &str) -> Self {
        Self::start_with(server, &[]).await
    }

    async fn start_with(server: &str, more: &[&str]) -> Self {
        let rendezvous = TestRendezvous::start().await;
        let state = tempfile::tempdir().unwrap();
        let token = rendezvous.token(TokenRole::Executor, "env").await;
        let forward = forward(server, rendezvous.url(), state.path(), &token);
        let forward = forward.args(more).piped_stderr().spawn();
        let token = rendezvous.token(TokenRole::Harness, "env").await;
        let harness = TestHarness::new(rendezvous.url(), "env", &token);
        Self { rendezvous, harness, token, forward, state }
    }
}

fn forward(connect: &str, url: &str, state: &Path, token: &str) -> ExecutorBuilder {
    let builder = TestExecutor::builder().args(&["forward", "--connect", connect]);
    join_with(builder, url, state, token)
}

/// The ids of all sessions that a client can see.
async fn sessions(client: &mut TestClient) -> Vec<String> {
    let listed = client.call("session/list", json!({})).await.expect("it is told");
    let sessions = listed["sessions"].as_array().expect("a list");
    sessions.iter().map(|it| it["sessionId"].as_str().expect("an id").to_owned()).collect()
}

async fn accept(listener: &TcpListener) -> WebSocketStream<TcpStream> {
    let (link, _) = timeout(DEADLINE, listener.accept()).await.expect("it comes").unwrap();
    ServerBuilder::new().accept(link).await.expect("it asks for a websocket").1
}

async fn next(server: &mut WebSocketStream<TcpStream>) -> Message {
    timeout(DEADLINE, server.next()).await.expect("it comes in time").unwrap().unwrap()
}
