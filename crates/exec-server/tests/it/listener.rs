//! Listeners: TCP, unix sockets and TLS.

use exec_server_testkit::http::request;
use exec_server_testkit::{TestClient, TestExecutor};

use crate::command_line::refused;

#[tokio::test]
async fn stdout_has_the_url_and_nothing_else() {
    let mut server = TestExecutor::builder().env("RUST_LOG", "trace").piped_stderr().start().await;
    let port = server.url().strip_prefix("ws://127.0.0.1:").expect("loopback is the default");
    assert_ne!(port.parse::<u16>().unwrap(), 0);
    let mut client = server.client().await;
    assert_eq!(client.sh("p", "echo to the client").await.text(), "to the client\n");
    server.signal(exec_server_testkit::executor::Signal::TERM);
    assert_eq!(server.next_stdout_line().await, None);
    assert_eq!(server.wait().await.code(), Some(0));
}

#[tokio::test]
async fn a_server_listens_on_the_loopback_of_ipv6() {
    if std::net::TcpListener::bind("[::1]:0").is_err() {
        eprintln!("skipped: this machine has no IPv6");
        return;
    }
    let server = TestExecutor::start_with(&["--listen", "ws://[::1]:0"]).await;
    assert!(server.url().starts_with("ws://[::1]:"), "{}", server.url());
    assert_eq!(server.client().await.sh("p", "echo six").await.text(), "six\n");
    assert_eq!(request(server.url(), "GET", "/readyz", &[]).await.status, 200);
}

#[tokio::test]
async fn an_address_that_is_taken_is_refused_by_name() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let start = format!("exec-server: could not listen on {address}: ");
    refused(&["--listen", &format!("ws://{address}")], &start, "\n").await;
    let start = format!("exec-server: could not serve metrics on {address}: ");
    refused(&["--metrics-listen", &address.to_string()], &start, "\n").await;
}

#[tokio::test]
async fn a_network_listener_without_auth_needs_an_explicit_flag() {
    for url in ["ws://0.0.0.0:0", "ws://[::]:0", "ws://192.0.2.1:0"] {
        let address = url.trim_start_matches("ws://");
        let start = format!("exec-server: refusing to listen on {address} without authentication");
        let (code, stdout, stderr) = TestExecutor::builder().args(&["--listen", url]).run().await;
        assert_eq!((code, stdout.as_str()), (1, ""));
        assert!(stderr.starts_with(&start), "{stderr}");
        for way_out in ["--ws-auth", "127.0.0.1", "--insecure-no-auth"] {
            assert!(stderr.contains(way_out), "{stderr}");
        }
    }
    let open = ["--listen", "ws://0.0.0.0:0", "--insecure-no-auth"];
    let server = TestExecutor::start_with(&open).await;
    let port = server.url().strip_prefix("ws://0.0.0.0:").expect("the URL is the bound address");
    TestClient::connect(&format!("ws://127.0.0.1:{port}")).await.initialize().await;

    let digest = "ab".repeat(32);
    let token = ["--ws-auth", "capability-token", "--ws-token-sha256", &digest];
    let server =
        TestExecutor::builder().args(&["--listen", "ws://0.0.0.0:0"]).args(&token).start().await;
    let port = server.url().strip_prefix("ws://0.0.0.0:").expect("the URL is the bound address");
    let refusal = TestClient::try_connect(&format!("ws://127.0.0.1:{port}"), &[]).await.err();
    assert_eq!(refusal, Some(401));
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn small_messages_are_not_held_back() {
    use std::os::fd::{AsFd, OwnedFd};

    use exec_server_testkit::HttpConnection;
    use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

    let server = TestExecutor::start().await;
    let mut connection = HttpConnection::open(server.url()).await;
    assert_eq!(connection.request("GET", "/readyz", &[]).await.status, 200);
    let own = connection.link().local_addr().unwrap();
    let pid = child_of(server.pid()).expect("the server runs below its guardian");
    let process = pidfd_open(Pid::from_raw(pid).unwrap(), PidfdFlags::empty()).unwrap();
    for entry in std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap() {
        let number: i32 = entry.unwrap().file_name().to_str().unwrap().parse().unwrap();
        let copy: OwnedFd = match pidfd_getfd(process.as_fd(), number, PidfdGetfdFlags::empty()) {
            Ok(copy) => copy,
            Err(rustix::io::Errno::PERM | rustix::io::Errno::NOSYS) => {
                eprintln!("skipped: looking into another process is not allowed here");
                return;
            }
            // It was closed meanwhile.
            Err(_) => continue,
        };
        let socket = std::net::TcpStream::from(copy);
        if socket.peer_addr().is_ok_and(|peer| peer == own) {
            assert!(socket.nodelay().unwrap(), "TCP_NODELAY is not set");
            return;
        }
    }
    panic!("the server holds the other end of the connection");
}

/// A child of a process.
#[cfg(target_os = "linux")]
fn child_of(parent: u32) -> Option<i32> {
    let pids = std::fs::read_dir("/proc").unwrap().filter_map(|entry| {
        entry.unwrap().file_name().to_str().and_then(|name| name.parse::<i32>().ok())
    });
    pids.into_iter().find(|pid| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let after_name = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
        after_name.split(' ').nth(1) == Some(&parent.to_string())
    })
}

#[cfg(unix)]
mod unix_sockets {
    use std::os::unix::fs::{FileTypeExt, PermissionsExt};
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::path::Path;

    use exec_server_testkit::executor::Signal;
    use exec_server_testkit::{HttpConnection, TestClient, TestExecutor};

    use crate::command_line::refused;

    #[tokio::test]
    async fn a_unix_socket_serves_its_owner_and_is_gone_at_the_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("exec server.sock");
        let mut server = serve(&path).await;
        assert_eq!(server.url(), format!("unix://{}", path.display()));
        let metadata = std::fs::symlink_metadata(&path).unwrap();
        assert!(metadata.file_type().is_socket());
        assert_eq!(metadata.permissions().mode() & 0o777, 0o600);
        assert_eq!(server.client().await.sh("p", "echo local").await.text(), "local\n");

        let link = tokio::net::UnixStream::connect(&path).await.unwrap();
        // A web page cannot reach a unix socket, so any host name is accepted.
        let mut http = HttpConnection::over(link, "whatever.example");
        assert_eq!(http.request("GET", "/readyz", &[]).await.status, 200);
        let with_origin = http.request("GET", "/readyz", &[("Origin", "http://x")]).await;
        assert_eq!(with_origin.status, 403);

        server.signal(Signal::TERM);
        assert_eq!(server.wait().await.code(), Some(0));
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn a_socket_that_a_killed_server_left_behind_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("left-over.sock");
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists());
        let server = serve(&path).await;
        server.client().await;
    }

    #[tokio::test]
    async fn a_socket_in_use_is_not_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("live.sock");
        let first = serve(&path).await;
        is_refused(&path).await;
        assert_eq!(first.client().await.sh("p", "echo still here").await.text(), "still here\n");
    }

    #[tokio::test]
    async fn a_socket_whose_server_is_too_busy_to_accept_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("busy.sock");
        let socket = tokio::net::UnixSocket::new_stream().unwrap();
        socket.bind(&path).unwrap();
        let busy = socket.listen(1).unwrap();
        let waiting = fill_backlog(&path).await;
        is_refused(&path).await;
        drop(waiting);
        busy.accept().await.expect("the first in the queue is still there");
        UnixStream::connect(&path).expect("the path still leads to it");
    }

    #[tokio::test]
    async fn a_file_that_is_no_socket_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notes.txt");
        std::fs::write(&path, "precious").unwrap();
        is_refused(&path).await;
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
        is_refused(folder.path()).await;
        is_refused(&folder.path().join("no/such/folder.sock")).await;
        is_refused(&folder.path().join("x".repeat(200))).await;
    }

    #[tokio::test]
    async fn a_server_removes_no_socket_but_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("replaced.sock");
        let mut first = serve(&path).await;
        std::fs::remove_file(&path).unwrap();
        let second = serve(&path).await;
        first.signal(Signal::TERM);
        assert_eq!(first.wait().await.code(), Some(0));
        TestClient::connect(second.url()).await.initialize().await;
    }

    async fn serve(path: &Path) -> TestExecutor {
        TestExecutor::start_with(&["--listen", &format!("unix://{}", path.display())]).await
    }

    async fn is_refused(path: &Path) {
        let start = format!("exec-server: could not listen on {}: ", path.display());
        refused(&["--listen", &format!("unix://{}", path.display())], &start, "\n").await;
    }

    /// Connects until the kernel takes no more.
    async fn fill_backlog(path: &Path) -> Vec<tokio::net::UnixStream> {
        let mut waiting = Vec::new();
        loop {
            match tokio::net::UnixStream::connect(path).await {
                Ok(stream) => waiting.push(stream),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return waiting,
                Err(error) => panic!("unexpected: {error}"),
            }
        }
    }
}

#[cfg(target_os = "linux")]
mod users {
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;
    use std::process::{Command, Output};

    use exec_server_testkit::executor::binary;
    use exec_server_testkit::{TestClient, TestExecutor};
    use serde_json::json;
    use tempfile::TempDir;

    use crate::files::host::{NOBODY, for_the_nobody_user_alone, set_mode, skip};

    /// Runs an exec-server command against a server, as a user other than root.
    fn run_as_nobody(url: &str) -> Output {
        use std::os::unix::process::CommandExt;
        let mut command = Command::new(binary());
        command.args(["run", url, "--", "/usr/bin/id", "-u"]).uid(NOBODY).gid(NOBODY);
        command.current_dir("/").env("HOME", "/nonexistent").output().expect("it can be started")
    }

    fn is_possible() -> bool {
        let is_open = |path: &Path| {
            path.metadata().is_ok_and(|found| found.permissions().mode() & 0o005 == 0o005)
        };
        let is = rustix::process::geteuid().is_root() && binary().ancestors().all(is_open);
        if !is {
            skip("only root has another user to connect as");
        }
        is
    }

    /// A script for bash that asks a port of this machine and prints the first line of the answer.
    fn dial(port: &str, path: &str) -> String {
        format!(
            "exec 3<>/dev/tcp/127.0.0.1/{port}; printf 'GET {path} HTTP/1.1\\r\\nHost: localhost\\r\\n\\r\\n' >&3; \
             head -n 1 <&3"
        )
    }

    fn is_refused(output: &Output, url: &str) {
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(255), "{url}: {output:?}");
        assert!(errors.contains("403") && errors.contains("--allow-other-users"), "{errors}");
    }

    /// A unix socket with a mode that lets every user connect.
    async fn by_path(folder: &TempDir, more: &[&str]) -> TestExecutor {
        set_mode(folder.path(), 0o755);
        let path = folder.path().join("socket");
        let listen = format!("unix://{}", path.display());
        let server = TestExecutor::builder().args(&["--listen", &listen]).args(more).start().await;
        set_mode(&path, 0o666);
        server
    }

    #[tokio::test]
    async fn a_server_without_a_token_serves_its_own_user_and_not_others() {
        if !is_possible() {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        for server in [TestExecutor::start().await, by_path(&folder, &[]).await] {
            is_refused(&run_as_nobody(server.url()), server.url());
            // The server's own user is not affected.
            assert_eq!(server.client().await.sh("p", "echo mine").await.text(), "mine\n");
        }
        let metrics = crate::metrics::start().await;
        let port = metrics.1.rsplit(':').next().unwrap();
        let dial = dial(port, "/metrics");
        use std::os::unix::process::CommandExt;
        let mut command = Command::new("/bin/bash");
        let output = command.args(["-c", &dial]).uid(NOBODY).gid(NOBODY).current_dir("/").output();
        let said = String::from_utf8(output.unwrap().stdout).unwrap();
        assert!(said.starts_with("HTTP/1.1 403"), "{said}");
    }

    #[tokio::test]
    async fn client_commands_that_listen_serve_their_own_user_and_not_others() {
        if !is_possible() {
            return;
        }
        let server = TestExecutor::start().await;
        for command in ["mcp", "e2b"] {
            let arguments = [command, "--listen", "127.0.0.1:0", server.url()];
            let listener = TestExecutor::builder().args(&arguments).start().await;
            let address = listener.url().trim_start_matches("http://").trim_end_matches("/mcp");
            let dial = dial(address.rsplit(':').next().unwrap(), "/health");
            use std::os::unix::process::CommandExt;
            let said = |user: u32| {
                let mut command = Command::new("/bin/bash");
                command.args(["-c", &dial]).uid(user).gid(user).current_dir("/");
                String::from_utf8(command.output().unwrap().stdout).unwrap()
            };
            assert!(said(0).starts_with("HTTP/1.1 "), "{command}");
            assert_eq!(said(NOBODY), "", "{command}");
        }
    }

    #[tokio::test]
    async fn other_users_are_served_with_the_option_and_the_log_says_it() {
        if !is_possible() {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let open = ["--allow-other-users"];
        for server in [TestExecutor::start_with(&open).await, by_path(&folder, &open).await] {
            let output = run_as_nobody(server.url());
            assert_eq!(String::from_utf8_lossy(&output.stdout), "0\n", "{output:?}");
        }
        let mut server = TestExecutor::builder().args(&open).piped_stderr().start().await;
        let line = server.next_stderr_line().await.expect("a warning");
        assert!(line.contains("WARN") && line.contains("every user of this machine"), "{line}");
    }

    #[tokio::test]
    async fn a_token_is_good_for_every_user() {
        if !is_possible() {
            return;
        }
        let token = "a-token-of-some-length";
        let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, token.as_bytes());
        let digest = exec_server::protocol::hex::encode(digest.as_ref());
        let auth = ["--ws-auth", "capability-token", "--ws-token-sha256", &digest];
        let server = TestExecutor::start_with(&auth).await;
        let output = run_as_nobody(server.url());
        assert!(String::from_utf8_lossy(&output.stderr).contains("401"), "{output:?}");
    }

    #[tokio::test]
    async fn an_ordinary_user_has_a_server_for_itself_and_root() {
        if !is_possible() {
            return;
        }
        let server = for_the_nobody_user_alone(TestExecutor::builder()).expect("it is possible");
        let server = server.start().await;
        let output = run_as_nobody(server.url());
        let said = String::from_utf8_lossy(&output.stdout);
        assert_eq!(said, format!("{NOBODY}\n"), "{output:?}");
        // Root is identified by its socket.
        let folder = tempfile::tempdir().unwrap();
        set_mode(folder.path(), 0o777);
        let listen = format!("unix://{}", folder.path().join("socket").display());
        let builder =
            for_the_nobody_user_alone(TestExecutor::builder().args(&["--listen", &listen]));
        let server = builder.expect("it is possible").start().await;
        TestClient::connect(server.url()).await.initialize().await;
    }

    #[tokio::test]
    async fn a_process_cannot_read_the_secrets_of_its_server_from_memory() {
        const SECRET: &str = "marker-of-a-secret-83c1";
        let builder = TestExecutor::builder().env("EXEC_SERVER_TOKEN", SECRET);
        let Some(builder) = crate::files::host::as_nobody(builder) else { return };
        let server = builder.start().await;
        let mut client = server.client().await;
        let script = "read line; guardian=$(cut -d' ' -f4 /proc/$PPID/stat); \
                      for pid in $PPID $guardian; do cat /proc/$pid/environ && echo read; \
                      dd if=/proc/$pid/mem bs=1 count=0 && echo opened; done 2>/dev/null; \
                      cat /proc/self/oom_score_adj; grep -ac MINE /proc/self/environ";
        let env = json!({"PATH": "/usr/bin:/bin", "MINE": "1"});
        let more = json!({"env": env, "pipeStdin": true});
        client.start("p", &["/bin/sh", "-c", script], more).await.unwrap();
        client.write("p", "w", "go\n").await.unwrap();
        let finished = client.finish("p").await;
        let said = finished.text();
        let [score, own] = said.lines().collect::<Vec<_>>()[..] else { panic!("{finished:?}") };
        // The OOM killer must choose children before their server, regardless of how the score is set.
        assert!(score.parse::<i32>().unwrap() >= 200, "{score}");
        assert_eq!(own, "1", "a process reads its own environment");
    }
}

mod tls {
    use std::os::unix::fs::PermissionsExt;
    use std::path::{Path, PathBuf};
    use std::sync::Arc;

    use exec_server_testkit::{HttpConnection, TestClient, TestExecutor};
    use tokio::net::TcpStream;
    use tokio_rustls::client::TlsStream;
    use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
    use tokio_rustls::rustls::{ClientConfig, RootCertStore};
    use tokio_rustls::{TlsConnector, rustls};

    use crate::command_line::refused;

    #[tokio::test]
    async fn with_a_certificate_clients_connect_by_wss() {
        let files = Files::new();
        for listen in ["ws://127.0.0.1:0", "wss://127.0.0.1:0"] {
            let server = TestExecutor::builder()
                .args(&["--listen", listen])
                .args(&files.arguments())
                .start()
                .await;
            let address = server.url().strip_prefix("wss://").expect("TLS shows in the URL");
            let link = files.connect(address).await.expect("the certificate is the server's");
            let mut client = TestClient::over(link, server.url(), &[]).await.unwrap();
            client.initialize().await;
            assert_eq!(client.sh("p", "echo secret").await.text(), "secret\n");

            let link = files.connect(address).await.unwrap();
            let mut http = HttpConnection::over(link, address);
            assert_eq!(http.request("GET", "/readyz", &[]).await.status, 200);
        }
    }

    #[tokio::test]
    async fn a_failed_tls_handshake_does_not_disturb_other_clients() {
        let files = Files::new();
        let server = TestExecutor::start_with(&files.arguments()).await;
        let address = server.url().strip_prefix("wss://").unwrap();
        let error = Files::new().connect(address).await.expect_err("another authority");
        assert!(error.to_string().contains("certificate"), "{error}");
        let mut plain = HttpConnection::open(server.url()).await;
        plain.send(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n").await;
        // The reply is a TLS alert, not HTTP.
        assert_eq!(plain.bytes(1).await, [21]);
        let link = files.connect(address).await.unwrap();
        TestClient::over(link, server.url(), &[]).await.unwrap().initialize().await;
    }

    #[tokio::test]
    async fn certificates_and_keys_that_cannot_be_used_are_refused_by_name() {
        let files = Files::new();
        let other = Files::new();
        let missing = files.folder.path().join("missing.pem");
        let empty = files.folder.path().join("empty.pem");
        std::fs::write(&empty, "").unwrap();
        for file in [&empty, &files.certificate] {
            std::fs::set_permissions(file, PermissionsExt::from_mode(0o600)).unwrap();
        }
        let (certificate, key) = (&files.certificate, &files.key);
        let no_certificate = |path: &Path| {
            format!("exec-server: could not read a certificate from {}: ", path.display())
        };
        let no_key = |path: &Path| {
            format!("exec-server: could not read a private key from {}: ", path.display())
        };
        for (certificate, key, start) in [
            (&missing, key, no_certificate(&missing)),
            (&empty, key, no_certificate(&empty)),
            (key, key, no_certificate(key)),
            (certificate, &missing, no_key(&missing)),
            (certificate, &empty, no_key(&empty)),
            (certificate, certificate, no_key(certificate)),
            (certificate, &other.key, "exec-server: the certificate and key cannot".to_owned()),
        ] {
            refused(&arguments(certificate, key), &start, "\n").await;
        }
    }

    #[tokio::test]
    async fn tls_is_not_for_stdio() {
        let files = Files::new();
        let mut arguments = files.arguments().to_vec();
        arguments.extend(["--listen", "stdio"]);
        let start = "exec-server: TLS requires a WebSocket listener, not stdio";
        refused(&arguments, start, "\n").await;
    }

    struct Files {
        folder: tempfile::TempDir,
        certificate: PathBuf,
        key: PathBuf,
        ca: CertificateDer<'static>,
    }

    impl Files {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
            let certificate = folder.path().join("certificate.pem");
            let key = folder.path().join("key.pem");
            std::fs::write(&certificate, made.cert.pem()).unwrap();
            std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
            std::fs::set_permissions(&key, PermissionsExt::from_mode(0o600)).unwrap();
            Self { folder, certificate, key, ca: made.cert.der().clone() }
        }

        fn arguments(&self) -> [&str; 4] {
            arguments(&self.certificate, &self.key)
        }

        async fn connect(&self, address: &str) -> std::io::Result<TlsStream<TcpStream>> {
            let mut roots = RootCertStore::empty();
            roots.add(self.ca.clone()).unwrap();
            let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
            let config = ClientConfig::builder_with_provider(provider)
                .with_safe_default_protocol_versions()
                .unwrap()
                .with_root_certificates(roots)
                .with_no_client_auth();
            let stream = TcpStream::connect(address).await.unwrap();
            let name = ServerName::try_from("localhost").unwrap();
            TlsConnector::from(Arc::new(config)).connect(name, stream).await
        }
    }

    fn arguments<'a>(certificate: &'a Path, key: &'a Path) -> [&'a str; 4] {
        ["--tls-cert", certificate.to_str().unwrap(), "--tls-key", key.to_str().unwrap()]
    }
}
