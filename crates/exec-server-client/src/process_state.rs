//! The state of one process: its events in order, for any number of readers.
//!
//! Owner: the connection task adds events; readers take them. The lock on the state is held only for a lookup or an
//! append.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Waker};

use exec_server_core::event_log::{EventLog, Found, LogCursor};
use exec_server_core::event_order::{
    Confinement, EventOrder, LinkNumber, NeededRead, PAGE_BYTES, ProcessEvent, ProcessExit,
};
use exec_server_protocol::answers::ProcessStartAnswer;
use exec_server_protocol::methods::Method;
use exec_server_protocol::process::{
    ExitDetails, ProcessId, ProcessReadParams, ProcessReadResponse,
};
use exec_server_transport::outbox::{Held, Outbox};
use tokio::sync::watch;

use crate::connection::Shared;
use crate::error::ExecServerError;

/// State that the routes and the handles of one process share.
pub(crate) struct Process {
    id: ProcessId,
    state: Mutex<State>,
    /// The highest sequence number that readers can see; receivers are also notified when the connection breaks.
    wake: watch::Sender<u64>,
}

struct State {
    order: EventOrder,
    log: EventLog,
    /// Whether the server has answered the start.
    is_started: bool,
    /// The exit and its sequence number.
    exit: Option<(u64, ProcessExit)>,
    is_closed: bool,
    failure: Option<Arc<str>>,
    readers: Vec<(ReaderId, Option<Waker>)>,
    last_reader: u64,
    paced: Option<Paced>,
    /// Whether reads return events from before this client attached, or from while it was disconnected.
    is_catching_up: bool,
    /// The highest sequence number of output that such a read returned.
    replayed_through: u64,
}

/// A reader with backpressure: its unread events count against the limit above which the connection is not read.
struct Paced {
    reader: ReaderId,
    held: VecDeque<(u64, Held)>,
}

/// A small event needs more memory than its bytes; this minimum bounds the number of events as well.
const LEAST_HELD_BYTES: usize = 2048;

/// Tells the readers of one process apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ReaderId(u64);

impl Process {
    /// A process that is not started yet; `retention` is the output retention that the start requests.
    pub(crate) fn new(id: ProcessId, retention: Option<u64>) -> Self {
        let mut log = EventLog::after(0);
        // The caller that starts the process unpins the log if it does not need every event.
        log.pin(&LogCursor::default());
        let mut order = EventOrder::new();
        order.expect_retention(retention.unwrap_or(0));
        Self::with(id, order, log, false)
    }

    /// A running process whose events up to `seq` are known.
    pub(crate) fn attached(id: ProcessId, seq: u64) -> Self {
        let mut order = EventOrder::attached(seq);
        // The retention that the process was started with is unknown.
        order.expect_retention(u64::MAX);
        Self::with(id, order, EventLog::after(seq), true)
    }

    fn with(id: ProcessId, order: EventOrder, log: EventLog, is_started: bool) -> Self {
        let state = State {
            order,
            log,
            is_started,
            exit: None,
            is_closed: false,
            failure: None,
            readers: Vec::new(),
            last_reader: 0,
            paced: None,
            is_catching_up: is_started,
            replayed_through: 0,
        };
        Self { id, state: Mutex::new(state), wake: watch::Sender::new(0) }
    }

    pub(crate) fn id(&self) -> &ProcessId {
        &self.id
    }

    /// The server answered the start; returns whether missing events must be read.
    pub(crate) fn handle_started(&self, answer: &ProcessStartAnswer) -> Option<NeededRead> {
        let confinement =
            if answer.is_unconfined() { Confinement::None } else { Confinement::Possible };
        self.update(|state| {
            state.is_started = true;
            state.order.handle_started(confinement);
            state.order.poll_read()
        })
    }

    /// The server sent an event on the connection of `outbox`; returns whether missing events must be read.
    pub(crate) fn handle_event(&self, event: ProcessEvent, outbox: &Outbox) -> Option<NeededRead> {
        let (seq, len) = (event.seq(), event.len());
        let before = self.lock().log.last_seq();
        let read = self.update(|state| {
            state.order.handle_event(event);
            state.order.poll_read()
        });
        self.hold(before, seq, len, outbox);
        read
    }

    /// The connection broke, and the next one will follow this process.
    pub(crate) fn handle_lost(&self) {
        self.update(|state| {
            state.order.handle_lost();
            state.is_catching_up = true;
        });
        // Receivers of `subscribe_wake` are notified although the number has not grown.
        self.wake.send_modify(|_| {});
    }

    /// The process cannot be followed any further.
    pub(crate) fn handle_failure(&self, reason: impl Into<Arc<str>>) {
        self.update(|state| state.order.handle_failure(reason));
    }

    /// Whether the next connection has to read the missed events of this process.
    pub(crate) fn needs_recovery(&self) -> bool {
        let state = self.lock();
        state.is_started && !state.order.is_over()
    }

    pub(crate) fn still_needs_read(&self) -> bool {
        self.lock().order.still_needs_read()
    }

    pub(crate) fn failure(&self) -> Option<ExecServerError> {
        let reason = self.lock().failure.clone()?;
        Some(ExecServerError::ProcessFailed { process_id: self.id.clone(), reason })
    }

    /// The number of events that were received so far.
    pub(crate) fn received(&self) -> u64 {
        self.lock().order.received()
    }

    /// The params of a read of the next page of missing events.
    pub(crate) fn missing_params(&self) -> ProcessReadParams {
        ProcessReadParams {
            process_id: self.id.clone(),
            after_seq: Some(self.lock().order.read_after()),
            max_bytes: Some(PAGE_BYTES),
            wait_ms: Some(0),
            session_id: None,
            timestamps: false,
            until: None,
            view: None,
        }
    }

    /// Reads a page of missing events and returns whether more are missing; fails if the read was not sent or not answered.
    pub(crate) async fn read_missing(
        &self,
        shared: &Arc<Shared>,
    ) -> Result<Option<NeededRead>, ExecServerError> {
        let link = self.link();
        let pending = shared.request(Method::ProcessRead.name(), &self.missing_params())?;
        match pending.await.and_then(|reply| reply.decode()) {
            Err(error) if error.is_disconnected() => Err(error),
            Ok(answer) => Ok(self.handle_read_over(link, answer)),
            Err(_) if self.link() != link => Ok(None),
            Err(error) => {
                tracing::debug!(process_id = %self.id, %error, "could not read missing events");
                Ok(self.update(|state| {
                    if state.order.is_behind() {
                        // The exit may be among the missed events, so the process can no longer be followed.
                        let id = &self.id;
                        let reason = format!("failed to recover process {id}: {error}");
                        state.order.handle_failure(reason);
                    }
                    state.order.handle_read_failed();
                    state.order.poll_read()
                }))
            }
        }
    }

    /// The number of the current connection, for [`Process::handle_read_over`].
    pub(crate) fn link(&self) -> LinkNumber {
        self.lock().order.link()
    }

    /// A read of missing events was answered over `link`, which may have broken since; returns whether more are missing.
    pub(crate) fn handle_read_over(
        &self,
        link: LinkNumber,
        answer: ProcessReadResponse,
    ) -> Option<NeededRead> {
        self.update(|state| {
            if state.order.link() == link {
                return state.handle_read(answer);
            }
            state.note_replayed(&answer);
            state.order.handle_late_read(answer);
            None
        })
    }

    /// A read of missing events was answered; returns whether more are missing.
    pub(crate) fn handle_read(&self, answer: ProcessReadResponse) -> Option<NeededRead> {
        self.update(|state| state.handle_read(answer))
    }

    pub(crate) fn add_reader(&self) -> ReaderId {
        let mut state = self.lock();
        state.last_reader += 1;
        let reader = ReaderId(state.last_reader);
        state.readers.push((reader, None));
        reader
    }

    pub(crate) fn remove_reader(&self, reader: ReaderId) {
        let mut state = self.lock();
        state.readers.retain(|(id, _)| *id != reader);
        state.paced.take_if(|paced| paced.reader == reader);
    }

    /// Applies backpressure from this reader to the connection.
    pub(crate) fn pace(&self, reader: ReaderId) {
        self.lock().paced = Some(Paced { reader, held: VecDeque::new() });
    }

    /// Counts an event against the connection's limit until the paced reader, if there is one, has taken it.
    ///
    /// Counts only new events that readers can see: an event that waits for a missing one must not block the read of that.
    fn hold(&self, before: u64, seq: Option<u64>, len: usize, outbox: &Outbox) {
        let mut state = self.lock();
        let last = state.log.last_seq();
        let new = seq.filter(|seq| before < *seq && *seq <= last);
        if let (Some(paced), Some(seq)) = (&mut state.paced, new) {
            paced.held.push_back((seq, outbox.hold(len.max(LEAST_HELD_BYTES))));
        }
    }

    /// The next event for a reader; if there is none yet, the reader is woken later.
    pub(crate) fn next(&self, reader: ReaderId, cursor: &mut LogCursor, cx: &Context) -> Found {
        let mut state = self.lock();
        let found = state.log.next(cursor);
        if let Some(paced) = state.paced.as_mut().filter(|paced| paced.reader == reader) {
            while paced.held.front().is_some_and(|(seq, _)| *seq <= cursor.seq()) {
                paced.held.pop_front();
            }
        }
        if found == Found::Nothing {
            state.park(reader, cx);
        }
        found
    }

    /// The exit or the failure of the process; if there is none yet, the reader is woken later.
    pub(crate) fn poll_exit(
        &self,
        reader: ReaderId,
        cx: &Context,
    ) -> Option<Result<ProcessExit, ExecServerError>> {
        let mut state = self.lock();
        if let Some((_, exit)) = &state.exit {
            return Some(Ok(exit.clone()));
        }
        if let Some(reason) = state.failure.clone() {
            let process_id = self.id.clone();
            return Some(Err(ExecServerError::ProcessFailed { process_id, reason }));
        }
        state.park(reader, cx);
        None
    }

    fn update<R>(&self, change: impl FnOnce(&mut State) -> R) -> R {
        let mut wakers = Vec::new();
        let (result, seq) = {
            let mut state = self.lock();
            let result = change(&mut state);
            let before = state.log.last_seq();
            if state.publish() {
                wakers.extend(state.readers.iter_mut().filter_map(|(_, waker)| waker.take()));
            }
            let seq = state.log.last_seq();
            (result, (seq > before).then_some(seq))
        };
        if let Some(seq) = seq {
            self.wake.send_replace(seq);
        }
        for waker in wakers {
            waker.wake();
        }
        result
    }

    /// The highest sequence number that readers can see.
    pub(crate) fn last_seq(&self) -> u64 {
        self.lock().log.last_seq()
    }

    /// The highest sequence number of output from before this client attached, or from while it was disconnected.
    pub(crate) fn replayed_through(&self) -> u64 {
        self.lock().replayed_through
    }

    /// The exit of the process, if it has exited.
    pub(crate) fn exit(&self) -> Option<ProcessExit> {
        self.lock().exit.as_ref().map(|(_, exit)| exit.clone())
    }

    /// The exit and its sequence number, if that is above `after` and below `until`.
    pub(crate) fn exit_between(&self, after: u64, until: u64) -> Option<(u64, ProcessExit)> {
        self.lock().exit.clone().filter(|(seq, _)| after < *seq && *seq < until)
    }

    /// Whether the process has exited and all its output has arrived.
    pub(crate) fn is_closed(&self) -> bool {
        self.lock().is_closed
    }

    pub(crate) fn subscribe_wake(&self) -> watch::Receiver<u64> {
        self.wake.subscribe()
    }

    /// The answer to a read of a process that can no longer be followed; `None` while it can.
    pub(crate) fn known_end(&self, after_seq: u64) -> Option<ProcessReadResponse> {
        let state = self.lock();
        let failure = state.failure.as_ref()?.to_string();
        let exit = state.exit.as_ref().map(|(_, exit)| exit);
        Some(ProcessReadResponse {
            chunks: Vec::new(),
            next_seq: state.log.last_seq().max(after_seq) + 1,
            exited: true,
            exit_code: exit.map(|exit| exit.exit_code),
            closed: true,
            failure: Some(failure),
            sandbox_denied: exit.and_then(|exit| exit.sandbox_denied).unwrap_or(false),
            details: exit.map_or_else(ExitDetails::default, |exit| exit.details.clone()),
            gap: None,
            extent: None,
        })
    }

    /// Keeps every event from the cursor on, until the next call or [`Process::unpin`].
    pub(crate) fn pin(&self, cursor: &LogCursor) {
        self.lock().log.pin(cursor);
    }

    /// Keeps only as many events as the bounds of the log allow.
    pub(crate) fn unpin(&self) {
        self.lock().log.unpin();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder panics")
    }
}

impl State {
    fn handle_read(&mut self, answer: ProcessReadResponse) -> Option<NeededRead> {
        if self.is_catching_up {
            self.note_replayed(&answer);
        }
        if let Err(error) = self.order.handle_read(answer) {
            self.order.handle_failure(error.to_string());
        }
        let more = self.order.poll_read();
        self.is_catching_up &= more.is_some();
        more
    }

    /// Counts the output of a page as replayed.
    fn note_replayed(&mut self, answer: &ProcessReadResponse) {
        let last = answer.chunks.iter().map(|chunk| chunk.seq).max().unwrap_or(0);
        self.replayed_through = self.replayed_through.max(last);
    }

    /// Moves the events that are in order to the log; returns whether there were any.
    fn publish(&mut self) -> bool {
        let mut has_news = false;
        while let Some(event) = self.order.poll_event() {
            match &event {
                ProcessEvent::Exited { seq, exit } => self.exit = Some((*seq, exit.clone())),
                ProcessEvent::Closed { .. } => self.is_closed = true,
                ProcessEvent::Failed(reason) => self.failure = Some(reason.clone()),
                _ => {}
            }
            self.log.push(event);
            has_news = true;
        }
        has_news
    }

    fn park(&mut self, reader: ReaderId, cx: &Context) {
        if let Some((_, waker)) = self.readers.iter_mut().find(|(id, _)| *id == reader) {
            match waker {
                Some(waker) => waker.clone_from(cx.waker()),
                None => *waker = Some(cx.waker().clone()),
            }
        }
    }
}

/// Registers a reader with a process until it is dropped.
pub(crate) struct Reader {
    pub process: Arc<Process>,
    pub id: ReaderId,
}

impl Reader {
    pub(crate) fn new(process: Arc<Process>) -> Self {
        let id = process.add_reader();
        Self { process, id }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.process.remove_reader(self.id);
    }
}
