//! One process as its client sees it: its events in order, its state, and what can be done to it.
//!
//! Owner: the connection's task puts events in; readers take them out at their own pace. The state is behind a lock that
//! is never held for longer than it takes to look or to append.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Waker};
use std::time::Duration;

use exec_server_machines::event_log::{EventLog, Found, LogCursor};
use exec_server_machines::event_order::{
    Confinement, EventOrder, NeededRead, ProcessEvent, ProcessExit,
};
use exec_server_protocol::answers::ProcessStartAnswer;
use exec_server_protocol::methods::Method;
use exec_server_protocol::process::{
    Empty, ExitDetails, ProcessCloseStdinParams, ProcessId, ProcessReadParams, ProcessReadResponse,
    ProcessResizeParams, ProcessSignal, ProcessSignalParams, ProcessTerminateParams,
    ProcessTerminateResponse, ProcessWriteParams, ProcessWriteResponse, TerminalSize, WriteStatus,
};
use tokio::sync::watch;

use crate::caller::{Caller, Replay};
use crate::connection::Shared;
use crate::error::ExecServerError;
use crate::events::ProcessEvents;

/// Bytes of stdin in one request: enough to keep a link busy, and little to send again after a cut.
const MAX_WRITE_BYTES: usize = 1024 * 1024;

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
    exit: Option<ProcessExit>,
    is_closed: bool,
    failure: Option<Arc<str>>,
    readers: Vec<(ReaderId, Option<Waker>)>,
    last_reader: u64,
}

/// Tells the readers of one process apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ReaderId(u64);

impl Process {
    /// A process that is about to be started.
    pub fn new(id: ProcessId) -> Self {
        Self::with(id, EventOrder::new(), EventLog::after(0), false)
    }

    /// A process that runs already, of which everything up to `seq` is known.
    pub fn attached(id: ProcessId, seq: u64) -> Self {
        let order = EventOrder::after(seq, Some(Confinement::Possible));
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

    /// The server sent an event; says whether something must be read.
    pub fn handle_event(&self, event: ProcessEvent) -> Option<NeededRead> {
        self.update(|state| {
            state.order.handle_event(event);
            state.order.poll_read()
        })
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

    /// The params of a read of everything that is missing.
    pub fn missing_params(&self) -> ProcessReadParams {
        ProcessReadParams {
            process_id: self.id.clone(),
            after_seq: Some(self.lock().order.last_seq()),
            max_bytes: None,
            wait_ms: Some(0),
        }
    }

    /// Reads what is missing, and says whether more is; fails only if the link broke.
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
        self.lock().readers.retain(|(id, _)| *id != reader);
    }

    /// What a reader finds at its place; if nothing yet, it is woken when there is more.
    pub fn next(&self, reader: ReaderId, cursor: &mut LogCursor, cx: &Context) -> Found {
        let mut state = self.lock();
        let found = state.log.next(cursor);
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
        if let Some(exit) = &state.exit {
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
                ProcessEvent::Exited { exit, .. } => self.exit = Some(exit.clone()),
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

/// A process on the server; cheap to clone.
///
/// Dropping the last clone stops following the process and frees its id here; the process itself goes on.
#[derive(Clone)]
pub struct ProcessSession {
    handle: Arc<Handle>,
}

struct Handle {
    process: Arc<Process>,
    caller: Caller,
    answer: ProcessStartAnswer,
    /// Makes the write ids of this handle differ from those of any other that follows the process.
    write_prefix: String,
    writes: AtomicU64,
    /// Writes go one after the other, so that one that is repeated after a cut is not overtaken.
    turn: tokio::sync::Mutex<()>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.caller.untrack(&self.process);
    }
}

impl ProcessSession {
    pub(crate) fn new(process: Arc<Process>, caller: Caller, answer: ProcessStartAnswer) -> Self {
        let handle = Handle {
            process,
            caller,
            answer,
            write_prefix: format!("{:08x}", fastrand::u32(..)),
            writes: AtomicU64::new(0),
            turn: tokio::sync::Mutex::new(()),
        };
        Self { handle: Arc::new(handle) }
    }

    /// The process's key in its session.
    pub fn id(&self) -> &ProcessId {
        &self.handle.process.id
    }

    /// What the server said when it started the process.
    pub fn start_answer(&self) -> &ProcessStartAnswer {
        &self.handle.answer
    }

    /// Every event of the process, from the first one on.
    pub fn events(&self) -> ProcessEvents {
        self.events_after(0)
    }

    /// Every event of the process after number `seq`.
    pub fn events_after(&self, seq: u64) -> ProcessEvents {
        ProcessEvents::new(self.clone(), seq)
    }

    /// Tells the highest number that can be read, whenever it grows and when the link broke.
    pub fn subscribe_wake(&self) -> watch::Receiver<u64> {
        self.handle.process.wake.subscribe()
    }

    /// The highest number of an event that has come so far.
    pub fn last_seq(&self) -> u64 {
        self.handle.process.lock().log.last_seq()
    }

    /// How the process ended, if it has.
    pub fn exit(&self) -> Option<ProcessExit> {
        self.handle.process.lock().exit.clone()
    }

    /// Whether nothing more will come.
    pub fn is_closed(&self) -> bool {
        self.handle.process.lock().is_closed
    }

    /// Why the process can no longer be followed, if so.
    pub fn failure(&self) -> Option<ExecServerError> {
        self.handle.process.failure()
    }

    /// Reads retained output and state from the server; repeated by itself after a cut.
    ///
    /// Of a process that can no longer be followed it tells what is known, without asking anybody.
    pub async fn read(
        &self,
        after_seq: u64,
        max_bytes: Option<u64>,
        wait: Duration,
    ) -> Result<ProcessReadResponse, ExecServerError> {
        let params = ProcessReadParams {
            process_id: self.id().clone(),
            after_seq: Some(after_seq),
            max_bytes,
            wait_ms: Some(u64::try_from(wait.as_millis()).unwrap_or(u64::MAX)),
        };
        if let Some(answer) = self.known_end(after_seq) {
            return Ok(answer);
        }
        match self.call(Method::ProcessRead, &params, Replay::Safe).await {
            Err(ExecServerError::ProcessFailed { .. }) => {
                Ok(self.known_end(after_seq).expect("a failure stays"))
            }
            answer => answer,
        }
    }

    fn known_end(&self, after_seq: u64) -> Option<ProcessReadResponse> {
        let state = self.handle.process.lock();
        let failure = state.failure.as_ref()?.to_string();
        let exit = state.exit.as_ref();
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

    /// Writes to stdin; repeated by itself after a cut, and applied once.
    ///
    /// Returns when the server has queued all of it, which a child that does not read delays.
    pub async fn write(&self, bytes: &[u8]) -> Result<(), ExecServerError> {
        let _turn = self.handle.turn.lock().await;
        for chunk in bytes.chunks(MAX_WRITE_BYTES) {
            let number = self.handle.writes.fetch_add(1, Ordering::Relaxed) + 1;
            let write_id = format!("{}-{number}", self.handle.write_prefix);
            self.write_once(chunk, write_id).await?;
        }
        Ok(())
    }

    /// Writes to stdin under a name of the caller's choice; the same name is applied once.
    pub async fn write_with_id(
        &self,
        bytes: &[u8],
        write_id: impl Into<String>,
    ) -> Result<(), ExecServerError> {
        let _turn = self.handle.turn.lock().await;
        self.write_once(bytes, write_id.into()).await
    }

    async fn write_once(&self, bytes: &[u8], write_id: String) -> Result<(), ExecServerError> {
        let params = ProcessWriteParams {
            process_id: self.id().clone(),
            chunk: bytes.to_vec().into(),
            write_id: Some(write_id),
        };
        let answer = self.call(Method::ProcessWrite, &params, Replay::Safe).await?;
        self.check_write(answer)
    }

    /// Ends stdin after what was written, on a server that can.
    pub async fn close_stdin(&self) -> Result<(), ExecServerError> {
        let _turn = self.handle.turn.lock().await;
        self.handle.caller.require(|can| can.process_close_stdin, "process/closeStdin").await?;
        let params = ProcessCloseStdinParams { process_id: self.id().clone() };
        let answer = self.call(Method::ProcessCloseStdin, &params, Replay::Safe).await?;
        match self.check_write(answer) {
            // It is closed, which was wanted; an earlier try may have been the one that did it.
            Err(ExecServerError::StdinClosed(_)) => Ok(()),
            result => result,
        }
    }

    fn check_write(&self, answer: ProcessWriteResponse) -> Result<(), ExecServerError> {
        let id = self.id().clone();
        match answer.status {
            WriteStatus::Accepted => Ok(()),
            WriteStatus::UnknownProcess => Err(ExecServerError::UnknownProcess(id)),
            WriteStatus::StdinClosed => Err(ExecServerError::StdinClosed(id)),
            WriteStatus::Starting => {
                Err(ExecServerError::Protocol("a started process is still starting".to_owned()))
            }
        }
    }

    /// Gives the terminal a new size, on a server that can.
    pub async fn resize(&self, size: TerminalSize) -> Result<(), ExecServerError> {
        self.handle.caller.require(|can| can.process_resize, "process/resize").await?;
        let params = ProcessResizeParams { process_id: self.id().clone(), size };
        self.call(Method::ProcessResize, &params, Replay::Never).await.map(|Empty {}| ())
    }

    /// Sends a signal; never repeated after a cut, but then an error says so.
    pub async fn signal(&self, signal: ProcessSignal) -> Result<(), ExecServerError> {
        let params = ProcessSignalParams { process_id: self.id().clone(), signal };
        self.call(Method::ProcessSignal, &params, Replay::Never).await.map(|Empty {}| ())
    }

    /// Ends the process and everything that came from it, and says whether it was still there.
    ///
    /// With a grace it is asked first (SIGTERM). Never repeated after a cut, but then an error says so.
    pub async fn terminate(&self, grace: Option<Duration>) -> Result<bool, ExecServerError> {
        let grace_ms = grace.map(|grace| u64::try_from(grace.as_millis()).unwrap_or(u64::MAX));
        let params = ProcessTerminateParams { process_id: self.id().clone(), grace_ms };
        let answer: ProcessTerminateResponse =
            self.call(Method::ProcessTerminate, &params, Replay::Never).await?;
        Ok(answer.running)
    }

    /// Ends the process in the background, also if the link is broken just now.
    pub fn terminate_later(&self) {
        self.handle.caller.clean_up_process(self.id());
    }

    /// Waits until the process has ended.
    pub async fn wait(&self) -> Result<ProcessExit, ExecServerError> {
        let reader = Reader::new(self.handle.process.clone());
        std::future::poll_fn(|cx| match reader.process.poll_exit(reader.id, cx) {
            Some(result) => std::task::Poll::Ready(result),
            None => std::task::Poll::Pending,
        })
        .await
    }

    pub(crate) fn process(&self) -> &Arc<Process> {
        &self.handle.process
    }

    async fn call<R: serde::de::DeserializeOwned>(
        &self,
        method: Method,
        params: &impl serde::Serialize,
        replay: Replay,
    ) -> Result<R, ExecServerError> {
        let process = &self.handle.process;
        self.handle.caller.call_for(Some(process), method.name(), params, replay).await
    }
}

impl std::fmt::Debug for ProcessSession {
    fn fmt(&self, formatter: &mut std::fmt::Formatter) -> std::fmt::Result {
        formatter.debug_struct("ProcessSession").field("id", self.id()).finish_non_exhaustive()
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
