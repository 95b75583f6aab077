//! The tools about files and the machine, and what confines them.

use std::path::Path;

use exec_server_testkit::TestExecutor;
use serde_json::json;

use crate::agent::{Agent, result};

#[tokio::test]
async fn files_are_read_written_edited_listed_and_searched() {
    let directory = tempfile::tempdir().unwrap();
    let server = TestExecutor::builder().current_dir(directory.path()).start().await;
    let mut agent = Agent::start(&server, &[]).await;
    let text: String = (1..=30).map(|number| format!("line {number}\n")).collect();
    let written =
        agent.call("write_file", json!({"path": "new/f.txt", "content": text})).await.unwrap();
    assert_eq!(written["size"], text.len());
    let read = json!({"path": "new/f.txt", "start_line": 10, "max_lines": 2});
    let read = agent.call("read_file", read).await.unwrap();
    assert_eq!(read["content"], "line 10\nline 11\n");
    assert_eq!((&read["end_line"], &read["total_lines"]), (&json!(11), &json!(30)));
    let edit = |old: &str| json!([{"old_text": old, "new_text": "changed"}]);
    let version = &read["version"];
    let done = json!({"path": "new/f.txt", "edits": edit("line 7"), "if_version": version});
    assert_eq!(agent.call("edit_file", done.clone()).await.unwrap()["lines"], json!([7]));
    let stale = agent.call("edit_file", done).await.unwrap_err();
    assert!(stale.contains("read it again"), "{stale}");
    let many = agent
        .call("edit_file", json!({"path": "new/f.txt", "edits": edit("line 1")}))
        .await
        .unwrap_err();
    assert!(many.contains("occurs"), "{many}");
    let near = agent
        .call("edit_file", json!({"path": "new/f.txt", "edits": edit("line  30")}))
        .await
        .unwrap_err();
    assert!(near.contains("line 30 reads:\nline 30"), "{near}");
    let found = agent.call("search_files", json!({"pattern": "^ch.*d$"})).await.unwrap();
    assert_eq!(found["matches"][0]["line"], 7);
    let found = agent.call("search_files", json!({"glob": "*.txt"})).await.unwrap();
    assert_eq!(found["files"].as_array().unwrap().len(), 1);
    let listed = agent.call("list_directory", json!({"depth": 2})).await.unwrap();
    assert_eq!(listed["entries"].as_array().unwrap().len(), 2);
    let info = agent.call("file_info", json!({"path": "new"})).await.unwrap();
    assert_eq!(info["kind"], "directory");
    let missing = agent.call("read_file", json!({"path": "no"})).await.unwrap_err();
    assert!(missing.contains("list_directory"), "{missing}");
    std::fs::write(directory.path().join("binary"), b"\xff\0").unwrap();
    assert!(agent.call("read_file", json!({"path": "binary"})).await.is_err());
    let machine = agent.call("machine_info", json!({})).await.unwrap();
    assert_eq!(machine["architecture"], std::env::consts::ARCH);
    see_a_change(&mut agent, directory.path()).await;
}

/// Waits for a change of the working directory, and makes some.
async fn see_a_change(agent: &mut Agent, directory: &Path) {
    let arguments = json!({"path": ".", "wait_ms": 50_000});
    let wait = json!({"name": "wait_for_change", "arguments": arguments});
    let id = agent.ask("tools/call", wait).await;
    // The watch begins at an unknown moment, so that changes are made until one is seen.
    let mut number = 0;
    let answer = loop {
        std::fs::write(directory.join(format!("change{number}")), "").unwrap();
        number += 1;
        let status = agent.call("file_info", json!({"path": "."})).await;
        assert!(status.is_ok());
        if let Some(answer) = agent.try_reply(id) {
            break answer;
        }
    };
    let changes = result(&answer).unwrap()["changes"].clone();
    let path = changes[0]["path"].as_str().unwrap_or_else(|| panic!("{answer}"));
    assert!(path.starts_with(directory.to_str().unwrap()), "{answer}");
}

#[tokio::test]
async fn long_lines_large_files_and_long_lists_fit_into_answers() {
    let directory = tempfile::tempdir().unwrap();
    let server = TestExecutor::builder().current_dir(directory.path()).start().await;
    let mut agent = Agent::start(&server, &["--max-output", "1000"]).await;
    let line = "ä".repeat(5_000_000);
    std::fs::write(directory.path().join("line"), format!("x\n{line}\n")).unwrap();
    let first = agent.call("read_file", json!({"path": "line"})).await.unwrap();
    assert_eq!((&first["content"], &first["end_line"]), (&json!("x\n"), &json!(1)));
    let read = json!({"name": "read_file", "arguments": {"path": "line", "start_line": 2}});
    let answer = agent.request("tools/call", read).await;
    let cut = result(&answer).unwrap();
    assert_eq!((&cut["content"], &cut["total_lines"]), (&json!("ä".repeat(500)), &json!(2)));
    let text = answer["result"]["content"][0]["text"].as_str().unwrap();
    assert!(text.contains("does not fit") && text.contains("cut -c"), "{text}");
    // More than is read as a whole.
    let large: String = (1..=2_500_000).map(|number| format!("{number:07}\n")).collect();
    std::fs::write(directory.path().join("large"), large).unwrap();
    let read = json!({"path": "large", "start_line": 2_000_000, "max_lines": 2});
    let read = agent.call("read_file", read).await.unwrap();
    assert_eq!(read["content"], "2000000\n2000001\n");
    assert_eq!((&read["end_line"], &read["total_lines"]), (&json!(2_000_001), &json!(null)));
    let write = json!({"path": "large", "content": "", "if_version": read["version"]});
    agent.call("write_file", write).await.unwrap();
    for number in 0..200 {
        std::fs::write(directory.path().join(format!("file{number:03}")), "").unwrap();
    }
    let listed = agent.call("list_directory", json!({})).await.unwrap();
    let entries = listed["entries"].as_array().unwrap().len();
    assert!(entries > 5 && entries < 200, "{entries}");
    assert_eq!(listed["complete"], false);
}

#[tokio::test]
async fn a_root_a_list_and_read_only_leave_less() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::create_dir(directory.path().join("in")).unwrap();
    std::fs::write(directory.path().join("out"), "secret").unwrap();
    let server = TestExecutor::start().await;
    let root = directory.path().join("in");
    let mut agent = Agent::start(&server, &["--read-only", "--root", root.to_str().unwrap()]).await;
    let tools = agent.request("tools/list", json!({})).await;
    let names: Vec<&str> = tools["result"]["tools"]
        .as_array()
        .unwrap()
        .iter()
        .map(|tool| tool["name"].as_str().unwrap())
        .collect();
    assert_eq!(
        names,
        [
            "read_output",
            "list_processes",
            "read_file",
            "list_directory",
            "search_files",
            "file_info",
            "wait_for_change",
            "machine_info"
        ]
    );
    for tool in tools["result"]["tools"].as_array().unwrap() {
        assert_eq!(tool["annotations"]["readOnlyHint"], true);
        assert_eq!(tool["inputSchema"]["additionalProperties"], false);
    }
    let outside = agent.call("read_file", json!({"path": "../out"})).await.unwrap_err();
    assert!(outside.contains("outside"), "{outside}");
    let answer = agent
        .request("tools/call", json!({"name": "run_command", "arguments": {"command": "id"}}))
        .await;
    assert_eq!(answer["error"]["code"], -32602, "{answer}");
    let mut agent = Agent::start(&server, &["--allow", "run_command,read_file"]).await;
    let tools = agent.request("tools/list", json!({})).await;
    assert_eq!(tools["result"]["tools"].as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn a_sandbox_confines_commands_and_files_by_the_kernel() {
    // The policy leaves /tmp writable.
    let directory = tempfile::tempdir_in("/var/tmp").unwrap();
    std::fs::create_dir(directory.path().join("work")).unwrap();
    std::fs::write(directory.path().join("outside"), "old").unwrap();
    let server = TestExecutor::start().await;
    let work = directory.path().join("work");
    // Without a root, the tools pass every path on, and only the kernel refuses.
    let mut agent =
        Agent::start(&server, &["--sandbox", "workspace-write", "--cwd", work.to_str().unwrap()])
            .await;
    let outside = directory.path().join("outside");
    let write = |path: &str| json!({"path": path, "content": "new"});
    agent.call("write_file", write("inside")).await.unwrap();
    assert!(agent.call("write_file", write(outside.to_str().unwrap())).await.is_err());
    let command =
        format!("echo inside >> inside; echo new > {} && echo written", outside.display());
    let done = agent.call("run_command", json!({ "command": command })).await.unwrap();
    assert!(!done["output"].as_str().unwrap().contains("written\n"), "{done}");
    assert_eq!(std::fs::read_to_string(&outside).unwrap(), "old");
    assert_eq!(std::fs::read_to_string(work.join("inside")).unwrap(), "newinside\n");
    let found = agent.call("search_files", json!({"pattern": "new"})).await.unwrap();
    assert_eq!(found["matches"].as_array().unwrap().len(), 1);
    see_a_change(&mut agent, &work).await;
}
