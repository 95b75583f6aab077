//! The unmodified reference client works with our server.
//!
//! Each test is one `codex exec` with a scripted model; see `exec_server_testkit::reference`. Without the reference
//! client they say so and pass; each runs with every version that can be had. With `EXEC_SERVER_TEST_URL` they try the server there instead of ours.

use std::process::{Command, Stdio};
use std::time::Duration;

use exec_server_testkit::TestExecutor;
use exec_server_testkit::reference::{ReferenceClient, Run, Scenario, ToolCall};
use serde_json::json;

/// A run takes about a second; a busy machine gets sixty.
pub const DEADLINE: Duration = Duration::from_secs(60);

#[tokio::test]
async fn output_and_exit_code_of_a_command_reach_the_model() {
    let scenario = Scenario::new()
        .turn([ToolCall::exec("hello", "echo to stdout; echo to stderr >&2; pwd")])
        .say("all done");
    for run in runs(scenario).await {
        let hello = run.result("hello");
        assert_eq!(hello.exit_code, Some(0));
        for line in ["to stdout\n", "to stderr\n", "/workspace\n"] {
            assert!(hello.output.contains(line), "{hello:?}");
        }
        assert_eq!(run.last_message, "all done");
    }
}

#[tokio::test]
async fn a_failing_command_reports_its_exit_code() {
    let scenario = Scenario::new().turn([
        ToolCall::exec("fails", "echo before the end; exit 37"),
        ToolCall::exec("missing", "./no-such-program"),
    ]);
    for run in runs(scenario).await {
        assert_eq!(run.result("fails").output, "before the end\n");
        assert_eq!(run.result("fails").exit_code, Some(37));
        assert_eq!(run.result("missing").exit_code, Some(127));
    }
}

#[tokio::test]
async fn large_output_arrives_whole_although_the_client_shortens_it() {
    let scenario = Scenario::new().turn([ToolCall::exec("count", "seq 1 200000")]);
    for run in runs(scenario).await {
        let count = run.result("count");
        assert_eq!(count.exit_code, Some(0));
        assert!(count.output.contains("\n1\n2\n3\n"), "{count:?}");
        assert!(count.output.ends_with("\n199999\n200000\n"), "{count:?}");
        // The client counts one token per four received bytes, before it truncates.
        let bytes: u64 = (1..=200_000_u64).map(|number| number.to_string().len() as u64 + 1).sum();
        assert_eq!(count.original_tokens, bytes.div_ceil(4));
    }
}

#[tokio::test]
async fn no_notification_is_so_large_that_the_client_hangs_up() {
    // One write of more than the 2 MiB that the client accepts in a notification, over pipes and over a terminal.
    let flood = "head -c 9000000 /dev/zero | tr '\\0' x; echo; echo the end";
    let scenario = Scenario::new().turn([
        ToolCall::exec("pipes", flood).until_exit(),
        ToolCall::terminal("terminal", flood).until_exit(),
        ToolCall::exec("after", "echo still connected"),
    ]);
    for run in runs(scenario).await {
        for id in ["pipes", "terminal"] {
            let flood = run.result(id);
            assert_eq!(flood.exit_code, Some(0), "{id}: {flood:?}");
            assert!(flood.output.trim_end().ends_with("the end"), "{id}: {flood:?}");
        }
        assert_eq!(run.result("after").output, "still connected\n");
    }
}

#[tokio::test]
async fn a_terminal_session_takes_lines_an_interrupt_and_an_end_of_file() {
    // The shell prints `got:ping` only when the line reached the inner one, so the interrupt finds that in front.
    let inner = "sh -c 'while read line; do echo \"got:$line\"; done'\nping\n";
    let scenario = Scenario::new()
        .turn([ToolCall::terminal("shell", "PS1='prompt> ' exec sh -i").until("prompt> ")])
        .turn([ToolCall::write("shell", inner).until("got:ping")])
        .turn([ToolCall::write("shell", "\u{3}")])
        .turn([ToolCall::write("shell", "echo status=$?; test -t 0 && echo a terminal\n")
            .until("\r\na terminal")])
        .turn([ToolCall::write("shell", "\u{4}").until_exit()]);
    for run in runs(scenario).await {
        let shell = run.result("shell");
        assert!(shell.output.contains("status=130\r\n"), "{shell:?}");
        assert_eq!(shell.exit_code, Some(0), "{shell:?}");
    }
}

#[tokio::test]
async fn an_interrupt_without_a_terminal_arrives_as_a_signal() {
    let command = "trap 'echo caught; exit 9' INT; echo ready; cat gate";
    let scenario = Scenario::new()
        .turn([ToolCall::exec("gate", "mkfifo gate")])
        .turn([ToolCall::exec("waiter", command).until("ready")])
        .turn([ToolCall::write("waiter", "\u{3}").until_exit()]);
    for run in runs(scenario).await {
        let waiter = run.result("waiter");
        assert_eq!(waiter.output, "ready\ncaught\n");
        assert_eq!(waiter.exit_code, Some(9));
    }
}

#[tokio::test]
async fn a_command_that_outlives_its_first_yield_is_polled_to_its_end() {
    let scenario = Scenario::new()
        .turn([ToolCall::exec("gate", "mkfifo gate")])
        .turn([ToolCall::exec("waiter", "echo waiting; cat gate; exit 7").in_background()])
        .turn([ToolCall::exec("opener", "echo released > gate")])
        .turn([ToolCall::poll("waiter")]);
    for run in runs(scenario).await {
        assert_eq!(run.result("opener").exit_code, Some(0));
        let waiter = run.result("waiter");
        assert_eq!(waiter.output, "waiting\nreleased\n");
        assert_eq!(waiter.exit_code, Some(7));
        assert!(waiter.answers > 1, "{waiter:?}");
    }
}

#[tokio::test]
async fn an_mcp_server_on_stdio_is_started_and_called() {
    if Command::new("python3").arg("--version").stdout(Stdio::null()).status().is_err() {
        eprintln!("skipped, no python3 for the MCP server");
        return;
    }
    let scenario = Scenario::new()
        .file("tiny_mcp.py", TINY_MCP_SERVER)
        .mcp_server("tiny", ["python3", "tiny_mcp.py"])
        .turn([ToolCall::mcp("short", "tiny", "shout", json!({"text": "grüße"}))])
        // More than a pipe holds, so the server must wait for the reader.
        .turn([ToolCall::mcp("long", "tiny", "shout", json!({"text": "x".repeat(200_000)}))]);
    for run in runs(scenario).await {
        assert_eq!(run.result("short").output, "5 GRÜSSE");
        assert_eq!(run.result("long").output, "200000 XXXXXXXXXX");
    }
}

/// Runs the scenario against the server under test, in every available version of the client.
async fn runs(scenario: Scenario) -> impl Iterator<Item = Run> {
    let mut runs = Vec::new();
    for client in blocking(ReferenceClient::find_all).await {
        let (_server, url) = server_url().await;
        let scenario = scenario.clone();
        runs.push(blocking(move || client.run(&url, scenario, DEADLINE)).await);
    }
    each_version(runs)
}

/// Prints the version before each run is checked, for the report of a failure.
pub fn each_version(runs: Vec<Run>) -> impl Iterator<Item = Run> {
    runs.into_iter().inspect(|run| eprintln!("the run of the reference {}:", run.version))
}

/// The server under test, which lives as long as the first part of the result, and its address.
async fn server_url() -> (Option<TestExecutor>, String) {
    if let Ok(url) = std::env::var("EXEC_SERVER_TEST_URL") {
        return (None, url);
    }
    let server = TestExecutor::start().await;
    let url = server.url().to_string();
    (Some(server), url)
}

/// The server may live on this test's only runtime thread, so nothing may block there.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work)
        .await
        .unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))
}

/// Just enough of MCP: it answers `initialize`, lists one tool, and shouts the length and the first ten letters of a text.
const TINY_MCP_SERVER: &str = r#"
import json, sys

sys.stdin.reconfigure(encoding="utf-8")
for line in sys.stdin:
    request = json.loads(line)
    if "id" not in request:
        continue
    method, params = request["method"], request.get("params", {})
    if method == "initialize":
        result = {
            "protocolVersion": params["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "tiny", "version": "1"},
        }
    elif method == "tools/list":
        schema = {"type": "object", "properties": {"text": {"type": "string"}}}
        result = {"tools": [{"name": "shout", "description": "Shouts.", "inputSchema": schema}]}
    elif method == "tools/call":
        text = params["arguments"]["text"]
        result = {"content": [{"type": "text", "text": f"{len(text)} {text[:10].upper()}"}]}
    else:
        result = {}
    print(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}), flush=True)
"#;
