//! What of a view can be made before it is known what will be asked for: the host's root as it is, `/dev` and `/proc`.
//!
//! It depends on the mounts of the host alone, so that it can be made ahead, and is of use until one of those changes.
//! Everything that a policy says is looked up and mounted in [`Foundation::build`].

use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::Mode;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::blanks::Blanks;
use super::kernel_mounts::KernelMounts;
use super::new_root::NewRoot;
use super::plan::Ground;
use super::proc::Procfs;
use super::{Base, OldRoot, PlaceAccess, View, apply, dev, mounts, plan, wishes};
use crate::linux::sandbox::step::{Step, StepError};

/// How long a foundation is as good as one that was laid this moment.
const STILL_NEW: Duration = Duration::from_secs(1);

/// What a foundation is like.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Groundwork {
    ground: Ground,
    temp_bytes: u64,
}

impl Groundwork {
    /// What a view needs, unless a link leads one of its places to the root.
    pub fn of(view: &View) -> Self {
        let at_root = |access| {
            let is_root = |path: &Path| path == Path::new("/");
            view.places.iter().any(|place| place.access == access && is_root(&place.path))
        };
        let ground = if at_root(PlaceAccess::Denied) {
            Ground::Scaffold
        } else if at_root(PlaceAccess::Writable) {
            Ground::Writable
        } else if at_root(PlaceAccess::ReadOnly) || view.base == Base::Everything {
            Ground::ReadOnly
        } else {
            Ground::Scaffold
        };
        Self { ground, temp_bytes: view.temp_bytes }
    }
}

/// A root with `/dev` and `/proc`, mounted over the host's and not entered yet.
pub struct Foundation {
    work: Groundwork,
    root: NewRoot,
    furniture: Furniture,
    kernel: KernelMounts,
    umask: Mode,
    laid: Instant,
}

impl Foundation {
    /// Mounts it. The calling process must be pid 1 of new namespaces; after an error it must exit.
    pub fn lay(work: Groundwork) -> Result<Self, StepError> {
        // A fresh procfs shows the pid namespace of the caller, so it must not be the host's. This also keeps every
        // process that was started for something else from mounting by mistake.
        if std::process::id() != 1 {
            return Err(Errno::PERM).step("be the first process of a pid namespace");
        }
        // What is made below has exactly the mode that it is given.
        let umask = rustix::process::umask(Mode::empty());
        mounts::stop_propagation().step("make the mounts private")?;
        let host = mounts::open_host_root().step("open the root")?;
        // Before there are any of our own among them.
        let kernel = KernelMounts::read().step("read the mounts")?;
        let (root, furniture) = lay_on(host, work)?;
        Ok(Self { work, root, furniture, kernel, umask, laid: Instant::now() })
    }

    /// Makes the view on it the root of this process, and leaves it in the new `/`.
    ///
    /// Somebody has to unmount the [`OldRoot`], and nobody may run anything there before it is gone.
    /// After an error the process is somewhere in between and must exit.
    pub fn build(mut self, view: &View) -> Result<OldRoot, StepError> {
        let (ground, wishes) = wishes::look_up(self.root.host(), view, &self.kernel)?;
        let plan = plan::plan(ground, &wishes);
        let needed = Groundwork { ground, temp_bytes: view.temp_bytes };
        if needed == self.work {
            // A module of the kernel may have brought a file since. One that comes in the next moment is not seen either
            // way, and to look takes a while.
            if self.laid.elapsed() >= STILL_NEW {
                let Furniture { procfs, null, .. } = &mut self.furniture;
                procfs.cover_new(null).step("cover /proc")?;
            }
        } else {
            let host = self.root.take_down()?;
            (self.root, self.furniture) = lay_on(host, needed)?;
        }
        for (path, action) in plan {
            apply::apply(&mut self.root, &self.furniture.blanks, &wishes, &path, action)?;
        }
        let old_root = self.root.seal_and_enter()?;
        rustix::process::umask(self.umask);
        Ok(old_root)
    }
}

/// What every root has, whatever is asked for.
struct Furniture {
    blanks: Blanks,
    null: OwnedFd,
    procfs: Procfs,
}

fn lay_on(host: OwnedFd, work: Groundwork) -> Result<(NewRoot, Furniture), StepError> {
    let devices = dev::open_devices(&host)?;
    let mut root = NewRoot::mount(host, work.ground)?;
    let blanks = Blanks::make(&root)?;
    let null = dev::mount(&mut root, &devices, work.temp_bytes)?;
    let procfs = Procfs::mount(&root, &null)?;
    Ok((root, Furniture { blanks, null, procfs }))
}
