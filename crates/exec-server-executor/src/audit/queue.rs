//! Records on their way from requests to the writer thread.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::oneshot;

use super::AuditOnFull;

/// More queued records than this mean that the destination has stopped taking them.
pub const MAX_RECORDS: usize = 16 * 1024;
/// The same in bytes: long arguments and payloads reach this first.
pub const MAX_BYTES: usize = 64 * 1024 * 1024;

/// One line of the log.
#[derive(Debug)]
pub struct Entry {
    pub line: Vec<u8>,
    /// Gets the result; the request waits for it.
    pub written: Option<oneshot::Sender<Result<(), String>>>,
}

/// The queue in front of the writer.
#[derive(Debug)]
pub struct Queue {
    state: Mutex<State>,
    arrived: Condvar,
    on_full: AuditOnFull,
}

#[derive(Debug, Default)]
struct State {
    entries: VecDeque<Entry>,
    bytes: usize,
    lost: Lost,
    /// Why the log cannot be written at the moment.
    fault: Option<String>,
    is_closed: bool,
}

/// What the log does not have.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Lost {
    /// Records that were dropped.
    pub dropped: u64,
    /// Requests that were refused.
    pub refused: u64,
}

/// What the writer takes from the queue at once.
pub struct Taken {
    pub entries: VecDeque<Entry>,
    pub lost: Lost,
    pub is_closed: bool,
}

impl Queue {
    pub fn new(on_full: AuditOnFull) -> Self {
        Self { state: Mutex::default(), arrived: Condvar::new(), on_full }
    }

    /// Adds a record; returns false if it was dropped.
    pub fn push(&self, entry: Entry) -> bool {
        let mut state = self.state();
        // A start waits for its record, so the number of such records is bounded already.
        let is_bounded = entry.written.is_some();
        let is_full = state.entries.len() >= MAX_RECORDS || state.bytes >= MAX_BYTES;
        if state.is_closed || (is_full && !is_bounded) {
            state.lost.dropped += 1;
            return false;
        }
        state.bytes += entry.line.len();
        state.entries.push_back(entry);
        self.arrived.notify_one();
        true
    }

    /// Fails with the cause while the log takes no records.
    pub fn check(&self) -> Result<(), String> {
        let mut state = self.state();
        let cause = match &state.fault {
            Some(fault) => fault.clone(),
            None if state.entries.len() >= MAX_RECORDS / 2 || state.bytes >= MAX_BYTES / 2 => {
                "the audit log is too slow".to_owned()
            }
            None => return Ok(()),
        };
        if self.on_full == AuditOnFull::Block {
            state.lost.refused += 1;
        }
        Err(cause)
    }

    /// Reports whether the log can be written.
    pub fn set_fault(&self, fault: Option<String>) {
        self.state().fault = fault;
    }

    /// Waits for records, or for `longest`.
    pub fn take(&self, longest: Option<Duration>) -> Taken {
        let mut state = self.state();
        while state.entries.is_empty() && !state.is_closed {
            match longest {
                None => state = self.arrived.wait(state).expect("no holder panics"),
                Some(longest) => {
                    let waited = self.arrived.wait_timeout(state, longest);
                    state = waited.expect("no holder panics").0;
                    break;
                }
            }
        }
        state.bytes = 0;
        Taken {
            entries: std::mem::take(&mut state.entries),
            lost: std::mem::take(&mut state.lost),
            is_closed: state.is_closed,
        }
    }

    /// Takes no more records.
    pub fn close(&self) {
        self.state().is_closed = true;
        self.arrived.notify_one();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder panics")
    }
}
