//! Compiles the `sandbox` object of a request into a plan.

use exec_server_protocol::path_uri::{ForeignPath, PathUriError};
use exec_server_protocol::sandbox::{
    EntryAccess, EntryPath, FileEntry, FilePermissions, Network, PermissionProfile, SandboxParams,
    SpecialPath, WorkspaceWrite,
};

use super::entries::{Context, Resolved};
use super::{FileRules, HostFacts};

/// What a request may touch, independent of how it was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// The network.
    pub network: Network,
    /// The files.
    pub files: FilePolicy,
}

/// Which files a request may touch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FilePolicy {
    /// All of them.
    Unrestricted,
    /// Those that the rules allow.
    Restricted(FileRules),
}

/// Why a policy cannot be compiled, and so cannot be kept.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    /// Bad params: an entry depends on a directory that the request does not name.
    #[error("file system sandbox context with dynamic permissions requires cwd")]
    MissingCwd,
    /// Bad params: a path is not acceptable as a URI.
    #[error(transparent)]
    Path(#[from] PathUriError),
    /// Bad params: a pattern has no clear meaning.
    #[error("sandbox pattern `{pattern}` {problem}")]
    Glob {
        /// The pattern as it was given.
        pattern: String,
        /// What is wrong with it.
        problem: GlobProblem,
    },
    /// Invalid request: there is more to enforce than a start may cost.
    #[error(
        "the sandbox policy comes to more than {MAX_POLICY_PLACES} places and patterns; name directories in place of \
         what is in them"
    )]
    TooLarge,
    /// Invalid request: an entry names a path of another system.
    #[error("invalid sandbox permission path URI: {0}")]
    ForeignEntry(#[source] ForeignPath),
    /// Invalid request: the policy's directory is of another system.
    #[error("sandbox cwd is not native to this exec-server host: {0}")]
    ForeignCwd(#[source] ForeignPath),
    /// Invalid request: a project's directory is of another system.
    #[error("sandbox workspace root is not native to this exec-server host: {0}")]
    ForeignWorkspaceRoot(#[source] ForeignPath),
}

/// How many places and patterns a policy may come to, the protected names of its writable roots included.
///
/// Each is looked up, and most are a mount, for every process; with this many that takes a few tenths of a second.
pub const MAX_POLICY_PLACES: usize = 4096;

/// What is wrong with a pattern.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum GlobProblem {
    /// `*/..` could be anywhere.
    #[error("goes up from a wildcard")]
    ParentOfWildcard,
    /// A range such as `[z-a]`.
    #[error("has a range that holds nothing")]
    EmptyRange,
    /// Its braces stand for more patterns than any real one does.
    #[error("has too many alternatives")]
    TooManyAlternatives,
    /// No path is as long as it.
    #[error("is too long")]
    TooLong,
    /// It starts with `~`, and the server's user has no home.
    #[error("starts at a home that is not known")]
    NoHome,
    /// A path cannot hold a NUL byte.
    #[error("holds a NUL byte")]
    Nul,
}

/// The meaning of a sandbox on this host; nothing is looked up, so the same input always gives the same policy.
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

/// Whether the entry means something else in another directory, whatever its access is.
fn needs_a_cwd(entry: &FileEntry) -> bool {
    match &entry.path {
        EntryPath::Path { .. } => false,
        EntryPath::GlobPattern { pattern } => !pattern.starts_with('/'),
        EntryPath::Special { value } => matches!(value, SpecialPath::ProjectRoots { .. }),
    }
}

/// The older form `workspace-write`, in today's words.
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
    /// Whether there is nothing to enforce.
    pub fn allows_everything(&self) -> bool {
        self.network == Network::Enabled && self.files.writes_everything()
    }
}

impl FilePolicy {
    /// Whether every file can be read, so that a lookup needs no guard.
    pub fn reads_everything(&self) -> bool {
        match self {
            Self::Unrestricted => true,
            Self::Restricted(rules) => rules.reads_everything(),
        }
    }

    /// Whether every file can be written, so that a change needs no guard.
    pub fn writes_everything(&self) -> bool {
        match self {
            Self::Unrestricted => true,
            Self::Restricted(rules) => rules.writes_everything(),
        }
    }
}
