//! What the server changes about itself when it starts.

use std::sync::OnceLock;

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
