//! Builds a start request from command-line options.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::ValueEnum;
use exec_server_client::ExecServerError;
use exec_server_os::terminal_size;
use exec_server_protocol::duration::millis;
use exec_server_protocol::environment::EnvironmentInfo;
use exec_server_protocol::path_uri::{NativePaths, PathUri};
use exec_server_protocol::process::{EnvInherit, EnvPolicy, OutputSpool, ProcessStartParams};

use super::failure::Failure;
use super::limits::LimitOptions;
use super::target::remote_sandbox;

/// Output that the server retains for a piped command; more than a relay can have in flight.
const RETAINED_FOR_PIPES: u64 = 16 * 1024 * 1024;
/// How long a detached process can be read after its end.
const CLOSED_RETENTION: Duration = Duration::from_secs(3600);

/// Environment, directory, sandbox and limits of a command.
#[derive(Debug, Default, clap::Args)]
pub struct ExecOptions {
    /// Set a variable for the command; without =VALUE, pass on the local value. Repeatable.
    #[arg(short, long, value_name = "NAME[=VALUE]")]
    env: Vec<String>,
    /// Read variables from a file, one per line; lines that begin with # are ignored.
    #[arg(long, value_name = "FILE")]
    env_file: Vec<PathBuf>,
    /// Variables that the command inherits from the server; names that look like secrets are dropped.
    #[arg(long, value_name = "SET", default_value = "all")]
    inherit: Inherit,
    /// Working directory on the server [default: the server's own].
    #[arg(short, long, value_name = "DIR")]
    workdir: Option<String>,
    /// Sandbox policy for the command.
    #[arg(long, value_name = "POLICY", default_value = "off")]
    sandbox: Policy,
    /// Let a sandboxed command use the network.
    #[arg(long)]
    network: bool,
    /// Keep all output in a file of the server, up to its limit or SIZE, for `logs` and late readers.
    #[arg(long, value_name = "SIZE", num_args = 0..=1, require_equals = true, default_missing_value = "0", value_parser = spool_size)]
    spool: Option<u64>,
    #[command(flatten)]
    limits: LimitOptions,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
enum Inherit {
    /// All variables.
    #[default]
    All,
    /// PATH, HOME and a few others that programs expect.
    Core,
    /// No variables.
    None,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
enum Policy {
    /// Read everything, write nothing.
    ReadOnly,
    /// Also write the working directory and the directories for temporary files.
    WorkspaceWrite,
    /// No sandbox.
    #[default]
    Off,
}

/// Whether a client follows the process from its start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attachment {
    /// This client follows the process.
    Attached,
    /// The process runs without a client.
    Detached,
}

/// The process to start.
#[derive(Debug)]
pub struct StartSpec {
    /// The process id.
    pub id: String,
    /// Whether the user chose the id, which must then be unique among running processes.
    pub is_named: bool,
    /// The program and its arguments.
    pub argv: Vec<String>,
    /// Whether the process gets a terminal.
    pub has_terminal: bool,
    /// Whether the process gets stdin.
    pub has_input: bool,
    /// Maximum run time.
    pub timeout: Option<Duration>,
    /// Whether this client follows the process.
    pub attachment: Attachment,
}

impl ExecOptions {
    /// Default options with a working directory.
    pub fn in_directory(workdir: Option<String>) -> Self {
        Self { workdir, ..Self::default() }
    }

    /// The start request.
    pub fn params(
        &self,
        wanted: StartSpec,
        info: Option<&EnvironmentInfo>,
    ) -> Result<ProcessStartParams, Failure> {
        let cwd = self.directory(info)?;
        let mut env = self.variables()?;
        if wanted.has_terminal
            && let Ok(term) = std::env::var("TERM")
        {
            env.entry("TERM".to_owned()).or_insert(term);
        }
        let capabilities = info.map(|info| info.capabilities).unwrap_or_default();
        let limits = self.limits.limits(&capabilities)?;
        let user = self.limits.user(&capabilities)?;
        if self.spool.is_some() && !capabilities.process_output_spool {
            return Err(ExecServerError::Unsupported("spools of output (--spool)").into());
        }
        let is_long_lived = wanted.has_terminal || wanted.attachment == Attachment::Detached;
        // Piped output must not be lost, so the process waits for its reader; a terminal needs only its latest state.
        let waits = !is_long_lived && capabilities.process_wait_when_detached;
        Ok(ProcessStartParams {
            process_id: wanted.id.into(),
            argv: wanted.argv,
            env,
            tty: wanted.has_terminal,
            env_policy: Some(EnvPolicy::without_secrets(self.inherit.on_the_wire())),
            pipe_stdin: wanted.has_input,
            arg0: None,
            sandbox: self.sandbox(&cwd)?,
            enforce_managed_network: false,
            managed_network: None,
            network_proxy: None,
            shell_snapshot: None,
            metadata: None,
            size: wanted.has_terminal.then(|| terminal_size().unwrap_or_default()),
            timeout_ms: wanted.timeout.map(millis),
            idle_timeout_ms: None,
            limits,
            unique_id: wanted.is_named && capabilities.process_unique_id,
            user,
            output_spool: self
                .spool
                .map(|bytes| OutputSpool { max_bytes: Some(bytes).filter(|bytes| *bytes > 0) }),
            detailed: false,
            output_retention: (waits && capabilities.process_output_retention)
                .then_some(RETAINED_FOR_PIPES),
            wait_when_detached: waits,
            closed_retention_ms: (is_long_lived && capabilities.session_linger)
                .then_some(millis(CLOSED_RETENTION)),
            cwd,
        })
    }

    fn directory(&self, info: Option<&EnvironmentInfo>) -> Result<PathUri, Failure> {
        let workdir = self.workdir.as_deref().unwrap_or("");
        if self.limits.has_user() && (workdir == "~" || workdir.starts_with("~/")) {
            let text = "~ is the home of the server's user; use an absolute path with --user";
            return Err(Failure::Usage(text.to_owned()));
        }
        let base = info.and_then(|info| info.cwd.as_ref());
        let home = info.and_then(|info| info.user_home_dir.as_ref());
        remote_path(workdir.as_bytes(), base, home)
    }

    fn sandbox(&self, cwd: &PathUri) -> Result<Option<serde_json::Value>, Failure> {
        let writes = match self.sandbox {
            Policy::Off if self.network => {
                let text = "--network goes with --sandbox; without a sandbox there is a network"
                    .to_owned();
                return Err(Failure::Usage(text));
            }
            Policy::Off => return Ok(None),
            Policy::ReadOnly => false,
            Policy::WorkspaceWrite => true,
        };
        let path = cwd
            .to_posix(NativePaths::Accept)
            .map_err(|error| Failure::Usage(format!("the working directory {error}")))?;
        let path = PathBuf::from(String::from_utf8_lossy(&path).into_owned());
        Ok(Some(remote_sandbox(writes, self.network, path)))
    }

    fn variables(&self) -> Result<BTreeMap<String, String>, Failure> {
        let mut all = BTreeMap::new();
        for path in &self.env_file {
            for line in read_lines(path)? {
                let (name, value) = variable(&line)?;
                all.extend(value.map(|value| (name, value)));
            }
        }
        for text in &self.env {
            let (name, value) = variable(text)?;
            all.extend(value.map(|value| (name, value)));
        }
        Ok(all)
    }
}

/// A size with a unit; 0 stands for the limit of the server.
fn spool_size(text: &str) -> Result<u64, String> {
    if text == "0" { Ok(0) } else { super::limits::memory(text) }
}

impl Inherit {
    fn on_the_wire(self) -> EnvInherit {
        match self {
            Self::All => EnvInherit::All,
            Self::Core => EnvInherit::Core,
            Self::None => EnvInherit::None,
        }
    }
}

/// Parses NAME[=VALUE]; the value is none if it is taken from the local environment and unset there.
fn variable(text: &str) -> Result<(String, Option<String>), Failure> {
    let (name, value) = match text.split_once('=') {
        Some((name, value)) => (name, Some(value.to_owned())),
        None => (text, std::env::var(text).ok()),
    };
    if name.is_empty() {
        return Err(Failure::Usage(format!("`{text}` has no name before the =")));
    }
    Ok((name.to_owned(), value))
}

fn read_lines(path: &Path) -> Result<Vec<String>, Failure> {
    let text = std::fs::read_to_string(path)
        .map_err(|source| Failure::local(format!("could not read {}", path.display()), source))?;
    let is_variable = |line: &&str| !line.trim().is_empty() && !line.starts_with('#');
    Ok(text.lines().filter(is_variable).map(str::to_owned).collect())
}

/// A path of the server: absolute, below its user's home with `~`, or below the server's working directory.
pub fn remote_path(
    path: &[u8],
    cwd: Option<&PathUri>,
    home: Option<&PathUri>,
) -> Result<PathUri, Failure> {
    let unknown =
        |what| Failure::Usage(format!("the server does not tell its {what}; use an absolute path"));
    let (base, rest) = match path {
        [b'/', ..] => return Ok(PathUri::from_posix(path)),
        [b'~'] => (home.ok_or_else(|| unknown("user's home"))?, &path[1..]),
        [b'~', b'/', rest @ ..] => (home.ok_or_else(|| unknown("user's home"))?, rest),
        _ => (cwd.ok_or_else(|| unknown("working directory"))?, path),
    };
    let mut whole = base
        .to_posix(NativePaths::Accept)
        .map_err(|error| Failure::Usage(format!("the server's directory {error}")))?;
    if !rest.is_empty() && rest != b"." {
        whole.push(b'/');
        whole.extend_from_slice(rest);
    }
    Ok(PathUri::from_posix(&whole))
}
