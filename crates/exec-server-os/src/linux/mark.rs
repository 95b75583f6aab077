//! The mark that every sandboxed process carries, by which any exec-server on the machine recognises it.
//!
//! The mark is the hard limit on file locks (`RLIMIT_LOCKS`), which Linux has not enforced since 2.4. Every descendant
//! inherits it. It can be lowered but not raised without `CAP_SYS_RESOURCE` in the first user namespace, which no
//! sandbox has, and it is readable in `/proc/PID/limits` for every user, also for processes that are not dumpable.
//!
//! | hard limit | process |
//! |---|---|
//! | unlimited | outside of every sandbox |
//! | above `SHARES_NETWORK` | in a sandbox with a network of its own |
//! | at most `SHARES_NETWORK` | in a sandbox that shares the machine's network |
//!
//! A server that runs inside a sandbox marks its own sandboxes with a lower limit than it has itself.

use std::io;

use super::check;
use super::startup::hard_limit;
use crate::peer::Network;

const ISOLATED: u64 = 1 << 62;
const SHARES_NETWORK: u64 = 1 << 61;

/// The nesting depth of a process in sandboxes; a lower limit is deeper.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark(u64);

impl Mark {
    /// The mark of this process.
    pub fn own() -> Self {
        Self(hard_limit(libc::RLIMIT_LOCKS))
    }

    /// The mark in the text of a `/proc/PID/limits`.
    pub fn in_limits(text: &str) -> Option<Self> {
        let line = text.lines().find_map(|line| line.strip_prefix("Max file locks"))?;
        match line.split_ascii_whitespace().nth(1)? {
            "unlimited" => Some(Self(libc::RLIM_INFINITY)),
            number => number.parse().ok().map(Self),
        }
    }

    /// Whether a process with this mark is in a sandbox that a process with the mark `outer` is not in.
    pub fn is_inside(self, outer: Self) -> bool {
        self.0 < outer.0
    }

    /// Whether the process is in any sandbox.
    pub fn is_in_any(self) -> bool {
        self.0 != libc::RLIM_INFINITY
    }

    /// Whether the process is in a sandbox and may have sockets in the machine's network.
    pub fn shares_network(self) -> bool {
        self.0 <= SHARES_NETWORK
    }

    fn of_sandbox(self, network: Network) -> Self {
        let most = match network {
            Network::Isolated => ISOLATED,
            Network::Host => SHARES_NETWORK,
        };
        Self(most.min(self.0.saturating_sub(1)))
    }
}

/// Marks this process and its descendants permanently.
pub fn apply(network: Network) -> io::Result<()> {
    let Mark(most) = Mark::own().of_sandbox(network);
    let limit = libc::rlimit { rlim_cur: most, rlim_max: most };
    // SAFETY: passes a live local.
    check(unsafe { libc::setrlimit(libc::RLIMIT_LOCKS, &raw const limit) }).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linux::testing::{Ended, User, in_child};

    fn of_self() -> Mark {
        Mark::in_limits(&std::fs::read_to_string("/proc/self/limits").unwrap()).unwrap()
    }

    #[test]
    fn a_mark_is_read_as_it_was_set_and_cannot_be_removed() {
        let ended = in_child(User::Ordinary, || {
            let outside = Mark::own();
            assert_eq!(of_self(), outside);
            apply(Network::Isolated).unwrap();
            let isolated = of_self();
            assert!(isolated.is_inside(outside) && !isolated.shares_network());
            apply(Network::Host).unwrap();
            let sharing = of_self();
            assert!(sharing.is_inside(isolated) && sharing.shares_network());
            for more in [sharing.0 + 1, ISOLATED, libc::RLIM_INFINITY] {
                let limit = libc::rlimit { rlim_cur: 0, rlim_max: more };
                // SAFETY: passes a live local.
                let raised = unsafe { libc::setrlimit(libc::RLIMIT_LOCKS, &raw const limit) };
                assert_eq!(raised, -1, "{more}");
            }
            // A lowered limit is still a mark.
            let limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            // SAFETY: as above.
            assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_LOCKS, &raw const limit) }, 0);
            assert!(of_self().is_inside(outside) && of_self().shares_network());
            0
        });
        assert_eq!(ended, Ended::Exit(0));
    }

    #[test]
    fn a_sandbox_in_a_sandbox_is_deeper() {
        let mut outer = Mark(libc::RLIM_INFINITY);
        for network in [Network::Isolated, Network::Isolated, Network::Host, Network::Isolated] {
            let inner = outer.of_sandbox(network);
            assert!(inner.is_inside(outer) && !outer.is_inside(inner) && !inner.is_inside(inner));
            outer = inner;
        }
        assert!(
            outer.shares_network(),
            "a nested sandbox has no more network access than its parent"
        );
    }
}
