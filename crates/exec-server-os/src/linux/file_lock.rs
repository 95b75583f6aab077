//! Open-file-description locks, which the kernel releases when the file is closed or its process exits.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// Mode of a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Compatible with other shared locks.
    Shared,
    /// Compatible with no other lock.
    Exclusive,
    /// Releases the lock.
    None,
}

/// Takes a lock, waiting for conflicting holders.
pub fn wait_for(file: &File, kind: Kind) -> io::Result<()> {
    loop {
        match set(file, kind, libc::F_OFD_SETLKW) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

/// Takes, converts or releases a lock; on a conflict it returns false and keeps the current lock.
pub fn try_to(file: &File, kind: Kind) -> io::Result<bool> {
    match set(file, kind, libc::F_OFD_SETLK) {
        Ok(()) => Ok(true),
        Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => {
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

fn set(file: &File, kind: Kind, command: libc::c_int) -> io::Result<()> {
    let kind = match kind {
        Kind::Shared => libc::F_RDLCK,
        Kind::Exclusive => libc::F_WRLCK,
        Kind::None => libc::F_UNLCK,
    };
    // SAFETY: a struct of numbers; zeros mean the whole file, and no process.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind.try_into().expect("lock types fit into a short");
    // SAFETY: the descriptor is open, and the call only reads the live local.
    super::check(unsafe { libc::fcntl(file.as_raw_fd(), command, &raw const lock) })?;
    Ok(())
}
