//! What a cgroup can limit for its children, and switching that on.

use std::path::Path;
use std::{fs, io};

use super::remains;
use crate::limits::Controllers;
use crate::linux::guardian;

const NAMES: [&str; 3] = ["memory", "cpu", "pids"];

/// What could be limited in this cgroup.
pub fn available(path: &Path) -> Controllers {
    read(&path.join("cgroup.controllers"))
}

/// Switches on for the children of a cgroup what it has, and says what they have then.
///
/// That needs a cgroup without members, so this process and its guardian move into a leaf if they are in the way. It must
/// not be tried with members: some controllers would be switched on, and the cgroup could have no more ordinary children.
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

/// Leaves the cgroup without members.
fn make_room(path: &Path) -> io::Result<()> {
    // Only the root of everything has none, and only it may have members.
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

/// Switches everything off, so that a process may be in this cgroup again.
pub fn switch_off(path: &Path) {
    for name in NAMES {
        // What was not on cannot be switched off, and needs not be.
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
