//! Determines which sequence numbers a `process/read` page covers.
//!
//! A page with output ends with its last chunk and does not cover later numbers. A page that reaches further, or has no
//! output, also covers the exit and the close.

use bytes::Bytes;
use exec_server_protocol::process::ProcessReadResponse;

use super::{Doubt, EventOrder, Gap, MAX_FRUITLESS_READS, OrderError, ProcessEvent, ProcessExit};

/// A range of sequence numbers that no event or page has covered.
type Row = (u64, u64);

impl EventOrder {
    /// Handles the answer to a read from [`EventOrder::read_after`] or earlier.
    pub fn handle_read(&mut self, answer: ProcessReadResponse) -> Result<(), OrderError> {
        (self.is_reading, self.is_lost) = (false, false);
        if self.is_over {
            return Ok(());
        }
        if let Some(failure) = answer.failure {
            self.handle_failure(failure);
            return Ok(());
        }
        let before = self.known_through();
        let end = answer.next_seq.saturating_sub(1);
        let exit = answer.exited.then(|| ProcessExit {
            exit_code: answer.exit_code.unwrap_or(-1),
            sandbox_denied: Some(answer.sandbox_denied),
            details: answer.details,
        });
        let first_chunk = answer.chunks.iter().map(|chunk| chunk.seq).min();
        let last_chunk = answer.chunks.iter().map(|chunk| chunk.seq).max();
        let is_whole = last_chunk.is_none_or(|last| last < end);
        for chunk in answer.chunks {
            if chunk.seq > end {
                return Err(OrderError::BehindTheEnd { seq: chunk.seq, end });
            }
            let bytes = Bytes::from(chunk.chunk.0);
            self.fill(ProcessEvent::Output { seq: chunk.seq, stream: chunk.stream, bytes });
        }
        if is_whole && answer.closed {
            self.fill_close(end)?;
        }
        let mut missing = self.missing_through(end);
        if let Some(exit) = exit {
            let first_kept = match answer.gap {
                Some(gap) => gap.first_seq,
                // This server reports no gaps, so there may be one before its first chunk.
                None if !is_whole || missing.len() > 1 || has_many(&missing) => {
                    first_chunk.unwrap_or(0)
                }
                None => 0,
            };
            self.fill_exit(exit, &mut missing, first_kept, is_whole);
        }
        let evicted_bytes = answer.gap.map(|gap| gap.evicted_bytes);
        for (first, last) in missing {
            self.put(first, ProcessEvent::Gap(Gap { first, last, evicted_bytes }));
        }
        if is_whole {
            self.settle_doubt();
        }
        self.settle();
        self.judge_distance(is_whole);
        self.judge_progress(before)
    }

    /// Handles an answer of an earlier link: its output counts, its state does not.
    pub fn handle_late_read(&mut self, answer: ProcessReadResponse) {
        for chunk in answer.chunks {
            let bytes = Bytes::from(chunk.chunk.0);
            self.fill(ProcessEvent::Output { seq: chunk.seq, stream: chunk.stream, bytes });
        }
        self.settle();
    }

    /// Gives the exit the last number of its gap, because no other number is left for it.
    pub(super) fn settle_doubt(&mut self) {
        let Some(Doubt { gap, exit }) = self.doubt.take() else { return };
        if let Some(last) = self.pending.get(&gap).and_then(ProcessEvent::seq) {
            self.split_gap(gap, last, exit);
        }
        self.settle();
    }

    /// The exit was pushed, so its number is known.
    pub(super) fn handle_pushed_exit(&mut self, seq: u64, exit: &ProcessExit) {
        let Some(Doubt { gap, .. }) = self.doubt.take() else { return };
        let last = self.pending.get(&gap).and_then(ProcessEvent::seq);
        if last.is_some_and(|last| gap <= seq && seq <= last) {
            self.split_gap(gap, seq, exit.clone());
        }
    }

    /// Replaces one number of a gap by the exit.
    fn split_gap(&mut self, first: u64, seq: u64, exit: ProcessExit) {
        let Some(ProcessEvent::Gap(gap)) = self.pending.remove(&first) else { return };
        if first < seq {
            self.put(first, ProcessEvent::Gap(Gap { last: seq - 1, ..gap }));
        }
        if seq < gap.last {
            self.put(seq + 1, ProcessEvent::Gap(Gap { first: seq + 1, ..gap }));
        }
        self.put(seq, ProcessEvent::Exited { seq, exit });
    }

    fn fill(&mut self, event: ProcessEvent) {
        let seq = event.seq().expect("only numbered events are filled in");
        if seq > self.last && !self.covers(seq) {
            self.put(seq, event);
        }
    }

    fn fill_close(&mut self, seq: u64) -> Result<(), OrderError> {
        let closed = ProcessEvent::Closed { seq };
        let is_taken = self.pending.get(&seq).is_some_and(|event| *event != closed);
        if is_taken || seq <= self.last {
            return Err(OrderError::OutputAtClose(seq));
        }
        self.fill(closed);
        Ok(())
    }

    /// Assigns the exit to a missing number: one that stands alone in the retained range, else an evicted one.
    fn fill_exit(
        &mut self,
        exit: ProcessExit,
        missing: &mut Vec<Row>,
        first_kept: u64,
        is_whole: bool,
    ) {
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
        let place = match alone {
            Some(place) => Some(place),
            // The exit may also follow this page; of several gaps, the latest is the likeliest.
            None if !is_whole => {
                if let Some((first, _)) = missing.last() {
                    self.doubt = Some(Doubt { gap: *first, exit });
                    self.is_behind = true;
                }
                return;
            }
            None => missing.len().checked_sub(1),
        };
        let Some(place) = place else { return };
        let (first, seq) = missing[place];
        if first == seq {
            missing.remove(place);
        } else {
            missing[place].1 = seq - 1;
        }
        self.doubt = None;
        self.put(seq, ProcessEvent::Exited { seq, exit });
    }

    /// Ranges up to `end` that are neither out nor pending.
    fn missing_through(&self, end: u64) -> Vec<Row> {
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

    /// Requests pages until the last page, or one that reaches the events pushed on this link.
    fn judge_distance(&mut self, is_whole: bool) {
        let next = self.known_through() + 1;
        let reaches = self.doubt.is_none() && self.pushed_from.is_some_and(|from| from <= next);
        if is_whole || reaches {
            self.is_behind = false;
        }
    }

    /// Fails if reads make no progress: a faulty server pushes events that its pages never cover.
    fn judge_progress(&mut self, before: u64) -> Result<(), OrderError> {
        let lacks_more =
            self.is_behind || !self.pending.is_empty() || self.dropped_through > self.last;
        if self.known_through() > before || !lacks_more {
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

fn has_many(missing: &[Row]) -> bool {
    missing.iter().any(|(first, last)| last > first)
}
