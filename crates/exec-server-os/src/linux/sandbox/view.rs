//! What of the file system a sandbox sees, and how this is mounted.
//!
//! Owner: pid 1 of a sandbox, before it starts the command. It has user, mount and pid namespaces of its own, all
//! capabilities in them, and one thread.
//!
//! ```text
//! look up every path ──> plan ──> clone / or make an empty root ──> /dev, /proc ──> places, outer first ──> seal ──> pivot
//!  (walk, wishes)       (plan)        (new_root)                  (dev, proc)        (apply)             (new_root)
//! ```
//!
//! Invariant: nothing is mounted before everything is looked up, and a mount never follows a link: its source is a
//! descriptor, and its target is found below the new root without links.

mod apply;
mod dev;
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

use rustix::fs::Mode;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::step::{Step, StepError};
use crate::byte_fields;

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

/// Makes the view the root of the calling process, which must be pid 1 of new namespaces; leaves it in the new `/`.
///
/// Nobody may run anything there before the [`OldRoot`] is gone.
/// After an error the process is somewhere in between and must exit.
pub fn build(view: &View) -> Result<OldRoot, StepError> {
    // A fresh procfs shows the pid namespace of the caller, so it must not be the host's. This also keeps every
    // process that was started for something else from mounting by mistake.
    if std::process::id() != 1 {
        return Err(Errno::PERM).step("be the first process of a pid namespace");
    }
    // What is made below has exactly the mode that it is given.
    let umask = rustix::process::umask(Mode::empty());
    mounts::stop_propagation().step("make the mounts private")?;
    let host = mounts::open_host_root().step("open the root")?;
    let devices = dev::open_devices(&host)?;
    let (ground, wishes) = wishes::look_up(&host, view)?;
    let plan = plan::plan(ground, &wishes);
    let mut root = new_root::NewRoot::mount(host, ground)?;
    let null = dev::mount(&mut root, &devices, view.temp_bytes)?;
    proc::mount(&mut root, &null)?;
    for (path, action) in plan {
        apply::apply(&mut root, &wishes, &path, action)?;
    }
    let old_root = root.seal_and_enter()?;
    rustix::process::umask(umask);
    Ok(old_root)
}

#[cfg(test)]
mod tests;
