//! Reads the events of one process in order.
//!
//! A reader that falls behind the local log reads the missing events from the server's retention. Events that the server
//! has evicted are reported as a [`Gap`].

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use exec_server_core::event_log::{Found, LogCursor};
use exec_server_core::event_order::{EventOrder, Gap, PAGE_BYTES, ProcessEvent};
use exec_server_protocol::process::ProcessReadResponse;
use futures_core::Stream;

use crate::error::ExecServerError;
use crate::process::ProcessSession;
use crate::process_state::Reader;

type Refill = Pin<Box<dyn Future<Output = Result<ProcessReadResponse, ExecServerError>> + Send>>;

/// The events of a process in order; created by [`ProcessSession::events`].
///
/// The stream ends after [`ProcessEvent::Closed`] or [`ProcessEvent::Failed`].
pub struct ProcessEvents {
    session: ProcessSession,
    reader: Reader,
    cursor: LogCursor,
    /// The pending read of events that the local log no longer has.
    refill: Option<Refill>,
    /// Events from such a read that are not delivered yet.
    refilled: VecDeque<ProcessEvent>,
    /// Whether the local log keeps every event until this reader has read it.
    collects: bool,
    is_over: bool,
}

impl ProcessEvents {
    pub(crate) fn new(session: ProcessSession, after: u64) -> Self {
        let reader = Reader::new(session.process().clone());
        Self {
            session,
            reader,
            cursor: LogCursor::after(after),
            refill: None,
            refilled: VecDeque::new(),
            collects: false,
            is_over: false,
        }
    }

    /// A reader from the first event, for which the local log keeps every event until it is read.
    pub(crate) fn collecting(session: ProcessSession) -> Self {
        let mut events = Self::new(session, 0);
        events.collects = true;
        events.reader.process.pin(&events.cursor);
        events
    }

    /// Applies backpressure from this reader to the connection, and keeps every event until it is read.
    pub(crate) fn pace(&mut self) {
        self.collects = true;
        self.reader.process.pin(&self.cursor);
        self.reader.process.pace(self.reader.id);
    }

    /// The process whose events these are.
    pub fn session(&self) -> &ProcessSession {
        &self.session
    }

    /// The sequence number of the last event that was returned.
    pub fn last_seq(&self) -> u64 {
        self.cursor.seq()
    }

    /// The next event; `None` after the last. Dropping the future loses no event.
    pub async fn next(&mut self) -> Option<ProcessEvent> {
        poll_fn(|cx| self.poll_event(cx)).await
    }

    /// Polls for the next event; `None` after the last.
    pub fn poll_event(&mut self, cx: &mut Context) -> Poll<Option<ProcessEvent>> {
        if self.is_over {
            return Poll::Ready(None);
        }
        let event = loop {
            if let Some(event) = self.refilled.pop_front() {
                self.cursor.skip_to(event.seq().unwrap_or(0));
                break event;
            }
            match self.reader.process.next(self.reader.id, &mut self.cursor, cx) {
                Found::Event(event) => break event,
                Found::Nothing => return Poll::Pending,
                Found::Behind { after, until } => {
                    let answer = ready!(self.poll_refill(cx, after));
                    self.handle_refill(answer, after, until);
                }
            }
        };
        if self.collects {
            self.reader.process.pin(&self.cursor);
        }
        self.is_over = event.is_last();
        Poll::Ready(Some(event))
    }

    fn poll_refill(
        &mut self,
        cx: &mut Context,
        after: u64,
    ) -> Poll<Result<ProcessReadResponse, ExecServerError>> {
        let session = &self.session;
        let refill = self.refill.get_or_insert_with(|| {
            let session = session.clone();
            Box::pin(async move { session.read(after, Some(PAGE_BYTES), Duration::ZERO).await })
        });
        let answer = ready!(refill.as_mut().poll(cx));
        self.refill = None;
        Poll::Ready(answer)
    }

    /// Takes the events of a page that come before `until`, where the local log continues.
    fn handle_refill(
        &mut self,
        answer: Result<ProcessReadResponse, ExecServerError>,
        after: u64,
        until: u64,
    ) {
        let exit = self.reader.process.exit_between(after, until);
        let mut order = EventOrder::again(after, exit.clone());
        let is_usable = match answer {
            Ok(answer) if answer.failure.is_none() => order.handle_read(answer).is_ok(),
            Ok(_) | Err(_) => false,
        };
        if is_usable {
            let before = |event: &ProcessEvent| event.first_seq().is_some_and(|seq| seq < until);
            let events = std::iter::from_fn(|| order.poll_event()).take_while(before);
            self.refilled.extend(events.map(|event| match (event, &exit) {
                // The exit is delivered exactly as it was the first time.
                (ProcessEvent::Exited { seq, .. }, Some((_, exit))) => {
                    ProcessEvent::Exited { seq, exit: exit.clone() }
                }
                (event, _) => event,
            }));
        }
        match self.refilled.back_mut() {
            // The gap ends where the local log continues; events after this page come with the next one.
            Some(ProcessEvent::Gap(gap)) => gap.last = gap.last.min(until - 1),
            Some(_) => {}
            // The server has evicted the events, or the read failed.
            None => {
                let gap = Gap { first: after + 1, last: until - 1, evicted_bytes: None };
                self.refilled.push_back(ProcessEvent::Gap(gap));
            }
        }
    }
}

impl Drop for ProcessEvents {
    fn drop(&mut self) {
        if self.collects {
            self.reader.process.unpin();
        }
    }
}

impl Stream for ProcessEvents {
    type Item = ProcessEvent;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context) -> Poll<Option<ProcessEvent>> {
        self.poll_event(cx)
    }
}
