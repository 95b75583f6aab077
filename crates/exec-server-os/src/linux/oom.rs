//! Tells whether the kernel killed for lack of memory, for children without a cgroup of their own.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use super::cgroup::{mount_point, own_group};

/// Counts the kernel's out-of-memory kills, from the start of the server on.
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
    /// Whether there was a kill since the last time that someone asked.
    ///
    /// Ask only about a child that died of SIGKILL and that nobody here killed: the kernel counts the kills among all
    /// who share the server's memory group, or the machine, and names no victim.
    pub fn take_kill(&self) -> bool {
        let now = kills(&self.source).unwrap_or(0);
        self.seen.swap(now, Ordering::Relaxed) < now
    }
}

/// Where the kills closest to this process are counted: in its own memory group, or else on the whole machine.
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

/// The group in a line of `/proc/self/cgroup`, if that is of the hierarchy with the memory controller.
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
