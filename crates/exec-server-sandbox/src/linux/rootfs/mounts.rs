//! The calls that make mounts; all take descriptors.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat, openat2};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountPropagationFlags, MoveMountFlags,
    OpenTreeFlags, fsconfig_create, fsconfig_set_string, fsmount, fsopen, move_mount, open_tree,
};

/// For mounts of the host: no setuid, no devices.
pub const TAME: MountAttrFlags =
    MountAttrFlags::MOUNT_ATTR_NOSUID.union(MountAttrFlags::MOUNT_ATTR_NODEV);

/// The same, read-only.
pub const FROZEN: MountAttrFlags = TAME.union(MountAttrFlags::MOUNT_ATTR_RDONLY);

/// For file systems that hold no programs.
pub const NO_PROGRAMS: MountAttrFlags = TAME.union(MountAttrFlags::MOUNT_ATTR_NOEXEC);

/// Opens a path without read permission.
pub const HERE: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Whether submounts are included.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Below {
    Included,
    Left,
}

pub fn open_host_root() -> rustix::io::Result<OwnedFd> {
    openat(CWD, "/", HERE | OFlags::DIRECTORY, Mode::empty())
}

/// Opens an absolute path below a root; a link on the way is an error, a final link is opened itself.
pub fn find(root: &OwnedFd, path: &Path, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    let relative = path.strip_prefix("/").map_err(|_| Errno::INVAL)?;
    let relative = if relative.as_os_str().is_empty() { Path::new(".") } else { relative };
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    loop {
        match openat2(root, relative, flags | OFlags::CLOEXEC, Mode::empty(), resolve) {
            // A concurrent rename kept the kernel from checking that the path stays beneath the root.
            Err(Errno::AGAIN | Errno::INTR) => {}
            found => return found,
        }
    }
}

/// Makes all mounts private, so that mounts do not propagate between sandbox and host.
pub fn stop_propagation() -> io::Result<()> {
    let attributes = MountAttributes {
        propagation: MountPropagationFlags::PRIVATE.bits().into(),
        ..MountAttributes::default()
    };
    mount_setattr(CWD, c"/", Below::Included, &attributes)
}

/// Clones the mount tree at a descriptor, detached. Submounts are included: the kernel refuses to leave out those that
/// hide files.
pub fn copy(from: impl AsFd) -> rustix::io::Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH
        | OpenTreeFlags::AT_RECURSIVE;
    open_tree(from, c"", flags)
}

/// Adds restrictions to a mount.
pub fn restrict(mount: impl AsFd, attributes: MountAttrFlags, below: Below) -> io::Result<()> {
    let attributes = MountAttributes { set: attributes.bits().into(), ..Default::default() };
    mount_setattr(mount.as_fd(), c"", below, &attributes)
}

/// Attaches a detached mount over the target.
pub fn attach(mount: &OwnedFd, target: impl AsFd) -> rustix::io::Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(mount, c"", target, c"", flags)
}

/// A new file system, detached.
pub fn file_system(
    kind: &str,
    options: &[(&str, &str)],
    attributes: MountAttrFlags,
) -> rustix::io::Result<OwnedFd> {
    let context = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
    for (key, value) in options {
        fsconfig_set_string(context.as_fd(), *key, *value)?;
    }
    fsconfig_create(context.as_fd())?;
    fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)
}

/// A tmpfs. Its inodes are limited as well, because each takes kernel memory.
pub fn memory(
    mode: &str,
    bytes: u64,
    names: u64,
    attributes: MountAttrFlags,
) -> rustix::io::Result<OwnedFd> {
    let (bytes, names) = (bytes.to_string(), names.to_string());
    file_system("tmpfs", &[("mode", mode), ("size", &bytes), ("nr_inodes", &names)], attributes)
}

/// `struct mount_attr` of the kernel.
#[repr(C)]
#[derive(Default)]
struct MountAttributes {
    set: u64,
    clear: u64,
    propagation: u64,
    user_namespace: u64,
}

fn mount_setattr(
    at: BorrowedFd,
    path: &std::ffi::CStr,
    below: Below,
    attributes: &MountAttributes,
) -> io::Result<()> {
    let mut flags = libc::AT_EMPTY_PATH | libc::AT_SYMLINK_NOFOLLOW;
    if below == Below::Included {
        flags |= libc::AT_RECURSIVE;
    }
    // SAFETY: path and attributes are valid for the length of the call, and the size is that of the attributes.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            at.as_raw_fd(),
            path.as_ptr(),
            flags,
            std::ptr::from_ref(attributes),
            size_of::<MountAttributes>(),
        )
    };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
