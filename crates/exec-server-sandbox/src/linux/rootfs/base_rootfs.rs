//! The part of a rootfs that does not depend on the policy: the host's root, `/dev` and `/proc`.
//!
//! It depends only on the host's mounts, so it can be built ahead and stays valid until one of them changes. The policy
//! is resolved and mounted in [`BaseRootfs::build`].

use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::Mode;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::kernel_mounts::KernelMounts;
use super::masks::Masks;
use super::new_root::NewRoot;
use super::plan::BaseMount;
use super::proc::Procfs;
use super::{
    Base, MountAccess, OldRoot, RootfsSpec, apply, dev, mounts, plan, resolved_rules, terminals,
};
use crate::linux::step::{Step, StepError};
use crate::work_clock::WorkClock;

/// The age up to which new files in `/proc` are not searched for.
const FRESH_AGE: Duration = Duration::from_secs(1);

/// The parameters of a base rootfs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RootfsProfile {
    base_mount: BaseMount,
    temp_bytes: u64,
}

impl RootfsProfile {
    /// The profile that a spec needs, unless one of its rules leads to the root by a link.
    pub fn of(view: &RootfsSpec) -> Self {
        let at_root = |access| {
            let is_root = |path: &Path| path == Path::new("/");
            view.places.iter().any(|place| place.access == access && is_root(&place.path))
        };
        let base_mount = if at_root(MountAccess::Denied) {
            BaseMount::Scaffold
        } else if at_root(MountAccess::Writable) {
            BaseMount::Writable
        } else if at_root(MountAccess::ReadOnly) || view.base == Base::Everything {
            BaseMount::ReadOnly
        } else {
            BaseMount::Scaffold
        };
        Self { base_mount, temp_bytes: view.temp_bytes }
    }
}

/// A root with `/dev` and `/proc`, mounted over the host's and not entered yet.
pub struct BaseRootfs {
    profile: RootfsProfile,
    root: NewRoot,
    standard: StandardMounts,
    kernel: KernelMounts,
    umask: Mode,
    laid: Instant,
}

impl BaseRootfs {
    /// Mounts it. The calling process must be pid 1 of new namespaces; after an error it must exit.
    pub fn lay(profile: RootfsProfile) -> Result<Self, StepError> {
        // A fresh procfs shows the caller's pid namespace, so that must not be the host's. This check also keeps a process
        // outside of a sandbox from mounting by mistake.
        if std::process::id() != 1 {
            return Err(Errno::PERM).step("be the first process of a pid namespace");
        }
        // Created files must have exactly the given mode.
        let umask = rustix::process::umask(Mode::empty());
        mounts::stop_propagation().step("make the mounts private")?;
        let host = mounts::open_host_root().step("open the root")?;
        // Must precede the sandbox's own mounts.
        let kernel = KernelMounts::read().step("read the mounts")?;
        let (root, standard) = lay_on(host, profile)?;
        Ok(Self { profile, root, standard, kernel, umask, laid: Instant::now() })
    }

    /// Reopens standard streams that are terminals of the host; see [`terminals`].
    pub fn freeze_terminals(&self) -> Result<(), StepError> {
        terminals::freeze(self.root.host())
    }

    /// Makes the rootfs the root of this process and changes to the new `/`.
    ///
    /// The caller must unmount the [`OldRoot`], and nothing may run before it is gone. After an error the process is in an
    /// intermediate state and must exit.
    pub fn build(mut self, view: &RootfsSpec) -> Result<OldRoot, StepError> {
        let clock = WorkClock::start();
        let (base_mount, rules) =
            resolved_rules::look_up(self.root.host(), view, &self.kernel, &clock)?;
        let plan = plan::plan(base_mount, &rules);
        let needed = RootfsProfile { base_mount, temp_bytes: view.temp_bytes };
        if needed == self.profile {
            // A kernel module may have added a file since. Searching takes time, and a file that is added later is missed
            // in any case.
            if self.laid.elapsed() >= FRESH_AGE {
                let StandardMounts { procfs, null, .. } = &mut self.standard;
                procfs.cover_new(null).step("cover /proc")?;
            }
        } else {
            let host = self.root.take_down()?;
            (self.root, self.standard) = lay_on(host, needed)?;
        }
        for (path, action) in plan {
            clock.check().step(resolved_rules::TOO_MUCH)?;
            apply::apply(&mut self.root, &self.standard.masks, &rules, &path, action)?;
        }
        let old_root = self.root.seal_and_enter()?;
        rustix::process::umask(self.umask);
        Ok(old_root)
    }
}

/// The mounts of every rootfs.
struct StandardMounts {
    masks: Masks,
    null: OwnedFd,
    procfs: Procfs,
}

fn lay_on(host: OwnedFd, profile: RootfsProfile) -> Result<(NewRoot, StandardMounts), StepError> {
    let devices = dev::open_devices(&host)?;
    let mut root = NewRoot::mount(host, profile.base_mount)?;
    let masks = Masks::make(&root)?;
    let null = dev::mount(&mut root, &devices, profile.temp_bytes)?;
    let procfs = Procfs::mount(&root, &null)?;
    Ok((root, StandardMounts { masks, null, procfs }))
}
