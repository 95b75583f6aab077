//! Opens the files and directories of a searched tree; no link in the tree is followed.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat, openat2};
use rustix::io::Errno;

/// A pipe or device of that name does not block the open.
pub const FOR_READING: OFlags =
    OFlags::RDONLY.union(OFlags::NONBLOCK).union(OFlags::NOCTTY).union(OFlags::CLOEXEC);

/// Needs no permission to read.
pub const ONLY_PATH: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);

/// Opens the directory that a search starts at, which may be a link.
pub fn open_root(root: &Path) -> io::Result<OwnedFd> {
    Ok(openat(CWD, root, FOR_READING | OFlags::DIRECTORY, Mode::empty())?)
}

/// Opens a file that the request names itself.
pub fn open_file(path: &Path) -> io::Result<OwnedFd> {
    Ok(openat(CWD, path, FOR_READING, Mode::empty())?)
}

/// Opens an entry of a directory.
pub fn open_in(
    directory: impl AsFd,
    name: impl rustix::path::Arg,
    kind: OFlags,
) -> io::Result<OwnedFd> {
    Ok(openat(directory, name, FOR_READING | OFlags::NOFOLLOW | kind, Mode::empty())?)
}

/// Opens a path below a directory; a link anywhere on the way is refused, also one that has just replaced a directory.
pub fn open_below(root: &OwnedFd, below: &Path, flags: OFlags) -> io::Result<OwnedFd> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match openat2(root, below, flags, Mode::empty(), resolve) {
        // Not known to old kernels and old container runtimes.
        Err(Errno::NOSYS | Errno::PERM) => Ok(openat(root, below, flags, Mode::empty())?),
        opened => Ok(opened?),
    }
}
