//! What a request may touch: the policy language, compiled into rules that an enforcer can keep.
//!
//! | look here | for |
//! |---|---|
//! | [`mod@compile`] | [`compile()`]: the wire's object in, a [`Policy`] or what is wrong with it out |
//! | `entries` | each entry of a policy as absolute paths and patterns of this host |
//! | [`rules`] | [`FileRules`]: what is allowed where; the question and the lists that mounts are made from |
//! | [`globs`] | [`DenyGlob`]: patterns that deny what they match |
//! | [`host_facts`] | [`HostFacts`]: what a policy depends on beside itself |
//! | [`allowances`] | [`Allowances`]: what the operator lets out |
//! | [`landlock_level`] | [`can_hold`]: what can be kept without namespaces |
//! | [`digest`] | [`PolicyDigest`]: equal for policies that mean the same |
//!
//! Nothing here touches a disk except [`HostFacts::gather`], so what a policy means never depends on what a file
//! happened to be. Paths are judged by their text: the enforcement resolves links first, and skips the
//! writable roots that do not exist.

use std::io;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

pub mod allowances;
pub mod compile;
pub mod digest;
pub mod globs;
pub mod host_facts;
pub mod landlock_level;
pub mod rules;

mod entries;

pub use allowances::Allowances;
pub use compile::{FilePolicy, MAX_POLICY_PLACES, Policy, PolicyError, compile};
pub use digest::PolicyDigest;
pub use globs::DenyGlob;
pub use host_facts::HostFacts;
pub use landlock_level::{BeyondLandlock, can_hold};
pub use rules::{Access, FileRules, PROTECTED_NAMES, ProtectedName};

/// The error for a sandbox set-up that took longer than `time`.
pub fn timed_out(time: Duration) -> io::Error {
    let text =
        format!("gave up after {time:?}; a file system that the policy names may not answer");
    io::Error::new(io::ErrorKind::TimedOut, text)
}

/// The path without `.`, `..` and doubled separators, by its text; none if it is not absolute.
pub(crate) fn normalised(path: &Path) -> Option<PathBuf> {
    if !path.is_absolute() {
        return None;
    }
    let mut normal = PathBuf::new();
    for component in path.components() {
        match component {
            Component::CurDir => {}
            // The parent of the root is the root.
            Component::ParentDir => drop(normal.pop()),
            other => normal.push(other),
        }
    }
    Some(normal)
}

#[cfg(test)]
mod tests;
