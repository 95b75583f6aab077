//! The `/proc` of the sandbox's pid namespace, in which only the process entries are writable.
//!
//! The kernel lets the host's root user write to many other entries without any capability.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CStr, CString, OsStr};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::OnceLock;

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, openat, statat};
use rustix::io::Errno;
use rustix::mount::MountAttrFlags;

use super::mounts::{self, Below, FROZEN, HERE, NO_PROGRAMS};
use super::new_root::NewRoot;
use super::walk;
use crate::linux::step::{Step, StepError};

/// Entries that reveal data of the kernel or of other users.
const HIDDEN: [&CStr; 7] =
    [c"kcore", c"key-users", c"keys", c"kmsg", c"latency_stats", c"sched_debug", c"timer_list"];

/// Entries that must fail a write instead of discarding it.
const READ_ONLY: [&CStr; 2] = [c"mtrr", c"sysrq-trigger"];

/// The atime flags that the host's procfs may have; the kernel requires the same for a new one.
const ACCESS_TIMES: [MountAttrFlags; 3] = [
    MountAttrFlags::empty(),
    MountAttrFlags::MOUNT_ATTR_NOATIME,
    MountAttrFlags::MOUNT_ATTR_STRICTATIME,
];

/// The files of the substitute where no procfs can be mounted.
const SUBSTITUTE: [&str; 11] = [
    "cpuinfo",
    "filesystems",
    "loadavg",
    "meminfo",
    "stat",
    "sys/kernel/cap_last_cap",
    "sys/kernel/osrelease",
    "sys/kernel/ostype",
    "sys/kernel/pid_max",
    "uptime",
    "version",
];

const SUBSTITUTE_BYTES: u64 = 4 << 20;

/// A mounted `/proc` with the names that have been covered.
pub struct Procfs {
    /// `None` for the substitute.
    procfs: Option<OwnedFd>,
    judged: BTreeSet<CString>,
}

impl Procfs {
    pub fn mount(root: &NewRoot, null: &OwnedFd) -> Result<Self, StepError> {
        let target = root.make_directory(Path::new("/proc")).step("find /proc")?;
        match new_procfs() {
            Ok(procfs) => {
                mounts::attach(&procfs, target).step("mount /proc")?;
                let mut new = Self { procfs: Some(procfs), judged: BTreeSet::new() };
                new.cover_new(null).step("cover /proc")?;
                Ok(new)
            }
            // In a container with a partly masked procfs, the kernel refuses a new one, and the existing one shows outside
            // processes.
            Err(_) => {
                let substitute = mounts::memory("0555", SUBSTITUTE_BYTES, 64, NO_PROGRAMS)
                    .step("make a substitute for /proc")?;
                mounts::attach(&substitute, target).step("mount a substitute for /proc")?;
                fill_substitute(root, &substitute).step("fill a substitute for /proc")?;
                mounts::restrict(&substitute, FROZEN, Below::Left)
                    .step("seal a substitute for /proc")?;
                Ok(Self { procfs: None, judged: BTreeSet::new() })
            }
        }
    }

    /// Covers all new names that do not belong to a process. The list is read from procfs, so files of newer kernels are
    /// included.
    pub fn cover_new(&mut self, null: &OwnedFd) -> io::Result<()> {
        let Some(procfs) = &self.procfs else { return Ok(()) };
        for name in names(procfs)? {
            if !self.judged.contains(&name) && cover(procfs, &name, null)? {
                self.judged.insert(name);
            }
        }
        Ok(())
    }
}

fn new_procfs() -> rustix::io::Result<OwnedFd> {
    let mut result = Err(Errno::PERM);
    for times in ACCESS_TIMES {
        result = mounts::file_system("proc", &[], NO_PROGRAMS | times);
        if result.as_ref().err() != Some(&Errno::PERM) {
            break;
        }
    }
    result
}

/// The cover of each name in `/proc`, read once per process and inherited by its forks.
///
/// Stat of every name is slow, because the kernel creates an inode for each.
static KNOWN: OnceLock<BTreeMap<CString, Option<Mask>>> = OnceLock::new();

/// Reads the names in the host's `/proc` once, for this process and its forks.
pub fn remember_names() {
    // On failure every name is examined each time.
    if let Ok(known) = known_names() {
        let _ = KNOWN.set(known);
    }
}

fn known_names() -> io::Result<BTreeMap<CString, Option<Mask>>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let procfs = openat(CWD, "/proc", flags, Mode::empty())?;
    let device = walk::identity(&procfs)?.0;
    let mut known = BTreeMap::new();
    for name in names(&procfs)? {
        match statat(&procfs, &name, AtFlags::SYMLINK_NOFOLLOW) {
            // A file that is mounted over a name says nothing about the name.
            Ok(stat) if stat.st_dev == device => {
                let cover = judge(&name, stat.st_mode);
                known.insert(name, cover);
            }
            _ => {}
        }
    }
    Ok(known)
}

/// The names in a procfs that do not belong to a process.
fn names(procfs: &OwnedFd) -> io::Result<Vec<CString>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let list = openat(procfs, ".", flags, Mode::empty())?;
    let mut names = Vec::new();
    for entry in Dir::new(list)? {
        let name = entry?.file_name().to_owned();
        let is_process = name.to_bytes().first().is_some_and(u8::is_ascii_digit);
        if !is_process && name.as_c_str() != c"." && name.as_c_str() != c".." {
            names.push(name);
        }
    }
    Ok(names)
}

/// Covers a name if needed; false if it does not exist.
fn cover(procfs: &OwnedFd, name: &CStr, null: &OwnedFd) -> io::Result<bool> {
    let known = KNOWN.get().and_then(|known| known.get(name));
    let cover = match known {
        Some(known) => *known,
        None => match statat(procfs, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => judge(name, stat.st_mode),
            Err(Errno::NOENT) => return Ok(false),
            Err(other) => return Err(other.into()),
        },
    };
    let Some(cover) = cover else { return Ok(true) };
    let target = openat(procfs, name, HERE, Mode::empty())?;
    let copy = match cover {
        Mask::Null => mounts::copy(null)?,
        Mask::Itself => {
            let copy = mounts::copy(&target)?;
            mounts::restrict(&copy, FROZEN, Below::Included)?;
            copy
        }
    };
    mounts::attach(&copy, &target)?;
    Ok(true)
}

#[derive(Debug, Clone, Copy)]
enum Mask {
    Null,
    /// Read-only.
    Itself,
}

fn judge(name: &CStr, mode: u32) -> Option<Mask> {
    let is_for_root_alone = mode & 0o077 == 0;
    match FileType::from_raw_mode(mode) {
        // `self` and links through it.
        FileType::Symlink => None,
        FileType::RegularFile if READ_ONLY.contains(&name) => Some(Mask::Itself),
        FileType::RegularFile if HIDDEN.contains(&name) || is_for_root_alone => Some(Mask::Null),
        FileType::RegularFile if mode & 0o222 == 0 => None,
        _ => Some(Mask::Itself),
    }
}

/// Copies the files of the substitute from the host.
fn fill_substitute(root: &NewRoot, substitute: &OwnedFd) -> io::Result<()> {
    for path in SUBSTITUTE {
        let Ok(original) = root.find_on_host(&Path::new("/proc").join(path), OFlags::RDONLY) else {
            continue;
        };
        let mut content = Vec::new();
        std::fs::File::from(original).take(SUBSTITUTE_BYTES / 16).read_to_end(&mut content)?;
        let (dir, name) = make_parent(substitute, Path::new(path))?;
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
        let file = openat(&dir, name, flags, Mode::from_raw_mode(0o444))?;
        std::fs::File::from(file).write_all(&content)?;
    }
    Ok(())
}

fn make_parent<'a>(substitute: &OwnedFd, path: &'a Path) -> io::Result<(OwnedFd, &'a OsStr)> {
    let mut dir = substitute.as_fd().try_clone_to_owned()?;
    let mut names: Vec<_> = path.iter().collect();
    let last = names.pop().ok_or(Errno::INVAL)?;
    for name in names {
        match rustix::fs::mkdirat(&dir, name, Mode::from_raw_mode(0o555)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(other) => return Err(other.into()),
        }
        dir = openat(&dir, name, HERE | OFlags::DIRECTORY, Mode::empty())?;
    }
    Ok((dir, last))
}
