//! The tools about commands, and the commands that were started.
//!
//! Owner of a command's output: its follower task. Finished commands stay readable.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use exec_server_client::{ProcessEvent, ProcessEvents, ProcessExit, ProcessSession};
use exec_server_protocol::process::{
    EnvInherit, EnvPolicy, ProcessSignal, ProcessStartParams, TerminalSize,
};
use serde::Serialize;
use tokio::sync::watch;

use crate::Shared;
use crate::arguments::{Nothing, ReadOutput, RunCommand, StopProcess, StopSignal, WriteInput};
use crate::call::{Answer, Arguments, ToolError};
use crate::caller::{Caller, Viewer};
use crate::output_log::OutputLog;

/// How long a call waits for a command: clients give up after a minute.
const DEFAULT_YIELD_MS: u64 = 10_000;
const MAX_YIELD_MS: u64 = 50_000;
/// How long a call waits for the reaction to input.
const INPUT_YIELD_MS: u64 = 1_000;
/// Output that still comes after the exit is waited for this long.
const AFTER_EXIT: Duration = Duration::from_millis(250);
/// Between SIGTERM and SIGKILL.
const GRACE: Duration = Duration::from_secs(2);
/// Finished commands are kept this long, within the two bounds below.
const KEPT: Duration = Duration::from_secs(600);
/// Commands that run at once.
const MAX_RUNNING: usize = 64;
/// Finished commands that are kept.
const MAX_FINISHED: usize = 1000;
/// Output of finished commands that is kept; one has up to 8 MiB.
const MAX_FINISHED_BYTES: usize = 256 * 1024 * 1024;

/// The commands of one MCP server.
#[derive(Default)]
pub struct Processes {
    by_id: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    processes: BTreeMap<u64, Arc<Process>>,
    last: u64,
}

/// A command that was started.
pub struct Process {
    id: String,
    /// Who may see it in a list.
    viewer: Viewer,
    command: String,
    session: ProcessSession,
    state: Mutex<State>,
    /// Changes whenever the state does.
    version: watch::Sender<u64>,
}

#[derive(Default)]
struct State {
    log: OutputLog,
    exit: Option<ProcessExit>,
    ended: Option<Instant>,
    is_closed: bool,
    failure: Option<String>,
}

/// What is told about a command.
#[derive(Serialize)]
struct Report {
    process_id: String,
    running: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    exit_code: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    signal: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    failure: Option<String>,
    output: String,
    total_bytes: u64,
    omitted_bytes: u64,
    next_offset: u64,
    /// Whether every byte of the output can still be read.
    all_available: bool,
}

/// One line of the list of commands.
#[derive(Serialize)]
struct Listed {
    process_id: String,
    command: String,
    running: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    exit_code: Option<i32>,
    total_bytes: u64,
}

impl Shared {
    /// Starts a command and waits for its end as long as the call may take.
    pub async fn start_command(
        &self,
        caller: Caller,
        arguments: Arguments<RunCommand>,
    ) -> Result<Arc<Process>, ToolError> {
        let arguments = arguments?;
        self.processes.make_room()?;
        let cwd = self.paths.resolve(arguments.cwd.as_deref().unwrap_or("."))?;
        let session = self.client.start(self.start_params(&arguments, &cwd).await?).await?;
        let process = self.processes.add(caller.viewer, arguments.command, session);
        process.wait(arguments.yield_ms.unwrap_or(DEFAULT_YIELD_MS), None).await;
        Ok(process)
    }

    async fn start_params(
        &self,
        arguments: &RunCommand,
        cwd: &str,
    ) -> Result<ProcessStartParams, ToolError> {
        let sandbox = self.sandbox.as_ref().map(serde_json::to_value);
        Ok(ProcessStartParams {
            process_id: uuid::Uuid::new_v4().to_string().into(),
            argv: vec![self.shell.clone(), "-c".to_owned(), arguments.command.clone()],
            cwd: self.files.resolve(cwd).await?,
            env: arguments.env.clone(),
            tty: arguments.tty,
            env_policy: Some(EnvPolicy::without_secrets(EnvInherit::All)),
            pipe_stdin: arguments.stdin,
            arg0: None,
            sandbox: sandbox.map(|sandbox| sandbox.expect("a sandbox is plain data")),
            enforce_managed_network: false,
            managed_network: None,
            network_proxy: None,
            shell_snapshot: None,
            metadata: None,
            size: arguments.tty.then(TerminalSize::default),
            timeout_ms: arguments.timeout_ms,
            idle_timeout_ms: None,
            output_retention: None,
            limits: None,
            wait_when_detached: false,
            closed_retention_ms: None,
            unique_id: false,
            user: None,
            detailed: false,
        })
    }

    pub async fn read_output(&self, arguments: Arguments<ReadOutput>) -> Result<Answer, ToolError> {
        let arguments = arguments?;
        let process = self.processes.find(&arguments.process_id)?;
        if let Some(wait) = arguments.wait_ms {
            let seen = arguments.offset.and_then(|offset| u64::try_from(offset).ok());
            process.wait(wait, seen).await;
        }
        let most = arguments.max_bytes.unwrap_or(self.max_output).min(self.max_output);
        match arguments.offset {
            None => Ok(process.report(0, most)),
            Some(offset) => Ok(process.report_piece(offset, most)),
        }
    }

    pub async fn write_input(&self, arguments: Arguments<WriteInput>) -> Result<Answer, ToolError> {
        let arguments = arguments?;
        let process = self.processes.find(&arguments.process_id)?;
        let from = process.lock().log.total();
        if !arguments.text.is_empty() {
            process.session.write(arguments.text.as_bytes()).await.map_err(no_input)?;
        }
        if arguments.close {
            process.session.close_stdin().await.map_err(no_input)?;
        }
        process.wait(arguments.yield_ms.unwrap_or(INPUT_YIELD_MS), Some(from)).await;
        Ok(process.report(from, self.max_output))
    }

    pub async fn stop_process(
        &self,
        arguments: Arguments<StopProcess>,
    ) -> Result<Answer, ToolError> {
        let arguments = arguments?;
        let process = self.processes.find(&arguments.process_id)?;
        let from = process.lock().log.total();
        match arguments.signal {
            StopSignal::Interrupt => process.session.signal(ProcessSignal::Interrupt).await?,
            StopSignal::Terminate => drop(process.session.terminate(Some(GRACE)).await?),
            StopSignal::Kill => drop(process.session.terminate(None).await?),
        }
        process.wait(u64::try_from(GRACE.as_millis()).unwrap_or(0) * 2, None).await;
        Ok(process.report(from, self.max_output))
    }

    pub fn list_processes(
        &self,
        caller: Caller,
        arguments: Arguments<Nothing>,
    ) -> Result<Answer, ToolError> {
        let Nothing {} = arguments?;
        let all = self.processes.all();
        let own = all.iter().filter(|process| process.viewer == caller.viewer);
        let processes: Vec<Listed> = own.map(|process| process.listed()).collect();
        let line = |listed: &Listed| {
            let state = match listed.exit_code {
                _ if listed.running => "running".to_owned(),
                Some(code) => format!("exited {code}"),
                None => "gone".to_owned(),
            };
            format!("{}\t{state}\t{}\n", listed.process_id, listed.command)
        };
        let text: String = processes.iter().map(line).collect();
        let text = match (text.is_empty(), caller.viewer) {
            (false, _) => text,
            (true, Viewer::Only) => "no processes were started".to_owned(),
            (true, Viewer::OneOf(_)) => {
                "no processes were started in this MCP session; those of others are not shown, \
                 and requests without a session see none: use the process_id of run_command"
                    .to_owned()
            }
        };
        Ok(Answer::new(text, &serde_json::json!({ "processes": processes })))
    }
}

fn no_input(error: exec_server_client::ExecServerError) -> ToolError {
    ToolError(format!(
        "{error}; start the command with `stdin: true` or `tty: true` to write to it"
    ))
}

impl Processes {
    fn add(&self, viewer: Viewer, command: String, session: ProcessSession) -> Arc<Process> {
        let mut table = self.lock();
        table.last += 1;
        let number = table.last;
        let events = session.paced_events_after(0);
        let process = Arc::new(Process {
            id: match viewer {
                Viewer::Only => format!("p{number}"),
                Viewer::OneOf(_) => format!("p{}", uuid::Uuid::new_v4().simple()),
            },
            viewer,
            command,
            session,
            state: Mutex::default(),
            version: watch::Sender::new(0),
        });
        table.processes.insert(number, process.clone());
        drop(table);
        tokio::spawn(follow(process.clone(), events));
        process
    }

    /// Forgets finished commands that are old or too many; an error if too many run.
    fn make_room(&self) -> Result<(), ToolError> {
        let mut table = self.lock();
        let mut finished: Vec<(Instant, u64, usize)> = table
            .processes
            .iter()
            .filter_map(|(number, process)| {
                let state = process.lock();
                state.ended.map(|ended| (ended, *number, state.log.retained_bytes()))
            })
            .collect();
        if table.processes.len() - finished.len() >= MAX_RUNNING {
            return Err(ToolError(format!(
                "{MAX_RUNNING} commands are running; stop some with stop_process"
            )));
        }
        finished.sort_unstable();
        let mut bytes: usize = finished.iter().map(|(.., bytes)| bytes).sum();
        let mut count = finished.len();
        for (ended, number, size) in finished {
            let is_old = ended.elapsed() >= KEPT;
            if !(is_old || count > MAX_FINISHED || bytes > MAX_FINISHED_BYTES) {
                break;
            }
            table.processes.remove(&number);
            (count, bytes) = (count - 1, bytes - size);
        }
        Ok(())
    }

    fn find(&self, id: &str) -> Result<Arc<Process>, ToolError> {
        let found = self.lock().processes.values().find(|process| process.id == id).cloned();
        found.ok_or_else(|| {
            ToolError(format!("there is no process `{id}`; list_processes shows the ids"))
        })
    }

    fn all(&self) -> Vec<Arc<Process>> {
        self.lock().processes.values().cloned().collect()
    }

    /// Ends all commands that run.
    pub async fn end_all(&self) {
        for process in self.all() {
            if process.lock().ended.is_none() {
                // The link may be gone; then the session ends by itself.
                let _ = process.session.terminate(None).await;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.by_id.lock().expect("no holder panics")
    }
}

/// Collects the events of a command until nothing more comes.
async fn follow(process: Arc<Process>, mut events: ProcessEvents) {
    while let Some(event) = events.next().await {
        {
            let mut state = process.lock();
            match event {
                ProcessEvent::Output { bytes, .. } => state.log.push(&bytes),
                ProcessEvent::Exited { exit, .. } => {
                    state.exit = Some(exit);
                    state.ended = Some(Instant::now());
                }
                ProcessEvent::Closed { .. } => state.is_closed = true,
                ProcessEvent::Gap(_) => state.log.note_gap(),
                ProcessEvent::ResyncRequired => {}
                ProcessEvent::Failed(reason) => {
                    state.failure = Some(reason.to_string());
                    state.ended = Some(Instant::now());
                }
            }
        }
        process.version.send_modify(|version| *version += 1);
    }
}

impl Process {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder panics")
    }

    /// The id that clients use.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Whether the command has not ended.
    pub fn is_running(&self) -> bool {
        self.lock().ended.is_none()
    }

    /// Ends the command and everything that it started.
    pub async fn stop(&self) {
        // The link may be gone; then the session ends by itself.
        let _ = self.session.terminate(Some(GRACE)).await;
    }

    /// Waits for [`Process::settled`], but not longer than a call may take; the command goes on.
    async fn wait(&self, wait_ms: u64, seen: Option<u64>) {
        let wait = Duration::from_millis(wait_ms.min(MAX_YIELD_MS));
        let _ = tokio::time::timeout(wait, self.settled(seen)).await;
    }

    /// Waits until the command is over, or, with `seen`, has written more than that.
    pub async fn settled(&self, seen: Option<u64>) {
        let mut version = self.version.subscribe();
        loop {
            version.borrow_and_update();
            let has_exited = {
                let state = self.lock();
                let has_more = seen.is_some_and(|seen| state.log.total() > seen);
                if state.is_closed || state.failure.is_some() || has_more {
                    return;
                }
                state.exit.is_some()
            };
            // A child of the command may keep its output open for long.
            if has_exited {
                let _ = tokio::time::timeout(AFTER_EXIT, version.changed()).await;
                if self.lock().exit.is_some() {
                    return;
                }
            } else if version.changed().await.is_err() {
                return;
            }
        }
    }

    /// The state, with the beginning and the end of the output after `from`.
    pub fn report(&self, from: u64, most: usize) -> Answer {
        let state = self.lock();
        let (output, omitted) = state.log.summary(from, most);
        let next_offset = state.log.total();
        self.answer(&state, output, omitted, next_offset)
    }

    fn report_piece(&self, offset: i64, most: usize) -> Answer {
        let state = self.lock();
        let piece = state.log.read(offset, most);
        let output = String::from_utf8_lossy(&piece.bytes).into_owned();
        let omitted = u64::try_from(offset).map_or(0, |wanted| piece.offset.saturating_sub(wanted));
        self.answer(&state, output, omitted, piece.next_offset)
    }

    fn answer(&self, state: &State, output: String, omitted: u64, next_offset: u64) -> Answer {
        let running = state.ended.is_none();
        let status = match (&state.failure, &state.exit) {
            (Some(reason), _) => format!("the process cannot be followed any further: {reason}"),
            (None, Some(exit)) => match &exit.details.signal {
                Some(signal) => format!("ended by {signal} (code {})", exit.exit_code),
                None => format!("exit code {}", exit.exit_code),
            },
            (None, None) => format!("still running as process {}", self.id),
        };
        let report = Report {
            process_id: self.id.clone(),
            running,
            exit_code: state.exit.as_ref().map(|exit| exit.exit_code),
            signal: state.exit.as_ref().and_then(|exit| exit.details.signal.clone()),
            failure: state.failure.clone(),
            total_bytes: state.log.total(),
            omitted_bytes: omitted,
            next_offset,
            all_available: state.log.is_complete(),
            output,
        };
        Answer::new(format!("{}\n[{status}]", report.output.trim_end_matches('\n')), &report)
    }

    fn listed(&self) -> Listed {
        let state = self.lock();
        Listed {
            process_id: self.id.clone(),
            command: self.command.clone(),
            running: state.ended.is_none(),
            exit_code: state.exit.as_ref().map(|exit| exit.exit_code),
            total_bytes: state.log.total(),
        }
    }
}
