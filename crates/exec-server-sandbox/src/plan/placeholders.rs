//! Placeholder directories at missing protected names, so that a sandboxed process cannot create these names.
//!
//! Only an existing name can be mounted read-only, so the server creates an empty directory while a sandbox needs it. Uses
//! are counted here for the sandboxes of this server, and in a journal for all servers of the user. The directory is
//! removed after its last use, if it is still empty and still the same.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use crate::{PlaceholderClaim, PlaceholderDirectory, PlaceholderJournal};

/// The placeholders of a server.
#[derive(Debug)]
pub struct Placeholders {
    journal: PlaceholderJournal,
    /// Use counts; locked only briefly, never during I/O.
    users: Mutex<Users>,
    /// The directories that contain placeholders, by identity, because a path can lead to another directory at any time.
    roots: Mutex<HashMap<Identity, Arc<Root>>>,
}

/// Device and inode; unique while the directory is open.
type Identity = (u64, u64);

/// Number of uses of each placeholder.
#[derive(Debug, Default)]
struct Users {
    counts: HashMap<Identity, HashMap<OsString, usize>>,
    /// The same, by the paths that policies use.
    paths: HashMap<PathBuf, usize>,
}

impl Users {
    fn add(&mut self, root: Identity, known_as: &Path, name: &OsStr) {
        *self.counts.entry(root).or_default().entry(name.to_owned()).or_default() += 1;
        *self.paths.entry(known_as.join(name)).or_default() += 1;
    }

    /// Returns whether this was the last use.
    fn remove(&mut self, root: Identity, known_as: &Path, name: &OsStr) -> bool {
        leave(&mut self.paths, known_as.join(name));
        let Entry::Occupied(mut counts) = self.counts.entry(root) else { return false };
        let is_last = leave(counts.get_mut(), name.to_owned());
        if counts.get().is_empty() {
            counts.remove();
        }
        is_last
    }
}

fn leave<K: Eq + std::hash::Hash>(counts: &mut HashMap<K, usize>, key: K) -> bool {
    let Entry::Occupied(mut count) = counts.entry(key) else { return false };
    *count.get_mut() -= 1;
    let is_last = *count.get() == 0;
    if is_last {
        count.remove();
    }
    is_last
}

/// One directory; the lock is held while its placeholders change.
type Root = Mutex<Option<PlaceholderClaim>>;

/// A use of placeholders in one directory; dropping it ends the use.
#[derive(Debug)]
pub struct Placeholder {
    root: Identity,
    known_as: PathBuf,
    names: Vec<OsString>,
    all: Arc<Placeholders>,
}

impl Placeholders {
    /// An empty set of placeholders, recorded in `journal`.
    pub fn new(journal: PlaceholderJournal) -> Arc<Self> {
        Arc::new(Self { journal, users: Mutex::default(), roots: Mutex::default() })
    }

    /// Removes placeholders that killed servers have left behind. May block.
    pub fn sweep(&self) {
        self.journal.sweep();
    }

    /// Whether this server uses a placeholder at `path`.
    pub fn stands_at(&self, path: &Path) -> bool {
        self.users.lock().expect("no holder panics").paths.contains_key(path)
    }

    /// Creates placeholders at the missing names; `None` if there is no placeholder at any of them.
    ///
    /// `root` must not contain links (`ELOOP`); `known_as` is the path that the policy uses for it.
    pub fn take(
        self: &Arc<Self>,
        root: &Path,
        known_as: &Path,
        names: &[&OsStr],
    ) -> io::Result<Option<Placeholder>> {
        let Some(directory) = PlaceholderDirectory::open(root)? else { return Ok(None) };
        let root = directory.identity();
        let shared = self.root(root);
        let mut claim = shared.lock().expect("no holder panics");
        let held = match &mut *claim {
            Some(claim) => claim.hold(names),
            None => claim.insert(self.journal.claim(directory)?).hold(names),
        };
        let names: Vec<OsString> = match &held {
            Ok(held) => held.iter().map(|name| (*name).to_owned()).collect(),
            Err(_) => Vec::new(),
        };
        {
            let mut users = self.users.lock().expect("no holder panics");
            names.iter().for_each(|name| users.add(root, known_as, name));
        }
        if names.is_empty() {
            self.give_up(root, known_as, &mut claim);
            drop(claim);
            self.forget(root, &shared);
            return held.map(|_| None);
        }
        Ok(Some(Placeholder { root, known_as: known_as.to_owned(), names, all: self.clone() }))
    }

    fn root(&self, root: Identity) -> Arc<Root> {
        let mut roots = self.roots.lock().expect("no holder panics");
        roots.entry(root).or_default().clone()
    }

    /// Removes the placeholders that have no uses.
    fn give_up(&self, root: Identity, known_as: &Path, claim: &mut Option<PlaceholderClaim>) {
        let users = self.users.lock().expect("no holder panics");
        let needed: HashSet<OsString> =
            users.counts.get(&root).into_iter().flat_map(|names| names.keys().cloned()).collect();
        drop(users);
        let done = match claim.take() {
            Some(held) if needed.is_empty() => held.end(),
            Some(held) => claim.insert(held).give_up(|name| needed.contains(name)),
            None => Ok(()),
        };
        if let Err(error) = done {
            let root = known_as.display();
            tracing::warn!(%error, %root, "could not remove a placeholder");
        }
    }

    fn forget(&self, root: Identity, shared: &Arc<Root>) {
        let mut roots = self.roots.lock().expect("no holder panics");
        // Two references are the map's and the caller's; a third one may be about to make a claim.
        if Arc::strong_count(shared) == 2 && shared.try_lock().is_ok_and(|claim| claim.is_none()) {
            roots.remove(&root);
        }
    }
}

impl Drop for Placeholder {
    fn drop(&mut self) {
        let shared = self.all.root(self.root);
        let mut claim = shared.lock().expect("no holder panics");
        let mut is_any_free = false;
        {
            let mut users = self.all.users.lock().expect("no holder panics");
            for name in &self.names {
                is_any_free |= users.remove(self.root, &self.known_as, name);
            }
        }
        if is_any_free {
            self.all.give_up(self.root, &self.known_as, &mut claim);
        }
        drop(claim);
        self.all.forget(self.root, &shared);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Fixture {
        dir: tempfile::TempDir,
        all: Arc<Placeholders>,
    }

    impl Fixture {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            std::fs::create_dir(dir.path().join("work")).unwrap();
            let journal = PlaceholderJournal::open(&dir.path().join("state")).unwrap();
            Self { dir, all: Placeholders::new(journal) }
        }

        fn path(&self, name: &str) -> PathBuf {
            self.dir.path().canonicalize().unwrap().join("work").join(name)
        }

        fn take(&self, names: &[&str]) -> Option<Placeholder> {
            let names: Vec<&OsStr> = names.iter().map(OsStr::new).collect();
            self.all.take(&self.path(""), &self.path(""), &names).unwrap()
        }

        fn is_forgotten(&self) -> bool {
            let is_empty = self.dir.path().join("state").read_dir().unwrap().count() == 0;
            is_empty
                && self.all.roots.lock().unwrap().is_empty()
                && self.all.users.lock().unwrap().counts.is_empty()
                && self.all.users.lock().unwrap().paths.is_empty()
        }
    }

    #[test]
    fn a_placeholder_exists_until_its_last_use_ends() {
        let place = Fixture::new();
        let first = place.take(&[".git", ".aws"]).unwrap();
        let second = place.take(&[".git"]).unwrap();
        assert!(place.path(".git").is_dir() && place.path(".aws").is_dir());
        drop(first);
        assert!(place.path(".git").is_dir() && !place.path(".aws").exists());
        drop(second);
        assert!(!place.path(".git").exists() && place.is_forgotten());
    }

    #[test]
    fn a_removed_placeholder_is_created_again_for_the_next_use() {
        let place = Fixture::new();
        let _first = place.take(&[".git"]).unwrap();
        std::fs::remove_dir(place.path(".git")).unwrap();
        let _second = place.take(&[".git"]).unwrap();
        assert!(place.path(".git").is_dir());
    }

    #[test]
    fn an_existing_directory_is_kept() {
        let place = Fixture::new();
        std::fs::create_dir(place.path(".git")).unwrap();
        assert!(place.take(&[".git"]).is_none());
        assert!(place.path(".git").is_dir());
        let missing = place.path("missing");
        assert!(place.all.take(&missing, &missing, &[OsStr::new(".git")]).unwrap().is_none());
        assert!(place.is_forgotten());
    }

    #[test]
    fn a_directory_that_replaced_another_gets_its_own_placeholder() {
        let place = Fixture::new();
        let first = place.take(&[".git"]).unwrap();
        let moved = place.dir.path().join("moved");
        std::fs::rename(place.path(""), &moved).unwrap();
        std::fs::create_dir(place.path("")).unwrap();
        let second = place.take(&[".git"]).unwrap();
        assert!(place.path(".git").is_dir() && moved.join(".git").is_dir());
        drop(first);
        assert!(place.path(".git").is_dir() && !moved.join(".git").exists());
        drop(second);
        assert!(!place.path(".git").exists() && place.is_forgotten());
    }

    #[test]
    fn a_directory_that_replaced_a_placeholder_stays() {
        let place = Fixture::new();
        let held = place.take(&[".codex"]).unwrap();
        std::fs::remove_dir(place.path(".codex")).unwrap();
        std::fs::create_dir(place.path(".codex")).unwrap();
        std::fs::write(place.path(".codex/mine"), "").unwrap();
        drop(held);
        assert!(place.path(".codex/mine").exists());
    }
}
