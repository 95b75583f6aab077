//! Per-child cgroups (version 2): resource limits and reliable kill of a process tree.
//!
//! ```text
//! DIR (--cgroup, or delegated to the server)
//!   ├─ exec-server-PID-own   the server and its guardian, if they were in DIR: only a leaf may have members
//!   ├─ exec-server-PID-1     one per child, limited as its start asked
//!   └─ exec-server-PID-2 …
//! ```
//!
//! | module | purpose |
//! |---|---|
//! | `controllers` | detects and enables controllers |
//! | [`remains`] | removes cgroup directories, including those of a killed server |
//! | [`probe`] | report for `exec-server doctor` |

mod controllers;
pub mod probe;
pub mod remains;

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use super::temp_registry::TempEntry;
use crate::limits::{CgroupLimits, Controllers};
use crate::tree_tag::TreeTag;

/// The parent cgroup, in which every child gets its own cgroup.
#[derive(Debug)]
pub struct CgroupParent {
    path: PathBuf,
    controllers: Controllers,
    remains: Remains,
}

/// Cgroups that were dropped while they still had members.
type Remains = Arc<Mutex<Vec<PathBuf>>>;

impl CgroupParent {
    /// Uses the cgroup at `path`, in which the server must be allowed to create children.
    pub fn open(path: &Path) -> io::Result<Self> {
        let note = TempEntry::of_cgroup(path);
        let parent = Self::divide(path)?;
        // The registration must last until this process exits: a daemon may keep its cgroup populated until then.
        std::mem::forget(note);
        Ok(parent)
    }

    fn divide(path: &Path) -> io::Result<Self> {
        try_dividing(path)?;
        remains::sweep(path);
        let controllers = controllers::switch_on(path);
        Ok(Self { path: path.to_owned(), controllers, remains: Arc::default() })
    }

    /// The server's own cgroup, if the parent of the server delegated it.
    pub fn delegated() -> Option<Self> {
        let path = find_delegated()?;
        match Self::open(&path) {
            Ok(parent) => Some(parent),
            Err(error) => {
                tracing::warn!(%error, path = %path.display(), "could not use the delegated cgroup");
                None
            }
        }
    }

    /// The controllers that are enabled for children.
    pub fn controllers(&self) -> Controllers {
        self.controllers
    }

    /// Removes dropped cgroups whose last member has exited since.
    pub fn sweep(&self) {
        sweep(&self.remains);
    }

    pub(super) fn make_child(&self, tag: TreeTag, limits: &CgroupLimits) -> io::Result<Cgroup> {
        let path = self.path.join(remains::child_name(tag.child()));
        fs::create_dir(&path)?;
        // From here on, dropping the value removes the directory on failure.
        let mut cgroup = Cgroup { path, procs: None, remains: self.remains.clone() };
        cgroup.limit(limits)?;
        let procs = OpenOptions::new().write(true).open(cgroup.path.join("cgroup.procs"))?;
        cgroup.procs = Some(procs);
        Ok(cgroup)
    }
}

fn try_dividing(path: &Path) -> io::Result<()> {
    if !path.join("cgroup.procs").exists() || !path.join("cgroup.controllers").exists() {
        let reason = format!("{} is not a cgroup (version 2) directory", path.display());
        return Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
    }
    let probe = path.join(format!("exec-server-{}-probe", std::process::id()));
    fs::create_dir(&probe)?;
    let can_kill = probe.join("cgroup.kill").exists();
    fs::remove_dir(&probe)?;
    if !can_kill {
        let reason = "this kernel cannot kill a cgroup (it needs Linux 5.14)";
        return Err(io::Error::new(io::ErrorKind::Unsupported, reason));
    }
    Ok(())
}

/// The cgroup of this process, if it has the delegation xattr that systemd sets.
fn find_delegated() -> Option<PathBuf> {
    let own = own_group().filter(|own| !own.is_empty())?;
    let path = mount_point()?.join(own);
    let mut value = [0; 8];
    let is_marked = ["user.delegate", "trusted.delegate"].into_iter().any(|name| {
        rustix::fs::getxattr(&path, name, &mut value).is_ok_and(|len| value[..len] == *b"1")
    });
    is_marked.then_some(path)
}

/// The cgroup of this process, relative to the mount point.
pub(super) fn own_group() -> Option<String> {
    let own = fs::read_to_string("/proc/self/cgroup").ok()?;
    own.lines().find_map(|line| line.strip_prefix("0::/")).map(str::to_owned)
}

pub(super) fn mount_point() -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mounts").ok()?;
    mounts.lines().find_map(|line| {
        let mut fields = line.split(' ');
        let place = fields.nth(1)?;
        (fields.next()? == "cgroup2").then(|| PathBuf::from(place))
    })
}

/// The cgroup of one child; removed on drop, or by a later sweep if it still has members.
#[derive(Debug)]
pub struct Cgroup {
    path: PathBuf,
    procs: Option<File>,
    remains: Remains,
}

impl Cgroup {
    /// `cgroup.procs`, opened for writing.
    pub fn procs(&self) -> BorrowedFd<'_> {
        self.procs.as_ref().expect("make_child opened it").as_fd()
    }

    fn limit(&self, limits: &CgroupLimits) -> io::Result<()> {
        /// In microseconds; unused time does not carry over to the next period.
        const PERIOD: u64 = 100_000;
        let set = |file: &str, value: String| fs::write(self.path.join(file), value);
        if let Some(bytes) = limits.memory {
            set("memory.max", bytes.to_string())?;
            // A kernel without swap or without group kills does not have these files.
            set("memory.swap.max", "0".to_owned()).or_else(ignore_missing)?;
            set("memory.oom.group", "1".to_owned()).or_else(ignore_missing)?;
        }
        if let Some(percent) = limits.cpu_percent {
            set("cpu.max", format!("{} {PERIOD}", percent * PERIOD / 100))?;
        }
        if let Some(pids) = limits.pids {
            set("pids.max", pids.to_string())?;
        }
        Ok(())
    }

    /// Kills all members with one write.
    pub(super) fn kill(&self) {
        let killed = fs::write(self.path.join("cgroup.kill"), "1").or_else(ignore_missing);
        if let Err(error) = killed {
            tracing::warn!(%error, "could not kill a cgroup");
        }
    }

    /// Number of member processes.
    pub(super) fn population(&self) -> usize {
        fs::read_to_string(self.path.join("cgroup.procs")).map_or(0, |procs| procs.lines().count())
    }

    /// Whether the OOM killer killed a member; `None` if the kernel does not count this here.
    pub(super) fn had_oom_kill(&self) -> Option<bool> {
        let events = fs::read_to_string(self.path.join("memory.events")).ok()?;
        let count = events.lines().find_map(|line| line.strip_prefix("oom_kill "))?;
        Some(count.trim() != "0")
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let path = std::mem::take(&mut self.path);
        self.remains.lock().expect("no holder panics").push(path);
        sweep(&self.remains);
    }
}

fn sweep(remains: &Remains) {
    remains.lock().expect("no holder panics").retain(|path| !remains::remove(path));
}

fn ignore_missing(error: io::Error) -> io::Result<()> {
    if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) }
}

#[cfg(test)]
mod tests;
