//! `exec-server sandbox`: runs one local command under a policy.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use exec_server::protocol::process::{LimitName, ProcessLimits};
use exec_server::sandbox_command::{NamedPolicy, SandboxCommand};
use exec_server_os::{Guardian, HeldSignals};
use serde_json::Value;

use super::args::{SandboxOptions, in_range};

/// Exit code of exec-server's own failures, distinct from typical codes of commands.
pub const OUR_FAILURE: u8 = 125;

/// Arguments of `sandbox`.
#[derive(Debug, clap::Args)]
pub struct SandboxArguments {
    /// Policy: read-only, workspace-write (also writes --cwd, /tmp and $TMPDIR), or a file with the
    /// `sandbox` object of a process/start.
    #[arg(long, value_name = "read-only|workspace-write|FILE.json", default_value = WORKSPACE_WRITE)]
    policy: PathBuf,
    /// Allow the network; without this option there is none.
    #[arg(long)]
    network: bool,
    /// Also allow writes to this directory. Repeatable.
    #[arg(long, value_name = "DIR")]
    write: Vec<PathBuf>,
    /// Working directory, which is also the workspace [default: the current directory].
    #[arg(long, value_name = "DIR")]
    cwd: Option<PathBuf>,
    #[command(flatten)]
    sandbox: SandboxOptions,
    /// State directory of this user's servers; see `exec-server --help`.
    #[arg(long, value_name = "DIR", env = "EXEC_SERVER_STATE_DIR")]
    state_dir: Option<PathBuf>,
    /// Maximum number of processes and threads of the command and its descendants [default: 4096].
    #[arg(long, value_name = "COUNT", value_parser = in_range(LimitName::Pids))]
    max_pids: Option<u64>,
    /// The program and its arguments, after --.
    #[arg(required = true, last = true, value_name = "CMD")]
    command: Vec<OsString>,
}

const READ_ONLY: &str = "read-only";
const WORKSPACE_WRITE: &str = "workspace-write";

#[derive(Debug, thiserror::Error)]
enum UsageError {
    #[error("{}", path.display())]
    Path { path: PathBuf, source: io::Error },
    #[error("{}", path.display())]
    Json { path: PathBuf, source: serde_json::Error },
    #[error(transparent)]
    StateDir(#[from] exec_server::state_dir::StateDirError),
    #[error(
        "--network and --write apply to read-only and workspace-write only; a policy file sets both itself"
    )]
    FileWithFlags,
}

/// Runs the command and exits with its code: 128 plus the signal, 126 or 127 if it cannot be executed, 125 for a
/// failure before.
pub fn run(arguments: SandboxArguments) -> ExitCode {
    let command = match arguments.into_command() {
        Ok(command) => command,
        Err(error) => return fail(&error),
    };
    exec_server_os::ignore_stops();
    // Runs below a guardian, so that even a kill leaves no placeholders or processes behind.
    let journal = exec_server::state_dir::journal(command.state_dir.as_deref());
    match exec_server_os::enter_guardian(|| journal.sweep()) {
        Ok(Guardian::Server) => {}
        Ok(Guardian::Ended(code)) => return exit_code(code),
        Err(error) => return fail(&error),
    }
    let signals = match HeldSignals::hold() {
        Ok(signals) => signals,
        Err(error) => return fail(&error),
    };
    match command.run(&signals) {
        Ok(code) => exit_code(code),
        Err(error) => {
            let program = command.argv[0].display();
            eprintln!("exec-server: {program}: {error}");
            if error.is_of_the_machine() {
                eprintln!(
                    "`exec-server doctor` says what this machine can enforce; where it has no user namespaces, \
                     --sandbox-fallback landlock may help"
                );
            }
            ExitCode::from(error.exit_code())
        }
    }
}

impl SandboxArguments {
    fn into_command(self) -> Result<SandboxCommand, UsageError> {
        let cwd = real_path(self.cwd.as_deref().unwrap_or(Path::new(".")))?;
        let named = |writes_workspace| -> Result<Value, UsageError> {
            let writable = self.write.iter().map(|path| real_path(path)).collect::<Result<_, _>>();
            let policy = NamedPolicy {
                writes_workspace,
                has_network: self.network,
                writable: writable?,
                cwd: cwd.clone(),
            };
            Ok(policy.to_sandbox())
        };
        let sandbox = match self.policy.to_str() {
            Some(READ_ONLY) => named(false)?,
            Some(WORKSPACE_WRITE) => named(true)?,
            _ if self.network || !self.write.is_empty() => return Err(UsageError::FileWithFlags),
            _ => read_policy(&self.policy)?,
        };
        let state_dir = exec_server::state_dir::find(self.state_dir.as_deref())?;
        let (fallback, allow) = (self.sandbox.fallback(), self.sandbox.allowances());
        let limits = ProcessLimits { pids: self.max_pids, ..ProcessLimits::default() };
        Ok(SandboxCommand { sandbox, argv: self.command, cwd, fallback, allow, state_dir, limits })
    }
}

/// Resolved before the start, with the rights of the caller; the sandbox rejects links to writable paths.
fn real_path(path: &Path) -> Result<PathBuf, UsageError> {
    let with_path = |source| UsageError::Path { path: path.to_owned(), source };
    std::fs::canonicalize(path).map_err(with_path)
}

fn read_policy(path: &Path) -> Result<Value, UsageError> {
    let with_path = |source| UsageError::Path { path: path.to_owned(), source };
    let text = std::fs::read_to_string(path).map_err(with_path)?;
    serde_json::from_str(&text).map_err(|source| UsageError::Json { path: path.to_owned(), source })
}

fn exit_code(code: i32) -> ExitCode {
    ExitCode::from(u8::try_from(code).unwrap_or(OUR_FAILURE))
}

fn fail(error: &dyn std::error::Error) -> ExitCode {
    eprintln!("exec-server: {}", exec_server::logging::chain(error));
    ExitCode::from(OUR_FAILURE)
}
