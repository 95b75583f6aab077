//! Links that break while a command runs.

use std::process::Stdio;

use exec_server_testkit::fault_proxy::{FaultSchedule, Toward};
use exec_server_testkit::{FaultProxy, Fifo, Terminal, TestExecutor};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};

use super::{command, finish, output};

#[tokio::test]
async fn a_command_continues_over_a_new_link() {
    let server = TestExecutor::start().await;
    let proxy = FaultProxy::to(server.url()).await;
    let mut fifo = Fifo::new();
    let script = format!("echo before; read _ < {}; echo after; exit 5", fifo.path());
    let mut child = command(&["run", proxy.url(), "--", "sh", "-c", &script]).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert_eq!(lines.next_line().await.unwrap().unwrap(), "before");
    proxy.cut();
    proxy.wait_for_connections(2).await;
    fifo.open().await;
    assert_eq!(lines.next_line().await.unwrap().unwrap(), "after");
    let ran = finish(child).await;
    assert_eq!(ran.code, 5);
    assert_eq!(
        ran.err,
        "exec-server: lost the connection; reconnecting\nexec-server: the connection is back\n"
    );
}

#[tokio::test]
async fn no_byte_of_a_flood_is_lost_or_doubled_when_its_link_is_cut() {
    let server = TestExecutor::start().await;
    let proxy = FaultProxy::to(server.url()).await;
    let run = ["run", proxy.url(), "--", "seq", "1", "3000000"];
    proxy.cut_after(Toward::Client, 8_000_000);
    let child = command(&run).spawn().unwrap();
    let cutting = async {
        proxy.wait_for_connections(2).await;
        proxy.cut_after(Toward::Client, 12_000_000);
    };
    let (output, ()) = tokio::join!(output(child), cutting);
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{error}");
    assert_eq!(proxy.connections(), 3, "the link was cut twice");
    let mut expected = Vec::new();
    for number in 1..=3_000_000 {
        use std::io::Write;
        writeln!(expected, "{number}").unwrap();
    }
    assert!(output.stdout == expected, "{} of {} bytes", output.stdout.len(), expected.len());
}

#[tokio::test]
async fn no_byte_of_input_is_lost_or_doubled_when_its_link_is_cut() {
    let server = TestExecutor::start().await;
    let proxy = FaultProxy::to(server.url()).await;
    proxy.set_faults(Some(FaultSchedule {
        seed: 7,
        cut_every: Some(1_000_000..4_000_000),
        ..FaultSchedule::default()
    }));
    let input: Vec<u8> = (0..8_000_000_u32).map(|index| (index % 253) as u8).collect();
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, &input);
    let expected: String = digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    let ran = super::cli_with(&["run", proxy.url(), "--", "sha256sum"], &input).await;
    assert_eq!((ran.code, ran.out), (0, format!("{expected}  -\n")), "{}", ran.err);
    assert!(proxy.connections() > 2, "the link was cut");
}

#[tokio::test]
async fn a_link_that_stays_down_is_reported_as_a_failure() {
    let server = TestExecutor::start_with(&["--session-linger", "0"]).await;
    let proxy = FaultProxy::to(server.url()).await;
    let mut child = command(&["run", proxy.url(), "--", "sh", "-c", "echo ready; sleep 1000"])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert_eq!(lines.next_line().await.unwrap().unwrap(), "ready");
    // The session has no linger, so it cannot be resumed.
    proxy.cut();
    let ran = finish(child).await;
    assert_eq!(ran.code, 255, "{}", ran.err);
    assert!(ran.err.contains("lost the connection"), "{}", ran.err);
}

#[tokio::test]
async fn a_terminal_survives_a_cut() {
    let server = TestExecutor::start().await;
    let proxy = FaultProxy::to(server.url()).await;
    let program = exec_server_testkit::executor::binary();
    let run = [program.to_str().unwrap(), "run", "-it", proxy.url(), "--", "sh"];
    let mut terminal = Terminal::start(&run, &[("HOME", "/nonexistent")]).await;
    terminal.type_keys("PS1=; echo rea''dy\n").await;
    terminal.expect("ready").await;
    proxy.cut();
    terminal.expect("lost the connection").await;
    terminal.type_keys("echo still he''re; exit 8\n").await;
    terminal.expect("still here").await;
    assert_eq!(terminal.finish().await.0, 8);
}

#[tokio::test]
async fn a_copy_continues_over_a_new_link() {
    let server = TestExecutor::start().await;
    let proxy = FaultProxy::to(server.url()).await;
    let directory = tempfile::tempdir().unwrap();
    let (here, there) = (directory.path().join("here"), directory.path().join("there"));
    let content: Vec<u8> = (0..12_000_000_u32).map(|index| (index % 241) as u8).collect();
    std::fs::write(&here, &content).unwrap();
    proxy.cut_after(Toward::Server, 4_000_000);
    let remote = format!("{}:{}", proxy.url(), there.display());
    let ran = super::cli(&["cp", here.to_str().unwrap(), &remote]).await;
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(proxy.connections() > 1 && ran.err.contains("lost the connection"), "{}", ran.err);
    assert!(std::fs::read(&there).unwrap() == content);
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 2, "nothing is left aside");
}

#[tokio::test]
async fn an_interrupt_while_disconnected_ends_the_wait() {
    let server = TestExecutor::start().await;
    let proxy = FaultProxy::to(server.url()).await;
    let mut child =
        command(&["run", proxy.url(), "--", "sh", "-c", "echo ready; sleep 1000"]).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert_eq!(lines.next_line().await.unwrap().unwrap(), "ready");
    proxy.unplug();
    let mut errors = BufReader::new(child.stderr.take().unwrap()).lines();
    assert!(errors.next_line().await.unwrap().unwrap().contains("lost the connection"));
    let pid = rustix::process::Pid::from_raw(child.id().unwrap().cast_signed()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    assert_eq!(child.wait().await.unwrap().code(), Some(130));
    let mut stdin = child.stdin.take();
    if let Some(stdin) = &mut stdin {
        let _ = stdin.shutdown().await;
    }
}
