//! `run` and `shell`.

use std::io::{self, IsTerminal};
use std::time::Duration;

use exec_server_client::{ExecServerError, RemoteExecServerClient};
use exec_server_protocol::methods::Method;
use exec_server_protocol::process::ProcessStartParams;
use exec_server_protocol::session::{SessionSetLingerParams, SessionSetLingerResponse};

use super::detach_keys::DetachKeys;
use super::failure::Failure;
use super::follow::{Input, Manner, Outcome, follow};
use super::start::{Attachment, Surroundings, Wanted};
use super::target::{TargetOptions, Wish};

/// How long a process that was left alone is asked to be kept; servers give what they allow.
const LEFT_ALONE: Duration = Duration::from_secs(24 * 3600);

/// What to run where.
#[derive(Debug, clap::Args)]
pub struct RunArguments {
    /// Pass stdin on even if it is a terminal.
    #[arg(short, long)]
    interactive: bool,
    /// Leave stdin alone, so that the command has none.
    #[arg(short = 'n', long, conflicts_with_all = ["interactive", "tty"])]
    no_stdin: bool,
    /// Give the command a terminal: this one.
    #[arg(short, long)]
    tty: bool,
    /// Print an id and leave; the command runs on.
    #[arg(short, long, conflicts_with_all = ["interactive", "no_stdin"])]
    detach: bool,
    /// The id, instead of a random one.
    #[arg(long, value_name = "ID")]
    name: Option<String>,
    /// End the command after this time.
    #[arg(long, value_name = "DURATION", value_parser = crate::cli::positive_duration)]
    timeout: Option<Duration>,
    /// The keys that let go of a terminal; none for no such keys.
    #[arg(long, value_name = "KEYS", default_value = DetachKeys::DEFAULT)]
    detach_keys: DetachKeys,
    #[command(flatten)]
    surroundings: Surroundings,
    #[command(flatten)]
    options: TargetOptions,
    /// The server: a URL, or a name from environments.toml.
    #[arg(value_name = "TARGET")]
    target: Option<String>,
    /// The program and its arguments, after --.
    #[arg(required = true, last = true, value_name = "CMD")]
    command: Vec<String>,
}

/// Which shell where.
#[derive(Debug, clap::Args)]
pub struct ShellArguments {
    /// The working directory, on the server [default: the user's home].
    #[arg(short, long, value_name = "DIR")]
    workdir: Option<String>,
    /// The keys that let go of the shell; none for no such keys.
    #[arg(long, value_name = "KEYS", default_value = DetachKeys::DEFAULT)]
    detach_keys: DetachKeys,
    #[command(flatten)]
    options: TargetOptions,
    /// The server: a URL, or a name from environments.toml.
    #[arg(value_name = "TARGET")]
    target: Option<String>,
}

/// Runs a command.
pub async fn run(arguments: RunArguments) -> Result<u8, Failure> {
    let target = arguments.target.as_deref();
    if arguments.detach && !arguments.options.outlives_us(target)? {
        let text = "-d needs a server that listens; one that is started by us ends with us";
        return Err(Failure::Usage(text.to_owned()));
    }
    let client = arguments.options.connect(target, &Wish::default()).await?;
    let info = client.known_environment().await?;
    let attachment = if arguments.detach { Attachment::Detached } else { Attachment::Attached };
    let passes_stdin = arguments.interactive || !io::stdin().is_terminal() || arguments.tty;
    let has_input = passes_stdin && !arguments.no_stdin && !arguments.detach;
    let wanted = Wanted {
        id: arguments.name.unwrap_or_else(new_id),
        argv: arguments.command,
        has_terminal: arguments.tty,
        has_input,
        timeout: arguments.timeout,
        attachment,
    };
    let params = arguments.surroundings.params(wanted, info.as_ref())?;
    if arguments.detach {
        return leave(&client, params).await;
    }
    let manner = Manner {
        input: if has_input { Input::Stdin } else { Input::None },
        has_terminal: arguments.tty,
        detach_keys: arguments.detach_keys,
        after_seq: 0,
    };
    start_and_follow(&client, target, params, manner).await
}

/// Opens a shell.
pub async fn shell(arguments: ShellArguments) -> Result<u8, Failure> {
    let target = arguments.target.as_deref();
    let client = arguments.options.connect(target, &Wish::default()).await?;
    let info = client.known_environment().await?;
    let shell = info.as_ref().map_or("/bin/sh", |info| &info.shell.path).to_owned();
    // A script that is piped in wants a shell, but no terminal.
    let has_terminal = io::stdin().is_terminal();
    let wanted = Wanted {
        id: new_id(),
        argv: vec![shell, "-l".to_owned()],
        has_terminal,
        has_input: true,
        timeout: None,
        attachment: Attachment::Attached,
    };
    let has_home = info.as_ref().is_some_and(|info| info.user_home_dir.is_some());
    let workdir = arguments.workdir.or_else(|| has_home.then(|| "~".to_owned()));
    let params = Surroundings::in_directory(workdir).params(wanted, info.as_ref())?;
    let manner = Manner {
        input: Input::Stdin,
        has_terminal,
        detach_keys: arguments.detach_keys,
        after_seq: 0,
    };
    start_and_follow(&client, target, params, manner).await
}

async fn start_and_follow(
    client: &RemoteExecServerClient,
    target: Option<&str>,
    params: ProcessStartParams,
    manner: Manner,
) -> Result<u8, Failure> {
    let program = params.argv[0].clone();
    let process = client.start(params).await.map_err(|error| about(&program, error))?;
    let outcome = follow(&process, manner).await;
    conclude(client, target, process.id(), outcome).await
}

/// Says goodbye as the end of a command or the user's wish asks for.
pub async fn conclude(
    client: &RemoteExecServerClient,
    target: Option<&str>,
    id: &str,
    outcome: Result<Outcome, Failure>,
) -> Result<u8, Failure> {
    match outcome? {
        Outcome::Exited(code) => Ok(code),
        Outcome::Detached => {
            let kept = keep(client).await?;
            client.close().await;
            let target = target.map(|target| format!("{target} ")).unwrap_or_default();
            eprintln!("exec-server: detached; `exec-server attach {target}{id}` comes back{kept}");
            Ok(0)
        }
    }
}

/// Starts a process and leaves it alone.
async fn leave(client: &RemoteExecServerClient, params: ProcessStartParams) -> Result<u8, Failure> {
    let program = params.argv[0].clone();
    // Before the start, so that nothing is started that would soon end again.
    let kept = keep(client).await?;
    let process = client.start(params).await.map_err(|error| about(&program, error))?;
    println!("{}", process.id());
    if !kept.is_empty() && io::stderr().is_terminal() {
        eprintln!("exec-server: it can run{kept}");
    }
    client.close().await;
    Ok(0)
}

/// Asks to have the session kept, and says for how long it is.
async fn keep(client: &RemoteExecServerClient) -> Result<String, Failure> {
    let can = client.session().connection().await?.capabilities();
    if !can.session_linger {
        return Err(ExecServerError::Unsupported("processes that outlive their client").into());
    }
    let linger_ms = u64::try_from(LEFT_ALONE.as_millis()).unwrap_or(u64::MAX);
    let params = SessionSetLingerParams { linger_ms };
    let given: SessionSetLingerResponse =
        client.call(Method::SessionSetLinger.name(), &params).await?;
    Ok(format!(" within {}", super::show::duration(Duration::from_millis(given.session_linger_ms))))
}

fn about(program: &str, error: ExecServerError) -> Failure {
    Failure::from(error).about(program)
}

fn new_id() -> String {
    let mut id = uuid::Uuid::new_v4().simple().to_string();
    id.truncate(12);
    id
}
