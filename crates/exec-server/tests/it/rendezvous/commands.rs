//! Administrative commands, and the rendezvous program.

use std::path::{Path, PathBuf};

use exec_server_relay::registry_types::PublicKey;
use exec_server_testkit::RelaySocket;
use exec_server_testkit::executor::TestExecutor;
use exec_server_testkit::http::request_with_body;
use exec_server_testkit::rendezvous::{connect_body, public_key, register_body};
use exec_server_testkit::web::{Web, answer};
use serde_json::{Value, json};

/// `exec-server rendezvous`, running.
pub struct Program {
    pub process: TestExecutor,
    data: PathBuf,
    pub url: String,
    pub admin_token: Option<String>,
}

impl Program {
    pub async fn start(data: &Path, listen: &str) -> Self {
        Self::start_with(data, listen, &[]).await
    }

    pub async fn start_with(data: &Path, listen: &str, more: &[&str]) -> Self {
        Self::start_logging(data, listen, more, "info").await
    }

    /// A rendezvous with this log level, and at least its start.
    pub async fn start_logging(data: &Path, listen: &str, more: &[&str], log: &str) -> Self {
        let directory = data.display().to_string();
        let arguments = ["rendezvous", "--listen", listen, "--data", &directory];
        let builder = TestExecutor::builder().args(&arguments).args(more).env("RUST_LOG", log);
        let mut process = builder.piped_stderr().start().await;
        let url = process.url().to_owned();
        let mut admin_token = None;
        // It logs its address last.
        while let Some(line) = process.next_stderr_line().await {
            if line.trim().starts_with("xs_admin_") {
                admin_token = Some(line.trim().to_owned());
            }
            if line.contains("\"listening\"") {
                break;
            }
        }
        Self { process, data: data.to_owned(), url, admin_token }
    }

    /// Creates a token for the environment `env` with the command, on the data directory.
    pub async fn token(&self, role: &str) -> String {
        let data = self.data.display().to_string();
        let arguments = [
            "token",
            "create",
            "--data",
            &data,
            "--environment",
            "env",
            "--role",
            role,
            "-o",
            "json",
        ];
        let (code, stdout, stderr) = run(&arguments, &[]).await;
        assert_eq!((code, stderr.as_str()), (0, ""));
        let made: Value = serde_json::from_str(&stdout).unwrap();
        made["secret"].as_str().unwrap().to_owned()
    }

    pub async fn register(&self, token: &str, key: &PublicKey) -> Value {
        self.post("/cloud/environment/env/register", token, register_body(key)).await
    }

    /// Registers, and returns the status of the answer.
    pub async fn try_register(&self, token: &str, key: &PublicKey) -> u16 {
        let authorization = format!("Bearer {token}");
        let headers = [("Authorization", authorization.as_str())];
        let (path, body) = ("/cloud/environment/env/register", register_body(key).to_string());
        request_with_body(&self.url, "POST", path, &headers, body.as_bytes()).await.status
    }

    pub async fn connect(&self, token: &str, key: &PublicKey) -> Value {
        self.post("/cloud/environment/env/connect", token, connect_body(key)).await
    }

    /// A successful request.
    pub async fn post(&self, path: &str, token: &str, body: Value) -> Value {
        let authorization = format!("Bearer {token}");
        let headers = [("Authorization", authorization.as_str())];
        let body = body.to_string();
        let reply = request_with_body(&self.url, "POST", path, &headers, body.as_bytes()).await;
        assert!(matches!(reply.status, 200 | 201), "{reply:?}");
        serde_json::from_str(&reply.body).unwrap()
    }

    /// Waits until its log contains this.
    pub async fn wait_for_log(&mut self, words: &str) {
        while !self.next_log_line().await.contains(words) {}
    }

    /// The next line of its log.
    pub async fn next_log_line(&mut self) -> String {
        self.process.next_stderr_line().await.expect("it runs")
    }

    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    #[cfg(unix)]
    pub async fn kill(&mut self) {
        self.process.signal(exec_server_testkit::executor::Signal::KILL);
        self.process.wait().await;
    }

    #[cfg(unix)]
    pub fn terminate(&self) {
        self.process.signal(exec_server_testkit::executor::Signal::TERM);
    }

    pub async fn wait(&mut self) -> Option<i32> {
        self.process.wait().await.code()
    }
}

#[tokio::test]
async fn the_first_start_prints_the_next_step_as_one_line() {
    let data = tempfile::tempdir().unwrap();
    let program = Program::start(data.path(), "ws://127.0.0.1:0").await;
    assert!(program.url.starts_with("http://127.0.0.1:"));
    let admin = program.admin_token.clone().expect("the first start shows it");
    let admin = [("EXEC_SERVER_ADMIN_TOKEN", admin.as_str())];
    let create = |role| {
        ["token", "create", "--remote", &program.url, "--environment", "build-1", "--role", role]
    };
    let (code, line, stderr) = run(&create("executor"), &admin).await;
    let answers =
        "leads to this machine only; for others, start the rendezvous with --public-url\n";
    assert!(code == 0 && stderr.ends_with(answers), "{stderr}");
    let start = "EXEC_SERVER_REMOTE_TOKEN=xs_exec_";
    let end = format!(" exec-server --remote {} --environment-id build-1\n", program.url);
    assert!(line.starts_with(start) && line.ends_with(&end) && line.lines().count() == 1, "{line}");
    let (_, line, _) = run(&create("harness"), &admin).await;
    let start = format!("EXEC_SERVER_REMOTE_URL={} EXEC_SERVER_REMOTE_TOKEN=xs_", program.url);
    let end = " exec-server shell env:build-1\n";
    assert!(line.starts_with(&start) && line.ends_with(end) && line.lines().count() == 1, "{line}");
    let for_codex = [&create("harness")[..], &["--for", "codex"]].concat();
    let (_, line, _) = run(&for_codex, &admin).await;
    let start = format!("CODEX_EXEC_SERVER_NOISE_REGISTRY_URL={} ", program.url);
    assert!(line.starts_with(&start) && line.contains("_ENVIRONMENT_ID=build-1 "), "{line}");
    assert!(line.ends_with(" codex\n") && line.lines().count() == 1, "{line}");
}

#[tokio::test]
async fn a_token_has_an_id_a_label_and_an_end() {
    let data = tempfile::tempdir().unwrap();
    let program = Program::start(data.path(), "http://127.0.0.1:0").await;
    let data_dir = data.path().display().to_string();
    let admin = program.admin_token.clone().expect("the first start shows it");
    let admin = [("EXEC_SERVER_ADMIN_TOKEN", admin.as_str())];
    for (more, answers) in [
        (
            vec!["--label", "rack 4"],
            [" (rack 4); it expires in 90d; --expires", " (rack 4); it expires in 89d; --expires"],
        ),
        (vec!["--expires", "never"], ["; it does not expire\n"; 2]),
        (
            vec!["--expires", "12h", "--remote", &program.url, "--label", "far"],
            [" (far); it expires in 12h", " (far); it expires in 11h"],
        ),
    ] {
        let mut create = vec!["token", "create", "--role", "executor", "--environment", "b"];
        if !more.contains(&"--remote") {
            create.extend(["--data", &data_dir]);
        }
        let (code, line, stderr) = run(&[&create[..], &more].concat(), &admin).await;
        assert_eq!(code, 0, "{stderr}");
        assert!(stderr.starts_with("exec-server: made token tok_"), "{stderr}");
        assert!(answers.iter().any(|answers| stderr.contains(answers)), "{stderr}");
        assert!(line.starts_with("EXEC_SERVER_REMOTE_TOKEN=") && line.lines().count() == 1);
    }
    let (_, table, _) = run(&["token", "list", "--data", &data_dir], &[]).await;
    assert!(
        table.contains("LABEL") && table.contains("rack 4") && table.contains("far"),
        "{table}"
    );
    let bad = ["token", "create", "--role", "admin", "--data", &data_dir, "--label", "a\nb"];
    let (code, _, stderr) = run(&bad, &[]).await;
    assert!(code == 1 && stderr.contains("a label has"), "{stderr}");
}

#[tokio::test]
async fn the_owner_asks_over_tls_as_well() {
    let data = tempfile::tempdir().unwrap();
    let file = |name: &str| data.path().join(name).display().to_string();
    let (certificate, key) = (file("cert.pem"), file("key.pem"));
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    std::fs::write(&certificate, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let more = ["--tls-cert", certificate.as_str(), "--tls-key", key.as_str()];
    let program =
        Program::start_with(&data.path().join("data"), "https://127.0.0.1:0", &more).await;
    assert!(program.url.starts_with("https://127.0.0.1:"));
    let admin = program.admin_token.clone().unwrap();
    std::fs::write(file("admin"), format!("{admin}\n")).unwrap();
    let token_file = file("admin");
    let list = ["token", "list", "--remote", program.url.as_str()];
    let trusted =
        [("SSL_CERT_FILE", certificate.as_str()), ("EXEC_SERVER_ADMIN_TOKEN_FILE", &token_file)];
    let (code, stdout, stderr) = run(&list, &trusted).await;
    assert!(code == 0 && stdout.contains("admin"), "{stdout}{stderr}");
    let (code, _, stderr) = run(&list, &trusted[1..]).await;
    assert!(code == 1 && stderr.contains("--ca-file"), "the certificate is unknown: {stderr}");
    let known = [&list[..], &["--ca-file", &certificate]].concat();
    let (code, stdout, stderr) = run(&known, &trusted[1..]).await;
    assert!(code == 0 && stdout.contains("admin"), "{stdout}{stderr}");
}

#[tokio::test]
async fn two_of_them_never_share_their_data() {
    let data = tempfile::tempdir().unwrap();
    let _first = Program::start(data.path(), "http://127.0.0.1:0").await;
    let data_dir = data.path().display().to_string();
    let second = ["rendezvous", "--listen", "http://127.0.0.1:0", "--data", &data_dir];
    let (code, stdout, stderr) = run(&second, &[]).await;
    assert_eq!((code, stdout.as_str()), (1, ""), "{stderr}");
    assert!(stderr.contains("another rendezvous uses"), "{stderr}");
}

#[tokio::test]
async fn a_first_start_that_fails_leaves_the_admin_token_to_the_next() {
    let data = tempfile::tempdir().unwrap();
    let first = Program::start(&data.path().join("first"), "http://127.0.0.1:0").await;
    let data_dir = data.path().join("second");
    let place_text = data_dir.display().to_string();
    let again = ["rendezvous", "--listen", &first.url, "--data", &place_text];
    let (code, stdout, stderr) = run(&again, &[]).await;
    assert_eq!((code, stdout.as_str()), (1, ""), "{stderr}");
    assert!(stderr.contains("choose another port") && stderr.lines().count() == 1, "{stderr}");
    let second = Program::start(&data_dir, "http://127.0.0.1:0").await;
    let admin = second.admin_token.clone().expect("the first start prints it");
    let list = ["environments", "--remote", &second.url];
    let (code, _, stderr) = run(&list, &[("EXEC_SERVER_ADMIN_TOKEN", &admin)]).await;
    assert!(code == 0 && stderr.contains("token create --environment NAME"), "{stderr}");
}

#[tokio::test]
async fn a_url_to_which_clients_send_no_token_is_warned_about() {
    for (public, is_remarked_upon) in [("http://192.0.2.1:1", true), ("https://192.0.2.1", false)] {
        let data = tempfile::tempdir().unwrap();
        let data_dir = data.path().display().to_string();
        let arguments = [
            "rendezvous",
            "--listen",
            "http://127.0.0.1:0",
            "--data",
            &data_dir,
            "--public-url",
            public,
        ];
        let mut program = TestExecutor::builder().args(&arguments).env("RUST_LOG", "info");
        program.command().env_remove("EXEC_SERVER_ADMIN_TOKEN");
        let mut program = program.piped_stderr().start().await;
        let mut said = String::new();
        while !said.contains("\"listening\"") {
            said += &program.next_stderr_line().await.expect("it listens");
        }
        assert_eq!(said.contains("is plain HTTP"), is_remarked_upon, "{public}: {said}");
    }
}

#[cfg(unix)]
#[tokio::test]
async fn a_directory_that_is_for_others_too_is_not_closed_to_them() {
    use std::os::unix::fs::PermissionsExt;
    let data_dir = tempfile::tempdir().unwrap();
    let shared = data_dir.path().join("shared");
    std::fs::create_dir_all(shared.join("of-others")).unwrap();
    std::fs::set_permissions(&shared, std::fs::Permissions::from_mode(0o755)).unwrap();
    let text = shared.display().to_string();
    let (code, stdout, stderr) =
        run(&["rendezvous", "--listen", "http://127.0.0.1:0", "--data", &text], &[]).await;
    assert_eq!((code, stdout.as_str()), (1, ""), "{stderr}");
    assert!(stderr.contains("holds other things") && stderr.lines().count() == 1, "{stderr}");
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&shared), 0o755);
    // An empty directory was created for it.
    std::fs::remove_dir(shared.join("of-others")).unwrap();
    let _program = Program::start(&shared, "http://127.0.0.1:0").await;
    assert_eq!(mode(&shared), 0o700);
}

#[tokio::test]
async fn environments_are_listed_with_who_is_there() {
    let data = tempfile::tempdir().unwrap();
    let program = Program::start(data.path(), "http://127.0.0.1:0").await;
    let admin = program.admin_token.clone().unwrap();
    let admin = [("EXEC_SERVER_ADMIN_TOKEN", admin.as_str())];
    let executor = program.token("executor").await;
    let list = ["environments", "--remote", &program.url];
    let (code, before, _) = run(&list, &admin).await;
    assert!(code == 0 && before.contains("offline"), "{before}");
    let registered = program.register(&executor, &public_key(1)).await;
    let _socket = RelaySocket::open(super::url(&registered)).await;
    let (_, after, _) = run(&list, &admin).await;
    assert!(after.contains("online since"), "{after}");
    let policy = ["environments", "policy", "env", "first-wins", "--remote", &program.url];
    assert_eq!(run(&policy, &admin).await.0, 0);
    let (_, json, _) = run(&["environments", "--remote", &program.url, "-o", "json"], &admin).await;
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&json[0]["online"], &json[0]["policy"]), (&true.into(), &"first-wins".into()));
}

#[cfg(unix)]
#[tokio::test]
async fn who_is_there_is_known_beside_the_data_while_it_runs() {
    let data_dir = tempfile::tempdir().unwrap();
    // Longer than a unix socket address may be.
    let data = data_dir.path().join("d".repeat(120));
    let mut program = Program::start(&data, "http://127.0.0.1:0").await;
    let executor = program.token("executor").await;
    let data_text = data.display().to_string();
    let list = ["environments", "--data", &data_text];
    let (code, before, stderr) = run(&list, &[]).await;
    assert!(code == 0 && before.contains("offline") && stderr.is_empty(), "{before}{stderr}");
    let registered = program.register(&executor, &public_key(1)).await;
    let _socket = RelaySocket::open(super::url(&registered)).await;
    let (_, after, _) = run(&list, &[]).await;
    assert!(after.contains("online since"), "{after}");
    // A file that was left behind marks no executor as present.
    program.kill().await;
    let (code, killed, stderr) = run(&list, &[]).await;
    assert!(code == 0 && killed.contains("unknown"), "{killed}");
    assert!(stderr.contains("no rendezvous runs with") && stderr.lines().count() == 1, "{stderr}");
    let mut program = Program::start(&data, "http://127.0.0.1:0").await;
    assert!(run(&list, &[]).await.1.contains("offline"));
    program.terminate();
    assert_eq!(program.wait().await, Some(0));
    let (_, json, stderr) = run(&[&list[..], &["-o", "json"]].concat(), &[]).await;
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&json[0]["id"], &json[0]["online"]), (&"env".into(), &Value::Null));
    assert!(stderr.contains("no rendezvous runs with"), "{stderr}");
}

#[tokio::test]
async fn a_token_is_listed_and_revoked_by_its_id() {
    let data = tempfile::tempdir().unwrap();
    let program = Program::start(data.path(), "http://127.0.0.1:0").await;
    let secret = program.token("executor").await;
    let data_dir = data.path().display().to_string();
    let (_, json, _) = run(&["token", "list", "--data", &data_dir, "-o", "json"], &[]).await;
    assert!(!json.contains(&secret));
    let tokens: Vec<Value> = serde_json::from_str(&json).unwrap();
    let token = tokens.iter().find(|token| token["role"] == "executor").unwrap();
    let id = token["id"].as_str().unwrap();
    let registered = program.register(&secret, &public_key(1)).await;
    let mut socket = RelaySocket::open(super::url(&registered)).await;
    assert_eq!(run(&["token", "revoke", id, "--data", &data_dir], &[]).await.0, 0);
    socket.expect_closed(1008, "token_revoked").await;
    let (_, list, _) = run(&["token", "list", "--data", &data_dir], &[]).await;
    assert!(list.contains("revoked"), "{list}");
}

#[tokio::test]
async fn failures_are_reported_in_one_line() {
    let data = tempfile::tempdir().unwrap();
    let data_dir = data.path().display().to_string();
    let program = Program::start(&data.path().join("there"), "http://127.0.0.1:0").await;
    let wrong = [("EXEC_SERVER_ADMIN_TOKEN", "xs_admin_wrong")];
    let secure = program.url.replacen("http", "https", 1);
    let file = data.path().join("file").display().to_string();
    std::fs::write(&file, "").unwrap();
    let nothing: [(&str, &str); 0] = [];
    for (arguments, environment, answers) in [
        (vec!["token", "list", "--data", &data_dir], &nothing[..], "holds no rendezvous"),
        (vec!["token", "list", "--remote", &program.url], &nothing, "EXEC_SERVER_ADMIN_TOKEN"),
        (
            vec!["token", "list", "--remote", &program.url],
            &wrong,
            "revoked (401 Unauthorized); where it runs",
        ),
        (
            vec!["token", "list", "--remote", "http://127.0.0.1:1"],
            &wrong,
            "is `exec-server rendezvous` running there?",
        ),
        (vec!["token", "list", "--remote", "nowhere"], &wrong, "is not http://HOST"),
        (vec!["token", "list", "--remote", "http://192.0.2.1"], &wrong, "use https://"),
        (vec!["token", "list", "--remote", &secure], &wrong, "the server may not use TLS"),
        (vec!["token", "list", "--data", &file], &nothing, "Not a directory"),
        (
            vec!["rendezvous", "--listen", &program.url, "--data", &file],
            &nothing,
            "not a directory",
        ),
        (
            vec!["rendezvous", "--listen", "http://0.0.0.0:0", "--data", &data_dir],
            &nothing,
            "--public-url",
        ),
        (
            vec!["rendezvous", "--listen", "https://127.0.0.1:0", "--data", &data_dir],
            &nothing,
            "--tls-cert",
        ),
    ] {
        let (code, stdout, stderr) = run(&arguments, environment).await;
        assert_eq!((code, stdout.as_str()), (1, ""), "{arguments:?}: {stderr}");
        assert!(stderr.contains(answers) && stderr.lines().count() == 1, "{arguments:?}: {stderr}");
    }
    let (code, ..) =
        run(&["token", "create", "--data", &data_dir, "--role", "executor"], &[]).await;
    assert_eq!(code, 2, "an executor's token needs an environment");
}

#[tokio::test]
async fn a_hostile_rendezvous_does_nothing_to_the_terminal_of_its_owner() {
    const EVIL: &str = "\x1b]0;owned\x07\u{9b}2J\r\n";
    let web = Web::answering(|request| {
        let token = json!({
            "id": EVIL.repeat(100), "role": "executor", "environment": "env", "createdAt": i64::MIN,
            "expiresAt": i64::MAX, "revokedAt": null, "lastUsedAt": null, "maxStreams": null,
            "secret": "xs_exec_1; reboot",
        });
        let environment =
            json!({"id": EVIL, "policy": "first-wins", "createdAt": 0, "online": true});
        let (status, body) = match (request.method.as_str(), request.target.as_str()) {
            ("GET", "/admin/tokens") => (200, json!({"tokens": [token]})),
            ("GET", _) => (200, json!({"environments": [environment]})),
            ("POST", _) => (201, token),
            _ => (403, json!({"error": {"code": EVIL, "message": EVIL.repeat(1000)}})),
        };
        answer(status, &[], body.to_string())
    })
    .await;
    let url = web.local_url("");
    let admin = [("EXEC_SERVER_ADMIN_TOKEN", "xs_admin_1")];
    for (arguments, expected, answers) in [
        (vec!["token", "list"], 0, "\\u{1b}]0;owned\\u{7}\\u{9b}2J\\r\\n"),
        (vec!["token", "list", "-o", "json"], 0, "\\u009b2J"),
        (vec!["environments"], 0, "\\u{1b}]0;owned\\u{7}\\u{9b}2J\\r\\n"),
        (vec!["environments", "-o", "json"], 0, "\\u009b2J"),
        (
            vec!["token", "revoke", "tok_1"],
            1,
            "rejected the request: \\u{1b}]0;owned\\u{7}\\u{9b}2J\\r\\n",
        ),
        (
            vec!["token", "create", "--role", "executor", "--environment", "env"],
            1,
            "another token than it was asked for",
        ),
    ] {
        let arguments = [&arguments[..], &["--remote", &url]].concat();
        let (code, stdout, stderr) = run(&arguments, &admin).await;
        let all = format!("{stdout}{stderr}");
        assert_eq!(code, expected, "{arguments:?}: {all:?}");
        assert!(all.contains(answers), "{arguments:?}: {all:?}");
        let is_bad = |letter: char| letter.is_control() && letter != '\n';
        assert!(!all.contains(is_bad), "{arguments:?}: {all:?}");
        assert!(stderr.len() < 1000 && stderr.lines().count() <= 1, "{stderr}");
    }
}

#[tokio::test]
async fn logs_name_peers_and_have_no_secrets() {
    let data = tempfile::tempdir().unwrap();
    let mut program = Program::start(data.path(), "http://127.0.0.1:0").await;
    let executor = program.token("executor").await;
    let harness = program.token("harness").await;
    let registered = program.register(&executor, &public_key(1)).await;
    let mut socket = RelaySocket::open(super::url(&registered)).await;
    let bundle = program.connect(&harness, &public_key(2)).await;
    let mut stream = RelaySocket::open(super::url(&bundle)).await;
    stream.resume("a-stream-id").await;
    socket.next().await;
    let authorization = bundle["harness_key_authorization"].as_str().unwrap().to_owned();
    drop(socket);
    let mut log = String::new();
    let is_complete = |log: &str| ["detached", "a-stream-id"].iter().all(|word| log.contains(word));
    while !is_complete(&log) {
        log += &program.process.next_stderr_line().await.expect("it says so");
    }
    let registration = registered["executor_registration_id"].as_str().unwrap();
    assert!(log.contains(registration) && log.contains("\"environment\":\"env\""), "{log}");
    let sig = super::url(&registered).split("sig=").nth(1).unwrap().to_owned();
    for secret in [executor, harness, authorization, sig] {
        assert!(!log.contains(&secret), "{log}");
    }
}

#[tokio::test]
async fn the_cause_of_a_failed_start_is_printed_once() {
    let missing = "/nonexistent/file";
    let cause = "No such file or directory (os error 2)\n";
    let store = [("EXEC_SERVER_STORE_FILE", missing)];
    let (code, stdout, stderr) = run(&["rendezvous", "migrate"], &store).await;
    let expected = format!("exec-server: could not read {missing}: {cause}");
    assert_eq!((code, stdout.as_str(), stderr), (1, "", expected));

    let arguments =
        ["rendezvous", "--store", "postgres://a@127.0.0.1:1/x", "--nats", "nats://127.0.0.1:1"];
    let node = ["--node-id", "a", "--node-url", "http://127.0.0.1:1", "--signing-keys", missing];
    let credentials = [("EXEC_SERVER_NATS_CREDENTIALS", missing)];
    let (code, stdout, stderr) = run(&[&arguments[..], &node].concat(), &credentials).await;
    let expected = format!(
        "exec-server: could not read {missing}, which EXEC_SERVER_NATS_CREDENTIALS names: {cause}"
    );
    assert_eq!((code, stdout.as_str(), stderr), (1, "", expected));
}

pub async fn run(arguments: &[&str], environment: &[(&str, &str)]) -> (i32, String, String) {
    let mut builder = TestExecutor::builder().args(arguments);
    builder.command().env_remove("EXEC_SERVER_ADMIN_TOKEN");
    for (name, value) in environment {
        builder = builder.env(name, value);
    }
    builder.run().await
}
