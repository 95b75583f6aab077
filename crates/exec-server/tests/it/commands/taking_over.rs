//! A process that another client is attached to: refused at once, or taken over.

use std::process::Stdio;

use exec_server_testkit::executor::binary;
use exec_server_testkit::{FaultProxy, Terminal, TestExecutor};
use tokio::io::{AsyncBufReadExt, BufReader};

use super::{cli, command, finish, ran};

/// One connection finds the process, one attaches; each retry needs another one.
const CONNECTIONS: u64 = 2;

#[tokio::test]
async fn attaching_to_an_attached_process_is_rejected_at_once() {
    let server = TestExecutor::start().await;
    let script = "echo ready; sleep 1000";
    let mut holder =
        command(&["run", "--name", "job", server.url(), "--", "sh", "-c", script]).spawn().unwrap();
    let mut lines = BufReader::new(holder.stdout.take().unwrap()).lines();
    assert_eq!(lines.next_line().await.unwrap().unwrap(), "ready");
    let proxy = FaultProxy::to(server.url()).await;
    let refused = cli(&["attach", "-n", proxy.url(), "job"]).await;
    assert_eq!((refused.code, refused.out.as_str()), (125, ""), "{}", refused.err);
    assert_eq!(proxy.connections(), CONNECTIONS, "nothing is asked again");
    let (first, second) = refused.err.split_once('\n').unwrap();
    assert!(
        first.starts_with("exec-server: `job` is attached to another client (exec-server-cli, "),
        "{first}"
    );
    let hint =
        format!("`exec-server attach --take-over {} job` takes it from there\n", proxy.url());
    assert_eq!(second, hint);
    assert_eq!(cli(&["kill", server.url(), "job"]).await.code, 0);
    assert_eq!(finish(holder).await.code, 143);
}

#[tokio::test]
async fn a_client_that_loses_its_process_reports_it_and_exits_at_once() {
    let server = TestExecutor::start().await;
    let proxy = FaultProxy::to(server.url()).await;
    let script = "echo ready; read x; echo got $x";
    let run = ["run", "-i", "--name", "job", proxy.url(), "--", "sh", "-c", script];
    let mut loser = command(&run).stdin(Stdio::piped()).spawn().unwrap();
    // The end of this input would end the command.
    let _input = loser.stdin.take().unwrap();
    let mut lines = BufReader::new(loser.stdout.take().unwrap()).lines();
    assert_eq!(lines.next_line().await.unwrap().unwrap(), "ready");
    let attach = ["attach", "--take-over", server.url(), "job"];
    let mut taker = command(&attach).stdin(Stdio::piped()).spawn().unwrap();
    let lost = finish(loser).await;
    assert_eq!(lost.code, 254, "{}", lost.err);
    let back = format!("`exec-server attach --take-over {} job` takes it back\n", proxy.url());
    assert_eq!(lost.err, format!("exec-server: taken over by another client\n{back}"));
    assert_eq!(proxy.connections(), 1, "nothing is dialled again");
    let mut stdin = taker.stdin.take().unwrap();
    tokio::io::AsyncWriteExt::write_all(&mut stdin, b"input\n").await.unwrap();
    assert_eq!(finish(taker).await, ran(0, "ready\ngot input\n", ""));
}

#[tokio::test]
async fn a_terminal_that_is_taken_over_is_given_back() {
    let server = TestExecutor::start().await;
    let program = binary();
    let program = program.to_str().unwrap();
    let script = "before=$(stty -g); \"$PROGRAM\" run -it --name shell -- sh; code=$?; \
                  [ \"$before\" = \"$(stty -g)\" ] && echo the same; exit $code";
    let env = [("HOME", "/nonexistent"), ("PROGRAM", program), ("EXEC_SERVER_URL", server.url())];
    let mut first = Terminal::start(&["/bin/sh", "-c", script], &env).await;
    first.type_keys("PS1=; X=kept; echo rea''dy\n").await;
    first.expect("ready").await;
    let attach = [program, "attach", "--take-over", server.url(), "shell"];
    let mut second = Terminal::start(&attach, &[("HOME", "/nonexistent")]).await;
    first.expect("exec-server: taken over by another client").await;
    first.expect("`exec-server attach --take-over shell` takes it back").await;
    first.expect("the same").await;
    assert_eq!(first.finish().await.0, 254);
    second.type_keys("echo still $X; exit 6\n").await;
    second.expect("still kept").await;
    assert_eq!(second.finish().await.0, 6);
}
