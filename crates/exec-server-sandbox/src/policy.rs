//! Sandbox policies: the policy language, compiled into rules that a mechanism can enforce.
//!
//! | look here | for |
//! |---|---|
//! | [`mod@compile`] | [`compile()`]: the wire's `sandbox` object to a [`Policy`], or the error in it |
//! | `entries` | each entry of a policy as absolute paths and patterns of this host |
//! | [`rules`] | [`FileRules`]: the access of each path; lookup, and the lists that mounts are made from |
//! | [`globs`] | [`DenyGlob`]: patterns that deny what they match |
//! | [`host_facts`] | [`HostFacts`]: facts about this host that a policy refers to |
//! | [`allowances`] | [`Allowances`]: what the operator allows in addition |
//! | [`landlock_level`] | [`can_hold`]: which policies Landlock can enforce without namespaces |
//! | [`digest`] | [`PolicyDigest`]: equal for equivalent policies |
//!
//! Only [`HostFacts::gather`] accesses the disk, so the meaning of a policy never depends on the state of a file. Paths
//! are compared lexically: the enforcement resolves links first, and skips writable roots that do not exist.

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

/// The path without `.`, `..` and doubled separators, resolved lexically; `None` if it is not absolute.
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
