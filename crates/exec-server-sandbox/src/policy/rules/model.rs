//! Compares [`FileRules::access`] with an independent model, which asks every entry of the policy about every path.

use proptest::prelude::*;

use super::super::entries::Resolved;
use super::super::globs::{self, Pattern};
use super::*;

#[derive(Debug, Clone)]
struct Given {
    root: Option<Access>,
    has_minimal: bool,
    entries: Vec<(String, Access)>,
    /// Deny patterns, each below `/`.
    globs: Vec<String>,
}

const MINIMAL: [&str; 2] = ["/a", "/b/.git"];

fn resolved(given: &Given) -> Resolved {
    let mut resolved = Resolved { root: given.root, ..Resolved::default() };
    resolved.minimal = given.has_minimal.then_some(Access::Read);
    for (path, access) in &given.entries {
        let place = resolved.places.entry(path.into()).or_insert(*access);
        *place = stronger(Some(*place), *access);
    }
    for text in &given.globs {
        for pattern in globs::parse(Path::new("/"), text, None).unwrap() {
            match pattern {
                Pattern::Glob(glob) => resolved.globs.push(glob),
                Pattern::Literal(path) => drop(resolved.places.insert(path.into(), Access::None)),
            }
        }
    }
    resolved
}

fn rules(given: &Given) -> FileRules {
    FileRules::new(resolved(given), &MINIMAL.map(PathBuf::from))
}

/// `/a/b` as `["a", "b"]`.
fn names(path: &str) -> Vec<&str> {
    path.split('/').filter(|name| !name.is_empty()).collect()
}

impl Given {
    /// All entries as (names, access), including patterns that match a prefix of this path.
    fn claims<'a>(&'a self, path: &[&'a str]) -> Vec<(Vec<&'a str>, Access)> {
        let mut claims: Vec<_> =
            self.entries.iter().map(|(path, access)| (names(path), *access)).collect();
        claims.extend(self.root.map(|access| (vec![], access)));
        for (end, glob) in
            (1..=path.len()).flat_map(|end| self.globs.iter().map(move |it| (end, it)))
        {
            if names_match(&names(glob), &path[..end]) {
                claims.push((path[..end].to_vec(), Access::None));
            }
        }
        claims
    }

    /// Access of the entries for exactly this path, without patterns.
    fn at(&self, place: &[&str]) -> Option<Access> {
        let entries = self.entries.iter().filter(|(path, _)| names(path) == place);
        let special = self.root.filter(|_| place.is_empty());
        winner(entries.map(|(_, access)| *access).chain(special))
    }

    fn is_everything_writable(&self) -> bool {
        self.root == Some(Access::Write)
            && self.globs.is_empty()
            && self.at(&[]) == Some(Access::Write)
            && self.entries.iter().all(|(path, _)| self.at(&names(path)) == Some(Access::Write))
    }

    /// A protected name of a writable root that no entry opens: it ranks like its root, and is read-only.
    fn is_protected(&self, place: &[&str]) -> bool {
        let [root @ .., name] = place else { return false };
        PROTECTED_NAMES.contains(name)
            && self.at(root) == Some(Access::Write)
            && !self.is_opened_name(root)
            && matches!(self.at(place), None | Some(Access::Read))
            && !self.is_everything_writable()
    }

    /// A protected name that an entry opens.
    fn is_opened_name(&self, place: &[&str]) -> bool {
        let [root @ .., name] = place else { return false };
        PROTECTED_NAMES.contains(name) && self.at(root) == Some(Access::Write)
    }

    fn access(&self, path: &str) -> Access {
        let path = names(path);
        let mut claims = self.claims(&path);
        claims.retain(|(place, _)| path.starts_with(place));
        let Some(longest) = claims.iter().map(|(place, _)| place.len()).max() else {
            let is_minimal = MINIMAL.iter().any(|it| path.starts_with(&names(it)));
            return if self.has_minimal && is_minimal { Access::Read } else { Access::None };
        };
        if let Some(end) = (1..=path.len()).rev().find(|end| self.is_protected(&path[..*end]))
            && longest <= end
        {
            // No entry is below the name, so its root decides, and write is reduced to read.
            let up_to_root =
                |it: &&(Vec<&str>, Access)| it.0.len() == end - 1 || it.1 == Access::None;
            let decisive = claims.iter().filter(|it| it.0.len() + 1 >= end).filter(up_to_root);
            return winner(decisive.map(|(_, access)| *access)).unwrap().min(Access::Read);
        }
        let decisive = claims.iter().filter(|(place, _)| place.len() == longest);
        winner(decisive.map(|(_, access)| *access)).unwrap()
    }
}

fn winner(claims: impl Iterator<Item = Access>) -> Option<Access> {
    let claims: Vec<Access> = claims.collect();
    [Access::None, Access::Write, Access::Read].into_iter().find(|access| claims.contains(access))
}

fn names_match(pattern: &[&str], path: &[&str]) -> bool {
    match (pattern, path) {
        ([], []) => true,
        (["**"], _) => !path.is_empty(),
        (["**", rest @ ..], _) => {
            (0..=path.len()).any(|skipped| names_match(rest, &path[skipped..]))
        }
        (["*", rest @ ..], [_, left @ ..]) => names_match(rest, left),
        ([name, rest @ ..], [first, left @ ..]) => name == first && names_match(rest, left),
        _ => false,
    }
}

fn a_path() -> impl Strategy<Value = String> {
    prop::collection::vec(prop::sample::select(&["a", "b", "c", ".git", ".aws"][..]), 0..5)
        .prop_map(|names| format!("/{}", names.join("/")))
}

fn an_access() -> impl Strategy<Value = Access> {
    prop::sample::select(&[Access::None, Access::Read, Access::Write][..])
}

fn a_glob() -> impl Strategy<Value = String> {
    // The last name is a wildcard: a pattern without one is a path.
    let name = prop::sample::select(&["a", "b", ".git", "*", "**"][..]);
    (prop::collection::vec(name, 0..3), prop::sample::select(&["*", "**", "**/a", "*/b"][..]))
        .prop_map(|(names, last)| [&names[..], &[last]].concat().join("/").replace("**/**", "**"))
}

fn a_policy() -> impl Strategy<Value = Given> {
    (
        prop::option::of(an_access()),
        any::<bool>(),
        prop::collection::vec((a_path(), an_access()), 0..8),
        prop::collection::vec(a_glob(), 0..3),
    )
        .prop_map(|(root, has_minimal, entries, globs)| Given {
            root,
            has_minimal,
            entries,
            globs,
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn access_agrees_with_the_model(
        given in a_policy(),
        paths in prop::collection::vec(a_path(), 1..20),
    ) {
        let rules = rules(&given);
        let given_paths = given.entries.iter().map(|(path, _)| path);
        for path in paths.iter().chain(given_paths) {
            prop_assert_eq!(rules.access(Path::new(path)), given.access(path), "{}", path);
        }
    }

    #[test]
    fn the_order_of_entries_and_repetitions_mean_nothing(given in a_policy(), seed in any::<usize>()) {
        let mut shuffled = given.clone();
        if !shuffled.entries.is_empty() {
            let by = seed % shuffled.entries.len();
            shuffled.entries.rotate_left(by);
            shuffled.entries.push(given.entries[by].clone());
        }
        shuffled.globs.reverse();
        shuffled.globs.extend(given.globs.first().cloned());
        prop_assert_eq!(rules(&given), rules(&shuffled));
    }

    #[test]
    fn the_lists_of_an_enforcer_say_what_the_question_says(given in a_policy(), path in a_path()) {
        let rules = rules(&Given { globs: vec![], ..given });
        // Applies the mounts in order.
        let base = if rules.minimal().iter().any(|it| Path::new(&path).starts_with(it)) {
            Access::Read
        } else {
            Access::None
        };
        let mounted = rules.places().into_iter().filter(|(place, _)| Path::new(&path).starts_with(place));
        let last = mounted.map(|(_, access)| access).next_back().unwrap_or(base);
        prop_assert_eq!(rules.access(Path::new(&path)), last);

        let writable = rules.writable_roots();
        let carved = rules.read_only_carve_outs();
        let all = writable.len() + carved.len() + rules.readable_roots().len() + rules.denied_paths().len();
        prop_assert_eq!(all, rules.places().len());
        for protected in rules.protected_names() {
            prop_assert!(carved.contains(&protected.root.join(protected.name).as_path()));
        }
        for carve_out in carved {
            prop_assert_eq!(rules.access(carve_out), Access::Read);
            prop_assert!(writable.iter().any(|root| carve_out.starts_with(root)));
        }
        if rules.reads_everything() {
            prop_assert!(rules.access(Path::new(&path)) >= Access::Read);
        }
        if rules.writes_everything() {
            prop_assert_eq!(rules.access(Path::new(&path)), Access::Write);
        }
    }
}
