//! `process.Process`: the commands that were started through this facade.
//!
//! Owner of a command: its entry here, until it has exited. Every stream has its own reader of the events.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use exec_server_client::ProcessSession;
use exec_server_client::protocol::process::{
    EnvInherit, EnvPolicy, ProcessSignal, ProcessStartParams, TerminalSize,
};
use exec_server_protocol::base64;
use http::{HeaderMap, Request, Response};
use hyper::body::Incoming;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Value, json};

use crate::Shared;
use crate::body::Body;
use crate::connect::{self, Deadline, Messages};
use crate::paths::uri_of;
use crate::process_events;
use crate::refusal::{Code, Refusal};

/// Output that the server keeps for a caller that reads slowly.
const RETAINED: u64 = 64 * 1024 * 1024;
/// Numbers for servers that do not tell the pid: above those of the system.
const FIRST_OWN_NUMBER: u32 = 1 << 30;
/// The time between SIGTERM and SIGKILL at the end of a sandbox.
const GRACE: Duration = Duration::from_millis(500);

/// The running commands by their number.
#[derive(Default)]
pub struct Processes {
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    by_pid: BTreeMap<u32, Arc<Process>>,
    numbered: u32,
}

/// A command.
pub struct Process {
    pub pid: u32,
    pub session: ProcessSession,
    sandbox: String,
    tag: Option<String>,
    config: Config,
    is_pty: bool,
}

/// What was asked to run.
#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(default)]
struct Config {
    cmd: String,
    args: Vec<String>,
    envs: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cwd: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Start {
    process: Config,
    #[serde(default)]
    pty: Option<Pty>,
    #[serde(default)]
    tag: Option<String>,
    /// Old SDKs leave it out and expect an open stdin.
    #[serde(default)]
    stdin: Option<bool>,
}

#[derive(Debug, Default, Deserialize)]
struct Pty {
    #[serde(default)]
    size: Size,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Size {
    cols: u32,
    rows: u32,
}

/// A command by its number or its tag.
#[derive(Debug, Default, Deserialize)]
struct Selector {
    #[serde(default, deserialize_with = "number")]
    pid: Option<u32>,
    #[serde(default)]
    tag: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Selected {
    process: Selector,
    input: Input,
    pty: Option<Pty>,
    signal: Value,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Input {
    stdin: Option<String>,
    pty: Option<String>,
}

/// A message of `StreamInput`.
#[derive(Debug, Deserialize)]
#[serde(default)]
#[derive(Default)]
struct StreamedInput {
    start: Option<Selected>,
    data: Option<StreamedData>,
    keepalive: Option<Value>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct StreamedData {
    input: Input,
}

impl Shared {
    /// `Start` and `Connect`, which answer with a stream.
    pub async fn follow_process(
        &self,
        method: &str,
        sandbox: String,
        request: Request<Incoming>,
    ) -> Result<Response<Body>, Refusal> {
        let headers = request.headers().clone();
        let deadline = Deadline::of(&headers)?;
        let keepalive = keepalive_of(&headers);
        if method == "Connect" {
            let selected: Selected = connect::stream_request(request).await?;
            let process = self.processes.find(&selected.process, &sandbox)?;
            let events = process.session.events_after(process.session.last_seq());
            let (sink, response) = connect::stream();
            tokio::spawn(process_events::pump(process, events, sink, deadline, keepalive, false));
            return Ok(response);
        }
        let start: Start = connect::stream_request(request).await?;
        let user = self.users.of_command(&headers)?;
        let process = self.start(start, sandbox, user, deadline.timeout).await?;
        let events = process.session.events();
        let (sink, response) = connect::stream();
        tokio::spawn(process_events::pump(process, events, sink, deadline, keepalive, true));
        Ok(response)
    }

    async fn start(
        &self,
        start: Start,
        sandbox: String,
        user: Option<String>,
        timeout: Option<Duration>,
    ) -> Result<Arc<Process>, Refusal> {
        let can = &self.info.capabilities;
        if start.process.cmd.is_empty() {
            return Err(Refusal::invalid("the command is empty"));
        }
        if start.tag.as_ref().is_some_and(|tag| self.processes.has_tag(tag, &sandbox)) {
            return Err(Refusal::new(Code::AlreadyExists, "a command with this tag is running"));
        }
        let cwd = match start.process.cwd.as_deref() {
            Some(cwd) => self.files_of(user.clone()).absolute(cwd).await?,
            None => self.start_directory(user.as_deref()).await?,
        };
        let mut env = self.sandboxes.envs_of(&sandbox);
        env.extend(start.process.envs.clone());
        let mut argv = vec![start.process.cmd.clone()];
        argv.extend(start.process.args.iter().cloned());
        let size = start.pty.as_ref().map(|pty| size_of(&pty.size)).transpose()?;
        let timeout_ms =
            timeout.map(|timeout| u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX));
        let params = ProcessStartParams {
            process_id: uuid::Uuid::new_v4().to_string().into(),
            argv,
            cwd: uri_of(&cwd),
            env: env.into_iter().collect(),
            tty: start.pty.is_some(),
            env_policy: Some(EnvPolicy::without_secrets(EnvInherit::All)),
            pipe_stdin: start.pty.is_none() && start.stdin.unwrap_or(true),
            arg0: None,
            sandbox: None,
            enforce_managed_network: false,
            managed_network: None,
            network_proxy: None,
            shell_snapshot: None,
            metadata: None,
            size: size.filter(|_| can.process_resize),
            // The server keeps the limit, also while this facade is away.
            timeout_ms: timeout_ms.filter(|_| can.process_timeouts),
            idle_timeout_ms: None,
            output_retention: can.process_output_retention.then_some(RETAINED),
            limits: None,
            wait_when_detached: false,
            closed_retention_ms: None,
            unique_id: false,
            user: user.map(Into::into),
            output_spool: None,
            detailed: can.process_pid,
        };
        let session = self.client.start(params).await?;
        Ok(self.processes.add(session, sandbox, start))
    }

    /// The calls with one message and one answer.
    pub async fn process_call(
        &self,
        method: &str,
        sandbox: &str,
        request: Request<Incoming>,
    ) -> Result<Value, Refusal> {
        if method == "List" {
            connect::unary::<Value>(request).await?;
            return Ok(json!({"processes": self.processes.list(sandbox)}));
        }
        let selected: Selected = connect::unary(request).await?;
        let process = self.processes.find(&selected.process, sandbox)?;
        match method {
            "SendInput" => process.write(&selected.input).await?,
            "CloseStdin" if process.is_pty => {
                return Err(Refusal::invalid("a terminal is closed by its end-of-file character"));
            }
            "CloseStdin" => process.session.close_stdin().await?,
            "SendSignal" => process.session.signal(signal_of(&selected.signal)?).await?,
            "Update" => {
                let Some(pty) = &selected.pty else {
                    return Err(Refusal::invalid("there is nothing to update"));
                };
                if !process.is_pty {
                    return Err(Refusal::invalid("the command has no terminal"));
                }
                process.session.resize(size_of(&pty.size)?).await?;
            }
            method => {
                return Err(Refusal::unimplemented(format!(
                    "process.Process/{method} is not known"
                )));
            }
        }
        Ok(json!({}))
    }

    /// `StreamInput`: the first message names the command, the others have input.
    pub async fn stream_input(
        &self,
        sandbox: &str,
        request: Request<Incoming>,
    ) -> Result<Value, Refusal> {
        let mut messages = Messages::of(request)?;
        let mut process = None;
        while let Some(message) = messages.next::<StreamedInput>().await? {
            if let Some(start) = message.start {
                process = Some(self.processes.find(&start.process, sandbox)?);
            }
            if let Some(data) = message.data {
                let Some(process) = &process else {
                    return Err(Refusal::invalid("input comes before the start message"));
                };
                process.write(&data.input).await?;
            }
            drop(message.keepalive);
        }
        Ok(json!({}))
    }
}

impl Processes {
    fn add(
        self: &Processes,
        session: ProcessSession,
        sandbox: String,
        start: Start,
    ) -> Arc<Process> {
        let mut table = self.lock();
        let pid = match session.pid() {
            Some(pid) if !table.by_pid.contains_key(&pid) => pid,
            _ => {
                table.numbered += 1;
                FIRST_OWN_NUMBER + table.numbered
            }
        };
        let process = Arc::new(Process {
            pid,
            session,
            sandbox,
            tag: start.tag,
            is_pty: start.pty.is_some(),
            config: start.process,
        });
        table.by_pid.insert(pid, process.clone());
        process
    }

    /// Forgets a command that has exited.
    fn forget_exited(table: &mut Table) {
        table.by_pid.retain(|_, process| {
            process.session.exit().is_none() && process.session.failure().is_none()
        });
    }

    fn find(&self, selector: &Selector, sandbox: &str) -> Result<Arc<Process>, Refusal> {
        let mut table = self.lock();
        Self::forget_exited(&mut table);
        let found = match (selector.pid, &selector.tag) {
            (Some(pid), _) => table.by_pid.get(&pid).cloned(),
            (None, Some(tag)) => {
                table.by_pid.values().find(|process| process.tag.as_ref() == Some(tag)).cloned()
            }
            (None, None) => return Err(Refusal::invalid("the request names no process")),
        };
        found.filter(|process| process.sandbox == sandbox).ok_or_else(|| {
            let name = match (selector.pid, &selector.tag) {
                (Some(pid), _) => format!("pid {pid}"),
                (None, tag) => format!("tag {:?}", tag.as_deref().unwrap_or_default()),
            };
            Refusal::new(Code::NotFound, format!("process with {name} not found"))
        })
    }

    fn has_tag(&self, tag: &str, sandbox: &str) -> bool {
        let mut table = self.lock();
        Self::forget_exited(&mut table);
        let is_same = |process: &&Arc<Process>| {
            process.sandbox == sandbox && process.tag.as_deref() == Some(tag)
        };
        table.by_pid.values().any(|process| is_same(&process))
    }

    fn list(&self, sandbox: &str) -> Vec<Value> {
        let mut table = self.lock();
        Self::forget_exited(&mut table);
        let own = table.by_pid.values().filter(|process| process.sandbox == sandbox);
        own.map(|process| {
            let mut listed = json!({"pid": process.pid, "config": process.config});
            if let Some(tag) = &process.tag {
                listed["tag"] = tag.as_str().into();
            }
            listed
        })
        .collect()
    }

    /// Ends the commands of a sandbox.
    pub async fn end_of(&self, sandbox: &str) {
        self.end_where(|process| process.sandbox == sandbox).await;
    }

    /// Ends all commands.
    pub async fn end_all(&self) {
        self.end_where(|_| true).await;
    }

    async fn end_where(&self, is_meant: impl Fn(&Process) -> bool) {
        let ended: Vec<_> = {
            let mut table = self.lock();
            Self::forget_exited(&mut table);
            table.by_pid.values().filter(|process| is_meant(process)).cloned().collect()
        };
        for process in &ended {
            // If the link is gone, the session ends them.
            let _ = process.session.terminate(Some(GRACE)).await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().expect("no holder panics")
    }
}

impl Process {
    async fn write(&self, input: &Input) -> Result<(), Refusal> {
        let (text, is_right) = match (&input.stdin, &input.pty) {
            (Some(text), None) => (text, !self.is_pty),
            (None, Some(text)) => (text, self.is_pty),
            _ => return Err(Refusal::invalid("input is for stdin or for a terminal")),
        };
        if !is_right {
            let kind = if self.is_pty { "a terminal" } else { "no terminal" };
            return Err(Refusal::invalid(format!("the command has {kind}")));
        }
        let bytes =
            base64::decode(text).map_err(|_| Refusal::invalid("the input is not base64"))?;
        Ok(self.session.write(&bytes).await?)
    }
}

fn size_of(size: &Size) -> Result<TerminalSize, Refusal> {
    let side = |value: u32| u16::try_from(value).ok().filter(|value| *value > 0);
    match (side(size.rows), side(size.cols)) {
        (Some(rows), Some(cols)) => Ok(TerminalSize { rows, cols }),
        _ => Err(Refusal::invalid(format!(
            "{} rows and {} columns are no size of a terminal",
            size.rows, size.cols
        ))),
    }
}

/// A signal by its name or its number.
fn signal_of(value: &Value) -> Result<ProcessSignal, Refusal> {
    match value {
        Value::String(name) if name == "SIGNAL_SIGTERM" => Ok(ProcessSignal::Terminate),
        Value::String(name) if name == "SIGNAL_SIGKILL" => Ok(ProcessSignal::Kill),
        Value::Number(number) if number.as_u64() == Some(15) => Ok(ProcessSignal::Terminate),
        Value::Number(number) if number.as_u64() == Some(9) => Ok(ProcessSignal::Kill),
        value => Err(Refusal::invalid(format!("the signal {value} is not known"))),
    }
}

fn keepalive_of(headers: &HeaderMap) -> Option<Duration> {
    let value = headers.get("keepalive-ping-interval")?.to_str().ok()?;
    value.parse().ok().filter(|seconds| *seconds > 0).map(Duration::from_secs)
}

/// Numbers may be strings in the JSON of protobuf.
fn number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u32>, D::Error> {
    let value = Option::<Value>::deserialize(deserializer)?;
    let wrong = || serde::de::Error::custom("a pid is a number of 32 bits");
    match value {
        None => Ok(None),
        Some(Value::String(text)) => text.parse().map(Some).map_err(|_| wrong()),
        Some(value) => {
            let number = value.as_u64().and_then(|number| u32::try_from(number).ok());
            number.map(Some).ok_or_else(wrong)
        }
    }
}
