//! Read-only and denied places that do not exist yet, where a sandbox can write: nobody inside may make them.
//!
//! Only what is there can be mounted over. So something has to stand at the first name of the path that is missing, as
//! at a missing protected name; and while it stands, everything behind that name is missing for the sandbox.

use std::collections::{BTreeMap, HashMap};
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use exec_server_os::{Place, PlaceAccess, View};

use super::placeholders::{Placeholder, Placeholders};
use super::read_only;

/// The first name of a path that is missing.
#[derive(Debug, PartialEq, Eq)]
pub struct Missing {
    /// The directory that it would be in, without links.
    parent: PathBuf,
    name: OsString,
    /// Whether there is nothing behind it.
    is_last: bool,
}

impl Missing {
    /// The path up to it.
    pub fn path(&self) -> PathBuf {
        self.parent.join(&self.name)
    }
}

/// Sees to it that none of the view's places can be made by those inside; changes the view to match. May block.
pub fn hold(
    placeholders: &Arc<Placeholders>,
    view: &mut View,
    held: &mut Vec<Placeholder>,
) -> io::Result<()> {
    if !view.places.iter().any(|place| place.access == PlaceAccess::Writable) {
        return Ok(());
    }
    let mut wanted: BTreeMap<PathBuf, Vec<OsString>> = BTreeMap::new();
    let mut more = Vec::new();
    let innermost = Innermost::of(view);
    for place in view.places.iter().filter(|place| place.access != PlaceAccess::Writable) {
        let Some(missing) = first_missing(&place.path) else { continue };
        if innermost.access(&missing.parent) != Some(PlaceAccess::Writable) {
            continue;
        }
        // A file in the way could be replaced by a directory.
        if !missing.parent.is_dir() {
            more.push(read_only(&missing.parent));
            continue;
        }
        // The name may be missing because something stands for a name before it.
        if looks_like_placeholder(&missing.parent)
            && let (Some(root), Some(name)) = (missing.parent.parent(), missing.parent.file_name())
            && let Some(placeholder) = placeholders.take(root, &[name])?
        {
            held.push(placeholder);
            more.push(read_only(&missing.parent));
            continue;
        }
        let path = missing.path();
        let access = if missing.is_last { place.access } else { PlaceAccess::ReadOnly };
        more.push(Place { path, access });
        wanted.entry(missing.parent).or_default().push(missing.name);
    }
    for (root, names) in &wanted {
        let names: Vec<&OsStr> = names.iter().map(OsString::as_os_str).collect();
        held.extend(placeholders.take(root, &names)?);
    }
    // What could not be made here can be made by nobody inside either.
    view.needed.extend(more.iter().map(|place| place.path.clone()).filter(|path| path.exists()));
    view.places.append(&mut more);
    Ok(())
}

/// More links than this in one path lead in a circle.
const MAX_LINKS: usize = 40;

/// Nothing if all of it is there, or if nobody can tell.
pub fn first_missing(path: &Path) -> Option<Missing> {
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
        // A link to nothing: whoever makes what it names makes the path.
        path = parent.join(target);
        path.extend(names.iter().rev());
    }
    None
}

/// The places of a view by their paths, so that many can be asked about many.
pub struct Innermost<'a>(HashMap<&'a Path, PlaceAccess>);

impl<'a> Innermost<'a> {
    /// Of several places with the same path the last one counts.
    pub fn of(view: &'a View) -> Self {
        Self(view.places.iter().map(|place| (place.path.as_path(), place.access)).collect())
    }

    /// What the innermost place around a path says.
    pub fn access(&self, path: &Path) -> Option<PlaceAccess> {
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
