//! Every client command takes `env:NAME`.

use std::process::Stdio;

use exec_server_testkit::executor::TestExecutor;
use exec_server_testkit::{DEADLINE, Terminal};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::time::timeout;

use super::{Meeting, command, finish};
use crate::commands::dialling::Dialled;
use crate::rendezvous::commands::Program;
use crate::rendezvous::executor::join;

#[tokio::test]
async fn run_passes_input_output_and_exit_code() {
    let meeting = Meeting::start().await;
    let script = "wc -c; echo err >&2; exit 7";
    let mut child = meeting
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
async fn the_one_from_whom_a_command_is_taken_hears_of_it_through_the_relay() {
    let meeting = Meeting::start().await;
    let run = ["run", "--name", "job", "env:env", "--", "sh", "-c", "echo ready; exec sleep 1000"];
    let mut loser = meeting.command(&run).spawn().unwrap();
    let mut lines = BufReader::new(loser.stdout.take().unwrap()).lines();
    assert_eq!(timeout(DEADLINE, lines.next_line()).await.unwrap().unwrap().unwrap(), "ready");
    let attach = ["attach", "-n", "--take-over", "env:env", "job"];
    let mut taker = meeting.command(&attach).spawn().unwrap();
    let mut taken = BufReader::new(taker.stdout.take().unwrap()).lines();
    assert_eq!(timeout(DEADLINE, taken.next_line()).await.unwrap().unwrap().unwrap(), "ready");
    // The taker still holds the session: a loser that tried to come back would be refused, and say so.
    let (code, _, err) = finish(loser).await;
    assert_eq!(code, 254, "{err}");
    assert!(err.contains("taken over by another client"), "{err}");
    assert!(!err.contains("lost the connection"), "{err}");
    assert_eq!(meeting.run(&["kill", "env:env", "job"]).await.0, 0);
    assert_eq!(finish(taker).await.0, 143);
}

#[tokio::test]
async fn dial_passes_messages_to_an_environment_and_a_session_is_resumed_by_the_next_dial() {
    let meeting = Meeting::start().await;
    let mut first = Dialled::start(meeting.command(&["dial", "env:env"]));
    let session = first.open(None, false).await;
    assert_eq!(first.output(&["/bin/echo", "hi"]).await, "hi\n");
    let (code, err) = first.end().await;
    assert_eq!(code, 0, "{err}");
    let mut second = Dialled::start(meeting.command(&["dial", "env:env"]));
    assert_eq!(second.open(Some(&session), false).await, session);
    let mut stranger = meeting.command(&["dial", "env:env"]);
    let stranger = stranger.env("EXEC_SERVER_REMOTE_TOKEN", "xs_harness_wrong").spawn().unwrap();
    let (code, out, err) = finish(stranger).await;
    assert_eq!((code, out.as_str()), (77, ""), "{err}");
    assert!(err.contains("refused the credential"), "{err}");
}

#[tokio::test]
async fn files_are_copied_shown_and_listed() {
    let meeting = Meeting::start().await;
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let local = here.path().join("notes.txt").display().to_string();
    std::fs::write(&local, "remember\n").unwrap();
    let remote = format!("env:env:{}", there.path().join("copy.txt").display());
    let ok = |out: &str| (0, out.to_owned(), String::new());
    assert_eq!(meeting.run_again(&["cp", "-q", &local, &remote]).await, ok(""));
    assert_eq!(meeting.run_again(&["cat", &remote]).await, ok("remember\n"));
    let directory = format!("env:env:{}", there.path().display());
    assert_eq!(meeting.run_again(&["ls", &directory]).await, ok("copy.txt\n"));
    let back = here.path().join("back.txt").display().to_string();
    assert_eq!(meeting.run_again(&["cp", "-q", &remote, &back]).await, ok(""));
    assert_eq!(std::fs::read(&back).unwrap(), b"remember\n");
    let (code, info, err) = meeting.run_again(&["info", "-o", "json", "env:env"]).await;
    assert_eq!((code, err.as_str()), (0, ""));
    let info: Value = serde_json::from_str(&info).unwrap();
    assert!(info.to_string().contains("linux"), "{info}");
}

#[tokio::test]
async fn what_was_left_running_is_found_again_by_the_next_command() {
    let meeting = Meeting::start().await;
    let script = "echo one; exec sleep 1000";
    let run = ["run", "-d", "--name", "job", "env:env", "--", "sh", "-c", script];
    let (code, id, err) = meeting.run_again(&run).await;
    assert_eq!((code, id.as_str()), (0, "job\n"), "{err}");
    assert_eq!(meeting.run(&["ps", "-q", "env:env"]).await.1, "job\n");
    while meeting.run(&["logs", "env:env", "job"]).await.1 != "one\n" {}
    // Another user's key shows nothing of it.
    let stranger = tempfile::tempdir().unwrap();
    let child = meeting
        .command(&["ps", "-q", "env:env"])
        .env("EXEC_SERVER_STATE_DIR", stranger.path())
        .spawn()
        .unwrap();
    assert_eq!(finish(child).await.1, "");
    assert_eq!(meeting.run(&["kill", "env:env", "job"]).await.0, 0);
    // Following its log ends with it.
    assert_eq!(meeting.run(&["logs", "-f", "env:env", "job"]).await.1, "one\n");
    assert_eq!(meeting.run(&["ps", "-q", "env:env"]).await.1, "");
}

#[tokio::test]
async fn a_list_names_environments_with_their_registry_token_and_key() {
    let meeting = Meeting::start().await;
    let folder = tempfile::tempdir().unwrap();
    let list = folder.path().join("environments.toml");
    std::fs::write(folder.path().join("token"), format!("{}\n", meeting.harness_token)).unwrap();
    let text = format!(
        "default = \"build\"\n[[environments]]\nid = \"build\"\nregistry = \"{}\"\n\
         environment_id = \"env\"\ntoken_file = \"token\"\nexecutor_key = \"any\"\n",
        meeting.rendezvous.url()
    );
    std::fs::write(&list, text).unwrap();
    let list = ["--environments", list.to_str().unwrap()];
    for target in [&["build"][..], &["env:build"], &[]] {
        let run = [&["run"], &list[..], target, &["--", "echo", "hi"]].concat();
        let child = super::command(&run, meeting.state.path()).spawn().unwrap();
        assert_eq!(finish(child).await, (0, "hi\n".to_owned(), String::new()), "{target:?}");
    }
    // What the command line says counts more than the list.
    let elsewhere = ["run", "--remote", "http://192.0.2.1", "--", "true"];
    let child =
        super::command(&[&elsewhere[..3], &list, &elsewhere[3..]].concat(), meeting.state.path());
    let (code, _, err) =
        finish({ child }.env("EXEC_SERVER_REMOTE_TOKEN", "t").spawn().unwrap()).await;
    assert!(code == 255 && err.contains("`env` through http://192.0.2.1: refusing"), "{err}");
    // A file of tokens may also be named on the command line.
    let token = folder.path().join("token").display().to_string();
    let url = meeting.rendezvous.url();
    let run =
        ["run", "--remote", url, "--remote-token-file", &token, "env:env", "--", "echo", "hi"];
    let child = super::command(&run, meeting.state.path()).spawn().unwrap();
    assert_eq!(finish(child).await.1, "hi\n");
    let child = super::command(&["run", "--", "echo", "hi"], meeting.state.path())
        .env("EXEC_SERVER_URL", "env:env")
        .env("EXEC_SERVER_REMOTE_URL", url)
        .env("EXEC_SERVER_REMOTE_TOKEN_FILE", &token)
        .spawn()
        .unwrap();
    assert_eq!(finish(child).await.1, "hi\n");
    let child = super::command(&["run", "--", "echo", "hi"], meeting.state.path())
        .env("CODEX_EXEC_SERVER_NOISE_REGISTRY_URL", url)
        .env("CODEX_EXEC_SERVER_NOISE_ENVIRONMENT_ID", "env")
        .env("CODEX_EXEC_SERVER_NOISE_AUTH_TOKEN", &meeting.harness_token)
        .spawn()
        .unwrap();
    assert_eq!(finish(child).await.1, "hi\n");
}

#[tokio::test]
async fn a_shell_is_a_terminal_over_there() {
    let meeting = Meeting::start().await;
    let program = exec_server_testkit::executor::binary().display().to_string();
    // The terminal comes from a server of ours, which passes no token on.
    let token = meeting.state.path().join("token");
    std::fs::write(&token, &meeting.harness_token).unwrap();
    let env = [
        ("EXEC_SERVER_STATE_DIR", meeting.state.path().to_str().unwrap()),
        ("EXEC_SERVER_REMOTE_URL", meeting.rendezvous.url()),
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
    for message in ["a harness came in", "a harness left"] {
        wait_for_line(&mut executor, message, &stream_id).await;
    }
    // In the order in which the rendezvous hears of it.
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
