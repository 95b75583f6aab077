//! The client commands: with pipes, on a terminal, over a link that breaks.

mod attaching;
mod completing;
mod copying;
mod cutting;
pub mod dialling;
mod ending;
mod hostile_server;
mod inspecting;
mod leaving;
mod other_servers;
mod replaying;
mod running;
mod streaming;
mod taking_over;
mod targets;
mod terminals;

use std::process::{Output, Stdio};

use exec_server_testkit::executor::binary;
use exec_server_testkit::isolation::isolate;
use exec_server_testkit::{DEADLINE, TestExecutor};
use tokio::io::AsyncWriteExt;
use tokio::process::{Child, Command};
use tokio::time::timeout;

/// Result of an invocation.
#[derive(Debug, PartialEq)]
pub struct Ran {
    pub code: i32,
    pub out: String,
    pub err: String,
}

/// A command without input and without settings of the user.
fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(binary());
    isolate(command.as_std_mut());
    command
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    command
}

/// Runs a command to its end.
pub async fn cli(arguments: &[&str]) -> Ran {
    finish(command(arguments).spawn().expect("the program can be started")).await
}

/// Runs a command to its end with some input.
async fn cli_with(arguments: &[&str], input: &[u8]) -> Ran {
    let mut child =
        command(arguments).stdin(Stdio::piped()).spawn().expect("the program can be started");
    let mut stdin = child.stdin.take().expect("stdin is piped");
    let input = input.to_vec();
    tokio::spawn(async move {
        // A command may end before it has read everything.
        let _ = stdin.write_all(&input).await;
    });
    finish(child).await
}

async fn output(child: Child) -> Output {
    let waiting = child.wait_with_output();
    timeout(DEADLINE, waiting).await.expect("it ends in time").expect("it can be waited for")
}

async fn finish(child: Child) -> Ran {
    let output = output(child).await;
    Ran {
        code: output.status.code().unwrap_or(-1),
        out: String::from_utf8_lossy(&output.stdout).into_owned(),
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

fn ran(code: i32, out: &str, err: &str) -> Ran {
    Ran { code, out: out.to_owned(), err: err.to_owned() }
}

/// A server, and `run` with it as the target.
async fn run_on(server: &TestExecutor, argv: &[&str]) -> Ran {
    let arguments = [&["run", server.url(), "--"], argv].concat();
    cli(&arguments).await
}
