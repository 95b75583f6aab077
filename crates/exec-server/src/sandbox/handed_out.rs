//! Directories that a sandboxed process could write, and so could fill with links to elsewhere.
//!
//! Invariant: a directory that was handed out stays in one of those that are kept for as long as it is there; what is
//! forgotten is only ever forgotten in favour of a larger one.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

/// The directories, none of which lies in another.
pub type Roots = Arc<[PathBuf]>;

/// What a server has handed out.
#[derive(Debug, Default)]
pub struct HandedOut {
    roots: Mutex<Roots>,
}

/// Each of them is looked up for every start.
const MAX_ROOTS: usize = 64;

impl HandedOut {
    /// All of them.
    pub fn all(&self) -> Roots {
        self.roots.lock().expect("no holder panics").clone()
    }

    /// Adds one; false if there are others than those that it was judged by, and so must be judged again. May block.
    pub fn add(&self, root: &Path, judged_by: &Roots) -> bool {
        let mut roots = self.roots.lock().expect("no holder panics");
        if !Arc::ptr_eq(&roots, judged_by) {
            return false;
        }
        if !roots.iter().any(|around| root.starts_with(around)) {
            let others = roots.iter().filter(|other| !other.starts_with(root)).cloned();
            let all: Vec<PathBuf> = others.chain([root.to_owned()]).collect();
            *roots = bounded(all, |path| path.symlink_metadata().is_ok()).into();
        }
        true
    }
}

/// Few enough: without what is not there any more, and then with directories that hold many in place of those.
fn bounded(mut roots: Vec<PathBuf>, is_there: impl Fn(&Path) -> bool) -> Vec<PathBuf> {
    if roots.len() > MAX_ROOTS {
        roots.retain(|root| is_there(root));
    }
    while roots.len() > MAX_ROOTS {
        let mut held: BTreeMap<&Path, usize> = BTreeMap::new();
        // Never the root of all: then no link would count any more.
        for around in roots.iter().flat_map(|root| root.ancestors().skip(1)) {
            if around.parent().is_some() {
                *held.entry(around).or_default() += 1;
            }
        }
        // The smallest that is enough, so that as little as possible is taken for written.
        let enough = held.iter().filter(|(_, count)| roots.len() - **count < MAX_ROOTS);
        let smallest = enough.max_by_key(|(path, _)| path.components().count());
        let largest = || held.iter().max_by_key(|(_, count)| **count);
        let Some((around, _)) = smallest.or_else(largest) else { break };
        let around = around.to_path_buf();
        let is_single = held[around.as_path()] < 2;
        if is_single {
            break;
        }
        roots.retain(|root| !root.starts_with(&around));
        roots.push(around);
    }
    roots
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(list: &[&str]) -> Vec<PathBuf> {
        list.iter().map(PathBuf::from).collect()
    }

    fn add(handed_out: &HandedOut, path: &str) {
        assert!(handed_out.add(Path::new(path), &handed_out.all()));
    }

    #[test]
    fn what_lies_in_another_is_not_kept_apart() {
        let handed_out = HandedOut::default();
        for path in ["/a/b", "/a/b", "/a/b/c", "/x", "/a/bc"] {
            add(&handed_out, path);
        }
        assert_eq!(*handed_out.all(), *paths(&["/a/b", "/x", "/a/bc"]));
        add(&handed_out, "/a");
        assert_eq!(*handed_out.all(), *paths(&["/x", "/a"]));
    }

    #[test]
    fn a_root_is_judged_by_all_others() {
        let handed_out = HandedOut::default();
        let before = handed_out.all();
        add(&handed_out, "/a");
        assert!(!handed_out.add(Path::new("/b"), &before));
        assert!(handed_out.add(Path::new("/b"), &handed_out.all()));
    }

    #[test]
    fn many_are_held_by_few() {
        let many: Vec<PathBuf> =
            (0..=MAX_ROOTS).map(|number| format!("/t/jobs/{number}").into()).collect();
        let all = [paths(&["/home/me/work"]), many.clone()].concat();
        assert_eq!(bounded(all.clone(), |_| true), paths(&["/home/me/work", "/t/jobs"]));
        let is_there = |path: &Path| path != Path::new("/t/jobs/3") && path.starts_with("/t");
        assert_eq!(bounded(all.clone(), is_there).len(), MAX_ROOTS);
        let top: Vec<PathBuf> = (0..=MAX_ROOTS).map(|number| format!("/{number}").into()).collect();
        assert_eq!(bounded(top.clone(), |_| true), top);
        let spread: Vec<PathBuf> =
            (0..300).map(|number| format!("/t/{}/{number}", number % 90).into()).collect();
        let held = bounded(spread.clone(), |_| true);
        assert!(held.len() <= MAX_ROOTS);
        assert!(spread.iter().all(|path| held.iter().any(|around| path.starts_with(around))));
    }
}
