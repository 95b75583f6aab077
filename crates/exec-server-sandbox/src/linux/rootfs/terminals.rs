//! Reopens standard streams that are terminals of the host, so that processes inside cannot change their nodes.
//!
//! A terminal belongs to the user, and a changed mode would let others read what is typed. So each is reopened through a
//! read-only bind mount, and the original descriptor is closed.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, fcntl_getfl, openat};
use rustix::io::Errno;
use rustix::stdio::{dup2_stderr, dup2_stdin, dup2_stdout, stderr, stdin, stdout};
use rustix::termios::isatty;

use super::dev::DEVICE;
use super::mounts::{self, Below, HERE};
use super::walk;
use crate::linux::step::{Step, StepError};

/// The terminal of a container, if it has no other name there.
const CONSOLE: &str = "/dev/console";

const STEP: &str = "terminal";

/// The open flags that are kept.
const KEPT: OFlags = OFlags::ACCMODE.union(OFlags::APPEND).union(OFlags::NONBLOCK);

type Replace = fn(&OwnedFd) -> rustix::io::Result<()>;

/// Reopens standard streams that are terminals.
///
/// A stream stays as it is if its node is not found in this mount namespace or belongs to another user.
pub fn freeze(host: &OwnedFd) -> Result<(), StepError> {
    let streams: [(BorrowedFd, Replace); 3] = [
        (stdin(), |fd| dup2_stdin(fd)),
        (stdout(), |fd| dup2_stdout(fd)),
        (stderr(), |fd| dup2_stderr(fd)),
    ];
    for (stream, replace) in streams {
        if isatty(stream)
            && let Some(again) = open_again(host, stream).step(STEP)?
        {
            replace(&again).step(STEP)?;
        }
    }
    Ok(())
}

fn open_again(host: &OwnedFd, stream: BorrowedFd) -> io::Result<Option<OwnedFd>> {
    let Some(node) = find(host, stream)? else { return Ok(None) };
    let copy = mounts::copy(&node)?;
    mounts::restrict(&copy, DEVICE, Below::Included)?;
    let flags = (fcntl_getfl(stream)? & KEPT) | OFlags::NOCTTY | OFlags::CLOEXEC;
    match openat(CWD, format!("/proc/self/fd/{}", copy.as_raw_fd()), flags, Mode::empty()) {
        Ok(again) => Ok(Some(again)),
        Err(Errno::ACCESS) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

/// Finds the node of a terminal in the mounts of this namespace.
fn find(host: &OwnedFd, stream: BorrowedFd) -> io::Result<Option<OwnedFd>> {
    let identity = walk::identity(stream)?;
    let named: PathBuf = std::fs::read_link(format!("/proc/self/fd/{}", stream.as_raw_fd()))?;
    for path in [named.as_path(), Path::new(CONSOLE)] {
        if let Ok(node) = mounts::find(host, path, HERE)
            && walk::identity(&node)? == identity
        {
            return Ok(Some(node));
        }
    }
    Ok(None)
}
