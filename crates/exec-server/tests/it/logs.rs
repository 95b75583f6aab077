//! Logs: JSON lines for programs, text for people, and no secrets in either.

use std::os::unix::fs::PermissionsExt;

use exec_server_testkit::executor::Signal;
use exec_server_testkit::{TestClient, TestExecutor};
use serde_json::{Value, json};

/// Secrets that a client sends to the server.
const SECRETS: [(&str, &str); 5] = [
    ("argument", "marker-in-argv-5b1c"),
    ("environment value", "marker-in-env-77aa"),
    ("input", "marker-in-stdin-9e0d"),
    ("output", "marker-in-output-c4f2"),
    ("token", "marker-in-token-1d38"),
];

#[tokio::test]
async fn in_a_pipe_every_line_is_a_json_object_with_time_level_and_message() {
    for level in ["info", "debug"] {
        let log = log_of_a_session(level, &[]).await;
        assert!(!log.is_empty());
        for line in &log {
            let value: Value = serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}"));
            for field in ["timestamp", "level", "target", "message"] {
                assert!(value[field].is_string(), "{field} is missing: {line}");
            }
            assert!(matches!(value["level"].as_str(), Some("INFO" | "DEBUG")), "{line}");
            assert!(level == "debug" || value["level"] == "INFO", "{line}");
        }
    }
}

#[tokio::test]
async fn ids_are_fields_so_that_a_session_can_be_followed() {
    let log = log_of_a_session("debug", &[]).await;
    let lines: Vec<Value> = log.iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    let find = |message: &str| {
        let found = lines.iter().find(|line| line["message"] == message);
        found.unwrap_or_else(|| panic!("no line says {message:?}: {log:#?}"))
    };
    assert!(find("listening")["url"].as_str().unwrap().starts_with("ws://127.0.0.1:"));
    let connected = find("client connected");
    assert_eq!(connected["session_id"].as_str().unwrap().len(), 36);
    assert!(connected["connection_id"].is_u64());
    assert_eq!(connected["client"], "test");
    assert_eq!(find("session opened")["session_id"], connected["session_id"]);
    assert_eq!(find("connection closed")["connection_id"], connected["connection_id"]);
    let exited = find("process exited");
    assert_eq!((&exited["process_id"], &exited["exit_code"]), (&json!("p"), &json!(0)));
    assert!(exited["pid"].is_u64());
    find("received a signal, shutting down");
}

#[tokio::test]
async fn nothing_that_a_client_entrusts_to_the_server_is_logged() {
    for level in ["info", "debug", "trace"] {
        for format in ["json", "text"] {
            let log = log_of_a_session(level, &["--log-format", format]).await.join("\n");
            assert!(log.contains("client connected"), "{log}");
            for (what, marker) in SECRETS {
                assert!(!log.contains(marker), "the {what} is in the log at {level}:\n{log}");
            }
        }
    }
}

#[tokio::test]
async fn a_client_cannot_forge_lines_or_talk_to_the_terminal() {
    for format in ["json", "text"] {
        let mut server = TestExecutor::builder()
            .args(&["--log-format", format])
            .env("RUST_LOG", "debug")
            .piped_stderr()
            .start()
            .await;
        let name = "evil\n2026 ERROR forged\r\u{1b}[2J\u{9b}31m\u{7f}\u{0}end";
        let mut client = TestClient::connect(server.url()).await;
        client.call("initialize", json!({"clientName": name})).await.unwrap();
        client.call("process/start", json!({"processId": name, "argv": [name]})).await.unwrap_err();
        server.signal(Signal::TERM);
        let mut log = Vec::new();
        while let Some(line) = server.next_stderr_line().await {
            assert!(!line.contains(char::is_control), "{format}: {line:?}");
            assert!(!line.starts_with("2026 ERROR forged"), "{line}");
            log.push(line);
        }
        assert!(log.iter().any(|line| line.contains("end")), "{log:#?}");
    }
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn files_with_secrets_that_others_can_read_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("token");
    std::fs::write(&path, "a-token-of-some-length").unwrap();
    let auth = ["--ws-auth", "capability-token", "--ws-token-file", path.to_str().unwrap()];
    for (mode, is_warned) in [(0o644, true), (0o600, false)] {
        std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
        let mut server = TestExecutor::builder().args(&auth).piped_stderr().start().await;
        server.signal(Signal::TERM);
        let said = server.next_stderr_line().await;
        let line = said.clone().unwrap_or_default();
        assert_eq!(said.is_some(), is_warned, "{line}");
        assert!(
            !is_warned || line.contains(path.to_str().unwrap()) && line.contains("chmod"),
            "{line}"
        );
    }
}

#[tokio::test]
async fn a_rendezvous_and_a_forward_warn_about_their_files_as_well() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str| dir.path().join(name).display().to_string();
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    for (name, text) in [
        ("cert", made.cert.pem()),
        ("key", made.signing_key.serialize_pem()),
        ("token", "a-token-of-some-length".to_owned()),
    ] {
        std::fs::write(file(name), text).unwrap();
        std::fs::set_permissions(file(name), PermissionsExt::from_mode(0o644)).unwrap();
    }
    let (certificate, key, token, data) = (file("cert"), file("key"), file("token"), file("data"));
    // The certificate and the key are swapped, and the server needs TLS, so that both end at once.
    let rendezvous = ["rendezvous", "--listen", "https://127.0.0.1:0", "--data", &data];
    let tls = ["--tls-cert", &key, "--tls-key", &certificate];
    let forward = ["forward", "--connect", "ws://192.0.2.1:1", "--remote", "http://127.0.0.1:1"];
    let secret = ["--environment-id", "e", "--connect-token-file", &token];
    for (arguments, more, named) in
        [(&rendezvous[..], &tls[..], &certificate), (&forward, &secret, &token)]
    {
        let builder = TestExecutor::builder()
            .args(arguments)
            .args(more)
            .env("EXEC_SERVER_REMOTE_TOKEN", "a-token-of-some-length");
        let (code, _, stderr) = builder.run().await;
        assert_eq!(code, 1, "{stderr}");
        assert!(stderr.contains("chmod") && stderr.contains(named.as_str()), "{stderr}");
    }
}

#[tokio::test]
async fn text_for_people_is_there_for_the_asking_and_has_no_colours_in_a_pipe() {
    let log = log_of_a_session("info", &["--log-format", "text"]).await;
    assert!(log.iter().any(|line| line.contains("INFO") && line.contains("listening")), "{log:#?}");
    for line in &log {
        assert!(serde_json::from_str::<Value>(line).is_err(), "{line}");
        assert!(!line.contains('\u{1b}'), "{line:?}");
    }
}

#[tokio::test]
async fn a_healthy_server_logs_nothing_by_default() {
    let log = log_of_a_session("", &[]).await;
    assert_eq!(log, [""; 0]);
}

#[tokio::test]
async fn a_filter_that_cannot_be_read_is_mentioned() {
    let (mut server, ..) = start("exec_server=loud", &[]).await;
    let line = server.next_stderr_line().await.expect("a word about it");
    assert!(line.contains("RUST_LOG"), "{line}");
}

/// Starts a server, uses every secret in a session, stops the server, and returns its log.
async fn log_of_a_session(level: &str, arguments: &[&str]) -> Vec<String> {
    let (mut server, token, _folder) = start(level, arguments).await;
    let headers = [("Authorization", token.as_str())];
    let mut client = TestClient::try_connect(server.url(), &headers).await.unwrap();
    client.initialize().await;
    let [argument, environment, input, output, _] = SECRETS.map(|(_, marker)| marker);
    // The shell composes the output, so that no argument contains it.
    let script = format!("read line; : {argument}; echo {} | tr _ c", output.replace('c', "_"));
    let more = json!({"env": {"PATH": std::env::var("PATH").unwrap(), "SECRET": environment}, "pipeStdin": true});
    client.start("p", &["/bin/sh", "-c", &script], more.clone()).await.unwrap();
    client.write("p", "w1", &format!("{input}\n")).await.unwrap();
    assert_eq!(client.finish("p").await.text(), format!("{output}\n"));
    // Failing requests.
    client.start("q", &["/no/such/program", argument], more).await.unwrap_err();
    client.send_text(format!("not json {input}")).await;
    client.malformed_reply().await;
    client.notify("unknown", json!({"x": input})).await;
    client.malformed_reply().await;
    client.call("process/write", json!({"processId": "p", "chunk": input})).await.unwrap_err();
    assert_eq!(TestClient::try_connect(server.url(), &[]).await.err(), Some(401));
    let wrong = format!("{token}-wrong");
    let refused = TestClient::try_connect(server.url(), &[("Authorization", &wrong)]).await;
    assert_eq!(refused.err(), Some(401));
    server.signal(Signal::TERM);
    client.close_frame().await.expect("a close frame");
    let mut log = Vec::new();
    while let Some(line) = server.next_stderr_line().await {
        log.push(line);
    }
    assert_eq!(server.wait().await.code(), Some(0));
    log
}

/// A server with a token, the authorization header, and the directory of the token file.
async fn start(filter: &str, arguments: &[&str]) -> (TestExecutor, String, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("token");
    let token = SECRETS[4].1;
    std::fs::write(&path, token).unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
    let auth = ["--ws-auth", "capability-token", "--ws-token-file", path.to_str().unwrap()];
    let mut builder = TestExecutor::builder().args(&auth).args(arguments).piped_stderr();
    match filter {
        "" => builder.command().env_remove("RUST_LOG"),
        filter => builder.command().env("RUST_LOG", filter),
    };
    let server = builder.start().await;
    (server, format!("Bearer {token}"), folder)
}
