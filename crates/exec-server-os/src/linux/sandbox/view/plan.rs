//! Decides what is mounted where; knows nothing of descriptors.
//!
//! | wish | on read-only ground | on writable ground | on ground of our own making | in `/dev`, `/proc` |
//! |---|---|---|---|---|
//! | writable | open | nothing to do | open | refused |
//! | read-only | nothing to do | freeze | open, if it may show more | refused |
//! | denied | hide | hide | nothing is there | hide |
//! | empty | hide | hide | nothing is there | nothing to do |
//!
//! What is mounted on writable ground has its ancestors pinned: a name cannot be renamed while something is mounted on
//! it, so what is protected cannot be moved out of its protection.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::wishes::{Want, Wishes};

/// What is under a path before anything is done there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ground {
    ReadOnly,
    Writable,
    /// A file system of our own, in which mount points can be made.
    Scaffold,
    /// `/dev` and `/proc`: nothing of the host is in there.
    Private,
}

/// What is done at a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// A directory is mounted on itself, so that its name stays.
    Pin,
    /// The same for a symbolic link.
    PinLink,
    /// A symbolic link of the host is made again.
    ShowLink,
    /// What is there becomes read-only.
    Freeze,
    /// What is on the host is mounted.
    Open { writable: bool, target: Target },
    /// What is there is covered.
    Hide(Cover),
}

/// What something is mounted on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// The same file.
    Same,
    /// A mount point that has to be made.
    Made,
}

/// What hides something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cover {
    /// Nobody can look into it.
    Closed,
    /// Nobody can look into it, but through it to an open place.
    Passage,
    /// Everybody can see that it is empty.
    Empty,
    /// The same, except for an open place.
    EmptyPassage,
}

/// What to do, outer paths first.
pub fn plan(base: Ground, wishes: &Wishes) -> BTreeMap<PathBuf, Action> {
    let mut grounds = Grounds::new(base);
    let mut actions = BTreeMap::new();
    for (path, wish) in &wishes.places {
        let (around, under) = grounds.at(path);
        let Some(action) = decide(path, wish.want, under) else { continue };
        if under == Ground::Writable {
            pin(&mut actions, around, path);
        }
        actions.insert(path.clone(), action);
        grounds.0.insert(path.clone(), ground_after(action));
    }
    for (path, link) in &wishes.links {
        let Some(directory) = path.parent() else { continue };
        match grounds.at(directory) {
            (around, Ground::Writable) if link.keep => {
                pin(&mut actions, around, path);
                actions.entry(path.clone()).or_insert(Action::PinLink);
            }
            (_, Ground::Scaffold) if link.show => {
                actions.entry(path.clone()).or_insert(Action::ShowLink);
            }
            _ => {}
        }
    }
    open_passages(&mut actions);
    actions
}

fn decide(path: &Path, want: Want, ground: Ground) -> Option<Action> {
    use Ground::{Private, ReadOnly, Scaffold, Writable};
    let open = |writable, target| Some(Action::Open { writable, target });
    match (want, ground) {
        (Want::Writable, ReadOnly) => open(true, Target::Same),
        (Want::Writable, Scaffold) => open(true, Target::Made),
        (Want::Writable, Writable | Private) => None,
        (Want::ReadOnly { .. }, Writable) => Some(Action::Freeze),
        (Want::ReadOnly { may_widen: true }, Scaffold) => open(false, Target::Made),
        (Want::ReadOnly { .. }, _) => None,
        (Want::Denied, ReadOnly | Writable | Private) => Some(Action::Hide(Cover::Closed)),
        (Want::Denied, Scaffold) => {
            (path == Path::new("/dev/shm")).then_some(Action::Hide(Cover::Closed))
        }
        (Want::Empty, ReadOnly | Writable) => Some(Action::Hide(Cover::Empty)),
        (Want::Empty, Scaffold | Private) => None,
    }
}

fn ground_after(action: Action) -> Ground {
    match action {
        Action::Open { writable: true, .. } | Action::Pin => Ground::Writable,
        Action::Open { writable: false, .. } | Action::Freeze => Ground::ReadOnly,
        Action::Hide(_) | Action::PinLink | Action::ShowLink => Ground::Scaffold,
    }
}

/// Pins what lies between a writable place and something in it.
fn pin(actions: &mut BTreeMap<PathBuf, Action>, around: &Path, inner: &Path) {
    for directory in inner.ancestors().skip(1).take_while(|directory| *directory != around) {
        actions.entry(directory.to_path_buf()).or_insert(Action::Pin);
    }
}

/// Lets covers be passed that have something open below.
fn open_passages(actions: &mut BTreeMap<PathBuf, Action>) {
    let mut passages = Vec::new();
    for (path, action) in actions.iter() {
        let Action::Hide(cover) = action else { continue };
        let below = actions.range(path.clone()..).nth(1);
        if below.is_some_and(|(next, _)| next.starts_with(path)) {
            let cover = match cover {
                Cover::Closed | Cover::Passage => Cover::Passage,
                Cover::Empty | Cover::EmptyPassage => Cover::EmptyPassage,
            };
            passages.push((path.clone(), Action::Hide(cover)));
        }
    }
    actions.extend(passages);
}

/// The ground at every path that differs from what is around it.
struct Grounds(BTreeMap<PathBuf, Ground>);

impl Grounds {
    fn new(base: Ground) -> Self {
        Self(BTreeMap::from([
            ("/".into(), base),
            ("/dev".into(), Ground::Private),
            ("/dev/shm".into(), Ground::Scaffold),
            ("/proc".into(), Ground::Private),
        ]))
    }

    /// The innermost path around or at this one that has a ground of its own.
    fn at<'a>(&self, path: &'a Path) -> (&'a Path, Ground) {
        path.ancestors()
            .find_map(|around| self.0.get(around).map(|ground| (around, *ground)))
            .expect("every path is below the root")
    }
}

#[cfg(test)]
mod tests;
