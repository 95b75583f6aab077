//! What a person does with a server from a shell: run, look, copy.
//!
//! | look here | for |
//! |---|---|
//! | `target` | which server is meant, and the way to it |
//! | `failure` | what went wrong, what to do about it, and the exit code that says so |
//! | `start`, `follow` | a command over there that behaves like one over here: `run`, `shell`, `attach` |
//! | `stdin`, `output`, `signals`, `detach_keys` | the parts of that |
//! | `processes` | finding a process of an earlier invocation: `ps`, `logs`, `kill` |
//! | `copy` | `cp` |
//! | `look` | `ls`, `cat`, `info` |
//! | `spot` | `TARGET:/path`, or a path of this machine |

mod attach;
mod copy;
mod detach_keys;
mod failure;
mod follow;
mod kill;
mod logs;
mod look;
mod output;
mod processes;
mod run;
pub mod show;
mod signals;
mod spot;
mod start;
mod stdin;
mod target;

use std::process::ExitCode;
use std::time::Duration;

use clap::Subcommand;
use exec_server::logging::LogFormat;

pub use failure::{Failure, OUR_FAILURE};
pub use target::Targeted;

const RUN_EXAMPLES: &str = "\
Examples:
  exec-server run ws://127.0.0.1:7777 -- make test
  exec-server run box -- sh -c 'wc -l < input.csv' < input.csv
      `box` is listed in environments.toml; stdin is passed on unless it is a terminal
  exec-server run -it box -- vim notes.txt
      Ctrl-P Ctrl-Q lets go of it; `exec-server attach box ID` comes back
  exec-server run -d box -- ./nightly.sh
      prints an id for ps, logs, attach and kill
  exec-server run --sandbox workspace-write -w /srv/project box -- npm test
  exec-server run --remote https://meet.example.org env:build-1 -- make test
      wherever build-1 is; the token comes from EXEC_SERVER_REMOTE_TOKEN";

const CP_EXAMPLES: &str = "\
Examples:
  exec-server cp notes.txt box:/tmp/
  exec-server cp -r box:/var/log/app logs
  exec-server cp -rp src ws://127.0.0.1:7777:/srv/src
  exec-server cp box:/etc/hosts other:hosts
  exec-server cp notes.txt env:build-1:/tmp/
A path without a target is one of this machine; put ./ before a name with a colon.";

const TARGET_HELP: &str = "\
TARGET is a URL (ws://, wss://, unix://), env:NAME for an environment at a registry, `stdio:PROGRAM ARGS`, or a name from
environments.toml. Without one it is $EXEC_SERVER_URL, $CODEX_EXEC_SERVER_URL, or the default of environments.toml.";

/// What is done on a server.
#[derive(Debug, Subcommand)]
pub enum ClientCommand {
    /// Run a command on a server, with the input, output and exit code of one here.
    ///
    /// Exits as the command does: its own code, or 128 plus the number of the signal that ended it; 124 if its time was up,
    /// 126 if it cannot be run, 127 if it is not there, 125 if we failed before, 255 if the link or the login failed.
    #[command(after_help = RUN_EXAMPLES, after_long_help = format!("{TARGET_HELP}\n\n{RUN_EXAMPLES}"))]
    Run(run::RunArguments),
    /// Open the user's shell on a server.
    #[command(after_help = TARGET_HELP)]
    Shell(run::ShellArguments),
    /// List the processes of a server that can be attached to.
    Ps(processes::PsArguments),
    /// Go on with a process that was detached, or take it over.
    Attach(attach::AttachArguments),
    /// Show what a process has said.
    Logs(logs::LogsArguments),
    /// End a process, or send it a signal.
    Kill(kill::KillArguments),
    /// Copy files to, from or between servers.
    ///
    /// A file appears under its name when it is complete, or not at all. Links are copied as links.
    #[command(after_help = CP_EXAMPLES)]
    Cp(copy::CpArguments),
    /// List a directory on a server.
    Ls(look::LsArguments),
    /// Show files of a server.
    Cat(look::CatArguments),
    /// Say what a server and its machine are like.
    Info(look::InfoArguments),
}

/// Runs a command to its end.
pub fn run(command: ClientCommand) -> ExitCode {
    let is_like_the_command = matches!(
        command,
        ClientCommand::Run(_) | ClientCommand::Shell(_) | ClientCommand::Attach(_)
    );
    conclude(with_runtime(perform(command)), is_like_the_command)
}

/// Waits for what a command does, and says how it went.
pub fn finish(work: impl Future<Output = Result<u8, Failure>>) -> ExitCode {
    conclude(with_runtime(work), false)
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

/// What is still being written to a disk when a command ends may take this long.
const LAST_WRITES: Duration = Duration::from_secs(2);

fn with_runtime(work: impl Future<Output = Result<u8, Failure>>) -> Result<u8, Failure> {
    // Only for those who ask: stderr is otherwise the command's.
    if std::env::var_os("RUST_LOG").is_some_and(|wanted| !wanted.is_empty()) {
        exec_server::logging::init(LogFormat::Auto);
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|source| Failure::here("could not start", source))?;
    let result = runtime.block_on(work);
    runtime.shutdown_timeout(LAST_WRITES);
    result
}

async fn perform(command: ClientCommand) -> Result<u8, Failure> {
    match command {
        ClientCommand::Run(arguments) => run::run(arguments).await,
        ClientCommand::Shell(arguments) => run::shell(arguments).await,
        ClientCommand::Ps(arguments) => processes::list(arguments).await,
        ClientCommand::Attach(arguments) => attach::run(arguments).await,
        ClientCommand::Logs(arguments) => logs::run(arguments).await,
        ClientCommand::Kill(arguments) => kill::run(arguments).await,
        ClientCommand::Cp(arguments) => copy::run(arguments).await,
        ClientCommand::Ls(arguments) => look::ls(arguments).await,
        ClientCommand::Cat(arguments) => look::cat(arguments).await,
        ClientCommand::Info(arguments) => look::info(arguments).await,
    }
}
