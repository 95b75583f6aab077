//! Every client command takes `env:NAME`.

use std::process::Stdio;

use exec_server_testkit::executor::TestExecutor;
use exec_server_testkit::remote::join;
use exec_server_testkit::{DEADLINE, Terminal};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::time::timeout;

use super::{RelayFixture, command, finish};
use crate::commands::dialling::Dialled;
use crate::rendezvous::commands::Program;

#[tokio::test]
async fn run_passes_input_output_and_exit_code() {
    let fixture = RelayFixture::start().await;
    let script = "wc -c; echo err >&2; exit 7";
    let mut child = fixture
        .command(&["run", "env:env", "--", "sh", "-c", script])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    timeout(DEADLINE, stdin.write_all(&vec![b'x'; 300_000])).await.unwrap().unwrap();
    drop(stdin);
    let (code, out, err) = finish(child).await;
    assert_eq!((code, out.trim()), (7, "300000"));
    assert!(err.ends_with("err\n"), "{err}");
}

#[tokio::test]
async fn a_take_over_is_reported_through_the_relay() {
    let fixture = RelayFixture::start().await;
    let run = ["run", "--name", "job", "env:env", "--", "sh", "-c", "echo ready; exec sleep 1000"];
    let mut loser = fixture.command(&run).spawn().unwrap();
    let mut lines = BufReader::new(loser.stdout.take().unwrap()).lines();
    assert_eq!(timeout(DEADLINE, lines.next_line()).await.unwrap().unwrap().unwrap(), "ready");
    let attach = ["attach", "-n", "--take-over", "env:env", "job"];
    let mut taker = fixture.command(&attach).spawn().unwrap();
    let mut taken = BufReader::new(taker.stdout.take().unwrap()).lines();
    assert_eq!(timeout(DEADLINE, taken.next_line()).await.unwrap().unwrap().unwrap(), "ready");
    // The taker still holds the session: a loser that tried to come back would be refused, and say so.
    let (code, _, err) = finish(loser).await;
    assert_eq!(code, 254, "{err}");
    assert!(err.contains("taken over by another client"), "{err}");
    assert!(!err.contains("lost the connection"), "{err}");
    assert_eq!(fixture.run(&["kill", "env:env", "job"]).await.0, 0);
    assert_eq!(finish(taker).await.0, 143);
}

#[tokio::test]
async fn a_command_of_another_client_is_not_taken_through_the_relay_unasked() {
    let fixture = RelayFixture::start().await;
    let script = "echo ready; read x; echo got $x";
    let run = ["run", "-i", "--name", "job", "env:env", "--", "sh", "-c", script];
    let mut holder = fixture.command(&run).stdin(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(holder.stdout.take().unwrap()).lines();
    assert_eq!(timeout(DEADLINE, lines.next_line()).await.unwrap().unwrap().unwrap(), "ready");
    let (code, out, err) = fixture.run_again(&["attach", "-n", "env:env", "job"]).await;
    assert_eq!((code, out.as_str()), (125, ""), "{err}");
    assert!(err.contains("`job` is attached to another client"), "{err}");
    assert!(err.contains("`exec-server attach --take-over env:env job`"), "{err}");
    // The holder has noticed nothing.
    let mut stdin = holder.stdin.take().unwrap();
    timeout(DEADLINE, stdin.write_all(b"input\n")).await.unwrap().unwrap();
    drop(stdin);
    assert_eq!(timeout(DEADLINE, lines.next_line()).await.unwrap().unwrap().unwrap(), "got input");
    assert_eq!(finish(holder).await.0, 0);
}

#[tokio::test]
async fn a_command_that_its_client_has_left_is_attached_through_the_relay() {
    let fixture = RelayFixture::start().await;
    let run = ["run", "--name", "job", "env:env", "--", "sh", "-c", "echo ready; exec sleep 1000"];
    let mut holder = fixture.command(&run).spawn().unwrap();
    let mut lines = BufReader::new(holder.stdout.take().unwrap()).lines();
    assert_eq!(timeout(DEADLINE, lines.next_line()).await.unwrap().unwrap().unwrap(), "ready");
    // The end of its stream may arrive later than the next client.
    holder.kill().await.unwrap();
    let mut next = fixture.command(&["attach", "-n", "env:env", "job"]).spawn().unwrap();
    let mut lines = BufReader::new(next.stdout.take().unwrap()).lines();
    assert_eq!(timeout(DEADLINE, lines.next_line()).await.unwrap().unwrap().unwrap(), "ready");
    assert_eq!(fixture.run(&["kill", "env:env", "job"]).await.0, 0);
    assert_eq!(finish(next).await.0, 143);
}

#[tokio::test]
async fn dial_passes_messages_to_an_environment_and_a_session_is_resumed_by_the_next_dial() {
    let fixture = RelayFixture::start().await;
    let mut first = Dialled::start(fixture.command(&["dial", "env:env"]));
    let session = first.open(None, false).await;
    assert_eq!(first.output(&["/bin/echo", "hi"]).await, "hi\n");
    let (code, err) = first.end().await;
    assert_eq!(code, 0, "{err}");
    let mut second = Dialled::start(fixture.command(&["dial", "env:env"]));
    assert_eq!(second.open(Some(&session), false).await, session);
    let mut stranger = fixture.command(&["dial", "env:env"]);
    let stranger = stranger.env("EXEC_SERVER_REMOTE_TOKEN", "xs_harness_wrong").spawn().unwrap();
    let (code, out, err) = finish(stranger).await;
    assert_eq!((code, out.as_str()), (77, ""), "{err}");
    assert!(err.contains("refused the credential"), "{err}");
}

#[tokio::test]
async fn files_are_copied_shown_and_listed() {
    let fixture = RelayFixture::start().await;
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let local = here.path().join("notes.txt").display().to_string();
    std::fs::write(&local, "remember\n").unwrap();
    let remote = format!("env:env:{}", there.path().join("copy.txt").display());
    let ok = |out: &str| (0, out.to_owned(), String::new());
    assert_eq!(fixture.run_again(&["cp", "-q", &local, &remote]).await, ok(""));
    assert_eq!(fixture.run_again(&["cat", &remote]).await, ok("remember\n"));
    let directory = format!("env:env:{}", there.path().display());
    assert_eq!(fixture.run_again(&["ls", &directory]).await, ok("copy.txt\n"));
    let back = here.path().join("back.txt").display().to_string();
    assert_eq!(fixture.run_again(&["cp", "-q", &remote, &back]).await, ok(""));
    assert_eq!(std::fs::read(&back).unwrap(), b"remember\n");
    let (code, info, err) = fixture.run_again(&["info", "-o", "json", "env:env"]).await;
    assert_eq!((code, err.as_str()), (0, ""));
    let info: Value = serde_json::from_str(&info).unwrap();
    assert!(info.to_string().contains("linux"), "{info}");
}

#[tokio::test]
async fn a_detached_process_is_found_by_the_next_command() {
    let fixture = RelayFixture::start().await;
    let script = "echo one; exec sleep 1000";
    let run = ["run", "-d", "--name", "job", "env:env", "--", "sh", "-c", script];
    let (code, id, err) = fixture.run_again(&run).await;
    assert_eq!((code, id.as_str()), (0, "job\n"), "{err}");
    assert_eq!(fixture.run(&["ps", "-q", "env:env"]).await.1, "job\n");
    while fixture.run(&["logs", "env:env", "job"]).await.1 != "one\n" {}
    // Another user's key does not see it.
    let stranger = tempfile::tempdir().unwrap();
    let child = fixture
        .command(&["ps", "-q", "env:env"])
        .env("EXEC_SERVER_STATE_DIR", stranger.path())
        .spawn()
        .unwrap();
    assert_eq!(finish(child).await.1, "");
    assert_eq!(fixture.run(&["kill", "env:env", "job"]).await.0, 0);
    // Following its log ends with it.
    assert_eq!(fixture.run(&["logs", "-f", "env:env", "job"]).await.1, "one\n");
    assert_eq!(fixture.run(&["ps", "-q", "env:env"]).await.1, "");
}

#[tokio::test]
async fn a_list_names_environments_with_their_registry_token_and_key() {
    let fixture = RelayFixture::start().await;
    let folder = tempfile::tempdir().unwrap();
    let list = folder.path().join("environments.toml");
    std::fs::write(folder.path().join("token"), format!("{}\n", fixture.harness_token)).unwrap();
    let text = format!(
        "default = \"build\"\n[[environments]]\nid = \"build\"\nregistry = \"{}\"\n\
         environment_id = \"env\"\ntoken_file = \"token\"\nexecutor_key = \"any\"\n",
        fixture.rendezvous.url()
    );
    std::fs::write(&list, text).unwrap();
    let list = ["--environments", list.to_str().unwrap()];
    for target in [&["build"][..], &["env:build"], &[]] {
        let run = [&["run"], &list[..], target, &["--", "echo", "hi"]].concat();
        let child = super::command(&run, fixture.state.path()).spawn().unwrap();
        assert_eq!(finish(child).await, (0, "hi\n".to_owned(), String::new()), "{target:?}");
    }
    // Arguments override the entry in environments.toml.
    let elsewhere = ["run", "--remote", "http://192.0.2.1", "--", "true"];
    let child =
        super::command(&[&elsewhere[..3], &list, &elsewhere[3..]].concat(), fixture.state.path());
    let (code, _, err) =
        finish({ child }.env("EXEC_SERVER_REMOTE_TOKEN", "t").spawn().unwrap()).await;
    assert!(code == 255 && err.contains("`env` through http://192.0.2.1: refusing"), "{err}");
    // A file of tokens may also be named on the command line.
    let token = folder.path().join("token").display().to_string();
    let url = fixture.rendezvous.url();
    for option in ["--remote-token-file", "--token-file"] {
        let run = ["run", "--remote", url, option, &token, "env:env", "--", "echo", "hi"];
        let child = super::command(&run, fixture.state.path()).spawn().unwrap();
        assert_eq!(finish(child).await.1, "hi\n", "{option}");
    }
    let child = super::command(&["run", "--", "echo", "hi"], fixture.state.path())
        .env("EXEC_SERVER_URL", "env:env")
        .env("EXEC_SERVER_REMOTE_URL", url)
        .env("EXEC_SERVER_REMOTE_TOKEN_FILE", &token)
        .spawn()
        .unwrap();
    assert_eq!(finish(child).await.1, "hi\n");
    let child = super::command(&["run", "--", "echo", "hi"], fixture.state.path())
        .env("CODEX_EXEC_SERVER_NOISE_REGISTRY_URL", url)
        .env("CODEX_EXEC_SERVER_NOISE_ENVIRONMENT_ID", "env")
        .env("CODEX_EXEC_SERVER_NOISE_AUTH_TOKEN", &fixture.harness_token)
        .spawn()
        .unwrap();
    assert_eq!(finish(child).await.1, "hi\n");
}

#[tokio::test]
async fn a_shell_is_a_terminal_over_there() {
    let fixture = RelayFixture::start().await;
    let program = exec_server_testkit::executor::binary().display().to_string();
    // The terminal comes from a server of ours, which passes no token on.
    let token = fixture.state.path().join("token");
    std::fs::write(&token, &fixture.harness_token).unwrap();
    let env = [
        ("EXEC_SERVER_STATE_DIR", fixture.state.path().to_str().unwrap()),
        ("EXEC_SERVER_REMOTE_URL", fixture.rendezvous.url()),
        ("EXEC_SERVER_REMOTE_TOKEN_FILE", token.to_str().unwrap()),
    ];
    let mut terminal = Terminal::start(&[&program, "shell", "env:env"], &env).await;
    terminal.expect("for the first time").await;
    terminal.type_keys("tty; exit 5\n").await;
    terminal.expect("/dev/pts/").await;
    assert_eq!(terminal.finish().await.0, 5);
}

#[tokio::test]
async fn a_stream_has_the_same_name_in_every_log() {
    let (data, executor_state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let state = tempfile::tempdir().unwrap();
    let mut program = Program::start(data.path(), "http://127.0.0.1:0").await;
    let executor_token = program.token("executor").await;
    let harness_token = program.token("harness").await;
    let builder = join(&program.url, executor_state.path(), &executor_token);
    let mut executor = builder.env("RUST_LOG", "info").piped_stderr().spawn();
    let child = command(&["run", "env:env", "--", "true"], state.path())
        .env("EXEC_SERVER_REMOTE_URL", &program.url)
        .env("EXEC_SERVER_REMOTE_TOKEN", &harness_token)
        .env("RUST_LOG", "exec_server_client=info")
        .spawn();
    let (code, _, err) = finish(child.unwrap()).await;
    assert_eq!(code, 0, "{err}");
    let lines = err.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut opened = lines.filter(|line| line["message"] == "a stream to the executor");
    let opened = opened.next().expect("the harness names it");
    let stream_id = opened["stream_id"].as_str().expect("a name").to_owned();
    for message in ["harness admitted", "harness disconnected"] {
        wait_for_line(&mut executor, message, &stream_id).await;
    }
    // In the order of the rendezvous' log.
    for message in ["stream claimed", "harness validated"] {
        wait_for_line(&mut program.process, message, &stream_id).await;
    }
}

/// Waits for a line of a log about this stream.
async fn wait_for_line(process: &mut TestExecutor, message: &str, stream_id: &str) {
    loop {
        let line = process.next_stderr_line().await.expect("it goes on");
        let line: Value = serde_json::from_str(&line).unwrap_or_default();
        if line["message"] == message && line["stream_id"] == stream_id {
            return;
        }
    }
}
