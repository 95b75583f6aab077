//! Tracks which events the client has received; undelivered events are not evicted.
//!
//! Owner: the process task, for a process with `waitWhenDetached`.
//! Invariant: `confirmed` ≤ `sent`. An event is sent when the socket accepts it; only the client confirms it.
//!
//! ```text
//! pushed, or in a page ▶ sent ─mark answered, or a later read▶ confirmed ▶ may be evicted
//! link lost ▶ unconfirmed events count as missed until the client reads, acknowledges or gives them up
//! ```

use exec_server_protocol::limits::MAX_RETAINED_CHUNKS;

/// A mark follows each quarter of the log, so that marks are answered before the log is full.
const MARKS_PER_LOG: usize = 4;

/// Delivery progress of the events of one process.
#[derive(Debug)]
pub struct Delivery {
    /// The client has every event up to this number.
    confirmed: u64,
    /// Every event up to this number is confirmed or was sent over the current link.
    sent: u64,
    /// Last event before the pending mark; `None` once the mark is answered.
    mark: Option<u64>,
    /// Last event before the latest mark.
    marked: u64,
    unmarked_bytes: usize,
    mark_every: usize,
}

impl Delivery {
    /// Progress of a process that has sent nothing; `retain_bytes` is the size of its log.
    pub fn new(retain_bytes: usize) -> Self {
        let mark_every = retain_bytes / MARKS_PER_LOG;
        Self { confirmed: 0, sent: 0, mark: None, marked: 0, unmarked_bytes: 0, mark_every }
    }

    /// The link changed or was lost: unconfirmed events may be lost.
    pub fn handle_attached(&mut self) {
        self.sent = self.confirmed;
        self.mark = None;
    }

    /// Records a pushed event with `bytes` of output.
    pub fn handle_pushed(&mut self, seq: u64, bytes: usize) {
        self.unmarked_bytes += bytes;
        if seq == self.sent + 1 {
            self.sent = seq;
        }
    }

    /// Records a read after `after` that is answered up to `through`; `last` is the latest event.
    pub fn handle_read(&mut self, after: u64, through: u64, last: u64) {
        // A cursor beyond the latest event confirms nothing.
        if after > last {
            return;
        }
        self.confirmed = self.confirmed.max(after);
        self.sent = self.sent.max(self.confirmed).max(through.min(last));
    }

    /// Records that a mark was sent.
    pub fn handle_marked(&mut self) {
        self.mark = Some(self.sent);
        self.marked = self.sent;
        self.unmarked_bytes = 0;
    }

    /// The client answered the mark, so it has everything that was sent before the mark.
    pub fn handle_answered(&mut self) {
        self.confirmed = self.confirmed.max(self.mark.take().unwrap_or(0));
    }

    /// The client skips the events that it missed.
    pub fn handle_given_up(&mut self, last: u64) {
        self.sent = last;
    }

    /// The number up to which events may be evicted.
    pub fn confirmed(&self) -> u64 {
        self.confirmed
    }

    /// Whether the client misses an event up to `last`, the latest event.
    pub fn has_missed(&self, last: u64) -> bool {
        self.sent < last
    }

    /// Whether a mark should be sent now; `is_full` if the log can evict nothing until the next confirmation.
    pub fn wants_mark(&self, is_full: bool) -> bool {
        let unmarked = usize::try_from(self.sent.saturating_sub(self.marked)).unwrap_or(usize::MAX);
        let is_due = self.unmarked_bytes >= self.mark_every
            || unmarked >= MAX_RETAINED_CHUNKS / MARKS_PER_LOG;
        self.sent > self.confirmed && (is_due || is_full)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEPT: usize = 1000;

    fn pushed(numbers: std::ops::RangeInclusive<u64>) -> Delivery {
        let mut delivery = Delivery::new(KEPT);
        numbers.for_each(|seq| delivery.handle_pushed(seq, 100));
        delivery
    }

    #[test]
    fn pushed_events_are_confirmed_by_the_answer_to_a_later_mark() {
        let mut delivery = pushed(1..=3);
        assert!(delivery.wants_mark(false), "a quarter of the log was sent");
        delivery.handle_marked();
        delivery.handle_pushed(4, 100);
        assert!(!delivery.wants_mark(false));
        assert_eq!(delivery.confirmed(), 0, "a socket confirms nothing");
        delivery.handle_answered();
        assert_eq!(delivery.confirmed(), 3);
        assert!(!delivery.wants_mark(false) && delivery.wants_mark(true));
    }

    #[test]
    fn many_small_events_request_a_mark_as_well() {
        let mut delivery = Delivery::new(usize::MAX);
        let most = (MAX_RETAINED_CHUNKS / MARKS_PER_LOG) as u64;
        for seq in 1..most {
            delivery.handle_pushed(seq, 0);
        }
        assert!(!delivery.wants_mark(false));
        delivery.handle_pushed(most, 0);
        assert!(delivery.wants_mark(false));
    }

    #[test]
    fn unconfirmed_events_of_a_lost_link_are_missed_until_they_are_read() {
        let mut delivery = pushed(1..=3);
        delivery.handle_marked();
        delivery.handle_answered();
        delivery.handle_pushed(4, 100);
        delivery.handle_pushed(5, 100);
        delivery.handle_marked();
        delivery.handle_attached();
        delivery.handle_answered();
        assert_eq!(delivery.confirmed(), 3, "the mark went with its link");
        assert!(delivery.has_missed(5));
        delivery.handle_pushed(6, 100);
        assert!(delivery.has_missed(6), "a later event does not fill the hole");
        delivery.handle_read(4, 5, 6);
        assert_eq!(delivery.confirmed(), 4, "the client said where it is");
        assert!(delivery.has_missed(6));
        delivery.handle_read(5, 6, 6);
        assert!(!delivery.has_missed(6));
        delivery.handle_marked();
        delivery.handle_answered();
        assert_eq!(delivery.confirmed(), 6);
    }

    #[test]
    fn a_cursor_beyond_the_latest_event_confirms_nothing() {
        let mut delivery = pushed(1..=3);
        delivery.handle_attached();
        delivery.handle_read(u64::MAX, u64::MAX, 3);
        assert_eq!(delivery.confirmed(), 0);
        assert!(delivery.has_missed(3));
    }

    #[test]
    fn skipped_events_are_evicted_only_once_the_client_has_the_rest() {
        let mut delivery = pushed(1..=3);
        delivery.handle_attached();
        delivery.handle_given_up(3);
        assert!(!delivery.has_missed(3) && delivery.wants_mark(true));
        delivery.handle_marked();
        delivery.handle_answered();
        assert_eq!(delivery.confirmed(), 3);
    }
}
