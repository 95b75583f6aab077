//! What the operator allows sandboxed commands beyond the policy; a request cannot change it.

use serde::{Deserialize, Serialize};

/// Additional rights of sandboxed commands; none by default, and none for file workers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Allowances {
    /// For debuggers: `ptrace`, and access to the memory of other processes inside the sandbox.
    pub debugging: bool,
    /// For browsers: `clone` and `unshare` with new namespaces, `chroot`; nothing can be mounted in them.
    pub namespaces: bool,
    /// For programs that store secrets in kernel keyrings.
    pub keyrings: bool,
    /// For programs that confine parts of themselves: further seccomp filters, but no user notification.
    pub filters: bool,
}

impl Allowances {
    /// What is not enforced because of these rights, as named in a report.
    pub fn missing(self) -> impl Iterator<Item = &'static str> {
        let all = [
            (self.debugging, "seccompDebugging"),
            (self.namespaces, "seccompNamespaces"),
            (self.keyrings, "seccompKeyrings"),
            (self.filters, "seccompFilters"),
        ];
        all.into_iter().filter(|(is_allowed, _)| *is_allowed).map(|(_, name)| name)
    }
}
