//! `exec-server sandbox`: runs one command under a policy, with the standard streams of this process.
//!
//! The policy is compiled and enforced by the same code as for `process/start`; no client is connected.

use std::ffi::OsString;
use std::path::PathBuf;

use exec_server_os::env_policy::without_secrets;
use exec_server_os::limits::{self, LimitPlan};
use exec_server_os::spawn::{SpawnError, SpawnRequest, Stdio};
use exec_server_os::{HeldSignals, TreeTag};
use exec_server_protocol::path_uri::NativePaths;
use exec_server_protocol::process::ProcessLimits;
use exec_server_sandbox::plan::{Confinement, RetryBudget, SandboxSettings, Sandboxes};
use exec_server_sandbox::policy::{Allowances, Policy};
use exec_server_sandbox::run_in_foreground;
use serde_json::{Value, json};

use crate::config::SandboxFallback;
use crate::environment::path_uri;
use crate::errors::RequestError;
use crate::state_dir;

/// A command and its policy.
#[derive(Debug)]
pub struct SandboxCommand {
    /// The `sandbox` object of a `process/start`.
    pub sandbox: Value,
    /// The program and its arguments.
    pub argv: Vec<OsString>,
    /// The working directory; relative patterns of the policy start here too.
    pub cwd: PathBuf,
    /// Behaviour if namespaces are not available.
    pub fallback: SandboxFallback,
    /// Permissions beyond the default of every sandbox.
    pub allow: Allowances,
    /// State directory of the user's servers, which has the placeholder journal.
    pub state_dir: Option<PathBuf>,
    /// Resource limits of the command.
    pub limits: ProcessLimits,
}

/// Options of the two named policies, both of which allow reading everything.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedPolicy {
    /// Whether `cwd`, `/tmp` and `TMPDIR` can be written.
    pub writes_workspace: bool,
    /// Whether the host's network can be used.
    pub has_network: bool,
    /// Other writable paths; absolute.
    pub writable: Vec<PathBuf>,
    /// The workspace; absolute.
    pub cwd: PathBuf,
}

/// Why the command was not run.
#[derive(Debug, thiserror::Error)]
pub enum SandboxCommandError {
    /// The policy disables the sandbox or expects an external one.
    #[error("the policy does not request a sandbox, so there is nothing to enforce")]
    NothingToEnforce,
    /// The policy cannot be enforced, or the command cannot be executed.
    #[error(transparent)]
    Request(#[from] RequestError),
}

impl SandboxCommandError {
    /// Exit code as container tools use it: 127 for a missing program, 126 for one that cannot be executed, else 125.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Request(RequestError::Spawn(SpawnError::Program(error))) => match error.kind() {
                std::io::ErrorKind::NotFound => 127,
                _ => 126,
            },
            _ => 125,
        }
    }

    /// Whether the sandbox set-up failed on this machine, so that `exec-server doctor` may help.
    pub fn is_of_the_machine(&self) -> bool {
        matches!(self, Self::Request(RequestError::Spawn(SpawnError::Sandbox { .. })))
    }
}

impl NamedPolicy {
    /// The equivalent `sandbox` object.
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
    /// Runs the command and returns its exit code, or 128 plus the signal that killed it.
    pub fn run(&self, signals: &HeldSignals) -> Result<i32, SandboxCommandError> {
        let mechanism = self.fallback.choose();
        let sandboxes = Sandboxes::new(SandboxSettings {
            native_paths: NativePaths::Accept,
            mechanism,
            allow: self.allow,
            state_dir: self.state_dir.as_deref(),
            journal: state_dir::journal(self.state_dir.as_deref()),
            secret_files: &[],
            own_socket: None,
        });
        let policy: Option<Policy> = sandboxes
            .for_process(Some(&self.sandbox), &path_uri(&self.cwd))
            .map_err(RequestError::from)?;
        let policy = policy.ok_or(SandboxCommandError::NothingToEnforce)?;
        let means = exec_server_sandbox::limit_means(mechanism);
        let (limits, _) = limits::plan(&self.limits, &means).map_err(RequestError::Limit)?;
        let mut retries = RetryBudget::default();
        loop {
            // The placeholders are held until the command has exited.
            let Confinement { mut setup, placeholders: _held } =
                sandboxes.confine(&policy).map_err(RequestError::from)?;
            if let Some(bytes) = limits.tmpfs_bytes {
                setup.view.temp_bytes = bytes;
            }
            match run_in_foreground(&self.request(limits), setup, signals) {
                Err(error) if retries.allows_another_try(&error) => {}
                result => return Ok(result.map_err(RequestError::Spawn)?.code),
            }
        }
    }

    fn request(&self, limits: LimitPlan) -> SpawnRequest {
        SpawnRequest {
            program: self.argv.first().cloned().unwrap_or_default(),
            argv: self.argv.clone(),
            env: without_secrets(std::env::vars_os()),
            cwd: self.cwd.clone(),
            stdio: Stdio::Inherited,
            tag: TreeTag::new(0),
            extra_input: None,
            limits,
            user: None,
        }
    }
}
