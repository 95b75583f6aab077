//! `wait`: the exit codes of processes of earlier invocations.

use exec_server_client::RemoteExecServerClient;
use exec_server_protocol::methods::Method;
use exec_server_protocol::process::{
    ExitReason, ProcessReadParams, ProcessReadResponse, ReadUntil,
};

use super::failure::Failure;
use super::ps::{Located, ProcessReferences};
use super::{format, lost_process};

/// A long poll, so that waiting costs nothing.
const WAIT_MS: u64 = 30_000;
/// Without `until`, each answer brings output that is not looked at.
const PAGE_BYTES: u64 = 64 * 1024;
const TIMED_OUT: u8 = 124;
/// What a shell's `wait` exits with for a process that it does not know.
const UNKNOWN: u8 = 127;

/// Which processes.
#[derive(Debug, clap::Args)]
pub struct WaitArguments {
    /// Print no exit codes.
    #[arg(short, long)]
    quiet: bool,
    #[command(flatten)]
    processes: ProcessReferences,
}

impl WaitArguments {
    /// The processes that are meant.
    pub fn references(&self) -> &ProcessReferences {
        &self.processes
    }
}

/// Waits for all, and exits as the last one did.
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

/// Waits for the exit of a process, or for the end of its streams as well.
pub async fn wait_until(
    client: &RemoteExecServerClient,
    located: &Located,
    until: ReadUntil,
) -> Result<ProcessReadResponse, Failure> {
    let mut after = 0;
    loop {
        let can = match client.session().connection().await {
            Ok(connection) => connection.capabilities(),
            // The session is lost; the next one tells whether the process is as well.
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
        };
        let read: Result<ProcessReadResponse, _> =
            client.call(Method::ProcessRead.name(), &params).await;
        let state = match read.map_err(Failure::from) {
            // The read only looks, so that it can be made again.
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
