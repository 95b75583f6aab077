//! Removes cgroup directories, including those that a killed server left behind.

use std::path::{Path, PathBuf};
use std::{fs, io, process};

use super::controllers;
use crate::linux::procfs;

const PREFIX: &str = "exec-server-";
const OWN: &str = "own";

/// Name of a child's cgroup; it contains the server's pid so that a stale one is recognised.
pub fn child_name(child: u32) -> String {
    format!("{PREFIX}{}-{child}", process::id())
}

/// Removes a cgroup and its descendants if they have no members; returns whether it is gone.
pub fn remove(path: &Path) -> bool {
    for inner in directories(path) {
        remove(&inner);
    }
    match fs::remove_dir(path) {
        Ok(()) => true,
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    }
}

/// Removes the cgroups of servers that are gone; cgroups with members stay.
///
/// A cgroup with the pid of this process belongs to an earlier one: the caller has none yet, or is the guardian.
pub fn sweep(parent: &Path) {
    for path in directories(parent) {
        let server = path.file_name().and_then(|name| server_of(name.to_str()?));
        if server.is_some_and(|pid| !is_alive(pid)) {
            remove(&path);
        }
    }
}

/// Removes all cgroups of the server; called by the guardian after the server has exited.
pub fn clear(parent: &Path) {
    move_back(parent);
    sweep(parent);
}

/// Moves this process and its guardian from `parent` into a leaf cgroup of their own.
pub fn move_aside(parent: &Path, guardian: Option<u32>) -> io::Result<()> {
    let own = parent.join(format!("{PREFIX}{}-{OWN}", process::id()));
    fs::create_dir(&own)?;
    let members = members(parent);
    let ours = [Some(process::id()), guardian].into_iter().flatten();
    let moved = ours
        .filter(|pid| members.contains(pid))
        .try_for_each(|pid| fs::write(own.join("cgroup.procs"), pid.to_string()));
    if moved.is_err() {
        move_back(parent);
        remove(&own);
    }
    moved
}

/// Undoes [`move_aside`] for the processes that remain.
pub fn move_back(parent: &Path) {
    let groups = directories(parent);
    let is_own = |path: &&PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        server_of(name).is_some() && name.ends_with(OWN) && members(path).contains(&process::id())
    };
    let Some(own) = groups.iter().find(is_own) else { return };
    // Another server may rely on the enabled controllers.
    if groups.iter().all(|path| path == own || !members_below(path)) {
        controllers::switch_off(parent);
        for pid in members(own) {
            let _ = fs::write(parent.join("cgroup.procs"), pid.to_string());
        }
        remove(own);
    }
}

fn is_alive(pid: u32) -> bool {
    pid != process::id() && procfs::stat(pid.cast_signed()).is_some_and(|stat| !stat.is_zombie)
}

fn server_of(name: &str) -> Option<u32> {
    let (pid, _) = name.strip_prefix(PREFIX)?.split_once('-')?;
    pid.parse().ok()
}

fn directories(path: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    let directories = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    directories.map(|entry| entry.path()).collect()
}

/// Pids of the members of a cgroup.
pub fn members(path: &Path) -> Vec<u32> {
    let text = fs::read_to_string(path.join("cgroup.procs")).unwrap_or_default();
    text.lines().filter_map(|line| line.parse().ok()).collect()
}

fn members_below(path: &Path) -> bool {
    let events = fs::read_to_string(path.join("cgroup.events")).unwrap_or_default();
    events.lines().any(|line| line == "populated 1")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_cgroups_of_servers_that_are_gone_are_removed() {
        let place = tempfile::tempdir().unwrap();
        let (dead, alive) = (u32::MAX, std::os::unix::process::parent_id());
        for name in [
            format!("{PREFIX}{dead}-1/inner"),
            format!("{PREFIX}{dead}-{OWN}"),
            format!("{PREFIX}{}-1", process::id()),
            format!("{PREFIX}{alive}-2"),
            format!("{PREFIX}test-{dead}"),
            format!("{PREFIX}{dead}"),
            "user.slice".to_owned(),
        ] {
            fs::create_dir_all(place.path().join(name)).unwrap();
        }
        sweep(place.path());
        let mut left: Vec<String> = directories(place.path())
            .iter()
            .map(|path| path.file_name().unwrap().to_str().unwrap().to_owned())
            .collect();
        left.sort();
        let mut expected = [
            format!("{PREFIX}{alive}-2"),
            format!("{PREFIX}{dead}"),
            format!("{PREFIX}test-{dead}"),
            "user.slice".to_owned(),
        ];
        expected.sort();
        assert_eq!(left, expected);
    }
}
