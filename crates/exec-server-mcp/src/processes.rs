//! The tools about commands, and the table of commands that were started. Finished commands stay readable.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use exec_server_client::{ExecServerError, ProcessSession};
use exec_server_protocol::duration::millis;
use exec_server_protocol::process::{
    EnvInherit, EnvPolicy, OutputSpool, ProcessSignal, ProcessStartParams, TerminalSize,
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
    table: Arc<Mutex<Table>>,
}

#[derive(Default)]
struct Table {
    /// In the order of their starts.
    processes: BTreeMap<u64, Arc<Process>>,
    numbers: HashMap<String, u64>,
    finished: Finished,
    last: u64,
}

/// Which commands have ended, and how much output they keep.
#[derive(Debug, Default)]
struct Finished {
    /// Bytes that a command keeps, by its end and its number.
    by_end: BTreeMap<(Instant, u64), usize>,
    bytes: usize,
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
        let mut params = self.start_params(&arguments, &cwd).await?;
        let session = match self.client.start(params.clone()).await {
            // Without a spool, the middle of a large output is lost and reported.
            Err(error) if has_no_spool(&error) => {
                params.output_spool = None;
                self.client.start(params.clone()).await?
            }
            started => started?,
        };
        let has_spool = params.output_spool.is_some();
        let process = self.processes.add(caller.viewer, arguments.command, session, has_spool);
        process.wait(arguments.yield_ms.unwrap_or(DEFAULT_YIELD_MS), None).await;
        Ok(process)
    }

    async fn start_params(
        &self,
        arguments: &RunCommand,
        cwd: &str,
    ) -> Result<ProcessStartParams, ToolError> {
        let sandbox = self.sandbox.as_ref().map(serde_json::to_value);
        let can = self.info.as_ref().map(|info| info.capabilities).unwrap_or_default();
        let has_spool = can.process_output_spool;
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
            closed_retention_ms: (has_spool && can.session_linger).then_some(millis(KEPT)),
            unique_id: false,
            user: None,
            output_spool: has_spool.then(OutputSpool::default),
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
            None => Ok(process.report(0, most).await),
            Some(offset) => Ok(process.report_piece(offset, most).await),
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
        Ok(process.report(from, self.max_output).await)
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
        Ok(process.report(from, self.max_output).await)
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

fn no_input(error: ExecServerError) -> ToolError {
    ToolError(format!(
        "{error}; start the command with `stdin: true` or `tty: true` to write to it"
    ))
}

/// Whether a process cannot have a spool, but could run without one.
fn has_no_spool(error: &ExecServerError) -> bool {
    matches!(error.kind(), Some("spools_full" | "spool_unavailable"))
}

impl Processes {
    fn add(
        &self,
        viewer: Viewer,
        command: String,
        session: ProcessSession,
        has_spool: bool,
    ) -> Arc<Process> {
        let mut table = self.lock();
        table.last += 1;
        let number = table.last;
        let id = match viewer {
            Viewer::Only => format!("p{number}"),
            Viewer::OneOf(_) => format!("p{}", uuid::Uuid::new_v4().simple()),
        };
        let shared = self.table.clone();
        let note_end = move |ended, bytes| lock(&shared).note_finished(number, ended, bytes);
        let process = Process::follow(id.clone(), viewer, command, session, has_spool, note_end);
        table.processes.insert(number, process.clone());
        table.numbers.insert(id, number);
        process
    }

    /// Forgets finished commands that are old or too many; an error if too many run.
    fn make_room(&self) -> Result<(), ToolError> {
        let mut table = self.lock();
        if table.processes.len() - table.finished.by_end.len() >= MAX_RUNNING {
            return Err(ToolError(format!(
                "{MAX_RUNNING} commands are running; stop some with stop_process"
            )));
        }
        let now = Instant::now();
        while let Some(number) = table.finished.take_excess(now) {
            if let Some(process) = table.processes.remove(&number) {
                table.numbers.remove(process.id());
            }
        }
        Ok(())
    }

    fn find(&self, id: &str) -> Result<Arc<Process>, ToolError> {
        let table = self.lock();
        let found = table.numbers.get(id).and_then(|number| table.processes.get(number));
        found.cloned().ok_or_else(|| {
            ToolError(format!("there is no process `{id}`; list_processes shows the ids"))
        })
    }

    fn all(&self) -> Vec<Arc<Process>> {
        self.lock().processes.values().cloned().collect()
    }

    /// Ends all commands that run.
    pub async fn end_all(&self) {
        for process in self.all() {
            if process.is_running() {
                // The link may be gone; then the session ends by itself.
                let _ = process.session.terminate(None).await;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        lock(&self.table)
    }
}

fn lock(table: &Mutex<Table>) -> MutexGuard<'_, Table> {
    table.lock().expect("no holder panics")
}

impl Table {
    fn note_finished(&mut self, number: u64, ended: Instant, bytes: usize) {
        // Output can follow after the command was forgotten.
        if self.processes.contains_key(&number) {
            self.finished.note(number, ended, bytes);
        }
    }
}

impl Finished {
    /// Enters a command that has ended, or the output that it has got since.
    fn note(&mut self, number: u64, ended: Instant, bytes: usize) {
        let before = self.by_end.insert((ended, number), bytes).unwrap_or(0);
        self.bytes = self.bytes - before + bytes;
    }

    /// Takes out the command that ended first, if it is old or there are too many.
    fn take_excess(&mut self, now: Instant) -> Option<u64> {
        let first = self.by_end.first_entry()?;
        let is_old = now.saturating_duration_since(first.key().0) >= KEPT;
        let ((_, number), bytes) = match is_old || self.bytes > MAX_FINISHED_BYTES {
            true => first.remove_entry(),
            false if self.by_end.len() > MAX_FINISHED => self.by_end.pop_first()?,
            false => return None,
        };
        self.bytes -= bytes;
        Some(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(finished: &mut Finished, now: Instant) -> Vec<u64> {
        std::iter::from_fn(|| finished.take_excess(now)).collect()
    }

    #[test]
    fn finished_commands_are_forgotten_by_age_number_and_size_in_the_order_of_their_ends() {
        let begin = Instant::now();
        let at = |seconds: u64| begin + Duration::from_secs(seconds);
        let mut finished = Finished::default();
        finished.note(1, at(2), 10);
        finished.note(2, at(1), 10);
        assert_eq!(taken(&mut finished, at(3)), Vec::<u64>::new());
        assert_eq!(taken(&mut finished, at(1) + KEPT), [2]);
        // Further output of a command counts once.
        finished.note(1, at(2), MAX_FINISHED_BYTES);
        finished.note(3, at(3), 1);
        assert_eq!(taken(&mut finished, at(3)), [1]);
        assert_eq!(finished.bytes, 1);
        for number in 0..MAX_FINISHED as u64 {
            finished.note(10 + number, at(4), 0);
        }
        assert_eq!(taken(&mut finished, at(5)), [3]);
        assert_eq!(finished.bytes, 0);
    }
}
