//! The unmodified reference as executor and harness at our rendezvous.

use std::path::Path;

use exec_server_rendezvous::store::TokenRole;
use exec_server_testkit::TestRendezvous;
use exec_server_testkit::reference::{ClientTarget, ReferenceClient, Scenario, ToolCall};
use serde_json::Value;

use super::commands::Program;
use crate::reference_client::{DEADLINE, blocking};

#[tokio::test(flavor = "multi_thread")]
async fn the_reference_as_executor_and_as_harness_run_a_command_through_it() {
    let all = blocking(ReferenceClient::find_all).await;
    for executor in &all {
        for harness in &all {
            eprintln!("executor {}, harness {}:", executor.version(), harness.version());
            runs_a_command_through_it(executor, harness.clone()).await;
        }
    }
}

async fn runs_a_command_through_it(executor: &ReferenceClient, client: ReferenceClient) {
    let rendezvous = TestRendezvous::start().await;
    let executor_token = rendezvous.token(TokenRole::Executor, "env-1").await;
    let token = rendezvous.token(TokenRole::Harness, "env-1").await;
    let mut executor = executor.start_executor(rendezvous.url(), "env-1", &executor_token);
    let deadline = tokio::time::Instant::now() + DEADLINE;
    loop {
        let admin = rendezvous.admin_token();
        let list = rendezvous.ask("GET", "/admin/environments", admin, &Value::Null).await.body;
        if list.contains("\"online\":true") {
            break;
        }
        assert!(executor.is_running(), "the executor gave up");
        assert!(tokio::time::Instant::now() < deadline, "the executor never came");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    let url = rendezvous.url().to_owned();
    let run = blocking(move || {
        let scenario = Scenario::new()
            .turn([ToolCall::exec(
                "hello",
                "echo through the relay; seq 1 20000 | tail -1; exit 3",
            )])
            .say("done");
        let target = ClientTarget::Rendezvous { url: &url, environment: "env-1", token: &token };
        client.run_at(&target, scenario, DEADLINE)
    })
    .await;
    let hello = run.result("hello");
    assert_eq!(hello.exit_code, Some(3), "{hello:?}");
    assert!(hello.output.contains("through the relay\n20000\n"), "{hello:?}");
    let metrics = rendezvous.ask("GET", "/metrics", rendezvous.admin_token(), &Value::Null).await;
    let allowed = "exec_server_noise_handshakes_total{result=\"ok\"} 1";
    assert!(metrics.body.lines().any(|line| line == allowed), "{}", metrics.body);
    assert!(executor.is_running());
}

#[tokio::test(flavor = "multi_thread")]
async fn both_ends_of_the_reference_reconnect_after_a_crash_of_the_rendezvous() {
    for client in blocking(ReferenceClient::find_all).await {
        eprintln!("with the reference {}:", client.version());
        let data = tempfile::tempdir().unwrap();
        let program = Program::start(data.path(), "http://127.0.0.1:0").await;
        let token = program.token("harness").await;
        let executor_token = program.token("executor").await;
        let mut executor = client.start_executor(&program.url, "env", &executor_token);
        run_across_a_crash(client, program, data.path(), token).await;
        assert!(executor.is_running());
    }
}

/// Runs the reference as harness, which must find the same executor again after a crash of the rendezvous.
pub(super) async fn run_across_a_crash(
    client: ReferenceClient,
    mut program: Program,
    data: &Path,
    token: String,
) {
    let url = program.url.clone();
    program.wait_for_log("\"attached\"").await;
    let reference_url = url.clone();
    // The command itself kills the rendezvous. The reference never repeats a request, so this one is lost.
    let command = format!("kill -9 {}", program.pid());
    let running = tokio::task::spawn_blocking(move || {
        let scenario = Scenario::new()
            .turn([ToolCall::exec("crash", &command)])
            .turn([ToolCall::exec("after", "echo still the same machine")]);
        let target =
            ClientTarget::Rendezvous { url: &reference_url, environment: "env", token: &token };
        client.run_at(&target, scenario, DEADLINE)
    });
    program.wait().await;
    let _program = Program::start(data, &url).await;
    let run = running.await.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()));
    assert_eq!(run.result("after").output, "still the same machine\n");
}
