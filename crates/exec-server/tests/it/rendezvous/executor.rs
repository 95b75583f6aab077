//! Our executor at our rendezvous.

use std::os::unix::fs::PermissionsExt;

use exec_server_rendezvous::clock;
use exec_server_rendezvous::store::TokenRole;
use exec_server_testkit::executor::{Signal, TestExecutor};
use exec_server_testkit::isolation::free_address;
use exec_server_testkit::reference::{ClientTarget, ReferenceClient, Scenario, ToolCall};
use exec_server_testkit::remote::{join, wait_for_presence};
use exec_server_testkit::{TestHarness, TestRendezvous};
use serde_json::{Value, json};

use super::commands::Program;
use super::reference::run_across_a_crash;
use super::revoke_all;
use crate::reference_client::{DEADLINE, blocking};

#[tokio::test(flavor = "multi_thread")]
async fn the_reference_as_harness_runs_a_command_on_it() {
    for client in blocking(ReferenceClient::find_all).await {
        eprintln!("with the reference {}:", client.version());
        runs_a_command_on_it(client).await;
    }
}

async fn runs_a_command_on_it(client: ReferenceClient) {
    let rendezvous = TestRendezvous::start().await;
    let state = tempfile::tempdir().unwrap();
    let token = rendezvous.token(TokenRole::Harness, "env").await;
    let executor_token = rendezvous.token(TokenRole::Executor, "env").await;
    let mut executor = join(rendezvous.url(), state.path(), &executor_token).spawn();
    wait_for_presence(rendezvous.url(), rendezvous.admin_token(), true).await;
    let url = rendezvous.url().to_owned();
    let run = blocking(move || {
        let command = "echo through the relay; seq 1 20000 | tail -1; exit 3";
        let scenario = Scenario::new()
            .turn([ToolCall::exec("hello", command)])
            .turn([ToolCall::exec("token", "echo ${EXEC_SERVER_REMOTE_TOKEN-unknown}")])
            .say("done");
        let target = ClientTarget::Rendezvous { url: &url, environment: "env", token: &token };
        client.run_at(&target, scenario, DEADLINE)
    })
    .await;
    let hello = run.result("hello");
    assert_eq!(hello.exit_code, Some(3), "{hello:?}");
    assert!(hello.output.contains("through the relay\n20000\n"), "{hello:?}");
    assert_eq!(run.result("token").output, "unknown\n");
    // Close everything, so that the shutdown is orderly.
    executor.signal(Signal::TERM);
    assert_eq!(executor.wait().await.code(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn it_and_the_reference_as_harness_find_each_other_again_after_a_crash_of_the_rendezvous() {
    for client in blocking(ReferenceClient::find_all).await {
        eprintln!("with the reference {}:", client.version());
        let (data, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let program = Program::start(data.path(), "http://127.0.0.1:0").await;
        let token = program.token("harness").await;
        let executor_token = program.token("executor").await;
        let _executor = join(&program.url, state.path(), &executor_token).spawn();
        run_across_a_crash(client, program, data.path(), token).await;
    }
}

#[tokio::test]
async fn it_is_online_until_sigterm_and_leaves_in_order() {
    let rendezvous = TestRendezvous::start().await;
    let state = tempfile::tempdir().unwrap();
    let token = rendezvous.token(TokenRole::Executor, "env").await;
    let mut executor = join(rendezvous.url(), state.path(), &token).spawn();
    wait_for_presence(rendezvous.url(), rendezvous.admin_token(), true).await;
    let line = executor.next_stdout_line().await.expect("it says that it is attached");
    let start = format!("attached to {}/ as env:env, key SHA256:", rendezvous.url());
    assert!(line.starts_with(&start), "{line}");
    executor.signal(Signal::TERM);
    assert_eq!(executor.wait().await.code(), Some(0));
    assert_eq!(executor.next_stdout_line().await, None, "that is the only line on stdout");
    wait_for_presence(rendezvous.url(), rendezvous.admin_token(), false).await;
}

#[tokio::test]
async fn an_executor_reconnects_after_a_crash_of_the_rendezvous() {
    let (data, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut program = Program::start(data.path(), "http://127.0.0.1:0").await;
    let (url, admin) = (program.url.clone(), program.admin_token.clone().unwrap());
    let token = program.token("executor").await;
    let mut executor = join(&url, state.path(), &token).spawn();
    wait_for_presence(&url, &admin, true).await;
    program.kill().await;
    let _program = Program::start(data.path(), &url).await;
    wait_for_presence(&url, &admin, true).await;
    executor.signal(Signal::TERM);
    assert_eq!(executor.wait().await.code(), Some(0));
}

#[tokio::test]
async fn it_waits_for_a_rendezvous_that_is_not_there_yet() {
    let (data, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut program = Program::start(data.path(), "http://127.0.0.1:0").await;
    let (url, admin) = (program.url.clone(), program.admin_token.clone().unwrap());
    let token = program.token("executor").await;
    program.kill().await;
    let mut executor = join(&url, state.path(), &token).piped_stderr().spawn();
    while !executor.next_stderr_line().await.expect("it runs").contains("trying again") {}
    let _program = Program::start(data.path(), &url).await;
    wait_for_presence(&url, &admin, true).await;
}

#[tokio::test]
async fn sigterm_ends_it_with_0_while_it_waits_for_a_rendezvous() {
    let state = tempfile::tempdir().unwrap();
    // No process listens on a port that was free a moment ago.
    let free = free_address();
    let mut executor = join(&format!("http://{free}"), state.path(), "t").piped_stderr().spawn();
    while !executor.next_stderr_line().await.expect("it runs").contains("trying again") {}
    executor.signal(Signal::TERM);
    assert_eq!(executor.wait().await.code(), Some(0));
}

#[tokio::test]
async fn a_token_that_the_registry_refuses_ends_it_with_1() {
    let rendezvous = TestRendezvous::start().await;
    let state = tempfile::tempdir().unwrap();
    let harness = rendezvous.token(TokenRole::Harness, "env").await;
    for (token, status) in [("xs_exec_wrong", "(401)"), (harness.as_str(), "(403)")] {
        let (code, stdout, stderr) = join(rendezvous.url(), state.path(), token).run().await;
        assert_eq!((code, stdout.as_str()), (1, ""), "{stderr}");
        let answers = "exec-server: could not register environment `env`: \
                    the registry refused the credential ";
        assert!(stderr.starts_with(answers) && stderr.contains(status), "{stderr}");
        assert!(stderr.lines().count() == 1 && !stderr.contains(token), "{stderr}");
    }
}

#[tokio::test]
async fn it_ends_with_1_when_its_token_is_revoked() {
    let rendezvous = TestRendezvous::start().await;
    let state = tempfile::tempdir().unwrap();
    let token = rendezvous.token(TokenRole::Executor, "env").await;
    let mut executor = join(rendezvous.url(), state.path(), &token).spawn();
    wait_for_presence(rendezvous.url(), rendezvous.admin_token(), true).await;
    revoke_all(&rendezvous).await;
    assert_eq!(executor.wait().await.code(), Some(1));
}

#[tokio::test]
async fn registration_failures_are_reported_in_one_line() {
    let state = tempfile::tempdir().unwrap();
    let home = state.path().display().to_string();
    for (url, token, answers) in [
        ("http://192.0.2.1:7780", "t", "refusing to send a credential to 192.0.2.1 without TLS"),
        ("http://relay.example.org", "t", "credential to relay.example.org without TLS"),
        ("ws://127.0.0.1:7780", "t", "is not a registry URL"),
        ("http://127.0.0.1:7780", "", "set EXEC_SERVER_REMOTE_TOKEN"),
        ("http://127.0.0.1:7780", "a b", "characters that a header cannot carry"),
    ] {
        let builder = join(url, state.path(), token).env("CODEX_HOME", &home);
        let (code, stdout, stderr) = builder.run().await;
        assert_eq!((code, stdout.as_str()), (1, ""), "{url}: {stderr}");
        assert!(stderr.contains(answers) && stderr.lines().count() == 1, "{url}: {stderr}");
    }
    for name in [".", "..", " "] {
        let builder = TestExecutor::builder().args(&["--remote", "http://127.0.0.1:7780"]);
        let (code, _, stderr) = builder.args(&["--environment-id", name]).run().await;
        assert!(code == 1 && stderr.contains("--environment-id must"), "{name}: {stderr}");
    }
    let builder = join("http://127.0.0.1:7780", state.path(), "t");
    let (code, _, stderr) = builder.args(&["--identity", "/dev/null/key"]).run().await;
    assert_eq!(code, 1);
    assert!(stderr.contains("/dev/null/key: Not a directory"), "the cause is said: {stderr}");
}

#[tokio::test]
async fn its_parent_can_hand_it_tokens_and_end_it_by_stdin() {
    let rendezvous = TestRendezvous::start().await;
    let state = tempfile::tempdir().unwrap();
    let token = rendezvous.token(TokenRole::Executor, "env").await;
    let builder = join(rendezvous.url(), state.path(), "");
    let mut executor = builder.args(&["--executor-credential-stdin"]).spawn();
    let expires_at = clock::now() + 3600;
    let line =
        json!({"version": 1, "environment_id": "env", "token": token, "expires_at": expires_at});
    executor.write_stdin(format!("{line}\n").as_bytes()).await;
    wait_for_presence(rendezvous.url(), rendezvous.admin_token(), true).await;
    executor.close_stdin();
    assert_eq!(executor.wait().await.code(), Some(0));
}

#[tokio::test]
async fn a_token_in_a_file_can_be_replaced_before_the_old_one_is_revoked() {
    let rendezvous = TestRendezvous::start().await;
    let state = tempfile::tempdir().unwrap();
    let file = state.path().join("token");
    std::fs::write(&file, rendezvous.token(TokenRole::Executor, "env").await).unwrap();
    let builder = join(rendezvous.url(), state.path(), "").env("RUST_LOG", "info");
    let builder = builder.env("EXEC_SERVER_REMOTE_TOKEN_FILE", &file);
    let mut executor = builder.piped_stderr().spawn();
    wait_until_attached(&mut executor).await;
    let old = rendezvous.store().tokens().await.unwrap();
    let old = old.into_iter().find(|token| token.role == TokenRole::Executor).unwrap();
    std::fs::write(&file, rendezvous.token(TokenRole::Executor, "env").await).unwrap();
    rendezvous.store().revoke_token(old.id, clock::now()).await.unwrap();
    wait_until_attached(&mut executor).await;
    let token = rendezvous.token(TokenRole::Harness, "env").await;
    let mut client = TestHarness::new(rendezvous.url(), "env", &token).client().await;
    client.initialize().await;
    assert_eq!(client.sh("p", "echo still").await.text(), "still\n");
    executor.signal(Signal::TERM);
    assert_eq!(executor.wait().await.code(), Some(0));
}

#[tokio::test]
async fn the_end_of_stdin_ends_it_if_that_is_the_sign() {
    let rendezvous = TestRendezvous::start().await;
    let state = tempfile::tempdir().unwrap();
    let token = rendezvous.token(TokenRole::Executor, "env").await;
    let builder = join(rendezvous.url(), state.path(), &token);
    let mut executor = builder.args(&["--exit-on-stdin-close"]).spawn();
    wait_for_presence(rendezvous.url(), rendezvous.admin_token(), true).await;
    executor.close_stdin();
    assert_eq!(executor.wait().await.code(), Some(0));
}

#[tokio::test]
async fn it_keeps_its_key() {
    let rendezvous = TestRendezvous::start().await;
    let state = tempfile::tempdir().unwrap();
    let token = rendezvous.token(TokenRole::Executor, "env").await;
    let mut keys = Vec::new();
    for _ in 0..2 {
        let builder = join(rendezvous.url(), state.path(), &token).env("RUST_LOG", "info");
        let mut executor = builder.args(&["--name", "the one"]).piped_stderr().spawn();
        let joining = loop {
            let line = executor.next_stderr_line().await.expect("it says so");
            if line.contains("\"joining\"") {
                break serde_json::from_str::<Value>(&line).expect("a line of JSON");
            }
        };
        let text = joining.to_string();
        assert!(text.contains("\"the one\"") && !text.contains(&token), "{text}");
        let key = text.split("\"fingerprint\":\"").nth(1).expect("it names its key");
        keys.push(key.split('"').next().map(str::to_owned));
    }
    assert_eq!(keys[0], keys[1]);
    // A process that could read the key could impersonate this machine.
    let file = state.path().join("identity.json");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
    let mut executor = join(rendezvous.url(), state.path(), &token).piped_stderr().spawn();
    let line = executor.next_stderr_line().await.expect("it says so");
    assert!(line.contains("the identity file can be read or changed by others"), "{line}");
}

async fn wait_until_attached(executor: &mut TestExecutor) {
    while !executor.next_stderr_line().await.expect("it runs").contains("attached to the relay") {}
}
