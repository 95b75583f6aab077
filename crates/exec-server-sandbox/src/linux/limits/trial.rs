//! Probes in short-lived processes whether this user can bound the process ids of a pid namespace.
//!
//! The caller may have threads, so the children make system calls only and do not allocate.

use std::ffi::CStr;
use std::io;

use exec_server_os::linux::check;

/// Whether a sandbox of this user can have its own id range; must not be called before Linux 6.14.
pub fn can_bound_pids() -> bool {
    in_child(|| {
        // SAFETY: the child has one thread. Id maps are not needed for the capabilities in the namespace.
        check(unsafe { libc::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWPID) })?;
        in_child(|| {
            write(c"/proc/sys/kernel/ns_last_pid", b"300")?;
            write(c"/proc/sys/kernel/pid_max", b"400")
        })
    })
    .is_ok()
}

fn in_child(act: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    // SAFETY: the child only makes system calls until it ends.
    let pid = check(unsafe { libc::fork() })?;
    if pid == 0 {
        let errno = act().err().map_or(0, |error| error.raw_os_error().unwrap_or(libc::EIO));
        // SAFETY: ends the child alone.
        unsafe { libc::_exit(errno) };
    }
    let mut status = 0;
    // SAFETY: waits for our own child and fills a live local.
    while check(unsafe { libc::waitpid(pid, &raw mut status, 0) })
        .is_err_and(|error| error.kind() == io::ErrorKind::Interrupted)
    {}
    match libc::WEXITSTATUS(status) {
        0 if libc::WIFEXITED(status) => Ok(()),
        0 => Err(io::Error::from_raw_os_error(libc::EIO)),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}

fn write(path: &CStr, bytes: &[u8]) -> io::Result<()> {
    // SAFETY: the path is null-terminated; the descriptor ends with this process.
    let fd = check(unsafe { libc::open(path.as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC) })?;
    // SAFETY: the buffer is alive and as long as said.
    let written = unsafe { libc::write(fd, bytes.as_ptr().cast(), bytes.len()) };
    if written == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
