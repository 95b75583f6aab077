//! Directories that were writable in any sandbox of this server, and so may contain symbolic links made there.
//!
//! Invariant: every such directory that still exists is inside one of the recorded roots; a root is dropped only if it is
//! gone, or replaced by one of its ancestors.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

/// The recorded roots, none of which is inside another.
pub type Roots = Arc<[PathBuf]>;

/// The directories that sandboxes of this server could write.
#[derive(Debug, Default)]
pub struct WritableRoots {
    roots: Mutex<Roots>,
}

/// Every start checks each of them.
const MAX_ROOTS: usize = 64;

impl WritableRoots {
    /// The current list.
    pub fn all(&self) -> Roots {
        self.roots.lock().expect("no holder panics").clone()
    }

    /// Adds a root; false if the list is no longer `judged_by`, so that the root must be checked again. May block.
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

/// Reduces the list to [`MAX_ROOTS`]: removes missing directories, then merges roots into common ancestors.
fn bounded(mut roots: Vec<PathBuf>, is_there: impl Fn(&Path) -> bool) -> Vec<PathBuf> {
    if roots.len() > MAX_ROOTS {
        roots.retain(|root| is_there(root));
    }
    while roots.len() > MAX_ROOTS {
        let mut held: BTreeMap<&Path, usize> = BTreeMap::new();
        // Never merge into `/`, inside which every path would be.
        for around in roots.iter().flat_map(|root| root.ancestors().skip(1)) {
            if around.parent().is_some() {
                *held.entry(around).or_default() += 1;
            }
        }
        // Choose the deepest ancestor that suffices, so that few other directories are covered.
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

    fn add(handed_out: &WritableRoots, path: &str) {
        assert!(handed_out.add(Path::new(path), &handed_out.all()));
    }

    #[test]
    fn a_root_inside_another_is_not_recorded() {
        let handed_out = WritableRoots::default();
        for path in ["/a/b", "/a/b", "/a/b/c", "/x", "/a/bc"] {
            add(&handed_out, path);
        }
        assert_eq!(*handed_out.all(), *paths(&["/a/b", "/x", "/a/bc"]));
        add(&handed_out, "/a");
        assert_eq!(*handed_out.all(), *paths(&["/x", "/a"]));
    }

    #[test]
    fn a_root_must_be_checked_against_the_current_list() {
        let handed_out = WritableRoots::default();
        let before = handed_out.all();
        add(&handed_out, "/a");
        assert!(!handed_out.add(Path::new("/b"), &before));
        assert!(handed_out.add(Path::new("/b"), &handed_out.all()));
    }

    #[test]
    fn many_roots_are_merged_into_common_ancestors() {
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
