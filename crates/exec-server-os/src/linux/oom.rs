//! Tells whether the kernel killed for lack of memory.

use std::fs;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counts the kernel's out-of-memory kills, from the start of the server on.
#[derive(Debug)]
pub struct OomCounter {
    seen: AtomicU64,
}

impl Default for OomCounter {
    fn default() -> Self {
        Self { seen: AtomicU64::new(kills()) }
    }
}

impl OomCounter {
    /// Whether there was a kill since the last time that someone asked.
    ///
    /// Ask only about a child that died of SIGKILL and that nobody here killed: the kernel counts kills of the whole
    /// machine and names no victim.
    pub fn take_kill(&self) -> bool {
        let now = kills();
        self.seen.swap(now, Ordering::Relaxed) < now
    }
}

fn kills() -> u64 {
    let stat = fs::read_to_string("/proc/vmstat").unwrap_or_default();
    let count = stat.lines().find_map(|line| line.strip_prefix("oom_kill "));
    count.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
}
