//! The unmodified reference client requests sandboxes from our server, and they are enforced.

use exec_server_testkit::TestExecutor;
use exec_server_testkit::reference::{ReferenceClient, Run, Scenario, ToolCall};

use crate::reference_client::{DEADLINE, blocking, each_version};

/// A path that no policy of the client makes writable.
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
    for run in runs(scenario).await {
        assert_eq!(run.result("inside").output, "kept\n0\n");
        for label in ["outside", "protected"] {
            let output = &run.result(label).output;
            assert!(
                output.contains("Read-only file system") && !output.ends_with("0\n"),
                "{output}"
            );
        }
        assert!(!std::path::Path::new(OUTSIDE).exists());
        let read = |name: &str| std::fs::read_to_string(run.workspace().join(name)).unwrap();
        assert_eq!(read("by-command.txt"), "written\n");
        assert_eq!(read(".git/HEAD"), "ref: refs/heads/main\n");
        assert_eq!(read("made/by-patch.txt"), "hello\n", "{:?}", run.result("patch"));
    }
}

#[tokio::test]
async fn read_only_means_that_nothing_is_written() {
    let scenario = Scenario::new()
        .sandbox_mode("read-only")
        .file("kept.txt", "kept\n")
        .turn([ToolCall::exec("reads", "cat kept.txt")])
        .turn([ToolCall::exec("writes", "echo x > kept.txt; echo $?")]);
    for run in runs(scenario).await {
        assert_eq!(run.result("reads").output, "kept\n");
        let output = &run.result("writes").output;
        assert!(output.contains("Read-only file system"), "{output}");
        let kept = std::fs::read_to_string(run.workspace().join("kept.txt")).unwrap();
        assert_eq!(kept, "kept\n");
    }
}

async fn runs(scenario: Scenario) -> impl Iterator<Item = Run> {
    let mut runs = Vec::new();
    for client in blocking(ReferenceClient::find_all).await {
        let server = TestExecutor::start().await;
        let (url, scenario) = (server.url().to_owned(), scenario.clone());
        runs.push(blocking(move || client.run(&url, scenario, DEADLINE)).await);
    }
    each_version(runs)
}

#[tokio::test]
async fn an_approved_command_keeps_the_denials_of_its_profile() {
    for client in blocking(ReferenceClient::find_all).await {
        eprintln!("with the reference {}:", client.version());
        let server = TestExecutor::start().await;
        let url = server.url().to_owned();
        let folder = tempfile::tempdir().unwrap();
        let (secret, outside) = (folder.path().join("secret"), folder.path().join("outside"));
        std::fs::create_dir(&secret).unwrap();
        std::fs::write(secret.join("file"), "the secret").unwrap();
        let command = format!(
            "echo x > {}; echo wrote $?; cat {}/file; echo read $?; echo gone > /dev/null; echo device $?",
            outside.display(),
            secret.display()
        );
        let scenario = Scenario::new()
            .deny(&secret)
            .turn([ToolCall::exec("usual", &command)])
            .turn([ToolCall::exec_escalated("approved", &command)]);
        let results = blocking(move || {
            let mut thread = client.start_thread(&url, scenario, DEADLINE);
            thread.turn("go");
            ["usual", "approved"].map(|label| thread.result(label))
        })
        .await;
        let [usual, approved] = &results;
        assert!(
            !usual.output.contains("wrote 0") && !usual.output.contains("the secret"),
            "{usual:?}"
        );
        assert!(approved.output.contains("wrote 0\n"), "{approved:?}");
        assert!(approved.output.contains("read 1\ndevice 0\n"), "{approved:?}");
        assert!(!approved.output.contains("the secret"), "{approved:?}");
        assert!(outside.exists());
    }
}
