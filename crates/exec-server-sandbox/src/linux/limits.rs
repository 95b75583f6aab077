//! The resource limits of a sandboxed command.
//!
//! Where the kernel gives a pid namespace its own id range, that range bounds the number of processes: it counts threads,
//! applies to root as well, and needs no cgroup.

mod trial;

use std::fs;
use std::io::{self, Write};
use std::sync::OnceLock;

use exec_server_os::limits::{Means, Rlimits, SandboxMeans};
use exec_server_os::linux::check;
use exec_server_os::linux::startup::{self, Resource, hard_limit, original_open_file_limit};

use super::Mechanism;
use super::rootfs::DEFAULT_TEMP_BYTES;
use super::step::{Step, StepError};
use super::zygote::Limit;

/// With this limit the kernel writes no core file, because the smallest one is larger, and does not run the helper that
/// `core_pattern` may name. With every other limit, 0 included, it runs the helper.
pub const NO_CORE: u64 = 1;

/// Sets the limits of this process permanently, except for open files, and forbids core dumps.
pub fn apply(limits: &Rlimits) -> Result<(), StepError> {
    lower(libc::RLIMIT_CORE, NO_CORE).step("limit of core files")?;
    if let Some(processes) = limits.processes {
        lower(libc::RLIMIT_NPROC, processes).step(STEP)?;
    }
    if let Some(file_size) = limits.file_size {
        lower(libc::RLIMIT_FSIZE, file_size).step("limit of file size")?;
    }
    Ok(())
}

/// Sets the open-file limit permanently; afterwards the process may not be able to send descriptors.
pub fn apply_open_files(Limit(soft, hard): Limit, asked_for: Option<u64>) -> Result<(), StepError> {
    let hard = hard.min(hard_limit(libc::RLIMIT_NOFILE));
    let limit = match asked_for {
        Some(count) => Limit(count.min(hard), count.min(hard)),
        None => Limit(soft.min(hard), hard),
    };
    set(libc::RLIMIT_NOFILE, limit).step("limit of open files")
}

/// Raises the open-file limit, which also bounds descriptors in flight, to the maximum.
pub fn raise_open_files() -> io::Result<()> {
    let hard = hard_limit(libc::RLIMIT_NOFILE);
    set(libc::RLIMIT_NOFILE, Limit(hard, hard))
}

/// One sandbox gets this fraction of the user's inotify limits.
const SHARE_OF_WATCHES: u64 = 4;

const WATCHES: [(&str, &str); 2] = [
    ("/proc/sys/user/max_inotify_instances", "/proc/sys/fs/inotify/max_user_instances"),
    ("/proc/sys/user/max_inotify_watches", "/proc/sys/fs/inotify/max_user_watches"),
];

/// Bounds inotify in the user namespace that the caller has just entered.
///
/// Watches inside also count for the user outside, so one sandbox could otherwise use all of them. Where `/proc/sys` is
/// not writable, as in many containers, there is no bound.
pub fn bound_watches() {
    for ((path, _), share) in WATCHES.iter().zip(watch_shares()) {
        if let Some(share) = share {
            let _ = fs::write(path, share);
        }
    }
}

/// The bounds of one sandbox. The zygote calls this first, so that its launchers inherit the result.
pub fn watch_shares() -> &'static [Option<String>; 2] {
    static SHARES: OnceLock<[Option<String>; 2]> = OnceLock::new();
    SHARES.get_or_init(|| {
        WATCHES.map(|(_, of_machine)| {
            let text = fs::read_to_string(of_machine).ok()?;
            Some((text.trim().parse::<u64>().ok()? / SHARE_OF_WATCHES).max(1).to_string())
        })
    })
}

/// Ids below this one are not reused after the first wrap-around.
const FIRST_REUSED_PID: u64 = 300;
/// The exclusive upper bound of process ids in every kernel.
const END_OF_PIDS: u64 = 1 << 22;

/// A prepared range of process ids.
#[derive(Debug)]
pub struct PidRange {
    last_pid: fs::File,
}

impl PidRange {
    /// Limits this pid namespace to `count` ids from [`Self::begin`] on; the caller must be its pid 1.
    ///
    /// Call only if [`sandbox_capabilities`] reports `pid_range`: older kernels have one range for the whole machine.
    pub fn prepare(count: u64) -> Result<Self, StepError> {
        if std::process::id() != 1 {
            return Err(io::Error::from_raw_os_error(libc::EPERM)).step(STEP);
        }
        let last_pid = fs::File::options().write(true).open(LAST_PID).step(STEP)?;
        let end = (FIRST_REUSED_PID + count).min(END_OF_PIDS);
        fs::write(PID_MAX, end.to_string()).step(STEP)?;
        Ok(Self { last_pid })
    }

    /// Starts the range; ids that are in use already are not counted.
    pub fn begin(mut self) -> Result<(), StepError> {
        self.last_pid.write_all(FIRST_REUSED_PID.to_string().as_bytes()).step(STEP)
    }
}

const STEP: &str = "limit of processes";

const LAST_PID: &str = "/proc/sys/kernel/ns_last_pid";
const PID_MAX: &str = "/proc/sys/kernel/pid_max";

/// The limits that a sandbox of this user can enforce by itself; probed once.
pub fn sandbox_capabilities() -> SandboxMeans {
    static MEANS: OnceLock<SandboxMeans> = OnceLock::new();
    *MEANS.get_or_init(|| {
        let kernel = kernel_version();
        SandboxMeans {
            // Older kernels have one range for all namespaces, and root must not shrink it by probing.
            pid_range: kernel >= (6, 14) && trial::can_bound_pids(),
            // Older kernels count per user on the whole machine. Root is never limited.
            user_count: kernel >= (5, 14) && !rustix::process::getuid().is_root(),
            tmpfs_bytes: DEFAULT_TEMP_BYTES,
        }
    })
}

/// Mechanisms that can enforce limits for a sandboxed command without a cgroup.
///
/// A sandbox enforces limits by itself only with namespaces.
pub fn limit_means(mechanism: Mechanism) -> Means {
    Means {
        sandbox: (mechanism == Mechanism::Namespaces).then(sandbox_capabilities),
        open_files: sandboxed_open_file_limit().rlim_max,
        ..startup::limit_means()
    }
}

/// The limit on open files of a sandboxed command.
///
/// The kernel counts descriptors in flight over unix sockets per user, and rejects a sender whose own limit is below the
/// count. A lower limit for commands leaves room for the server and its launchers, which pass descriptors too.
pub fn sandboxed_open_file_limit() -> libc::rlimit {
    let original = original_open_file_limit();
    let most = below(original.rlim_max);
    libc::rlimit { rlim_cur: original.rlim_cur.min(most), rlim_max: most }
}

/// Enough for any command, and low enough for other servers of the user that have a smaller limit than this one.
const MOST_SANDBOXED_FILES: u64 = 65_536;
/// Each CPU may send 253 descriptors at a time before the kernel checks the count again.
const MOST_IN_RESERVE: u64 = 16_384;

fn below(hard: u64) -> u64 {
    MOST_SANDBOXED_FILES.min(hard - (hard / 4).min(MOST_IN_RESERVE))
}

fn kernel_version() -> (u32, u32) {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    parse_version(&release).unwrap_or((0, 0))
}

fn parse_version(release: &str) -> Option<(u32, u32)> {
    let mut parts = release.split(|letter: char| !letter.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

/// Lowers a limit of this process permanently.
fn lower(resource: Resource, most: u64) -> io::Result<()> {
    let most = hard_limit(resource).min(most);
    set(resource, Limit(most, most))
}

/// Sets a limit of this process.
pub fn set(resource: Resource, Limit(soft, hard): Limit) -> io::Result<()> {
    let limit = libc::rlimit { rlim_cur: soft, rlim_max: hard };
    // SAFETY: passes a live local.
    check(unsafe { libc::setrlimit(resource, &raw const limit) }).map(drop)
}

#[cfg(test)]
mod tests {
    use exec_server_os::linux::testing::{Ended, User, in_child};

    use super::*;

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
            apply_open_files(Limit(40, 60), limits.open_files).unwrap();
            assert_eq!(get(libc::RLIMIT_CORE), (NO_CORE, NO_CORE));
            assert_eq!(get(libc::RLIMIT_NPROC), (100, 100));
            assert_eq!(get(libc::RLIMIT_NOFILE), (50, 50));
            assert_eq!(get(libc::RLIMIT_FSIZE), (1 << 20, 1 << 20));
            let more = libc::rlimit { rlim_cur: 2, rlim_max: 2 };
            // SAFETY: passes a live local.
            assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_CORE, &raw const more) }, -1);
            0
        });
        assert_eq!(ended, Ended::Exit(0));
    }

    #[test]
    fn a_limit_is_never_raised() {
        let ended = in_child(User::Caller, || {
            apply_open_files(Limit(40, 60), None).unwrap();
            assert_eq!(get(libc::RLIMIT_NOFILE), (40, 60));
            apply_open_files(Limit(40, 60), Some(50)).unwrap();
            apply_open_files(Limit(900, 1000), Some(5000)).unwrap();
            assert_eq!(get(libc::RLIMIT_NOFILE), (50, 50));
            raise_open_files().unwrap();
            assert_eq!(get(libc::RLIMIT_NOFILE), (50, 50));
            0
        });
        assert_eq!(ended, Ended::Exit(0));
    }

    #[test]
    fn the_open_file_limit_of_sandboxed_commands_leaves_a_reserve() {
        assert_eq!(below(0), 0);
        assert_eq!(below(1024), 768);
        assert_eq!(below(20_000), 15_000);
        assert_eq!(below(524_288), 65_536);
        assert_eq!(below(u64::MAX), 65_536);
        assert!(sandboxed_open_file_limit().rlim_max < original_open_file_limit().rlim_max);
    }

    #[test]
    fn kernel_versions_are_parsed_from_release_strings() {
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
    fn only_pid_1_of_a_sandbox_bounds_process_ids() {
        let before = fs::read_to_string(PID_MAX).unwrap();
        PidRange::prepare(1).unwrap_err();
        assert_eq!(fs::read_to_string(PID_MAX).unwrap(), before);
    }
}
