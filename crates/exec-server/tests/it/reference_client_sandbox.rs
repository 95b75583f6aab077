//! The unmodified reference client asks our server for its sandboxes, and they hold.

use exec_server_testkit::TestExecutor;
use exec_server_testkit::reference::{ReferenceClient, Run, Scenario, ToolCall};

use crate::reference_client::{DEADLINE, blocking};

/// A place that no policy of the client lets it write to.
const OUTSIDE: &str = "/var/lib/exec-server-canary";

#[tokio::test]
async fn a_workspace_can_be_written_and_nothing_else() {
    let patch = "*** Begin Patch\n*** Add File: made/by-patch.txt\n+hello\n*** End Patch";
    let scenario = Scenario::new()
        .sandbox_mode("workspace-write")
        .file("kept.txt", "kept\n")
        .file(".git/HEAD", "ref: refs/heads/main\n")
        .turn([ToolCall::exec("inside", "cat kept.txt; echo written > by-command.txt; echo $?")])
        .turn([ToolCall::exec("outside", &format!("echo x > {OUTSIDE}; echo $?"))])
        .turn([ToolCall::exec("protected", "echo x > .git/HEAD; echo $?")])
        .turn([ToolCall::patch_in_shell("patch", patch)]);
    let Some(run) = run(scenario).await else { return };
    assert_eq!(run.result("inside").output, "kept\n0\n");
    for label in ["outside", "protected"] {
        let output = &run.result(label).output;
        assert!(output.contains("Read-only file system") && !output.ends_with("0\n"), "{output}");
    }
    assert!(!std::path::Path::new(OUTSIDE).exists());
    let read = |name: &str| std::fs::read_to_string(run.workspace().join(name)).unwrap();
    assert_eq!(read("by-command.txt"), "written\n");
    assert_eq!(read(".git/HEAD"), "ref: refs/heads/main\n");
    assert_eq!(read("made/by-patch.txt"), "hello\n", "{:?}", run.result("patch"));
}

#[tokio::test]
async fn read_only_means_that_nothing_is_written() {
    let scenario = Scenario::new()
        .sandbox_mode("read-only")
        .file("kept.txt", "kept\n")
        .turn([ToolCall::exec("reads", "cat kept.txt")])
        .turn([ToolCall::exec("writes", "echo x > kept.txt; echo $?")]);
    let Some(run) = run(scenario).await else { return };
    assert_eq!(run.result("reads").output, "kept\n");
    let output = &run.result("writes").output;
    assert!(output.contains("Read-only file system"), "{output}");
    let kept = std::fs::read_to_string(run.workspace().join("kept.txt")).unwrap();
    assert_eq!(kept, "kept\n");
}

async fn run(scenario: Scenario) -> Option<Run> {
    let client = blocking(ReferenceClient::find).await?;
    let server = TestExecutor::start().await;
    let url = server.url().to_owned();
    let run = blocking(move || client.run(&url, scenario, DEADLINE)).await;
    drop(server);
    Some(run)
}
