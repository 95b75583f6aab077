//! The thread that writes audit records, and what it does while they cannot be written.
//!
//! With `block`, a record that a start waits for fails, and the start is refused; other records wait here, which is
//! bounded because new requests are refused. With `drop-and-count`, records are dropped. Both are reported by a record
//! `audit/gap` as soon as the log can be written again.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use super::AuditOnFull;
use super::queue::{Entry, Lost, MAX_RECORDS, Queue};
use super::record;
use crate::metrics::Metrics;

/// The interval between attempts while the log cannot be written.
const RETRY: Duration = Duration::from_millis(250);

/// A destination of records.
pub trait Sink: Send {
    /// Writes one line with its newline, completely or not at all.
    fn write(&mut self, line: &[u8]) -> io::Result<()>;
}

/// The owner of the log.
pub struct Writer {
    sink: Box<dyn Sink>,
    on_full: AuditOnFull,
    queue: Arc<Queue>,
    metrics: Metrics,
    /// Records that wait for room in the log.
    waiting: VecDeque<Vec<u8>>,
    gap: Option<Gap>,
    /// The current error; logged once.
    fault: Option<String>,
}

/// Something is missing in the log.
#[derive(Debug, Serialize)]
struct Gap {
    since: String,
    cause: String,
    #[serde(flatten)]
    lost: LostCounts,
}

#[derive(Debug, Default, Serialize)]
struct LostCounts {
    dropped: u64,
    refused: u64,
}

impl Writer {
    pub fn new(
        sink: Box<dyn Sink>,
        on_full: AuditOnFull,
        queue: Arc<Queue>,
        metrics: Metrics,
    ) -> Self {
        let (waiting, gap, fault) = (VecDeque::new(), None, None);
        Self { sink, on_full, queue, metrics, waiting, gap, fault }
    }

    /// Writes until the queue is closed.
    pub fn run(mut self) {
        loop {
            let is_behind = self.gap.is_some() || !self.waiting.is_empty();
            let taken = self.queue.take(is_behind.then_some(RETRY));
            self.handle_lost(taken.lost);
            for entry in taken.entries {
                self.handle_entry(entry);
            }
            let result = self.catch_up();
            self.report(result.as_ref().err());
            if taken.is_closed {
                return;
            }
        }
    }

    fn handle_entry(&mut self, entry: Entry) {
        let result = self.catch_up().and_then(|()| self.sink.write(&entry.line));
        self.report(result.as_ref().err());
        match result {
            Ok(()) => {
                self.metrics.audit_written();
                if let Some(written) = entry.written {
                    // A receive error means that the start was cancelled.
                    let _ = written.send(Ok(()));
                }
            }
            Err(error) => self.handle_failed(entry, &error),
        }
    }

    fn handle_failed(&mut self, entry: Entry, error: &io::Error) {
        let has_room = self.waiting.len() < MAX_RECORDS;
        match entry.written {
            Some(written) => {
                self.gap(error).refused += 1;
                let _ = written.send(Err(error.to_string()));
            }
            None if self.on_full == AuditOnFull::Block && has_room => {
                self.waiting.push_back(entry.line);
            }
            None => {
                self.gap(error).dropped += 1;
                self.metrics.audit_dropped(1);
            }
        }
    }

    fn handle_lost(&mut self, lost: Lost) {
        if lost == Lost::default() {
            return;
        }
        let cause = self.fault.clone().unwrap_or_else(|| "the audit log is too slow".to_owned());
        let gap = self.gap(&io::Error::other(cause));
        gap.dropped += lost.dropped;
        gap.refused += lost.refused;
    }

    fn gap(&mut self, error: &io::Error) -> &mut LostCounts {
        let new =
            || Gap { since: record::now(), cause: error.to_string(), lost: Default::default() };
        &mut self.gap.get_or_insert_with(new).lost
    }

    /// Writes the records that wait, then the record of the gap.
    fn catch_up(&mut self) -> io::Result<()> {
        while let Some(line) = self.waiting.front() {
            self.sink.write(line)?;
            self.metrics.audit_written();
            self.waiting.pop_front();
        }
        if let Some(gap) = &self.gap {
            self.sink.write(&record::line("audit/gap", None, gap))?;
            self.metrics.audit_written();
            self.gap = None;
        }
        Ok(())
    }

    fn report(&mut self, error: Option<&io::Error>) {
        let fault = error.map(ToString::to_string);
        if fault == self.fault {
            return;
        }
        match &fault {
            Some(error) => {
                tracing::error!(error, policy = ?self.on_full, "cannot write the audit log")
            }
            None => tracing::warn!("the audit log can be written again"),
        }
        self.queue.set_fault(fault.clone());
        self.fault = fault;
    }
}

#[cfg(test)]
mod tests;
