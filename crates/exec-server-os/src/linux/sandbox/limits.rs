//! The resource limits of a sandboxed command.

use std::io;

use super::step::{Step, StepError};
use crate::linux::check;

/// What a command may use; nothing is ever raised above what the server itself may.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Processes and threads of this user in this user namespace; does not bind the machine's own root.
    pub processes: Option<u64>,
    /// Open descriptors of each process.
    pub open_files: Option<u64>,
    /// Bytes in each file that is written.
    pub file_size: Option<u64>,
}

/// Sets the limits of this process for good, and forbids core files.
pub fn apply(limits: &Limits) -> Result<(), StepError> {
    lower(libc::RLIMIT_CORE, 0).step("limit of core files")?;
    if let Some(processes) = limits.processes {
        lower(libc::RLIMIT_NPROC, processes).step("limit of processes")?;
    }
    if let Some(open_files) = limits.open_files {
        lower(libc::RLIMIT_NOFILE, open_files).step("limit of open files")?;
    }
    if let Some(file_size) = limits.file_size {
        lower(libc::RLIMIT_FSIZE, file_size).step("limit of file size")?;
    }
    Ok(())
}

#[cfg(target_env = "gnu")]
type Resource = libc::__rlimit_resource_t;
#[cfg(not(target_env = "gnu"))]
type Resource = libc::c_int;

fn lower(resource: Resource, most: u64) -> io::Result<()> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: fills a live local.
    check(unsafe { libc::getrlimit(resource, &raw mut limit) })?;
    let most = limit.rlim_max.min(most);
    limit = libc::rlimit { rlim_cur: most, rlim_max: most };
    // SAFETY: passes a live local.
    check(unsafe { libc::setrlimit(resource, &raw const limit) }).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linux::sandbox::testing::{Ended, User, in_child};

    fn get(resource: Resource) -> (u64, u64) {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: fills a live local.
        unsafe { libc::getrlimit(resource, &raw mut limit) };
        (limit.rlim_cur, limit.rlim_max)
    }

    #[test]
    fn limits_hold_and_cannot_be_raised_by_an_ordinary_user() {
        let ended = in_child(User::Ordinary, || {
            let limits =
                Limits { processes: Some(100), open_files: Some(50), file_size: Some(1 << 20) };
            apply(&limits).unwrap();
            assert_eq!(get(libc::RLIMIT_CORE), (0, 0));
            assert_eq!(get(libc::RLIMIT_NPROC), (100, 100));
            assert_eq!(get(libc::RLIMIT_NOFILE), (50, 50));
            assert_eq!(get(libc::RLIMIT_FSIZE), (1 << 20, 1 << 20));
            let more = libc::rlimit { rlim_cur: 1, rlim_max: 1 };
            // SAFETY: passes a live local.
            assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_CORE, &raw const more) }, -1);
            0
        });
        assert_eq!(ended, Ended::Exit(0));
    }

    #[test]
    fn a_limit_is_never_raised() {
        let ended = in_child(User::Caller, || {
            apply(&Limits { open_files: Some(50), ..Limits::default() }).unwrap();
            apply(&Limits { open_files: Some(5000), ..Limits::default() }).unwrap();
            assert_eq!(get(libc::RLIMIT_NOFILE), (50, 50));
            0
        });
        assert_eq!(ended, Ended::Exit(0));
    }
}
