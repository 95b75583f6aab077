//! The host's root after `pivot_root`, until it is unmounted.
//!
//! Unmounting takes effect at once, but the call waits for an RCU grace period, longer than the rest of a sandboxed start.
//! So pid 1 unmounts while the command prepares itself, and the command only checks that the old root is gone.

use std::io;

use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use rustix::mount::{UnmountFlags, unmount};

use crate::linux::step::{Step, StepError};

/// The host's root, mounted over that of the sandbox until it is unmounted.
#[derive(Debug)]
pub struct OldRoot {
    _entered: (),
}

const STEP: &str = "let go of the old root";

/// The path of the old root: `..` from the new root leads to the mount on top of it.
const OVER_THE_ROOT: &std::ffi::CStr = c"/..";

impl OldRoot {
    /// Call right after `pivot_root`.
    pub fn new() -> Result<Self, StepError> {
        // If it is not found here, `wait_until_gone` could not detect the unmount.
        if !is_there().step(STEP)? {
            return Err(io::Error::from(io::ErrorKind::NotFound)).step(STEP);
        }
        Ok(Self { _entered: () })
    }

    /// Unmounts it and waits for the kernel. Uses only the stack.
    pub fn unmount(&self) -> rustix::io::Result<()> {
        unmount(OVER_THE_ROOT, UnmountFlags::DETACH)
    }

    /// Waits until it is gone, so that no path leads to the host; fails if `has_failed` reports that unmounting failed.
    pub fn wait_until_gone(&self, has_failed: impl Fn() -> bool) -> Result<(), StepError> {
        while is_there().step(STEP)? {
            if has_failed() {
                return Err(io::Error::from(io::ErrorKind::ResourceBusy)).step(STEP);
            }
            std::thread::yield_now();
        }
        Ok(())
    }
}

fn is_there() -> io::Result<bool> {
    Ok(mount_at(OVER_THE_ROOT)? != mount_at(c"/")?)
}

/// The mount id of a path.
fn mount_at(path: &std::ffi::CStr) -> io::Result<u64> {
    let found = statx(CWD, path, AtFlags::empty(), StatxFlags::MNT_ID)?;
    if found.stx_mask & StatxFlags::MNT_ID.bits() == 0 {
        return Err(io::ErrorKind::Unsupported.into());
    }
    Ok(found.stx_mnt_id)
}
