//! Compiles the `sandbox` object of a request into a [`Policy`].

use exec_server_protocol::path_uri::{ForeignPath, PathUriError};
use exec_server_protocol::sandbox::{
    EntryAccess, EntryPath, FileEntry, FilePermissions, Network, PermissionProfile, SandboxParams,
    SpecialPath, WorkspaceWrite,
};

use super::entries::{Context, Resolved};
use super::{FileRules, HostFacts};

/// A compiled policy, independent of its spelling in the request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// Network mode.
    pub network: Network,
    /// File access.
    pub files: FilePolicy,
}

/// File access of a policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FilePolicy {
    /// All files.
    Unrestricted,
    /// Files that the rules allow.
    Restricted(FileRules),
}

/// Why a policy cannot be compiled.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    /// Bad params: an entry depends on a directory that the request does not name.
    #[error("file system sandbox context with dynamic permissions requires cwd")]
    MissingCwd,
    /// Bad params: a path is not a valid URI.
    #[error(transparent)]
    Path(#[from] PathUriError),
    /// Bad params: a pattern is ambiguous or invalid.
    #[error("sandbox pattern `{pattern}` {problem}")]
    Glob {
        /// The rejected pattern.
        pattern: String,
        /// The error in it.
        problem: GlobProblem,
    },
    /// Invalid request: enforcing the policy would make a start too slow.
    #[error(
        "the sandbox policy comes to more than {MAX_POLICY_PLACES} places and patterns; name directories in place of \
         what is in them"
    )]
    TooLarge,
    /// Invalid request: an entry is a path of another operating system.
    #[error("invalid sandbox permission path URI: {0}")]
    ForeignEntry(ForeignPath),
    /// Invalid request: the policy's directory is a path of another operating system.
    #[error("sandbox cwd is not native to this exec-server host: {0}")]
    ForeignCwd(ForeignPath),
    /// Invalid request: a project directory is a path of another operating system.
    #[error("sandbox workspace root is not native to this exec-server host: {0}")]
    ForeignWorkspaceRoot(ForeignPath),
}

/// Limit of paths and patterns in a policy, including the protected names of its writable roots.
///
/// Each is looked up, and most are mounted, for every process; this many take a few tenths of a second.
pub const MAX_POLICY_PLACES: usize = 4096;

/// The error in a pattern.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum GlobProblem {
    /// `..` after a wildcard, as in `*/..`.
    #[error("goes up from a wildcard")]
    ParentOfWildcard,
    /// A range such as `[z-a]`.
    #[error("has a range that holds nothing")]
    EmptyRange,
    /// The braces expand to too many patterns.
    #[error("has too many alternatives")]
    TooManyAlternatives,
    /// Longer than any path.
    #[error("is too long")]
    TooLong,
    /// It starts with `~`, and the server's user has no home.
    #[error("starts at a home that is not known")]
    NoHome,
    /// A path cannot hold a NUL byte.
    #[error("holds a NUL byte")]
    Nul,
}

/// Compiles the policy for this host without disk access, so that the same input always gives the same policy.
pub fn compile(sandbox: &SandboxParams, host: &HostFacts) -> Result<Policy, PolicyError> {
    let (network, files) = match &sandbox.permissions {
        PermissionProfile::Managed { file_system, network } => {
            (*network, compile_files(file_system, sandbox, host)?)
        }
        PermissionProfile::Disabled | PermissionProfile::DangerFullAccess => {
            (Network::Enabled, FilePolicy::Unrestricted)
        }
        PermissionProfile::External { network }
        | PermissionProfile::ExternalSandbox { network_access: network } => {
            (*network, FilePolicy::Unrestricted)
        }
        PermissionProfile::ReadOnly { network_access } => {
            let context = Context::new(sandbox, host)?;
            ((*network_access).into(), restricted(&context, host, &[everything_can_be_read()])?)
        }
        PermissionProfile::WorkspaceWrite(older) => {
            let context = Context::new(sandbox, host)?.with_the_cwd_as_project();
            let files = restricted(&context, host, &entries_of_workspace_write(older))?;
            (older.network_access.into(), files)
        }
    };
    Ok(Policy { network, files })
}

fn compile_files(
    files: &FilePermissions,
    sandbox: &SandboxParams,
    host: &HostFacts,
) -> Result<FilePolicy, PolicyError> {
    match files {
        FilePermissions::Unrestricted => Ok(FilePolicy::Unrestricted),
        FilePermissions::Restricted { entries, glob_scan_max_depth } => {
            let context = Context::new(sandbox, host)?.with_glob_depth(*glob_scan_max_depth);
            if context.cwd().is_none() && entries.iter().any(needs_a_cwd) {
                return Err(PolicyError::MissingCwd);
            }
            restricted(&context, host, entries)
        }
    }
}

fn restricted(
    context: &Context,
    host: &HostFacts,
    entries: &[FileEntry],
) -> Result<FilePolicy, PolicyError> {
    let mut resolved = Resolved::default();
    for entry in entries {
        context.resolve(entry, &mut resolved)?;
        if resolved.len() > MAX_POLICY_PLACES {
            return Err(PolicyError::TooLarge);
        }
    }
    let rules = FileRules::new(resolved, &host.minimal);
    if rules.len() > MAX_POLICY_PLACES {
        return Err(PolicyError::TooLarge);
    }
    Ok(FilePolicy::Restricted(rules))
}

/// Whether the meaning of the entry depends on the working directory.
fn needs_a_cwd(entry: &FileEntry) -> bool {
    match &entry.path {
        EntryPath::Path { .. } => false,
        EntryPath::GlobPattern { pattern } => !pattern.starts_with('/'),
        EntryPath::Special { value } => matches!(value, SpecialPath::ProjectRoots { .. }),
    }
}

/// Converts the older form `workspace-write` into entries.
fn entries_of_workspace_write(older: &WorkspaceWrite) -> Vec<FileEntry> {
    let writable = |path| FileEntry::new(path, EntryAccess::Write);
    let special = |value| EntryPath::Special { value };
    let mut entries = vec![
        everything_can_be_read(),
        writable(special(SpecialPath::ProjectRoots { subpath: None })),
    ];
    if !older.exclude_tmpdir_env_var {
        entries.push(writable(special(SpecialPath::Tmpdir)));
    }
    if !older.exclude_slash_tmp {
        entries.push(writable(special(SpecialPath::SlashTmp)));
    }
    let extra = older.writable_roots.iter().cloned().map(|path| EntryPath::Path { path });
    entries.extend(extra.map(writable));
    entries
}

fn everything_can_be_read() -> FileEntry {
    FileEntry::new(EntryPath::Special { value: SpecialPath::Root }, EntryAccess::Read)
}

impl Policy {
    /// Whether the policy restricts nothing.
    pub fn allows_everything(&self) -> bool {
        self.network == Network::Enabled && self.files.writes_everything()
    }
}

impl FilePolicy {
    /// Whether every file is readable, so that a lookup needs no file worker.
    pub fn reads_everything(&self) -> bool {
        match self {
            Self::Unrestricted => true,
            Self::Restricted(rules) => rules.reads_everything(),
        }
    }

    /// Whether every file is writable, so that a change needs no file worker.
    pub fn writes_everything(&self) -> bool {
        match self {
            Self::Unrestricted => true,
            Self::Restricted(rules) => rules.writes_everything(),
        }
    }
}
