//! One command under a policy, with the standard streams of this process: `exec-server sandbox`.
//!
//! The policy is compiled and enforced by what the server uses for `process/start`; only nobody is connected.

use std::ffi::OsString;
use std::path::PathBuf;

use exec_server_os::limits::{self, LimitPlan};
use exec_server_os::sandbox::{Allowances, Policy};
use exec_server_os::spawn::{SpawnError, SpawnRequest, Stdio};
use exec_server_os::{HeldSignals, SandboxNetwork, SandboxSetup, TreeTag, run_in_foreground};
use exec_server_protocol::path_uri::NativePaths;
use exec_server_protocol::process::ProcessLimits;
use serde_json::{Value, json};

use crate::config::SandboxFallback;
use crate::environment::path_uri;
use crate::errors::RequestError;
use crate::sandbox::{Confinement, Patience, SandboxSettings, Sandboxes};

/// What to run, and what it may touch.
#[derive(Debug)]
pub struct SandboxCommand {
    /// The `sandbox` object of a `process/start`.
    pub sandbox: Value,
    /// The program and its arguments.
    pub argv: Vec<OsString>,
    /// The working directory, which is also where relative patterns start.
    pub cwd: PathBuf,
    /// What happens where namespaces cannot be made.
    pub fallback: SandboxFallback,
    /// What it may do beyond what every sandbox allows.
    pub allow: Allowances,
    /// Where servers of this user keep their state.
    pub state_dir: Option<PathBuf>,
    /// How much it may use.
    pub limits: ProcessLimits,
}

/// What the two policies with a name allow beside reading everything.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedPolicy {
    /// Whether `cwd`, `/tmp` and `TMPDIR` can be written.
    pub writes_workspace: bool,
    /// Whether the network can be used.
    pub has_network: bool,
    /// What else can be written; absolute.
    pub writable: Vec<PathBuf>,
    /// The workspace; absolute.
    pub cwd: PathBuf,
}

/// Why there is no exit code of the command.
#[derive(Debug, thiserror::Error)]
pub enum SandboxCommandError {
    /// A policy that leaves the confining to somebody else.
    #[error("the policy asks for no sandbox, so there is nothing to try")]
    NothingToEnforce,
    /// A policy that cannot be kept, or a command that cannot be run.
    #[error(transparent)]
    Request(#[from] RequestError),
}

impl SandboxCommandError {
    /// What to exit with, as containers do: 127 for a program that is not there, 126 for one that cannot be run.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Request(RequestError::Spawn(SpawnError::Program(error))) => match error.kind() {
                std::io::ErrorKind::NotFound => 127,
                _ => 126,
            },
            _ => 125,
        }
    }

    /// Whether the machine is to blame, so that `exec-server doctor` may know more.
    pub fn is_of_the_machine(&self) -> bool {
        matches!(self, Self::Request(RequestError::Spawn(SpawnError::Sandbox { .. })))
    }
}

impl NamedPolicy {
    /// The `sandbox` object that says the same.
    pub fn to_sandbox(&self) -> Value {
        let special = |kind: &str, access: &str| json!({"path": {"type": "special", "value": {"kind": kind}}, "access": access});
        let mut entries = vec![special("root", "read")];
        if self.writes_workspace {
            entries.extend(
                ["project_roots", "slash_tmp", "tmpdir"].map(|kind| special(kind, "write")),
            );
        }
        entries.extend(self.writable.iter().map(
            |path| json!({"path": {"type": "path", "path": path_uri(path)}, "access": "write"}),
        ));
        let cwd = path_uri(&self.cwd);
        json!({
            "permissions": {
                "type": "managed",
                "network": if self.has_network { "enabled" } else { "restricted" },
                "file_system": {"type": "restricted", "entries": entries},
            },
            "windowsSandboxLevel": "disabled",
            "policyContext": {"cwd": cwd, "workspaceRoots": [cwd]},
        })
    }
}

impl SandboxCommand {
    /// Runs it to its end and returns its exit code, or 128 plus the signal that ended it.
    pub fn run(&self, signals: &HeldSignals) -> Result<i32, SandboxCommandError> {
        let mechanism = self.fallback.choose();
        let sandboxes = Sandboxes::new(SandboxSettings {
            native_paths: NativePaths::Accept,
            mechanism,
            allow: self.allow,
            state_dir: self.state_dir.as_deref(),
            own_socket: None,
        });
        let policy: Option<Policy> =
            sandboxes.for_process(Some(&self.sandbox), &path_uri(&self.cwd))?;
        let policy = policy.ok_or(SandboxCommandError::NothingToEnforce)?;
        let means = exec_server_os::limit_means(Some(mechanism));
        let (limits, _) = limits::plan(&self.limits, &means).map_err(RequestError::Limit)?;
        let mut patience = Patience::default();
        loop {
            // The placeholders stay until the command has ended.
            let Confinement { setup, placeholders: _held, .. } = sandboxes.confine(&policy)?;
            match run_in_foreground(&self.request(setup, limits), signals) {
                Err(error) if patience.allows_another_try(&error) => {}
                result => return Ok(result.map_err(RequestError::Spawn)?.code),
            }
        }
    }

    fn request(&self, mut setup: SandboxSetup, limits: LimitPlan) -> SpawnRequest {
        if let Some(bytes) = limits.tmpfs_bytes {
            setup.view.temp_bytes = bytes;
        }
        SpawnRequest {
            program: self.argv.first().cloned().unwrap_or_default(),
            argv: self.argv.clone(),
            env: std::env::vars_os().collect(),
            cwd: self.cwd.clone(),
            stdio: Stdio::Inherited,
            tag: TreeTag::new(0),
            sandbox: Some(setup),
            network: SandboxNetwork::default(),
            extra_input: None,
            limits,
        }
    }
}
