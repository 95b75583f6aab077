//! What the operator of a server lets sandboxed commands do beyond what every sandbox allows; a request cannot.

use serde::{Deserialize, Serialize};

/// What sandboxed commands may do beyond the usual; the default is nothing, and so it always is for file workers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Allowances {
    /// For debuggers: `ptrace`, reading and writing another process's memory, of those inside.
    pub debugging: bool,
    /// For browsers: `clone` and `unshare` with new namespaces, `chroot`; nothing can be mounted in them.
    pub namespaces: bool,
    /// For programs that keep secrets in the kernel's keyrings.
    pub keyrings: bool,
    /// For programs that confine parts of themselves: more filters, but none that asks another process.
    pub filters: bool,
}

impl Allowances {
    /// What is not enforced because of them, as a report calls it.
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
