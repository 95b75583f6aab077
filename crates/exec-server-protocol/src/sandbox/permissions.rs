//! The permission profile of a sandbox: file entries and network mode.

#![allow(
    missing_docs,
    reason = "wire members repeat their JSON names; docs state only extra facts"
)]

use std::num::NonZeroUsize;

use serde::{Deserialize, Serialize};

use crate::path_uri::PathUri;

/// Permission profile.
///
/// The last four variants are older forms, which early protocol versions sent as `sandboxPolicy`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "type", rename_all = "kebab-case")]
pub enum PermissionProfile {
    /// This server enforces the rules.
    #[serde(rename_all = "snake_case")]
    Managed { file_system: FilePermissions, network: Network },
    /// Nothing is restricted.
    Disabled,
    /// File access is enforced by an external sandbox.
    External { network: Network },
    /// All files are readable; nothing is writable.
    #[serde(alias = "ReadOnly")]
    ReadOnly {
        /// Whether the network is enabled.
        #[serde(default)]
        network_access: bool,
    },
    /// All files are readable, and the project is writable.
    #[serde(alias = "WorkspaceWrite")]
    WorkspaceWrite(WorkspaceWrite),
    /// Nothing is restricted.
    #[serde(alias = "DangerFullAccess")]
    DangerFullAccess,
    /// File access is enforced by an external sandbox.
    #[serde(alias = "ExternalSandbox")]
    ExternalSandbox {
        #[serde(default)]
        network_access: Network,
    },
}

impl PermissionProfile {
    /// Whether this is one of the older forms.
    pub fn is_older_form(&self) -> bool {
        match self {
            Self::Managed { .. } | Self::Disabled | Self::External { .. } => false,
            Self::ReadOnly { .. }
            | Self::WorkspaceWrite(_)
            | Self::DangerFullAccess
            | Self::ExternalSandbox { .. } => true,
        }
    }
}

/// Members of the older form `workspace-write`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct WorkspaceWrite {
    /// Writable directories beside the project.
    #[serde(default)]
    pub writable_roots: Vec<PathUri>,
    /// Whether the network is enabled.
    #[serde(default)]
    pub network_access: bool,
    /// Whether the server's `TMPDIR` stays read-only.
    #[serde(default)]
    pub exclude_tmpdir_env_var: bool,
    /// Whether `/tmp` stays read-only.
    #[serde(default)]
    pub exclude_slash_tmp: bool,
}

/// Network mode.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Network {
    /// No network.
    #[default]
    Restricted,
    /// The network of the machine.
    Enabled,
}

impl From<bool> for Network {
    fn from(is_enabled: bool) -> Self {
        if is_enabled { Self::Enabled } else { Self::Restricted }
    }
}

/// File access.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum FilePermissions {
    /// Only what the entries allow.
    Restricted {
        /// The entries; their order does not matter.
        entries: Vec<FileEntry>,
        /// How deep a pattern is matched below its fixed prefix; default: unlimited.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        glob_scan_max_depth: Option<NonZeroUsize>,
    },
    /// All files.
    Unrestricted,
}

/// One file rule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FileEntry {
    pub path: EntryPath,
    /// Access to the matched files.
    pub access: EntryAccess,
    /// Handling of missing files; used on Windows only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missing_path_behavior: Option<MissingPathBehavior>,
}

impl FileEntry {
    /// A rule without handling of missing files.
    pub fn new(path: EntryPath, access: EntryAccess) -> Self {
        Self { path, access, missing_path_behavior: None }
    }
}

/// Access to a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum EntryAccess {
    /// Read.
    Read,
    /// Read and write.
    Write,
    /// No access.
    #[serde(alias = "none")]
    Deny,
}

/// Files that a rule matches.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum EntryPath {
    /// A path and everything below it.
    Path { path: PathUri },
    /// All paths that a pattern matches.
    GlobPattern {
        /// The pattern.
        pattern: String,
    },
    /// A named location.
    Special { value: SpecialPath },
}

/// A named location.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum SpecialPath {
    /// The whole file system.
    Root,
    /// The minimum that programs need to start.
    Minimal,
    /// Each project directory.
    #[serde(alias = "current_working_directory")]
    ProjectRoots {
        /// A path below each of them.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        subpath: Option<String>,
    },
    /// The server's `TMPDIR`.
    Tmpdir,
    /// `/tmp`.
    SlashTmp,
    /// A location that only newer clients know; it may be skipped.
    Unknown {
        /// The name of the location.
        path: String,
        /// A path below it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        subpath: Option<String>,
    },
}

/// Handling of missing files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum MissingPathBehavior {
    /// The rule is skipped.
    Skip,
}
