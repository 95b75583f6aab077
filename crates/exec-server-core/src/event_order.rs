//! Reorders the events of one process, detects gaps and requests the missing pages.
//!
//! Owner: the client's process (`exec-server-client/src/process.rs`).
//! Invariant: what comes out has every number once, in order; an unrecoverable number is reported in a
//! [`Gap`]. A complete stream in order needs no read at all.
//!
//! ```text
//! pushed event ─in order▶ out;   ─early▶ pending ─what was missing comes, or a read tells▶ out
//! link lost ▶ behind ─a page, and another▶ … ─the last page, or a page that reaches what is pushed again▶ up to date
//! ```

mod events;
mod pages;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

pub use events::{Gap, ProcessEvent, ProcessExit};

/// Events that came too early and wait for an earlier one; more are dropped here and read again later.
pub const MAX_PENDING_EVENTS: usize = 256;
/// The bytes behind [`MAX_PENDING_EVENTS`], unless the server was asked to keep more.
pub const MAX_PENDING_BYTES: usize = 1024 * 1024;
/// However much the server keeps, no more than this waits here.
const MOST_PENDING_BYTES: usize = 64 * 1024 * 1024;
/// What one read asks for: a link that breaks every few megabytes still brings it through.
pub const PAGE_BYTES: u64 = 1024 * 1024;
/// Reads in a row that bring nothing of what is missing, before a server is taken for broken.
const MAX_FRUITLESS_READS: u32 = 8;

/// What confines the process, as far as its exit may have to be explained.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Confinement {
    /// Nothing, so that nothing can have been denied.
    None,
    /// A sandbox, or the server did not say.
    Possible,
}

/// A `process/read` that is needed to go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NeededRead {
    /// The cursor.
    pub after: u64,
    /// Whether the missing event may only be late, so that it pays to wait a little first.
    pub may_be_late: bool,
}

/// A server said something about a process that cannot be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OrderError {
    /// A chunk behind the end of its own answer.
    #[error("process/read returned output {seq} behind its own end {end}")]
    BehindTheEnd {
        /// The chunk's number.
        seq: u64,
        /// The last number of the answer.
        end: u64,
    },
    /// Something else has the number of the close.
    #[error("process/read returned output at the closing number {0}")]
    OutputAtClose(u64),
    /// Events that the server sent, but cannot account for.
    #[error("the server does not account for event {0}")]
    NeverToldOf(u64),
}

/// The events of one process, on their way into order.
#[derive(Debug)]
pub struct EventOrder {
    /// Everything up to here is out.
    last: u64,
    pending: BTreeMap<u64, ProcessEvent>,
    pending_bytes: usize,
    max_pending_events: usize,
    max_pending_bytes: usize,
    /// The highest number that was dropped because too much was pending.
    dropped_through: u64,
    /// All events that were new when they came.
    received: u64,
    out: VecDeque<ProcessEvent>,
    /// None until the start was answered.
    confinement: Option<Confinement>,
    has_exited: bool,
    is_reading: bool,
    /// Whether the link broke and nothing was read since.
    is_lost: bool,
    /// Whether more may have been missed than the pages so far have brought.
    is_behind: bool,
    /// The lowest number that was pushed since then; what follows it is pushed as well.
    pushed_from: Option<u64>,
    doubt: Option<Doubt>,
    fruitless_reads: u32,
    is_over: bool,
    link: LinkNumber,
}

/// Tells the links of one process apart, so that an answer that outlives its link is recognised.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LinkNumber(u64);

/// An exit that may have its number in a gap; the gap and all behind it wait until a later page tells.
#[derive(Debug)]
struct Doubt {
    /// The first number of the gap.
    gap: u64,
    exit: ProcessExit,
}

impl EventOrder {
    /// A process whose start has not been answered yet.
    pub fn new() -> Self {
        Self::after(0, None)
    }

    /// A process that runs already, of which everything up to `seq` is known, and of which the rest must be read.
    pub fn attached(seq: u64) -> Self {
        let is_reading = true;
        Self { is_reading, is_behind: true, ..Self::after(seq, Some(Confinement::Possible)) }
    }

    /// What was missed after `seq` of a process whose end is known; `exit` is the exit if it is among that.
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

    /// The server keeps this much output, so that as much may wait here for what is read meanwhile.
    ///
    /// More would be of no use: by then the server has dropped what is missing.
    pub fn expect_retention(&mut self, bytes: u64) {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        self.max_pending_bytes = bytes.clamp(MAX_PENDING_BYTES, MOST_PENDING_BYTES);
        self.max_pending_events = self.max_pending_bytes / MAX_PENDING_BYTES * MAX_PENDING_EVENTS;
    }

    /// Everything up to this number is out.
    pub fn last_seq(&self) -> u64 {
        self.last
    }

    /// Where the next read goes on.
    pub fn read_after(&self) -> u64 {
        if self.is_behind { self.known_through() } else { self.last }
    }

    /// The present link, for [`EventOrder::handle_late_read`].
    pub fn link(&self) -> LinkNumber {
        self.link
    }

    /// How many events have come in so far; a link on which it grows is worth something.
    pub fn received(&self) -> u64 {
        self.received
    }

    /// Whether something was missed that only reads can bring back.
    pub fn is_behind(&self) -> bool {
        self.is_behind
    }

    /// Whether nothing more will come out.
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    /// The start was answered.
    pub fn handle_started(&mut self, confinement: Confinement) {
        self.confinement = Some(confinement);
        self.settle();
    }

    /// The server sent an event.
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
            // Whatever is in doubt must not keep everything from coming out.
            self.settle_doubt();
            if self.is_full_for(&event) {
                self.dropped_through = self.dropped_through.max(seq);
                return;
            }
        }
        self.put(seq, event);
        self.settle();
    }

    /// The link broke; until a read is answered, or has failed, no other is asked for.
    pub fn handle_lost(&mut self) {
        if self.is_over {
            return;
        }
        (self.is_reading, self.is_behind, self.pushed_from) = (true, true, None);
        self.link.0 += 1;
        // Another link that broke before anything was read makes no difference.
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

    /// A read failed for good: what it was to bring will not come.
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

    /// A read that is needed to go on, once until it is answered.
    pub fn poll_read(&mut self) -> Option<NeededRead> {
        if self.is_over || self.is_reading {
            return None;
        }
        let may_be_late = match self.pending.first_key_value() {
            _ if self.is_behind => false,
            // The exit is held back until it can be explained.
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

    /// Whether a needed read is still needed; what was late may have come meanwhile.
    pub fn still_needs_read(&mut self) -> bool {
        let was_reading = std::mem::take(&mut self.is_reading);
        was_reading && self.poll_read().is_some()
    }

    /// The next event in order.
    pub fn poll_event(&mut self) -> Option<ProcessEvent> {
        self.out.pop_front()
    }

    /// The end of the row of events that begins with the next one.
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

    /// Whether the number waits already, as an event or in a gap.
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

    /// Lets everything out that is in order now.
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
