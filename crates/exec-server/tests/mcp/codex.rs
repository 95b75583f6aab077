//! The unmodified reference client uses the tools over stdio; a scripted model stands in for a real one.

use std::time::Duration;

use exec_server_testkit::TestExecutor;
use exec_server_testkit::executor::binary;
use exec_server_testkit::reference::{ReferenceClient, Scenario, ToolCall};
use serde_json::json;

/// A run takes a few seconds; a busy machine gets two minutes.
const DEADLINE: Duration = Duration::from_secs(120);

#[tokio::test]
async fn the_reference_client_runs_commands_and_edits_files_by_mcp() {
    let clients = tokio::task::spawn_blocking(ReferenceClient::find_all).await.unwrap();
    for client in clients {
        let server = TestExecutor::start().await;
        let url = server.url().to_owned();
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("notes.txt").to_str().unwrap().to_owned();
        let program = binary().to_str().unwrap().to_owned();
        let call =
            |label: &str, tool: &str, arguments| ToolCall::mcp(label, "box", tool, arguments);
        let edits = json!([{"old_text": "first", "new_text": "second"}]);
        let scenario = Scenario::new()
            .mcp_server("box", [&program, "mcp", &url])
            .turn([call(
                "write",
                "write_file",
                json!({"path": file, "content": "the first line\n"}),
            )])
            .turn([call("edit", "edit_file", json!({"path": file, "edits": edits}))])
            .turn([call("run", "run_command", json!({"command": format!("cat {file}; exit 3")}))])
            .turn([call("missing", "read_file", json!({"path": "/does/not/exist"}))])
            .say("done");
        let run = move || client.run(&url, scenario, DEADLINE);
        let run = tokio::task::spawn_blocking(run).await.expect("the client works");
        let output = |label: &str| run.result(label).output.clone();
        assert!(output("run").contains("the second line"), "{}", output("run"));
        assert!(output("run").contains("\"exit_code\":3"), "{}", output("run"));
        assert!(output("missing").contains("list_directory"), "{}", output("missing"));
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "the second line\n");
        assert_eq!(run.last_message, "done");
    }
}
