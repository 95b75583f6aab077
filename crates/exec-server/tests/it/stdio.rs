//! The transport over stdin and stdout: one JSON message per line.

use std::io::{Read, Seek, Write};
use std::process::{ExitStatus, Stdio};

use exec_server_testkit::client::{chunk, start_params};
use exec_server_testkit::executor::Signal;
use exec_server_testkit::{DEADLINE, TestExecutor};
use rustix::process::{Pid, kill_process, test_kill_process};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout};
use tokio::time::timeout;

const INITIALIZE: &str = r#"{"id":1,"method":"initialize","params":{"clientName":"test"}}"#;
const INITIALIZED: &str = r#"{"method":"initialized"}"#;
const STATUS: &str = r#"{"id":2,"method":"environment/status"}"#;
const PARSE_PREFIX: &str = "failed to parse JSON-RPC message from exec-server stdio: ";

#[tokio::test]
async fn lines_may_end_with_lf_or_crlf_and_blank_ones_are_ignored() {
    let mut peer = Peer::start(&[]);
    peer.send(format!("\n\r\n{INITIALIZE}\r\n \t \n{INITIALIZED}\n\n  {STATUS}  \r\n")).await;
    assert_eq!(peer.message().await["id"], 1);
    assert_eq!(peer.message().await, json!({"id": 2, "result": {"status": "ready"}}));
    // One message may come in pieces.
    for piece in [&STATUS[..5], &STATUS[5..], "\r", "\n"] {
        peer.send(piece).await;
    }
    assert_eq!(peer.message().await["id"], 2);
    assert!(peer.end().await.is_empty());
}

#[tokio::test]
async fn a_malformed_line_gets_an_error_and_later_lines_are_served() {
    let mut peer = Peer::initialized(&[]).await;
    let lines: [&[u8]; 7] = [
        b"not-json",
        b"[]",
        b"{}",
        b"{\"id\":1,\"id\":2,\"method\":\"x\"}",
        b"\xff\xfe",
        b"{\"id\":1,\"method\":\"\xc3\x28\"}",
        b"Content-Length: 10",
    ];
    for line in lines {
        peer.send(line).await;
        peer.send("\n").await;
        let reply = peer.message().await;
        assert_eq!((&reply["id"], &reply["error"]["code"]), (&json!(-1), &json!(-32600)));
        let text = reply["error"]["message"].as_str().unwrap();
        let reason = text.strip_prefix(PARSE_PREFIX).unwrap_or_else(|| panic!("{text}"));
        assert!(!reason.is_empty());
    }
    peer.send(format!("{STATUS}\n")).await;
    assert_eq!(peer.message().await["id"], 2);
    peer.end().await;
}

#[tokio::test]
async fn a_line_may_be_as_long_as_the_limit_and_no_longer() {
    let line = |length: usize| format!("{STATUS}{}", " ".repeat(length - STATUS.len()));
    for is_terminated in [true, false] {
        let mut peer = Peer::initialized(&["--max-message-bytes", "1000"]).await;
        peer.send(format!("{}\n", line(1000))).await;
        assert_eq!(peer.message().await["id"], 2);
        let pid = peer.start_sleeper().await;
        peer.send(format!("{}{}", line(1001), if is_terminated { "\n" } else { "" })).await;
        // Stdin stays open: the line alone ends it.
        assert_eq!(peer.messages_to_the_end().await, [Value::Null; 0]);
        assert_eq!(peer.wait().await.code(), Some(0));
        is_gone(pid);
    }
}

#[tokio::test]
async fn every_request_before_the_end_of_input_is_answered_also_an_unterminated_one() {
    for run in 0..20 {
        let mut peer = Peer::start(&[]);
        let mut input = format!("{INITIALIZE}\n{INITIALIZED}\n");
        for id in 10..30 {
            input.push_str(&json!({"id": id, "method": "environment/status"}).to_string());
            input.push('\n');
        }
        let params = start_params("p", &["/bin/sleep", "1000"], json!({}));
        input.push_str(&json!({"id": 30, "method": "process/start", "params": params}).to_string());
        peer.send(input).await;
        let messages = peer.end().await;
        let mut ids: Vec<_> =
            messages.iter().filter_map(|message| message["id"].as_i64()).collect();
        ids.sort_unstable();
        assert_eq!(ids, [&[1], &(10..=30).collect::<Vec<_>>()[..]].concat(), "run {run}");
        assert!(messages.iter().all(|message| message.get("error").is_none()), "{messages:?}");
    }
}

#[tokio::test]
async fn the_end_of_input_ends_all_children() {
    let mut peer = Peer::initialized(&[]).await;
    let pid = peer.start_sleeper().await;
    peer.end().await;
    is_gone(pid);
}

#[tokio::test]
async fn a_signal_ends_the_server_while_stdin_is_open() {
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let mut peer = Peer::initialized(&[]).await;
        let pid = peer.start_sleeper().await;
        peer.signal(signal);
        let messages = peer.messages_to_the_end().await;
        let exited = messages.iter().find(|message| message["method"] == "process/exited");
        let exited = exited.unwrap_or_else(|| panic!("no exit event of the process: {messages:?}"));
        assert_eq!(exited["params"]["reason"], "serverShutdown");
        assert_eq!(messages.last().unwrap()["method"], "process/closed");
        assert_eq!(peer.wait().await.code(), Some(0), "{signal:?}");
        is_gone(pid);
    }
}

#[tokio::test]
async fn a_whole_session_works_with_a_flood_of_output_in_it() {
    let mut peer = Peer::initialized(&[]).await;
    let script =
        "read line; echo \"got $line\" >&2; head -c 20000000 /dev/zero | tr '\\0' x; exit 5";
    let params = start_params("p", &["/bin/sh", "-c", script], json!({"pipeStdin": true}));
    assert_eq!(peer.call("process/start", params).await["result"]["processId"], "p");
    let write = json!({"processId": "p", "chunk": "aGVsbG8K", "writeId": "w"});
    assert_eq!(peer.call("process/write", write).await["result"]["status"], "accepted");
    let (mut bytes, mut errors, mut exit_code, mut seq) = (0, Vec::new(), None, 0);
    loop {
        let message = peer.message().await;
        let params = &message["params"];
        seq += 1;
        assert_eq!(params["seq"], seq, "{message}");
        match message["method"].as_str() {
            Some("process/output") if params["stream"] == "stdout" => {
                let chunk = chunk(params);
                assert!(chunk.iter().all(|byte| *byte == b'x'));
                bytes += chunk.len();
            }
            Some("process/output") => errors.extend(chunk(params)),
            Some("process/exited") => exit_code = params["exitCode"].as_i64(),
            Some("process/closed") => break,
            _ => panic!("unexpected: {message}"),
        }
    }
    assert_eq!((bytes, exit_code), (20_000_000, Some(5)));
    assert_eq!(errors, b"got hello\n");
    peer.end().await;
}

#[tokio::test]
async fn a_client_that_stops_reading_and_closes_ends_the_server() {
    let mut peer = Peer::initialized(&[]).await;
    let params = start_params("p", &["/usr/bin/yes"], json!({}));
    peer.call("process/start", params).await;
    drop(peer.stdout);
    drop(peer.stdin);
    let status = timeout(DEADLINE, peer.child.wait()).await.expect("it ends in time").unwrap();
    assert_eq!(status.code(), Some(0));
}

#[tokio::test]
async fn stdin_and_stdout_may_be_files() {
    let mut input = tempfile::tempfile().unwrap();
    write!(input, "{INITIALIZE}\n{INITIALIZED}\n{STATUS}").unwrap();
    input.rewind().unwrap();
    let mut output = tempfile::tempfile().unwrap();
    let mut builder = TestExecutor::builder();
    builder.command().stdin(input).stdout(output.try_clone().unwrap());
    let mut child = builder.start_stdio();
    let status = timeout(DEADLINE, child.wait()).await.expect("it ends in time").unwrap();
    assert_eq!(status.code(), Some(0));
    output.rewind().unwrap();
    let mut text = String::new();
    output.read_to_string(&mut text).unwrap();
    let ids: Vec<Value> = text.lines().map(|line| parse(line)["id"].take()).collect();
    assert_eq!(ids, [1, 2]);
}

#[tokio::test]
async fn stdin_and_stdout_may_be_sockets_as_node_makes_them() {
    for by_signal in [false, true] {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let theirs: std::os::fd::OwnedFd = theirs.into();
        let mut builder = TestExecutor::builder();
        builder.command().stdin(theirs.try_clone().unwrap()).stdout(theirs);
        let mut child = builder.start_stdio();
        ours.set_nonblocking(true).unwrap();
        let (reader, mut writer) = tokio::net::UnixStream::from_std(ours).unwrap().into_split();
        let mut lines = BufReader::new(reader).lines();
        writer.write_all(format!("{INITIALIZE}\n{INITIALIZED}\n").as_bytes()).await.unwrap();
        assert_eq!(parse(&next(&mut lines).await.unwrap())["id"], 1);
        if by_signal {
            send_signal(&child, Signal::TERM);
        } else {
            writer.write_all(STATUS.as_bytes()).await.unwrap();
            writer.shutdown().await.unwrap();
            assert_eq!(parse(&next(&mut lines).await.unwrap())["id"], 2);
        }
        assert_eq!(next(&mut lines).await, None);
        let status = timeout(DEADLINE, child.wait()).await.expect("it ends in time").unwrap();
        assert_eq!(status.code(), Some(0));
    }
}

#[tokio::test]
async fn nothing_on_stdin_is_an_end_and_no_error() {
    let (code, stdout, stderr) =
        TestExecutor::builder().args(&["--listen", "stdio://"]).run().await;
    assert_eq!((code, stdout.as_str(), stderr.as_str()), (0, "", ""));
}

/// Client end of a server's stdin and stdout.
struct Peer {
    child: Child,
    stdin: ChildStdin,
    stdout: Lines<BufReader<ChildStdout>>,
    next_id: i64,
}

impl Peer {
    fn start(arguments: &[&str]) -> Self {
        let mut builder = TestExecutor::builder().args(arguments);
        builder.command().stdin(Stdio::piped());
        let mut child = builder.start_stdio();
        let stdin = child.stdin.take().expect("stdin is piped");
        let stdout = BufReader::new(child.stdout.take().expect("stdout is piped")).lines();
        Self { child, stdin, stdout, next_id: 100 }
    }

    async fn initialized(arguments: &[&str]) -> Self {
        let mut peer = Self::start(arguments);
        peer.send(format!("{INITIALIZE}\n{INITIALIZED}\n")).await;
        let reply = peer.message().await;
        assert_eq!(reply["result"]["sessionId"].as_str().map(str::len), Some(36), "{reply}");
        peer
    }

    async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.stdin.write_all(bytes.as_ref()).await.expect("the server reads");
    }

    async fn message(&mut self) -> Value {
        parse(&next(&mut self.stdout).await.expect("a message comes before the end"))
    }

    /// Sends a request and expects its reply as the next message.
    async fn call(&mut self, method: &str, params: Value) -> Value {
        self.next_id += 1;
        let id = self.next_id;
        self.send(format!("{}\n", json!({"id": id, "method": method, "params": params}))).await;
        let reply = self.message().await;
        assert_eq!(reply["id"], id, "{reply}");
        reply
    }

    /// Starts a process that does not end by itself, and returns its id.
    async fn start_sleeper(&mut self) -> i32 {
        let argv = ["/bin/sh", "-c", "echo $$; exec sleep 1000"];
        self.call("process/start", start_params("sleeper", &argv, json!({}))).await;
        let output = self.message().await;
        let text = String::from_utf8(chunk(&output["params"])).unwrap();
        text.trim().parse().expect("the shell tells its id")
    }

    async fn messages_to_the_end(&mut self) -> Vec<Value> {
        let mut messages = Vec::new();
        while let Some(line) = next(&mut self.stdout).await {
            messages.push(parse(&line));
        }
        messages
    }

    async fn wait(&mut self) -> ExitStatus {
        timeout(DEADLINE, self.child.wait()).await.expect("it ends in time").unwrap()
    }

    fn signal(&self, signal: Signal) {
        send_signal(&self.child, signal);
    }

    /// Closes stdin; returns the remaining messages until the server has exited with 0.
    async fn end(mut self) -> Vec<Value> {
        drop(self.stdin);
        let mut messages = Vec::new();
        while let Some(line) = next(&mut self.stdout).await {
            messages.push(parse(&line));
        }
        let status = timeout(DEADLINE, self.child.wait()).await.expect("it ends in time").unwrap();
        assert_eq!(status.code(), Some(0));
        messages
    }
}

async fn next<R: tokio::io::AsyncRead + Unpin>(lines: &mut Lines<BufReader<R>>) -> Option<String> {
    timeout(DEADLINE, lines.next_line())
        .await
        .expect("a line or the end comes in time")
        .expect("stdout is readable and UTF-8")
}

fn parse(line: &str) -> Value {
    serde_json::from_str(line).unwrap_or_else(|_| panic!("the server sends JSON: {line}"))
}

fn send_signal(child: &Child, signal: Signal) {
    let id = child.id().expect("the server has not been waited for").cast_signed();
    kill_process(Pid::from_raw(id).expect("positive"), signal).expect("the server is there");
}

fn is_gone(pid: i32) {
    let pid = Pid::from_raw(pid).expect("positive");
    assert_eq!(test_kill_process(pid), Err(rustix::io::Errno::SRCH), "{pid:?} is alive");
}
