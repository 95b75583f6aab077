//! What is put over things to hide them.

use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{Mode, mkdirat, openat};

use super::mounts::{self, Below, FROZEN, HERE, NO_PROGRAMS};
use super::new_root::{NewRoot, make_file};
use crate::linux::step::{Step, StepError};

/// A file and two directories that can be mounted over others as often as it takes.
pub struct Masks {
    /// Opening it fails.
    pub file: OwnedFd,
    /// Listing it fails.
    pub closed: OwnedFd,
    /// There is nothing in it.
    pub empty: OwnedFd,
}

impl Masks {
    /// Makes them, before there is a `/dev`.
    pub fn make(root: &NewRoot) -> Result<Self, StepError> {
        make(root).step("make something to hide things with")
    }
}

fn make(root: &NewRoot) -> io::Result<Masks> {
    let mount = mounts::memory("0700", 4096, 8, NO_PROGRAMS)?;
    make_file(&mount, OsStr::new("file"), 0)?;
    mkdirat(&mount, "closed", Mode::empty())?;
    mkdirat(&mount, "empty", Mode::from_raw_mode(0o555))?;
    mounts::restrict(&mount, FROZEN, Below::Left)?;
    // Only what is mounted somewhere can be mounted a second time; it is out of reach here, because `/dev` is mounted over it.
    mounts::attach(&mount, root.make_directory(Path::new("/dev"))?)?;
    let open = |name: &str| openat(&mount, name, HERE, Mode::empty());
    Ok(Masks { file: open("file")?, closed: open("closed")?, empty: open("empty")? })
}
