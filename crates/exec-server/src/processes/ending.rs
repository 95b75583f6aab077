//! How a tree is brought to its end: asked first if there is grace, then killed until nobody is left.
//!
//! Owner: the process task.
//!
//! ```text
//! running ─ask▶ asked(until t) ─t▶ killing ─nobody left▶ dead(streams drain until t)
//!    │                └───────────nobody left────────────▲
//!    └──────────── kill ────────────▲
//! ```

use std::time::{Duration, Instant};

use exec_server_os::ProcessTree;

/// How far the end of a tree has come.
#[derive(Debug, Default, Clone, Copy)]
pub enum Ending {
    /// Nobody has asked for it.
    #[default]
    Running,
    /// SIGTERM was sent.
    Asked {
        /// When SIGKILL follows.
        kill_at: Instant,
        /// When to look whether all have followed; not before the root has.
        next_look: Option<Instant>,
    },
    /// SIGKILL was sent, and is sent again to whoever is found.
    Killing {
        /// When to look again.
        next_pass: Instant,
        /// How long to wait after that.
        pause: Duration,
    },
    /// Nobody is left.
    Dead {
        /// When streams that a stranger holds open are given up.
        drained_by: Instant,
    },
}

/// The first look for survivors; each later one waits twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
/// The longest wait between two looks.
const LONGEST_PAUSE: Duration = Duration::from_millis(50);

impl Ending {
    /// Sends SIGTERM, and SIGKILL after `grace`; without grace, SIGKILL at once.
    pub fn begin(
        &mut self,
        tree: &ProcessTree,
        now: Instant,
        grace: Option<Duration>,
        drain: Duration,
    ) {
        match (*self, grace) {
            (Self::Running, Some(grace)) => {
                if let Err(error) = tree.signal(exec_server_os::SIGTERM) {
                    tracing::debug!(%error, "could not ask a process to end");
                }
                *self = Self::Asked { kill_at: now + grace, next_look: None };
            }
            (Self::Asked { kill_at, next_look }, Some(grace)) => {
                *self = Self::Asked { kill_at: kill_at.min(now + grace), next_look };
            }
            (Self::Running | Self::Asked { .. }, None) => self.kill(tree, now, FIRST_PAUSE, drain),
            (Self::Killing { .. }, _) => {}
            // The root may have left somebody behind since.
            (Self::Dead { .. }, _) => self.kill(tree, now, FIRST_PAUSE, drain),
        }
    }

    /// The root has ended: the others may follow any time.
    pub fn handle_root_ended(&mut self, now: Instant) {
        if let Self::Asked { next_look, .. } = self {
            next_look.get_or_insert(now);
        }
    }

    /// When [`Ending::handle_timeout`] wants to be called.
    pub fn poll_timeout(&self) -> Option<Instant> {
        match self {
            Self::Running => None,
            Self::Asked { kill_at, next_look } => {
                Some(next_look.map_or(*kill_at, |look| look.min(*kill_at)))
            }
            Self::Killing { next_pass, .. } => Some(*next_pass),
            Self::Dead { drained_by } => Some(*drained_by),
        }
    }

    /// Time has passed; says whether streams that are still open are to be given up.
    pub fn handle_timeout(&mut self, tree: &ProcessTree, now: Instant, drain: Duration) -> bool {
        if self.poll_timeout().is_none_or(|at| now < at) {
            return false;
        }
        match *self {
            Self::Running => false,
            Self::Asked { kill_at, .. } if now >= kill_at => {
                self.kill(tree, now, FIRST_PAUSE, drain);
                false
            }
            Self::Asked { kill_at, .. } => {
                *self = if tree.is_empty() {
                    Self::Dead { drained_by: now + drain }
                } else {
                    Self::Asked { kill_at, next_look: Some(now + LONGEST_PAUSE) }
                };
                false
            }
            Self::Killing { pause, .. } => {
                self.kill(tree, now, (pause * 2).min(LONGEST_PAUSE), drain);
                false
            }
            Self::Dead { .. } => true,
        }
    }

    fn kill(&mut self, tree: &ProcessTree, now: Instant, pause: Duration, drain: Duration) {
        *self = if tree.kill_pass() == 0 {
            Self::Dead { drained_by: now + drain }
        } else {
            Self::Killing { next_pass: now + pause, pause }
        };
    }
}
