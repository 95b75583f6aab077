//! Decides when a running process has exceeded its time limits.
//!
//! Owner: the process task, which asks only while the root process runs and termination is not requested.

use std::time::{Duration, Instant};

use exec_server_protocol::process::ExitReason;

/// `timeoutMs` and `idleTimeoutMs` of one process.
#[derive(Debug)]
pub struct TimeLimits {
    timeout_at: Option<Instant>,
    idle_timeout: Option<Duration>,
    last_output: Instant,
}

/// Whether the idle timeout runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IdleTimer {
    /// The process has no output to read.
    Runs,
    /// Output is waiting to be read, so the client is slow and not the process.
    Paused,
}

impl TimeLimits {
    /// The limits of a process that started at `started`.
    pub fn new(
        started: Instant,
        timeout: Option<Duration>,
        idle_timeout: Option<Duration>,
    ) -> Self {
        let timeout_at = timeout.and_then(|timeout| started.checked_add(timeout));
        Self { timeout_at, idle_timeout, last_output: started }
    }

    /// Output was read.
    pub fn handle_output(&mut self, now: Instant) {
        self.last_output = now;
    }

    /// When the result of [`TimeLimits::exceeded`] may change.
    pub fn poll_timeout(&self, idle: IdleTimer) -> Option<Instant> {
        [self.timeout_at, self.idle_at(idle)].into_iter().flatten().min()
    }

    /// The limit that the process has exceeded, if any.
    pub fn exceeded(&self, now: Instant, idle: IdleTimer) -> Option<ExitReason> {
        if self.timeout_at.is_some_and(|at| now >= at) {
            Some(ExitReason::Timeout)
        } else if self.idle_at(idle).is_some_and(|at| now >= at) {
            Some(ExitReason::IdleTimeout)
        } else {
            None
        }
    }

    fn idle_at(&self, idle: IdleTimer) -> Option<Instant> {
        let limit = self.idle_timeout.filter(|_| idle == IdleTimer::Runs)?;
        self.last_output.checked_add(limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn output_restarts_the_idle_timeout_and_not_the_timeout() {
        let start = Instant::now();
        let mut limits = TimeLimits::new(start, Some(SECOND * 3), Some(SECOND * 2));
        assert_eq!(limits.poll_timeout(IdleTimer::Runs), Some(start + SECOND * 2));
        limits.handle_output(start + SECOND);
        assert_eq!(limits.exceeded(start + SECOND * 2, IdleTimer::Runs), None);
        let late = start + SECOND * 3;
        assert_eq!(limits.exceeded(late, IdleTimer::Runs), Some(ExitReason::Timeout));
    }

    #[test]
    fn the_idle_timeout_is_paused_while_output_waits() {
        let start = Instant::now();
        let limits = TimeLimits::new(start, None, Some(SECOND));
        assert_eq!(limits.poll_timeout(IdleTimer::Paused), None);
        assert_eq!(limits.exceeded(start + SECOND, IdleTimer::Paused), None);
        let exceeded = limits.exceeded(start + SECOND, IdleTimer::Runs);
        assert_eq!(exceeded, Some(ExitReason::IdleTimeout));
    }

    #[test]
    fn a_limit_beyond_the_clock_is_none() {
        let limits = TimeLimits::new(Instant::now(), Some(Duration::MAX), Some(Duration::MAX));
        assert_eq!(limits.poll_timeout(IdleTimer::Runs), None);
    }
}
