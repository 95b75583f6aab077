//! What of the file system a sandbox sees, and how this is mounted.
//!
//! Owner: pid 1 of a sandbox, before it starts the command. It has user, mount and pid namespaces of its own, all
//! capabilities in them, and one thread.
//!
//! ```text
//! clone / or make an empty root ──> /dev, /proc ══> look up every path ──> plan ──> places, outer first ──> seal ──> pivot
//!          (new_root)             (dev, proc)        (walk, wishes)      (plan)        (apply)            (new_root)
//!                 [`Foundation`], perhaps made ahead ══> what the policy says
//! ```
//!
//! Invariant: no place is mounted before everything is looked up on the host, and a mount never follows a link: its
//! source is a descriptor, and its target is found below the new root without links.

mod apply;
mod blanks;
mod dev;
mod foundation;
mod kernel_mounts;
mod mounts;
mod new_root;
mod old_root;
mod plan;
mod proc;
mod walk;
mod wishes;
mod writable_root;

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::byte_fields;

pub use self::foundation::{Foundation, Groundwork};
pub use self::old_root::OldRoot;
pub use self::proc::remember_names;
pub use self::writable_root::check_writable_root;

/// How much the private `/dev/shm` takes if nobody says otherwise: enough for test runners and browsers, and no way to
/// fill the machine's memory.
pub const DEFAULT_TEMP_BYTES: u64 = 256 << 20;

/// What of the file system a sandbox sees.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct View {
    /// What there is where no place says otherwise.
    pub base: Base,
    /// What differs from the base; the innermost place around a path decides. At the same path a denied place wins
    /// over a writable one, and that over a mask and a read-only one.
    pub places: Vec<Place>,
    /// The size limit of private memory file systems such as `/dev/shm`.
    pub temp_bytes: u64,
    /// What is shown as empty, for example `/run` or sockets; a place at the same path that is writable wins, and so
    /// does every place below.
    #[serde(with = "byte_fields::paths")]
    pub masked: Vec<PathBuf>,
    /// Other names of places: where nothing is shown but places, the links on the way are shown as well.
    #[serde(with = "byte_fields::paths")]
    pub links: Vec<PathBuf>,
    /// Where other sandboxes may write or could have written. A link in there, or in a writable place of this view,
    /// never shows anything that would be hidden without it.
    #[serde(with = "byte_fields::paths")]
    pub handed_out: Vec<PathBuf>,
    /// Places that must not be skipped: if nothing is there any more, there is no view (`ENOENT`).
    #[serde(with = "byte_fields::paths")]
    pub needed: Vec<PathBuf>,
}

impl View {
    /// The bare base.
    pub fn new(base: Base) -> Self {
        Self {
            base,
            places: Vec::new(),
            temp_bytes: DEFAULT_TEMP_BYTES,
            masked: Vec::new(),
            links: Vec::new(),
            handed_out: Vec::new(),
            needed: Vec::new(),
        }
    }
}

/// What there is where no place says otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Base {
    /// Everything that is there, read-only.
    Everything,
    /// Nothing but what is named as a place.
    Nothing,
}

/// A path with an access of its own, for it and all below.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Place {
    /// Absolute, without `.` and `..`. One that does not exist is skipped.
    #[serde(with = "byte_fields::path")]
    pub path: PathBuf,
    /// What may be done there.
    pub access: PlaceAccess,
}

/// What may be done at a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum PlaceAccess {
    /// Reading. Links that lead there are followed.
    ReadOnly,
    /// Reading and writing. The path must not lead through a link: it is what [`check_writable_root`] returned.
    Writable,
    /// Nothing. Links that lead there are followed.
    Denied,
}

#[cfg(test)]
mod tests;
