//! Leaving a command by keys or by a signal, whatever the state of the link.
//!
//! A stalled link is detected and reported after ten seconds at the earliest. A test that asserts that no loss was
//! reported shows that the client left before that.

use std::process::Stdio;

use exec_server_testkit::executor::{Signal, binary};
use exec_server_testkit::fault_proxy::Toward;
use exec_server_testkit::{DEADLINE, FaultProxy, Fifo, Terminal, TestExecutor};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::TcpListener;
use tokio::process::Child;
use tokio::time::timeout;

use super::{cli, command, finish};

const HOME: (&str, &str) = ("HOME", "/nonexistent");
const LOST: &str = "lost the connection";

async fn terminal(arguments: &[&str]) -> Terminal {
    let program = binary();
    let argv = [&[program.to_str().unwrap()], arguments].concat();
    Terminal::start(&argv, &[HOME]).await
}

/// A shell on a terminal, behind a fault proxy.
async fn shell(proxy: &FaultProxy) -> Terminal {
    let mut terminal = terminal(&["run", "-it", "--name", "shell", proxy.url(), "--", "sh"]).await;
    terminal.type_keys("PS1=; X=kept; echo rea''dy\n").await;
    terminal.expect("ready").await;
    terminal
}

fn freeze(proxy: &FaultProxy) {
    proxy.stall(Toward::Server);
    proxy.stall(Toward::Client);
}

#[tokio::test]
async fn tilde_dot_leaves_a_command_that_can_be_attached_again() {
    let server = TestExecutor::start().await;
    let proxy = FaultProxy::to(server.url()).await;
    let mut first = shell(&proxy).await;
    first.type_keys("\r~.").await;
    first.expect(&format!("left; `exec-server attach {} shell` attaches again", proxy.url())).await;
    assert_eq!(first.finish().await.0, 255);
    let mut second = terminal(&["attach", server.url(), "shell"]).await;
    second.expect("ready").await;
    second.type_keys("echo still $X; exit 6\n").await;
    second.expect("still kept").await;
    assert_eq!(second.finish().await.0, 6);
}

#[tokio::test]
async fn other_escapes_list_send_a_tilde_and_detach() {
    let server = TestExecutor::start().await;
    let proxy = FaultProxy::to(server.url()).await;
    let mut first = shell(&proxy).await;
    first.type_keys("\r~?").await;
    first.expect("~.   leave at once").await;
    first.type_keys("\r~~.x\r").await;
    // The shell reports an unknown command.
    first.expect("~.x").await;
    first.type_keys("\r~d").await;
    // The reply that says how long the server keeps the process may come later than the client waits.
    first
        .expect(&format!("detached; `exec-server attach {} shell` attaches again", proxy.url()))
        .await;
    assert_eq!(first.finish().await.0, 0);
    let attach = ["attach", "--escape-char", "^]", server.url(), "shell"];
    let mut second = terminal(&attach).await;
    second.expect("ready").await;
    second.type_keys("\recho in''side\r~.\r").await;
    second.expect("inside").await;
    second.type_keys("\r\x1d.").await;
    second.expect("left; `exec-server attach").await;
    assert_eq!(second.finish().await.0, 255);
    assert_eq!(cli(&["kill", server.url(), "shell"]).await.code, 0);
}

#[tokio::test]
async fn a_frozen_link_is_left_by_keys_whatever_is_queued() {
    for (keys, said, code) in [
        ("\r~.", "left; `exec-server attach", 255),
        ("\x10\x11", "detached; `exec-server attach", 0),
        ("\r~d", "detached; `exec-server attach", 0),
    ] {
        let server = TestExecutor::start().await;
        let proxy = FaultProxy::to(server.url()).await;
        let mut terminal = shell(&proxy).await;
        freeze(&proxy);
        // More than all queues hold.
        for _ in 0..20 {
            terminal.type_keys(&"x".repeat(50_000)).await;
        }
        terminal.type_keys(keys).await;
        terminal.expect(said).await;
        let (ended, shown) = terminal.finish().await;
        assert_eq!(ended, code, "{keys:?}");
        assert!(!shown.contains(LOST), "{keys:?}: {shown}");
    }
}

#[tokio::test]
async fn a_command_that_reads_nothing_is_left_by_keys() {
    let server = TestExecutor::start().await;
    let proxy = FaultProxy::to(server.url()).await;
    let script = "stty raw -echo; echo ready; exec sleep 1000";
    let mut terminal =
        terminal(&["run", "-it", "--name", "deaf", proxy.url(), "--", "sh", "-c", script]).await;
    terminal.expect("ready").await;
    for _ in 0..20 {
        terminal.type_keys(&"x".repeat(50_000)).await;
    }
    terminal.type_keys("\r~.").await;
    terminal.expect("left; `exec-server attach").await;
    assert_eq!(terminal.finish().await.0, 255);
}

#[tokio::test]
async fn a_terminal_that_shows_nothing_more_is_left_by_keys() {
    let server = TestExecutor::start().await;
    let proxy = FaultProxy::to(server.url()).await;
    let mut ended = Fifo::new();
    let program = binary();
    let script =
        format!("{} run -it {} -- yes; echo $? > {}", program.display(), proxy.url(), ended.path());
    // Output of this terminal is not read before the end, so its writers block.
    let mut terminal = Terminal::start(&["/bin/sh", "-c", &script], &[HOME]).await;
    proxy.wait_for_carried(Toward::Client, 2_000_000).await;
    terminal.type_keys("\r~.").await;
    assert_eq!(ended.line().await, "255");
}

#[tokio::test]
async fn a_command_whose_last_output_is_not_read_is_left_by_keys() {
    for (keys, code) in [("\r~.", "255"), ("\r~d", "0"), ("\x10\x11", "0")] {
        let server = TestExecutor::start().await;
        let cable = FaultProxy::to(server.url()).await;
        // More than a pipe holds, and less than that and the queue in front of it.
        let (mut ended, unread) = (Fifo::new(), Fifo::new());
        let script = format!(
            "{} run -it --name full {} -- sh -c 'head -c 90000 /dev/zero | tr \"\\0\" x' > {}; \
             echo $? > {}",
            binary().display(),
            cable.url(),
            unread.path(),
            ended.path()
        );
        let mut terminal = Terminal::start(&["/bin/sh", "-c", &script], &[HOME]).await;
        cable.wait_for_carried(Toward::Client, 90_000).await;
        assert_eq!(cli(&["wait", server.url(), "full"]).await.code, 0);
        terminal.type_keys(keys).await;
        assert_eq!(ended.line().await, code, "{keys:?}");
    }
}

#[tokio::test]
async fn keys_leave_while_the_link_is_brought_back() {
    for (keys, code) in [("\r~.", 255), ("\x10\x11", 0)] {
        let server = TestExecutor::start().await;
        let proxy = FaultProxy::to(server.url()).await;
        let mut terminal = shell(&proxy).await;
        proxy.unplug();
        terminal.expect(LOST).await;
        terminal.type_keys(keys).await;
        terminal.expect("`exec-server attach").await;
        assert_eq!(terminal.finish().await.0, code);
    }
}

#[tokio::test]
async fn keys_leave_while_a_link_is_made() {
    let (listener, url) = silent_server().await;
    for arguments in
        [&["run", "-it", &url, "--", "sh"][..], &["shell", &url], &["attach", &url, "job"]]
    {
        let mut terminal = terminal(arguments).await;
        let (_link, _) = timeout(DEADLINE, listener.accept()).await.unwrap().unwrap();
        terminal.type_keys("~.").await;
        terminal.expect("exec-server: left; nothing was").await;
        assert_eq!(terminal.finish().await.0, 255, "{arguments:?}");
    }
}

#[tokio::test]
async fn keys_typed_before_the_start_are_not_lost() {
    let server = TestExecutor::start().await;
    let proxy = FaultProxy::to(server.url()).await;
    freeze(&proxy);
    let mut terminal = terminal(&["run", "-it", proxy.url(), "--", "sh"]).await;
    proxy.wait_for_connections(1).await;
    terminal.type_keys("echo typed ah''ead; exit 5\r").await;
    proxy.resume();
    terminal.expect("typed ahead").await;
    assert_eq!(terminal.finish().await.0, 5);
}

#[tokio::test]
async fn the_first_signal_counts_while_a_link_is_made() {
    let (listener, url) = silent_server().await;
    let directory = tempfile::tempdir().unwrap();
    let to = directory.path().join("to");
    let from = format!("{url}:/etc/passwd");
    for arguments in [
        &["run", &url, "--", "true"][..],
        &["attach", "-n", &url, "job"],
        &["cp", &from, to.to_str().unwrap()],
    ] {
        for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
            let mut child = command(arguments).spawn().unwrap();
            let (_link, _) = timeout(DEADLINE, listener.accept()).await.unwrap().unwrap();
            send(&child, signal);
            let status = timeout(DEADLINE, child.wait()).await.unwrap().unwrap();
            assert_eq!(status.code(), Some(code), "{arguments:?}");
        }
    }
}

#[tokio::test]
async fn the_first_signal_counts_while_the_link_is_brought_back() {
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let server = TestExecutor::start().await;
        let proxy = FaultProxy::to(server.url()).await;
        let mut child = running(&proxy).await;
        proxy.unplug();
        let mut errors = BufReader::new(child.stderr.take().unwrap()).lines();
        assert!(errors.next_line().await.unwrap().unwrap().contains(LOST));
        send(&child, signal);
        let said = errors.next_line().await.unwrap().unwrap();
        assert!(said.contains("may still be running; `exec-server attach"), "{said}");
        assert_eq!(child.wait().await.unwrap().code(), Some(code));
    }
}

#[tokio::test]
async fn the_first_signal_counts_on_a_frozen_link() {
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let server = TestExecutor::start().await;
        let proxy = FaultProxy::to(server.url()).await;
        let child = running(&proxy).await;
        freeze(&proxy);
        send(&child, signal);
        let ran = finish(child).await;
        assert_eq!(ran.code, code, "{}", ran.err);
        assert!(ran.err.contains("may still be running; `exec-server attach"), "{}", ran.err);
        assert!(!ran.err.contains(LOST), "{}", ran.err);
    }
}

#[tokio::test]
async fn a_copy_is_interrupted_on_a_frozen_link_and_leaves_nothing() {
    let server = TestExecutor::start().await;
    let directory = tempfile::tempdir().unwrap();
    let (here, there) = (directory.path().join("here"), directory.path().join("there"));
    std::fs::create_dir(&here).unwrap();
    std::fs::create_dir(&there).unwrap();
    std::fs::write(there.join("large"), vec![7; 30_000_000]).unwrap();
    std::fs::write(here.join("large"), vec![7; 30_000_000]).unwrap();
    for (toward, more) in [(Toward::Client, "down"), (Toward::Server, "up")] {
        let proxy = FaultProxy::to(server.url()).await;
        let remote = format!("{}:{}", proxy.url(), there.display());
        let (from, to) = match toward {
            Toward::Client => (format!("{remote}/large"), format!("{}/{more}", here.display())),
            Toward::Server => (format!("{}/large", here.display()), format!("{remote}/{more}")),
        };
        let mut child = command(&["cp", &from, &to]).stdin(Stdio::null()).spawn().unwrap();
        proxy.wait_for_carried(toward, 1_000_000).await;
        freeze(&proxy);
        send(&child, Signal::INT);
        let status = timeout(DEADLINE, child.wait()).await.unwrap().unwrap();
        assert_eq!(status.code(), Some(130), "{more}");
        proxy.resume();
        proxy.wait_for_silence().await;
        let names = |path: &std::path::Path| std::fs::read_dir(path).unwrap().count();
        assert_eq!(names(&here), 1, "{more}");
        exec_server_testkit::eventually("nothing is left on the server", || names(&there) == 1)
            .await;
    }
}

/// Accepts connections and never answers.
async fn silent_server() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("ws://{}", listener.local_addr().unwrap());
    (listener, url)
}

/// A command that ignores signals, behind a fault proxy.
async fn running(proxy: &FaultProxy) -> Child {
    let script = "trap '' INT TERM; echo ready; sleep 1000";
    let mut child = command(&["run", proxy.url(), "--", "sh", "-c", script]).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert_eq!(lines.next_line().await.unwrap().unwrap(), "ready");
    child
}

fn send(child: &Child, signal: Signal) {
    let pid = rustix::process::Pid::from_raw(child.id().unwrap().cast_signed()).unwrap();
    rustix::process::kill_process(pid, signal).unwrap();
}
