//! Releases the placeholders of a sandboxed process once its tree is empty.

use std::time::{Duration, Instant};

use exec_server_os::ProcessTree;

use crate::process::config::ProcessSandbox;

/// The pause between two looks at a tree that is not empty yet.
const PAUSE: Duration = Duration::from_millis(2);

/// When to look at the tree again; none if nothing is left to release.
#[derive(Default)]
pub struct PlaceholderRelease {
    next_look: Option<Instant>,
}

impl PlaceholderRelease {
    /// Releases the placeholders, or looks again later.
    ///
    /// A killed launcher may exit a moment before its command, which could create a file under a released name.
    pub fn handle_root_exited(
        &mut self,
        now: Instant,
        sandbox: &mut Option<ProcessSandbox>,
        tree: &ProcessTree,
    ) {
        let Some(sandbox) = sandbox else { return };
        self.next_look = None;
        if sandbox.placeholders.is_empty() || tree.is_empty() {
            sandbox.placeholders.clear();
        } else {
            self.next_look = Some(now + PAUSE);
        }
    }

    pub fn handle_timeout(
        &mut self,
        now: Instant,
        sandbox: &mut Option<ProcessSandbox>,
        tree: &ProcessTree,
    ) {
        if self.next_look.is_some_and(|at| now >= at) {
            self.handle_root_exited(now, sandbox, tree);
        }
    }

    pub fn poll_timeout(&self) -> Option<Instant> {
        self.next_look
    }
}
