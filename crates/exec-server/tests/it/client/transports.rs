//! Transports of the client: unix sockets, TLS, tokens, proxies, a child on stdio.

use std::sync::Arc;

use exec_server::client::Proxies;
use exec_server::{
    ExecServerClient, ExecServerClientConnectOptions, ExecServerError, RemoteExecServerConnectArgs,
    StdioServer,
};
use exec_server_testkit::executor::binary;
use exec_server_testkit::{DEADLINE, ProcessMarker, TestExecutor, eventually};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

async fn says_hello(client: &ExecServerClient) {
    let output = client.command("echo").arg("hello").output().await.unwrap();
    assert_eq!(output.stdout_text(), "hello\n");
}

#[tokio::test]
async fn a_unix_socket() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("unix://{}", folder.path().join("s").display());
    let _server = TestExecutor::start_with(&["--listen", &url]).await;
    let client = ExecServerClient::connect(url).await.unwrap();
    says_hello(&client).await;
}

#[tokio::test]
async fn a_token_and_a_certificate() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    let key = rcgen::generate_simple_self_signed(["localhost".to_owned(), "127.0.0.1".to_owned()]);
    let key = key.unwrap();
    std::fs::write(at("cert"), key.cert.pem()).unwrap();
    std::fs::write(at("key"), key.signing_key.serialize_pem()).unwrap();
    std::fs::write(at("token"), "a-token-of-some-length-for-tests").unwrap();
    let server = TestExecutor::start_with(&[
        "--tls-cert",
        &at("cert"),
        "--tls-key",
        &at("key"),
        "--ws-auth",
        "capability-token",
        "--ws-token-file",
        &at("token"),
    ])
    .await;
    let args = RemoteExecServerConnectArgs::new(server.url()).ca_file(at("cert"));
    let good = args.clone().bearer_token("a-token-of-some-length-for-tests");
    says_hello(&ExecServerClient::connect(good).await.unwrap()).await;
    let error = ExecServerClient::connect(args.clone().bearer_token("wrong")).await.unwrap_err();
    let text = exec_server::logging::chain(&error);
    assert!(text.contains("401") && !text.contains("wrong"), "{text}");
    let mut stranger = args;
    stranger.ca_file = None;
    let error = ExecServerClient::connect(stranger).await.unwrap_err();
    let text = exec_server::logging::chain(&error);
    assert!(text.contains("TLS") || text.contains("root certificates"), "{text}");
}

#[tokio::test]
async fn a_refused_connection_is_reported_with_the_address() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("ws://{}", listener.local_addr().unwrap());
    drop(listener);
    let error = ExecServerClient::connect(url.as_str()).await.unwrap_err();
    assert!(error.to_string().contains(&url), "{error}");
    assert!(error.is_retryable());
    let error = ExecServerClient::connect("http://127.0.0.1").await.unwrap_err();
    assert!(matches!(error, ExecServerError::Url(_)), "{error}");
}

#[tokio::test]
async fn a_server_that_never_answers_is_given_up() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("ws://{}", listener.local_addr().unwrap());
    let timeout = std::time::Duration::from_millis(50);
    let args = RemoteExecServerConnectArgs::new(url).connect_timeout(timeout);
    let error = ExecServerClient::connect(args).await.unwrap_err();
    assert!(matches!(error, ExecServerError::ConnectTimeout { .. }), "{error}");
}

/// A proxy that tunnels every request to `server`, and reports the requested targets.
async fn proxy(server: &str) -> (String, tokio::task::JoinHandle<String>) {
    let server = server.trim_start_matches("ws://").to_owned();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://me:secret@{}", listener.local_addr().unwrap());
    let serving = tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.unwrap();
        let mut request = Vec::new();
        while !request.ends_with(b"\r\n\r\n") {
            request.push(socket.read_u8().await.unwrap());
        }
        socket.write_all(b"HTTP/1.1 200 Fine\r\nx: y\r\n\r\n").await.unwrap();
        let mut server = TcpStream::connect(server).await.unwrap();
        tokio::spawn(async move { tokio::io::copy_bidirectional(&mut socket, &mut server).await });
        String::from_utf8(request).unwrap()
    });
    (url, serving)
}

#[tokio::test]
async fn a_proxy_is_asked_for_a_tunnel() {
    let folder = tempfile::tempdir().unwrap();
    let token = folder.path().join("token");
    std::fs::write(&token, "a-token-of-some-length").unwrap();
    // Without a token, a loopback server rejects foreign host names.
    let token = token.to_str().unwrap();
    let arguments = ["--ws-auth", "capability-token", "--ws-token-file", token];
    let server = TestExecutor::start_with(&arguments).await;
    let (url, asked) = proxy(server.url()).await;
    let mut args = RemoteExecServerConnectArgs::new("ws://far.example:4512/")
        .bearer_token("a-token-of-some-length");
    args.proxies = Proxies::from_lookup(|name| (name == "http_proxy").then(|| url.clone()));
    let client = ExecServerClient::connect(args).await.unwrap();
    says_hello(&client).await;
    let asked = asked.await.unwrap();
    assert!(asked.starts_with("CONNECT far.example:4512 HTTP/1.1\r\n"), "{asked}");
    assert!(asked.contains("Proxy-Authorization: Basic bWU6c2VjcmV0\r\n"), "{asked}");
}

#[tokio::test]
async fn a_child_on_stdio_is_started_and_ends_with_its_client() {
    let process_count = ProcessMarker::new();
    let state = tempfile::tempdir().unwrap();
    let mut server = StdioServer::new(binary())
        .args(["--listen", "stdio", "--state-dir", state.path().to_str().unwrap()])
        .env("CODEX_EXEC_SERVER_EXIT_ON_STDIN_CLOSE", "false");
    for (name, value) in process_count.params()["env"].as_object().unwrap() {
        server = server.env(name, value.as_str().unwrap());
    }
    let options = ExecServerClientConnectOptions::default();
    let client = ExecServerClient::connect_stdio(server, options).await.unwrap();
    says_hello(&client).await;
    let child = client.command("sleep").arg("1000").spawn().await.unwrap();
    drop(child);
    client.close().await;
    drop(client);
    process_count.gone().await;
}

#[tokio::test]
async fn a_child_that_ignores_the_request_to_end_is_killed_with_its_group() {
    let folder = tempfile::tempdir().unwrap();
    let pids = folder.path().join("pids");
    let script = format!(
        "trap '' TERM; sleep 1000 & echo $$ $! > {}; read x; \
         echo '{{\"id\":1,\"result\":{{\"sessionId\":\"s\",\"environmentInfo\":{{\"shell\":{{\"name\":\"sh\",\"path\":\"/bin/sh\"}}}}}}}}'; \
         while :; do sleep 1; done",
        pids.display()
    );
    let server = StdioServer::new("/bin/sh").args(["-c", &script]);
    let options = ExecServerClientConnectOptions::default();
    let client = ExecServerClient::connect_with(Arc::new(server), options).await.unwrap();
    let pids: Vec<u32> = std::fs::read_to_string(&pids)
        .unwrap()
        .split_whitespace()
        .map(|pid| pid.parse().unwrap())
        .collect();
    drop(client);
    eventually("both are gone", || {
        pids.iter().all(|pid| {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            // A zombie that is not reaped yet counts as gone.
            stat.is_empty() || stat.contains(") Z ")
        })
    })
    .await;
}

#[tokio::test]
async fn a_program_that_cannot_be_started_is_named() {
    let options = ExecServerClientConnectOptions::default();
    let server = StdioServer::new("/no/such/program");
    let error = ExecServerClient::connect_stdio(server, options).await.unwrap_err();
    assert!(error.to_string().contains("/no/such/program"), "{error}");
}

#[tokio::test]
async fn a_child_that_is_no_server_is_found_out() {
    let options = ExecServerClientConnectOptions::default();
    let connecting = ExecServerClient::connect_stdio(StdioServer::new("true"), options);
    let error = timeout(DEADLINE, connecting).await.unwrap().unwrap_err();
    assert!(error.is_disconnected(), "{error}");
    let options = ExecServerClientConnectOptions::default();
    let server = StdioServer::new("echo").args(["hello"]);
    let error = ExecServerClient::connect_stdio(server, options).await.unwrap_err();
    assert!(error.is_disconnected(), "{error}");
}
