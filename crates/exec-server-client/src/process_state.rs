//! The state of one process: its events in order, for readers at their own pace.
//!
//! Owner: the connection's task puts events in; readers take them out. The state is behind a lock that is never held for
//! longer than it takes to look or to append.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Waker};

use exec_server_machines::event_log::{EventLog, Found, LogCursor};
use exec_server_machines::event_order::{
    Confinement, EventOrder, NeededRead, PAGE_BYTES, ProcessEvent, ProcessExit,
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

/// What the routes and the handles of one process share.
pub(crate) struct Process {
    id: ProcessId,
    state: Mutex<State>,
    /// The highest number that readers can see, raised also when the link broke.
    wake: watch::Sender<u64>,
}

struct State {
    order: EventOrder,
    log: EventLog,
    /// Whether the server has answered the start.
    is_started: bool,
    /// The exit and its number.
    exit: Option<(u64, ProcessExit)>,
    is_closed: bool,
    failure: Option<Arc<str>>,
    readers: Vec<(ReaderId, Option<Waker>)>,
    last_reader: u64,
    paced: Option<Paced>,
}

/// A reader that must not miss anything: what it has not taken keeps the link from being read any further.
struct Paced {
    reader: ReaderId,
    held: VecDeque<(u64, Held)>,
}

/// A small event takes more room than its bytes, so that events are bounded in number as well.
const LEAST_HELD_BYTES: usize = 2048;

/// Tells the readers of one process apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ReaderId(u64);

impl Process {
    /// A process that is about to be started, of whose output the server keeps this much, if it was asked to.
    pub fn new(id: ProcessId, retention: Option<u64>) -> Self {
        let mut log = EventLog::after(0);
        // Whoever starts it decides whether everything is wanted.
        log.pin(&LogCursor::default());
        let mut order = EventOrder::new();
        order.expect_retention(retention.unwrap_or(0));
        Self::with(id, order, log, false)
    }

    /// A process that runs already, of which everything up to `seq` is known.
    pub fn attached(id: ProcessId, seq: u64) -> Self {
        let mut order = EventOrder::attached(seq);
        // Nobody here knows what it was started with.
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
        };
        Self { id, state: Mutex::new(state), wake: watch::Sender::new(0) }
    }

    pub fn id(&self) -> &ProcessId {
        &self.id
    }

    /// The server answered the start; says whether something must be read.
    pub fn handle_started(&self, answer: &ProcessStartAnswer) -> Option<NeededRead> {
        let confinement =
            if answer.is_unconfined() { Confinement::None } else { Confinement::Possible };
        self.update(|state| {
            state.is_started = true;
            state.order.handle_started(confinement);
            state.order.poll_read()
        })
    }

    /// The server sent an event on the link of `outbox`; says whether something must be read.
    pub fn handle_event(&self, event: ProcessEvent, outbox: &Outbox) -> Option<NeededRead> {
        let (seq, len) = (event.seq(), event.len());
        let before = self.lock().log.last_seq();
        let read = self.update(|state| {
            state.order.handle_event(event);
            state.order.poll_read()
        });
        self.hold(before, seq, len, outbox);
        read
    }

    /// The link broke, and another one will go on with this process.
    pub fn handle_lost(&self) {
        self.update(|state| state.order.handle_lost());
        // Whoever waits only for the wake-up has to look too.
        self.wake.send_modify(|_| {});
    }

    /// The process cannot be followed any further.
    pub fn handle_failure(&self, reason: impl Into<Arc<str>>) {
        self.update(|state| state.order.handle_failure(reason));
    }

    /// Whether a connection that takes over has to read what happened meanwhile.
    pub fn needs_recovery(&self) -> bool {
        let state = self.lock();
        state.is_started && !state.order.is_over()
    }

    pub fn still_needs_read(&self) -> bool {
        self.lock().order.still_needs_read()
    }

    pub fn failure(&self) -> Option<ExecServerError> {
        let reason = self.lock().failure.clone()?;
        Some(ExecServerError::ProcessFailed { process_id: self.id.clone(), reason })
    }

    /// How many events have come in so far.
    pub fn received(&self) -> u64 {
        self.lock().order.received()
    }

    /// The params of a read of the next page of what is missing.
    pub fn missing_params(&self) -> ProcessReadParams {
        ProcessReadParams {
            process_id: self.id.clone(),
            after_seq: Some(self.lock().order.read_after()),
            max_bytes: Some(PAGE_BYTES),
            wait_ms: Some(0),
            session_id: None,
        }
    }

    /// Reads a page of what is missing, and says whether more is; fails if nothing could be asked, or the link broke.
    pub async fn read_missing(
        &self,
        shared: &Arc<Shared>,
    ) -> Result<Option<NeededRead>, ExecServerError> {
        let pending = shared.request(Method::ProcessRead.name(), &self.missing_params())?;
        match pending.await.and_then(|reply| reply.decode()) {
            Err(error) if error.is_disconnected() => Err(error),
            Ok(answer) => Ok(self.handle_read(answer)),
            Err(error) => {
                tracing::debug!(process_id = %self.id, %error, "could not read what is missing");
                Ok(self.update(|state| {
                    if state.order.is_behind() {
                        // Nobody knows what else was missed, not even whether it has ended.
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

    /// A read of what is missing was answered; says whether more is.
    pub fn handle_read(&self, answer: ProcessReadResponse) -> Option<NeededRead> {
        self.update(|state| {
            if let Err(error) = state.order.handle_read(answer) {
                state.order.handle_failure(error.to_string());
            }
            state.order.poll_read()
        })
    }

    pub fn add_reader(&self) -> ReaderId {
        let mut state = self.lock();
        state.last_reader += 1;
        let reader = ReaderId(state.last_reader);
        state.readers.push((reader, None));
        reader
    }

    pub fn remove_reader(&self, reader: ReaderId) {
        let mut state = self.lock();
        state.readers.retain(|(id, _)| *id != reader);
        state.paced.take_if(|paced| paced.reader == reader);
    }

    /// From now on nothing more is read than this reader takes.
    pub fn pace(&self, reader: ReaderId) {
        self.lock().paced = Some(Paced { reader, held: VecDeque::new() });
    }

    /// Counts an event against the link until the paced reader, if there is one, has taken it.
    ///
    /// Only what is new and can be taken: what waits for something that is missing must not keep that from being read.
    fn hold(&self, before: u64, seq: Option<u64>, len: usize, outbox: &Outbox) {
        let mut state = self.lock();
        let last = state.log.last_seq();
        let new = seq.filter(|seq| before < *seq && *seq <= last);
        if let (Some(paced), Some(seq)) = (&mut state.paced, new) {
            paced.held.push_back((seq, outbox.hold(len.max(LEAST_HELD_BYTES))));
        }
    }

    /// What a reader finds at its place; if nothing yet, it is woken when there is more.
    pub fn next(&self, reader: ReaderId, cursor: &mut LogCursor, cx: &Context) -> Found {
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

    /// How the process ended, once it has; a reader is woken when there is more.
    pub fn poll_exit(
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

    /// The highest number of an event that readers can see.
    pub fn last_seq(&self) -> u64 {
        self.lock().log.last_seq()
    }

    /// How the process ended, if it has.
    pub fn exit(&self) -> Option<ProcessExit> {
        self.lock().exit.as_ref().map(|(_, exit)| exit.clone())
    }

    /// The exit and its number, if it comes after one number and before the other.
    pub fn exit_between(&self, after: u64, until: u64) -> Option<(u64, ProcessExit)> {
        self.lock().exit.clone().filter(|(seq, _)| after < *seq && *seq < until)
    }

    /// Whether nothing more will come.
    pub fn is_closed(&self) -> bool {
        self.lock().is_closed
    }

    pub fn subscribe_wake(&self) -> watch::Receiver<u64> {
        self.wake.subscribe()
    }

    /// What a read tells of a process that can no longer be followed.
    pub fn known_end(&self, after_seq: u64) -> Option<ProcessReadResponse> {
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
        })
    }

    /// Keeps everything from the reader's place on, until it moves on or [`Process::unpin`].
    pub fn pin(&self, cursor: &LogCursor) {
        self.lock().log.pin(cursor);
    }

    /// Nobody needs more than is kept anyway.
    pub fn unpin(&self) {
        self.lock().log.unpin();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder panics")
    }
}

impl State {
    /// Moves what is in order to where readers see it; says whether there was anything.
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

/// A place among the readers of a process, as long as it lives.
pub(crate) struct Reader {
    pub process: Arc<Process>,
    pub id: ReaderId,
}

impl Reader {
    pub fn new(process: Arc<Process>) -> Self {
        let id = process.add_reader();
        Self { process, id }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.process.remove_reader(self.id);
    }
}
