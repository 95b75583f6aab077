//! What is allowed where: the longest place that holds a path decides about it.
//!
//! Every place has one access. What a policy means is spelled out here once: for the same place a denial counts more
//! than a write entry, and that more than a read entry; the protected names of a writable root are places of their
//! own; what changes nothing is left out. So two policies that mean the same become the same rules.
//!
//! Invariant: places are absolute and normal, and a place that is writable is a root that the policy named.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::{MAIN_SEPARATOR, Path, PathBuf};

use super::entries::{Resolved, stronger};
use super::{DenyGlob, globs, normalised};

/// Names directly below a writable root that stay read-only unless the policy says otherwise: who can write them
/// decides what tools run outside the sandbox.
pub const PROTECTED_NAMES: [&str; 4] = [".git", ".agents", ".codex", ".aws"];

/// What can be done with a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Access {
    /// Nothing.
    None,
    /// Read it.
    Read,
    /// Read and write it.
    Write,
}

/// A protected name below a writable root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProtectedName<'a> {
    /// The writable root.
    pub root: &'a Path,
    /// The name.
    pub name: &'static str,
}

/// The files of a policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileRules {
    /// What the special root allows, which alone counts as the full disk.
    full_disk: Access,
    places: Places,
    /// Readable where no place says anything.
    minimal: Vec<PathBuf>,
    /// By the directory that they start from.
    globs: BTreeMap<PathBuf, Vec<DenyGlob>>,
}

/// By the text of the path, which is normal, because that compares many times faster than a path does.
pub(super) type Places = BTreeMap<OsString, Access>;

impl FileRules {
    pub(super) fn new(resolved: Resolved, minimal: &[PathBuf]) -> Self {
        let Resolved { root, minimal: asks_for_minimal, mut places, mut globs } = resolved;
        let slash = OsStr::new("/");
        if let Some(root) = root {
            let at_root = stronger(places.get(slash).copied(), root);
            places.insert(slash.to_owned(), at_root);
        }
        let is_denied = places.get(slash) == Some(&Access::None);
        let full_disk = if is_denied { Access::None } else { root.unwrap_or(Access::None) };

        globs.sort_unstable();
        globs.dedup();
        let mut by_base: BTreeMap<PathBuf, Vec<DenyGlob>> = BTreeMap::new();
        for glob in globs {
            by_base.entry(glob.base().to_owned()).or_default().push(glob);
        }
        let asks_for_minimal = matches!(asks_for_minimal, Some(Access::Read | Access::Write));
        // A place for the whole disk leaves nothing open.
        let minimal = if asks_for_minimal && !places.contains_key(slash) { minimal } else { &[] };
        let mut minimal: Vec<PathBuf> =
            minimal.iter().filter_map(|path| normalised(path)).collect();
        minimal.sort_unstable();

        let mut rules = Self { full_disk, places, minimal, globs: by_base };
        if rules.writes_everything() {
            // Nothing narrows the full disk, so no other place says anything new.
            rules.places.retain(|path, _| path == slash);
        } else {
            rules.protect_names();
            rules.drop_redundant();
        }
        rules
    }

    /// What can be done with this absolute path, judged by its text.
    pub fn access(&self, path: &Path) -> Access {
        let Some(path) = normalised(path) else { return Access::None };
        let place = path.ancestors().find_map(|place| Some((place, self.place(place)?)));
        // A match of a pattern is as good as an entry for what it matches.
        let denied = self.longest_denial(&path);
        match place {
            Some((place, access)) if denied < self.decisive_length(place) => access,
            None if denied == 0 && self.is_minimal(&path) => Access::Read,
            _ => Access::None,
        }
    }

    /// Whether all of the disk can be read: the special root allows it, and nothing is denied.
    pub fn reads_everything(&self) -> bool {
        self.full_disk >= Access::Read
            && self.globs.is_empty()
            && self.places.values().all(|access| *access >= Access::Read)
    }

    /// Whether all of the disk can be written: the special root allows it, and nothing narrows that.
    pub fn writes_everything(&self) -> bool {
        self.full_disk == Access::Write
            && self.globs.is_empty()
            && self.places.values().all(|access| *access == Access::Write)
    }

    /// What the special root allows where no other place is named.
    pub fn full_disk(&self) -> Access {
        self.full_disk
    }

    /// How many places and patterns there are.
    pub(super) fn len(&self) -> usize {
        self.places.len() + self.globs.values().map(Vec::len).sum::<usize>()
    }

    /// Every place with its access, the shallow ones first: who applies them in this order gets the longest match.
    pub fn places(&self) -> Vec<(&Path, Access)> {
        let mut places: Vec<_> =
            self.places.iter().map(|(path, access)| (Path::new(path), *access)).collect();
        // Stable, so places of the same depth stay in the order of their names.
        places.sort_by_cached_key(|(path, _)| length(path));
        places
    }

    /// The places that can be written, the shallow ones first.
    pub fn writable_roots(&self) -> Vec<&Path> {
        self.places_with(Access::Write)
    }

    /// The places that cannot even be read, the shallow ones first.
    pub fn denied_paths(&self) -> Vec<&Path> {
        self.places_with(Access::None)
    }

    /// The read-only places inside of writable ones, the shallow ones first.
    pub fn read_only_carve_outs(&self) -> Vec<&Path> {
        let is_inside = |path: &&Path| self.enclosing(path) == Some(Access::Write);
        self.places_with(Access::Read).into_iter().filter(is_inside).collect()
    }

    /// The read-only places that are not inside of writable ones, the shallow ones first.
    pub fn readable_roots(&self) -> Vec<&Path> {
        let is_outside = |path: &&Path| self.enclosing(path) != Some(Access::Write);
        self.places_with(Access::Read).into_iter().filter(is_outside).collect()
    }

    /// The protected names that hold: each is also one of the carve-outs.
    ///
    /// The enforcement also protects what a `.git` file or a link of such a name leads to, and leaves out the
    /// names of a root that is no directory.
    pub fn protected_names(&self) -> Vec<ProtectedName<'_>> {
        let names =
            |root| PROTECTED_NAMES.into_iter().map(move |name| ProtectedName { root, name });
        let holds = |it: &ProtectedName| self.place(&it.root.join(it.name)) == Some(Access::Read);
        let roots = self.writable_roots().into_iter().filter(|root| self.has_protected_names(root));
        roots.flat_map(names).filter(holds).collect()
    }

    /// Directories that can be read where no place says anything, so that programs can start.
    pub fn minimal(&self) -> &[PathBuf] {
        &self.minimal
    }

    /// The patterns that deny what they match.
    pub fn deny_globs(&self) -> impl Iterator<Item = &DenyGlob> {
        self.globs.values().flatten()
    }

    fn protect_names(&mut self) {
        let roots = self.writable_roots().into_iter().filter(|root| self.has_protected_names(root));
        let roots: Vec<PathBuf> = roots.map(Path::to_owned).collect();
        for path in roots.iter().flat_map(|root| PROTECTED_NAMES.map(|name| root.join(name))) {
            // An entry for the name itself says what the policy wants; one below it is longer and wins anyway.
            self.places.entry(path.into()).or_insert(Access::Read);
        }
    }

    /// A protected name that an entry opens is part of its root, and none of its own: a name in it would have to exist
    /// to be protected, and the sandbox is the one to make it.
    fn has_protected_names(&self, root: &Path) -> bool {
        let is_protected_name = PROTECTED_NAMES.iter().any(|name| root.ends_with(name));
        let around = root.parent().and_then(|parent| self.place(parent));
        !(is_protected_name && around == Some(Access::Write))
    }

    /// A place changes nothing if the one around it says the same; where there is none, nothing is allowed.
    fn drop_redundant(&mut self) {
        let is_redundant = |path: &Path, access| match (access, self.enclosing(path)) {
            (Access::None, Some(around)) => around == Access::None,
            (Access::None, None) => self.minimal.is_empty(),
            // Inside of what a pattern denies, a readable place opens a part again.
            (Access::Read, around) => around == Some(Access::Read) && self.globs.is_empty(),
            // Each has protected names, and is skipped by itself if it is missing.
            (Access::Write, _) => false,
        };
        let places = self.places.iter();
        let redundant = places.filter(|(path, access)| is_redundant(Path::new(path), **access));
        let redundant: Vec<OsString> = redundant.map(|(path, _)| path.clone()).collect();
        for path in redundant {
            self.places.remove(&path);
        }
    }

    fn places_with(&self, wanted: Access) -> Vec<&Path> {
        let places = self.places().into_iter();
        places.filter(|(_, access)| *access == wanted).map(|(path, _)| path).collect()
    }

    /// The access of the place around this one.
    fn enclosing(&self, place: &Path) -> Option<Access> {
        place.ancestors().skip(1).find_map(|around| self.place(around))
    }

    /// How many components a pattern must match to count more than this place.
    ///
    /// A protected name takes something away from its root; where the root is denied, it gives nothing back.
    fn decisive_length(&self, place: &Path) -> usize {
        let length = length(place);
        let is_protected = PROTECTED_NAMES.iter().any(|name| place.ends_with(name))
            && self.place(place) == Some(Access::Read)
            && place.parent().is_some_and(|root| {
                self.place(root) == Some(Access::Write) && self.has_protected_names(root)
            });
        if is_protected { length - 1 } else { length }
    }

    fn is_minimal(&self, path: &Path) -> bool {
        self.minimal.iter().any(|directory| path.starts_with(directory))
    }

    /// How many components the longest part of `path` has that a pattern matches; 0 if none does.
    fn longest_denial(&self, path: &Path) -> usize {
        if self.globs.is_empty() {
            return 0;
        }
        let names = globs::names_of(path);
        let lengths = path.ancestors().filter_map(|base| {
            let globs = self.globs.get(base)?;
            let above = length(base);
            let matches = globs.iter().filter_map(|glob| glob.longest_match(&names[above - 1..]));
            Some(above + matches.max()?)
        });
        lengths.max().unwrap_or(0)
    }

    fn place(&self, path: &Path) -> Option<Access> {
        self.places.get(path.as_os_str()).copied()
    }
}

/// How many components a normal path has; the root is one.
fn length(path: &Path) -> usize {
    let bytes = path.as_os_str().as_encoded_bytes();
    let separators = bytes.iter().filter(|byte| char::from(**byte) == MAIN_SEPARATOR).count();
    if path.parent().is_none() { 1 } else { separators + 1 }
}

#[cfg(test)]
mod model;
