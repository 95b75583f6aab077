//! Attacks that only namespaces prevent.

use std::ffi::CStr;
use std::io;
use std::mem::zeroed;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::PathBuf;

use super::super::attempt::{check, text, variable};
use super::super::fixture::SandboxFixture;
use crate::files::host::NOBODY;

/// A terminal outside of the sandbox, and its path.
pub fn terminal() -> (OwnedFd, PathBuf) {
    // SAFETY: a new descriptor, owned from then on; the name is copied before another call can ask for one.
    unsafe {
        let fd = libc::posix_openpt(libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC);
        check(fd).unwrap();
        check(libc::grantpt(fd)).unwrap();
        check(libc::unlockpt(fd)).unwrap();
        let mut name = [0; 64];
        assert_eq!(libc::ptsname_r(fd, name.as_mut_ptr(), name.len()), 0);
        let path = CStr::from_ptr(name.as_ptr()).to_str().unwrap().into();
        (OwnedFd::from_raw_fd(fd), path)
    }
}

/// A segment of shared memory that belongs to the server's user.
pub struct Segment(i32);

impl Segment {
    pub fn make(fixture: &SandboxFixture) -> Self {
        // SAFETY: a new segment, removed in drop; the structure is filled before it is changed.
        unsafe {
            let id = libc::shmget(libc::IPC_PRIVATE, 4096, 0o600 | libc::IPC_CREAT);
            check(id).unwrap();
            if rustix::process::geteuid().is_root() && !fixture.is_root() {
                let mut facts = zeroed::<libc::shmid_ds>();
                check(libc::shmctl(id, libc::IPC_STAT, &raw mut facts)).unwrap();
                (facts.shm_perm.uid, facts.shm_perm.gid) = (NOBODY, NOBODY);
                check(libc::shmctl(id, libc::IPC_SET, &raw mut facts)).unwrap();
            }
            Self(id)
        }
    }

    /// Its number.
    pub fn id(&self) -> i32 {
        self.0
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // SAFETY: removes our own segment.
        unsafe { libc::shmctl(self.0, libc::IPC_RMID, std::ptr::null_mut()) };
    }
}

pub fn perform(name: &str) -> io::Result<()> {
    let number = |name: &str| variable(name).parse::<i32>().expect("a number");
    // SAFETY (all): every pointer is a live local, a C string, or null.
    unsafe {
        match name {
            "lose_tag" => {
                let mut limit = zeroed::<libc::rlimit>();
                check(libc::getrlimit(libc::RLIMIT_RTTIME, &raw mut limit))?;
                limit.rlim_cur = libc::RLIM_INFINITY;
                check(libc::setrlimit(libc::RLIMIT_RTTIME, &raw const limit))
            }
            "other_limits" => {
                let mut limit = zeroed::<libc::rlimit>();
                check(libc::getrlimit(libc::RLIMIT_CORE, &raw mut limit))?;
                limit.rlim_cur = 0;
                let none = std::ptr::null_mut();
                check(libc::prlimit(number("STRANGER"), libc::RLIMIT_CORE, &raw const limit, none))
            }
            "other_affinity" => {
                let mut cores = zeroed::<libc::cpu_set_t>();
                let size = size_of_val(&cores);
                check(libc::sched_getaffinity(0, size, &raw mut cores))?;
                check(libc::sched_setaffinity(number("STRANGER"), size, &raw const cores))
            }
            "other_segment" => {
                let at = libc::shmat(number("SEGMENT"), std::ptr::null(), 0);
                if at as isize == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
            }
            "other_terminal" => {
                let path = text(variable("TERMINAL"));
                check(libc::open(path.as_ptr(), libc::O_RDONLY | libc::O_NOCTTY | libc::O_NONBLOCK))
            }
            "set_flags" => {
                let no_dump: libc::c_long = 0x40;
                const SET_FLAGS: libc::Ioctl = 0x4008_6602;
                let file = std::fs::File::open(format!("{}/file", variable("OUT")))?;
                check(libc::ioctl(file.as_raw_fd(), SET_FLAGS, &raw const no_dump))
            }
            _ => super::super::allowed::perform(name),
        }
    }
}
