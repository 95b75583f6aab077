//! The tools about commands, and the table of commands that were started. Finished commands stay readable.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use exec_server_client::ProcessSession;
use exec_server_protocol::process::{
    EnvInherit, EnvPolicy, ProcessSignal, ProcessStartParams, TerminalSize,
};

use crate::Shared;
use crate::arguments::{Nothing, ReadOutput, RunCommand, StopProcess, StopSignal, WriteInput};
use crate::call::{Answer, Arguments, ToolError};
use crate::caller::{Caller, Viewer};
use crate::process::{GRACE, Listed, Process};

/// How long a call waits for a command: clients give up after a minute.
const DEFAULT_YIELD_MS: u64 = 10_000;
/// How long a call waits for the reaction to input.
const INPUT_YIELD_MS: u64 = 1_000;
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
            output_spool: None,
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
        let id = match viewer {
            Viewer::Only => format!("p{number}"),
            Viewer::OneOf(_) => format!("p{}", uuid::Uuid::new_v4().simple()),
        };
        let process = Process::follow(id, viewer, command, session);
        table.processes.insert(number, process.clone());
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
        let found = self.lock().processes.values().find(|process| process.id() == id).cloned();
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
