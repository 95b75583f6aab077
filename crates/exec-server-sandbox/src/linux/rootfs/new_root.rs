//! The new root of the sandbox: mounted over the host's, filled, sealed, and entered.
//!
//! All mounts are made while it is attached, because kernels before 6.15 refuse to mount in a detached tree.

use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags, fstat, mkdirat, openat, symlinkat};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;

use super::mounts::{self, Below, FROZEN, HERE, NO_PROGRAMS, TAME};
use super::old_root::OldRoot;
use super::plan::BaseMount;
use super::walk;
use crate::linux::step::{Step, StepError};

/// Mount points and links need little space, and only this code writes there.
const SCAFFOLD_BYTES: u64 = 1 << 20;
const SCAFFOLD_NAMES: u64 = 1 << 20;

pub struct NewRoot {
    host: OwnedFd,
    root: OwnedFd,
    /// Writable during the set-up, read-only afterwards.
    scaffolds: Vec<OwnedFd>,
    /// The file systems in which names may be created; all others belong to the host.
    ours: Vec<u64>,
}

impl NewRoot {
    /// Mounts the base over the host's root.
    pub fn mount(host: OwnedFd, base_mount: BaseMount) -> Result<Self, StepError> {
        let root = match base_mount {
            BaseMount::Scaffold | BaseMount::Private => {
                mounts::memory("0755", SCAFFOLD_BYTES, SCAFFOLD_NAMES, NO_PROGRAMS)
                    .step("make an empty root")?
            }
            BaseMount::ReadOnly | BaseMount::Writable => {
                let attributes = if base_mount == BaseMount::Writable { TAME } else { FROZEN };
                let root = mounts::copy(&host).step("copy the root")?;
                mounts::restrict(&root, attributes, Below::Included).step("restrict the root")?;
                root
            }
        };
        mounts::attach(&root, &host).step("mount the root")?;
        let mut new = Self { host, root, scaffolds: Vec::new(), ours: Vec::new() };
        if base_mount == BaseMount::Scaffold {
            let root = new.root.try_clone().step("keep the root")?;
            new.add_scaffold(root).step("keep the root")?;
        }
        Ok(new)
    }

    /// The root of the host, which this one is mounted over.
    pub fn host(&self) -> &OwnedFd {
        &self.host
    }

    /// Unmounts everything again and returns the host's root; waits for the kernel.
    pub fn take_down(self) -> Result<OwnedFd, StepError> {
        const STEP: &str = "take the root down";
        rustix::process::fchdir(self.root.as_fd()).step(STEP)?;
        rustix::mount::unmount(".", UnmountFlags::DETACH).step(STEP)?;
        rustix::process::fchdir(self.host.as_fd()).step(STEP)?;
        Ok(self.host)
    }

    /// Opens a path on the host without following links.
    pub fn find_on_host(&self, path: &Path, flags: OFlags) -> rustix::io::Result<OwnedFd> {
        mounts::find(&self.host, path, flags)
    }

    /// Opens a path in the new root without following links.
    pub fn find(&self, path: &Path, flags: OFlags) -> rustix::io::Result<OwnedFd> {
        mounts::find(&self.root, path, flags)
    }

    /// Allows creating names in this file system until the root is sealed.
    pub fn add_scaffold(&mut self, mount: OwnedFd) -> rustix::io::Result<()> {
        self.may_make_names_in(&mount)?;
        self.scaffolds.push(mount);
        Ok(())
    }

    /// Allows creating names in this file system, which stays writable.
    pub fn may_make_names_in(&mut self, mount: &OwnedFd) -> rustix::io::Result<()> {
        self.ours.push(walk::identity(mount)?.0);
        Ok(())
    }

    /// Opens a directory in the new root; creates it and its parents if they are missing.
    pub fn make_directory(&self, path: &Path) -> rustix::io::Result<OwnedFd> {
        let mut dir = openat(&self.root, ".", HERE | OFlags::DIRECTORY, Mode::empty())?;
        for name in walk::names(path).map_err(|_| Errno::INVAL)? {
            let open = || openat(&dir, name, HERE | OFlags::DIRECTORY, Mode::empty());
            dir = match open() {
                Err(Errno::NOENT) => {
                    let mode = fstat(&dir)?.st_mode & 0o755;
                    self.check_ours(&dir)?;
                    mkdirat(&dir, name, Mode::from_raw_mode(mode))?;
                    open()?
                }
                opened => opened?,
            };
        }
        Ok(dir)
    }

    /// Opens an empty file in the new root; creates it if it is missing.
    pub fn make_file(&self, path: &Path) -> rustix::io::Result<OwnedFd> {
        let (dir, name) = self.make_parent(path)?;
        if let Err(Errno::NOENT) = openat(&dir, name, HERE, Mode::empty()) {
            self.check_ours(&dir)?;
            make_file(&dir, name, 0o444)?;
        }
        openat(&dir, name, HERE, Mode::empty())
    }

    /// Creates a link in the new root; keeps an existing one.
    pub fn make_link(&self, path: &Path, text: &Path) -> rustix::io::Result<()> {
        let (dir, name) = self.make_parent(path)?;
        self.check_ours(&dir)?;
        match symlinkat(text, &dir, name) {
            Err(Errno::EXIST) => Ok(()),
            made => made,
        }
    }

    fn make_parent<'a>(&self, path: &'a Path) -> rustix::io::Result<(OwnedFd, &'a OsStr)> {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(Errno::INVAL);
        };
        Ok((self.make_directory(parent)?, name))
    }

    /// Refuses to create names in a file system of the host.
    fn check_ours(&self, dir: &OwnedFd) -> rustix::io::Result<()> {
        if self.ours.contains(&walk::identity(dir)?.0) { Ok(()) } else { Err(Errno::STALE) }
    }

    /// Makes all scaffolds read-only and enters the new root; the old root is mounted over it.
    pub fn seal_and_enter(self) -> Result<OldRoot, StepError> {
        for scaffold in &self.scaffolds {
            mounts::restrict(scaffold, FROZEN, Below::Left).step("seal the root")?;
        }
        rustix::process::fchdir(self.root.as_fd()).step("enter the new root")?;
        rustix::process::pivot_root(".", ".").step("exchange the roots")?;
        rustix::process::chdir("/").step("enter the new root")?;
        OldRoot::new()
    }
}

pub fn make_file(dir: impl AsFd, name: &OsStr, mode: u32) -> rustix::io::Result<()> {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(dir, name, flags, Mode::from_raw_mode(mode)).map(drop)
}
