//! The host's root on its way out of the sandbox.
//!
//! It is gone at once, but whoever unmounts it has to wait until the kernel is sure that nobody looks at it any more,
//! longer than for everything else in a sandboxed start. So a process of its own waits, and everybody else only looks
//! whether it is gone.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{AtFlags, CWD, StatxFlags, statx};

use crate::linux::check;
use crate::linux::child::ChildStack;
use crate::linux::sandbox::step::{Step, StepError};

/// The root of the host, which lies over that of the sandbox until it is unmounted.
#[derive(Debug)]
pub struct OldRoot {
    /// Shared with whoever unmounts it; never given back, because nobody knows when that has ended.
    has_failed: &'static AtomicBool,
}

const STEP: &str = "let go of the old root";

/// Where it is, seen from the new root: what is mounted over that is found by leaving it.
const OVER_THE_ROOT: &std::ffi::CStr = c"/..";

impl OldRoot {
    /// Starts to unmount it, right after the roots were exchanged; this process must have one thread.
    pub fn begin_to_let_go() -> Result<Self, StepError> {
        // Should it not be where it is looked for, nobody could tell when it is gone.
        if mount_at(OVER_THE_ROOT).step(STEP)? == mount_at(c"/").step(STEP)? {
            return Err(io::Error::from(io::ErrorKind::NotFound)).step(STEP);
        }
        let has_failed: &'static AtomicBool = Box::leak(Box::default());
        let stack = Box::leak(Box::new(ChildStack::new()));
        let flags = libc::CLONE_VM | libc::SIGCHLD;
        let argument = std::ptr::from_ref(has_failed).cast_mut().cast();
        // SAFETY: the new process shares this memory, and touches nothing of it but the flag, which both only use
        // atomically, and a stack of its own that is never freed. It does not even set `errno` unless it fails.
        check(unsafe { libc::clone(unmount, stack.top(), flags, argument) }).step(STEP)?;
        Ok(Self { has_failed })
    }

    /// Waits until it is gone, so that nothing of the host can be reached by any path.
    pub fn wait_until_gone(&self) -> Result<(), StepError> {
        while mount_at(OVER_THE_ROOT).step(STEP)? != mount_at(c"/").step(STEP)? {
            if self.has_failed.load(Ordering::Acquire) {
                return Err(io::Error::from(io::ErrorKind::ResourceBusy)).step(STEP);
            }
            std::thread::yield_now();
        }
        Ok(())
    }
}

extern "C" fn unmount(has_failed: *mut libc::c_void) -> libc::c_int {
    // SAFETY: a path without an end that would move; touches no memory.
    if unsafe { libc::umount2(OVER_THE_ROOT.as_ptr(), libc::MNT_DETACH) } == -1 {
        // SAFETY: the flag is never freed.
        unsafe { &*has_failed.cast::<AtomicBool>() }.store(true, Ordering::Release);
        return 1;
    }
    0
}

/// Which mount a path leads to.
fn mount_at(path: &std::ffi::CStr) -> io::Result<u64> {
    let found = statx(CWD, path, AtFlags::empty(), StatxFlags::MNT_ID)?;
    if found.stx_mask & StatxFlags::MNT_ID.bits() == 0 {
        return Err(io::ErrorKind::Unsupported.into());
    }
    Ok(found.stx_mnt_id)
}
