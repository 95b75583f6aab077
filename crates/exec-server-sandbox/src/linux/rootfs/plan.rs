//! Decides the mounts of a rootfs from the resolved rules; uses no descriptors.
//!
//! | rule | on a read-only mount | on a writable mount | on a scaffold | in `/dev`, `/proc` |
//! |---|---|---|---|---|
//! | writable | open | nothing to do | open | refused |
//! | read-only | nothing to do | freeze | open, if it may show more | refused |
//! | denied | hide | hide | nothing is there | hide |
//! | empty | hide | hide | nothing is there | nothing to do |
//!
//! The ancestors of a mount inside a writable one are pinned: a directory with a mount on it cannot be renamed, so a
//! protected path cannot be moved away.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::resolved_rules::{Access, ResolvedRules};

/// The mount below a path before an action.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum BaseMount {
    ReadOnly,
    Writable,
    /// A tmpfs in which mount points can be created.
    Scaffold,
    /// `/dev` and `/proc`, without files of the host.
    Private,
}

/// The action at a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Bind-mounts a directory on itself, so that it cannot be renamed.
    Pin,
    /// Bind-mounts a symbolic link on itself.
    PinLink,
    /// Creates a copy of a symbolic link of the host.
    ShowLink,
    /// Makes the path read-only.
    Freeze,
    /// Mounts the host's file or directory.
    Open { writable: bool, target: Target },
    /// Covers the path.
    Hide(Mask),
}

/// The target of a mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// The same file.
    Same,
    /// A mount point that has to be created.
    Made,
}

/// The kind of cover.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mask {
    /// Neither readable nor searchable.
    Closed,
    /// Searchable only, to reach an open path below.
    Traversable,
    /// Readable and empty.
    Empty,
    /// Readable, with only the open paths below.
    EmptyPassage,
}

/// Computes the actions, outer paths first.
pub fn plan(base: BaseMount, rules: &ResolvedRules) -> BTreeMap<PathBuf, Action> {
    let mut base_mounts = BaseMounts::new(base);
    let mut actions = BTreeMap::new();
    for (path, rule) in &rules.places {
        let (around, under) = base_mounts.at(path);
        let Some(action) = decide(path, rule.access, under) else { continue };
        if under == BaseMount::Writable {
            pin(&mut actions, around, path);
        }
        actions.insert(path.clone(), action);
        base_mounts.0.insert(path.clone(), base_mount_after(action));
    }
    for (path, link) in &rules.links {
        let Some(directory) = path.parent() else { continue };
        match base_mounts.at(directory) {
            (around, BaseMount::Writable) if link.keep => {
                pin(&mut actions, around, path);
                actions.entry(path.clone()).or_insert(Action::PinLink);
            }
            (_, BaseMount::Scaffold) if link.show => {
                actions.entry(path.clone()).or_insert(Action::ShowLink);
            }
            _ => {}
        }
    }
    open_passages(&mut actions);
    actions
}

fn decide(path: &Path, access: Access, base_mount: BaseMount) -> Option<Action> {
    use BaseMount::{Private, ReadOnly, Scaffold, Writable};
    let open = |writable, target| Some(Action::Open { writable, target });
    match (access, base_mount) {
        (Access::Writable, ReadOnly) => open(true, Target::Same),
        (Access::Writable, Scaffold) => open(true, Target::Made),
        (Access::Writable, Writable | Private) => None,
        (Access::ReadOnly { .. }, Writable) => Some(Action::Freeze),
        (Access::ReadOnly { may_widen: true }, Scaffold) => open(false, Target::Made),
        (Access::ReadOnly { .. }, _) => None,
        (Access::Denied, ReadOnly | Writable | Private) => Some(Action::Hide(Mask::Closed)),
        (Access::Denied, Scaffold) => {
            (path == Path::new("/dev/shm")).then_some(Action::Hide(Mask::Closed))
        }
        (Access::Empty, ReadOnly | Writable) => Some(Action::Hide(Mask::Empty)),
        (Access::Empty, Scaffold | Private) => None,
    }
}

fn base_mount_after(action: Action) -> BaseMount {
    match action {
        Action::Open { writable: true, .. } | Action::Pin => BaseMount::Writable,
        Action::Open { writable: false, .. } | Action::Freeze => BaseMount::ReadOnly,
        Action::Hide(_) | Action::PinLink | Action::ShowLink => BaseMount::Scaffold,
    }
}

/// Pins the directories between a writable mount and a path in it.
fn pin(actions: &mut BTreeMap<PathBuf, Action>, around: &Path, inner: &Path) {
    for directory in inner.ancestors().skip(1).take_while(|directory| *directory != around) {
        actions.entry(directory.to_path_buf()).or_insert(Action::Pin);
    }
}

/// Makes covers searchable that have an open path below.
fn open_passages(actions: &mut BTreeMap<PathBuf, Action>) {
    let mut passages = Vec::new();
    for (path, action) in actions.iter() {
        let Action::Hide(cover) = action else { continue };
        let below = actions.range(path.clone()..).nth(1);
        if below.is_some_and(|(next, _)| next.starts_with(path)) {
            let cover = match cover {
                Mask::Closed | Mask::Traversable => Mask::Traversable,
                Mask::Empty | Mask::EmptyPassage => Mask::EmptyPassage,
            };
            passages.push((path.clone(), Action::Hide(cover)));
        }
    }
    actions.extend(passages);
}

/// The base mount at every path that differs from its parent.
struct BaseMounts(BTreeMap<PathBuf, BaseMount>);

impl BaseMounts {
    fn new(base: BaseMount) -> Self {
        Self(BTreeMap::from([
            ("/".into(), base),
            ("/dev".into(), BaseMount::Private),
            ("/dev/shm".into(), BaseMount::Scaffold),
            ("/proc".into(), BaseMount::Private),
        ]))
    }

    /// The innermost ancestor or self with its own base mount.
    fn at<'a>(&self, path: &'a Path) -> (&'a Path, BaseMount) {
        path.ancestors()
            .find_map(|around| self.0.get(around).map(|base_mount| (around, *base_mount)))
            .expect("every path is below the root")
    }
}

#[cfg(test)]
mod tests;
