//! The profile of a sandbox: which files by entry, which network by word.

#![allow(
    missing_docs,
    reason = "wire members repeat their JSON names; docs state only extra facts"
)]

use std::num::NonZeroUsize;

use serde::{Deserialize, Serialize};

use crate::path_uri::PathUri;

/// What is allowed.
///
/// The last four are the older forms, which the first versions of the protocol called `sandboxPolicy`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "kebab-case")]
pub enum PermissionProfile {
    /// This server enforces the rules.
    #[serde(rename_all = "snake_case")]
    Managed { file_system: FilePermissions, network: Network },
    /// Nothing is restricted.
    Disabled,
    /// File access is enforced by an external sandbox.
    External { network: Network },
    /// Everything can be read, and nothing else done.
    #[serde(alias = "ReadOnly")]
    ReadOnly {
        /// Whether the network is open.
        #[serde(default)]
        network_access: bool,
    },
    /// Everything can be read, and the project written.
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
    /// Whether this is one of the forms that the first versions of the protocol used.
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

/// The members of the older form `workspace-write`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkspaceWrite {
    /// Directories that can be written beside the project.
    #[serde(default)]
    pub writable_roots: Vec<PathUri>,
    /// Whether the network is open.
    #[serde(default)]
    pub network_access: bool,
    /// Whether the server's `TMPDIR` stays read-only.
    #[serde(default)]
    pub exclude_tmpdir_env_var: bool,
    /// Whether `/tmp` stays read-only.
    #[serde(default)]
    pub exclude_slash_tmp: bool,
}

/// Whether the network can be reached.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Network {
    /// No.
    #[default]
    Restricted,
    /// Yes.
    Enabled,
}

impl From<bool> for Network {
    fn from(is_enabled: bool) -> Self {
        if is_enabled { Self::Enabled } else { Self::Restricted }
    }
}

/// Which files can be reached.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum FilePermissions {
    /// Those that the entries allow.
    Restricted {
        /// The entries, in no order.
        entries: Vec<FileEntry>,
        /// How deep a pattern looks below its fixed part; without it, all the way.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        glob_scan_max_depth: Option<NonZeroUsize>,
    },
    /// All of them.
    Unrestricted,
}

/// One rule about files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    pub path: EntryPath,
    /// What can be done with them.
    pub access: EntryAccess,
    /// What happens if they are not there; it matters on Windows only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missing_path_behavior: Option<MissingPathBehavior>,
}

impl FileEntry {
    /// A rule with nothing said about missing files.
    pub fn new(path: EntryPath, access: EntryAccess) -> Self {
        Self { path, access, missing_path_behavior: None }
    }
}

/// What can be done with a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EntryAccess {
    /// Read it.
    Read,
    /// Read and write it.
    Write,
    /// Nothing.
    #[serde(alias = "none")]
    Deny,
}

/// Which files a rule is about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum EntryPath {
    /// A path and everything below it.
    Path { path: PathUri },
    /// Everything that a pattern matches.
    GlobPattern { pattern: String },
    /// A named location.
    Special { value: SpecialPath },
}

/// A named location.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum SpecialPath {
    /// The whole disk.
    Root,
    /// What programs need to start at all.
    Minimal,
    /// Each of the project's directories.
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
    /// A location that only a newer client knows; it may be skipped.
    Unknown {
        path: String,
        /// A path below it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        subpath: Option<String>,
    },
}

/// What happens if the files of a rule are not there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MissingPathBehavior {
    /// The rule is left out.
    Skip,
}
