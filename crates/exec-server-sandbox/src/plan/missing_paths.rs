//! Keeps a sandbox from creating read-only and denied paths that do not exist yet inside a writable directory.
//!
//! Only an existing name can be mounted over. So a placeholder is created at the first missing component of the path;
//! while it exists, the sandbox cannot create anything below that name.

use std::collections::{BTreeMap, HashMap};
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::{MountAccess, MountRule, RootfsSpec, WorkClock};

use super::PlanError;
use super::placeholders::{Placeholder, Placeholders};
use super::{read_only, set_up};

/// The first missing component of a path.
#[derive(Debug, PartialEq, Eq)]
pub struct Missing {
    /// The real path of its parent.
    parent: PathBuf,
    name: OsString,
    /// Whether it is the last component of the path.
    is_last: bool,
}

impl Missing {
    /// The path up to and including the missing component.
    pub fn path(&self) -> PathBuf {
        self.parent.join(&self.name)
    }
}

/// Creates placeholders for the missing paths of `view`, and adds their mount rules. May block.
pub fn hold(
    placeholders: &Arc<Placeholders>,
    view: &mut RootfsSpec,
    held: &mut Vec<Placeholder>,
    clock: &WorkClock,
) -> Result<(), PlanError> {
    let failed = set_up("placeholder");
    let too_costly = |_| PlanError::TooCostly;
    if !view.places.iter().any(|place| place.access == MountAccess::Writable) {
        return Ok(());
    }
    let mut wanted: BTreeMap<PathBuf, Vec<OsString>> = BTreeMap::new();
    let mut more = Vec::new();
    let innermost = LongestPrefix::of(view);
    for place in view.places.iter().filter(|place| place.access != MountAccess::Writable) {
        clock.check().map_err(too_costly)?;
        let Some(missing) = first_missing(&place.path) else { continue };
        if innermost.access(&missing.parent) != Some(MountAccess::Writable) {
            continue;
        }
        // A process in the sandbox could replace a file at the parent by a directory.
        if !missing.parent.is_dir() {
            more.push(read_only(&missing.parent));
            continue;
        }
        // The parent may itself be a placeholder for an earlier component.
        if looks_like_placeholder(&missing.parent)
            && let (Some(root), Some(name)) = (missing.parent.parent(), missing.parent.file_name())
            && let Some(placeholder) = placeholders.take(root, root, &[name]).map_err(&failed)?
        {
            held.push(placeholder);
            more.push(read_only(&missing.parent));
            continue;
        }
        let path = missing.path();
        let access = if missing.is_last { place.access } else { MountAccess::ReadOnly };
        more.push(MountRule { path, access });
        wanted.entry(missing.parent).or_default().push(missing.name);
    }
    for (root, names) in &wanted {
        let names: Vec<&OsStr> = names.iter().map(OsString::as_os_str).collect();
        clock.check().map_err(too_costly)?;
        held.extend(placeholders.take(root, root, &names).map_err(&failed)?);
    }
    // A name that could not be created here cannot be created inside the sandbox either.
    view.needed.extend(more.iter().map(|place| place.path.clone()).filter(|path| path.exists()));
    view.places.append(&mut more);
    Ok(())
}

/// The kernel's limit on links in one path; more are treated as a loop.
const MAX_LINKS: usize = 40;

/// `None` if the whole path exists, or if it cannot be resolved.
pub fn first_missing(path: &Path) -> Option<Missing> {
    if path.metadata().is_ok() {
        return None;
    }
    let mut path = path.to_owned();
    for _ in 0..MAX_LINKS {
        let mut names = Vec::new();
        let mut there = path.as_path();
        let parent = loop {
            match there.canonicalize() {
                Ok(real) => break real,
                Err(error) => match error.kind() {
                    io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {
                        names.push(there.file_name()?.to_owned());
                        there = there.parent()?;
                    }
                    _ => return None,
                },
            }
        };
        let name = names.pop()?;
        let Ok(target) = parent.join(&name).read_link() else {
            return Some(Missing { parent, name, is_last: names.is_empty() });
        };
        // A dangling link: creating its target creates the path, so continue with the target.
        path = parent.join(target);
        path.extend(names.iter().rev());
    }
    None
}

/// The mount rules of a view by path, for fast lookups.
pub struct LongestPrefix<'a>(HashMap<&'a Path, MountAccess>);

impl<'a> LongestPrefix<'a> {
    /// Of several rules with the same path the last one wins.
    pub fn of(view: &'a RootfsSpec) -> Self {
        Self(view.places.iter().map(|place| (place.path.as_path(), place.access)).collect())
    }

    /// The access of the innermost rule around a path.
    pub fn access(&self, path: &Path) -> Option<MountAccess> {
        path.ancestors().find_map(|around| self.0.get(around).copied())
    }
}

fn looks_like_placeholder(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|found| found.permissions().readonly())
        && path.read_dir().is_ok_and(|mut entries| entries.next().is_none())
}

#[cfg(all(test, unix))]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn missing(parent: &Path, name: &str, is_last: bool) -> Option<Missing> {
        Some(Missing { parent: parent.to_owned(), name: name.into(), is_last })
    }

    #[test]
    fn the_first_missing_name_is_found_behind_links_too() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        std::fs::create_dir_all(root.join("a/b")).unwrap();
        std::fs::write(root.join("file"), "").unwrap();
        symlink("a/b", root.join("link")).unwrap();
        symlink("a/none/x", root.join("dangling")).unwrap();
        symlink("circle", root.join("circle")).unwrap();
        let find = |path: &str| first_missing(&root.join(path));
        assert_eq!(find("a/b"), None);
        assert_eq!(find("link"), None);
        assert_eq!(find("secret"), missing(&root, "secret", true));
        assert_eq!(find("c/d/secret"), missing(&root, "c", false));
        assert_eq!(find("link/secret"), missing(&root.join("a/b"), "secret", true));
        assert_eq!(find("dangling"), missing(&root.join("a"), "none", false));
        assert_eq!(find("dangling/y"), missing(&root.join("a"), "none", false));
        assert_eq!(find("file/secret"), missing(&root.join("file"), "secret", true));
        assert_eq!(find("circle/x"), None);
    }
}
