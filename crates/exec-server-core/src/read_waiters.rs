//! Holds the long polls of `process/read` until there is something to answer.
//!
//! Owner: the process task. `T` is what the owner needs to answer a read.
//!
//! ```text
//! read ─news, or no waitMs▶ answered now
//!   └──▶ waiting ─news, deadline, or connection closed▶ due
//! ```
//!
//! News is an event after `afterSeq`, or with `until` the exit or close of the process.

use std::time::{Duration, Instant};

use exec_server_protocol::process::{ProcessReadParams, ReadUntil};

use crate::process_log::ProcessLog;

/// Pending long polls of one process.
#[derive(Debug)]
pub struct ReadWaiters<T> {
    waiting: Vec<Waiter<T>>,
}

#[derive(Debug)]
struct Waiter<T> {
    params: ProcessReadParams,
    /// `None` if the deadline is beyond the range of the clock.
    deadline: Option<Instant>,
    ticket: T,
}

impl<T> Default for ReadWaiters<T> {
    fn default() -> Self {
        Self { waiting: Vec::new() }
    }
}

impl<T> ReadWaiters<T> {
    /// Whether a read has to wait before it is answered.
    pub fn must_wait(params: &ProcessReadParams, log: &ProcessLog) -> bool {
        params.wait_ms.unwrap_or(0) > 0 && !has_news(params, log)
    }

    /// Adds a read that must wait.
    pub fn push(&mut self, now: Instant, params: ProcessReadParams, ticket: T) {
        let wait = Duration::from_millis(params.wait_ms.unwrap_or(0));
        self.waiting.push(Waiter { deadline: now.checked_add(wait), params, ticket });
    }

    /// Removes the reads that can be answered now; `is_gone` tells whether the connection of a read is closed.
    pub fn take_due(
        &mut self,
        now: Instant,
        log: &ProcessLog,
        is_gone: impl Fn(&T) -> bool,
    ) -> Vec<(ProcessReadParams, T)> {
        let due = self.waiting.extract_if(.., |read| {
            has_news(&read.params, log)
                || read.deadline.is_some_and(|deadline| now >= deadline)
                || is_gone(&read.ticket)
        });
        due.map(|read| (read.params, read.ticket)).collect()
    }

    /// When the next read must be answered without news.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.waiting.iter().filter_map(|read| read.deadline).min()
    }

    /// Whether no read waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

fn has_news(params: &ProcessReadParams, log: &ProcessLog) -> bool {
    match params.until {
        None => log.has_news(params.after_seq.unwrap_or(0)),
        Some(ReadUntil::Exited) => log.exit().is_some(),
        Some(ReadUntil::Closed) => log.is_closed(),
    }
}

#[cfg(test)]
mod tests;
