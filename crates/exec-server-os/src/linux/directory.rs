//! A directory that was opened without following links.

use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, openat, openat2, unlinkat};
use rustix::io::Errno;

/// An open directory, so that operations on it do not depend on its path any more.
#[derive(Debug)]
pub struct Directory {
    /// The open directory.
    pub fd: OwnedFd,
    /// The path that it was opened by.
    pub path: PathBuf,
    identity: (u64, u64),
}

impl Directory {
    /// Opens the directory at an absolute path; `None` if it is missing or no directory.
    ///
    /// Symbolic links give `ELOOP`, because a sandbox may have created one since the path was checked.
    pub fn open(path: &Path) -> io::Result<Option<Self>> {
        let relative = path.strip_prefix("/").map_err(|_| io::ErrorKind::InvalidInput)?;
        let relative = if relative.as_os_str().is_empty() { Path::new(".") } else { relative };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let resolve =
            ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let root = openat(CWD, "/", flags, Mode::empty())?;
        let fd = loop {
            match openat2(&root, relative, flags, Mode::empty(), resolve) {
                Ok(fd) => break fd,
                Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
                // EAGAIN: a concurrent rename kept the kernel from proving that the path stays beneath the root.
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        };
        let stat = rustix::fs::fstat(&fd)?;
        Ok(Some(Self { fd, path: path.to_owned(), identity: (stat.st_dev, stat.st_ino) }))
    }

    /// Device and inode; unique while the directory is open.
    pub fn identity(&self) -> (u64, u64) {
        self.identity
    }

    /// Removes an empty subdirectory.
    pub fn remove_directory(&self, name: &OsStr) -> io::Result<()> {
        Ok(unlinkat(&self.fd, name, AtFlags::REMOVEDIR)?)
    }
}
