//! The network of a sandbox that has none: a loopback of its own, so that programs can talk to themselves.

use std::io;

use super::step::{Step, StepError};
use crate::linux::check;

/// Brings up the loopback of a new network namespace.
pub fn bring_loopback_up() -> Result<(), StepError> {
    set_up().step("loopback")
}

fn set_up() -> io::Result<()> {
    // SAFETY: a new descriptor, closed below.
    let socket =
        check(unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) })?;
    // SAFETY: all zeros is a valid request.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(b"lo\0") {
        *to = *from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    // SAFETY: the request is alive and of the type that this call takes.
    let result = check(unsafe { libc::ioctl(socket, libc::SIOCSIFFLAGS, &raw const request) });
    // SAFETY: the descriptor is ours and not used again.
    unsafe { libc::close(socket) };
    result.map(drop)
}
