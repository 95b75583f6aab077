//! `wait`: prints the exit codes of running or exited processes.

use exec_server_client::RemoteExecServerClient;
use exec_server_protocol::methods::Method;
use exec_server_protocol::process::{
    ExitReason, ProcessReadParams, ProcessReadResponse, ReadUntil,
};

use super::failure::Failure;
use super::ps::{Located, ProcessReferences};
use super::{format, lost_process};

/// Long-poll time, so that waiting costs no requests.
const WAIT_MS: u64 = 30_000;
/// Without `until`, each reply contains output, which is discarded.
const PAGE_BYTES: u64 = 64 * 1024;
const TIMED_OUT: u8 = 124;
/// Exit code of a shell's `wait` for an unknown process.
const UNKNOWN: u8 = 127;

/// Arguments of `wait`.
#[derive(Debug, clap::Args)]
pub struct WaitArguments {
    /// Print no exit codes.
    #[arg(short, long)]
    quiet: bool,
    #[command(flatten)]
    processes: ProcessReferences,
}

impl WaitArguments {
    /// The process arguments, for shell completion.
    pub fn references(&self) -> &ProcessReferences {
        &self.processes
    }
}

/// Waits for all processes and exits with the code of the last one.
pub async fn run(arguments: WaitArguments) -> Result<u8, Failure> {
    let (client, found) = arguments.processes.find().await?;
    let mut last = 0;
    for located in found {
        last = match located {
            Ok(located) => {
                let state = wait_until(&client, &located, ReadUntil::Exited).await?;
                let code = exit_code(&state);
                if !arguments.quiet {
                    format::print(&format!("{code}\n"))?;
                }
                code
            }
            Err(failure @ Failure::NoProcess(_)) => {
                failure.print();
                UNKNOWN
            }
            Err(failure) => return Err(failure),
        };
    }
    Ok(last)
}

/// Waits until a process has exited, or until it is closed.
pub async fn wait_until(
    client: &RemoteExecServerClient,
    located: &Located,
    until: ReadUntil,
) -> Result<ProcessReadResponse, Failure> {
    let mut after = 0;
    loop {
        let can = match client.session().connection().await {
            Ok(connection) => connection.capabilities(),
            // The session is lost; the next connection shows whether the process is lost as well.
            Err(error) if error.is_disconnected() => continue,
            Err(error) => return Err(error.into()),
        };
        let params = ProcessReadParams {
            process_id: located.process.process_id.clone(),
            after_seq: Some(after),
            max_bytes: Some(PAGE_BYTES),
            wait_ms: Some(WAIT_MS),
            session_id: Some(located.session.session_id.clone()),
            timestamps: false,
            until: can.process_read_until.then_some(until),
            view: None,
        };
        let read: Result<ProcessReadResponse, _> =
            client.call(Method::ProcessRead.name(), &params).await;
        let state = match read.map_err(Failure::from) {
            // A read has no side effects, so it is repeated.
            Err(failure) if failure.is_link() => continue,
            Err(failure) => return Err(lost_process::explain(client, failure).await),
            Ok(state) => state,
        };
        let is_over = match until {
            ReadUntil::Exited => state.exited,
            ReadUntil::Closed => state.closed,
        };
        if is_over {
            return Ok(state);
        }
        after = state.next_seq - 1;
    }
}

fn exit_code(state: &ProcessReadResponse) -> u8 {
    match state.details.reason {
        Some(ExitReason::Timeout | ExitReason::IdleTimeout) => TIMED_OUT,
        _ => state.exit_code.and_then(|code| u8::try_from(code).ok()).unwrap_or(255),
    }
}
