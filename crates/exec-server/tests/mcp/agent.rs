//! A raw MCP client over stdio.

use std::process::Stdio;

use exec_server_testkit::executor::binary;
use exec_server_testkit::isolation::isolate;
use exec_server_testkit::{DEADLINE, TestExecutor};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;

/// An MCP server over stdio, and what it works on.
pub struct Agent {
    pub child: Child,
    pub stdin: Option<ChildStdin>,
    lines: Lines<BufReader<ChildStdout>>,
    next_id: i64,
    /// Replies that came before they were waited for.
    waiting: Vec<Value>,
}

/// The command, which is not started yet.
pub fn mcp(arguments: &[&str]) -> Command {
    let mut command = Command::new(binary());
    isolate(command.as_std_mut());
    command
        .arg("mcp")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true);
    command
}

impl Agent {
    /// Starts the server and shakes hands as in 2025-11-25.
    pub async fn start(server: &TestExecutor, arguments: &[&str]) -> Self {
        Self::start_at(mcp(&[arguments, &[server.url()]].concat())).await
    }

    /// Starts a command and shakes hands as in 2025-11-25.
    pub async fn start_at(command: Command) -> Self {
        let mut agent = Self::spawn(command);
        let params = json!({
            "protocolVersion": "2025-11-25", "capabilities": {},
            "clientInfo": {"name": "test", "version": "1"},
        });
        let answer = agent.request("initialize", params).await;
        assert_eq!(answer["result"]["serverInfo"]["name"], "exec-server", "{answer}");
        agent.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"})).await;
        agent
    }

    /// Starts the server and says nothing.
    pub fn start_silently(arguments: &[&str]) -> Self {
        Self::spawn(mcp(arguments))
    }

    fn spawn(mut command: Command) -> Self {
        let mut child = command.spawn().expect("the program can be started");
        let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let stdin = child.stdin.take();
        Self { child, stdin, lines, next_id: 0, waiting: Vec::new() }
    }

    pub async fn send(&mut self, message: &Value) {
        let stdin = self.stdin.as_mut().expect("stdin is open");
        stdin.write_all(format!("{message}\n").as_bytes()).await.expect("the server reads");
    }

    /// Sends a request and gives its id.
    pub async fn ask(&mut self, method: &str, params: Value) -> i64 {
        self.next_id += 1;
        let id = self.next_id;
        self.send(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})).await;
        id
    }

    /// The reply to a request; everything on stdout must be a message.
    pub async fn reply(&mut self, id: i64) -> Value {
        if let Some(place) = self.waiting.iter().position(|message| message["id"] == id) {
            return self.waiting.remove(place);
        }
        loop {
            let line = timeout(DEADLINE, self.lines.next_line()).await.expect("a reply in time");
            let line = line.expect("stdout can be read").expect("the server runs");
            let message: Value = serde_json::from_str(&line).expect("only messages are on stdout");
            assert_eq!(message["jsonrpc"], "2.0");
            if message["id"] == id {
                return message;
            }
            self.waiting.push(message);
        }
    }

    /// The next notification of this kind.
    pub async fn notification(&mut self, method: &str) -> Value {
        loop {
            let line = timeout(DEADLINE, self.lines.next_line()).await.expect("one in time");
            let line = line.expect("stdout can be read").expect("the server runs");
            let message: Value = serde_json::from_str(&line).expect("only messages are on stdout");
            if message["method"] == method {
                return message;
            }
            self.waiting.push(message);
        }
    }

    /// A reply that has come already.
    pub fn try_reply(&mut self, id: i64) -> Option<Value> {
        let place = self.waiting.iter().position(|message| message["id"] == id)?;
        Some(self.waiting.remove(place))
    }

    pub async fn request(&mut self, method: &str, params: Value) -> Value {
        let id = self.ask(method, params).await;
        self.reply(id).await
    }

    /// Reads a part of the output of a command, once the command has ended.
    pub async fn read_ended(&mut self, id: &Value, more: Value) -> Value {
        loop {
            let mut arguments = json!({"process_id": id, "wait_ms": 30_000});
            arguments.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            let read = self.call("read_output", arguments).await.unwrap();
            if read["running"] == false {
                return read;
            }
        }
    }

    /// Calls a tool; its data, or the text of its error.
    pub async fn call(&mut self, tool: &str, arguments: Value) -> Result<Value, String> {
        let params = json!({"name": tool, "arguments": arguments});
        let answer = self.request("tools/call", params).await;
        result(&answer)
    }
}

/// The data of an answer to a call, or the text of its error.
pub fn result(answer: &Value) -> Result<Value, String> {
    let result = &answer["result"];
    let text = result["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{answer}"));
    match result["isError"] == true {
        true => Err(text.to_owned()),
        false => Ok(result["structuredContent"].clone()),
    }
}
