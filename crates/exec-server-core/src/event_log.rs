//! Keeps the latest events of one process for several readers, each with its own cursor.
//!
//! Owner: the client's process. A slow reader costs no extra memory: once its events are dropped, it gets
//! [`Found::Behind`] and reads them from the server.
//! Invariant: the log keeps the latest events, at most [`MAX_LOGGED_EVENTS`] and [`MAX_LOGGED_BYTES`]; a reader that
//! collects everything can pin its unread events.

use std::collections::VecDeque;

use crate::event_order::ProcessEvent;

/// Bound for many small events between two polls of a busy reader.
pub const MAX_LOGGED_EVENTS: usize = 4096;
/// More than a link delivers between two polls of a busy reader, so that only a stopped reader falls behind.
pub const MAX_LOGGED_BYTES: usize = 8 * 1024 * 1024;

/// The latest events of one process.
#[derive(Debug)]
pub struct EventLog {
    events: VecDeque<ProcessEvent>,
    /// Position of the oldest event in the log.
    first_place: u64,
    bytes: usize,
    max_events: usize,
    max_bytes: usize,
    /// Highest sequence number that was dropped.
    dropped_through: u64,
    last_seq: u64,
    /// Events from this position on are kept regardless of the bounds.
    pinned: Option<u64>,
}

/// Read position of one reader.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LogCursor {
    place: u64,
    seq: u64,
}

/// Result of a read at the cursor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    /// The next event.
    Event(ProcessEvent),
    /// The reader fell behind: events after `after` and before `until` must be read from the server.
    Behind {
        /// Last sequence number that the reader has seen.
        after: u64,
        /// First sequence number in the log.
        until: u64,
    },
    /// No new event.
    Nothing,
}

impl LogCursor {
    /// Cursor of a reader that has seen everything up to `seq`.
    pub fn after(seq: u64) -> Self {
        Self { place: 0, seq }
    }

    /// Last sequence number that the reader has seen.
    pub fn seq(self) -> u64 {
        self.seq
    }

    /// Skips events up to `seq`, which the reader got from the server.
    pub fn skip_to(&mut self, seq: u64) {
        self.seq = self.seq.max(seq);
    }
}

impl EventLog {
    /// An empty log with the usual bounds, whose first event comes after `seq`.
    pub fn after(seq: u64) -> Self {
        Self::with_bounds(seq, MAX_LOGGED_EVENTS, MAX_LOGGED_BYTES)
    }

    /// An empty log with custom bounds.
    pub fn with_bounds(seq: u64, max_events: usize, max_bytes: usize) -> Self {
        Self {
            events: VecDeque::new(),
            first_place: 0,
            bytes: 0,
            max_events,
            max_bytes,
            dropped_through: seq,
            last_seq: seq,
            pinned: None,
        }
    }

    /// Keeps all events from the cursor on, for a reader that collects everything.
    pub fn pin(&mut self, cursor: &LogCursor) {
        self.pinned = Some(cursor.place);
        self.shrink();
    }

    /// Applies the bounds again.
    pub fn unpin(&mut self) {
        self.pinned = None;
        self.shrink();
    }

    /// Appends an event and drops the oldest ones beyond the bounds.
    pub fn push(&mut self, event: ProcessEvent) {
        self.bytes += event.len();
        self.last_seq = event.seq().unwrap_or(self.last_seq);
        self.events.push_back(event);
        self.shrink();
    }

    /// Highest sequence number so far.
    pub fn last_seq(&self) -> u64 {
        self.last_seq
    }

    /// Reads at the cursor and advances it past the event.
    pub fn next(&self, cursor: &mut LogCursor) -> Found {
        if cursor.place < self.first_place || self.first_place == 0 {
            if self.dropped_through > cursor.seq {
                return Found::Behind { after: cursor.seq, until: self.first_kept() };
            }
            cursor.place = cursor.place.max(self.first_place);
        }
        loop {
            let index = usize::try_from(cursor.place - self.first_place).unwrap_or(usize::MAX);
            let Some(event) = self.events.get(index) else { return Found::Nothing };
            cursor.place += 1;
            match event.seq() {
                // The reader has already seen this event.
                Some(seq) if seq <= cursor.seq => {}
                Some(seq) => {
                    cursor.seq = seq;
                    return Found::Event(event.clone());
                }
                None => return Found::Event(event.clone()),
            }
        }
    }

    fn first_kept(&self) -> u64 {
        self.events.iter().find_map(ProcessEvent::first_seq).unwrap_or(self.last_seq + 1)
    }

    fn shrink(&mut self) {
        let is_too_much = |log: &Self| {
            let is_pinned = log.pinned.is_some_and(|place| log.first_place >= place);
            !is_pinned && (log.events.len() > log.max_events || log.bytes > log.max_bytes)
        };
        while is_too_much(self) && self.events.len() > 1 {
            self.drop_oldest();
        }
    }

    fn drop_oldest(&mut self) {
        let Some(oldest) = self.events.pop_front() else { return };
        self.first_place += 1;
        self.bytes -= oldest.len();
        self.dropped_through = oldest.seq().unwrap_or(self.dropped_through);
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use exec_server_protocol::process::OutputStream;

    use super::*;

    fn output(seq: u64) -> ProcessEvent {
        let bytes = Bytes::from_static(b"0123456789");
        ProcessEvent::Output { seq, stream: OutputStream::Stdout, bytes }
    }

    #[test]
    fn readers_read_at_their_own_pace() {
        let mut log = EventLog::after(0);
        let (mut fast, mut slow) = (LogCursor::default(), LogCursor::default());
        log.push(output(1));
        assert_eq!(log.next(&mut fast), Found::Event(output(1)));
        assert_eq!(log.next(&mut fast), Found::Nothing);
        log.push(ProcessEvent::ResyncRequired);
        log.push(output(2));
        assert_eq!(log.next(&mut slow), Found::Event(output(1)));
        assert_eq!(log.next(&mut fast), Found::Event(ProcessEvent::ResyncRequired));
        assert_eq!(log.next(&mut fast), Found::Event(output(2)));
        let mut late = LogCursor::after(1);
        assert_eq!(log.next(&mut late), Found::Event(ProcessEvent::ResyncRequired));
        assert_eq!(log.next(&mut late), Found::Event(output(2)));
    }

    #[test]
    fn a_reader_that_fell_behind_gets_the_missed_range() {
        let mut log = EventLog::with_bounds(0, 3, 1000);
        let mut reader = LogCursor::default();
        for seq in 1..=5 {
            log.push(output(seq));
        }
        assert_eq!(log.next(&mut reader), Found::Behind { after: 0, until: 3 });
        log.push(output(6));
        reader.skip_to(2);
        assert_eq!(log.next(&mut reader), Found::Behind { after: 2, until: 4 });
        reader.skip_to(3);
        assert_eq!(log.next(&mut reader), Found::Event(output(4)));
    }

    #[test]
    fn bytes_are_bounded_too_but_the_latest_event_always_stays() {
        let mut log = EventLog::with_bounds(0, 100, 25);
        for seq in 1..=4 {
            log.push(output(seq));
        }
        assert_eq!(log.next(&mut LogCursor::after(2)), Found::Event(output(3)));
        assert!(matches!(log.next(&mut LogCursor::after(1)), Found::Behind { until: 3, .. }));
        let mut tiny = EventLog::with_bounds(0, 100, 5);
        tiny.push(output(1));
        assert_eq!(tiny.next(&mut LogCursor::default()), Found::Event(output(1)));
    }

    #[test]
    fn a_pinned_reader_never_falls_behind_and_read_events_are_dropped() {
        let mut log = EventLog::with_bounds(0, 3, 1000);
        let mut reader = LogCursor::default();
        log.pin(&reader);
        for seq in 1..=10 {
            log.push(output(seq));
        }
        for seq in 1..=8 {
            assert_eq!(log.next(&mut reader), Found::Event(output(seq)));
            log.pin(&reader);
        }
        assert_eq!(log.events.len(), 3, "the bounds hold for what was read");
        log.push(output(11));
        log.push(output(12));
        assert_eq!(log.events.len(), 4, "and not for what was not");
        log.unpin();
        assert_eq!(log.events.len(), 3);
    }

    #[test]
    fn a_log_that_starts_late_sends_earlier_readers_to_the_server() {
        let log = EventLog::after(7);
        assert_eq!(log.next(&mut LogCursor::default()), Found::Behind { after: 0, until: 8 });
        assert_eq!(log.next(&mut LogCursor::after(7)), Found::Nothing);
    }
}
