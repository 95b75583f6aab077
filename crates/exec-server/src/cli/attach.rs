//! `attach`: resumes the session of a running process and follows the process.

use std::io::{self, IsTerminal};
use std::time::Instant;

use exec_server_client::{ExecServerError, RemoteExecServerClient};
use exec_server_protocol::errors::ErrorCode;

use super::console::Console;
use super::detach_keys::DetachKeys;
use super::escapes::EscapeChar;
use super::failure::Failure;
use super::follow::{FollowOptions, Input, follow};
use super::format;
use super::input_queue::LocalKeys;
use super::ps::{Located, ProcessReference};
use super::reattach::ReattachHint;
use super::run::{conclude, leave_timeout};
use super::target::ResumeOptions;

/// Arguments of `attach`.
#[derive(Debug, clap::Args)]
pub struct AttachArguments {
    /// Take the process over from the client that is attached now.
    #[arg(long)]
    take_over: bool,
    /// Skip retained output; show only new output.
    #[arg(long)]
    no_replay: bool,
    /// Do not read stdin.
    #[arg(short = 'n', long)]
    no_stdin: bool,
    /// Key sequence that detaches from the process, or none.
    #[arg(long, value_name = "KEYS", default_value = DetachKeys::DEFAULT)]
    detach_keys: DetachKeys,
    /// Escape character after Enter, as in ssh: ~. leaves, ~? lists all sequences; ^X means Ctrl-X, none disables them.
    #[arg(long, value_name = "CHAR", default_value = EscapeChar::DEFAULT, allow_hyphen_values = true)]
    escape_char: EscapeChar,
    #[command(flatten)]
    process: ProcessReference,
}

impl AttachArguments {
    /// The process argument, for shell completion.
    pub fn reference(&self) -> &ProcessReference {
        &self.process
    }
}

/// Finds the process, takes its session, and follows it until it exits or the user leaves.
pub async fn run(arguments: AttachArguments) -> Result<u8, Failure> {
    let reference = &arguments.process;
    let keys = LocalKeys { detach: arguments.detach_keys, escape: arguments.escape_char };
    let mut console = Console::open(keys)?;
    if !arguments.no_stdin {
        console.read_keys()?;
    }
    let left = "left; nothing was attached";
    let (looking, located) = console.wait_for(left, reference.find()).await?;
    let id = located.process.process_id.clone();
    let reattach = ReattachHint::new(reference.target(), &id);
    // An older server takes a process from a client behind a relay, because it waits there for a pong that never comes.
    let can = looking.session().connection().await?.capabilities();
    if located.session.attached && !arguments.take_over && !can.session_take_over_asked {
        return Err(attached_elsewhere(&located, &reattach));
    }
    drop(looking);
    let has_terminal = located.process.tty;
    if !has_terminal {
        console.leave_stdin();
    }
    let resume_options = ResumeOptions {
        resume: Some(located.session.session_id.clone()),
        take_over: arguments.take_over,
    };
    let connecting = async {
        let connected = reference.options.connect(reference.target(), &resume_options).await;
        connected.map_err(|failure| explain(failure, &located, &reattach))
    };
    let client = console.wait_for(left, connecting).await?;
    let began = Instant::now();
    let last_seq = console.wait_for(left, last_seq(&client, &located)).await?;
    let leave_timeout = leave_timeout(began.elapsed());
    let after_seq = if arguments.no_replay { last_seq } else { 0 };
    let process = console.wait_for(left, client.attach(id, after_seq)).await?;
    if has_terminal && let Some(size) = exec_server_os::terminal_size() {
        // The resize makes a full-screen program redraw itself.
        console.wait_for(left, process.resize(size)).await?;
    }
    let passes_stdin = has_terminal || !io::stdin().is_terminal();
    let follow_options = FollowOptions {
        input: if passes_stdin && !arguments.no_stdin { Input::Stdin } else { Input::None },
        has_terminal,
        after_seq,
        leave_timeout,
        reattach: reattach.clone(),
        timeout: None,
        ends_input_by_key: false,
    };
    let outcome = follow(&client, &process, &mut console, follow_options).await;
    conclude(&client, &mut console, &reattach, outcome).await
}

/// The last event before the attach; queried again, because the process may have written output since it was found.
async fn last_seq(client: &RemoteExecServerClient, located: &Located) -> Result<u64, Failure> {
    let before = |seq: u64| seq.saturating_sub(1);
    match client.processes().await {
        Ok(list) => {
            let id = &located.process.process_id;
            let known = list.processes.iter().find(|process| process.process_id == *id);
            Ok(before(known.map_or(located.process.next_seq, |process| process.next_seq)))
        }
        Err(ExecServerError::Unsupported(_)) => Ok(before(located.process.next_seq)),
        Err(error) => Err(error.into()),
    }
}

/// Turns "session attached" into an error that names the process and its current client.
fn explain(failure: Failure, located: &Located, reattach: &ReattachHint) -> Failure {
    let Failure::Client(ExecServerError::Server { code, .. }) = &failure else { return failure };
    if *code != ErrorCode::SessionAttached as i64 {
        return failure;
    }
    attached_elsewhere(located, reattach)
}

fn attached_elsewhere(located: &Located, reattach: &ReattachHint) -> Failure {
    let session = &located.session;
    let short: String = session.session_id.chars().take(8).collect();
    Failure::AttachedElsewhere {
        id: format::plain(&located.process.process_id),
        holder: format!(
            "{}, whose session {} was opened {} ago",
            format::plain(&session.client_name),
            format::plain(&short),
            format::age(session.opened_at_ms)
        ),
        attach_command: reattach.command().to_owned(),
    }
}
