//! Reconnects through a relay, after breaks at every place of the link.

use exec_server::{ExecServerClient, ProcessEvent, Stdin};
use exec_server_testkit::isolation::free_address;
use exec_server_testkit::remote::{join, wait_for_presence};
use exec_server_testkit::{DEADLINE, FaultProxy, TestRendezvous};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::time::timeout;

use super::{RelayFixture, args, connect};
use crate::rendezvous::commands::Program;

/// Runs an exchange during which `event` happens; no byte is lost or repeated.
pub async fn talk_across(client: &ExecServerClient, mut disturb: impl AsyncFnMut(u32)) {
    let session_id = client.session_id();
    let mut child = client.command("cat").stdin(Stdin::Piped).spawn().await.unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    for number in 0..12 {
        disturb(number).await;
        stdin.write_all(format!("line {number}\n").as_bytes()).await.unwrap();
        let mut line = String::new();
        timeout(DEADLINE, stdout.read_line(&mut line)).await.unwrap().unwrap();
        assert_eq!(line, format!("line {number}\n"));
    }
    assert_eq!(client.session_id(), session_id, "it is the same session");
    drop(stdin);
    assert!(child.wait().await.unwrap().success());
}

#[tokio::test]
async fn a_session_continues_when_both_relay_sockets_are_cut() {
    let listen = free_address();
    let proxy = FaultProxy::to(&format!("ws://{listen}")).await;
    let public = proxy.url().replace("ws://", "http://");
    let rendezvous = TestRendezvous::start_with(|config| {
        config.listen = listen;
        config.public_url = Some(public);
    })
    .await;
    let fixture = RelayFixture::at(rendezvous).await;
    let client = fixture.client().await;
    talk_across(&client, async |number| {
        if number % 4 == 1 {
            proxy.cut();
        }
    })
    .await;
    assert!(proxy.connections() >= 5);
}

#[tokio::test]
async fn a_crash_of_the_rendezvous_loses_no_session_and_no_byte() {
    let (data, executor_state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let state = tempfile::tempdir().unwrap();
    let mut program = Program::start(data.path(), "http://127.0.0.1:0").await;
    let (url, admin) = (program.url.clone(), program.admin_token.clone().unwrap());
    let executor_token = program.token("executor").await;
    let harness_token = program.token("harness").await;
    let _executor = join(&url, executor_state.path(), &executor_token).spawn();
    wait_for_presence(&url, &admin, true).await;
    let client = connect(args(&url, &harness_token, state.path())).await;
    // This process keeps writing while its client is away.
    let folder = tempfile::tempdir().unwrap();
    let go = folder.path().join("go");
    let script =
        format!("seq 1 1000; until [ -e {} ]; do sleep 0.01; done; seq 1001 200000", go.display());
    let mut command = client.command("sh");
    let mut talker = command.args(["-c", &script]).output_retention(8 << 20).spawn().await.unwrap();
    let mut said = BufReader::new(talker.stdout.take().unwrap());
    let mut line = String::new();
    said.read_line(&mut line).await.unwrap();
    talk_across(&client, async |number| {
        if number == 3 || number == 7 {
            program.kill().await;
            std::fs::write(&go, "").unwrap();
            program = Program::start(data.path(), &url).await;
        }
    })
    .await;
    let mut rest = String::new();
    timeout(DEADLINE, said.read_to_string(&mut rest)).await.unwrap().unwrap();
    let expected: String = (1..=200_000).map(|number| format!("{number}\n")).collect();
    assert!(line + &rest == expected);
    assert!(talker.wait().await.unwrap().success());
}

#[tokio::test]
async fn a_restarted_executor_is_reported_and_used() {
    let mut fixture = RelayFixture::start().await;
    let client = fixture.client().await;
    let child = client.command("cat").stdin(Stdin::Piped).spawn().await.unwrap();
    let mut events = child.session().events();
    let state = fixture.executor_state.path().to_owned();
    fixture.replace_executor(&state).await;
    let failure = loop {
        match timeout(DEADLINE, events.next()).await.expect("it is noticed") {
            Some(ProcessEvent::Failed(reason)) => break reason,
            Some(_) => {}
            None => panic!("the end is told"),
        }
    };
    assert!(failure.contains("unknown session"), "{failure}");
    let output = client.command("echo").arg("hi").output().await.unwrap();
    assert_eq!(output.stdout_text(), "hi\n");
}

#[tokio::test]
async fn a_command_whose_executor_restarts_fails_with_255_and_the_reason() {
    let mut fixture = RelayFixture::start().await;
    let mut child = fixture
        .command(&["run", "env:env", "--", "sh", "-c", "echo ready; exec sleep 1000"])
        .spawn()
        .unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    timeout(DEADLINE, stdout.read_line(&mut line)).await.unwrap().unwrap();
    assert_eq!(line, "ready\n");
    let state = fixture.executor_state.path().to_owned();
    fixture.replace_executor(&state).await;
    let (code, _, err) = super::finish(child).await;
    assert_eq!(code, 255, "{err}");
    assert!(
        err.contains("lost the connection") && err.contains("the server was restarted"),
        "{err}"
    );
}

#[tokio::test]
async fn a_token_that_is_revoked_meanwhile_ends_the_session_at_once() {
    let fixture = RelayFixture::start().await;
    let client = fixture.client().await;
    let child = client.command("cat").stdin(Stdin::Piped).spawn().await.unwrap();
    let mut events = child.session().events();
    crate::rendezvous::revoke_all(&fixture.rendezvous).await;
    let failure = loop {
        match timeout(DEADLINE, events.next()).await.expect("it is noticed") {
            Some(ProcessEvent::Failed(reason)) => break reason,
            Some(_) => {}
            None => panic!("the end is told"),
        }
    };
    assert!(failure.contains("could not reach environment `env`"), "{failure}");
    assert!(failure.contains("the registry refused the credential (401)"), "{failure}");
}
