//! The resource limits of a sandboxed command.
//!
//! How many processes a sandbox has is bounded by its process ids where the kernel lets a pid namespace have a range of
//! its own: that counts threads, binds root as well, and needs no cgroup.

mod trial;

use std::fs;
use std::io::{self, Write};
use std::sync::OnceLock;

use super::step::{Step, StepError};
use super::view::DEFAULT_TEMP_BYTES;
use crate::limits::{Rlimits, SandboxMeans};
use crate::linux::check;
use crate::linux::startup::hard_limit;

/// Sets the limits of this process for good, and forbids core files.
pub fn apply(limits: &Rlimits) -> Result<(), StepError> {
    lower(libc::RLIMIT_CORE, 0).step("limit of core files")?;
    if let Some(processes) = limits.processes {
        lower(libc::RLIMIT_NPROC, processes).step(STEP)?;
    }
    if let Some(open_files) = limits.open_files {
        lower(libc::RLIMIT_NOFILE, open_files).step("limit of open files")?;
    }
    if let Some(file_size) = limits.file_size {
        lower(libc::RLIMIT_FSIZE, file_size).step("limit of file size")?;
    }
    Ok(())
}

/// The kernel gives out no id below this one again once it has reached it.
const FIRST_REUSED_PID: u64 = 300;
/// No kernel gives out this id or one above.
const END_OF_PIDS: u64 = 1 << 22;

/// A range of process ids that is about to begin.
#[derive(Debug)]
pub struct PidRange {
    last_pid: fs::File,
}

impl PidRange {
    /// Leaves `count` process ids in this pid namespace, from [`Self::begin`] on; the caller is its first process.
    ///
    /// Must not be called where [`means`] does not say that there is a range: older kernels have one for the whole
    /// machine.
    pub fn prepare(count: u64) -> Result<Self, StepError> {
        if std::process::id() != 1 {
            return Err(io::Error::from_raw_os_error(libc::EPERM)).step(STEP);
        }
        let last_pid = fs::File::options().write(true).open(LAST_PID).step(STEP)?;
        let end = (FIRST_REUSED_PID + count).min(END_OF_PIDS);
        fs::write(PID_MAX, end.to_string()).step(STEP)?;
        Ok(Self { last_pid })
    }

    /// What has an id already is not counted.
    pub fn begin(mut self) -> Result<(), StepError> {
        self.last_pid.write_all(FIRST_REUSED_PID.to_string().as_bytes()).step(STEP)
    }
}

const STEP: &str = "limit of processes";

const LAST_PID: &str = "/proc/sys/kernel/ns_last_pid";
const PID_MAX: &str = "/proc/sys/kernel/pid_max";

/// What a sandbox of this user can limit by itself; found out once, by trying.
pub fn means() -> SandboxMeans {
    static MEANS: OnceLock<SandboxMeans> = OnceLock::new();
    *MEANS.get_or_init(|| {
        let kernel = kernel_version();
        SandboxMeans {
            // Before, there is one range for all, which root must never shrink by trying.
            pid_range: kernel >= (6, 14) && trial::can_bound_pids(),
            // Before, the count is that of the user on the whole machine; and it never binds the machine's root.
            user_count: kernel >= (5, 14) && !rustix::process::getuid().is_root(),
            tmpfs_bytes: DEFAULT_TEMP_BYTES,
        }
    })
}

fn kernel_version() -> (u32, u32) {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    parse_version(&release).unwrap_or((0, 0))
}

fn parse_version(release: &str) -> Option<(u32, u32)> {
    let mut parts = release.split(|letter: char| !letter.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

/// The number of a resource limit.
#[cfg(target_env = "gnu")]
pub type Resource = libc::__rlimit_resource_t;
/// The number of a resource limit.
#[cfg(not(target_env = "gnu"))]
pub type Resource = libc::c_int;

/// Lowers a limit of this process for good.
fn lower(resource: Resource, most: u64) -> io::Result<()> {
    let most = hard_limit(resource).min(most);
    let limit = libc::rlimit { rlim_cur: most, rlim_max: most };
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
                Rlimits { processes: Some(100), open_files: Some(50), file_size: Some(1 << 20) };
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
            apply(&Rlimits { open_files: Some(50), ..Rlimits::default() }).unwrap();
            apply(&Rlimits { open_files: Some(5000), ..Rlimits::default() }).unwrap();
            assert_eq!(get(libc::RLIMIT_NOFILE), (50, 50));
            0
        });
        assert_eq!(ended, Ended::Exit(0));
    }

    #[test]
    fn versions_are_read_from_what_distributions_make_of_them() {
        for (text, version) in [
            ("6.18.44-fc-v445\n", Some((6, 18))),
            ("5.14.0-503.el9.x86_64", Some((5, 14))),
            ("6.14-rc1", Some((6, 14))),
            ("4", None),
            ("", None),
        ] {
            assert_eq!(parse_version(text), version, "{text}");
        }
    }

    #[test]
    fn only_the_first_process_of_a_sandbox_bounds_process_ids() {
        let before = fs::read_to_string(PID_MAX).unwrap();
        PidRange::prepare(1).unwrap_err();
        assert_eq!(fs::read_to_string(PID_MAX).unwrap(), before);
    }
}
