//! Payloads of `process/start`.

#![allow(
    missing_docs,
    reason = "wire members repeat their JSON names; docs state only extra facts"
)]

use std::collections::BTreeMap;

use serde::de::{self, Deserializer};
use serde::{Deserialize, Serialize};

use super::{Env, LimitsReport, OutputSpool, ProcessId, ProcessLimits};
use crate::path_uri::PathUri;
use crate::user::UserName;

/// Params of `process/start`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ProcessStartParams {
    /// The client's key for the process.
    pub process_id: ProcessId,
    /// The program and its arguments.
    pub argv: Vec<String>,
    pub cwd: PathUri,
    /// Added to the variables that `envPolicy` keeps; without a policy it is the whole environment.
    pub env: Env,
    /// Whether the process gets a terminal instead of pipes.
    pub tty: bool,
    /// Which variables the process inherits from the server.
    #[serde(default)]
    pub env_policy: Option<EnvPolicy>,
    /// Whether stdin stays open for `process/write`; always true for a terminal.
    #[serde(default)]
    pub pipe_stdin: bool,
    /// `argv[0]` of the process.
    #[serde(default)]
    pub arg0: Option<String>,
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(with = "crate::fs::Sandbox"))]
    pub sandbox: Option<serde_json::Value>,
    /// Used only together with `sandbox`.
    #[serde(default)]
    pub enforce_managed_network: bool,
    /// Used only together with `sandbox`.
    #[serde(default)]
    pub managed_network: Option<serde_json::Value>,
    /// A proxy for this process alone; refused as `unsupported`.
    #[serde(default)]
    pub network_proxy: Option<serde_json::Value>,
    /// A login shell whose profile is evaluated once and cached.
    #[serde(default)]
    pub shell_snapshot: Option<ShellSnapshot>,
    /// Exported to the child as environment variables.
    #[serde(default)]
    pub metadata: Option<ProcessMetadata>,
    /// Initial terminal size; default 24 by 80.
    #[serde(default)]
    pub size: Option<TerminalSize>,
    /// Maximum run time.
    #[serde(default)]
    pub timeout_ms: Option<u64>,
    /// Maximum time without output.
    #[serde(default)]
    pub idle_timeout_ms: Option<u64>,
    /// Bytes of output that are retained for late readers; default 1 MiB.
    #[serde(default)]
    pub output_retention: Option<u64>,
    /// Resource limits.
    #[serde(default)]
    pub limits: Option<ProcessLimits>,
    /// Whether output waits instead of being evicted: while no client is attached, until a resumed client has read what
    /// it missed, and until the client has received what would be evicted.
    #[serde(default, skip_serializing_if = "crate::is_false")]
    pub wait_when_detached: bool,
    /// How long the process can be read after its close.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub closed_retention_ms: Option<u64>,
    /// Whether the start is rejected while another session of the same credential runs a process with this id.
    #[serde(default, skip_serializing_if = "crate::is_false")]
    pub unique_id: bool,
    /// User of the process; default: the server's user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<UserName>,
    /// Keeps output in a file beyond what is retained in memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_spool: Option<OutputSpool>,
    /// Whether the answer has the `pid`.
    #[serde(default, skip_serializing_if = "crate::is_false")]
    pub detailed: bool,
}

/// Result of `process/start`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ProcessStartResponse {
    /// The client's key, repeated.
    pub process_id: ProcessId,
    /// What confines the process.
    pub sandbox_type: SandboxType,
    /// Set for a sandboxed process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<SandboxReport>,
    /// The limits in force, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<LimitsReport>,
    /// The spool in force, if asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_spool: Option<OutputSpool>,
    /// The operating system's id of the root process, if asked for; the one on the host for a sandboxed process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
}

/// Sandbox level of a process, and what this machine cannot enforce.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SandboxReport {
    /// The overall level.
    pub level: String,
    /// Mechanisms in force.
    pub enforced: Vec<String>,
    /// Mechanisms that this machine lacks.
    pub missing: Vec<String>,
}

/// Sandbox of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum SandboxType {
    /// No sandbox.
    None,
    /// Linux namespaces, Landlock and seccomp.
    LinuxSeccomp,
}

/// Which variables a process inherits from the server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct EnvPolicy {
    /// The set to start from.
    pub inherit: EnvInherit,
    /// Whether names with `KEY`, `SECRET` or `TOKEN` anywhere in them are kept.
    pub ignore_default_excludes: bool,
    /// Patterns of names to drop.
    pub exclude: Vec<String>,
    /// Variables to add.
    pub set: BTreeMap<String, String>,
    /// If not empty, patterns of the only names to keep.
    pub include_only: Vec<String>,
    /// Whether names that contain a word for a secret are dropped; replaces the default excludes.
    #[serde(default, skip_serializing_if = "crate::is_false")]
    pub exclude_secrets: bool,
}

impl EnvPolicy {
    /// The set without secrets. A server that does not know `excludeSecrets` needs [`EnvPolicy::add_patterns`].
    pub fn without_secrets(inherit: EnvInherit) -> Self {
        Self {
            inherit,
            ignore_default_excludes: false,
            exclude: Vec::new(),
            set: BTreeMap::new(),
            include_only: Vec::new(),
            exclude_secrets: true,
        }
    }

    /// Says `excludeSecrets` as patterns, beside the default excludes (`*KEY*`, `*SECRET*`, `*TOKEN*`).
    pub fn add_patterns(&mut self) {
        if self.exclude_secrets {
            self.exclude.extend(SECRET_PATTERNS.into_iter().map(str::to_owned));
        }
    }
}

/// Names of secrets, for servers that know only patterns; matched as whole names, in capitals or not.
const SECRET_PATTERNS: [&str; 30] = [
    "*PASSWORD*",
    "*PASSWD*",
    "*PASSPHRASE*",
    "*CREDENTIAL*",
    "PASS",
    "PASS_*",
    "*_PASS",
    "*_PASS_*",
    "PAT",
    "PAT_*",
    "*_PAT",
    "*_PAT_*",
    "JWT",
    "JWT_*",
    "*_JWT",
    "*_JWT_*",
    "CREDS",
    "CREDS_*",
    "*_CREDS",
    "*_CREDS_*",
    "BEARER",
    "BEARER_*",
    "*_BEARER",
    "*_BEARER_*",
    "COOKIE",
    "COOKIES",
    "*_COOKIE*",
    "PWD_*",
    "*_PWD",
    "*_PWD_*",
];

/// The set that an [`EnvPolicy`] starts from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum EnvInherit {
    /// The server's whole environment.
    All,
    /// The few variables that every program expects.
    Core,
    /// Nothing.
    None,
}

/// Ids of the request that started a process.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ProcessMetadata {
    /// A UUID; the child sees it as `CODEX_THREAD_ID`.
    #[serde(default, deserialize_with = "optional_uuid")]
    #[cfg_attr(feature = "schema", schemars(extend("format" = "uuid")))]
    pub thread_id: Option<String>,
    /// The child sees it as `CODEX_TOOL_CALL_ID`.
    #[serde(default)]
    pub tool_call_id: Option<String>,
}

fn optional_uuid<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    let text = Option::<String>::deserialize(deserializer)?;
    if let Some(text) = &text {
        uuid::Uuid::try_parse(text).map_err(de::Error::custom)?;
    }
    Ok(text)
}

/// A login shell whose profile is evaluated once per scope and cached.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ShellSnapshot {
    /// Starts with the same scope share a snapshot.
    pub scope_id: String,
    pub shell: SnapshotShell,
}

/// A shell by its kind and its program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SnapshotShell {
    /// `bash`, `zsh` or `sh`.
    pub name: String,
    /// The program, compared with `argv[0]`.
    pub path: String,
}

/// The size of a terminal in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TerminalSize {
    pub rows: u16,
    pub cols: u16,
}

impl Default for TerminalSize {
    fn default() -> Self {
        Self { rows: 24, cols: 80 }
    }
}
