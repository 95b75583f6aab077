//! The private `/dev`: harmless devices, private terminals, private shared memory.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags, fstat, makedev, mkdirat, openat, symlinkat};
use rustix::io::Errno;
use rustix::mount::MountAttrFlags;

use super::mounts::{self, Below, FROZEN, HERE, NO_PROGRAMS};
use super::new_root::{NewRoot, make_file};
use crate::linux::step::{Step, StepError};

const DEVICES: [(&str, u32, u32); 6] = [
    ("null", 1, 3),
    ("zero", 1, 5),
    ("full", 1, 7),
    ("random", 1, 8),
    ("urandom", 1, 9),
    ("tty", 5, 0),
];

const LINKS: [(&str, &str); 5] = [
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
    ("ptmx", "pts/ptmx"),
];

/// A device is usable through a read-only mount; its owner, mode and times cannot be changed.
pub const DEVICE: MountAttrFlags = MountAttrFlags::MOUNT_ATTR_RDONLY
    .union(MountAttrFlags::MOUNT_ATTR_NOSUID)
    .union(MountAttrFlags::MOUNT_ATTR_NOEXEC);

/// The terminals' modes belong to the sandbox.
const TERMINALS: MountAttrFlags =
    MountAttrFlags::MOUNT_ATTR_NOSUID.union(MountAttrFlags::MOUNT_ATTR_NOEXEC);

/// The bytes per inode that derive the inode limit from the size limit.
const BYTES_PER_NAME: u64 = 4096;

/// Opens the host's devices; missing ones are left out.
pub fn open_devices(host: &OwnedFd) -> Result<Vec<(&'static str, OwnedFd)>, StepError> {
    let mut devices = Vec::new();
    for (name, major, minor) in DEVICES {
        let device = match mounts::find(host, &Path::new("/dev").join(name), HERE) {
            Err(Errno::NOENT) if name != "null" => continue,
            found => found.step("open a device")?,
        };
        let stat = fstat(&device).step("open a device")?;
        let is_device = FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice;
        if !is_device || stat.st_rdev != makedev(major, minor) {
            return Err(Errno::NODEV).step("open a device");
        }
        devices.push((name, device));
    }
    Ok(devices)
}

/// Mounts `/dev` and returns its `null`.
pub fn mount(
    root: &mut NewRoot,
    devices: &[(&str, OwnedFd)],
    temp_bytes: u64,
) -> Result<OwnedFd, StepError> {
    let target = root.make_directory(Path::new("/dev")).step("find /dev")?;
    let dev = mounts::memory("0755", 64 << 10, 64, NO_PROGRAMS).step("make /dev")?;
    mounts::attach(&dev, target).step("mount /dev")?;
    for (name, device) in devices {
        add_device(&dev, name, device).step("add a device")?;
    }
    for (name, text) in LINKS {
        symlinkat(text, &dev, name).step("add a link to /dev")?;
    }
    let options = [("ptmxmode", "0666"), ("mode", "0620")];
    let terminals = mounts::file_system("devpts", &options, TERMINALS).step("make /dev/pts")?;
    attach_directory(&dev, "pts", &terminals).step("mount /dev/pts")?;
    let names = (temp_bytes / BYTES_PER_NAME).max(64);
    // tmpfs treats a size of 0 as unlimited.
    let shared = mounts::memory(
        "1777",
        temp_bytes.max(BYTES_PER_NAME),
        names,
        MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV,
    )
    .step("make /dev/shm")?;
    attach_directory(&dev, "shm", &shared).step("mount /dev/shm")?;
    root.may_make_names_in(&shared).step("mount /dev/shm")?;
    mounts::restrict(&dev, FROZEN, Below::Left).step("seal /dev")?;
    openat(&dev, "null", HERE, Mode::empty()).step("open /dev/null")
}

fn add_device(dev: &OwnedFd, name: &str, device: &OwnedFd) -> std::io::Result<()> {
    make_file(dev, OsStr::new(name), 0o444)?;
    let copy = mounts::copy(device)?;
    mounts::restrict(&copy, DEVICE, Below::Included)?;
    Ok(mounts::attach(&copy, openat(dev, name, HERE, Mode::empty())?)?)
}

fn attach_directory(dev: &OwnedFd, name: &str, mount: &OwnedFd) -> rustix::io::Result<()> {
    mkdirat(dev, name, Mode::from_raw_mode(0o755))?;
    mounts::attach(mount, openat(dev, name, HERE | OFlags::DIRECTORY, Mode::empty())?)
}
