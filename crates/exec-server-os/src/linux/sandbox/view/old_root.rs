//! The host's root on its way out of the sandbox.
//!
//! It is gone at once, but whoever unmounts it has to wait until the kernel is sure that nobody looks at it any more,
//! longer than for everything else in a sandboxed start. So pid 1 does it while the command prepares itself, which only
//! looks whether it is gone.

use std::io;

use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use rustix::mount::{UnmountFlags, unmount};

use crate::linux::sandbox::step::{Step, StepError};

/// The root of the host, which lies over that of the sandbox until it is unmounted.
#[derive(Debug)]
pub struct OldRoot {
    _entered: (),
}

const STEP: &str = "let go of the old root";

/// Where it is, seen from the new root: what is mounted over that is found by leaving it.
const OVER_THE_ROOT: &std::ffi::CStr = c"/..";

impl OldRoot {
    /// Right after the roots were exchanged.
    pub fn new() -> Result<Self, StepError> {
        // Should it not be where it is looked for, nobody could tell when it is gone.
        if !is_there().step(STEP)? {
            return Err(io::Error::from(io::ErrorKind::NotFound)).step(STEP);
        }
        Ok(Self { _entered: () })
    }

    /// Unmounts it, and waits for the kernel. Touches nothing but the stack.
    pub fn unmount(&self) -> rustix::io::Result<()> {
        unmount(OVER_THE_ROOT, UnmountFlags::DETACH)
    }

    /// Waits until it is gone, so that nothing of the host can be reached by any path; gives up when `has_failed` says
    /// that whoever unmounts it cannot.
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

/// Which mount a path leads to.
fn mount_at(path: &std::ffi::CStr) -> io::Result<u64> {
    let found = statx(CWD, path, AtFlags::empty(), StatxFlags::MNT_ID)?;
    if found.stx_mask & StatxFlags::MNT_ID.bits() == 0 {
        return Err(io::ErrorKind::Unsupported.into());
    }
    Ok(found.stx_mnt_id)
}
