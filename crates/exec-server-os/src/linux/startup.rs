//! What the server changes about itself when it starts, and what its children have instead.

use std::sync::OnceLock;

use super::sandbox::Mechanism;
use super::sandbox::limits::{self, Resource};
use crate::limits::{Controllers, Means, Rlimits};

static ORIGINAL: OnceLock<libc::rlimit> = OnceLock::new();

/// Lets the server open as many files as it may; children get the limit that it was started with.
pub fn raise_open_file_limit() {
    let original = original_open_file_limit();
    let raised = libc::rlimit { rlim_cur: original.rlim_max, rlim_max: original.rlim_max };
    // SAFETY: passes a live local; a failure leaves the limit as it was, which is no harm.
    unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const raised) };
}

/// Makes a write beyond the limit of the size of files an error instead of the end of the server; children are told by
/// the signal as ever.
pub fn survive_file_size_limit() {
    // SAFETY: ignoring a signal touches no memory of ours; called before anything is started.
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

/// What can hold limits for a command without a cgroup of its own.
///
/// Only a sandbox with namespaces of its own can hold anything by itself.
pub fn limit_means(sandbox: Option<Mechanism>) -> Means {
    Means {
        cgroup: Controllers::default(),
        sandbox: (sandbox == Some(Mechanism::Namespaces)).then(limits::means),
        open_files: original_open_file_limit().rlim_max,
        file_size: hard_limit(libc::RLIMIT_FSIZE),
    }
}

/// The resource limits of a child, none of them above what this process may.
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

/// What this process may raise a limit to.
pub fn hard_limit(resource: Resource) -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: fills a live local.
    unsafe { libc::getrlimit(resource, &raw mut limit) };
    limit.rlim_max
}

/// How much rather than the server a child is killed when memory runs out, of 1000.
const EXPENDABLE: i32 = 200;

/// What a child writes to its `oom_score_adj`, so that it and not the server is killed when memory runs out.
pub fn oom_score_of_children() -> &'static [u8] {
    static SCORE: OnceLock<String> = OnceLock::new();
    let score = SCORE.get_or_init(|| {
        let own = std::fs::read_to_string("/proc/self/oom_score_adj").unwrap_or_default();
        let own: i32 = own.trim().parse().unwrap_or(0);
        // A server that is protected from this lends its children nothing of it.
        (own + EXPENDABLE).clamp(0, 1000).to_string()
    });
    score.as_bytes()
}

/// Keeps freed message buffers at hand, because giving each back to the kernel would cost a page fault per 4 KiB of
/// output; and keeps what is larger, such as retained output, apart, so that it goes back whole.
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
