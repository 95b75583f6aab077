//! Detects and enables cgroup controllers for children.

use std::path::Path;
use std::{fs, io};

use super::remains;
use crate::limits::Controllers;
use crate::linux::guardian;

const NAMES: [&str; 3] = ["memory", "cpu", "pids"];

/// The controllers that this cgroup could enable for its children.
pub fn available(path: &Path) -> Controllers {
    read(&path.join("cgroup.controllers"))
}

/// Enables the available controllers for the children of a cgroup, and returns those that are enabled then.
///
/// The cgroup must have no members, so this process and its guardian move into a leaf. With members, some controllers
/// could still be enabled, and the cgroup could not have ordinary children any more.
pub fn switch_on(path: &Path) -> Controllers {
    let control = path.join("cgroup.subtree_control");
    let (has, on) = (names(&path.join("cgroup.controllers")), names(&control));
    let is_missing =
        |name: &&str| has.iter().any(|had| had == name) && !on.iter().any(|on| on == name);
    let missing: Vec<&str> = NAMES.into_iter().filter(is_missing).collect();
    if !missing.is_empty() {
        match make_room(path) {
            Ok(()) => {
                for name in missing {
                    if let Err(error) = fs::write(&control, format!("+{name}")) {
                        tracing::warn!(%error, name, "could not switch on a controller");
                    }
                }
            }
            Err(error) => {
                tracing::warn!(%error, path = %path.display(), "this cgroup cannot limit processes");
            }
        }
    }
    read(&control)
}

/// Moves this server out of the cgroup; fails if other processes remain in it.
fn make_room(path: &Path) -> io::Result<()> {
    // Only the root cgroup has no `cgroup.type`, and only the root may have members and controllers.
    let is_root = !path.join("cgroup.type").exists();
    if is_root || remains::members(path).is_empty() {
        return Ok(());
    }
    remains::move_aside(path, guardian::pid())?;
    let others = remains::members(path);
    if others.is_empty() {
        return Ok(());
    }
    remains::move_back(path);
    Err(io::Error::other(format!("other processes are in it: {others:?}")))
}

/// Disables all controllers, so that the cgroup may have members again.
pub fn switch_off(path: &Path) {
    for name in NAMES {
        // Ignore the error: the controller may not have been enabled.
        let _ = fs::write(path.join("cgroup.subtree_control"), format!("-{name}"));
    }
}

fn read(path: &Path) -> Controllers {
    let names = names(path);
    let has = |name: &str| names.iter().any(|had| had == name);
    Controllers { memory: has("memory"), cpu: has("cpu"), pids: has("pids") }
}

fn names(path: &Path) -> Vec<String> {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.split_ascii_whitespace().map(str::to_owned).collect()
}
