//! Removes the directories of cgroups, also those that a server left behind when it was killed.

use std::path::{Path, PathBuf};
use std::{fs, io, process};

use super::controllers;
use crate::linux::procfs;

const PREFIX: &str = "exec-server-";
const OWN: &str = "own";

/// What the group of a child is called: the server's pid tells later whether anybody needs it.
pub fn child_name(child: u32) -> String {
    format!("{PREFIX}{}-{child}", process::id())
}

/// Removes a group with all groups in it, if there is no member; says whether it is gone.
pub fn remove(path: &Path) -> bool {
    for inner in directories(path) {
        remove(&inner);
    }
    match fs::remove_dir(path) {
        Ok(()) => true,
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    }
}

/// Removes the groups of servers that are no longer there; what has members stays.
///
/// What has the pid of this process is of an earlier one, because nothing of ours is there yet.
pub fn sweep(parent: &Path) {
    for path in directories(parent) {
        let server = path.file_name().and_then(|name| server_of(name.to_str()?));
        if server.is_some_and(|pid| !is_alive(pid)) {
            remove(&path);
        }
    }
}

/// The server has ended and this is its guardian: leaves nothing.
pub fn clear(parent: &Path) {
    move_back(parent);
    sweep(parent);
}

/// Moves this process and its guardian from `parent` into a group of their own.
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

/// Undoes [`move_aside`], for whoever is still there.
pub fn move_back(parent: &Path) {
    let groups = directories(parent);
    let is_own = |path: &&PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        server_of(name).is_some() && name.ends_with(OWN) && members(path).contains(&process::id())
    };
    let Some(own) = groups.iter().find(is_own) else { return };
    // Another server may rely on what is limited here.
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

/// Who is in a group.
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
    fn only_names_of_our_own_making_are_ever_removed() {
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
