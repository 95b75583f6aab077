//! The confinement of one process, as the launcher gets it.

use std::path::PathBuf;

use exec_server_fs::byte_fields;
use serde::{Deserialize, Serialize};

use crate::policy::Allowances;

pub use exec_server_os::peer::Network;

/// The confinement of one process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxSetup {
    /// The file system.
    pub view: RootfsSpec,
    /// The network access.
    pub network: Network,
    /// The enforcement mechanism.
    pub mechanism: Mechanism,
    /// Permissions beyond the default set.
    pub allow: Allowances,
}

/// The enforcement mechanism, in addition to the system call filter.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Mechanism {
    /// Namespaces and mounts, with Landlock as a second layer.
    #[default]
    Namespaces,
    /// Landlock alone, for what [`can_hold`](crate::policy::can_hold) allows.
    Landlock,
}

/// The default size of the private `/dev/shm`: enough for test runners and browsers, without filling the machine's
/// memory.
pub const DEFAULT_TEMP_BYTES: u64 = 256 << 20;

/// The description of a rootfs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RootfsSpec {
    /// Applies where no rule does.
    pub base: Base,
    /// Exceptions from the base; the innermost rule around a path decides. At the same path, denied wins over writable, and
    /// writable over masked and read-only.
    pub places: Vec<MountRule>,
    /// The size limit of private tmpfs mounts such as `/dev/shm`.
    pub temp_bytes: u64,
    /// Paths that are shown as empty, for example `/run` or sockets; a writable rule at the same path wins, and so does
    /// every rule below.
    #[serde(with = "byte_fields::paths")]
    pub masked: Vec<PathBuf>,
    /// Other names of the rules' paths: with [`Base::Nothing`] the symbolic links on the way are shown as well.
    #[serde(with = "byte_fields::paths")]
    pub links: Vec<PathBuf>,
    /// Paths that other sandboxes can write or could have written. A link in there, or in a writable path of this rootfs,
    /// never reveals anything that would be hidden without it.
    #[serde(with = "byte_fields::paths")]
    pub handed_out: Vec<PathBuf>,
    /// Denied with everything below, whatever the rules say; absolute, and without links.
    #[serde(with = "byte_fields::paths")]
    pub sealed: Vec<PathBuf>,
    /// Paths that must exist: if one is missing, the set-up fails with `ENOENT`.
    #[serde(with = "byte_fields::paths")]
    pub needed: Vec<PathBuf>,
}

impl RootfsSpec {
    /// A spec without rules.
    pub fn new(base: Base) -> Self {
        Self {
            base,
            places: Vec::new(),
            temp_bytes: DEFAULT_TEMP_BYTES,
            masked: Vec::new(),
            links: Vec::new(),
            handed_out: Vec::new(),
            sealed: Vec::new(),
            needed: Vec::new(),
        }
    }
}

/// The root where no rule applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Base {
    /// The host's root, read-only.
    Everything,
    /// An empty root with only the named paths.
    Nothing,
}

/// The access to a path and everything below.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MountRule {
    /// Absolute, without `.` and `..`. A missing path is skipped.
    #[serde(with = "byte_fields::path")]
    pub path: PathBuf,
    /// Applies to the path and everything below.
    pub access: MountAccess,
}

/// The access to a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum MountAccess {
    /// Read-only. Links to it are followed.
    ReadOnly,
    /// Read and write. The path must not contain a link: it is the result of [`check_writable_root`](crate::check_writable_root).
    Writable,
    /// No access. Links to it are followed.
    Denied,
}
