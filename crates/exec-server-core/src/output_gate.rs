//! Decides when output of a process may be read, so that its client gets all of it.
//!
//! Owner: the process task. It asks only while output is ready; room in the outbox is a separate condition.
//!
//! ```text
//! reference client: open ─512 KiB read▶ shut ─50 ms after the start▶ open
//! waitWhenDetached: open ─link lost▶ shut ─client attached and has read what it missed▶ open
//!                   open ─log full of unconfirmed events▶ shut ─client confirms some▶ open
//! ```
//!
//! Without either rule, the gate is always open.

mod handover;

use std::time::{Duration, Instant};

use handover::Handover;

use crate::process_log::ProcessLog;

/// The reference client keeps 1 MiB of a process's events until its listener is attached, and drops the rest.
/// Only half of that may be sent before the listener is expected.
const HEAD_START: Duration = Duration::from_millis(50);
const HEAD_START_BYTES: u64 = 512 * 1024;

/// The gate in front of the output of one process.
#[derive(Debug)]
pub struct OutputGate {
    head_start: Option<HeadStart>,
    handover: Option<Handover>,
}

/// Which rules apply to a process.
#[derive(Debug, Clone, Copy)]
pub struct GateRules {
    /// When the process started.
    pub started: Instant,
    /// Size of the process log in bytes.
    pub retain_bytes: usize,
    /// Whether the client attaches its listener some time after the start was answered.
    pub is_reference_client: bool,
    /// Whether output waits while no client is attached.
    pub waits_when_detached: bool,
}

/// The state of the process and its link that the gate depends on.
#[derive(Debug, Clone, Copy)]
pub struct GateInput<'a> {
    /// The present time.
    pub now: Instant,
    /// The events of the process.
    pub log: &'a ProcessLog,
    /// Whether events can be sent to a client.
    pub is_attached: bool,
    /// Whether termination of the process was requested.
    pub is_ending: bool,
}

/// Result of a mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Confirmation {
    /// The client has everything that was sent before the mark.
    Received,
    /// The link closed before the client answered.
    LinkLost,
}

#[derive(Debug)]
struct HeadStart {
    ends: Instant,
    bytes_left: u64,
}

impl OutputGate {
    /// The gate of a process that has written nothing yet.
    pub fn new(rules: GateRules) -> Self {
        let head_start = rules
            .is_reference_client
            .then(|| HeadStart { ends: rules.started + HEAD_START, bytes_left: HEAD_START_BYTES });
        let handover = rules.waits_when_detached.then(|| Handover::new(rules.retain_bytes));
        Self { head_start, handover }
    }

    /// Whether output may be read now.
    pub fn is_open(&self, input: GateInput<'_>) -> bool {
        self.head_start_end(input).is_none()
            && !self.handover.as_ref().is_some_and(|handover| handover.holds_output(input))
    }

    /// When a shut gate may open without another event.
    pub fn poll_timeout(&self, input: GateInput<'_>) -> Option<Instant> {
        let handover = self.handover.as_ref().and_then(|handover| handover.poll_timeout(input));
        [self.head_start_end(input), handover].into_iter().flatten().min()
    }

    /// The process got another link, or lost its link.
    pub fn handle_link_changed(&mut self) {
        if let Some(handover) = &mut self.handover {
            handover.handle_link_changed();
        }
    }

    /// Output was read from the process.
    pub fn handle_output(&mut self, bytes: usize) {
        if let Some(head_start) = &mut self.head_start {
            head_start.bytes_left = head_start.bytes_left.saturating_sub(bytes as u64);
        }
    }

    /// An event with `bytes` of output was pushed to the client.
    pub fn handle_pushed(&mut self, seq: u64, bytes: usize) {
        if let Some(handover) = &mut self.handover {
            handover.handle_pushed(seq, bytes);
        }
    }

    /// The attached client sent a read after `after`, which is answered up to `through`.
    pub fn handle_read(&mut self, after: u64, through: u64, log: &ProcessLog) {
        if let Some(handover) = &mut self.handover {
            handover.handle_read(after, through, log);
        }
    }

    /// Whether a mark must be sent now, after everything that was sent to the attached client.
    pub fn poll_mark(&mut self, input: GateInput<'_>) -> bool {
        self.handover.as_mut().is_some_and(|handover| handover.poll_mark(input))
    }

    /// Whether the answer to the latest mark still matters.
    pub fn awaits_confirmation(&self) -> bool {
        self.handover.as_ref().is_some_and(Handover::awaits_confirmation)
    }

    /// The latest mark was answered, or its link closed.
    pub fn handle_confirmation(&mut self, now: Instant, confirmation: Confirmation) {
        if let Some(handover) = &mut self.handover {
            handover.handle_confirmation(now, confirmation);
        }
    }

    fn head_start_end(&self, input: GateInput<'_>) -> Option<Instant> {
        let head_start = self.head_start.as_ref()?;
        let is_shut =
            input.is_attached && head_start.bytes_left == 0 && input.now < head_start.ends;
        is_shut.then_some(head_start.ends)
    }
}

#[cfg(test)]
mod tests;
