//! MCP over streamable HTTP: with the reference client, and with a third-party server.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use exec_server_testkit::reference::{ReferenceClient, Scenario, ToolCall};
use exec_server_testkit::web::{WebRequest, answer};
use exec_server_testkit::{DEADLINE, TestClient, TestExecutor, Web};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};

use super::{deltas, get, request, without_proxies};
use crate::reference_client::{DEADLINE as RUN_DEADLINE, blocking};

/// A minimal server; it answers with JSON, and with events if the tool is called `slowly`.
fn tiny_mcp(request: &WebRequest) -> Vec<u8> {
    if request.header("authorization") != Some("Bearer t0ken") {
        return answer(401, &[], "who are you?");
    }
    match request.method.as_str() {
        "POST" => {}
        "DELETE" => return answer(200, &[], ""),
        _ => return answer(405, &[], ""),
    }
    let message: Value = serde_json::from_slice(&request.body).unwrap();
    let result = match message["method"].as_str() {
        Some("initialize") => json!({
            "protocolVersion": message["params"]["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "tiny", "version": "1"},
        }),
        Some("tools/list") => json!({"tools": [{
            "name": "shout", "description": "Says it louder.",
            "inputSchema": {"type": "object", "properties": {"text": {"type": "string"}}},
        }]}),
        Some("tools/call") => {
            let text = message["params"]["arguments"]["text"].as_str().unwrap_or_default();
            json!({"content": [{"type": "text", "text": text.to_uppercase()}]})
        }
        _ => return answer(202, &[], ""),
    };
    let reply = json!({"jsonrpc": "2.0", "id": message["id"], "result": result}).to_string();
    let session = ("Mcp-Session-Id", "one");
    if message["method"] == "tools/call" {
        let events = format!("event: message\ndata: {reply}\n\n");
        return answer(200, &[("Content-Type", "text/event-stream"), session], events);
    }
    answer(200, &[("Content-Type", "application/json"), session], reply)
}

#[tokio::test]
async fn the_reference_client_reaches_an_mcp_server_over_http() {
    for client in blocking(ReferenceClient::find_all).await {
        eprintln!("with the reference {}:", client.version());
        reaches_an_mcp_server(client).await;
    }
}

async fn reaches_an_mcp_server(client: ReferenceClient) {
    let web = Web::answering(tiny_mcp).await;
    let server = without_proxies().env("TINY_MCP_TOKEN", "t0ken").start().await;
    let scenario = Scenario::new()
        .mcp_url("tiny", &web.url("/mcp"), "TINY_MCP_TOKEN")
        .turn([ToolCall::mcp("short", "tiny", "shout", json!({"text": "grüße"}))])
        .turn([ToolCall::mcp("long", "tiny", "shout", json!({"text": "x".repeat(300_000)}))])
        .say("done");
    let url = server.url().to_owned();
    let run = blocking(move || client.run(&url, scenario, RUN_DEADLINE)).await;
    assert!(run.result("short").output.contains("GRÜSSE"), "{:?}", run.result("short"));
    assert!(run.result("long").output.contains("XXXXXXXXXX"), "{:?}", run.result("long"));
    let calls = web.requests().into_iter().filter(|request| request.method == "POST");
    assert!(calls.count() >= 5, "a greeting, an acknowledgement, a list and two calls");
}

/// An example server of the `mcp` package, on a free port.
const SERVER: &str = r#"
import socket, sys, uvicorn
from mcp.server.fastmcp import FastMCP, Context

mcp = FastMCP("real")

@mcp.tool()
async def add(a: int, b: int, ctx: Context) -> int:
    await ctx.info("adding")
    return a + b

listener = socket.socket()
listener.bind(("127.0.0.1", 0))
listener.listen()
print(listener.getsockname()[1], flush=True)
config = uvicorn.Config(mcp.streamable_http_app(), log_level="error")
uvicorn.Server(config).run(sockets=[listener])
"#;

#[tokio::test]
async fn a_real_mcp_server_works_through_it() {
    let Some(python) = blocking(python_with_mcp).await else { return };
    let mut child = tokio::process::Command::new(python)
        .args(["-c", SERVER])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let port = tokio::time::timeout(DEADLINE, lines.next_line()).await.expect("it starts in time");
    let url = format!("http://127.0.0.1:{}/mcp", port.unwrap().expect("it says its port"));

    let server: TestExecutor = super::server().await;
    let mut client = server.client().await;
    let hello = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
        "protocolVersion": "2025-03-26", "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    }});
    let (reply, session) = post(&mut client, &url, None, &hello).await;
    let session = session.expect("a session");
    assert_eq!(reply.last().unwrap()["result"]["serverInfo"]["name"], "real");
    let ready = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
    post(&mut client, &url, Some(&session), &ready).await;

    // The server's event stream stays open meanwhile.
    let more =
        json!({"headers": headers(Some(&session)), "streamResponse": true, "requestId": "events"});
    request(&mut client, &url, more).await.unwrap();
    let call = json!({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {
        "name": "add", "arguments": {"a": 40, "b": 2},
    }});
    let (reply, _) = post(&mut client, &url, Some(&session), &call).await;
    assert_eq!(reply.last().unwrap()["result"]["content"][0]["text"], "42", "{reply:?}");
    assert_eq!(reply[0]["method"], "notifications/message", "{reply:?}");
    let bye = json!({"method": "DELETE", "headers": headers(Some(&session))});
    assert_eq!(request(&mut client, &url, bye).await.unwrap()["status"], 200);
}

fn headers(session: Option<&str>) -> Value {
    let mut headers = vec![
        json!({"name": "accept", "value": "application/json, text/event-stream"}),
        json!({"name": "content-type", "value": "application/json"}),
    ];
    headers.extend(session.map(|id| json!({"name": "mcp-session-id", "value": id})));
    headers.into()
}

/// Posts a message; returns the replies and the session.
async fn post(
    client: &mut TestClient,
    url: &str,
    session: Option<&str>,
    message: &Value,
) -> (Vec<Value>, Option<String>) {
    let body = exec_server_protocol::base64::encode(message.to_string().as_bytes());
    let params = get(
        url,
        json!({
            "method": "POST", "headers": headers(session), "bodyBase64": body,
            "streamResponse": true, "requestId": "post", "redirectPolicy": "stop",
        }),
    );
    let answer = client.call("http/request", params).await.unwrap();
    assert!(matches!(answer["status"].as_u64(), Some(200 | 202)), "{answer}");
    let session = answer["headers"].as_array().unwrap().iter();
    let session = session.filter(|header| header["name"] == "mcp-session-id");
    let session = session.map(|header| header["value"].as_str().unwrap().to_owned()).next();
    let (pieces, last) = deltas(client, "post").await;
    assert_eq!(last["error"], Value::Null);
    let text = String::from_utf8(pieces.concat()).unwrap();
    let messages = text.lines().filter_map(|line| line.strip_prefix("data: "));
    (messages.map(|line| serde_json::from_str(line).unwrap()).collect(), session)
}

/// A python with the `mcp` package, installed below the target folder on first use.
fn python_with_mcp() -> Option<PathBuf> {
    let folder = exec_server_testkit::executor::binary().parent()?.join("mcp-from-pypi");
    let python = folder.join("bin/python");
    let is_there =
        |python: &Path| succeeds(Command::new(python).args(["-c", "import mcp, uvicorn"]));
    if is_there(&python) {
        return Some(python);
    }
    let installed = succeeds(Command::new("python3").args(["-m", "venv"]).arg(&folder))
        && succeeds(
            Command::new(&python).args(["-m", "pip", "install", "-q", "mcp==1.*", "uvicorn"]),
        );
    if !installed || !is_there(&python) {
        eprintln!("skipped, the python package `mcp` cannot be installed");
        return None;
    }
    Some(python)
}

fn succeeds(command: &mut Command) -> bool {
    let quiet = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    quiet.status().is_ok_and(|status| status.success())
}
