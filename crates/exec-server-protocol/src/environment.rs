//! The payloads of `environment/*`, `environmentConfig/*` and capability discovery.

#![allow(
    missing_docs,
    reason = "wire members repeat their JSON names; docs state only extra facts"
)]

use serde::{Deserialize, Serialize};

use crate::path_uri::PathUri;
use crate::process::SandboxReport;

pub use crate::methods::Capabilities;

mod installed;

pub use installed::{
    CapabilitiesResponse, DiscoveryRoot, InstalledPlugin, SkillDependencies, SkillPolicy,
    SkillSummary, ToolDependency,
};

/// Result of `environment/info`; also part of the `initialize` result.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct EnvironmentInfo {
    /// The user's shell.
    pub shell: ShellInfo,
    /// The version of the server.
    #[serde(default)]
    pub executor_version: Option<String>,
    /// The same for every server on one machine.
    #[serde(default)]
    pub provider_id: Option<String>,
    /// The server's working directory.
    #[serde(default)]
    pub cwd: Option<PathUri>,
    /// The home directory of the server's user.
    #[serde(default)]
    pub user_home_dir: Option<PathUri>,
    /// `linux`, `macos` or `windows`.
    #[serde(default)]
    pub platform_os: Option<String>,
    /// Directories that a client may put in front of `PATH`.
    #[serde(default)]
    pub prepend_path_dirs: Vec<PathUri>,
    /// `$TMPDIR`, if set.
    #[serde(default)]
    pub temporary_directories: Vec<PathUri>,
    /// Where temporary files go.
    #[serde(default)]
    pub temp_dir: Option<PathUri>,
    /// Optional features of this server.
    #[serde(default)]
    pub capabilities: Capabilities,
    /// What the sandbox can enforce on this machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<SandboxReport>,
    /// The machine and the user of the server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<HostInfo>,
    /// A random id of this run of the server; another id means that the server was restarted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance_id: Option<String>,
}

/// The machine and the user of a server; unknown facts are omitted.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct HostInfo {
    /// The name of the machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The release of the kernel.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel: Option<String>,
    /// The architecture, such as `x86_64`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub architecture: Option<String>,
    /// The user that the server runs as: a name, or the number of a user without a name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// The processors that the server may use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpus: Option<u64>,
    /// The memory of the machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
}

/// A shell by its kind and its program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ShellInfo {
    /// `zsh`, `bash`, `powershell`, `sh` or `cmd`.
    pub name: String,
    /// The program.
    pub path: String,
}

/// Result of `environment/status`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct EnvironmentStatusResponse {
    /// Always `ready`.
    pub status: EnvironmentStatus,
}

/// Whether the environment can be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum EnvironmentStatus {
    /// The environment can be used.
    Ready,
}

/// Params of `environmentConfig/read`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct EnvironmentConfigReadParams {
    /// The directory whose settings are requested.
    pub cwd: PathUri,
    /// Requested keys of the configuration.
    pub config_paths: Vec<Vec<String>>,
    /// Requested keys of the requirements.
    pub requirements_paths: Vec<Vec<String>>,
}

/// Result of `environmentConfig/read`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct EnvironmentConfigReadResponse {
    pub user_home_dir: Option<PathUri>,
    /// Directory of the configuration files.
    pub codex_home_dir: PathUri,
    /// The name of the machine.
    pub hostname: Option<String>,
    /// The selected configuration.
    pub config: ConfigLayers,
    /// The selected requirements.
    pub requirements: ConfigLayers,
}

/// Layers of settings, weakest first.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ConfigLayers {
    pub layers: Vec<ConfigLayer>,
    /// Where a client may insert layers of its own.
    pub cloud_insertion_index: usize,
}

/// One file's settings, reduced to the selected keys.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ConfigLayer {
    /// Name of the layer for display.
    pub source: String,
    /// Base directory of relative paths in the layer.
    pub base_dir: PathUri,
    /// The selected settings.
    pub toml: String,
}

/// Params of `capabilityRoots/discoverV1`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CapabilityRootsParams {
    pub roots: Vec<CapabilityRoot>,
}

/// A directory that is searched for plugins and skills.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CapabilityRoot {
    /// The client's key, repeated in the result.
    pub id: String,
    pub path: PathUri,
    /// The sandbox policy of the search.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(with = "crate::fs::Sandbox"))]
    pub sandbox: Option<serde_json::Value>,
}

/// Result of `capabilityRoots/discoverV1`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CapabilityRootsResponse {
    /// One result per root, in the order of the request.
    pub roots: Vec<DiscoveredRoot>,
}

/// Plugins and skills below one root.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct DiscoveredRoot {
    pub id: String,
    pub path: PathUri,
    /// The plugin whose directory is the root itself.
    pub plugin: Option<DiscoveredPlugin>,
    /// The skills below it.
    pub skills: Vec<DiscoveredSkill>,
    /// Manifests of plugins that the skills belong to.
    pub namespace_manifests: Vec<DiscoveredFile>,
    /// Files that could not be read.
    pub warnings: Vec<String>,
    /// Why the root could not be searched.
    pub error: Option<String>,
}

/// A plugin: its manifest and related files.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct DiscoveredPlugin {
    pub manifest: DiscoveredFile,
    pub mcp_config: Option<DiscoveredFile>,
    pub apps_config: Option<DiscoveredFile>,
}

/// A skill: its instructions and metadata.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DiscoveredSkill {
    pub instructions: DiscoveredFile,
    /// Content of its metadata file.
    pub metadata: Option<DiscoveredFile>,
}

/// A file and its text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DiscoveredFile {
    pub path: PathUri,
    pub contents: String,
}

/// Params of `capabilities/discoverV2`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CapabilitiesParams {
    /// The directory whose capabilities are requested.
    pub cwd: PathUri,
}
