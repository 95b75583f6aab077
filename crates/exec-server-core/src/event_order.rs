//! Reorders the events of one process, detects gaps and requests the missing pages.
//!
//! Owner: the client's process (`exec-server-client/src/process.rs`).
//! Invariant: every sequence number comes out once, in order; an unrecoverable number is reported in a [`Gap`]. A
//! complete stream in order needs no read.
//!
//! ```text
//! pushed event ─in order▶ out;   ─early▶ pending ─missing event arrives, or a read covers it▶ out
//! link lost ▶ behind ─pages of process/read▶ … ─last page, or a page that reaches the pushed events▶ up to date
//! ```

mod events;
mod pages;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

pub use events::{Gap, ProcessEvent, ProcessExit};

/// Limit of early events that wait for an earlier one; events beyond it are dropped and read again later.
pub const MAX_PENDING_EVENTS: usize = 256;
/// Limit of early output in bytes, unless the server retains more.
pub const MAX_PENDING_BYTES: usize = 1024 * 1024;
/// Upper limit of early output, whatever the server retains.
const MOST_PENDING_BYTES: usize = 64 * 1024 * 1024;
/// Size of one read; small enough for a link that breaks every few megabytes.
pub const PAGE_BYTES: u64 = 1024 * 1024;
/// Consecutive reads without missing events before the server counts as faulty.
const MAX_FRUITLESS_READS: u32 = 8;

/// Whether a sandbox can explain the exit of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Confinement {
    /// No sandbox, so nothing can have been denied.
    None,
    /// A sandbox, or the server did not report it.
    Possible,
}

/// A `process/read` that must be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NeededRead {
    /// The `afterSeq` of the read.
    pub after: u64,
    /// Whether the missing event may only be late, so that the caller should wait briefly first.
    pub may_be_late: bool,
}

/// A server reported impossible facts about a process.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OrderError {
    /// A chunk after the end of its own page.
    #[error("process/read returned output {seq} behind its own end {end}")]
    BehindTheEnd {
        /// Sequence number of the chunk.
        seq: u64,
        /// Last sequence number of the page.
        end: u64,
    },
    /// Another event has the sequence number of the close.
    #[error("process/read returned output at the closing number {0}")]
    OutputAtClose(u64),
    /// Events that were pushed but that no page covers.
    #[error("the server does not account for event {0}")]
    NeverToldOf(u64),
}

/// Reordering state of one process.
#[derive(Debug)]
pub struct EventOrder {
    /// Last sequence number that came out.
    last: u64,
    pending: BTreeMap<u64, ProcessEvent>,
    pending_bytes: usize,
    max_pending_events: usize,
    max_pending_bytes: usize,
    /// Highest number dropped because too many events were pending.
    dropped_through: u64,
    /// Number of events that were new on arrival.
    received: u64,
    out: VecDeque<ProcessEvent>,
    /// `None` until the start was answered.
    confinement: Option<Confinement>,
    has_exited: bool,
    is_reading: bool,
    /// Whether the link broke and no read has succeeded since.
    is_lost: bool,
    /// Whether more events may be missing than the pages so far contained.
    is_behind: bool,
    /// Lowest number pushed on the current link; all later events are pushed as well.
    pushed_from: Option<u64>,
    doubt: Option<Doubt>,
    fruitless_reads: u32,
    is_over: bool,
    link: LinkNumber,
}

/// Identifies a link of one process, so that an answer from an earlier link is recognised.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LinkNumber(u64);

/// An exit whose number may lie in a gap; the gap and all later events wait until a page decides.
#[derive(Debug)]
struct Doubt {
    /// First number of the gap.
    gap: u64,
    exit: ProcessExit,
}

impl EventOrder {
    /// State of a process whose start has not been answered yet.
    pub fn new() -> Self {
        Self::after(0, None)
    }

    /// State of a running process that is known up to `seq`; later events must be read.
    pub fn attached(seq: u64) -> Self {
        let is_reading = true;
        Self { is_reading, is_behind: true, ..Self::after(seq, Some(Confinement::Possible)) }
    }

    /// State for events after `seq` of a process whose end is known; `exit` is its exit if it lies after `seq`.
    pub fn again(seq: u64, exit: Option<(u64, ProcessExit)>) -> Self {
        let mut order = Self::after(seq, Some(Confinement::None));
        match exit {
            Some((seq, exit)) => order.put(seq, ProcessEvent::Exited { seq, exit }),
            None => order.has_exited = true,
        }
        order
    }

    fn after(seq: u64, confinement: Option<Confinement>) -> Self {
        Self {
            last: seq,
            pending: BTreeMap::new(),
            pending_bytes: 0,
            max_pending_events: MAX_PENDING_EVENTS,
            max_pending_bytes: MAX_PENDING_BYTES,
            dropped_through: 0,
            received: 0,
            out: VecDeque::new(),
            confinement,
            has_exited: false,
            is_reading: false,
            is_lost: false,
            is_behind: false,
            pushed_from: None,
            doubt: None,
            fruitless_reads: 0,
            is_over: false,
            link: LinkNumber::default(),
        }
    }

    /// Sets the server's retention in bytes as the limit of early output.
    ///
    /// A larger limit would not help: by then the server has evicted the missing events.
    pub fn expect_retention(&mut self, bytes: u64) {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        self.max_pending_bytes = bytes.clamp(MAX_PENDING_BYTES, MOST_PENDING_BYTES);
        self.max_pending_events = self.max_pending_bytes / MAX_PENDING_BYTES * MAX_PENDING_EVENTS;
    }

    /// Last sequence number that came out.
    pub fn last_seq(&self) -> u64 {
        self.last
    }

    /// The cursor of the next read.
    pub fn read_after(&self) -> u64 {
        if self.is_behind { self.known_through() } else { self.last }
    }

    /// The current link, for [`EventOrder::handle_late_read`].
    pub fn link(&self) -> LinkNumber {
        self.link
    }

    /// Number of events received so far; growth shows that a link makes progress.
    pub fn received(&self) -> u64 {
        self.received
    }

    /// Whether events were missed that must be read from the server.
    pub fn is_behind(&self) -> bool {
        self.is_behind
    }

    /// Whether no further event will come out.
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    /// The start request was answered.
    pub fn handle_started(&mut self, confinement: Confinement) {
        self.confinement = Some(confinement);
        self.settle();
    }

    /// The server pushed an event.
    pub fn handle_event(&mut self, event: ProcessEvent) {
        let Some(seq) = event.seq() else { return };
        self.pushed_from = Some(self.pushed_from.map_or(seq, |from| from.min(seq)));
        if let ProcessEvent::Exited { exit, .. } = &event {
            self.handle_pushed_exit(seq, exit);
        }
        if self.is_over || seq <= self.last || self.covers(seq) {
            self.settle();
            return;
        }
        let is_next = seq == self.last + 1;
        if !is_next && self.is_full_for(&event) {
            // An undecided exit must not block later events.
            self.settle_doubt();
            if self.is_full_for(&event) {
                self.dropped_through = self.dropped_through.max(seq);
                return;
            }
        }
        self.put(seq, event);
        self.settle();
    }

    /// The link broke; no further read is requested until one succeeds or fails.
    pub fn handle_lost(&mut self) {
        if self.is_over {
            return;
        }
        (self.is_reading, self.is_behind, self.pushed_from) = (true, true, None);
        self.link.0 += 1;
        // A second loss before any read makes no difference.
        if !std::mem::replace(&mut self.is_lost, true) {
            self.out.push_back(ProcessEvent::ResyncRequired);
        }
    }

    /// The process cannot be followed any further.
    pub fn handle_failure(&mut self, reason: impl Into<Arc<str>>) {
        if self.is_over {
            return;
        }
        self.is_over = true;
        self.pending.clear();
        self.out.push_back(ProcessEvent::Failed(reason.into()));
    }

    /// A read failed permanently: the missing events will not come.
    pub fn handle_read_failed(&mut self) {
        (self.is_reading, self.is_lost) = (false, false);
        if self.is_over {
            return;
        }
        self.dropped_through = 0;
        if let Some((seq, event)) = self.pending.first_key_value() {
            let (first, seq) = (self.last + 1, *seq);
            if first < seq {
                let gap = Gap { first, last: seq - 1, evicted_bytes: None };
                self.put(first, ProcessEvent::Gap(gap));
            } else if let ProcessEvent::Exited { exit, .. } = event {
                // The denial flag was in the lost event, so it is unknown.
                let exit = exit.clone();
                self.pending.remove(&seq);
                self.put_out(seq, ProcessEvent::Exited { seq, exit });
            }
        }
        self.settle();
    }

    /// Returns a required read once, until it is answered.
    pub fn poll_read(&mut self) -> Option<NeededRead> {
        if self.is_over || self.is_reading {
            return None;
        }
        let may_be_late = match self.pending.first_key_value() {
            _ if self.is_behind => false,
            // The exit is held back until its denial flag is known.
            Some((seq, _)) if *seq == self.last + 1 => {
                self.confinement?;
                false
            }
            Some(_) => self.dropped_through <= self.last,
            None if self.dropped_through > self.last => false,
            None => return None,
        };
        self.is_reading = true;
        Some(NeededRead { after: self.read_after(), may_be_late })
    }

    /// Whether a required read is still required; the late event may have arrived.
    pub fn still_needs_read(&mut self) -> bool {
        let was_reading = std::mem::take(&mut self.is_reading);
        was_reading && self.poll_read().is_some()
    }

    /// The next event in order.
    pub fn poll_event(&mut self) -> Option<ProcessEvent> {
        self.out.pop_front()
    }

    /// Last number of the consecutive pending events after the last output.
    fn known_through(&self) -> u64 {
        let mut known = self.last;
        for (first, event) in &self.pending {
            if *first != known + 1 {
                break;
            }
            known = event.seq().unwrap_or(*first);
        }
        known
    }

    /// Whether the number is pending, as an event or in a gap.
    fn covers(&self, seq: u64) -> bool {
        let before = self.pending.range(..=seq).next_back();
        before.is_some_and(|(_, event)| event.seq().is_some_and(|last| last >= seq))
    }

    fn is_full_for(&self, event: &ProcessEvent) -> bool {
        self.pending.len() >= self.max_pending_events
            || self.pending_bytes + event.len() > self.max_pending_bytes
    }

    fn put(&mut self, first: u64, event: ProcessEvent) {
        self.received += 1;
        self.pending_bytes += event.len();
        self.pending.insert(first, event);
    }

    /// Releases all events that are in order now.
    fn settle(&mut self) {
        while let Some(entry) = self.pending.first_entry()
            && *entry.key() == self.last + 1
            && !self.is_over
        {
            if let ProcessEvent::Exited { exit, .. } = entry.get()
                && exit.sandbox_denied.is_none()
                && self.confinement != Some(Confinement::None)
            {
                return;
            }
            let seq = *entry.key();
            if self.doubt.as_ref().is_some_and(|doubt| doubt.gap == seq) {
                return;
            }
            let event = entry.remove();
            self.put_out(seq, event);
        }
    }

    fn put_out(&mut self, seq: u64, mut event: ProcessEvent) {
        self.pending_bytes -= event.len();
        self.last = event.seq().unwrap_or(seq);
        if let ProcessEvent::Exited { exit, .. } = &mut event {
            self.has_exited = true;
            if self.confinement == Some(Confinement::None) {
                exit.sandbox_denied.get_or_insert(false);
            }
        }
        self.is_over = event.is_last();
        if self.is_over {
            self.pending.clear();
        }
        self.out.push_back(event);
    }
}

impl Default for EventOrder {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests;
