//! Detects OOM kills of children that have no cgroup of their own.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use super::cgroup::{mount_point, own_group};

/// Counts the kernel's OOM kills since the start of the server.
#[derive(Debug)]
pub struct OomCounter {
    source: PathBuf,
    seen: AtomicU64,
}

impl Default for OomCounter {
    fn default() -> Self {
        let source = nearest_source();
        Self { seen: AtomicU64::new(kills(&source).unwrap_or(0)), source }
    }
}

impl OomCounter {
    /// Whether there was a kill since the last call.
    ///
    /// Call it only for a child that was killed by a SIGKILL that this server did not send: the counter covers all processes
    /// in the server's memory cgroup, or on the machine, and does not name the victim.
    pub fn take_kill(&self) -> bool {
        let now = kills(&self.source).unwrap_or(0);
        self.seen.swap(now, Ordering::Relaxed) < now
    }
}

/// The narrowest counter that covers this process: its memory cgroup, else the whole machine.
fn nearest_source() -> PathBuf {
    let machine = PathBuf::from("/proc/vmstat");
    let groups = [own_file(), own_file_of_version_one()];
    groups.into_iter().flatten().find(|file| kills(file).is_some()).unwrap_or(machine)
}

fn own_file() -> Option<PathBuf> {
    Some(mount_point()?.join(own_group()?).join("memory.events"))
}

fn own_file_of_version_one() -> Option<PathBuf> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let own = groups.lines().find_map(|line| memory_group(line))?;
    let file = Path::new("/sys/fs/cgroup/memory").join(own).join("memory.oom_control");
    file.exists().then_some(file)
}

/// The cgroup in a line of `/proc/self/cgroup`, if the line names the version 1 hierarchy of the memory controller.
fn memory_group(line: &str) -> Option<&str> {
    let (_, rest) = line.split_once(':')?;
    let (names, path) = rest.split_once(':')?;
    names.split(',').any(|name| name == "memory").then(|| path.trim_start_matches('/'))
}

fn kills(source: &Path) -> Option<u64> {
    let text = fs::read_to_string(source).ok()?;
    text.lines().find_map(|line| line.strip_prefix("oom_kill "))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_group_of_version_one_is_found() {
        assert_eq!(memory_group("4:memory:/a/b"), Some("a/b"));
        assert_eq!(memory_group("4:cpu,memory:/"), Some(""));
        assert_eq!(memory_group("0::/memory"), None);
        assert_eq!(memory_group("3:cpuset:/memory"), None);
    }

    #[test]
    fn kills_are_counted_somewhere_on_every_machine() {
        assert!(kills(&nearest_source()).is_some(), "{:?}", nearest_source());
        assert!(!OomCounter::default().take_kill());
    }
}
