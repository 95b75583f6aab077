//! `dial`: messages on stdin and stdout, and how it ends.

use std::process::Stdio;

use exec_server_testkit::executor::binary;
use exec_server_testkit::{DEADLINE, TestExecutor};
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;

use super::{Ran, cli, command, finish};

/// A running `dial` with its pipes.
pub struct Dialled {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Dialled {
    pub fn start(mut command: Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).spawn().expect("the program can be started");
        let stdin = child.stdin.take();
        let lines = BufReader::new(child.stdout.take().expect("stdout is piped")).lines();
        Self { child, stdin, lines }
    }

    pub async fn send(&mut self, message: &Value) {
        let line = format!("{message}\n");
        let stdin = self.stdin.as_mut().expect("stdin is open");
        timeout(DEADLINE, stdin.write_all(line.as_bytes())).await.unwrap().unwrap();
    }

    pub async fn next(&mut self) -> Value {
        let line = timeout(DEADLINE, self.lines.next_line()).await.unwrap().unwrap();
        serde_json::from_str(&line.expect("a line")).expect("one JSON value per line")
    }

    /// The reply to a request; notifications before it are skipped.
    pub async fn call(&mut self, method: &str, params: Value) -> Value {
        self.send(&json!({"id": 7, "method": method, "params": params})).await;
        loop {
            let message = self.next().await;
            if message["id"] == 7 {
                return message;
            }
        }
    }

    pub async fn open(&mut self, resume: Option<&str>, take_over: bool) -> String {
        let params = json!({"clientName": "t", "resumeSessionId": resume, "takeOver": take_over});
        let reply = self.call("initialize", params).await;
        self.send(&json!({"method": "initialized"})).await;
        reply["result"]["sessionId"].as_str().unwrap_or_else(|| panic!("{reply}")).to_owned()
    }

    /// The output of a process from its pushed events.
    pub async fn output(&mut self, argv: &[&str]) -> String {
        let params =
            json!({"processId": "p", "argv": argv, "cwd": "file:///", "env": {}, "tty": false});
        self.call("process/start", params).await;
        let mut text = Vec::new();
        loop {
            let message = self.next().await;
            match message["method"].as_str() {
                Some("process/output") => {
                    let chunk = message["params"]["chunk"].as_str().unwrap();
                    text.extend(exec_server_protocol::base64::decode(chunk).unwrap());
                }
                Some("process/closed") => return String::from_utf8(text).unwrap(),
                _ => {}
            }
        }
    }

    pub async fn end(mut self) -> (i32, String) {
        drop(self.stdin.take());
        self.wait().await
    }

    pub async fn wait(mut self) -> (i32, String) {
        let status = timeout(DEADLINE, self.child.wait()).await.unwrap().unwrap();
        let mut err = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut err).await.unwrap();
        (status.code().unwrap_or(-1), err)
    }
}

#[tokio::test]
async fn every_kind_of_target_is_spoken_to_by_lines() {
    let server = TestExecutor::start().await;
    let place = tempfile::tempdir().unwrap();
    let socket = format!("unix://{}", place.path().join("socket").display());
    let _second = TestExecutor::start_with(&["--listen", &socket]).await;
    let state = place.path().join("state").display().to_string();
    let program = format!("stdio:{} --listen stdio --state-dir {state}", binary().display());
    let list = place.path().join("environments.toml");
    let text = format!("[[environments]]\nid = \"box\"\nurl = \"{}\"\n", server.url());
    std::fs::write(&list, text).unwrap();
    for target in [server.url(), &socket, &program, "box"] {
        let arguments = ["dial", "--environments", list.to_str().unwrap(), target];
        let mut dialled = Dialled::start(command(&arguments));
        dialled.open(None, false).await;
        assert_eq!(dialled.output(&["/bin/echo", "hi"]).await, "hi\n", "{target}");
        assert_eq!(dialled.end().await, (0, String::new()), "{target}");
    }
}

#[tokio::test]
async fn large_messages_and_a_session_pass_unchanged() {
    let server = TestExecutor::start().await;
    let place = tempfile::tempdir().unwrap();
    let path = format!("file://{}", place.path().join("large").display());
    let content = "YWJj".repeat(4 * 1024 * 1024);
    let mut dialled = Dialled::start(command(&["dial", server.url()]));
    let session = dialled.open(None, false).await;
    let wrote = dialled.call("fs/writeFile", json!({"path": path, "dataBase64": content})).await;
    assert!(wrote["result"].is_object(), "{wrote}");
    assert_eq!(dialled.end().await.0, 0);
    let mut again = Dialled::start(command(&["dial", server.url()]));
    assert_eq!(again.open(Some(&session), false).await, session);
    let read = again.call("fs/readFile", json!({"path": path})).await;
    assert!(read["result"]["dataBase64"] == content);
}

#[tokio::test]
async fn the_end_of_the_server_is_told_and_a_take_over_is_its_own_code() {
    let mut server = TestExecutor::start().await;
    let mut loser = Dialled::start(command(&["dial", server.url()]));
    let session = loser.open(None, false).await;
    let mut taker = Dialled::start(command(&["dial", server.url()]));
    assert_eq!(taker.open(Some(&session), true).await, session);
    let (code, err) = loser.wait().await;
    assert_eq!(code, 254, "{err}");
    assert!(err.contains("taken over by another client"), "{err}");
    server.signal(Signal::TERM);
    server.wait().await;
    let (code, err) = taker.wait().await;
    assert_eq!(code, 255, "{err}");
    assert!(err.contains("lost the connection: closed by the server"), "{err}");
}

#[tokio::test]
async fn a_failed_connection_has_a_reason_and_a_code() {
    let place = tempfile::tempdir().unwrap();
    let token = place.path().join("token");
    std::fs::write(&token, "a-token-of-some-length-for-tests\n").unwrap();
    let token = token.to_str().unwrap();
    let wants = ["--ws-auth", "capability-token", "--ws-token-file", token];
    let server = TestExecutor::start_with(&wants).await;
    let check = |ran: Ran, code: i32, reason: &str| {
        assert_eq!((ran.code, ran.out.as_str()), (code, ""), "{}", ran.err);
        assert!(ran.err.contains(reason), "{}", ran.err);
    };
    check(cli(&["dial", server.url()]).await, 77, "--token-file");
    let wrong = command(&["dial", server.url()]).env("EXEC_SERVER_TOKEN", "wrong").spawn().unwrap();
    check(finish(wrong).await, 77, "401");
    check(cli(&["dial", "ws://127.0.0.1:1"]).await, 255, "no server listens");
    check(cli(&["dial", "nobody"]).await, 1, "environments.toml");
    check(cli(&["dial", "stdio:/no/such/program"]).await, 255, "/no/such/program");
    check(cli(&["dial", "--token-file", token, server.url()]).await, 0, "");
}
