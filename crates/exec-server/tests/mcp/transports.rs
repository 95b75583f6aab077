//! Both eras of the protocol over both transports, and the configuration of clients.

use std::time::Duration;

use exec_server_rendezvous::store::TokenRole;
use exec_server_testkit::executor::binary;
use exec_server_testkit::{DEADLINE, TestExecutor, TestRendezvous};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio::time::timeout;

use crate::agent::{Agent, mcp, result};

/// What every request of 2026-07-28 carries.
fn meta() -> Value {
    json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    })
}

#[tokio::test]
async fn a_client_without_a_handshake_is_served_over_stdio() {
    let server = TestExecutor::start().await;
    let mut agent = Agent::start_silently(&[server.url()]);
    let found = agent.request("server/discover", json!({"_meta": meta()})).await;
    let versions = found["result"]["supportedVersions"].as_array().expect("a list").clone();
    assert!(
        versions.contains(&json!("2026-07-28")) && versions.contains(&json!("2025-11-25")),
        "{found}"
    );
    assert!(
        found["result"]["instructions"].as_str().unwrap().contains("Commands run in"),
        "{found}"
    );
    let arguments = json!({"command": "echo hi"});
    let params = json!({"name": "run_command", "arguments": arguments, "_meta": meta()});
    let answer = agent.request("tools/call", params).await;
    assert_eq!(answer["result"]["resultType"], "complete", "{answer}");
    assert_eq!(result(&answer).unwrap()["output"], "hi\n");
}

async fn says_hello(command: Command) {
    let mut agent = Agent::start_at(command).await;
    let done = agent.call("run_command", json!({"command": "echo hello"})).await.unwrap();
    assert_eq!((&done["output"], &done["exit_code"]), (&json!("hello\n"), &json!(0)));
}

#[tokio::test]
async fn a_server_on_a_unix_socket_is_a_target() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("unix://{}", folder.path().join("s").display());
    let _server = TestExecutor::start_with(&["--listen", &url]).await;
    says_hello(mcp(&[&url])).await;
}

#[tokio::test]
async fn a_server_on_stdio_is_a_target() {
    let state = tempfile::tempdir().unwrap();
    let state = state.path().display();
    let target = format!("stdio:{} --listen stdio --state-dir {state}", binary().display());
    says_hello(mcp(&[&target])).await;
}

#[tokio::test]
async fn an_executor_behind_a_relay_is_a_target() {
    let rendezvous = TestRendezvous::start().await;
    let state = tempfile::tempdir().unwrap();
    let executor_token = rendezvous.token(TokenRole::Executor, "env").await;
    let token = rendezvous.token(TokenRole::Harness, "env").await;
    let mut executor = TestExecutor::builder();
    executor.command().arg("--state-dir").arg(state.path().join("executor"));
    let _executor = executor
        .args(&["--remote", rendezvous.url(), "--environment-id", "env"])
        .env("EXEC_SERVER_REMOTE_TOKEN", executor_token)
        .spawn();
    let attached = async {
        let is_online = r#""online":true"#;
        let ask =
            || rendezvous.ask("GET", "/admin/environments", rendezvous.admin_token(), &Value::Null);
        while !ask().await.body.contains(is_online) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(DEADLINE, attached).await.expect("the executor is attached");
    let mut command = mcp(&["env:env"]);
    command
        .env("EXEC_SERVER_REMOTE_URL", rendezvous.url())
        .env("EXEC_SERVER_REMOTE_TOKEN", token)
        .env("EXEC_SERVER_STATE_DIR", state.path().join("client"));
    says_hello(command).await;
}

/// An MCP server over HTTP, and its address.
pub async fn listening(server: &TestExecutor, more: &[&str]) -> (Child, String) {
    let arguments = [&["--listen", "127.0.0.1:0"], more, &[server.url()]].concat();
    let mut child = mcp(&arguments).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let line =
        timeout(DEADLINE, lines.next_line()).await.expect("in time").unwrap().expect("a URL");
    let address = line.strip_prefix("http://").and_then(|rest| rest.strip_suffix("/mcp"));
    (child, address.expect("a URL of the endpoint").to_owned())
}

/// Posts a message; the status and the body of the answer.
async fn post(address: &str, headers: &[(&str, &str)], message: &Value) -> (u16, String) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let body = message.to_string();
    let mut text = format!(
        "POST /mcp HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\nconnection: close\r\n\
         accept: application/json, text/event-stream\r\ncontent-length: {}\r\n",
        body.len()
    );
    for (name, value) in headers {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    stream.write_all(format!("{text}\r\n{body}").as_bytes()).await.unwrap();
    let mut answer = String::new();
    timeout(DEADLINE, stream.read_to_string(&mut answer)).await.expect("in time").unwrap();
    let status = answer.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status");
    (status, answer)
}

fn call(command: &str) -> Value {
    let arguments = json!({ "command": command });
    let params = json!({"name": "run_command", "arguments": arguments, "_meta": meta()});
    json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
}

const CURRENT: [(&str, &str); 3] = [
    ("mcp-protocol-version", "2026-07-28"),
    ("mcp-method", "tools/call"),
    ("mcp-name", "run_command"),
];

#[tokio::test]
async fn both_eras_are_served_over_http() {
    let server = TestExecutor::start().await;
    let (_child, address) = listening(&server, &[]).await;
    let (status, answer) = post(&address, &CURRENT, &call("echo $((40 + 2))")).await;
    assert!(status == 200 && answer.contains("42"), "{answer}");
    let params = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}});
    let initialize = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params});
    let mut stream = TcpStream::connect(&address).await.unwrap();
    let body = initialize.to_string();
    let text = format!(
        "POST /mcp HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\n\
         accept: application/json, text/event-stream\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(text.as_bytes()).await.unwrap();
    let mut lines = BufReader::new(stream).lines();
    let mut session = None;
    while let Some(line) = timeout(DEADLINE, lines.next_line()).await.expect("in time").unwrap() {
        if let Some(id) = line.to_lowercase().strip_prefix("mcp-session-id: ") {
            session = Some(id.to_owned());
        }
        if line.contains("serverInfo") {
            break;
        }
    }
    let session = session.expect("the older era has sessions");
    let headers = [("mcp-session-id", session.as_str()), ("mcp-protocol-version", "2025-11-25")];
    let initialized = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
    assert_eq!(post(&address, &headers, &initialized).await.0, 202);
    let params = json!({"name": "run_command", "arguments": {"command": "echo $((40 + 2))"}});
    let message = json!({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": params});
    let (status, answer) = post(&address, &headers, &message).await;
    assert_eq!(status, 200, "{answer}");
    assert_eq!(result(&json_of(&answer)).unwrap()["output"], "42\n");
    let unknown = [("mcp-session-id", "unknown"), headers[1]];
    assert_eq!(post(&address, &unknown, &message).await.0, 404);
}

/// The JSON-RPC message in an answer.
fn json_of(answer: &str) -> Value {
    let body = answer.lines().find_map(|line| line.find("{\"jsonrpc\"").map(|at| &line[at..]));
    serde_json::from_str(body.expect("an answer")).expect("JSON")
}

#[tokio::test]
async fn clients_that_share_a_server_do_not_see_the_processes_of_others() {
    let server = TestExecutor::start().await;
    let (_child, address) = listening(&server, &[]).await;
    let ask = async |tool: &str, arguments: Value| {
        let params = json!({"name": tool, "arguments": arguments, "_meta": meta()});
        let message = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params});
        let headers = [CURRENT[0], CURRENT[1], ("mcp-name", tool)];
        let (_, answer) = post(&address, &headers, &message).await;
        result(&json_of(&answer))
    };
    let ran = ask("run_command", json!({"command": "echo secret"})).await.unwrap();
    let id = ran["process_id"].as_str().unwrap();
    assert!(id.len() > 30, "{id} can be guessed");
    let other = ask("run_command", json!({"command": "true"})).await.unwrap();
    assert_ne!(other["process_id"], id);
    let listed = ask("list_processes", json!({})).await.unwrap();
    assert_eq!(listed["processes"], json!([]));
    let guessed = ask("read_output", json!({"process_id": "p1"})).await;
    assert!(guessed.unwrap_err().contains("no process"));
    let read = ask("read_output", json!({"process_id": id})).await.unwrap();
    assert_eq!(read["output"], "secret\n");
}

#[tokio::test]
async fn strangers_are_refused_over_http() {
    let server = TestExecutor::start().await;
    let (_child, address) = listening(&server, &[]).await;
    let evil = [&CURRENT[..], &[("origin", "http://evil.example")]].concat();
    assert_eq!(post(&address, &evil, &call("id")).await.0, 403);
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("token");
    std::fs::write(&file, "0123456789abcdef\n").unwrap();
    let (_child, address) =
        listening(&server, &["--http-token-file", file.to_str().unwrap()]).await;
    assert_eq!(post(&address, &CURRENT, &call("id")).await.0, 401);
    let wrong = [&CURRENT[..], &[("authorization", "Bearer 0123456789abcdeX")]].concat();
    assert_eq!(post(&address, &wrong, &call("id")).await.0, 401);
    let right = [&CURRENT[..], &[("authorization", "Bearer 0123456789abcdef")]].concat();
    assert_eq!(post(&address, &right, &call("id")).await.0, 200);
    let open = mcp(&["--listen", "0.0.0.0:0", server.url()]).output().await.unwrap();
    assert!(!open.status.success() && String::from_utf8_lossy(&open.stderr).contains("token"));
}

/// Connects as another user, which `/dev/tcp` of bash can, and returns what it is answered.
async fn asked_by_another_user(address: &str) -> String {
    let (host, port) = address.split_once(':').unwrap();
    let script = format!(
        "exec 3<>/dev/tcp/{host}/{port}; printf 'GET /mcp HTTP/1.1\\r\\nhost: {address}\\r\\n\\r\\n' >&3; head -c 5 <&3"
    );
    let mut bash = tokio::process::Command::new("bash");
    bash.args(["-c", &script]).uid(65534).gid(65534).current_dir("/");
    let output = timeout(DEADLINE, bash.output()).await.expect("an answer or an end").unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[tokio::test]
async fn another_user_of_the_machine_needs_the_token() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root can connect as another user");
        return;
    }
    let server = TestExecutor::start().await;
    let (_open, address) = listening(&server, &[]).await;
    assert_eq!(asked_by_another_user(&address).await, "");
    let token = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&token, "a token of enough bytes").unwrap();
    let more = ["--http-token-file", token.path().to_str().unwrap()];
    let (_guarded, address) = listening(&server, &more).await;
    assert_eq!(asked_by_another_user(&address).await, "HTTP/");
}

#[tokio::test]
async fn configurations_name_this_program_and_its_arguments() {
    for client in ["claude", "cursor", "vscode", "codex"] {
        let output = mcp(&["--print-config", client, "--read-only", "ws://127.0.0.1:1"])
            .output()
            .await
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let entry = match client {
            "codex" => {
                let parsed: toml::Value = toml::from_str(&text).unwrap();
                serde_json::to_value(&parsed["mcp_servers"]["exec-server"]).unwrap()
            }
            "vscode" => {
                serde_json::from_str::<Value>(&text).unwrap()["servers"]["exec-server"].clone()
            }
            _ => serde_json::from_str::<Value>(&text).unwrap()["mcpServers"]["exec-server"].clone(),
        };
        assert_eq!(entry["args"], json!(["mcp", "--read-only", "ws://127.0.0.1:1"]), "{text}");
        assert_eq!(entry["command"], json!(binary()));
    }
}
