//! Request, result and errors of starting a child; the same on every platform.

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use exec_server_protocol::process::TerminalSize;

use crate::accounts::Credentials;
use crate::limits::LimitPlan;
use crate::{ChildInput, ChildOutput, ExitWatch, ProcessTree, TreeTag};

/// Complete description of a child to start.
#[derive(Debug, Clone)]
pub struct SpawnRequest {
    /// A name without a slash is looked up in the child's own `PATH`.
    pub program: OsString,
    /// The arguments including `argv[0]`, which may differ from `program`.
    pub argv: Vec<OsString>,
    /// The complete environment; nothing is inherited from the server.
    pub env: Vec<(OsString, OsString)>,
    /// Entered in the child just before exec; inside the sandbox, if there is one.
    pub cwd: PathBuf,
    /// Descriptors 0 to 2 of the child.
    pub stdio: Stdio,
    /// Inherited by all descendants, which identifies orphans of this tree.
    pub tag: TreeTag,
    /// Content that the child can read from descriptor 3.
    pub extra_input: Option<Vec<u8>>,
    /// Resource limits, already resolved to the mechanism that enforces each of them.
    pub limits: LimitPlan,
    /// Another user than that of this process.
    pub user: Option<Credentials>,
}

/// Kind of a child's standard streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stdio {
    /// A pipe each for stdout and stderr.
    Pipes {
        /// A pipe or `/dev/null`.
        stdin: StdinKind,
    },
    /// One pseudoterminal for all three streams.
    Terminal(TerminalSize),
    /// A socket to the server as stdin; for helper processes of the server.
    Socket,
    /// The streams of this process; only for a command in the foreground.
    Inherited,
}

/// Stdin of a child without a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StdinKind {
    /// A pipe whose write end the server holds.
    Pipe,
    /// `/dev/null`.
    Null,
}

/// Handles of a started child.
#[derive(Debug)]
pub struct Spawned {
    /// Process id of the child, or of its launcher in a sandbox.
    pub pid: u32,
    /// Resolves to the exit status.
    pub exit: ExitWatch,
    /// Write end of stdin, or the terminal; `None` if stdin is `/dev/null`.
    pub input: Option<ChildInput>,
    /// Read end of stdout, or the terminal.
    pub output: ChildOutput,
    /// Read end of stderr; `None` with a terminal.
    pub error_output: Option<ChildOutput>,
    /// The child and all its descendants.
    pub tree: ProcessTree,
}

/// Exit status and resource usage of a child.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExitStatus {
    /// The exit code, or 128 plus the signal number.
    pub code: i32,
    /// Set if the child was killed by a signal.
    pub signal: Option<i32>,
    /// CPU time in user mode.
    pub user: Duration,
    /// CPU time in kernel mode.
    pub system: Duration,
    /// The largest resident set in bytes, if it is known: it is not if it was no larger than what the child inherited.
    pub max_rss: Option<u64>,
}

/// Why a child could not be started.
#[derive(Debug, thiserror::Error)]
pub enum SpawnError {
    /// The program name is empty.
    #[error("missing program")]
    NoProgram,
    /// exec takes C strings, which cannot contain a NUL byte.
    #[error("nul byte found in {0}")]
    NulByte(&'static str),
    /// This process may not change to the user of the request.
    #[error("could not change to the user: {0}")]
    User(io::Error),
    /// chdir failed in the child.
    #[error("could not enter the working directory: {0}")]
    Cwd(io::Error),
    /// execve failed for all candidates.
    #[error("could not run the program: {0}")]
    Program(io::Error),
    /// The sandbox set-up failed, so the program was not executed.
    #[error("could not set up the sandbox ({step}): {cause}")]
    Sandbox {
        /// The step that failed.
        step: String,
        /// The error of the system call.
        cause: io::Error,
    },
    /// A step before exec failed.
    #[error("could not prepare the process ({step}): {cause}")]
    Prepare {
        /// The step that failed.
        step: &'static str,
        /// The error of the system call.
        cause: io::Error,
    },
}
