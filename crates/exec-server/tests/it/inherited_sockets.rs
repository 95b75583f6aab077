//! Socket activation: a server and a rendezvous on a listening socket that a service manager passes.

use std::fs::File;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::Stdio;

use exec_server_testkit::executor::{ExecutorBuilder, Signal, binary};
use exec_server_testkit::{TestClient, TestExecutor};

/// Passes stdin on as descriptor 3, for the pid that the program keeps.
const PASS: &str = "exec 3<&0 </dev/null; export LISTEN_FDS=1 LISTEN_PID=$$ LISTEN_FDNAMES=x";

fn with_socket(socket: impl Into<OwnedFd>, arguments: &[&str]) -> ExecutorBuilder {
    let mut builder = TestExecutor::builder().after(PASS).args(arguments);
    builder.command().stdin(Stdio::from(socket.into()));
    builder
}

#[tokio::test]
async fn a_server_serves_on_the_socket_that_it_is_given() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("ws://{}", listener.local_addr().unwrap());
    // The default has no fixed port, and so does not contradict the socket.
    for arguments in [&["--listen", url.as_str()][..], &[]] {
        let socket = listener.try_clone().unwrap();
        // A client that comes before the server waits for it.
        let early = tokio::spawn({
            let url = url.clone();
            async move { TestClient::connect(&url).await }
        });
        let mut server = with_socket(socket, arguments).start().await;
        assert_eq!(server.url(), url);
        let mut client = early.await.unwrap();
        client.initialize().await;
        let policy = serde_json::json!({"inherit": "all", "ignoreDefaultExcludes": true, "exclude": [], "set": {}, "includeOnly": []});
        let found =
            client.run("p", &["/usr/bin/env"], serde_json::json!({ "envPolicy": policy })).await;
        assert!(
            found.text().contains("PATH=") && !found.text().contains("LISTEN_"),
            "{}",
            found.text()
        );
        let open = client.sh("q", "ls /proc/self/fd | sort -n | tail -n 1").await;
        assert_eq!(open.text().trim(), "3", "the socket is not passed on");
        server.signal(Signal::TERM);
        assert_eq!(server.wait().await.code(), Some(0));
    }
}

#[tokio::test]
async fn a_unix_socket_stays_with_its_owner() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let listener = UnixListener::bind(&path).unwrap();
    let mut server = with_socket(listener, &[]).start().await;
    assert_eq!(server.url(), format!("unix://{}", path.display()));
    assert_eq!(server.client().await.sh("p", "echo hello").await.text(), "hello\n");
    server.signal(Signal::TERM);
    assert_eq!(server.wait().await.code(), Some(0));
    assert!(path.exists(), "the service manager removes its own socket");
}

#[tokio::test]
async fn a_rendezvous_serves_on_the_socket_that_it_is_given() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let arguments = ["rendezvous", "--data", data.to_str().unwrap(), "--listen", &url];
    let server = with_socket(listener, &arguments).start().await;
    assert_eq!(server.url(), url);
    let listed = ["environments", "--data", data.to_str().unwrap()];
    assert_eq!(TestExecutor::builder().args(&listed).run().await.0, 0);
}

async fn refused(builder: ExecutorBuilder, text: &str) {
    let mut program = builder.piped_stderr().spawn();
    let line = program.next_stderr_line().await.unwrap_or_default();
    assert!(line.starts_with("exec-server: ") && line.contains(text), "{line}");
    assert_eq!(program.wait().await.code(), Some(1));
}

#[tokio::test]
async fn a_socket_that_does_not_fit_is_refused_with_the_reason() {
    let tcp = || TcpListener::bind("127.0.0.1:0").unwrap();
    let other = ["--listen", "ws://127.0.0.1:7"];
    refused(with_socket(tcp(), &other), "and --listen says 127.0.0.1:7: give both the same").await;
    let stdio = ["--listen", "stdio"];
    refused(with_socket(tcp(), &stdio), "which --listen stdio has no use for").await;
    let rendezvous = ["rendezvous", "--data", "/nonexistent", "--listen", "http://127.0.0.1:7"];
    refused(with_socket(tcp(), &rendezvous), "and --listen says 127.0.0.1:7: give both the same")
        .await;
    // Every address of the machine is open to the network, also if a service manager has bound it.
    let open = TcpListener::bind("0.0.0.0:0").unwrap();
    refused(with_socket(open, &[]), "without authentication").await;
    let connected = UnixStream::pair().unwrap().0;
    refused(with_socket(connected, &[]), "is no listening stream socket").await;
    refused(with_socket(File::open("/dev/null").unwrap(), &[]), "is no listening stream socket")
        .await;
    let two = TestExecutor::builder().after("export LISTEN_FDS=2 LISTEN_PID=$$");
    refused(two, "passes LISTEN_FDS=2, and exec-server takes one").await;
    let closed = TestExecutor::builder().after("exec 3<&-; export LISTEN_FDS=1 LISTEN_PID=$$");
    refused(closed, "could not take over the socket of the service manager").await;
}

#[tokio::test]
async fn the_socket_of_another_process_is_left_alone() {
    let builder = TestExecutor::builder().env("LISTEN_FDS", "1").env("LISTEN_PID", "1");
    let server = builder.start().await;
    assert_eq!(server.client().await.sh("p", "echo hello").await.text(), "hello\n");
}

#[tokio::test]
async fn systemd_starts_a_server_with_its_first_client() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let mut command = tokio::process::Command::new("systemd-socket-activate");
    command.arg("--listen").arg(&path).arg("-E").arg(format!("HOME={}", dir.path().display()));
    command.arg(binary()).stdout(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
    let Ok(mut activator) = command.spawn() else {
        eprintln!("skipped: systemd-socket-activate is not installed");
        return;
    };
    exec_server_testkit::eventually("systemd listens", || path.exists()).await;
    let mut client = TestClient::connect(&format!("unix://{}", path.display())).await;
    client.initialize().await;
    assert_eq!(client.sh("p", "echo hello").await.text(), "hello\n");
    activator.kill().await.unwrap();
}
