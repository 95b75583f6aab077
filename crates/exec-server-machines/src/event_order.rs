//! Puts the events of one process into order, and knows what is missing and how to get it.
//!
//! Owner: the client's process (`exec-server-client/src/process.rs`).
//! Invariant: what comes out has every number once, in order; a number that nobody can supply any more is named in a
//! [`Gap`]. A complete stream in order needs no read at all.
//!
//! ```text
//! pushed event ─in order▶ out;   ─early▶ pending ─what was missing comes, or a read tells▶ out
//! ```

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use exec_server_protocol::process::{ExitDetails, OutputStream, ProcessReadResponse};

/// Events that came too early and wait for an earlier one; more are dropped here and read again later.
pub const MAX_PENDING_EVENTS: usize = 256;
/// The bytes behind [`MAX_PENDING_EVENTS`].
pub const MAX_PENDING_BYTES: usize = 1024 * 1024;
/// Reads in a row that bring nothing of what is missing, before a server is taken for broken.
const MAX_FRUITLESS_READS: u32 = 8;

/// Something that happened to a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProcessEvent {
    /// It wrote something.
    Output {
        /// Its number.
        seq: u64,
        /// Where.
        stream: OutputStream,
        /// What.
        bytes: Bytes,
    },
    /// Its root ended; output may still follow.
    Exited {
        /// Its number.
        seq: u64,
        /// How.
        exit: ProcessExit,
    },
    /// Nothing more will come.
    Closed {
        /// The last number.
        seq: u64,
    },
    /// Output that no one has any more: it fell out of the server's retention before it could be read.
    Gap(Gap),
    /// The link broke. What happens meanwhile is kept by the server and comes as soon as the link is back.
    ResyncRequired,
    /// The process can no longer be followed; it may or may not go on.
    Failed(Arc<str>),
}

impl ProcessEvent {
    /// The highest number that the event accounts for; none for what only this client knows of.
    pub fn seq(&self) -> Option<u64> {
        match self {
            Self::Output { seq, .. } | Self::Exited { seq, .. } | Self::Closed { seq } => {
                Some(*seq)
            }
            Self::Gap(gap) => Some(gap.last),
            Self::ResyncRequired | Self::Failed(_) => None,
        }
    }

    /// The lowest number that the event accounts for.
    pub(crate) fn first_seq(&self) -> Option<u64> {
        match self {
            Self::Gap(gap) => Some(gap.first),
            event => event.seq(),
        }
    }

    /// What the event holds of the process's output.
    pub fn len(&self) -> usize {
        match self {
            Self::Output { bytes, .. } => bytes.len(),
            _ => 0,
        }
    }

    /// Whether it holds no output.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether nothing follows it.
    pub fn is_last(&self) -> bool {
        matches!(self, Self::Closed { .. } | Self::Failed(_))
    }
}

/// A row of events that no one has any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gap {
    /// The first number that is missing.
    pub first: u64,
    /// The last number that is missing.
    pub last: u64,
    /// All bytes that the server has dropped of this process so far, if it says so.
    pub evicted_bytes: Option<u64>,
}

/// How the root process ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessExit {
    /// 0 to 255, or 128 plus the signal's number.
    pub exit_code: i32,
    /// Whether the sandbox refused something that made it fail; none if nobody could say.
    pub sandbox_denied: Option<bool>,
    /// The rest of the truth, from a server that tells it.
    pub details: ExitDetails,
}

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
    /// A chunk with the number of the close.
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
    /// The highest number that was dropped because too much was pending.
    dropped_through: u64,
    out: VecDeque<ProcessEvent>,
    /// None until the start was answered.
    confinement: Option<Confinement>,
    has_exited: bool,
    is_reading: bool,
    /// Whether the link broke and nothing was read since.
    is_lost: bool,
    fruitless_reads: u32,
    is_over: bool,
}

impl EventOrder {
    /// A process whose start has not been answered yet.
    pub fn new() -> Self {
        Self::after(0, None)
    }

    /// A process that is followed from behind `seq`.
    pub fn after(seq: u64, confinement: Option<Confinement>) -> Self {
        Self {
            last: seq,
            pending: BTreeMap::new(),
            pending_bytes: 0,
            dropped_through: 0,
            out: VecDeque::new(),
            confinement,
            has_exited: false,
            is_reading: false,
            is_lost: false,
            fruitless_reads: 0,
            is_over: false,
        }
    }

    /// Everything up to this number is out.
    pub fn last_seq(&self) -> u64 {
        self.last
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
        if self.is_over || seq <= self.last || self.pending.contains_key(&seq) {
            return;
        }
        let is_next = seq == self.last + 1;
        let is_full = self.pending.len() >= MAX_PENDING_EVENTS
            || self.pending_bytes + event.len() > MAX_PENDING_BYTES;
        if is_full && !is_next {
            self.dropped_through = self.dropped_through.max(seq);
            return;
        }
        self.put(seq, event);
        self.settle();
    }

    /// The link broke; until a read is answered, or has failed, no other is asked for.
    pub fn handle_lost(&mut self) {
        if self.is_over {
            return;
        }
        self.is_reading = true;
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

    /// The answer to a read without a limit of bytes from [`EventOrder::last_seq`] or earlier came.
    pub fn handle_read(&mut self, answer: ProcessReadResponse) -> Result<(), OrderError> {
        (self.is_reading, self.is_lost) = (false, false);
        if self.is_over {
            return Ok(());
        }
        if let Some(failure) = answer.failure {
            self.handle_failure(failure);
            return Ok(());
        }
        let before = self.last;
        let end = answer.next_seq.saturating_sub(1);
        let exit = answer.exited.then(|| ProcessExit {
            exit_code: answer.exit_code.unwrap_or(-1),
            sandbox_denied: Some(answer.sandbox_denied),
            details: answer.details,
        });
        let first_chunk = answer.chunks.iter().map(|chunk| chunk.seq).min();
        for chunk in answer.chunks {
            if chunk.seq > end {
                return Err(OrderError::BehindTheEnd { seq: chunk.seq, end });
            }
            if answer.closed && chunk.seq == end {
                return Err(OrderError::OutputAtClose(end));
            }
            let bytes = Bytes::from(chunk.chunk.0);
            self.fill(ProcessEvent::Output { seq: chunk.seq, stream: chunk.stream, bytes });
        }
        if answer.closed {
            self.fill(ProcessEvent::Closed { seq: end });
        }
        let mut missing = self.missing_through(end);
        if let Some(exit) = exit {
            let first_kept = match answer.gap {
                Some(gap) => gap.first_seq,
                None if missing.iter().any(|(first, last)| last > first) || missing.len() > 1 => {
                    first_chunk.unwrap_or(0)
                }
                None => 0,
            };
            self.fill_exit(exit, &mut missing, first_kept);
        }
        let evicted_bytes = answer.gap.map(|gap| gap.evicted_bytes);
        for (first, last) in missing {
            self.put(first, ProcessEvent::Gap(Gap { first, last, evicted_bytes }));
        }
        self.settle();
        self.judge_progress(before)
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
                // Nobody can say any more whether the sandbox was the reason.
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
        Some(NeededRead { after: self.last, may_be_late })
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

    fn fill(&mut self, event: ProcessEvent) {
        let seq = event.seq().expect("only numbered events are filled in");
        if seq > self.last && !self.pending.contains_key(&seq) {
            self.put(seq, event);
        }
    }

    /// The exit has one of the missing numbers: one that stands alone among what is kept, else one that was evicted.
    fn fill_exit(&mut self, exit: ProcessExit, missing: &mut Vec<(u64, u64)>, first_kept: u64) {
        if self.has_exited {
            return;
        }
        let pending = self.pending.values_mut().find_map(|event| match event {
            ProcessEvent::Exited { exit, .. } => Some(exit),
            _ => None,
        });
        if let Some(pending) = pending {
            pending.sandbox_denied = pending.sandbox_denied.or(exit.sandbox_denied);
            return;
        }
        let alone = missing.iter().rposition(|(first, last)| first == last && *first >= first_kept);
        let Some(place) = alone.or_else(|| missing.len().checked_sub(1)) else { return };
        let (first, seq) = missing[place];
        if first == seq {
            missing.remove(place);
        } else {
            missing[place].1 = seq - 1;
        }
        self.put(seq, ProcessEvent::Exited { seq, exit });
    }

    /// The rows of numbers up to `end` that are neither out nor pending.
    fn missing_through(&self, end: u64) -> Vec<(u64, u64)> {
        let mut missing = Vec::new();
        let mut next = self.last + 1;
        for (seq, event) in &self.pending {
            if *seq > end {
                break;
            }
            if *seq > next {
                missing.push((next, seq - 1));
            }
            next = event.seq().unwrap_or(*seq) + 1;
        }
        if next <= end {
            missing.push((next, end));
        }
        missing
    }

    fn put(&mut self, first: u64, event: ProcessEvent) {
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

    /// A server that sends events which its own answers never cover would be asked for ever.
    fn judge_progress(&mut self, before: u64) -> Result<(), OrderError> {
        let lacks_more = !self.pending.is_empty() || self.dropped_through > self.last;
        if self.last > before || !lacks_more {
            self.fruitless_reads = 0;
            return Ok(());
        }
        self.fruitless_reads += 1;
        if self.fruitless_reads < MAX_FRUITLESS_READS {
            return Ok(());
        }
        Err(OrderError::NeverToldOf(self.last + 1))
    }
}

impl Default for EventOrder {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests;
