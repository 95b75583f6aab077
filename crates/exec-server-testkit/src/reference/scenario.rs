//! Script of the mock model: turns of tool calls and their results.

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;

use serde_json::{Value, json};
use tokio::sync::mpsc::UnboundedSender;

/// Results for one label, over all its calls and polls.
#[derive(Clone, Debug, Default)]
pub struct ToolResult {
    /// The text after the client's own header lines.
    pub output: String,
    /// The exit code, once the client reported one.
    pub exit_code: Option<i32>,
    /// A quarter of the bytes that reached the client, before it truncated them for the model.
    pub original_tokens: u64,
    /// Pictures, as the data URLs that the model got.
    pub images: Vec<String>,
    /// Number of answers; more than one means that the command outlived its first yield.
    pub answers: u32,
    /// Set while the command runs.
    session: Option<u64>,
}

impl ToolResult {
    fn handle_answer(&mut self, answer: &Value) {
        // An answer is a text, or a list: images, or MCP texts of which the first is the client's header.
        let parts = answer.as_array().map(Vec::as_slice).unwrap_or_default();
        let images = parts.iter().filter_map(|part| part["image_url"].as_str());
        self.images.extend(images.map(str::to_owned));
        let parts: String = parts.iter().skip(1).filter_map(|part| part["text"].as_str()).collect();
        let text = answer.as_str().unwrap_or(&parts);
        let (header, output) = text.split_once("Output:\n").unwrap_or(("", text));

        self.answers += 1;
        self.session = None;
        for line in header.lines() {
            if let Some(id) = line.strip_prefix("Process running with session ID ") {
                self.session = id.parse().ok();
            } else if let Some(code) = line.strip_prefix("Process exited with code ") {
                self.exit_code = code.parse().ok();
            } else if let Some(count) = line.strip_prefix("Original token count: ") {
                self.original_tokens += count.parse::<u64>().unwrap_or_default();
            }
        }
        self.output.push_str(output);
    }
}

/// One tool call of the model; calls with the same label refer to the same command.
#[derive(Clone, Debug)]
pub struct ToolCall {
    label: String,
    namespace: Option<String>,
    name: String,
    arguments: Arguments,
    until: Until,
    /// Notified when the model makes the call.
    listener: Option<UnboundedSender<()>>,
}

#[derive(Clone, Debug)]
enum Arguments {
    Json(Value),
    /// Input of a custom tool.
    Text(String),
}

/// Condition on the label's result before the script continues.
#[derive(Clone, Debug)]
enum Until {
    Answered,
    Output(String),
    Exit,
}

impl ToolCall {
    /// `exec_command`: a shell command on pipes, awaited until it exits.
    pub fn exec(label: &str, command: &str) -> Self {
        // Not a login shell, so the profile of the user who runs the tests has no effect.
        let arguments = json!({"cmd": command, "login": false});
        Self::new(label, "exec_command", arguments, Until::Exit)
    }

    /// `exec_command` that requests approval for fewer restrictions.
    pub fn exec_escalated(label: &str, command: &str) -> Self {
        let arguments = json!({"cmd": command, "login": false, "sandbox_permissions": "require_escalated",
            "justification": "the test wants it"});
        Self::new(label, "exec_command", arguments, Until::Exit)
    }

    /// `exec_command` with a terminal; it keeps running while the script continues.
    pub fn terminal(label: &str, command: &str) -> Self {
        let arguments = json!({"cmd": command, "login": false, "tty": true});
        Self::new(label, "exec_command", arguments, Until::Answered)
    }

    /// `write_stdin` to the running command with this label.
    pub fn write(label: &str, chars: &str) -> Self {
        Self::new(label, "write_stdin", json!({"chars": chars}), Until::Answered)
    }

    /// `write_stdin` without input: waits for the exit of the command with this label.
    pub fn poll(label: &str) -> Self {
        Self::write(label, "").until_exit()
    }

    /// A tool of an MCP server.
    pub fn mcp(label: &str, server: &str, tool: &str, arguments: Value) -> Self {
        let mut call = Self::new(label, tool, arguments, Until::Answered);
        call.namespace = Some(format!("mcp__{server}"));
        call
    }

    /// `apply_patch` as a tool, for a [`Scenario::model`] that has it.
    pub fn patch(label: &str, patch: &str) -> Self {
        let mut call = Self::new(label, "apply_patch", Value::Null, Until::Answered);
        call.arguments = Arguments::Text(patch.to_owned());
        call
    }

    /// `apply_patch` as a shell command, which the client runs itself without a shell.
    pub fn patch_in_shell(label: &str, patch: &str) -> Self {
        Self::exec(label, &format!("apply_patch <<'EOF'\n{patch}\nEOF"))
    }

    /// `view_image`: an image by its path.
    pub fn view_image(label: &str, path: &str) -> Self {
        Self::new(label, "view_image", json!({"path": path}), Until::Answered)
    }

    /// Lets the command run while the script continues.
    pub fn in_background(mut self) -> Self {
        self.until = Until::Answered;
        self
    }

    /// The script continues once the command has written this text, or has exited.
    pub fn until(mut self, text: &str) -> Self {
        self.until = Until::Output(text.to_owned());
        self
    }

    /// The script continues once the command has exited.
    pub fn until_exit(mut self) -> Self {
        self.until = Until::Exit;
        self
    }

    /// Notifies the test when the model makes this call; the client has the results of all earlier turns by then.
    pub fn announced_to(mut self, listener: UnboundedSender<()>) -> Self {
        self.listener = Some(listener);
        self
    }

    fn new(label: &str, name: &str, arguments: Value, until: Until) -> Self {
        let (label, name) = (label.to_owned(), name.to_owned());
        let arguments = Arguments::Json(arguments);
        Self { label, namespace: None, name, arguments, until, listener: None }
    }

    fn poll_again(&self) -> Self {
        Self { until: self.until.clone(), ..Self::poll(&self.label) }
    }

    /// The call as an item of the Responses API.
    fn to_item(&self, call_id: &str, session: Option<u64>) -> Value {
        let mut arguments = match &self.arguments {
            Arguments::Json(arguments) => arguments.clone(),
            Arguments::Text(text) => {
                return json!({"type": "custom_tool_call", "call_id": call_id, "name": self.name, "input": text});
            }
        };
        if matches!(self.name.as_str(), "exec_command" | "write_stdin") {
            // The client waits for the whole yield time unless the command exits, so only a wait for the exit may be
            // long.
            let longest = matches!(self.until, Until::Exit);
            arguments["yield_time_ms"] = json!(if longest { 30_000 } else { 250 });
        }
        if self.name == "write_stdin" {
            arguments["session_id"] = json!(session);
        }
        let arguments = arguments.to_string();
        let mut item = json!({"type": "function_call", "call_id": call_id, "name": self.name, "arguments": arguments});
        if let Some(namespace) = &self.namespace {
            item["namespace"] = json!(namespace);
        }
        item
    }
}

/// The model's script and received results, and the client's workspace and configuration.
#[derive(Clone, Debug, Default)]
pub struct Scenario {
    pub(super) files: Vec<(String, Vec<u8>)>,
    pub(super) model: Option<String>,
    pub(super) task: Option<String>,
    pub(super) sandbox_mode: Option<String>,
    pub(super) denied_path: Option<String>,
    mcp_servers: Vec<(String, Vec<String>)>,
    /// Name, URL, and the variable of the server under test that holds the token.
    mcp_urls: Vec<[String; 3]>,
    pub(super) turns: VecDeque<Vec<ToolCall>>,
    last_message: String,
    /// All requests of the client to the model.
    pub(super) requests: Vec<Value>,
    calls_made: u32,
    /// Calls without an answer, by call id.
    open: BTreeMap<String, ToolCall>,
    /// Answered calls whose `until` may not be fulfilled.
    unsettled: Vec<ToolCall>,
    pub(super) results: BTreeMap<String, ToolResult>,
}

impl Scenario {
    /// A scenario without turns.
    pub fn new() -> Self {
        Self::default()
    }

    /// The model's next answer: these calls, which the client may run concurrently.
    pub fn turn(mut self, calls: impl IntoIterator<Item = ToolCall>) -> Self {
        self.turns.push_back(calls.into_iter().collect());
        self
    }

    /// The user's task; default `go`.
    pub fn task(mut self, task: &str) -> Self {
        self.task = Some(task.to_owned());
        self
    }

    /// The model's last message, which ends the run.
    pub fn say(mut self, message: &str) -> Self {
        message.clone_into(&mut self.last_message);
        self
    }

    /// Adds a file to the workspace, which is the working directory of every command.
    pub fn file(mut self, name: &str, content: impl Into<Vec<u8>>) -> Self {
        self.files.push((name.to_owned(), content.into()));
        self
    }

    /// Gives the scripted model the name of a real one, for which the client has other tools.
    pub fn model(mut self, name: &str) -> Self {
        self.model = Some(name.to_owned());
        self
    }

    /// Makes the client request a sandbox: `read-only` or `workspace-write`.
    pub fn sandbox_mode(mut self, mode: &str) -> Self {
        self.sandbox_mode = Some(mode.to_owned());
        self
    }

    /// Makes the client request a sandbox that denies this path, with approvals enabled.
    pub fn deny(mut self, path: &Path) -> Self {
        self.denied_path = Some(path.display().to_string());
        self
    }

    /// The sandbox settings at the start of the client's configuration.
    pub(super) fn sandbox_config(&self) -> String {
        let Some(denied) = &self.denied_path else {
            let mode = self.sandbox_mode.as_deref().unwrap_or("danger-full-access");
            return format!("approval_policy = \"never\"\nsandbox_mode = \"{mode}\"\n");
        };
        "approval_policy = \"on-request\"\ndefault_permissions = \"test\"\n".to_owned()
            + &format!(
                "[permissions.test.filesystem]\n\":root\" = \"read\"\n{} = \"deny\"\n",
                json!(denied)
            )
            + "[permissions.test.filesystem.\":workspace_roots\"]\n\".\" = \"write\"\n"
            + "[permissions.test.network]\nenabled = true\n"
    }

    /// Adds an MCP server that the client starts through the server under test, over stdio.
    pub fn mcp_server<const N: usize>(mut self, name: &str, argv: [&str; N]) -> Self {
        let argv = argv.map(str::to_owned).to_vec();
        self.mcp_servers.push((name.to_owned(), argv));
        self
    }

    /// Adds an MCP server that the client reaches over HTTP through the server under test, with a token that only that
    /// server has.
    pub fn mcp_url(mut self, name: &str, url: &str, token_variable: &str) -> Self {
        self.mcp_urls.push([name, url, token_variable].map(str::to_owned));
        self
    }

    /// The client requires a `cwd` for remote MCP servers, and ignores one that fails unless `required`.
    pub(super) fn mcp_config(&self, workspace: &Path) -> String {
        let table = |(name, argv): &(String, Vec<String>)| {
            let (command, args) = argv.split_first().expect("an MCP server has a program");
            // A JSON string, and a list of them, is also valid TOML.
            format!(
                "\n[mcp_servers.{name}]\ncommand = {}\nargs = {}\ncwd = {}\nenvironment_id = \"remote\"\nrequired = true\n",
                json!(command),
                json!(args),
                json!(workspace)
            )
        };
        let by_url = |[name, url, variable]: &[String; 3]| {
            format!(
                "\n[mcp_servers.{name}]\nurl = {}\nbearer_token_env_var = {}\nenvironment_id = \"remote\"\nrequired = true\n",
                json!(url),
                json!(variable)
            )
        };
        let by_command = self.mcp_servers.iter().map(table);
        by_command.chain(self.mcp_urls.iter().map(by_url)).collect()
    }

    /// Extracts the answers from a request, which repeats the whole conversation, and returns the next items.
    pub(super) fn handle_request(&mut self, request: &Value) -> Vec<Value> {
        for item in request["input"].as_array().into_iter().flatten() {
            let call_id = item["call_id"].as_str().unwrap_or_default();
            let kind = item["type"].as_str().unwrap_or_default();
            if matches!(kind, "function_call_output" | "custom_tool_call_output")
                && let Some(call) = self.open.remove(call_id)
            {
                let result = self.results.entry(call.label.clone()).or_default();
                result.handle_answer(&item["output"]);
                self.unsettled.push(call);
            }
        }
        self.requests.push(request["input"].clone());
        self.settle();
        let calls = if self.unsettled.is_empty() {
            self.turns.pop_front().unwrap_or_default()
        } else {
            self.unsettled.drain(..).map(|call| call.poll_again()).collect()
        };
        if calls.is_empty() {
            let content = json!([{"type": "output_text", "text": self.last_message}]);
            return vec![
                json!({"type": "message", "role": "assistant", "id": "last", "content": content}),
            ];
        }
        calls.into_iter().map(|call| self.open_call(call)).collect()
    }

    fn settle(&mut self) {
        let results = &self.results;
        self.unsettled.retain(|call| {
            let result = &results[&call.label];
            let wanted = match &call.until {
                Until::Answered => false,
                Until::Output(text) => !result.output.contains(text),
                Until::Exit => true,
            };
            wanted && result.session.is_some()
        });
    }

    fn open_call(&mut self, call: ToolCall) -> Value {
        self.calls_made += 1;
        let call_id = format!("call-{}", self.calls_made);
        let session = self.results.get(&call.label).and_then(|result| result.session);
        let item = call.to_item(&call_id, session);
        if let Some(listener) = &call.listener {
            // The test may have ended.
            let _ = listener.send(());
        }
        self.open.insert(call_id, call);
        item
    }
}
