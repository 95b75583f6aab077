//! A conversation with the reference client over several user turns; the test can change files in between.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::folder::RunFolder;
use super::model::ScriptedModel;
use super::{ToolResult, texts_of};

/// A running `codex app-server` with one thread; the client is killed on drop.
#[derive(Debug)]
pub struct Thread {
    id: String,
    client: Client,
    // Dropped after the client, because its open connections are awaited.
    model: ScriptedModel,
    folder: RunFolder,
}

impl Thread {
    pub(super) fn start(
        command: Command,
        folder: RunFolder,
        model: ScriptedModel,
        deadline: Duration,
    ) -> Self {
        let mut client = Client::start(command, deadline);
        client.call("initialize", &json!({"clientInfo": {"name": "testkit", "version": "1"}}));
        client.send(&json!({"method": "initialized"}));
        let params = json!({"cwd": folder.workspace(), "ephemeral": true});
        let reply = client.call("thread/start", &params);
        let id = reply["result"]["thread"]["id"].as_str();
        let id = id.unwrap_or_else(|| panic!("no thread was started: {reply}")).to_owned();
        Self { id, client, model, folder }
    }

    /// Runs one user turn and returns the texts of the last request to the model.
    pub fn turn(&mut self, text: &str) -> String {
        let input = json!([{"type": "text", "text": text}]);
        self.client.call("turn/start", &json!({"threadId": self.id, "input": input}));
        self.client.wait_for(|message| message["method"] == "turn/completed");
        texts_of(&self.model.last_request().expect("a turn asks the model"))
    }

    /// Results so far of the calls with this label.
    pub fn result(&self, label: &str) -> ToolResult {
        let result = self.model.result(label);
        result.unwrap_or_else(|| panic!("the model heard nothing of `{label}`"))
    }

    /// Writes a file into the workspace, which the client sees only through the server.
    pub fn write(&self, name: &str, content: &str) {
        self.folder.write(name, content.as_bytes());
    }
}

/// The client's process: one JSON message per line in each direction.
#[derive(Debug)]
struct Client {
    process: Child,
    messages: Receiver<Value>,
    deadline: Instant,
    next_id: u64,
}

impl Client {
    fn start(mut command: Command, deadline: Duration) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut process = command.spawn().expect("the client can be started");
        let stdout = BufReader::new(process.stdout.take().expect("stdout is piped"));
        let (sender, messages) = mpsc::channel();
        // The thread ends with the process, whose stdout it reads.
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                let Ok(message) = serde_json::from_str(&line) else { continue };
                if sender.send(message).is_err() {
                    return;
                }
            }
        });
        Self { process, messages, deadline: Instant::now() + deadline, next_id: 1 }
    }

    fn call(&mut self, method: &str, params: &Value) -> Value {
        let id = self.next_id;
        self.next_id += 1;
        self.send(&json!({"id": id, "method": method, "params": params}));
        self.wait_for(|message| message["id"] == id && message.get("method").is_none())
    }

    fn send(&mut self, message: &Value) {
        let stdin = self.process.stdin.as_mut().expect("stdin is piped");
        writeln!(stdin, "{message}").expect("the client reads");
    }

    /// Approval requests of the client are approved meanwhile.
    fn wait_for(&mut self, is_it: impl Fn(&Value) -> bool) -> Value {
        let mut heard = Vec::new();
        loop {
            let left = self.deadline.saturating_duration_since(Instant::now());
            match self.messages.recv_timeout(left) {
                Ok(message) if is_it(&message) => return message,
                Ok(message) => {
                    let method = message["method"].as_str().unwrap_or_default();
                    if method.ends_with("/requestApproval") {
                        let decision = json!({"decision": "accept"});
                        self.send(&json!({"id": message["id"], "result": decision}));
                    }
                    heard.push(message);
                }
                Err(error) => panic!("{error}\n--- heard\n{heard:#?}"),
            }
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
