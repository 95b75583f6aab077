//! From the words of a command line to a start request.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::ValueEnum;
use exec_server_os::terminal_size;
use exec_server_protocol::environment::EnvironmentInfo;
use exec_server_protocol::path_uri::{NativePaths, PathUri};
use exec_server_protocol::process::{EnvInherit, EnvPolicy, ProcessStartParams};

use super::failure::Failure;
use super::target::remote_sandbox;

/// Covers what can be on its way when a link breaks: both sockets' buffers and what either end holds.
const RETAINED_FOR_PIPES: u64 = 16 * 1024 * 1024;
/// How long a process that was left alone can be looked at after its end.
const CLOSED_RETENTION: Duration = Duration::from_secs(3600);

/// What a command finds around it.
#[derive(Debug, Default, clap::Args)]
pub struct Surroundings {
    /// A variable for the command; without a value, that of this environment. Can be given more than once.
    #[arg(short, long, value_name = "NAME[=VALUE]")]
    env: Vec<String>,
    /// A file of such variables, one per line; lines that begin with # are ignored.
    #[arg(long, value_name = "FILE")]
    env_file: Vec<PathBuf>,
    /// What of the server's environment the command gets; names that look like secrets are left out.
    #[arg(long, value_name = "SET", default_value = "all")]
    inherit: Inherit,
    /// The working directory, on the server [default: the server's own].
    #[arg(short, long, value_name = "DIR")]
    workdir: Option<String>,
    /// What the command may touch.
    #[arg(long, value_name = "POLICY", default_value = "off")]
    sandbox: Policy,
    /// Let a sandboxed command use the network.
    #[arg(long)]
    network: bool,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
enum Inherit {
    /// Everything.
    #[default]
    All,
    /// PATH, HOME and the few others that programs expect.
    Core,
    /// Nothing.
    None,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
enum Policy {
    /// It reads everything and writes nothing.
    ReadOnly,
    /// It also writes the working directory and the directories for temporary files.
    WorkspaceWrite,
    /// There is no sandbox.
    #[default]
    Off,
}

/// Whether a process is on its own from the beginning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attachment {
    /// Somebody follows it.
    Attached,
    /// Nobody does.
    Detached,
}

/// What is to be started.
#[derive(Debug)]
pub struct Wanted {
    /// The key that later invocations find it by.
    pub id: String,
    /// The program and its arguments.
    pub argv: Vec<String>,
    /// Whether it gets a terminal.
    pub has_terminal: bool,
    /// Whether it gets input.
    pub has_input: bool,
    /// How long it may run.
    pub timeout: Option<Duration>,
    /// Whether somebody follows it.
    pub attachment: Attachment,
}

impl Surroundings {
    /// The same without anything, in a directory.
    pub fn in_directory(workdir: Option<String>) -> Self {
        Self { workdir, ..Self::default() }
    }

    /// The start request.
    pub fn params(
        &self,
        wanted: Wanted,
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
        let is_long_lived = wanted.has_terminal || wanted.attachment == Attachment::Detached;
        // Where bytes count, they wait for us; a screen is only worth what is on it.
        let waits = !is_long_lived && capabilities.process_wait_when_detached;
        Ok(ProcessStartParams {
            process_id: wanted.id.into(),
            argv: wanted.argv,
            env,
            tty: wanted.has_terminal,
            env_policy: Some(EnvPolicy {
                inherit: self.inherit.on_the_wire(),
                ignore_default_excludes: false,
                exclude: Vec::new(),
                set: BTreeMap::new(),
                include_only: Vec::new(),
            }),
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
            limits: None,
            output_retention: (waits && capabilities.process_output_retention)
                .then_some(RETAINED_FOR_PIPES),
            wait_when_detached: waits,
            closed_retention_ms: (is_long_lived && capabilities.session_linger)
                .then_some(millis(CLOSED_RETENTION)),
            cwd,
        })
    }

    fn directory(&self, info: Option<&EnvironmentInfo>) -> Result<PathUri, Failure> {
        let base = info.and_then(|info| info.cwd.as_ref());
        let home = info.and_then(|info| info.user_home_dir.as_ref());
        remote_path(self.workdir.as_deref().unwrap_or("").as_bytes(), base, home)
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

impl Inherit {
    fn on_the_wire(self) -> EnvInherit {
        match self {
            Self::All => EnvInherit::All,
            Self::Core => EnvInherit::Core,
            Self::None => EnvInherit::None,
        }
    }
}

/// A name and its value; none where it is taken from here and not set.
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
        .map_err(|source| Failure::here(format!("could not read {}", path.display()), source))?;
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

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
