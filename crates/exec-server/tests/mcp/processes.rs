//! The tools about commands.

use exec_server_testkit::{FaultProxy, TestExecutor, eventually};
use serde_json::json;

use crate::agent::{Agent, mcp, result};

#[tokio::test]
async fn a_command_ends_within_its_call_or_goes_on() {
    let server = TestExecutor::start().await;
    let mut agent = Agent::start(&server, &[]).await;
    let done = agent
        .call("run_command", json!({"command": "echo out; echo err >&2; exit 3"}))
        .await
        .unwrap();
    assert_eq!((&done["running"], &done["exit_code"]), (&json!(false), &json!(3)));
    assert_eq!(done["output"].as_str().unwrap().lines().count(), 2);
    // It stays readable.
    let again = agent.call("read_output", json!({"process_id": done["process_id"]})).await.unwrap();
    assert_eq!(again["output"], done["output"]);
    let command = json!({"command": "echo begin; sleep 1000", "yield_ms": 50});
    let goes_on = agent.call("run_command", command).await.unwrap();
    assert_eq!(goes_on["running"], true);
    let id = &goes_on["process_id"];
    let read = json!({"process_id": id, "offset": 0, "wait_ms": 30_000});
    assert_eq!(agent.call("read_output", read).await.unwrap()["output"], "begin\n");
    let listed = agent.call("list_processes", json!({})).await.unwrap();
    assert_eq!(listed["processes"].as_array().unwrap().len(), 2);
    let stopped = agent.call("stop_process", json!({"process_id": id})).await.unwrap();
    assert_eq!((&stopped["running"], &stopped["signal"]), (&json!(false), &json!("SIGTERM")));
    let missing = agent.call("read_output", json!({"process_id": "p99"})).await.unwrap_err();
    assert!(missing.contains("list_processes"), "{missing}");
}

#[tokio::test]
async fn no_call_waits_for_another() {
    let server = TestExecutor::start().await;
    let mut agent = Agent::start(&server, &[]).await;
    let slow = json!({"name": "run_command", "arguments": {"command": "read line; echo got $line", "stdin": true, "yield_ms": 50_000}});
    let slow = agent.ask("tools/call", slow).await;
    let mut quick = Vec::new();
    for number in 0..10 {
        let arguments = json!({"command": format!("echo {number}")});
        let params = json!({"name": "run_command", "arguments": arguments});
        quick.push((number, agent.ask("tools/call", params).await));
    }
    for (number, id) in quick {
        let data = result(&agent.reply(id).await).unwrap();
        assert_eq!(data["output"], format!("{number}\n"));
    }
    let listed = agent.call("list_processes", json!({})).await.unwrap();
    let waits = listed["processes"].as_array().unwrap().iter().find(|it| it["running"] == true);
    let id = &waits.expect("one waits for input")["process_id"];
    agent.call("write_input", json!({"process_id": id, "text": "it\n"})).await.unwrap();
    assert_eq!(result(&agent.reply(slow).await).unwrap()["output"], "got it\n");
}

#[tokio::test]
async fn input_is_refused_where_it_was_not_asked_for() {
    let server = TestExecutor::start().await;
    let mut agent = Agent::start(&server, &[]).await;
    let done = agent.call("run_command", json!({"command": "cat; echo end"})).await.unwrap();
    assert_eq!(done["output"], "end\n");
    let goes_on =
        agent.call("run_command", json!({"command": "sleep 1000", "yield_ms": 0})).await.unwrap();
    let input = json!({"process_id": goes_on["process_id"], "text": "x"});
    let refused = agent.call("write_input", input).await.unwrap_err();
    assert!(refused.contains("stdin: true"), "{refused}");
    let wrong = agent.call("run_command", json!({"comand": "x"})).await.unwrap_err();
    assert!(wrong.contains("comand"), "{wrong}");
}

#[tokio::test]
async fn much_output_is_shortened_and_can_be_read_by_offset() {
    let server = TestExecutor::start().await;
    let mut agent = Agent::start(&server, &["--max-output", "2000"]).await;
    let done = agent
        .call("run_command", json!({"command": "seq -w 1 100000", "yield_ms": 50_000}))
        .await
        .unwrap();
    assert_eq!((&done["total_bytes"], &done["all_available"]), (&json!(700_000), &json!(true)));
    assert_eq!(done["omitted_bytes"], 698_000);
    let output = done["output"].as_str().unwrap();
    assert!(output.starts_with("000001\n") && output.ends_with("100000\n"), "{output}");
    let middle = json!({"process_id": done["process_id"], "offset": 350_000, "max_bytes": 14});
    let middle = agent.call("read_output", middle).await.unwrap();
    assert_eq!(
        (&middle["output"], &middle["next_offset"]),
        (&json!("050001\n050002\n"), &json!(350_014))
    );
}

/// Three times what the MCP server keeps itself; each line has 8 bytes.
const FLOOD: &str = "seq -w 1 3000000";

#[tokio::test]
async fn the_middle_of_a_flood_is_read_by_offset() {
    let server = TestExecutor::start().await;
    let mut agent = Agent::start(&server, &["--max-output", "2000"]).await;
    let started = agent.call("run_command", json!({"command": FLOOD})).await.unwrap();
    let id = &started["process_id"];
    let middle = json!({"offset": 12_000_000, "max_bytes": 16});
    let middle = agent.read_ended(id, middle).await;
    assert_eq!(middle["output"], "1500001\n1500002\n");
    assert_eq!((&middle["next_offset"], &middle["omitted_bytes"]), (&json!(12_000_016), &json!(0)));
    let whole = agent.read_ended(id, json!({})).await;
    assert_eq!(
        (&whole["total_bytes"], &whole["all_available"]),
        (&json!(24_000_000), &json!(true))
    );
    assert!(whole["output"].as_str().unwrap().ends_with("3000000\n"), "{whole}");
}

#[tokio::test]
async fn what_is_lost_of_a_flood_is_reported() {
    let server = TestExecutor::start_with(&["--max-output-spool", "1048576"]).await;
    let mut agent = Agent::start(&server, &[]).await;
    let started = agent.call("run_command", json!({"command": FLOOD})).await.unwrap();
    let id = &started["process_id"];
    let middle = agent.read_ended(id, json!({"offset": 12_000_000, "max_bytes": 16})).await;
    assert_eq!(middle["all_available"], false, "{middle}");
    let (omitted, next) = (&middle["omitted_bytes"], &middle["next_offset"]);
    assert_eq!(12_000_000 + omitted.as_u64().unwrap() + 16, next.as_u64().unwrap());
    assert!(omitted.as_u64().unwrap() > 0, "{middle}");
}

#[tokio::test]
async fn commands_run_also_when_no_spool_is_left() {
    let server = TestExecutor::start_with(&["--max-output-spools", "1048576"]).await;
    let mut agent = Agent::start(&server, &[]).await;
    let command = json!({"command": "echo begin; read line", "stdin": true, "yield_ms": 0});
    for _ in 0..2 {
        let started = agent.call("run_command", command.clone()).await.unwrap();
        let read = json!({"process_id": started["process_id"], "offset": 0, "wait_ms": 30_000});
        assert_eq!(agent.call("read_output", read).await.unwrap()["output"], "begin\n");
    }
}

#[tokio::test]
async fn a_cut_link_is_resumed_below() {
    let server = TestExecutor::start().await;
    let cable = FaultProxy::to(server.url()).await;
    let mut agent = Agent::start_at(mcp(&[cable.url()])).await;
    let command = json!({"command": "for i in 1 2 3; do read line; echo $line; done", "stdin": true, "yield_ms": 0});
    let started = agent.call("run_command", command).await.unwrap();
    for number in 1..=3 {
        cable.cut();
        let input = json!({"process_id": started["process_id"], "text": format!("line {number}\n"), "yield_ms": 30_000});
        let data = agent.call("write_input", input).await.unwrap();
        assert_eq!(data["output"], format!("line {number}\n"));
    }
}

#[tokio::test]
async fn commands_end_with_the_end_of_input() {
    let server = TestExecutor::start().await;
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("pid");
    let mut agent = Agent::start(&server, &[]).await;
    let command = format!("echo $$ > {}; exec sleep 1000", file.display());
    agent.call("run_command", json!({"command": command, "yield_ms": 0})).await.unwrap();
    let read = || std::fs::read_to_string(&file).unwrap_or_default();
    eventually("the command has started", || read().ends_with('\n')).await;
    let pid = read().trim().to_owned();
    drop(agent.stdin.take());
    assert!(agent.child.wait().await.unwrap().success());
    eventually("the command ends", || !std::path::Path::new(&format!("/proc/{pid}")).exists())
        .await;
}

#[tokio::test]
async fn a_long_call_reports_progress_and_a_cancelled_one_leaves_its_command() {
    let server = TestExecutor::start().await;
    let mut agent = Agent::start(&server, &[]).await;
    let arguments =
        json!({"command": "read line; echo got $line", "stdin": true, "yield_ms": 50_000});
    let params =
        json!({"name": "run_command", "arguments": arguments, "_meta": {"progressToken": "t"}});
    let id = agent.ask("tools/call", params).await;
    let progress = agent.notification("notifications/progress").await;
    assert_eq!(progress["params"]["progressToken"], "t", "{progress}");
    let cancel =
        json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id}});
    agent.send(&cancel).await;
    let input = json!({"process_id": "p1", "text": "it\n", "yield_ms": 30_000});
    assert_eq!(agent.call("write_input", input).await.unwrap()["output"], "got it\n");
}

#[tokio::test]
async fn a_thousand_calls_survive_cut_links_between_them() {
    let server = TestExecutor::start().await;
    let cable = FaultProxy::to(server.url()).await;
    let mut agent = Agent::start_at(mcp(&[cable.url()])).await;
    for number in 0..1000 {
        if number % 50 == 0 {
            cable.cut();
        }
        let done = match number % 10 {
            0 => agent.call("run_command", json!({"command": format!("echo {number}")})).await,
            _ => agent.call("file_info", json!({"path": "/"})).await,
        };
        let done = done.unwrap_or_else(|error| panic!("{number}: {error}"));
        assert!(number % 10 != 0 || done["output"] == format!("{number}\n"), "{done}");
    }
    let listed = agent.call("list_processes", json!({})).await.unwrap();
    assert_eq!(listed["processes"].as_array().unwrap().len(), 100);
}
