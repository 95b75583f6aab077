//! Process-wide settings of the server at startup, and the values that its children get instead.

use std::sync::OnceLock;

use crate::limits::{Controllers, Means, Rlimits};

/// Type of the `RLIMIT_*` constants.
#[cfg(target_env = "gnu")]
pub type Resource = libc::__rlimit_resource_t;
/// Type of the `RLIMIT_*` constants.
#[cfg(not(target_env = "gnu"))]
pub type Resource = libc::c_int;

static ORIGINAL: OnceLock<libc::rlimit> = OnceLock::new();

/// Raises the soft limit on open files to the hard limit; children get the original limit.
pub fn raise_open_file_limit() {
    let original = original_open_file_limit();
    let raised = libc::rlimit { rlim_cur: original.rlim_max, rlim_max: original.rlim_max };
    // SAFETY: passes a live local; a failure leaves the limit unchanged, which is harmless.
    unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const raised) };
}

/// The soft limit on open files of this process.
pub fn open_file_limit() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 1024, rlim_max: 1024 };
    // SAFETY: fills a live local; a failure leaves the usual limit in it.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    limit.rlim_cur
}

/// Makes this process non-dumpable: other processes of its user cannot read its memory or environment, and it writes no
/// core files.
///
/// Forks inherit the setting; an exec resets it.
pub fn conceal_memory() {
    let (none, off): (libc::c_ulong, libc::c_ulong) = (0, 0);
    // SAFETY: the call takes numbers only.
    unsafe { libc::prctl(libc::PR_SET_DUMPABLE, off, none, none, none) };
}

/// Ignores SIGXFSZ, so that a write beyond the file size limit gives an error instead of killing the server. Children
/// get the default action.
pub fn survive_file_size_limit() {
    // SAFETY: ignoring a signal involves no handler.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

/// The limit on open files that this process was started with.
pub fn original_open_file_limit() -> libc::rlimit {
    *ORIGINAL.get_or_init(|| {
        let mut limit = libc::rlimit { rlim_cur: 1024, rlim_max: 1024 };
        // SAFETY: fills a live local.
        unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
        limit
    })
}

/// Mechanisms that can enforce limits for a child without a cgroup.
pub fn limit_means() -> Means {
    Means {
        cgroup: Controllers::default(),
        sandbox: None,
        open_files: original_open_file_limit().rlim_max,
        file_size: hard_limit(libc::RLIMIT_FSIZE),
    }
}

/// The resource limits of a child, none above the hard limit of this process.
pub fn lowered(limits: &Rlimits) -> Vec<(Resource, libc::rlimit)> {
    let wanted = [
        (libc::RLIMIT_NPROC, limits.processes),
        (libc::RLIMIT_NOFILE, limits.open_files),
        (libc::RLIMIT_FSIZE, limits.file_size),
    ];
    let lower = |(resource, most): (Resource, Option<u64>)| {
        let most = most?.min(hard_limit(resource));
        Some((resource, libc::rlimit { rlim_cur: most, rlim_max: most }))
    };
    wanted.into_iter().filter_map(lower).collect()
}

/// The hard limit of this process.
pub fn hard_limit(resource: Resource) -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: fills a live local.
    unsafe { libc::getrlimit(resource, &raw mut limit) };
    limit.rlim_max
}

/// Added to the server's `oom_score_adj` for children, so that the OOM killer prefers them; the scale ends at 1000.
const EXPENDABLE: i32 = 200;

/// The `oom_score_adj` of children.
pub fn oom_score_of_children() -> &'static [u8] {
    static SCORE: OnceLock<String> = OnceLock::new();
    let score = SCORE.get_or_init(|| {
        let own = std::fs::read_to_string("/proc/self/oom_score_adj").unwrap_or_default();
        let own: i32 = own.trim().parse().unwrap_or(0);
        // A negative score, which protects the server, is not inherited by its children.
        (own + EXPENDABLE).clamp(0, 1000).to_string()
    });
    score.as_bytes()
}

/// Keeps freed message buffers in the heap, because returning them to the kernel costs a page fault per 4 KiB of output.
/// Larger blocks, such as retained output, are mapped separately, so that freeing them returns all their memory.
pub fn tune_allocator() {
    #[cfg(target_env = "gnu")]
    {
        const KEPT_BYTES: libc::c_int = 2 * 1024 * 1024;
        const LARGE_BYTES: libc::c_int = 256 * 1024;
        // SAFETY: only sets parameters of the allocator; called before any other thread is started.
        unsafe {
            libc::mallopt(libc::M_TRIM_THRESHOLD, KEPT_BYTES);
            libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE_BYTES);
        }
    }
}

/// Returns free memory of the heap to the kernel; takes milliseconds and briefly blocks other threads that allocate.
pub fn release_free_memory() {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: the call only touches memory that the allocator holds as free.
        unsafe { libc::malloc_trim(0) };
    }
}
