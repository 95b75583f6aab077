//! What cannot be reached, and what to do about it.

use exec_server_rendezvous::store::TokenRole;
use exec_server_testkit::TestRendezvous;

use super::{Meeting, command, finish};

#[tokio::test]
async fn an_executor_that_is_not_there_is_waited_for_and_then_said_to_be_offline() {
    let rendezvous = TestRendezvous::start().await;
    let token = rendezvous.token(TokenRole::Harness, "env").await;
    let state = tempfile::tempdir().unwrap();
    let child =
        command(&["run", "--remote", rendezvous.url(), "env:env", "--", "true"], state.path())
            .env("EXEC_SERVER_REMOTE_TOKEN", &token)
            .spawn()
            .unwrap();
    let (code, out, err) = finish(child).await;
    assert_eq!((code, out.as_str()), (255, ""), "{err}");
    let lines: Vec<_> = err.lines().collect();
    assert_eq!(lines.len(), 3, "{err}");
    assert!(
        lines[0].contains("environment_offline") && lines[0].ends_with("; trying again"),
        "{err}"
    );
    assert!(lines[1].starts_with("exec-server: could not reach environment `env`"), "{err}");
    assert!(lines[2].contains("--environment-id env"), "{err}");
    assert!(!err.contains(&token), "{err}");
}

#[tokio::test]
async fn an_executor_that_comes_in_a_moment_is_waited_for() {
    let rendezvous = TestRendezvous::start().await;
    let harness = rendezvous.token(TokenRole::Harness, "env").await;
    let executor = rendezvous.token(TokenRole::Executor, "env").await;
    let (state, executor_state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut child = command(
        &["run", "--remote", rendezvous.url(), "env:env", "--", "echo", "hi"],
        state.path(),
    )
    .env("EXEC_SERVER_REMOTE_TOKEN", &harness)
    .spawn()
    .unwrap();
    let mut stderr = tokio::io::BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    tokio::io::AsyncBufReadExt::read_line(&mut stderr, &mut line).await.unwrap();
    assert!(line.ends_with("; trying again\n"), "{line}");
    let _executor =
        crate::rendezvous::executor::join(rendezvous.url(), executor_state.path(), &executor)
            .spawn();
    assert_eq!(finish(child).await.1, "hi\n");
}

#[tokio::test]
async fn a_wrong_token_or_registry_is_said_at_once_with_the_next_step() {
    let meeting = Meeting::start().await;
    let other = meeting.rendezvous.token(TokenRole::Harness, "other").await;
    let url = meeting.rendezvous.url();
    let run = |url: &str, token: &str, name: &str| {
        let arguments = ["run", "--remote", url, name, "--", "true"];
        let mut command = command(&arguments, meeting.state.path());
        command.env("EXEC_SERVER_REMOTE_TOKEN", token);
        async move { finish(command.spawn().unwrap()).await }
    };
    for (url, token, name, says) in [
        (url, "xs_harness_wrong", "env:env", ["(401)", "token create --environment env"]),
        (url, other.as_str(), "env:env", ["(403)", "another environment or role"]),
        (url, meeting.executor_token.as_str(), "env:env", ["(403)", "--role harness"]),
        (url, meeting.harness_token.as_str(), "env:nobody", ["(403)", "--environment nobody"]),
        ("http://192.0.2.1", "t", "env:env", ["without TLS", "https://"]),
        ("ws://127.0.0.1:1", "t", "env:env", ["no URL of a registry", "https://"]),
        (url, "a b", "env:env", ["cannot carry", "token"]),
        (url, "", "env:env", ["set EXEC_SERVER_REMOTE_TOKEN", "token create"]),
    ] {
        let (code, out, err) = run(url, token, name).await;
        assert!(code == 255 || code == 125, "{code}: {err}");
        assert_eq!(out, "");
        assert!(says.iter().all(|words| err.contains(words)), "{says:?}: {err}");
        assert!(token.len() < 4 || !err.contains(token), "{err}");
    }
    let child = command(&["run", "env:env", "--", "true"], meeting.state.path()).spawn().unwrap();
    let (code, _, err) = finish(child).await;
    assert!(code == 125 && err.contains("EXEC_SERVER_REMOTE_URL"), "{err}");
    let arguments = ["run", "--executor-key", "any", "ws://127.0.0.1:1", "--", "true"];
    let (code, _, err) = finish(command(&arguments, meeting.state.path()).spawn().unwrap()).await;
    assert!(code == 125 && err.contains("go with a target like env:NAME"), "{err}");
}

#[tokio::test]
async fn a_rendezvous_that_is_away_is_tried_again_and_then_named() {
    let state = tempfile::tempdir().unwrap();
    // Nobody listens on a port that was free a moment ago.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let child = command(&["info", "--remote", &format!("http://{free}"), "env:env"], state.path())
        .env("EXEC_SERVER_REMOTE_TOKEN", "t")
        .spawn()
        .unwrap();
    let (code, _, err) = finish(child).await;
    assert_eq!(code, 255, "{err}");
    assert!(err.contains("; trying again") && err.contains("exec-server rendezvous"), "{err}");
}

#[tokio::test]
async fn a_place_for_the_key_is_needed_and_said() {
    let meeting = Meeting::start().await;
    let child = meeting
        .command(&["run", "env:env", "--", "true"])
        .env("EXEC_SERVER_STATE_DIR", "/dev/null/state")
        .spawn()
        .unwrap();
    let (code, _, err) = finish(child).await;
    assert!(code == 255 && err.contains("/dev/null/state"), "{err}");
}
