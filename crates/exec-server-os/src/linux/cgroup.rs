//! Groups of processes that the kernel keeps together, whatever they do: cgroup version 2.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use super::process_tree::TreeTag;

/// A cgroup of ours in which every child gets one of its own.
#[derive(Debug)]
pub struct CgroupParent {
    path: PathBuf,
}

impl CgroupParent {
    /// Uses the cgroup at `path`, which must be ours to divide.
    pub fn open(path: &Path) -> io::Result<Self> {
        if !path.join("cgroup.procs").exists() {
            let reason = format!("{} is not a cgroup (version 2) directory", path.display());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
        }
        let probe = path.join(format!("exec-server-probe-{}", std::process::id()));
        fs::create_dir(&probe)?;
        let can_kill = probe.join("cgroup.kill").exists();
        fs::remove_dir(&probe)?;
        if !can_kill {
            let reason = "this kernel cannot kill a cgroup (it needs Linux 5.14)";
            return Err(io::Error::new(io::ErrorKind::Unsupported, reason));
        }
        Ok(Self { path: path.to_owned() })
    }

    /// The server's own cgroup, if whoever started the server delegated it.
    pub fn delegated() -> Option<Self> {
        let own = fs::read_to_string("/proc/self/cgroup").ok()?;
        let own = own.lines().find_map(|line| line.strip_prefix("0::/"))?.to_owned();
        if own.is_empty() {
            return None;
        }
        let path = mount_point()?.join(own);
        let mut value = [0; 8];
        let marked = ["user.delegate", "trusted.delegate"].into_iter().any(|name| {
            rustix::fs::getxattr(&path, name, &mut value).is_ok_and(|len| value[..len] == *b"1")
        });
        marked.then(|| Self::open(&path).ok()).flatten()
    }

    pub(super) fn make_child(&self, tag: TreeTag) -> io::Result<Cgroup> {
        let path = self.path.join(format!("exec-server-{}-{}", std::process::id(), tag.child()));
        fs::create_dir(&path)?;
        match OpenOptions::new().write(true).open(path.join("cgroup.procs")) {
            Ok(procs) => Ok(Cgroup { path, procs }),
            Err(error) => {
                let _ = fs::remove_dir(&path);
                Err(error)
            }
        }
    }
}

fn mount_point() -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mounts").ok()?;
    mounts.lines().find_map(|line| {
        let mut fields = line.split(' ');
        let place = fields.nth(1)?;
        (fields.next()? == "cgroup2").then(|| PathBuf::from(place))
    })
}

/// The cgroup of one child; removed with its last handle, once it is empty.
#[derive(Debug)]
pub struct Cgroup {
    path: PathBuf,
    procs: File,
}

impl Cgroup {
    pub(super) fn procs(&self) -> BorrowedFd<'_> {
        self.procs.as_fd()
    }

    /// Kills every member at once.
    pub(super) fn kill(&self) {
        if let Err(error) = fs::write(self.path.join("cgroup.kill"), "1") {
            tracing::warn!(%error, "could not kill a cgroup");
        }
    }

    /// How many members are alive.
    pub(super) fn population(&self) -> usize {
        fs::read_to_string(self.path.join("cgroup.procs")).map_or(0, |procs| procs.lines().count())
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir(&self.path) {
            tracing::debug!(%error, "a cgroup is still in use");
        }
    }
}
