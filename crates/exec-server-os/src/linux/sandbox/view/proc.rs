//! A `/proc` of the sandbox's own pid namespace, in which nothing but the processes can be written.
//!
//! The kernel lets root write to much of it without any capability: it compares with the root of the host.

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
use crate::linux::sandbox::step::{Step, StepError};

/// What nobody needs and everybody could read.
const HIDDEN: [&CStr; 7] =
    [c"kcore", c"key-users", c"keys", c"kmsg", c"latency_stats", c"sched_debug", c"timer_list"];

/// What answers a write with an error instead of forgetting it.
const READ_ONLY: [&CStr; 2] = [c"mtrr", c"sysrq-trigger"];

/// The times of access that the host's procfs may have; the kernel insists on the same for a new one.
const ACCESS_TIMES: [MountAttrFlags; 3] = [
    MountAttrFlags::empty(),
    MountAttrFlags::MOUNT_ATTR_NOATIME,
    MountAttrFlags::MOUNT_ATTR_STRICTATIME,
];

/// What programs read first, where there can be no procfs.
const STILL_LIFE: [&str; 11] = [
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

const STILL_LIFE_BYTES: u64 = 4 << 20;

/// A `/proc` that is mounted, and what of it was judged.
pub struct Procfs {
    /// Missing where there is only a substitute.
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
            // A container's procfs with something mounted over parts of it: the kernel gives us no other, and the one
            // that is there shows processes outside.
            Err(_) => {
                let still = mounts::memory("0555", STILL_LIFE_BYTES, 64, NO_PROGRAMS)
                    .step("make a substitute for /proc")?;
                mounts::attach(&still, target).step("mount a substitute for /proc")?;
                draw(root, &still).step("fill a substitute for /proc")?;
                mounts::restrict(&still, FROZEN, Below::Left)
                    .step("seal a substitute for /proc")?;
                Ok(Self { procfs: None, judged: BTreeSet::new() })
            }
        }
    }

    /// Covers whatever is not about a process and was not there before. The list is made from what is there, so that
    /// files of newer kernels are covered, too.
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

/// What is done with each name in `/proc` that was there when this process, or the one that it was copied from, looked.
///
/// To ask for every name again takes long, because the kernel has to make a file for each.
static KNOWN: OnceLock<BTreeMap<CString, Option<Cover>>> = OnceLock::new();

/// Looks at the names in the host's `/proc` once, for this process and all that are copied from it.
pub fn remember_names() {
    // Without it every name is looked at every time.
    if let Ok(known) = known_names() {
        let _ = KNOWN.set(known);
    }
}

fn known_names() -> io::Result<BTreeMap<CString, Option<Cover>>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let procfs = openat(CWD, "/proc", flags, Mode::empty())?;
    let device = walk::identity(&procfs)?.0;
    let mut known = BTreeMap::new();
    for name in names(&procfs)? {
        match statat(&procfs, &name, AtFlags::SYMLINK_NOFOLLOW) {
            // What is mounted over a name says nothing about it.
            Ok(stat) if stat.st_dev == device => {
                let cover = judge(&name, stat.st_mode);
                known.insert(name, cover);
            }
            _ => {}
        }
    }
    Ok(known)
}

/// The names in a procfs that are not about a process.
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

/// Judges a name and covers what is there; false if nothing is.
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
        Cover::Null => mounts::copy(null)?,
        Cover::Itself => {
            let copy = mounts::copy(&target)?;
            mounts::restrict(&copy, FROZEN, Below::Included)?;
            copy
        }
    };
    mounts::attach(&copy, &target)?;
    Ok(true)
}

#[derive(Debug, Clone, Copy)]
enum Cover {
    Null,
    /// Read-only.
    Itself,
}

fn judge(name: &CStr, mode: u32) -> Option<Cover> {
    let is_for_root_alone = mode & 0o077 == 0;
    match FileType::from_raw_mode(mode) {
        // `self` and what leads through it.
        FileType::Symlink => None,
        FileType::RegularFile if READ_ONLY.contains(&name) => Some(Cover::Itself),
        FileType::RegularFile if HIDDEN.contains(&name) || is_for_root_alone => Some(Cover::Null),
        FileType::RegularFile if mode & 0o222 == 0 => None,
        _ => Some(Cover::Itself),
    }
}

/// Copies what programs read first.
fn draw(root: &NewRoot, still: &OwnedFd) -> io::Result<()> {
    for path in STILL_LIFE {
        let Ok(original) = root.find_on_host(&Path::new("/proc").join(path), OFlags::RDONLY) else {
            continue;
        };
        let mut content = Vec::new();
        std::fs::File::from(original).take(STILL_LIFE_BYTES / 16).read_to_end(&mut content)?;
        let (dir, name) = make_parent(still, Path::new(path))?;
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
        let file = openat(&dir, name, flags, Mode::from_raw_mode(0o444))?;
        std::fs::File::from(file).write_all(&content)?;
    }
    Ok(())
}

fn make_parent<'a>(still: &OwnedFd, path: &'a Path) -> io::Result<(OwnedFd, &'a OsStr)> {
    let mut dir = still.as_fd().try_clone_to_owned()?;
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
