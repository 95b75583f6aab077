//! A real server behind a proxy that cuts, stalls and half-closes connections.

use std::time::Duration;

use exec_server::{
    ExecServerClient, ExecServerError, ProcessEvent, RemoteExecServerConnectArgs, Stdin,
};
use exec_server_testkit::fault_proxy::Toward;
use exec_server_testkit::{DEADLINE, FaultProxy, TestExecutor, eventually};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::time::timeout;

async fn behind_a_cable() -> (TestExecutor, FaultProxy, ExecServerClient) {
    let server = TestExecutor::start().await;
    let proxy = FaultProxy::to(server.url()).await;
    let client = ExecServerClient::connect(proxy.url()).await.expect("the server answers");
    (server, proxy, client)
}

#[tokio::test]
async fn an_interactive_process_continues_across_a_cut() {
    let (_server, proxy, client) = behind_a_cable().await;
    let session_id = client.session_id();
    let mut child = client.command("cat").stdin(Stdin::Piped).spawn().await.unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    for number in 0..20 {
        if number % 5 == 2 {
            proxy.cut();
        }
        stdin.write_all(format!("line {number}\n").as_bytes()).await.unwrap();
        let mut line = String::new();
        timeout(DEADLINE, stdout.read_line(&mut line)).await.unwrap().unwrap();
        assert_eq!(line, format!("line {number}\n"));
    }
    assert_eq!(client.session_id(), session_id);
    drop(stdin);
    assert!(child.wait().await.unwrap().success());
    assert!(proxy.connections() >= 5);
}

#[tokio::test]
async fn output_of_a_detached_process_arrives_once_and_in_order() {
    let (_server, proxy, client) = behind_a_cable().await;
    let mut child = client
        .command("sh")
        .args(["-c", "echo ready; read go; seq 20000; echo err >&2; exit 4"])
        .stdin(Stdin::Piped)
        .spawn()
        .await
        .unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    stdout.read_line(&mut line).await.unwrap();
    child.session().write(b"go\n").await.unwrap();
    proxy.unplug();
    proxy.wait_for_refused(2).await;
    proxy.plug_in();
    let mut rest = String::new();
    timeout(DEADLINE, stdout.read_to_string(&mut rest)).await.unwrap().unwrap();
    let expected: String = (1..=20_000).map(|number| format!("{number}\n")).collect();
    assert!(rest == expected);
    assert_eq!(child.wait().await.unwrap().code(), 4);
    let mut err = String::new();
    child.stderr.take().unwrap().read_to_string(&mut err).await.unwrap();
    assert_eq!(err, "err\n");
}

#[tokio::test]
async fn output_that_fell_out_of_retention_is_reported_and_the_process_continues() {
    let (_server, proxy, client) = behind_a_cable().await;
    let folder = tempfile::tempdir().unwrap();
    let (go, done) = (folder.path().join("go"), folder.path().join("done"));
    let script = format!(
        "echo ready; until [ -e {} ]; do sleep 0.01; done; seq 100000; : > {}; read x; echo $x",
        go.display(),
        done.display()
    );
    let mut command = client.command("sh");
    command.args(["-c", &script]).stdin(Stdin::Piped).output_retention(1000);
    let child = command.spawn().await.unwrap();
    let session = child.session().clone();
    let mut events = session.events();
    assert!(matches!(events.next().await, Some(ProcessEvent::Output { .. })));
    proxy.unplug();
    proxy.wait_for_refused(1).await;
    std::fs::write(&go, "").unwrap();
    eventually("the process has written everything", || done.exists()).await;
    proxy.plug_in();
    session.write(b"alive\n").await.unwrap();
    let mut has_gap = false;
    let mut tail = Vec::new();
    while !tail.ends_with(b"alive\n") {
        match timeout(DEADLINE, events.next()).await.expect("it comes in time") {
            Some(ProcessEvent::Gap(_)) => has_gap = true,
            Some(ProcessEvent::Output { bytes, .. }) => tail.extend_from_slice(&bytes),
            Some(ProcessEvent::ResyncRequired) => {}
            event => panic!("{event:?}"),
        }
    }
    assert!(has_gap);
    assert!(session.failure().is_none());
}

/// Both ends keep a dead connection open; only the client's pings detect it.
#[tokio::test]
async fn a_stalled_link_is_detected_and_replaced() {
    let server = TestExecutor::start().await;
    let proxy = FaultProxy::to(server.url()).await;
    let mut args = RemoteExecServerConnectArgs::new(proxy.url());
    args.options.ping_interval = Duration::from_millis(50);
    args.options.ping_timeout = Duration::from_millis(200);
    let client = ExecServerClient::connect(args).await.unwrap();
    let session_id = client.session_id();
    let mut child = client.command("cat").stdin(Stdin::Piped).spawn().await.unwrap();
    proxy.stall_open_connections();
    let session = child.session().clone();
    let mut events = session.events();
    let resync = timeout(DEADLINE, events.next()).await.expect("it is noticed");
    assert_eq!(resync, Some(ProcessEvent::ResyncRequired));
    timeout(DEADLINE, session.write(b"hello\n")).await.unwrap().unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    timeout(DEADLINE, stdout.read_line(&mut line)).await.unwrap().unwrap();
    assert_eq!((line.as_str(), client.session_id()), ("hello\n", session_id));
    assert!(proxy.connections() > 1);
}

#[tokio::test]
async fn an_idle_client_notices_a_dead_link_too() {
    let server = TestExecutor::start().await;
    let proxy = FaultProxy::to(server.url()).await;
    let mut args = RemoteExecServerConnectArgs::new(proxy.url());
    args.options.ping_interval = Duration::from_millis(50);
    args.options.ping_timeout = Duration::from_millis(200);
    let client = ExecServerClient::connect(args).await.unwrap();
    proxy.stall(Toward::Server);
    let connection = client.remote().session().live_connection().unwrap();
    let reason = timeout(DEADLINE, connection.closed()).await.expect("it is noticed");
    assert_eq!(&*reason, "the server did not answer a ping in time");
    proxy.resume();
    let output = timeout(DEADLINE, client.command("echo").arg("hello").output()).await.unwrap();
    assert_eq!(output.unwrap().stdout_text(), "hello\n");
}

#[tokio::test]
async fn a_half_closed_link_is_replaced() {
    let (_server, proxy, client) = behind_a_cable().await;
    for toward in [Toward::Client, Toward::Server] {
        let before = proxy.connections();
        proxy.half_close(toward);
        timeout(DEADLINE, proxy.wait_for_connections(before + 1)).await.unwrap();
        let output = client.command("echo").arg("hello").output().await.unwrap();
        assert_eq!(output.stdout_text(), "hello\n");
    }
}

#[tokio::test]
async fn a_server_that_forgot_the_session_costs_the_old_processes_only() {
    let server = TestExecutor::start_with(&["--session-linger", "0s"]).await;
    let proxy = FaultProxy::to(server.url()).await;
    let client = ExecServerClient::connect(proxy.url()).await.unwrap();
    let child = client.command("sleep").arg("1000").spawn().await.unwrap();
    let old = client.session_id().unwrap();
    proxy.unplug();
    proxy.wait_for_refused(1).await;
    proxy.plug_in();
    let error = timeout(DEADLINE, child.session().wait()).await.unwrap().unwrap_err();
    assert!(error.to_string().contains("unknown session id"), "{error}");
    let output = client.command("echo").arg("hello").output().await.unwrap();
    assert_eq!(output.stdout_text(), "hello\n");
    assert_ne!(client.session_id(), Some(old));
}

#[tokio::test]
async fn a_streamed_file_ends_with_an_error_when_the_link_breaks() {
    let (_server, proxy, client) = behind_a_cable().await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("large");
    std::fs::write(&path, vec![7; 20 * 1024 * 1024]).unwrap();
    let mut stream = client.fs().read_file_stream(&path).await.unwrap();
    stream.next_block().await.unwrap().unwrap();
    proxy.cut();
    let mut rest = Vec::new();
    let error = stream.read_to_end(&mut rest).await.expect_err("it is not complete");
    assert_eq!(error.kind(), std::io::ErrorKind::BrokenPipe);
    assert!(rest.len() < 20 * 1024 * 1024);
    let error = match client.fs().read_file("/no/such/file").await {
        Err(error) => error,
        Ok(_) => panic!("it is not there"),
    };
    assert!(error.is_not_found() && !matches!(error, ExecServerError::Ambiguous { .. }));
}
