//! Decides when a client dials, with which session, and when it gives up.
//!
//! Owner: the client's driver (`exec-server-client/src/driver.rs`).
//!
//! ```text
//! idle ─wanted▶ dialing ─connected▶ ready ─lost▶ dialing(resume, until t) ─connected▶ ready
//!   ▲              │                                │  ▲
//!   └─ not worth trying again ◀─────────────────────┤  └─ pause over
//!   └─ t passes ◀───────────────────────────────────┴▶ pausing
//! ```
//!
//! A first dial that fails is not repeated, so that its caller can decide; one whose connection was made and broke before
//! the session was open is, a few times. A lost link is retried within a budget, because its processes keep running.

use std::time::{Duration, Instant};

use crate::backoff::Backoff;

/// How long a client tries to resume its session: longer than the reference client, because an executor behind a relay
/// has to reconnect first, and less than the 80 s for which a server keeps a session.
pub const RECOVERY_BUDGET: Duration = Duration::from_secs(55);
/// Timeout of the last attempt, which begins when the budget is spent.
pub const LAST_ATTEMPT: Duration = Duration::from_secs(2);
/// The first pause between two attempts.
pub const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// First connections that may break before their session is open: a relay that is restarted cuts one, seldom two.
pub const FIRST_ATTEMPTS: u32 = 3;
/// Long enough to spare a server that restarts, short enough for several attempts within the budget.
pub const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Reconnect state of one client.
#[derive(Debug)]
pub struct Recovery {
    budget: Duration,
    backoff: Backoff,
    state: State,
    /// The next action for the owner.
    action: Option<Action>,
}

/// Action for the owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Dial, before `deadline` if there is one.
    Dial {
        /// Whether the old session is to be resumed.
        resume: Resume,
        /// End of the attempt.
        deadline: Option<Instant>,
    },
    /// Fail all waiting calls; the old session is lost.
    GiveUp,
}

/// Whether an old session is to be resumed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resume {
    /// A session exists, and processes may depend on it.
    Yes,
    /// A new session will do.
    No,
}

/// Why an attempt failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DialFailure {
    /// The dial failed.
    Unreachable,
    /// The connection was made, and broke before the session was open.
    Cut,
    /// The session is attached to another connection, probably our previous one whose loss the server has not detected.
    StillAttached,
    /// The server rejected the client; a retry would not help.
    Refused,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Idle,
    Dialing(Attempt),
    Pausing { until: Instant, attempt: Attempt },
    Ready,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Attempt {
    resume: Resume,
    deadline: Option<Instant>,
    /// Whether this attempt replaces a lost link.
    is_repair: bool,
    /// Whether no other attempt follows.
    is_last: bool,
    /// First connections that were cut.
    cuts: u32,
}

impl Recovery {
    /// A client that has not dialled yet.
    pub fn new(budget: Duration, backoff: Backoff) -> Self {
        Self { budget, backoff, state: State::Idle, action: None }
    }

    /// A caller needs a connection; `resume` tells whether a session exists.
    pub fn handle_wanted(&mut self, now: Instant, resume: Resume) {
        if self.state != State::Idle {
            return;
        }
        let deadline = (resume == Resume::Yes).then(|| now + self.budget);
        self.dial(Attempt { resume, deadline, is_repair: false, is_last: false, cuts: 0 });
    }

    /// The attempt succeeded.
    pub fn handle_connected(&mut self) {
        self.backoff.reset();
        self.state = State::Ready;
    }

    /// The connection is lost.
    pub fn handle_lost(&mut self, now: Instant) {
        let deadline = Some(now + self.budget);
        self.dial(Attempt {
            resume: Resume::Yes,
            deadline,
            is_repair: true,
            is_last: false,
            cuts: 0,
        });
    }

    /// The connection is lost, and its session cannot be resumed.
    pub fn handle_lost_for_good(&mut self) {
        self.give_up();
    }

    /// The attempt made progress before it failed, so the budget starts again.
    pub fn handle_progress(&mut self, now: Instant) {
        if let State::Dialing(attempt) = &mut self.state
            && attempt.deadline.is_some()
        {
            attempt.deadline = Some(now + self.budget);
            attempt.is_last = false;
            self.backoff.reset();
        }
    }

    /// The attempt failed; `jitter` is a random number from 0 to 1.
    pub fn handle_failed(&mut self, now: Instant, failure: DialFailure, jitter: f64) {
        let State::Dialing(attempt) = self.state else { return };
        let is_worth_it = match failure {
            DialFailure::Refused => false,
            DialFailure::StillAttached | DialFailure::Unreachable | DialFailure::Cut => {
                attempt.is_repair
            }
        };
        let until = now + self.backoff.next(jitter);
        if failure == DialFailure::Cut && !attempt.is_repair && attempt.cuts + 1 < FIRST_ATTEMPTS {
            let attempt = Attempt { cuts: attempt.cuts + 1, ..attempt };
            self.state = State::Pausing { until, attempt };
            return;
        }
        let deadline = attempt.deadline.filter(|_| is_worth_it && !attempt.is_last);
        match deadline {
            Some(deadline) if until < deadline => self.state = State::Pausing { until, attempt },
            Some(deadline) if now < deadline => {
                let attempt =
                    Attempt { deadline: Some(deadline + LAST_ATTEMPT), is_last: true, ..attempt };
                self.state = State::Pausing { until: deadline, attempt };
            }
            _ => self.give_up(),
        }
    }

    /// When [`Recovery::handle_timeout`] must be called.
    pub fn poll_timeout(&self) -> Option<Instant> {
        match self.state {
            State::Pausing { until, .. } => Some(until),
            State::Idle | State::Dialing(_) | State::Ready => None,
        }
    }

    /// Starts the next attempt, or gives up, if that is due at `now`.
    pub fn handle_timeout(&mut self, now: Instant) {
        if let State::Pausing { until, attempt } = self.state
            && now >= until
        {
            self.dial(attempt);
        }
    }

    /// The next action.
    pub fn poll_output(&mut self) -> Option<Action> {
        self.action.take()
    }

    fn dial(&mut self, attempt: Attempt) {
        self.state = State::Dialing(attempt);
        self.action = Some(Action::Dial { resume: attempt.resume, deadline: attempt.deadline });
    }

    fn give_up(&mut self) {
        self.backoff.reset();
        self.state = State::Idle;
        self.action = Some(Action::GiveUp);
    }
}

#[cfg(test)]
mod tests;
