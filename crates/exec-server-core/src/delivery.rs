//! Tracks which events the client has received; undelivered events are not evicted.
//!
//! Owner: the process task, for a process whose output waits for its client.
//! Invariant: `confirmed` ≤ `sent`. An event that was handed to a socket is sent; only the client confirms it.
//!
//! ```text
//! pushed, or in a page ▶ sent ─mark answered, or a read goes on behind it▶ confirmed ▶ may be evicted
//! link lost ▶ what is not confirmed counts as missed until the client reads it, says that it has it, or gives it up
//! ```

use exec_server_protocol::limits::MAX_RETAINED_CHUNKS;

/// A mark follows each such part of what the log keeps, so that marks are answered before the log is full.
const MARKS_PER_LOG: usize = 4;

/// How far the events of one process have come.
#[derive(Debug)]
pub struct Delivery {
    /// The client has every event up to this number.
    confirmed: u64,
    /// Every event up to this number is confirmed or was sent over the present link.
    sent: u64,
    /// What was sent before the latest mark, until it is answered.
    mark: Option<u64>,
    /// What was sent before the latest mark.
    marked: u64,
    unmarked_bytes: usize,
    mark_every: usize,
}

impl Delivery {
    /// Nothing was sent of a process of whose output `retain_bytes` are kept.
    pub fn new(retain_bytes: usize) -> Self {
        let mark_every = retain_bytes / MARKS_PER_LOG;
        Self { confirmed: 0, sent: 0, mark: None, marked: 0, unmarked_bytes: 0, mark_every }
    }

    /// Another link, or none: what was on its way over the old one may be lost.
    pub fn handle_attached(&mut self) {
        self.sent = self.confirmed;
        self.mark = None;
    }

    /// An event with `bytes` of output was pushed.
    pub fn handle_pushed(&mut self, seq: u64, bytes: usize) {
        self.unmarked_bytes += bytes;
        if seq == self.sent + 1 {
            self.sent = seq;
        }
    }

    /// The client reads on behind `after`, and is answered with everything up to `through`; the latest event is `last`.
    pub fn handle_read(&mut self, after: u64, through: u64, last: u64) {
        // A cursor behind the latest event says nothing about what has come.
        if after > last {
            return;
        }
        self.confirmed = self.confirmed.max(after);
        self.sent = self.sent.max(self.confirmed).max(through.min(last));
    }

    /// A mark was sent behind everything that was sent so far.
    pub fn handle_marked(&mut self) {
        self.mark = Some(self.sent);
        self.marked = self.sent;
        self.unmarked_bytes = 0;
    }

    /// The client answered the mark, so it has everything that was sent before.
    pub fn handle_answered(&mut self) {
        self.confirmed = self.confirmed.max(self.mark.take().unwrap_or(0));
    }

    /// The client does without what it missed.
    pub fn handle_given_up(&mut self, last: u64) {
        self.sent = last;
    }

    /// The number up to which events may be evicted.
    pub fn confirmed(&self) -> u64 {
        self.confirmed
    }

    /// Whether the client misses something before `last`, the latest event.
    pub fn has_missed(&self, last: u64) -> bool {
        self.sent < last
    }

    /// Whether a mark should follow what was sent; `is_full` if the log can evict nothing more until then.
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
    fn what_was_pushed_is_confirmed_by_the_answer_to_a_mark_behind_it() {
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
    fn many_small_events_want_a_mark_as_well() {
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
    fn a_lost_link_leaves_what_is_not_confirmed_missed_until_it_is_read() {
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
    fn a_cursor_behind_the_latest_event_says_nothing() {
        let mut delivery = pushed(1..=3);
        delivery.handle_attached();
        delivery.handle_read(u64::MAX, u64::MAX, 3);
        assert_eq!(delivery.confirmed(), 0);
        assert!(delivery.has_missed(3));
    }

    #[test]
    fn what_is_given_up_is_evicted_only_once_the_client_has_heard_the_rest() {
        let mut delivery = pushed(1..=3);
        delivery.handle_attached();
        delivery.handle_given_up(3);
        assert!(!delivery.has_missed(3) && delivery.wants_mark(true));
        delivery.handle_marked();
        delivery.handle_answered();
        assert_eq!(delivery.confirmed(), 3);
    }
}
