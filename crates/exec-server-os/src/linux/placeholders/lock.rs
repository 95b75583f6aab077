//! Locks on an open file that the kernel gives back when it is closed, however its owner ends.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// What a lock allows others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// To have the same.
    Shared,
    /// Nothing.
    Exclusive,
    /// Everything: gives up what is held.
    None,
}

/// Waits for a lock.
pub fn wait_for(file: &File, kind: Kind) -> io::Result<()> {
    loop {
        match set(file, kind, libc::F_OFD_SETLKW) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

/// Takes or changes a lock; false if others have one that forbids it, and then nothing has changed.
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
    lock.l_type = kind.try_into().expect("it is small");
    // SAFETY: the descriptor is open, and the call only reads the live local.
    super::super::check(unsafe { libc::fcntl(file.as_raw_fd(), command, &raw const lock) })?;
    Ok(())
}
