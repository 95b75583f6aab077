//! The command line: one file per command, named after what the user types.
//!
//! | look here | for |
//! |---|---|
//! | `serve`, `reference_options` | arguments of the server itself |
//! | `usage`, `completion`, `manual`, `examples` | parsing, shell completion, man pages, examples in `--help` |
//! | `config_file`, `config` | settings from files, and the command that checks them |
//! | `args`, `audit_options`, `otlp_options` | argument parsers and options that several commands share |
//! | `run`, `shell`, `attach`, `ps`, `logs`, `kill`, `wait`, `cp`, `ls`, `cat`, `grep`, `find`, `watch`, `replace`, `mcp`, `e2b`, `info`, `dial`, `doctor`, `sandbox`, … | the commands |
//! | `target`, `cp_path` | resolving TARGET and TARGET:/path |
//! | `failure` | errors, hints and exit codes |
//! | `exec_options`, `limits`, `compat` | building a start request for the capabilities of the server |
//! | `follow`, `console`, `input_queue`, `stdin_writer`, `escapes`, `detach_keys`, `stdin`, `output`, `replay`, `signals` | attaching this terminal to a remote process |
//! | `lost_process`, `reattach` | messages about a process that is gone, and how to attach again |
//! | `demo` | three faults, shown on this machine |
//! | `update` | whether a newer release exists |
//! | `service` | services of systemd: units, credentials, socket activation |
//! | `telemetry` | the trace of a client command |
//! | `registry` | administration of a rendezvous, locally or over HTTP |

mod args;
mod attach;
mod audit_options;
mod cat;
mod compat;
pub mod completion;
pub mod config;
mod config_file;
mod console;
mod cp;
mod cp_path;
pub mod demo;
mod detach_keys;
mod dial;
pub mod doctor;
mod e2b;
pub mod environments;
mod escapes;
mod examples;
mod exec_options;
mod failure;
mod find;
mod follow;
mod format;
pub mod forward;
mod grep;
mod info;
mod input_queue;
mod kill;
pub mod known_hosts;
mod limits;
mod logs;
mod lost_process;
mod ls;
pub mod manual;
mod mcp;
pub mod nodes;
pub mod otlp_options;
mod output;
mod parting;
mod ps;
mod reattach;
mod reference_options;
mod registry;
pub mod rendezvous;
mod replace;
mod replay;
mod run;
pub mod sandbox;
pub mod schema;
mod search_options;
mod serve;
pub mod service;
mod shell;
mod signals;
mod stdin;
mod stdin_option;
mod stdin_writer;
mod target;
mod telemetry;
mod timestamps;
pub mod token;
pub mod update;
pub mod usage;
mod user_option;
mod wait;
mod watch;

use std::process::ExitCode;
use std::time::Duration;

use clap::Subcommand;
use exec_server::logging::LogFormat;

pub use args::{duration, in_range, positive_duration};
pub use cp_path::CpPath;
pub use exec_options::remote_path;
pub use failure::{Failure, OUR_FAILURE};
pub use kill::with_signal_option;
pub use ls::entries;
pub use ps::sessions;
pub use serve::{ArgumentError, Arguments, Command, JoinArguments};
pub use target::{ResumeOptions, TargetOptions, Targeted, is_address};

/// Commands that connect to a server.
#[derive(Debug, Subcommand)]
pub enum ClientCommand {
    /// Run a command on a server, with local stdin, stdout, stderr and exit code.
    ///
    /// Exits with the code of the command, or 128 plus the number of the signal that ended it; 124 if it timed out,
    /// 126 if it cannot be executed, 127 if it is not found, 125 if exec-server failed before the start, 254 if another
    /// client took the command over, 255 if the connection or the authentication failed.
    #[command(after_help = examples::RUN, after_long_help = examples::long(examples::RUN))]
    Run(Box<run::RunArguments>),
    /// Open the user's shell on a server.
    #[command(after_help = examples::SHELL, after_long_help = examples::long(examples::SHELL))]
    Shell(shell::ShellArguments),
    /// List the processes of a server.
    #[command(after_help = examples::PS, after_long_help = examples::long(examples::PS))]
    Ps(ps::PsArguments),
    /// Attach to a detached process, or take it over from another client.
    ///
    /// Uses the exit codes of `run`. Terminal queries are removed from replayed output.
    #[command(after_help = examples::ATTACH, after_long_help = examples::long(examples::ATTACH))]
    Attach(attach::AttachArguments),
    /// Show the output of a process.
    #[command(after_help = examples::LOGS, after_long_help = examples::long(examples::LOGS))]
    Logs(logs::LogsArguments),
    /// Terminate processes and wait until they exit, or send them a signal.
    #[command(after_help = examples::KILL, after_long_help = examples::long(examples::KILL))]
    Kill(kill::KillArguments),
    /// Wait for processes, print their exit codes, and exit with the last one.
    ///
    /// Exits with 127 if there is no such process, 124 if the process timed out, 255 if the connection failed.
    #[command(after_help = examples::WAIT, after_long_help = examples::long(examples::WAIT))]
    Wait(wait::WaitArguments),
    /// Copy files to, from or between servers.
    ///
    /// A file appears under its name only when it is complete. Symbolic links are copied as links. Local pipes and
    /// devices are written to, never replaced; - is stdin or stdout.
    #[command(after_help = examples::CP, after_long_help = examples::long(examples::CP))]
    Cp(cp::CpArguments),
    /// List files and directories on a server.
    #[command(after_help = examples::LS, after_long_help = examples::long(examples::LS))]
    Ls(ls::LsArguments),
    /// Print files from a server.
    #[command(after_help = examples::CAT, after_long_help = examples::long(examples::CAT))]
    Cat(cat::CatArguments),
    /// Search the content of files on a server.
    ///
    /// Leaves out what .gitignore names, and names that begin with a dot. Exits with 0 if a line matches, 1 if none does,
    /// 2 if something could not be searched.
    #[command(after_help = examples::GREP, after_long_help = examples::long(examples::GREP))]
    Grep(Box<grep::GrepArguments>),
    /// Search for files by name on a server.
    ///
    /// Leaves out what .gitignore names, and names that begin with a dot.
    #[command(after_help = examples::FIND, after_long_help = examples::long(examples::FIND))]
    Find(Box<find::FindArguments>),
    /// Serve MCP to an agent: tools for commands and files of a server.
    ///
    /// Speaks MCP over stdin and stdout, or over HTTP with --listen. Commands that the agent starts end with it.
    #[command(after_help = examples::MCP, after_long_help = examples::long(examples::MCP))]
    Mcp(Box<mcp::McpArguments>),
    /// Serve the E2B interface to SDKs on this machine: their sandbox is the machine of a server.
    ///
    /// Prints its URL. Commands that were started through it end with it.
    #[command(after_help = examples::E2B, after_long_help = examples::long(examples::E2B))]
    E2b(Box<e2b::E2bArguments>),
    /// Print the changes of a file or a directory on a server.
    #[command(after_help = examples::WATCH, after_long_help = examples::long(examples::WATCH))]
    Watch(watch::WatchArguments),
    /// Replace a piece of text in a file on a server.
    ///
    /// The text must occur exactly once, unless --all is given; otherwise the file stays unchanged.
    #[command(after_help = examples::REPLACE, after_long_help = examples::long(examples::REPLACE))]
    Replace(replace::ReplaceArguments),
    /// Show the version, host and capabilities of a server.
    #[command(after_help = examples::INFO, after_long_help = examples::long(examples::INFO))]
    Info(info::InfoArguments),
    /// Connect stdin and stdout to a server, one JSON-RPC message per line.
    ///
    /// Messages are passed on unchanged; the connection ends with stdin. Exits with 0 if stdin ended, 77 if the token
    /// was refused, 254 if another client took the session over, 255 if the connection failed or was lost, 1 if the
    /// target is not known.
    #[command(after_help = examples::DIAL, after_long_help = examples::long(examples::DIAL))]
    Dial(dial::DialArguments),
}

/// Runs a client command and maps its result to an exit code.
pub fn run(command: ClientCommand) -> ExitCode {
    let is_like_the_command = matches!(
        command,
        ClientCommand::Run(_)
            | ClientCommand::Shell(_)
            | ClientCommand::Attach(_)
            | ClientCommand::Wait(_)
    );
    // Only `cp` writes local files, so only `cp` waits for pending disk writes.
    let is_copy = matches!(command, ClientCommand::Cp(_));
    let shutdown_timeout = if is_copy { LAST_WRITES } else { LAST_WRITES_OF_INTERRUPTED };
    // MCP messages pass through several tasks, and each poll for events between them is a system call.
    let is_mcp = matches!(command, ClientCommand::Mcp(_));
    let event_interval = if is_mcp { EVENT_INTERVAL_OF_MCP } else { EVENT_INTERVAL };
    let result = with_runtime(shutdown_timeout, event_interval, perform(command));
    // An interrupted user waits for the prompt, not for a collector.
    if !matches!(result, Err(Failure::Interrupted(_))) {
        let code = |failure: &Failure| failure.exit_code(is_like_the_command);
        telemetry::finish(result.as_ref().map_or_else(code, |code| *code));
    }
    conclude(result, is_like_the_command)
}

/// Runs `work` on a new runtime and prints its failure.
pub fn finish(work: impl Future<Output = Result<u8, Failure>>) -> ExitCode {
    conclude(with_runtime(LAST_WRITES, EVENT_INTERVAL, work), false)
}

fn conclude(result: Result<u8, Failure>, is_like_the_command: bool) -> ExitCode {
    match result {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            failure.print();
            ExitCode::from(failure.exit_code(is_like_the_command))
        }
    }
}

/// Longest wait for blocking threads (disk writes) when a command ends.
const LAST_WRITES: Duration = Duration::from_secs(2);
/// The same after an interrupt: the user waits for the prompt.
const LAST_WRITES_OF_INTERRUPTED: Duration = Duration::from_millis(50);

/// Tasks after which a runtime looks for signals and input; the default of tokio delays Ctrl-C during a copy.
const EVENT_INTERVAL: u32 = 2;
/// The default of tokio.
const EVENT_INTERVAL_OF_MCP: u32 = 61;

fn with_runtime(
    shutdown_timeout: Duration,
    event_interval: u32,
    work: impl Future<Output = Result<u8, Failure>>,
) -> Result<u8, Failure> {
    // Logging is opt-in, because stderr carries the output of the remote command.
    if std::env::var_os("RUST_LOG").is_some_and(|wanted| !wanted.is_empty()) {
        exec_server::logging::init(LogFormat::Auto);
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .event_interval(event_interval)
        .build()
        .map_err(|source| Failure::local("could not start the runtime", source))?;
    let result = runtime.block_on(work);
    let shutdown_timeout = match &result {
        Err(Failure::Interrupted(_)) => LAST_WRITES_OF_INTERRUPTED,
        _ => shutdown_timeout,
    };
    runtime.shutdown_timeout(shutdown_timeout);
    cp::remove_unfinished();
    result
}

async fn perform(command: ClientCommand) -> Result<u8, Failure> {
    match command {
        ClientCommand::Run(arguments) => run::run(*arguments).await,
        ClientCommand::Shell(arguments) => shell::run(arguments).await,
        ClientCommand::Ps(arguments) => ps::list(arguments).await,
        ClientCommand::Attach(arguments) => attach::run(arguments).await,
        ClientCommand::Logs(arguments) => logs::run(arguments).await,
        ClientCommand::Kill(arguments) => kill::run(arguments).await,
        ClientCommand::Wait(arguments) => wait::run(arguments).await,
        ClientCommand::Cp(arguments) => cp::run(arguments).await,
        ClientCommand::Ls(arguments) => ls::run(arguments).await,
        ClientCommand::Cat(arguments) => cat::run(arguments).await,
        ClientCommand::Grep(arguments) => grep::run(*arguments).await,
        ClientCommand::Find(arguments) => find::run(*arguments).await,
        ClientCommand::Mcp(arguments) => mcp::run(*arguments).await,
        ClientCommand::E2b(arguments) => e2b::run(*arguments).await,
        ClientCommand::Watch(arguments) => watch::run(arguments).await,
        ClientCommand::Replace(arguments) => replace::run(arguments).await,
        ClientCommand::Info(arguments) => info::run(arguments).await,
        ClientCommand::Dial(arguments) => dial::run(arguments).await,
    }
}
