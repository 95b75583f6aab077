//! Directories that stand where a protected name is missing, so that a sandboxed process cannot make it.
//!
//! Only an existing name can be mounted read-only, so the server makes an empty directory for as long as it is needed:
//! counted over all sandboxes of this server here, and over all servers of the user in a journal. It is removed with
//! its last user, and only if it is still empty and still the same.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use exec_server_os::{PlaceholderClaim, PlaceholderJournal};

/// The placeholders of a server.
#[derive(Debug)]
pub struct Placeholders {
    journal: PlaceholderJournal,
    /// How many need each placeholder; only ever held for a moment.
    users: Mutex<HashMap<PathBuf, usize>>,
    /// The directories that they are in.
    roots: Mutex<HashMap<PathBuf, Arc<Root>>>,
}

/// One directory; whoever changes its placeholders holds the lock meanwhile.
type Root = Mutex<Option<PlaceholderClaim>>;

/// The use of placeholders in one directory.
#[derive(Debug)]
pub struct Placeholder {
    root: PathBuf,
    names: Vec<OsString>,
    all: Arc<Placeholders>,
}

impl Placeholders {
    /// None yet.
    pub fn new(journal: PlaceholderJournal) -> Arc<Self> {
        Arc::new(Self { journal, users: Mutex::default(), roots: Mutex::default() })
    }

    /// Removes what servers have left behind that ended too suddenly. May block.
    pub fn sweep(&self) {
        self.journal.sweep();
    }

    /// Where is written down what is needed, if it is anywhere: nobody in a sandbox may get there.
    pub fn journal_dir(&self) -> Option<&Path> {
        self.journal.dir()
    }

    /// Whether what is at `path` is one that this server needs.
    pub fn stands_at(&self, path: &Path) -> bool {
        self.users.lock().expect("no holder panics").contains_key(path)
    }

    /// Makes sure that there is something at each of the names; nothing to hold if there is something else already.
    pub fn take(
        self: &Arc<Self>,
        root: &Path,
        names: &[&OsStr],
    ) -> io::Result<Option<Placeholder>> {
        let shared = self.root(root);
        let mut claim = shared.lock().expect("no holder panics");
        if claim.is_none() {
            *claim = self.journal.claim(root)?;
        }
        let held = match &mut *claim {
            Some(claim) => claim.hold(names),
            None => Ok(Vec::new()),
        };
        let names: Vec<OsString> = match &held {
            Ok(held) => held.iter().map(|name| (*name).to_owned()).collect(),
            Err(_) => Vec::new(),
        };
        {
            let mut users = self.users.lock().expect("no holder panics");
            for name in &names {
                *users.entry(root.join(name)).or_default() += 1;
            }
        }
        if names.is_empty() {
            self.give_up(root, &mut claim);
            drop(claim);
            self.forget(root, &shared);
            return held.map(|_| None);
        }
        Ok(Some(Placeholder { root: root.to_owned(), names, all: self.clone() }))
    }

    fn root(&self, root: &Path) -> Arc<Root> {
        let mut roots = self.roots.lock().expect("no holder panics");
        roots.entry(root.to_owned()).or_default().clone()
    }

    /// Removes what nobody needs any more.
    fn give_up(&self, root: &Path, claim: &mut Option<PlaceholderClaim>) {
        let users = self.users.lock().expect("no holder panics");
        let needed: Vec<OsString> = users
            .keys()
            .filter(|path| path.parent() == Some(root))
            .filter_map(|path| path.file_name().map(OsStr::to_owned))
            .collect();
        drop(users);
        let done = match claim.take() {
            Some(held) if needed.is_empty() => held.end(),
            Some(held) => claim.insert(held).give_up(|name| needed.iter().any(|it| it == name)),
            None => Ok(()),
        };
        if let Err(error) = done {
            tracing::warn!(%error, root = %root.display(), "a placeholder could not be removed");
        }
    }

    fn forget(&self, root: &Path, shared: &Arc<Root>) {
        let mut roots = self.roots.lock().expect("no holder panics");
        // The map's and ours: whoever else has it may be about to make a claim.
        if Arc::strong_count(shared) == 2 && shared.try_lock().is_ok_and(|claim| claim.is_none()) {
            roots.remove(root);
        }
    }
}

impl Drop for Placeholder {
    fn drop(&mut self) {
        let shared = self.all.root(&self.root);
        let mut claim = shared.lock().expect("no holder panics");
        let mut is_any_free = false;
        {
            let mut users = self.all.users.lock().expect("no holder panics");
            for name in &self.names {
                let path = self.root.join(name);
                if let Some(count) = users.get_mut(&path) {
                    *count -= 1;
                    if *count == 0 {
                        users.remove(&path);
                        is_any_free = true;
                    }
                }
            }
        }
        if is_any_free {
            self.all.give_up(&self.root, &mut claim);
        }
        drop(claim);
        self.all.forget(&self.root, &shared);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Place {
        dir: tempfile::TempDir,
        all: Arc<Placeholders>,
    }

    impl Place {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            std::fs::create_dir(dir.path().join("work")).unwrap();
            let journal = PlaceholderJournal::open(&dir.path().join("state")).unwrap();
            Self { dir, all: Placeholders::new(journal) }
        }

        fn path(&self, name: &str) -> PathBuf {
            self.dir.path().join("work").join(name)
        }

        fn take(&self, names: &[&str]) -> Option<Placeholder> {
            let names: Vec<&OsStr> = names.iter().map(OsStr::new).collect();
            self.all.take(&self.path(""), &names).unwrap()
        }

        fn is_forgotten(&self) -> bool {
            let is_empty = self.dir.path().join("state").read_dir().unwrap().count() == 0;
            is_empty
                && self.all.roots.lock().unwrap().is_empty()
                && self.all.users.lock().unwrap().is_empty()
        }
    }

    #[test]
    fn a_placeholder_is_there_as_long_as_anybody_needs_it() {
        let place = Place::new();
        let first = place.take(&[".git", ".aws"]).unwrap();
        let second = place.take(&[".git"]).unwrap();
        assert!(place.path(".git").is_dir() && place.path(".aws").is_dir());
        drop(first);
        assert!(place.path(".git").is_dir() && !place.path(".aws").exists());
        drop(second);
        assert!(!place.path(".git").exists() && place.is_forgotten());
    }

    #[test]
    fn a_placeholder_that_somebody_removed_is_made_again_for_the_next() {
        let place = Place::new();
        let _first = place.take(&[".git"]).unwrap();
        std::fs::remove_dir(place.path(".git")).unwrap();
        let _second = place.take(&[".git"]).unwrap();
        assert!(place.path(".git").is_dir());
    }

    #[test]
    fn what_is_there_already_is_left_alone() {
        let place = Place::new();
        std::fs::create_dir(place.path(".git")).unwrap();
        assert!(place.take(&[".git"]).is_none());
        assert!(place.path(".git").is_dir());
        let missing = place.path("missing");
        assert!(place.all.take(&missing, &[OsStr::new(".git")]).unwrap().is_none());
        assert!(place.is_forgotten());
    }

    #[test]
    fn a_placeholder_that_somebody_filled_stays() {
        let place = Place::new();
        let held = place.take(&[".codex"]).unwrap();
        std::fs::remove_dir(place.path(".codex")).unwrap();
        std::fs::create_dir(place.path(".codex")).unwrap();
        std::fs::write(place.path(".codex/mine"), "").unwrap();
        drop(held);
        assert!(place.path(".codex/mine").exists());
    }
}
