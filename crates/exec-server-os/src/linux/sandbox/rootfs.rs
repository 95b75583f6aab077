//! The file system that a sandboxed command sees, and how it is mounted.
//!
//! Owner: pid 1 of a sandbox, before it starts the command. It has its own user, mount and pid namespaces, all
//! capabilities in them, and one thread.
//!
//! ```text
//! clone / or make an empty root ──> /dev, /proc ══> resolve every path ──> plan ──> mounts, outer first ──> seal ──> pivot
//!          (new_root)             (dev, proc)    (walk, resolved_rules)   (plan)        (apply)           (new_root)
//!                 [`BaseRootfs`], may be made ahead ══> the policy
//! ```
//!
//! Invariant: every path is resolved on the host before the first mount, and a mount never follows a link: its source is
//! a descriptor, and its target is resolved below the new root without links.

mod apply;
mod base_rootfs;
mod dev;
mod kernel_mounts;
mod masks;
mod mounts;
mod new_root;
mod old_root;
mod plan;
mod proc;
mod resolved_rules;
mod terminals;
mod walk;
mod writable_root;

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::byte_fields;

pub use self::base_rootfs::{BaseRootfs, RootfsProfile};
pub use self::old_root::OldRoot;
pub use self::proc::remember_names;
pub use self::writable_root::check_writable_root;

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

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
/// The root where no rule applies.
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

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
/// The access to a path.
pub enum MountAccess {
    /// Read-only. Links to it are followed.
    ReadOnly,
    /// Read and write. The path must not contain a link: it is the result of [`check_writable_root`].
    Writable,
    /// No access. Links to it are followed.
    Denied,
}

#[cfg(test)]
mod tests;
