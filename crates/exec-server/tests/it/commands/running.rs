//! `run` from pipes: streams, codes, signals.

use std::process::Stdio;

use exec_server_testkit::executor::{Signal, binary};
use exec_server_testkit::{ProcessMarker, TestExecutor};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};

use super::{Ran, cli, cli_with, command, finish, output, ran, run_on};

#[tokio::test]
async fn a_command_has_its_streams_and_its_code() {
    let server = TestExecutor::start().await;
    let script = "echo out; echo err >&2; exit 7";
    assert_eq!(run_on(&server, &["sh", "-c", script]).await, ran(7, "out\n", "err\n"));
    assert_eq!(run_on(&server, &["true"]).await, ran(0, "", ""));
}

#[tokio::test]
async fn output_is_byte_exact() {
    let server = TestExecutor::start().await;
    let arguments = [
        "run",
        server.url(),
        "--",
        "sh",
        "-c",
        "head -c 20000000 /dev/zero | tr '\\0' '\\377'; printf '\\0\\r\\n'",
    ];
    let output = output(command(&arguments).spawn().unwrap()).await;
    assert_eq!(output.stdout.len(), 20_000_003);
    assert!(output.stdout[..20_000_000].iter().all(|byte| *byte == 0xff));
    assert_eq!(&output.stdout[20_000_000..], b"\0\r\n");
}

#[tokio::test]
async fn piped_input_is_passed_on_with_its_end() {
    let server = TestExecutor::start().await;
    let run = ["run", server.url(), "--", "sha256sum"];
    let input: Vec<u8> = (0..5_000_000_u32).map(|index| (index % 251) as u8).collect();
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, &input);
    let expected: String = digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    let ran = cli_with(&run, &input).await;
    assert_eq!(ran.out, format!("{expected}  -\n"));
    let without = cli_with(&["run", "-n", server.url(), "--", "wc", "-c"], b"ignored").await;
    assert_eq!(without, super::ran(0, "0\n", ""));
}

#[tokio::test]
async fn the_end_of_a_command_does_not_wait_for_more_input() {
    let server = TestExecutor::start().await;
    let mut child =
        command(&["run", server.url(), "--", "head", "-n1"]).stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(b"first\nsecond\n").await.unwrap();
    // The pipe stays open for as long as the command is waited for.
    assert_eq!(finish(child).await, ran(0, "first\n", ""));
    drop(stdin);
}

#[tokio::test]
async fn exit_codes_say_what_went_wrong() {
    let server = TestExecutor::start().await;
    let directory = tempfile::tempdir().unwrap();
    let plain = directory.path().join("plain");
    std::fs::write(&plain, "no program").unwrap();
    let plain = plain.to_str().unwrap();
    let killed = run_on(&server, &["sh", "-c", "kill -TERM $$"]).await;
    assert_eq!(killed.code, 128 + 15);
    let missing = run_on(&server, &["no-such-program"]).await;
    assert_eq!(missing.code, 127);
    assert!(missing.err.contains("no-such-program"), "{}", missing.err);
    assert_eq!(run_on(&server, &[plain]).await.code, 126);
    let slow = cli(&["run", "--timeout", "100ms", server.url(), "--", "sleep", "100"]).await;
    assert_eq!(slow.code, 124, "{}", slow.err);
    let cwd = cli(&["run", "-w", "/no/such", server.url(), "--", "true"]).await;
    assert_eq!(cwd.code, 125);
    assert!(cwd.err.contains("-w DIR"), "{}", cwd.err);
    assert_eq!(cli(&["run", "--no-such-flag", server.url(), "--", "true"]).await.code, 125);
    assert_eq!(cli(&["run", server.url(), "true"]).await.code, 125);
}

#[tokio::test]
async fn an_unreachable_server_exits_with_255() {
    let port = {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        free.local_addr().unwrap().port()
    };
    let url = format!("ws://127.0.0.1:{port}");
    for arguments in [vec!["run", &url, "--", "true"], vec!["ps", &url], vec!["info", &url]] {
        let Ran { code, err, .. } = cli(&arguments).await;
        assert_eq!(code, 255, "{arguments:?}");
        assert!(
            err.contains("could not connect") && err.contains("no server listens at this address"),
            "{err}"
        );
    }
}

#[tokio::test]
async fn variables_and_directory_are_as_asked_for() {
    let server =
        TestExecutor::builder().env("FROM_SERVER", "yes").env("A_TOKEN", "hidden").start().await;
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("env");
    std::fs::write(&file, "# comment\nFROM_FILE=a=b\nBOTH=file\n\n").unwrap();
    let file = file.to_str().unwrap();
    let script = "echo $FROM_SERVER $A_TOKEN $FROM_FILE $BOTH $HERE; pwd";
    let mut child = command(&[
        "run",
        "-e",
        "BOTH=flag",
        "-e",
        "HERE",
        "-e",
        "UNSET_HERE",
        "--env-file",
        file,
        "-w",
        "/usr",
        server.url(),
        "--",
        "sh",
        "-c",
        script,
    ]);
    let ran = finish(child.env("HERE", "local").spawn().unwrap()).await;
    assert_eq!(ran, super::ran(0, "yes a=b flag local\n/usr\n", ""));
    let none = cli(&["run", "--inherit", "none", server.url(), "--", "/usr/bin/env"]).await;
    assert_eq!(none, super::ran(0, "", ""));
}

#[tokio::test]
async fn a_sandbox_confines_the_command() {
    let server = TestExecutor::start().await;
    let directory = tempfile::tempdir_in("/var/tmp").unwrap();
    let path = directory.path().to_str().unwrap();
    for (policy, code) in [("workspace-write", 0), ("read-only", 1), ("off", 0)] {
        let run = [
            "run",
            "--sandbox",
            policy,
            "-w",
            path,
            server.url(),
            "--",
            "sh",
            "-c",
            "echo x > file",
        ];
        let ran = cli(&run).await;
        if ran.err.contains("doctor") {
            eprintln!("skipped: this machine has no sandbox: {}", ran.err);
            return;
        }
        assert_eq!(ran.code.min(1), code, "{policy}: {}", ran.err);
    }
}

#[tokio::test]
async fn an_interrupt_reaches_the_command_and_its_answer_counts() {
    let server = TestExecutor::start().await;
    let script = "trap 'echo caught; exit 9' INT; echo ready; while :; do sleep 0.01; done";
    let (mut child, mut lines) = started(&server, script).await;
    assert_eq!(lines.next_line().await.unwrap().unwrap(), "ready");
    signal(&child, Signal::INT);
    assert_eq!(lines.next_line().await.unwrap().unwrap(), "caught");
    assert_eq!(child.wait().await.unwrap().code(), Some(9));
}

#[tokio::test]
async fn a_second_interrupt_ends_a_command_that_ignores_the_first() {
    let server = TestExecutor::start().await;
    let script = "trap 'echo ignored' INT; echo ready; while :; do sleep 0.01; done";
    let (mut child, mut lines) = started(&server, script).await;
    assert_eq!(lines.next_line().await.unwrap().unwrap(), "ready");
    signal(&child, Signal::INT);
    assert_eq!(lines.next_line().await.unwrap().unwrap(), "ignored");
    signal(&child, Signal::INT);
    assert_eq!(child.wait().await.unwrap().code(), Some(128 + 15));
}

#[tokio::test]
async fn a_reader_that_closes_the_pipe_ends_the_command_quietly() {
    let server = TestExecutor::start().await;
    let process_count = ProcessMarker::new();
    let run = ["run", "-e", &process_count.variable(), server.url(), "--", "yes"];
    // The client itself does not have the marker, which is only in its arguments.
    let mut child = command(&run).spawn().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let mut some = [0; 100_000];
    stdout.read_exact(&mut some).await.unwrap();
    drop(stdout);
    let ran = finish(child).await;
    assert_eq!((ran.code, ran.err.as_str()), (141, ""));
    process_count.gone().await;
}

#[tokio::test]
async fn a_reader_that_pauses_loses_nothing() {
    let server = TestExecutor::start().await;
    let script = "i=0; while [ $i -lt 60 ]; do head -c 1000000 /dev/zero; i=$((i+1)); done";
    let mut child = command(&["run", server.url(), "--", "sh", "-c", script]).spawn().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let mut first = vec![0; 1_000_000];
    stdout.read_exact(&mut first).await.unwrap();
    // Enough to fill all buffers several times.
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    let mut rest = Vec::new();
    stdout.read_to_end(&mut rest).await.unwrap();
    assert_eq!(rest.len(), 59_000_000);
    let ran = finish(child).await;
    assert_eq!((ran.code, ran.err.as_str()), (0, ""));
}

#[tokio::test]
async fn descendants_that_hold_the_output_open_are_not_waited_for() {
    let server = TestExecutor::start().await;
    let ran = run_on(&server, &["sh", "-c", "sleep 1000 & echo started; exit 4"]).await;
    assert_eq!(ran, super::ran(4, "started\n", ""));
}

#[tokio::test]
async fn data_can_be_had_as_json() {
    let server = TestExecutor::start().await;
    let info = cli(&["info", "-o", "json", server.url()]).await;
    let info: Value = serde_json::from_str(&info.out).unwrap();
    assert_eq!(info["capabilities"]["sessionDirectory"], true);
    let ps = cli(&["ps", "-o", "json", server.url()]).await;
    assert_eq!(serde_json::from_str::<Value>(&ps.out).unwrap(), json!([]));
}

async fn started(
    server: &TestExecutor,
    script: &str,
) -> (tokio::process::Child, tokio::io::Lines<BufReader<tokio::process::ChildStdout>>) {
    let mut child = command(&["run", server.url(), "--", "sh", "-c", script]).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    (child, lines)
}

fn signal(child: &tokio::process::Child, signal: Signal) {
    let pid = i32::try_from(child.id().unwrap()).unwrap();
    rustix::process::kill_process(rustix::process::Pid::from_raw(pid).unwrap(), signal).unwrap();
}

#[tokio::test]
async fn help_has_examples_and_completions_are_there() {
    let help = cli(&["run", "--help"]).await;
    assert!(
        help.out.contains("Examples:") && help.out.contains("exec-server run -it box -- vim"),
        "{}",
        help.out
    );
    let asked = cli(&["help", "run"]).await;
    assert_eq!(asked, help);
    let order = [
        "$EXEC_SERVER_URL",
        "environments.toml, if",
        "CODEX_EXEC_SERVER_NOISE_",
        "$CODEX_EXEC_SERVER_URL",
    ];
    let places = order.map(|word| help.out.find(word).unwrap_or_else(|| panic!("{word}")));
    assert!(places.is_sorted(), "{places:?}");
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let completions = cli(&["completions", shell]).await;
        assert!(completions.code == 0 && completions.out.contains("exec-server"), "{shell}");
    }
    assert!(binary().exists());
}

#[tokio::test]
async fn secrets_of_the_server_stay_behind_by_word() {
    let server = TestExecutor::builder()
        .env("DB_PASSWORD", "hidden")
        .env("MY_API_KEY", "hidden")
        .env("KEYBOARD", "shown")
        .env("TOKENIZERS_PARALLELISM", "shown")
        .start()
        .await;
    let script = "echo ${DB_PASSWORD-none} ${MY_API_KEY-none} $KEYBOARD $TOKENIZERS_PARALLELISM";
    let run = run_on(&server, &["sh", "-c", script]).await;
    assert_eq!(run, ran(0, "none none shown shown\n", ""));
}

#[tokio::test]
async fn one_line_warns_of_ignored_members() {
    let directory = tempfile::tempdir().unwrap();
    let wrapper = directory.path().join("older");
    // The reply of an older server, as far as the client can see.
    let script = format!(
        "{} --listen stdio --state-dir {} | sed -u 's/\\(\"sandboxType\":\"none\"\\)/\\1,\"ignored\":[\"colour\",\"size.depth\"]/'\n",
        exec_server_testkit::executor::binary().display(),
        directory.path().display()
    );
    std::fs::write(&wrapper, script).unwrap();
    let target = format!("stdio:/bin/sh {}", wrapper.display());
    let run = super::cli(&["run", &target, "--", "echo", "hi"]).await;
    let warning = "exec-server: warning: the server does not know `colour`, `size.depth` of process/start and ignored it \
                   (update the server)\n";
    assert_eq!(run, ran(0, "hi\n", warning));
}
