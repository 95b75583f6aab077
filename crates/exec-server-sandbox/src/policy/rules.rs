//! File rules of a policy: the longest rule path that contains a path decides its access.
//!
//! Each rule path has one access. For equal paths a denial overrides a write entry, which overrides a read entry. The
//! protected names of a writable root are rule paths of their own. Redundant rules are dropped, so that equivalent
//! policies become equal rules.
//!
//! Invariant: rule paths are absolute and normalised, and every writable one is a root that the policy named.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::{MAIN_SEPARATOR, Path, PathBuf};

use super::entries::{Resolved, stronger};
use super::{DenyGlob, globs, normalised};

/// Names directly below a writable root that stay read-only unless the policy opens them: their content controls tools
/// that run outside the sandbox.
pub const PROTECTED_NAMES: [&str; 4] = [".git", ".agents", ".codex", ".aws"];

/// Access to a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Access {
    /// No access.
    None,
    /// Read.
    Read,
    /// Read and write.
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

/// File rules of a policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileRules {
    /// Access of the special path `root`, the only one that means the full disk.
    full_disk: Access,
    places: Places,
    /// Readable where no rule applies.
    minimal: Vec<PathBuf>,
    /// Deny patterns by their base directory.
    globs: BTreeMap<PathBuf, Vec<DenyGlob>>,
}

/// Keyed by path text, which compares much faster than `Path`.
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
        // A rule for `/` applies everywhere, so `minimal` has no effect.
        let minimal = if asks_for_minimal && !places.contains_key(slash) { minimal } else { &[] };
        let mut minimal: Vec<PathBuf> =
            minimal.iter().filter_map(|path| normalised(path)).collect();
        minimal.sort_unstable();

        let mut rules = Self { full_disk, places, minimal, globs: by_base };
        if rules.writes_everything() {
            // Nothing narrows the full disk, so other rules are redundant.
            rules.places.retain(|path, _| path == slash);
        } else {
            rules.protect_names();
            rules.drop_redundant();
        }
        rules
    }

    /// The access of this absolute path, compared lexically.
    pub fn access(&self, path: &Path) -> Access {
        let Some(path) = normalised(path) else { return Access::None };
        let place = path.ancestors().find_map(|place| Some((place, self.place(place)?)));
        // A pattern match counts like an entry for the matched path.
        let denied = self.longest_denial(&path);
        match place {
            Some((place, access)) if denied < self.decisive_length(place) => access,
            None if denied == 0 && self.is_minimal(&path) => Access::Read,
            _ => Access::None,
        }
    }

    /// Whether the whole disk is readable: the special root allows it, and nothing is denied.
    pub fn reads_everything(&self) -> bool {
        self.full_disk >= Access::Read
            && self.globs.is_empty()
            && self.places.values().all(|access| *access >= Access::Read)
    }

    /// Whether the whole disk is writable: the special root allows it, and nothing narrows it.
    pub fn writes_everything(&self) -> bool {
        self.full_disk == Access::Write
            && self.globs.is_empty()
            && self.places.values().all(|access| *access == Access::Write)
    }

    /// Access of the special root where no other rule applies.
    pub fn full_disk(&self) -> Access {
        self.full_disk
    }

    /// Number of paths and patterns.
    pub(super) fn len(&self) -> usize {
        self.places.len() + self.globs.values().map(Vec::len).sum::<usize>()
    }

    /// All rule paths with their access, shallow ones first; applied in this order, the longest match wins.
    pub fn places(&self) -> Vec<(&Path, Access)> {
        let mut places: Vec<_> =
            self.places.iter().map(|(path, access)| (Path::new(path), *access)).collect();
        // The sort is stable, so paths of equal depth stay in name order.
        places.sort_by_cached_key(|(path, _)| length(path));
        places
    }

    /// Writable paths, shallow ones first.
    pub fn writable_roots(&self) -> Vec<&Path> {
        self.places_with(Access::Write)
    }

    /// Denied paths, shallow ones first.
    pub fn denied_paths(&self) -> Vec<&Path> {
        self.places_with(Access::None)
    }

    /// Read-only paths inside writable ones, shallow ones first.
    pub fn read_only_carve_outs(&self) -> Vec<&Path> {
        let is_inside = |path: &&Path| self.enclosing(path) == Some(Access::Write);
        self.places_with(Access::Read).into_iter().filter(is_inside).collect()
    }

    /// Read-only paths outside of writable ones, shallow ones first.
    pub fn readable_roots(&self) -> Vec<&Path> {
        let is_outside = |path: &&Path| self.enclosing(path) != Some(Access::Write);
        self.places_with(Access::Read).into_iter().filter(is_outside).collect()
    }

    /// The protected names in force; each is also a carve-out.
    ///
    /// The enforcement also protects the target of a `.git` file or of a link with such a name, and skips the names
    /// of a root that is not a directory.
    pub fn protected_names(&self) -> Vec<ProtectedName<'_>> {
        let names =
            |root| PROTECTED_NAMES.into_iter().map(move |name| ProtectedName { root, name });
        let holds = |it: &ProtectedName| self.place(&it.root.join(it.name)) == Some(Access::Read);
        let roots = self.writable_roots().into_iter().filter(|root| self.has_protected_names(root));
        roots.flat_map(names).filter(holds).collect()
    }

    /// Directories that are readable where no rule applies, so that programs can start.
    pub fn minimal(&self) -> &[PathBuf] {
        &self.minimal
    }

    /// The deny patterns.
    pub fn deny_globs(&self) -> impl Iterator<Item = &DenyGlob> {
        self.globs.values().flatten()
    }

    fn protect_names(&mut self) {
        let roots = self.writable_roots().into_iter().filter(|root| self.has_protected_names(root));
        let roots: Vec<PathBuf> = roots.map(Path::to_owned).collect();
        for path in roots.iter().flat_map(|root| PROTECTED_NAMES.map(|name| root.join(name))) {
            // An entry for the name itself overrides its protection; an entry below it is longer and wins anyway.
            self.places.entry(path.into()).or_insert(Access::Read);
        }
    }

    /// A protected name that an entry opens has no protected names of its own: they would have to exist to be
    /// protected, but only the sandbox can create them.
    fn has_protected_names(&self, root: &Path) -> bool {
        let is_protected_name = PROTECTED_NAMES.iter().any(|name| root.ends_with(name));
        let around = root.parent().and_then(|parent| self.place(parent));
        !(is_protected_name && around == Some(Access::Write))
    }

    /// A rule is redundant if the enclosing rule has the same access; without an enclosing rule, access is denied.
    fn drop_redundant(&mut self) {
        let is_redundant = |path: &Path, access| match (access, self.enclosing(path)) {
            (Access::None, Some(around)) => around == Access::None,
            (Access::None, None) => self.minimal.is_empty(),
            // A readable path can reopen a part of what a pattern denies.
            (Access::Read, around) => around == Some(Access::Read) && self.globs.is_empty(),
            // Each has protected names, and is skipped on its own if it is missing.
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

    /// Access of the enclosing rule path.
    fn enclosing(&self, place: &Path) -> Option<Access> {
        place.ancestors().skip(1).find_map(|around| self.place(around))
    }

    /// Number of components that a pattern must match to override this rule path.
    ///
    /// A protected name only restricts its root; where the root is denied, it grants nothing.
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

    /// Number of components in the longest prefix of `path` that a pattern matches; 0 if none does.
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

/// Number of components of a normalised path; `/` has one.
fn length(path: &Path) -> usize {
    let bytes = path.as_os_str().as_encoded_bytes();
    let separators = bytes.iter().filter(|byte| char::from(**byte) == MAIN_SEPARATOR).count();
    if path.parent().is_none() { 1 } else { separators + 1 }
}

#[cfg(test)]
mod model;
