//! Pauses output until a resumed client has read what it missed, and while unconfirmed events would be evicted.

use std::time::{Duration, Instant};

use exec_server_protocol::limits::MAX_OUTPUT_CHUNK_BYTES;

use super::{Confirmation, GateInput};
use crate::delivery::Delivery;
use crate::process_log::ProcessLog;

/// Time from the receipt of one answer to the next read of missed output by a resumed client. Output is read again
/// after that.
pub(super) const CATCH_UP_TIMEOUT: Duration = Duration::from_secs(10);

/// Catch-up state of the client of one process.
#[derive(Debug)]
pub(super) struct Handover {
    delivery: Delivery,
    /// End of the wait for the next read; `None` until the client has the latest answer.
    catch_up_until: Option<Instant>,
    awaits_confirmation: bool,
}

impl Handover {
    pub(super) fn new(retain_bytes: usize) -> Self {
        let delivery = Delivery::new(retain_bytes);
        Self { delivery, catch_up_until: None, awaits_confirmation: false }
    }

    pub(super) fn holds_output(&self, input: GateInput<'_>) -> bool {
        if !input.is_attached {
            return !input.is_ending;
        }
        !input.is_ending && self.is_catching_up(input.now, input.log) || self.is_full(input.log)
    }

    pub(super) fn poll_timeout(&self, input: GateInput<'_>) -> Option<Instant> {
        let is_awaited = input.is_attached && self.is_catching_up(input.now, input.log);
        self.catch_up_until.filter(|_| is_awaited)
    }

    pub(super) fn handle_link_changed(&mut self) {
        self.delivery.handle_attached();
        self.expect_read();
    }

    pub(super) fn handle_pushed(&mut self, seq: u64, bytes: usize) {
        self.delivery.handle_pushed(seq, bytes);
    }

    pub(super) fn handle_read(&mut self, after: u64, through: u64, log: &ProcessLog) {
        let last = last_seq(log);
        self.delivery.handle_read(after, through, last);
        if self.delivery.has_missed(last) {
            self.expect_read();
        }
    }

    pub(super) fn poll_mark(&mut self, input: GateInput<'_>) -> bool {
        if !input.is_attached {
            return false;
        }
        let is_full = self.is_full(input.log);
        let last = last_seq(input.log);
        let has_missed = self.delivery.has_missed(last);
        if is_full && has_missed && (input.is_ending || !self.is_patient(input.now)) {
            self.delivery.handle_given_up(last);
        }
        let awaits_read = self.delivery.has_missed(last) && self.catch_up_until.is_none();
        let is_due =
            !self.awaits_confirmation && (awaits_read || self.delivery.wants_mark(is_full));
        if is_due {
            self.awaits_confirmation = true;
            self.delivery.handle_marked();
        }
        is_due
    }

    pub(super) fn awaits_confirmation(&self) -> bool {
        self.awaits_confirmation
    }

    pub(super) fn handle_confirmation(&mut self, now: Instant, confirmation: Confirmation) {
        self.awaits_confirmation = false;
        if confirmation == Confirmation::Received {
            self.delivery.handle_answered();
            self.catch_up_until.get_or_insert(now + CATCH_UP_TIMEOUT);
        }
    }

    fn is_catching_up(&self, now: Instant, log: &ProcessLog) -> bool {
        self.delivery.has_missed(last_seq(log)) && self.is_patient(now)
    }

    /// Whether one more chunk could evict an event that the client may not have.
    fn is_full(&self, log: &ProcessLog) -> bool {
        log.would_evict(MAX_OUTPUT_CHUNK_BYTES, self.delivery.confirmed())
    }

    /// The timeout starts when the client has what was sent until now, so an earlier mark no longer matters.
    fn expect_read(&mut self) {
        self.catch_up_until = None;
        self.awaits_confirmation = false;
    }

    fn is_patient(&self, now: Instant) -> bool {
        self.catch_up_until.is_none_or(|until| now < until)
    }
}

fn last_seq(log: &ProcessLog) -> u64 {
    log.next_seq() - 1
}
