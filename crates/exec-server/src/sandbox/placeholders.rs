//! Directories that stand where a protected name is missing, so that a sandboxed process cannot make it.
//!
//! Only an existing name can be mounted read-only, so the server makes an empty directory for as long as it is needed:
//! counted over all sandboxes, removed with the last of them, and only if it is still empty. The guardian removes it if
//! the server dies.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use exec_server_os::LitterNote;

/// The placeholders of a server.
#[derive(Debug, Default)]
pub struct Placeholders {
    made: Mutex<HashMap<PathBuf, Made>>,
}

#[derive(Debug)]
struct Made {
    users: usize,
    _note: Option<LitterNote>,
}

/// The use of one placeholder.
#[derive(Debug)]
pub struct Placeholder {
    path: PathBuf,
    all: Arc<Placeholders>,
}

impl Placeholders {
    /// Whether what is at `path` is one of ours.
    pub fn stands_at(&self, path: &Path) -> bool {
        self.made.lock().expect("no holder panics").contains_key(path)
    }

    /// Makes sure that there is something at `path`; nothing to hold if there is something else already.
    pub fn take(self: &Arc<Self>, path: &Path) -> io::Result<Option<Placeholder>> {
        let Some(root) = path.parent() else { return Ok(None) };
        if !root.is_dir() {
            return Ok(None);
        }
        let mut made = self.made.lock().expect("no holder panics");
        let note = LitterNote::of_directory(path);
        let is_new = match make(path) {
            Ok(()) => true,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => false,
            Err(error) => return Err(error),
        };
        match made.get_mut(path) {
            // Somebody outside may have removed it since, so it is made again.
            Some(known) => known.users += 1,
            None if is_new => drop(made.insert(path.to_owned(), Made { users: 1, _note: note })),
            None => return Ok(None),
        }
        Ok(Some(Placeholder { path: path.to_owned(), all: self.clone() }))
    }
}

/// Readable and not writable, so that tools which look at it find nothing and leave it alone.
#[cfg(unix)]
fn make(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    std::fs::DirBuilder::new().mode(0o555).create(path)
}

#[cfg(not(unix))]
fn make(path: &Path) -> io::Result<()> {
    std::fs::create_dir(path)
}

impl Drop for Placeholder {
    fn drop(&mut self) {
        let mut made = self.all.made.lock().expect("no holder panics");
        let Some(known) = made.get_mut(&self.path) else { return };
        known.users -= 1;
        if known.users == 0 {
            // Somebody outside may have put something into it; then it is theirs.
            let _ = std::fs::remove_dir(&self.path);
            made.remove(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_placeholder_is_there_as_long_as_anybody_needs_it() {
        let dir = tempfile::tempdir().unwrap();
        let (all, path) = (Arc::<Placeholders>::default(), dir.path().join(".git"));
        let first = all.take(&path).unwrap().unwrap();
        let second = all.take(&path).unwrap().unwrap();
        assert!(path.is_dir());
        drop(first);
        assert!(path.is_dir());
        drop(second);
        assert!(!path.exists());
    }

    #[test]
    fn a_placeholder_that_somebody_removed_is_made_again_for_the_next() {
        let dir = tempfile::tempdir().unwrap();
        let (all, path) = (Arc::<Placeholders>::default(), dir.path().join(".git"));
        let _first = all.take(&path).unwrap().unwrap();
        std::fs::remove_dir(&path).unwrap();
        let _second = all.take(&path).unwrap().unwrap();
        assert!(path.is_dir());
    }

    #[test]
    fn what_is_there_already_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let (all, path) = (Arc::<Placeholders>::default(), dir.path().join(".git"));
        std::fs::create_dir(&path).unwrap();
        assert!(all.take(&path).unwrap().is_none());
        assert!(path.is_dir());
        assert!(all.take(&dir.path().join("missing/.git")).unwrap().is_none());
    }

    #[test]
    fn a_placeholder_that_somebody_filled_stays() {
        let dir = tempfile::tempdir().unwrap();
        let (all, path) = (Arc::<Placeholders>::default(), dir.path().join(".codex"));
        let held = all.take(&path).unwrap().unwrap();
        std::fs::remove_dir(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        std::fs::write(path.join("mine"), "").unwrap();
        drop(held);
        assert!(path.join("mine").exists());
    }
}
