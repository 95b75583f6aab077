//! What to start and what comes back; the same on every platform.

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use exec_server_protocol::process::TerminalSize;

use crate::limits::LimitPlan;
use crate::platform::sandbox::SandboxSetup;
use crate::platform::sandbox::network::SandboxNetwork;
use crate::{ChildInput, ChildOutput, ExitWatch, ProcessTree, RefusedCalls, TreeTag};

/// Everything that a child is made from.
#[derive(Debug, Clone)]
pub struct SpawnRequest {
    /// The program; a bare name is looked up in the child's own `PATH`.
    pub program: OsString,
    /// What the child sees as its arguments, `argv[0]` first.
    pub argv: Vec<OsString>,
    /// The whole environment.
    pub env: Vec<(OsString, OsString)>,
    /// The working directory.
    pub cwd: PathBuf,
    /// What its standard streams are.
    pub stdio: Stdio,
    /// How its descendants are told from others.
    pub tag: TreeTag,
    /// What confines it, if anything.
    pub sandbox: Option<SandboxSetup>,
    /// What it shares with the other sandboxes of its session, if it is confined without a network.
    pub network: SandboxNetwork,
    /// A file descriptor's content that the child may read as `/dev/fd/3`, if any.
    pub extra_input: Option<Vec<u8>>,
    /// What limits it.
    pub limits: LimitPlan,
}

/// What a child's standard streams are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stdio {
    /// Two pipes for output; stdin is a pipe, or nothing at all.
    Pipes {
        /// Whether stdin is a pipe.
        stdin: StdinKind,
    },
    /// One terminal for all three.
    Terminal(TerminalSize),
    /// A socket to the server, for a worker of its own.
    Worker,
    /// Those of this process; only for a command in the foreground.
    Inherited,
}

/// What a child without a terminal reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StdinKind {
    /// A pipe from us.
    Pipe,
    /// Nothing.
    Null,
}

/// A child that has been started.
#[derive(Debug)]
pub struct Spawned {
    /// Its process id.
    pub pid: u32,
    /// Tells when it has ended, and how.
    pub exit: ExitWatch,
    /// Where its stdin or terminal input goes.
    pub input: Option<ChildInput>,
    /// Its stdout, or its terminal.
    pub output: ChildOutput,
    /// Its stderr, unless it has a terminal.
    pub error_output: Option<ChildOutput>,
    /// It and everything that comes from it.
    pub tree: ProcessTree,
    /// What its sandbox has refused to it so far.
    pub refused: RefusedCalls,
}

/// How a child ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExitStatus {
    /// Its exit code, or 128 plus the signal's number.
    pub code: i32,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// CPU time in user mode.
    pub user: Duration,
    /// CPU time in the kernel.
    pub system: Duration,
    /// The largest resident set, in bytes.
    pub max_rss: u64,
}

/// What is said of the set-up of a sandbox that took longer than this.
pub fn gave_up(time: Duration) -> io::Error {
    let text =
        format!("gave up after {time:?}; a file system that the policy names may not answer");
    io::Error::new(io::ErrorKind::TimedOut, text)
}

/// Why a child could not be started.
#[derive(Debug, thiserror::Error)]
pub enum SpawnError {
    /// There is nothing to start.
    #[error("missing program")]
    NoProgram,
    /// The system cannot pass a NUL byte.
    #[error("nul byte found in {0}")]
    NulByte(&'static str),
    /// The working directory cannot be entered.
    #[error("could not enter the working directory: {0}")]
    Cwd(#[source] io::Error),
    /// The program cannot be run.
    #[error("could not run the program: {0}")]
    Program(#[source] io::Error),
    /// The sandbox could not be made, so nothing was run.
    #[error("could not set up the sandbox ({step}): {source}")]
    Sandbox {
        /// What was being done.
        step: String,
        /// What the system said.
        source: io::Error,
    },
    /// Something before the program failed.
    #[error("could not prepare the process ({step}): {source}")]
    Prepare {
        /// What was being done.
        step: &'static str,
        /// What the system said.
        source: io::Error,
    },
}
