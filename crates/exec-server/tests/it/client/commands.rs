//! Commands on a real server, with an API like `std::process`.

use std::time::Duration;

use exec_server::{ExecServerClient, ExecServerError, ProcessSignal, Stdin, TerminalSize};
use exec_server_testkit::{DEADLINE, TestExecutor, eventually};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::time::timeout;

/// A server and a client of it.
pub async fn connected() -> (TestExecutor, ExecServerClient) {
    let server = TestExecutor::start().await;
    let client = ExecServerClient::connect(server.url()).await.expect("the server answers");
    (server, client)
}

#[tokio::test]
async fn a_command_runs_and_its_output_is_returned() {
    let (_server, client) = connected().await;
    let script = "printf out; printf err >&2; pwd; printf \"$A\"; exit 3";
    let mut command = client.command("/bin/sh");
    command.args(["-c", script]).current_dir("/usr").env("A", "b c");
    let output = command.output().await.unwrap();
    assert_eq!(output.stdout_text(), "out/usr\nb c");
    assert_eq!(output.stderr_text(), "err");
    assert_eq!(output.status.code(), 3);
    assert!(!output.status.success());
    assert_eq!(output.status.to_string(), "exit status: 3");
    assert_eq!(client.command("true").status().await.unwrap().code(), 0);
}

#[tokio::test]
async fn large_output_is_complete() {
    let (_server, client) = connected().await;
    let output = client.command("seq").arg("400000").output().await.unwrap();
    let expected: String = (1..=400_000).map(|number| format!("{number}\n")).collect();
    assert_eq!(output.stdout.len(), expected.len());
    assert!(output.stdout == expected.as_bytes());
    // Far more than a reader may fall behind.
    let mut command = client.command("head");
    command.args(["-c", "60000000", "/dev/zero"]);
    let collecting = tokio::spawn(async move { command.output().await });
    let others = client.command("echo").arg("hello").output().await.unwrap();
    assert_eq!(others.stdout_text(), "hello\n");
    assert_eq!(collecting.await.unwrap().unwrap().stdout.len(), 60_000_000);
}

#[tokio::test]
async fn the_environment_is_inherited_but_for_what_looks_like_a_secret() {
    let server = TestExecutor::builder().env("PLAIN", "1").env("API_KEY", "2").start().await;
    let client = ExecServerClient::connect(server.url()).await.unwrap();
    let env = client.command("env").output().await.unwrap().stdout;
    let env = String::from_utf8(env).unwrap();
    assert!(env.contains("PLAIN=1") && !env.contains("API_KEY"), "{env}");
    let mut command = client.command("/usr/bin/env");
    let env = command.env_clear().env("B", "3").output().await.unwrap();
    assert_eq!(env.stdout_text(), "B=3\n");
    let env = client.command("env").env_remove("PLAIN").output().await.unwrap();
    assert!(!env.stdout_text().contains("PLAIN="));
}

#[tokio::test]
async fn a_program_that_is_not_there_is_an_error_of_the_start() {
    let (_server, client) = connected().await;
    let error = client.command("/no/such/program").output().await.unwrap_err();
    assert!(matches!(error, ExecServerError::Server { .. }), "{error}");
    assert_eq!(client.remote().session().process_count(), 0);
}

#[tokio::test]
async fn input_and_outputs_are_streams() {
    let (_server, client) = connected().await;
    let mut child = client.command("cat").stdin(Stdin::Piped).spawn().await.unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    for number in 0..50 {
        stdin.write_all(format!("line {number}\n").as_bytes()).await.unwrap();
        let mut line = String::new();
        timeout(DEADLINE, stdout.read_line(&mut line)).await.unwrap().unwrap();
        assert_eq!(line, format!("line {number}\n"));
    }
    stdin.shutdown().await.unwrap();
    let mut rest = Vec::new();
    assert_eq!(stdout.read_to_end(&mut rest).await.unwrap(), 0);
    assert!(child.wait().await.unwrap().success());
}

#[tokio::test]
async fn a_dropped_input_is_sent_to_its_end() {
    let (_server, client) = connected().await;
    let mut child = client.command("wc").arg("-c").stdin(Stdin::Piped).spawn().await.unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(&vec![b'x'; 3_000_000]).await.unwrap();
    drop(stdin);
    let output = child.wait_with_output().await.unwrap();
    assert_eq!(output.stdout_text().trim(), "3000000");
}

#[tokio::test]
async fn stdout_and_stderr_are_read_apart_and_in_any_order() {
    let (_server, client) = connected().await;
    let script = "seq 1000; seq 1000 2000 >&2";
    let mut child = client.command("sh").args(["-c", script]).spawn().await.unwrap();
    let (mut stdout, mut stderr) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
    let (mut out, mut err) = (String::new(), String::new());
    stderr.read_to_string(&mut err).await.unwrap();
    stdout.read_to_string(&mut out).await.unwrap();
    assert_eq!(out.lines().count(), 1000);
    assert_eq!(err.lines().last(), Some("2000"));
    assert!(child.try_wait().unwrap().success());
}

#[tokio::test]
async fn a_terminal_has_a_size_that_can_change() {
    let (_server, client) = connected().await;
    let mut command = client.command("/bin/sh");
    command.args(["-c", "stty size; read line; stty size; echo got $line"]);
    command.tty(TerminalSize { rows: 10, cols: 20 });
    let mut child = command.spawn().await.unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    stdout.read_line(&mut line).await.unwrap();
    assert_eq!(line.trim(), "10 20");
    child.resize(TerminalSize { rows: 30, cols: 40 }).await.unwrap();
    let stdin = child.stdin.as_mut().unwrap();
    stdin.write_all(b"hello\n").await.unwrap();
    stdin.flush().await.unwrap();
    let mut rest = String::new();
    stdout.read_to_string(&mut rest).await.unwrap();
    assert!(rest.contains("30 40") && rest.contains("got hello"), "{rest}");
}

#[tokio::test]
async fn a_command_can_be_signalled_terminated_and_killed() {
    let (_server, client) = connected().await;
    let script = "trap 'echo caught; exit 9' INT; echo ready; while :; do sleep 0.05; done";
    let mut child = client.command("bash").args(["-c", script]).spawn().await.unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    stdout.read_line(&mut line).await.unwrap();
    child.signal(ProcessSignal::Interrupt).await.unwrap();
    assert_eq!(child.wait().await.unwrap().code(), 9);
    let mut child = client.command("sleep").arg("1000").spawn().await.unwrap();
    let status = child.terminate(Duration::from_secs(20)).await.unwrap();
    assert_eq!(status.signal(), Some("SIGTERM"));
    let mut child = client.command("sleep").arg("1000").spawn().await.unwrap();
    child.kill().await.unwrap();
    assert_eq!(child.try_wait().unwrap().signal(), Some("SIGKILL"));
}

#[tokio::test]
async fn kill_on_drop_ends_a_command_and_without_it_the_command_continues() {
    let (_server, client) = connected().await;
    let running = async |kill: bool| {
        let mut command = client.command("sleep");
        command.arg("1000").kill_on_drop(kill).process_id(format!("kill-{kill}"));
        drop(command.spawn().await.unwrap());
    };
    running(true).await;
    running(false).await;
    let is_running = async |id: &str| {
        let list = client.processes().await.unwrap().processes;
        list.iter().any(|process| &*process.process_id == id && !process.exited)
    };
    let gone = async {
        while is_running("kill-true").await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(DEADLINE, gone).await.expect("it ends");
    assert!(is_running("kill-false").await);
    let process = client.attach("kill-false", 0).await.unwrap();
    assert!(process.terminate(None).await.unwrap());
    assert_eq!(process.wait().await.unwrap().exit_code, 137);
}

#[tokio::test]
async fn a_command_whose_output_is_no_longer_awaited_is_ended() {
    let (_server, client) = connected().await;
    let mut command = client.command("sleep");
    command.arg("1000").process_id("abandoned");
    let output = tokio::spawn(async move { command.output().await });
    let started = async {
        while client.processes().await.unwrap().processes.is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(DEADLINE, started).await.unwrap();
    output.abort();
    let ended = async {
        while !client.processes().await.unwrap().processes.iter().all(|process| process.exited) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(DEADLINE, ended).await.expect("it ends");
}

#[tokio::test]
async fn a_time_limit_ends_a_command() {
    let (_server, client) = connected().await;
    let mut command = client.command("sleep");
    command.arg("1000").timeout(Duration::from_millis(50));
    let status = command.status().await.unwrap();
    assert_eq!(status.details().reason, Some(exec_server::ExitReason::Timeout));
}

#[tokio::test]
async fn a_reader_that_comes_late_gets_everything_from_the_start() {
    let (_server, client) = connected().await;
    let child = client.command("seq").arg("5").spawn().await.unwrap();
    let session = child.session().clone();
    session.wait().await.unwrap();
    let mut events = session.events();
    let mut text = Vec::new();
    while let Some(event) = events.next().await {
        if let exec_server::ProcessEvent::Output { bytes, .. } = event {
            text.extend_from_slice(&bytes);
        }
    }
    assert_eq!(text, b"1\n2\n3\n4\n5\n");
}

#[tokio::test]
async fn another_client_can_continue_with_a_session_and_its_processes() {
    let (_server, client) = connected().await;
    let session_id = client.session_id().unwrap();
    let mut command = client.command("sh");
    command.args(["-c", "echo one; read x; echo $x"]).stdin(Stdin::Piped).process_id("p");
    let child = command.spawn().await.unwrap();
    child.session().write(b"").await.unwrap();
    let mut wake = child.session().subscribe_wake();
    wake.wait_for(|seq| *seq >= 1).await.unwrap();
    client.close().await;
    let args = exec_server::RemoteExecServerConnectArgs::new(_server.url());
    let second = ExecServerClient::connect(args.resume_session(&session_id)).await.unwrap();
    assert_eq!(second.session_id().as_deref(), Some(session_id.as_str()));
    let process = second.attach("p", 0).await.unwrap();
    process.write(b"two\n").await.unwrap();
    let mut text = Vec::new();
    let mut events = process.events();
    while let Some(event) = events.next().await {
        if let exec_server::ProcessEvent::Output { bytes, .. } = event {
            text.extend_from_slice(&bytes);
        }
    }
    assert_eq!(String::from_utf8(text).unwrap(), "one\ntwo\n");
}

#[tokio::test]
async fn dropping_everything_ends_the_link() {
    let server = TestExecutor::start().await;
    let client = ExecServerClient::connect(server.url()).await.unwrap();
    let connection = client.remote().session().connection().await.unwrap();
    let child = client.command("sleep").arg("1000").spawn().await.unwrap();
    drop(client);
    assert!(!connection.is_closed(), "a child holds its client");
    drop(child);
    drop(connection);
    let pid = server.serving_pid();
    // Only the link held a socket of this process.
    eventually("the socket is closed", || {
        let tcp = std::fs::read_to_string(format!("/proc/{pid}/net/tcp")).unwrap_or_default();
        let port = server.url().rsplit(':').next().unwrap().parse::<u16>().unwrap();
        let local = format!(":{port:04X} ");
        !tcp.lines()
            .any(|line| line.contains(&local) && line.split_whitespace().nth(3) == Some("01"))
    })
    .await;
}

#[tokio::test]
async fn a_sandbox_holds_for_commands() {
    use exec_server::protocol::sandbox::SandboxParams;
    let (_server, client) = connected().await;
    let policy = serde_json::json!({"permissions": {"type": "managed", "file_system": {
        "type": "restricted", "entries": [{"path": {"type": "special", "value": {"kind": "root"}}, "access": "read"}]},
        "network": "restricted"}, "windowsSandboxLevel": "disabled"});
    let policy: SandboxParams = serde_json::from_value(policy).unwrap();
    let mut command = client.command("sh");
    command.args(["-c", "echo x > /tmp/exec-server-client-test"]).sandbox(&policy);
    match command.output().await {
        Ok(output) => {
            assert!(!output.status.success());
            assert_eq!(output.status.sandbox_denied(), Some(true));
        }
        // Where the kernel cannot confine, nothing runs.
        Err(ExecServerError::Server { message, .. }) => eprintln!("skipped: {message}"),
        Err(error) => panic!("{error}"),
    }
}
