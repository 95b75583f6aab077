//! Capabilities of the calling thread.

use std::io;

use super::check;

/// Changing the owner of any file.
pub const CAP_CHOWN: u32 = 0;
/// Signals to processes of any user.
pub const CAP_KILL: u32 = 5;
/// Changing groups.
pub const CAP_SETGID: u32 = 6;
/// Changing the user.
pub const CAP_SETUID: u32 = 7;
/// Lowering the bounding set.
pub const CAP_SETPCAP: u32 = 8;

const CAPABILITY_VERSION_3: u32 = 0x2008_0522;

#[repr(C)]
struct Header {
    version: u32,
    pid: libc::c_int,
}

/// One 32-bit half of the three sets; the kernel takes two, low half first.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Half {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// Whether the capability is effective.
pub fn has_effective(capability: u32) -> io::Result<bool> {
    let mut header = Header { version: CAPABILITY_VERSION_3, pid: 0 };
    let mut halves = [Half::default(); 2];
    // SAFETY: both are live locals of the layout that this version of the call has.
    let result = unsafe { libc::syscall(libc::SYS_capget, &raw mut header, halves.as_mut_ptr()) };
    check(result as libc::c_int)?;
    Ok(halves[capability as usize / 32].effective & (1 << (capability % 32)) != 0)
}

/// Clears the ambient set.
pub fn clear_ambient() -> io::Result<()> {
    let (operation, none) = (libc::PR_CAP_AMBIENT_CLEAR_ALL as libc::c_ulong, 0 as libc::c_ulong);
    // SAFETY: takes numbers only.
    check(unsafe { libc::prctl(libc::PR_CAP_AMBIENT, operation, none, none, none) }).map(drop)
}

/// Clears the effective, permitted and inheritable sets.
pub fn clear() -> io::Result<()> {
    let mut header = Header { version: CAPABILITY_VERSION_3, pid: 0 };
    let halves = [Half::default(); 2];
    // SAFETY: as above; the kernel only reads them.
    let result = unsafe { libc::syscall(libc::SYS_capset, &raw mut header, halves.as_ptr()) };
    check(result as libc::c_int).map(drop)
}
