//! Certificates, proxies and URL paths between a client and a rendezvous.

use std::path::PathBuf;

use exec_server::ExecServerClient;
use exec_server_rendezvous::store::TokenRole;
use exec_server_testkit::executor::{ExecutorBuilder, Signal, TestExecutor};
use exec_server_testkit::isolation::free_address;
use exec_server_testkit::remote::{join, join_with};
use exec_server_testkit::tunnel::{Tunnels, strip_path};
use exec_server_testkit::{MockRegistry, TestHarness, TestRendezvous, eventually};
use exec_server_transport::proxy::Proxies;
use tempfile::TempDir;

use super::recovering::talk_across;
use super::{args, command, connect, finish};

#[tokio::test]
async fn a_custom_ca_is_trusted_on_both_sides_by_every_option() {
    let place = Place::start("127.0.0.1").await;
    let certificate = place.certificate.display().to_string();
    let named = ["--ca-file", certificate.as_str()];
    for (variable, arguments) in [
        ("SSL_CERT_FILE", &[][..]),
        ("CODEX_CA_CERTIFICATE", &[]),
        ("EXEC_SERVER_CA_FILE", &[]),
        ("UNUSED", &named),
    ] {
        let executor = place.join().args(arguments).env(variable, &certificate).spawn();
        let line = ["run", "--remote", place.rendezvous.url()];
        let line = [&line[..], arguments, &["env:env", "--", "echo", variable]].concat();
        let mut command = command(&line, place.state.path());
        command.env("EXEC_SERVER_REMOTE_TOKEN", &place.harness_token);
        // Waits for the executor, which is starting.
        let (code, out, err) = finish(command.env(variable, &certificate).spawn().unwrap()).await;
        assert_eq!((code, out), (0, format!("{variable}\n")), "{err}");
        drop(executor);
    }
    let stranger = args(place.rendezvous.url(), &place.harness_token, place.state.path());
    let error = ExecServerClient::connect_relay(stranger).await.unwrap_err();
    assert!(!error.is_retryable(), "the certificate stays unknown: {error:?}");
}

#[tokio::test]
async fn a_ca_file_without_certificates_is_reported_at_once() {
    let state = tempfile::tempdir().unwrap();
    let empty = state.path().join("empty.pem");
    std::fs::write(&empty, "").unwrap();
    let empty = empty.display().to_string();
    for (variable, arguments) in
        [("UNUSED", &["--ca-file", empty.as_str()][..]), ("CODEX_CA_CERTIFICATE", &[])]
    {
        let builder = join("https://127.0.0.1:1", state.path(), "t").args(arguments);
        let (code, _, stderr) = builder.env(variable, &empty).run().await;
        assert_eq!(code, 1, "{stderr}");
        assert!(stderr.contains("could not read a certificate from"), "{stderr}");
        assert!(stderr.contains(&empty) && stderr.lines().count() == 1, "{stderr}");
    }
}

#[tokio::test]
async fn forward_trusts_the_same_authority_for_its_server() {
    let made = Made::new("localhost");
    let (certificate, key) = (made.file("cert.pem"), made.file("key.pem"));
    let server = TestExecutor::start_with(&["--tls-cert", &certificate, "--tls-key", &key]).await;
    let rendezvous = TestRendezvous::start().await;
    let state = tempfile::tempdir().unwrap();
    let token = rendezvous.token(TokenRole::Executor, "env").await;
    let port = server.url().rsplit(':').next().unwrap().trim_end_matches('/');
    let url = format!("wss://localhost:{port}");
    let builder = TestExecutor::builder().args(&["forward", "--connect", &url]);
    let builder = builder.args(&["--ca-file", &certificate]);
    let _forward = join_with(builder, rendezvous.url(), state.path(), &token).spawn();
    let token = rendezvous.token(TokenRole::Harness, "env").await;
    let mut client = TestHarness::new(rendezvous.url(), "env", &token).client().await;
    client.initialize().await;
    assert_eq!(client.sh("p", "echo safe").await.text(), "safe\n");
}

#[tokio::test]
async fn both_sides_go_through_the_proxy_that_the_environment_names() {
    // A loopback address that is not treated as local.
    let place = Place::start("0.0.0.0").await;
    let certificate = place.certificate.display().to_string();
    let tunnels = Tunnels::start().await;
    for (no_proxy, is_through) in [("unrelated.test", true), ("0.0.0.0", false)] {
        let before = tunnels.requests().len();
        let executor = place
            .join()
            .args(&["--ca-file", &certificate])
            .env("HTTPS_PROXY", tunnels.url())
            .env("NO_PROXY", no_proxy)
            .spawn();
        let line = ["run", "--ca-file", &certificate, "env:env", "--", "echo", "hi"];
        let child = command(&line, place.state.path())
            .env("EXEC_SERVER_REMOTE_URL", place.rendezvous.url())
            .env("EXEC_SERVER_REMOTE_TOKEN", &place.harness_token)
            .env("https_proxy", tunnels.url())
            .env("no_proxy", no_proxy)
            .spawn();
        let (code, out, err) = finish(child.unwrap()).await;
        assert_eq!((code, out.as_str()), (0, "hi\n"), "{err}");
        let asked = tunnels.requests().split_off(before);
        if is_through {
            // Two websockets, and at least three registry requests.
            assert!(asked.len() >= 5, "{asked:?}");
        } else {
            assert!(asked.is_empty(), "{asked:?}");
        }
        for request in asked {
            assert_eq!(format!("https://{}", request.target), place.rendezvous.url());
            // `me:pass`
            assert_eq!(request.header("proxy-authorization"), Some("Basic bWU6cGFzcw=="));
            assert_eq!(request.header("authorization"), None, "the proxy learns no token");
        }
        drop(executor);
    }
}

#[tokio::test]
async fn a_relay_without_tls_is_reached_through_the_proxy_for_that() {
    let stage = MockRegistry::with_answers(|request| {
        let text = exec_server_testkit::mock_registry::registration(request);
        let text = text.replace("ws://127.0.0.1", "ws://0.0.0.0");
        let is_register = request.target.ends_with("/register");
        is_register.then(|| exec_server_testkit::web::answer(200, &[], text))
    })
    .await;
    let tunnels = Tunnels::start().await;
    for name in ["HTTP_PROXY", "http_proxy", "ALL_PROXY"] {
        let before = tunnels.requests().len();
        let state = tempfile::tempdir().unwrap();
        let builder = join(&stage.url(), state.path(), "token").env(name, tunnels.url());
        let _executor = builder.spawn();
        stage.socket().await;
        // The registry is local, which needs no proxy.
        assert_eq!(tunnels.requests().len() - before, 1, "{name}");
    }
    // A proxy variable from a CGI request is ignored.
    let state = tempfile::tempdir().unwrap();
    let builder = join(&stage.url(), state.path(), "token").env("REQUEST_METHOD", "GET");
    let before = tunnels.requests().len();
    let _executor = builder.env("HTTP_PROXY", tunnels.url()).spawn();
    stage.socket().await;
    assert_eq!(tunnels.requests().len(), before);
}

#[tokio::test]
async fn a_session_continues_when_only_the_harness_is_cut_off() {
    let place = Place::start("0.0.0.0").await;
    let certificate = place.certificate.clone();
    let builder = place.join().args(&["--ca-file", &certificate.display().to_string()]);
    let mut executor =
        builder.env("RUST_LOG", "exec_server_executor::remote=info").piped_stderr().spawn();
    let tunnels = Tunnels::start().await;
    let mut args = args(place.rendezvous.url(), &place.harness_token, place.state.path());
    args.ca_file = Some(certificate);
    let proxy = tunnels.url();
    args.proxies = Proxies::from_lookup(|name| (name == "https_proxy").then(|| proxy.clone()));
    let client = connect(args).await;
    talk_across(&client, async |number| {
        if number % 3 == 1 {
            let before = tunnels.requests().len();
            tunnels.cut();
            eventually("the harness comes back", || tunnels.requests().len() > before).await;
        }
    })
    .await;
    drop(client);
    executor.signal(Signal::TERM);
    let mut attached = 0;
    while let Some(line) = executor.next_stderr_line().await {
        attached += usize::from(line.contains("attached to the relay"));
    }
    assert_eq!(attached, 1, "the executor has not noticed");
}

#[tokio::test]
async fn a_public_url_may_have_a_path() {
    let listen = free_address();
    let front = strip_path("/meet/here", listen).await;
    let rendezvous = TestRendezvous::start_with(|config| {
        config.listen = listen;
        config.public_url = Some(format!("http://{front}/meet/here"));
    })
    .await;
    let token = rendezvous.token(TokenRole::Executor, "env").await;
    let state = tempfile::tempdir().unwrap();
    let harness_token = rendezvous.token(TokenRole::Harness, "env").await;
    for url in [format!("http://{front}/meet/here"), format!("http://{front}/meet/here/")] {
        let executor = join(&url, state.path(), &token).spawn();
        let client = connect(args(&url, &harness_token, state.path())).await;
        let output = client.command("echo").arg("hi").output().await.unwrap();
        assert_eq!(output.stdout_text(), "hi\n");
        drop(executor);
    }
}

/// A rendezvous behind TLS, with tokens for it.
struct Place {
    rendezvous: TestRendezvous,
    executor_token: String,
    harness_token: String,
    certificate: PathBuf,
    executor_state: TempDir,
    state: TempDir,
    _made: Made,
}

impl Place {
    async fn start(host: &str) -> Self {
        let made = Made::new(host);
        let certificate = made.folder.path().join("cert.pem");
        let files = (certificate.clone(), made.folder.path().join("key.pem"));
        let listen = free_address();
        let rendezvous = TestRendezvous::start_with(|config| {
            config.listen = listen;
            config.tls = Some(files);
            config.public_url = Some(format!("https://{host}:{}", listen.port()));
        })
        .await;
        let executor_token = rendezvous.token(TokenRole::Executor, "env").await;
        let harness_token = rendezvous.token(TokenRole::Harness, "env").await;
        let (executor_state, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let _made = made;
        Self {
            rendezvous,
            executor_token,
            harness_token,
            certificate,
            executor_state,
            state,
            _made,
        }
    }

    fn join(&self) -> ExecutorBuilder {
        join(self.rendezvous.url(), self.executor_state.path(), &self.executor_token)
    }
}

/// A certificate for one host, and its key.
struct Made {
    folder: TempDir,
}

impl Made {
    fn new(host: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let made = rcgen::generate_simple_self_signed([host.to_owned()]).unwrap();
        std::fs::write(folder.path().join("cert.pem"), made.cert.pem()).unwrap();
        std::fs::write(folder.path().join("key.pem"), made.signing_key.serialize_pem()).unwrap();
        Self { folder }
    }

    fn file(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }
}
