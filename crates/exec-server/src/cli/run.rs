//! `run`: starts a command on a server and follows it, or leaves it running in the background.

use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use clap_complete::engine::ArgValueCompleter;
use exec_server_client::{ExecServerError, ProcessSession, RemoteExecServerClient};
use exec_server_protocol::duration::millis;
use exec_server_protocol::methods::Method;
use exec_server_protocol::process::ProcessStartParams;
use exec_server_protocol::session::{
    SessionSetLingerParams, SessionSetLingerResponse, SessionSummary,
};

use super::compat;
use super::console::Console;
use super::detach_keys::DetachKeys;
use super::escapes::EscapeChar;
use super::exec_options::{Attachment, ExecOptions, StartSpec};
use super::failure::Failure;
use super::follow::{FollowOptions, Input, Outcome, follow};
use super::format;
use super::input_queue::LocalKeys;
use super::lost_process;
use super::output;
use super::ps::sessions;
use super::reattach::ReattachHint;
use super::target::{ResumeOptions, TargetOptions};

/// Session linger that is requested for a detached process; the server may grant less.
const LEFT_ALONE: Duration = Duration::from_secs(24 * 3600);
/// The exit code of ssh after `~.`.
const LEFT: u8 = 255;
/// Printed when the user leaves before the start request was sent.
pub const NOTHING_STARTED: &str = "left; nothing was started";

/// Arguments of `run`.
#[derive(Debug, clap::Args)]
pub struct RunArguments {
    /// Forward stdin even if it is a terminal.
    #[arg(short, long)]
    interactive: bool,
    /// Do not read stdin; the command gets none.
    #[arg(short = 'n', long, conflicts_with_all = ["interactive", "tty"])]
    no_stdin: bool,
    /// Allocate a terminal for the command.
    #[arg(short, long)]
    tty: bool,
    /// Start the command in the background and print its id.
    #[arg(short, long, conflicts_with_all = ["interactive", "no_stdin"])]
    detach: bool,
    /// Use this id instead of a random one; it must be unique among running processes.
    #[arg(long, value_name = "ID", value_parser = process_name)]
    name: Option<String>,
    /// End the command after this time; the client enforces it if the server cannot.
    #[arg(long, value_name = "DURATION", value_parser = crate::cli::positive_duration)]
    timeout: Option<Duration>,
    /// Key sequence that detaches from the terminal, or none.
    #[arg(long, value_name = "KEYS", default_value = DetachKeys::DEFAULT)]
    detach_keys: DetachKeys,
    /// Escape character after Enter, as in ssh: ~. leaves, ~? lists all sequences; ^X means Ctrl-X, none disables them.
    #[arg(long, value_name = "CHAR", default_value = EscapeChar::DEFAULT, allow_hyphen_values = true)]
    escape_char: EscapeChar,
    #[command(flatten)]
    exec: ExecOptions,
    #[command(flatten)]
    options: TargetOptions,
    /// The server: a URL, env:NAME, stdio:COMMAND, or a name from environments.toml.
    #[arg(value_name = "TARGET", add = ArgValueCompleter::new(crate::cli::completion::targets))]
    target: Option<String>,
    /// The program and its arguments, after --.
    #[arg(required = true, last = true, value_name = "CMD")]
    command: Vec<String>,
}

/// Starts the command, then follows it or detaches.
pub async fn run(arguments: RunArguments) -> Result<u8, Failure> {
    let target = arguments.target.as_deref();
    if arguments.detach && !arguments.options.outlives_us(target)? {
        let text = "-d needs a server that listens; one that is started by us ends with us";
        return Err(Failure::Usage(text.to_owned()));
    }
    let mut console =
        Console::open(LocalKeys { detach: arguments.detach_keys, escape: arguments.escape_char })?;
    // A stdio: program such as ssh may prompt on this terminal, so its keys must not be read.
    if arguments.tty && !arguments.detach && arguments.options.outlives_us(target)? {
        console.read_keys()?;
    }
    let resume_options = ResumeOptions::default();
    let client = console
        .wait_for(NOTHING_STARTED, arguments.options.connect(target, &resume_options))
        .await?;
    let info = console.wait_for(NOTHING_STARTED, client.known_environment()).await?;
    let attachment = if arguments.detach { Attachment::Detached } else { Attachment::Attached };
    let passes_stdin = arguments.interactive || !io::stdin().is_terminal() || arguments.tty;
    let has_input = passes_stdin && !arguments.no_stdin && !arguments.detach;
    let is_named = arguments.name.is_some();
    let wanted = StartSpec {
        id: arguments.name.unwrap_or_else(new_id),
        is_named,
        argv: arguments.command,
        has_terminal: arguments.tty,
        has_input,
        timeout: arguments.timeout,
        attachment,
    };
    let params = arguments.exec.params(wanted, info.as_ref())?;
    if is_named && !params.unique_id {
        let checking = check_name(&client, &params.process_id);
        console.wait_for(NOTHING_STARTED, checking).await?;
    }
    if arguments.detach {
        let left = "left before the server said that the command runs; `exec-server ps` tells";
        return console.wait_for(left, leave(&client, params)).await;
    }
    let input = if has_input { Input::Stdin } else { Input::None };
    start_and_follow(&client, target, params, console, input).await
}

/// Starts a process that this client follows to its end.
pub async fn start_and_follow(
    client: &RemoteExecServerClient,
    target: Option<&str>,
    mut params: ProcessStartParams,
    mut console: Console,
    input: Input,
) -> Result<u8, Failure> {
    let mut follow_options = FollowOptions {
        input,
        has_terminal: params.tty,
        after_seq: 0,
        leave_timeout: Duration::ZERO,
        reattach: ReattachHint::new(target, &params.process_id),
        timeout: None,
        ends_input_by_key: false,
    };
    let can =
        console.wait_for(NOTHING_STARTED, client.session().connection()).await?.capabilities();
    compat::adapt(can, &mut params, &mut follow_options, &mut console)?;
    let reattach = follow_options.reattach.clone();
    let left =
        format!("left while the command was being started; if it was, {}", reattach.describe());
    let began = Instant::now();
    let process = console.wait_for(&left, start(client, params)).await?;
    follow_options.leave_timeout = leave_timeout(began.elapsed());
    let outcome = follow(client, &process, &mut console, follow_options).await;
    conclude(client, &mut console, &reattach, outcome).await
}

/// Longest wait for the server when a signal ends the client, from the time of an earlier reply.
pub fn leave_timeout(answered_in: Duration) -> Duration {
    (answered_in * 2).clamp(Duration::from_millis(60), Duration::from_secs(2))
}

/// Reports the outcome; after a detach, asks the server to keep the session.
pub async fn conclude(
    client: &RemoteExecServerClient,
    console: &mut Console,
    reattach: &ReattachHint,
    outcome: Result<Outcome, Failure>,
) -> Result<u8, Failure> {
    let outcome = match outcome {
        Err(failure) => {
            let explaining = async { Err(lost_process::explain(client, failure).await) };
            return console
                .wait_for("left before it was known what became of the command", explaining)
                .await;
        }
        Ok(outcome) => outcome,
    };
    match outcome {
        Outcome::Exited(code) => Ok(code),
        Outcome::Left => {
            output::print_stderr(&format!("exec-server: left; {}\n", reattach.describe()));
            Ok(LEFT)
        }
        Outcome::Detached(parting) => {
            let left = format!("left; {}", reattach.describe());
            let keeping = async {
                let kept = match parting.answer(keep(client)).await {
                    Some(kept) => kept?,
                    // The request was sent, but may not have arrived.
                    None => "; the server has not answered, and may end it soon".to_owned(),
                };
                let _ = parting.close(client.close()).await;
                Ok::<_, Failure>(kept)
            };
            let kept = console.wait_for(&left, keeping).await?;
            output::print_stderr(&format!(
                "exec-server: detached; {}{kept}\n",
                reattach.describe()
            ));
            Ok(0)
        }
    }
}

/// Starts a process and detaches from it.
async fn leave(client: &RemoteExecServerClient, params: ProcessStartParams) -> Result<u8, Failure> {
    // Before the start: without a linger the process would end with this connection.
    let kept = keep(client).await?;
    let can = client.session().connection().await?.capabilities();
    if params.timeout_ms.is_some() && !can.process_timeouts {
        return Err(ExecServerError::Unsupported("a time limit for a command left alone").into());
    }
    let process = start(client, params).await?;
    println!("{}", process.id());
    if !kept.is_empty() && io::stderr().is_terminal() {
        eprintln!("exec-server: it can run{kept}");
    }
    client.close().await;
    Ok(0)
}

/// Requests a longer session linger; returns a phrase with the granted time.
async fn keep(client: &RemoteExecServerClient) -> Result<String, Failure> {
    let can = client.session().connection().await?.capabilities();
    if !can.session_linger {
        return Err(ExecServerError::Unsupported("processes that outlive their client").into());
    }
    let linger_ms = millis(LEFT_ALONE);
    let params = SessionSetLingerParams { linger_ms };
    let given: SessionSetLingerResponse =
        client.call(Method::SessionSetLinger.name(), &params).await?;
    Ok(format!(" within {}", format::duration(Duration::from_millis(given.session_linger_ms))))
}

/// Rejects the name of a running process, for servers that do not check it themselves.
async fn check_name(client: &RemoteExecServerClient, name: &str) -> Result<(), Failure> {
    let can = client.session().connection().await?.capabilities();
    if !can.session_directory {
        return Ok(());
    }
    let is_taken = |session: &SessionSummary| {
        session.processes.iter().any(|process| *process.process_id == *name && !process.exited)
    };
    match sessions(client).await?.iter().find(|session| is_taken(session)) {
        None => Ok(()),
        Some(session) => Err(Failure::Usage(format!(
            "a process named `{name}` is running already (session {}); choose another name, or end it first",
            session.session_id
        ))),
    }
}

/// Parses `--name`: no `/` (SESSION/ID), no blanks, no control characters.
fn process_name(text: &str) -> Result<String, String> {
    if text.is_empty() {
        return Err("a name has at least one letter".to_owned());
    }
    if text.contains('/') {
        return Err("a name has no `/`, which stands between a session and an id".to_owned());
    }
    if text.contains(|letter: char| letter.is_control() || letter.is_whitespace()) {
        return Err("a name has no blanks and no control characters".to_owned());
    }
    Ok(text.to_owned())
}

/// Starts a process; terminates it if the server ignored the requested sandbox.
async fn start(
    client: &RemoteExecServerClient,
    params: ProcessStartParams,
) -> Result<ProcessSession, Failure> {
    let (program, cwd) = (params.argv[0].clone(), params.cwd.clone());
    let has_sandbox = params.sandbox.is_some();
    match client.start(params).await {
        Ok(process) if has_sandbox && process.start_answer().is_unconfined() => {
            process.terminate(None).await?;
            let text = "the server started the command without the sandbox, so it was ended";
            Err(Failure::Usage(text.to_owned()).about(program))
        }
        Ok(process) => Ok(process),
        Err(error) => Err(compat::start_failure(client, &program, &cwd, error).await),
    }
}

/// A random process id, short enough to type.
pub fn new_id() -> String {
    let mut id = uuid::Uuid::new_v4().simple().to_string();
    id.truncate(12);
    id
}
