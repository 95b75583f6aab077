//! Decides how a process tree is terminated: SIGTERM with a grace period, then SIGKILL until the tree is empty.
//!
//! Owner: the process task, which performs each [`Step`] and reports an empty tree.
//! Invariant: the reason is the first one that was given while the root process ran.
//!
//! ```text
//! running ─ask▶ asked(until t) ─t▶ killing ─tree empty▶ dead(streams drain until t)
//!    │                └────────────tree empty────────────▲
//!    └──────────── kill ────────────▲
//! ```

use std::time::{Duration, Instant};

use exec_server_protocol::process::ExitReason;

/// The first pause between two kill passes; each later pause is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
/// The longest pause between two kill passes, and between two checks of a tree that was asked to exit.
const LONGEST_PAUSE: Duration = Duration::from_millis(50);

/// The termination of one process tree.
#[derive(Debug)]
pub struct Termination {
    state: State,
    reason: Option<ExitReason>,
    has_root_exited: bool,
    drain: Duration,
}

/// Action for the owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Send SIGTERM to the tree.
    Ask,
    /// Send SIGKILL to the tree; call [`Termination::handle_tree_empty`] if no process was found.
    Kill,
    /// Check the tree; call [`Termination::handle_tree_empty`] if it is empty.
    Look,
    /// Close the output streams: a process outside the tree holds them open.
    CloseStreams,
}

#[derive(Debug, Clone, Copy)]
enum State {
    Running,
    Asked {
        kill_at: Instant,
        /// `None` until the root has exited.
        next_look: Option<Instant>,
    },
    Killing {
        next_pass: Instant,
        pause: Duration,
    },
    Dead {
        drained_by: Instant,
    },
}

impl Termination {
    /// A running tree; its streams may stay open for `drain` after the tree is empty.
    pub fn new(drain: Duration) -> Self {
        Self { state: State::Running, reason: None, has_root_exited: false, drain }
    }

    /// Asks the tree to exit within `grace`; kills it at once without a grace period.
    pub fn handle_request(
        &mut self,
        now: Instant,
        reason: ExitReason,
        grace: Option<Duration>,
    ) -> Option<Step> {
        if !self.has_root_exited {
            self.reason.get_or_insert(reason);
        }
        match (self.state, grace) {
            (State::Running, Some(grace)) => {
                let next_look = self.has_root_exited.then_some(now);
                self.state = State::Asked { kill_at: now + grace, next_look };
                Some(Step::Ask)
            }
            (State::Asked { kill_at, next_look }, Some(grace)) => {
                self.state = State::Asked { kill_at: kill_at.min(now + grace), next_look };
                None
            }
            (State::Killing { .. }, _) => None,
            // The tree may have gained members since it was found empty.
            (State::Running | State::Asked { .. }, None) | (State::Dead { .. }, _) => {
                Some(self.kill(now, FIRST_PAUSE))
            }
        }
    }

    /// The root process was reaped, so the rest of the tree may exit at any time.
    pub fn handle_root_exited(&mut self, now: Instant) {
        self.has_root_exited = true;
        if let State::Asked { next_look, .. } = &mut self.state {
            next_look.get_or_insert(now);
        }
    }

    /// A kill pass or a check found no process.
    pub fn handle_tree_empty(&mut self, now: Instant) {
        self.state = State::Dead { drained_by: now + self.drain };
    }

    /// When [`Termination::handle_timeout`] must be called.
    pub fn poll_timeout(&self) -> Option<Instant> {
        match self.state {
            State::Running => None,
            State::Asked { kill_at, next_look } => {
                Some(next_look.map_or(kill_at, |look| look.min(kill_at)))
            }
            State::Killing { next_pass, .. } => Some(next_pass),
            // The exit is reported before the streams are closed.
            State::Dead { drained_by } => self.has_root_exited.then_some(drained_by),
        }
    }

    /// The step that is due at `now`.
    pub fn handle_timeout(&mut self, now: Instant) -> Option<Step> {
        if self.poll_timeout().is_none_or(|at| now < at) {
            return None;
        }
        match self.state {
            State::Running => None,
            State::Asked { kill_at, .. } if now >= kill_at => Some(self.kill(now, FIRST_PAUSE)),
            State::Asked { kill_at, .. } => {
                self.state = State::Asked { kill_at, next_look: Some(now + LONGEST_PAUSE) };
                Some(Step::Look)
            }
            State::Killing { pause, .. } => Some(self.kill(now, (pause * 2).min(LONGEST_PAUSE))),
            State::Dead { .. } => Some(Step::CloseStreams),
        }
    }

    /// Why the root process was terminated, if it was.
    pub fn reason(&self) -> Option<ExitReason> {
        self.reason
    }

    /// Whether termination was ever requested.
    pub fn is_requested(&self) -> bool {
        !matches!(self.state, State::Running)
    }

    /// Whether termination was requested and the tree is not known to be empty.
    pub fn is_in_progress(&self) -> bool {
        matches!(self.state, State::Asked { .. } | State::Killing { .. })
    }

    fn kill(&mut self, now: Instant, pause: Duration) -> Step {
        self.state = State::Killing { next_pass: now + pause, pause };
        Step::Kill
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRACE: Duration = Duration::from_secs(1);
    const DRAIN: Duration = Duration::from_secs(2);

    /// Runs one command per line and lists the steps that follow, with their time in milliseconds.
    ///
    /// `wait N` lets N ms pass; `members N` sets how many processes the tree has.
    fn check(script: &str, expected: &str) {
        let start = Instant::now();
        let mut now = start;
        let mut tree = Termination::new(DRAIN);
        let mut members = 1;
        let mut steps = Vec::new();
        for line in script.lines().map(str::trim).filter(|line| !line.is_empty()) {
            let mut words = line.split(' ');
            let (command, number) = (words.next().unwrap(), words.next());
            let number: u64 = number.map_or(0, |number| number.parse().unwrap());
            let mut due = Vec::new();
            match command {
                "ask" => {
                    due.push((now, tree.handle_request(now, ExitReason::Terminated, Some(GRACE))))
                }
                "kill" => due.push((now, tree.handle_request(now, ExitReason::Timeout, None))),
                "exit" => tree.handle_root_exited(now),
                "members" => members = number,
                "wait" => {
                    let end = now + Duration::from_millis(number);
                    while let Some(at) = tree.poll_timeout().filter(|at| *at <= end) {
                        now = now.max(at);
                        let step = tree.handle_timeout(now);
                        report(&mut tree, &mut steps, start, now, step, members);
                        if step == Some(Step::CloseStreams) {
                            break;
                        }
                    }
                    now = end;
                }
                other => panic!("unknown command {other}"),
            }
            for (at, step) in due {
                report(&mut tree, &mut steps, start, at, step, members);
            }
        }
        assert_eq!(steps.join(" "), expected, "{script}");
    }

    fn report(
        tree: &mut Termination,
        steps: &mut Vec<String>,
        start: Instant,
        now: Instant,
        step: Option<Step>,
        members: u64,
    ) {
        if let Some(step) = step {
            steps.push(format!("{}:{step:?}", (now - start).as_millis()));
            if matches!(step, Step::Kill | Step::Look) && members == 0 {
                tree.handle_tree_empty(now);
            }
        }
    }

    #[test]
    fn without_grace_the_tree_is_killed_until_it_is_empty() {
        check("kill\n wait 20", "0:Kill 1:Kill 3:Kill 7:Kill 15:Kill");
        check("kill\n wait 2\n members 0\n wait 10", "0:Kill 1:Kill 3:Kill");
    }

    #[test]
    fn the_pause_between_kill_passes_is_bounded() {
        check(
            "kill\n wait 170",
            "0:Kill 1:Kill 3:Kill 7:Kill 15:Kill 31:Kill 63:Kill 113:Kill 163:Kill",
        );
    }

    #[test]
    fn with_grace_sigkill_follows_sigterm_when_the_grace_ends() {
        check("ask\n wait 999", "0:Ask");
        check("ask\n wait 1000", "0:Ask 1000:Kill");
        check("ask\n wait 10\n kill", "0:Ask 10:Kill");
    }

    #[test]
    fn a_later_request_never_extends_the_grace() {
        check("ask\n wait 600\n ask\n wait 400", "0:Ask 1000:Kill");
    }

    #[test]
    fn the_tree_is_looked_at_once_the_root_has_exited() {
        check("ask\n wait 10\n exit\n wait 60", "0:Ask 10:Look 60:Look");
        check("exit\n ask\n members 0\n wait 100", "0:Ask 0:Look");
        check("ask\n exit\n members 0\n wait 1999", "0:Ask 0:Look");
        check("ask\n exit\n members 0\n wait 2000", "0:Ask 0:Look 2000:CloseStreams");
    }

    #[test]
    fn streams_are_not_closed_before_the_exit_is_known() {
        check("members 0\n kill\n wait 3000", "0:Kill");
        check("members 0\n kill\n wait 3000\n exit\n wait 1", "0:Kill 3000:CloseStreams");
    }

    #[test]
    fn a_dead_tree_is_killed_again_on_request() {
        check("members 0\n kill\n wait 5\n ask", "0:Kill 5:Kill");
    }

    #[test]
    fn the_first_reason_counts_and_none_after_the_exit() {
        let now = Instant::now();
        let mut tree = Termination::new(DRAIN);
        tree.handle_request(now, ExitReason::Timeout, Some(GRACE));
        tree.handle_request(now, ExitReason::Terminated, None);
        assert_eq!(tree.reason(), Some(ExitReason::Timeout));
        let mut tree = Termination::new(DRAIN);
        tree.handle_root_exited(now);
        tree.handle_request(now, ExitReason::Terminated, None);
        assert_eq!(tree.reason(), None);
        assert!(tree.is_requested() && tree.is_in_progress());
    }
}
