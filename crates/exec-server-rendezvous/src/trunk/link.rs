//! One end of a link.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use exec_server_relay::switchboard::{Charge, CloseReason};

use super::{CreditPool, FRAME_OVERHEAD, TrunkTimes};

/// What is to be done about the mark of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    NotDue,
    Due,
    Unanswered,
}

/// One end of a link.
pub struct End {
    /// Frames and charged bytes sent.
    sent: u64,
    sent_bytes: u64,
    /// Bytes that may be sent in total.
    limit: u64,
    /// Frames that the other end has confirmed.
    confirmed: u64,
    /// When this end last sent a frame, a mark, or got an answer.
    quiet_since: Instant,
    /// When the first mark was sent that is not answered.
    marked: Option<Instant>,

    received: u64,
    received_bytes: u64,
    taken_bytes: u64,
    /// Bytes that the other end may send in total, as it was told.
    granted: u64,
    window: u64,
    /// Bytes taken since the window has grown.
    taken_in_window: u64,
    queue: VecDeque<(Bytes, Charge)>,

    reason: Option<CloseReason>,
    pool: Arc<CreditPool>,
}

impl End {
    pub fn new(now: Instant, limit: u64, pool: &Arc<CreditPool>) -> Self {
        let window = pool.first_window();
        Self {
            sent: 0,
            sent_bytes: 0,
            limit,
            confirmed: 0,
            quiet_since: now,
            marked: None,
            received: 0,
            received_bytes: 0,
            taken_bytes: 0,
            granted: window,
            window,
            taken_in_window: 0,
            queue: VecDeque::new(),
            reason: None,
            pool: pool.clone(),
        }
    }

    pub fn can_send(&self) -> bool {
        self.reason.is_none() && self.sent_bytes < self.limit
    }

    /// Counts a frame; returns its sequence number.
    pub fn note_sent(&mut self, now: Instant, bytes: usize) -> u64 {
        let sequence = self.sent;
        self.sent += 1;
        self.sent_bytes += (bytes + FRAME_OVERHEAD) as u64;
        if self.marked.is_none() {
            self.quiet_since = now;
        }
        sequence
    }

    pub fn sent(&self) -> u64 {
        self.sent
    }

    pub fn raise_limit(&mut self, limit: u64) {
        self.limit = self.limit.max(limit);
    }

    /// Takes a credit; returns whether more may be sent now.
    pub fn handle_credit(&mut self, confirmed: u64, limit: u64) -> bool {
        let was_blocked = !self.can_send();
        self.confirmed = self.confirmed.max(confirmed.min(self.sent));
        self.marked = None;
        self.raise_limit(limit);
        was_blocked && self.can_send()
    }

    /// Whether the other end had credit for its next frame.
    pub fn may_receive(&self) -> bool {
        self.received_bytes < self.granted
    }

    pub fn note_received(&mut self, frame: Bytes, charge: Charge) {
        self.received += 1;
        self.received_bytes += (frame.len() + FRAME_OVERHEAD) as u64;
        self.queue.push_back((frame, charge));
    }

    pub fn received(&self) -> u64 {
        self.received
    }

    pub fn granted(&self) -> u64 {
        self.granted
    }

    pub fn has_frame(&self) -> bool {
        !self.queue.is_empty()
    }

    pub fn pop(&mut self) -> Option<Bytes> {
        let (frame, _charge) = self.queue.pop_front()?;
        let bytes = (frame.len() + FRAME_OVERHEAD) as u64;
        self.taken_bytes += bytes;
        self.taken_in_window += bytes;
        if self.queue.is_empty() {
            // Releases the memory of a burst, because most links are idle.
            self.queue = VecDeque::new();
        }
        Some(frame)
    }

    /// A new limit for the other end, once half of the window has been taken.
    pub fn grant(&mut self, pool: &CreditPool) -> Option<u64> {
        if self.taken_in_window >= self.window {
            self.taken_in_window = 0;
            self.window = pool.larger_window(self.window);
        }
        let limit = self.taken_bytes + self.window;
        if limit < self.granted + self.window / 2 {
            return None;
        }
        self.granted = limit;
        Some(limit)
    }

    pub fn reason(&self) -> Option<CloseReason> {
        self.reason
    }

    pub fn end(&mut self, why: CloseReason) {
        self.reason.get_or_insert(why);
    }

    /// Whether a mark is due: often while frames are unconfirmed, rarely otherwise.
    pub fn poll_mark(&mut self, now: Instant, times: &TrunkTimes) -> Mark {
        // Without a limit the link is not open yet; that has a timeout of its own.
        if self.reason.is_some() || self.limit == 0 {
            return Mark::NotDue;
        }
        if self.marked.is_some_and(|since| now >= since + times.stall) {
            return Mark::Unanswered;
        }
        let is_idle = self.confirmed == self.sent && self.can_send();
        let every = if is_idle { times.idle } else { times.mark };
        if now < self.quiet_since + every {
            return Mark::NotDue;
        }
        self.quiet_since = now;
        self.marked.get_or_insert(now);
        Mark::Due
    }
}

impl Drop for End {
    fn drop(&mut self) {
        self.pool.give_back(self.window);
    }
}
