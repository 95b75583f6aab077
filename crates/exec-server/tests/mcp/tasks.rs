//! The tasks extension: a command that outlasts its call.

use exec_server_testkit::TestExecutor;
use serde_json::{Value, json};

use crate::agent::{Agent, result};

/// What a request of a client with the extension carries.
fn meta() -> Value {
    json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {"extensions": {"io.modelcontextprotocol/tasks": {}}},
    })
}

async fn call(agent: &mut Agent, tool: &str, arguments: Value) -> Value {
    let params = json!({"name": tool, "arguments": arguments, "_meta": meta()});
    agent.request("tools/call", params).await
}

/// Starts a command that outlasts its call; the id of its task, and that of its process.
async fn start(agent: &mut Agent, command: &str) -> (Value, String) {
    let arguments = json!({"command": command, "stdin": true, "yield_ms": 0});
    let answer = call(agent, "run_command", arguments).await;
    let task = &answer["result"];
    assert_eq!(task["resultType"], "task", "{answer}");
    assert_eq!(task["status"], "working", "{answer}");
    let message = task["statusMessage"].as_str().expect("the process is named");
    let process = message.rsplit(' ').next().expect("it is the last word").to_owned();
    (task["taskId"].clone(), process)
}

/// Asks for a task until it is no longer working.
async fn settled(agent: &mut Agent, task: &Value) -> Value {
    loop {
        let answer = agent.request("tasks/get", json!({"taskId": task, "_meta": meta()})).await;
        if answer["result"]["status"] != "working" {
            return answer["result"].clone();
        }
    }
}

#[tokio::test]
async fn a_task_ends_with_its_command() {
    let server = TestExecutor::start().await;
    let mut agent = Agent::start_silently(&[server.url()]);
    let found = agent.request("server/discover", json!({"_meta": meta()})).await;
    let extensions = &found["result"]["capabilities"]["extensions"];
    assert!(extensions["io.modelcontextprotocol/tasks"].is_object(), "{found}");
    let (task, process) = start(&mut agent, "read line; echo got $line; exit 3").await;
    let working = agent.request("tasks/get", json!({"taskId": task, "_meta": meta()})).await;
    assert_eq!(working["result"]["status"], "working", "{working}");
    let input = json!({"process_id": process, "text": "it\n", "yield_ms": 0});
    assert!(result(&call(&mut agent, "write_input", input).await).is_ok());
    let done = settled(&mut agent, &task).await;
    assert_eq!(done["status"], "completed", "{done}");
    assert_eq!(done["result"]["structuredContent"]["output"], "got it\n", "{done}");
    assert_eq!(done["result"]["structuredContent"]["exit_code"], 3, "{done}");
    // A command that ends within its call needs no task.
    let quick = call(&mut agent, "run_command", json!({"command": "echo hi"})).await;
    assert_eq!(quick["result"]["resultType"], "complete", "{quick}");
}

#[tokio::test]
async fn cancelling_a_task_ends_its_command() {
    let server = TestExecutor::start().await;
    let mut agent = Agent::start_silently(&[server.url()]);
    let (task, process) = start(&mut agent, "sleep 1000").await;
    let cancelled = agent.request("tasks/cancel", json!({"taskId": task, "_meta": meta()})).await;
    assert!(cancelled["result"].is_object(), "{cancelled}");
    assert_eq!(settled(&mut agent, &task).await["status"], "cancelled");
    let read = json!({"process_id": process, "wait_ms": 50_000});
    let ended = result(&call(&mut agent, "read_output", read).await).unwrap();
    assert_eq!((&ended["running"], &ended["signal"]), (&json!(false), &json!("SIGTERM")));
    let unknown = agent.request("tasks/get", json!({"taskId": "none", "_meta": meta()})).await;
    assert_eq!(unknown["error"]["code"], -32602, "{unknown}");
}

#[tokio::test]
async fn a_client_without_the_extension_gets_what_there_is() {
    let server = TestExecutor::start().await;
    let mut agent = Agent::start(&server, &[]).await;
    let command = json!({"command": "sleep 1000", "yield_ms": 0});
    let running = agent.call("run_command", command).await.unwrap();
    assert_eq!(running["running"], true);
}
