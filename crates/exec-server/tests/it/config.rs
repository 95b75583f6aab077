//! Configuration files: where values come from, and what is refused.

use std::fs;
use std::path::PathBuf;

use exec_server_testkit::executor::ExecutorBuilder;
use exec_server_testkit::{TestClient, TestExecutor};

struct Files {
    dir: tempfile::TempDir,
}

impl Files {
    fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn put(&self, name: &str, text: &str) -> String {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }

    /// A program that finds the user's and the system's file here.
    fn program(&self) -> ExecutorBuilder {
        TestExecutor::builder()
            .env("XDG_CONFIG_HOME", self.path("home"))
            .env("EXEC_SERVER_SYSTEM_CONFIG", self.path("system.toml"))
    }
}

#[tokio::test]
async fn flags_come_before_variables_and_these_before_the_files_of_user_and_system() {
    let files = Files::new();
    files.put(
        "system.toml",
        "[server]\nstate-dir = \"/system\"\nmax-sessions = 1\nmax-processes = 1\nping-interval = \"1s\"\n",
    );
    files.put("home/exec-server/config.toml", "[server]\n\nmax-sessions = 2\nmax-processes = 2\n");
    let program = files.program().env("EXEC_SERVER_STATE_DIR", "/variable");
    let arguments = ["config", "show", "server", "--", "--max-processes", "3"];
    let (code, out, errors) = program.args(&arguments).run().await;
    assert_eq!((code, errors.as_str()), (0, ""), "{out}");
    for (entry, from) in [
        ("max-processes = \"3\"", "--max-processes".to_owned()),
        ("state-dir = \"/variable\"", "$EXEC_SERVER_STATE_DIR".to_owned()),
        (
            "max-sessions = \"2\"",
            format!("{}:3", files.path("home/exec-server/config.toml").display()),
        ),
        ("ping-interval = \"1s\"", format!("{}:5", files.path("system.toml").display())),
        ("# pong-timeout = \"30s\"", "default".to_owned()),
    ] {
        let line =
            out.lines().find(|line| line.starts_with(entry)).unwrap_or_else(|| panic!("{out}"));
        assert_eq!(line.rsplit_once('#').unwrap().1.trim(), from, "{out}");
    }
    // What is shown is a file with the same effect.
    let shown = files.put("shown.toml", &out);
    let (code, out, errors) =
        TestExecutor::builder().args(&["config", "check", "--config", &shown]).run().await;
    assert_eq!((code, errors.as_str()), (0, ""), "{out}");
}

#[tokio::test]
async fn a_server_follows_its_files() {
    let files = Files::new();
    let socket = files.path("socket");
    files.put("token", "a-token-of-some-length");
    let listen = format!("[server]\nlisten = \"unix://{}\"\n", socket.display());
    // A relative path is relative to the file.
    let auth = "ws-auth = \"capability-token\"\nws-token-file = \"../../token\"\n";
    files.put("home/exec-server/config.toml", &(listen + auth));
    let server = files.program().start().await;
    assert_eq!(server.url(), format!("unix://{}", socket.display()));
    drop(server);
    // A flag replaces the setting, and --config the usual files.
    let other = files.path("other");
    let flag = format!("unix://{}", other.display());
    assert_eq!(files.program().args(&["--listen", &flag]).start().await.url(), flag);
    let empty = files.put("empty.toml", "");
    let server = files.program().args(&["--config", &empty]).start().await;
    assert!(server.url().starts_with("ws://127.0.0.1:"), "{}", server.url());
    // A server that another program started has the settings of that program.
    let server = files.program().args(&["--exit-on-stdin-close"]).start().await;
    assert!(server.url().starts_with("ws://127.0.0.1:"), "{}", server.url());
}

#[tokio::test]
async fn a_rendezvous_follows_its_section() {
    let files = Files::new();
    let text = "[rendezvous]\nlisten = \"http://127.0.0.1:0\"\ndata = \"data\"\n";
    let config = files.put("config.toml", text);
    let server = TestExecutor::builder().args(&["rendezvous", "--config", &config]).start().await;
    assert!(server.url().starts_with("http://127.0.0.1:"), "{}", server.url());
    assert!(files.path("data").is_dir());
}

#[tokio::test]
async fn mistakes_stop_the_server_and_are_found_by_the_check() {
    let files = Files::new();
    let config = files
        .put("config.toml", "[server]\nlisten-on = \"stdio\"\nmax-sessions = 0\n[rendevous]\n");
    let place = |line: u32| format!("exec-server: {config}:{line}: ");
    for arguments in [vec!["--config", &config], vec!["config", "check", "--config", &config]] {
        let (code, out, errors) = TestExecutor::builder().args(&arguments).run().await;
        assert_eq!((code, out.as_str()), (1, ""), "{errors}");
        for (line, text) in [
            (2, "unknown setting `listen-on`; did you mean `listen`? (in [server])"),
            (3, "`max-sessions`: invalid value '0' for"),
            (4, "unknown section `rendevous`; did you mean `rendezvous`?"),
        ] {
            assert!(errors.contains(&format!("{}{text}", place(line))), "{errors}");
        }
    }
    let config = files.put("half.toml", "[server]\ntls-cert = \"a.pem\"\n");
    let check = ["config", "check", "--config", &config];
    let (code, _, errors) = TestExecutor::builder().args(&check).run().await;
    assert!(code == 1 && errors.contains("--tls-key"), "{errors}");
    let missing = files.path("missing.toml");
    let arguments = ["--config", missing.to_str().unwrap()];
    let (code, _, errors) = TestExecutor::builder().args(&arguments).run().await;
    assert!(code == 1 && errors.contains("cannot read the configuration file"), "{errors}");
    // Help and other commands work beside a broken file.
    files.put("system.toml", "broken");
    for arguments in [&["--help"][..], &["completions", "bash"]] {
        assert_eq!(files.program().args(arguments).run().await.0, 0, "{arguments:?}");
    }
    assert_eq!(files.program().run().await.0, 1);
}

/// Reads the log of a server up to a line with this text.
async fn wait_for_log(server: &mut TestExecutor, text: &str) {
    while let Some(line) = server.next_stderr_line().await {
        if line.contains(text) {
            return;
        }
    }
    panic!("the log ended without: {text}");
}

#[tokio::test]
async fn a_renewed_certificate_is_used_for_new_connections() {
    let files = Files::new();
    let renew = || {
        let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
        let key = files.put("key.pem", &made.signing_key.serialize_pem());
        (files.put("cert.pem", &made.cert.pem()), key, made.cert.pem())
    };
    let (certificate, key, first) = renew();
    let trusted = files.put("trusted.pem", &first);
    let mut server = TestExecutor::builder()
        .args(&["--listen", "wss://127.0.0.1:0", "--tls-cert", &certificate, "--tls-key", &key])
        .env("RUST_LOG", "info")
        .piped_stderr()
        .start()
        .await;
    let url = server.url().to_owned();
    let info =
        async || TestExecutor::builder().args(&["info", &url, "--ca-file", &trusted]).run().await.0;
    assert_eq!(info().await, 0);
    let (_, _, second) = renew();
    wait_for_log(&mut server, "loaded a new TLS certificate").await;
    assert_ne!(info().await, 0);
    files.put("trusted.pem", &second);
    assert_eq!(info().await, 0);
    files.put("key.pem", "not a key");
    wait_for_log(&mut server, "the old one stays in use").await;
    assert_eq!(info().await, 0);
}

#[tokio::test]
async fn a_replaced_shared_secret_is_used_for_new_connections() {
    let files = Files::new();
    let (old, new) = ("o".repeat(32), "n".repeat(32));
    let secret = files.put("secret", &old);
    let arguments = ["--ws-auth", "signed-bearer-token", "--ws-shared-secret-file", &secret];
    let server = TestExecutor::start_with(&arguments).await;
    let status = async |secret: &str| {
        let claims = serde_json::json!({ "sub": "alice", "exp": 4_000_000_000_u64 });
        let key = jsonwebtoken::EncodingKey::from_secret(secret.as_bytes());
        let token = jsonwebtoken::encode(&jsonwebtoken::Header::default(), &claims, &key).unwrap();
        let bearer = format!("Bearer {token}");
        let connected = TestClient::try_connect(server.url(), &[("Authorization", &bearer)]).await;
        connected.map(drop).err()
    };
    assert_eq!((status(&old).await, status(&new).await), (None, Some(401)));
    files.put("secret", &new);
    assert_eq!((status(&old).await, status(&new).await), (Some(401), None));
    // A secret that is too short is not used.
    files.put("secret", "short");
    assert_eq!((status("short").await, status(&new).await), (Some(401), None));
}
