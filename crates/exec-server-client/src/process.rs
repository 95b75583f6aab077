//! The handle of one process: its state, its events, and the operations on it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use exec_server_core::event_order::ProcessExit;
use exec_server_protocol::answers::ProcessStartAnswer;
use exec_server_protocol::duration::millis;
use exec_server_protocol::methods::Method;
use exec_server_protocol::process::{
    Empty, OutputView, ProcessCloseStdinParams, ProcessId, ProcessReadParams, ProcessReadResponse,
    ProcessResizeParams, ProcessSignal, ProcessSignalParams, ProcessTerminateParams,
    ProcessTerminateResponse, ProcessWriteParams, ProcessWriteResponse, TerminalSize, WriteStatus,
};
use tokio::sync::watch;

use crate::caller::{Caller, Replay};
use crate::error::ExecServerError;
use crate::events::ProcessEvents;
use crate::process_state::{Process, Reader};

/// Bytes of stdin per request: enough to keep a connection busy, and few to resend after a disconnect.
const MAX_WRITE_BYTES: usize = 1024 * 1024;

/// A process on the server; cheap to clone.
///
/// Dropping the last clone stops following the process and frees its id in this client; the process keeps running.
#[derive(Clone)]
pub struct ProcessSession {
    handle: Arc<Handle>,
}

struct Handle {
    process: Arc<Process>,
    caller: Caller,
    answer: ProcessStartAnswer,
    /// Keeps the write ids of this handle distinct from those of other handles of the same process.
    write_prefix: String,
    writes: AtomicU64,
    /// Serializes writes, so that a later write cannot overtake one that is retried after a disconnect.
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

    /// The process id within the session.
    pub fn id(&self) -> &ProcessId {
        self.handle.process.id()
    }

    /// The server's answer to `process/start`; the default value for a process that was attached.
    pub fn start_answer(&self) -> &ProcessStartAnswer {
        &self.handle.answer
    }

    /// The operating system's id of the root process; `None` if it was attached, or the server does not say.
    pub fn pid(&self) -> Option<u32> {
        self.handle.answer.pid
    }

    /// All events of the process, from the first one.
    pub fn events(&self) -> ProcessEvents {
        self.events_after(0)
    }

    /// The events of the process after sequence number `seq`.
    pub fn events_after(&self, seq: u64) -> ProcessEvents {
        ProcessEvents::new(self.clone(), seq)
    }

    /// The events after sequence number `seq`, with backpressure from this reader on the whole connection.
    ///
    /// When the reader falls behind, the client stops reading from the server, so the process has to wait and no event
    /// is missed. Other calls of the same client wait as well.
    pub fn paced_events_after(&self, seq: u64) -> ProcessEvents {
        let mut events = self.events_after(seq);
        events.pace();
        events
    }

    /// Receives the highest sequence number that can be read, whenever it grows and when the connection breaks.
    pub fn subscribe_wake(&self) -> watch::Receiver<u64> {
        self.handle.process.subscribe_wake()
    }

    /// The highest sequence number that can be read so far.
    pub fn last_seq(&self) -> u64 {
        self.handle.process.last_seq()
    }

    /// The highest sequence number of output that was written before this client attached or while it was disconnected.
    pub fn replayed_through(&self) -> u64 {
        self.handle.process.replayed_through()
    }

    /// The exit of the process, if it has exited.
    pub fn exit(&self) -> Option<ProcessExit> {
        self.handle.process.exit()
    }

    /// Whether the process has exited and all its output has arrived.
    pub fn is_closed(&self) -> bool {
        self.handle.process.is_closed()
    }

    /// Why this client can no longer follow the process; `None` while it can.
    pub fn failure(&self) -> Option<ExecServerError> {
        self.handle.process.failure()
    }

    /// Reads retained output and state from the server; retried after a disconnect.
    ///
    /// For a process that can no longer be followed, it returns the last known state without a request.
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
            wait_ms: Some(millis(wait)),
            session_id: None,
            timestamps: false,
            until: None,
            view: None,
        };
        if let Some(answer) = self.handle.process.known_end(after_seq) {
            return Ok(answer);
        }
        match self.call(Method::ProcessRead, &params, Replay::Safe).await {
            Err(ExecServerError::ProcessFailed { .. }) => {
                Ok(self.handle.process.known_end(after_seq).expect("a failure stays"))
            }
            answer => answer,
        }
    }

    /// Reads a part of the output that the server keeps: its beginning, its end, from an offset on, or lines by a pattern.
    ///
    /// The answer is a page of at most `max_bytes` (the server's choice without it); `extent.next_offset` says where the
    /// next one begins. Retried after a disconnect; fails with `Unsupported` on a server without views.
    pub async fn read_view(
        &self,
        view: OutputView,
        max_bytes: Option<u64>,
    ) -> Result<ProcessReadResponse, ExecServerError> {
        self.handle.caller.require(|can| can.process_output_spool, "views of output").await?;
        let params = ProcessReadParams {
            process_id: self.id().clone(),
            after_seq: None,
            max_bytes,
            wait_ms: None,
            session_id: None,
            timestamps: false,
            until: None,
            view: Some(view),
        };
        self.call(Method::ProcessRead, &params, Replay::Safe).await
    }

    /// Writes to stdin; retried after a disconnect, and applied once.
    ///
    /// Returns when the server has queued all bytes, which can take long if the process does not read its stdin.
    pub async fn write(&self, bytes: &[u8]) -> Result<(), ExecServerError> {
        let _turn = self.handle.turn.lock().await;
        for chunk in bytes.chunks(MAX_WRITE_BYTES) {
            let number = self.handle.writes.fetch_add(1, Ordering::Relaxed) + 1;
            let write_id = format!("{}-{number}", self.handle.write_prefix);
            self.write_once(chunk, write_id).await?;
        }
        Ok(())
    }

    /// Writes to stdin with a write id of the caller; the server applies a write id once.
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

    /// Closes stdin after the bytes that were written; fails with `Unsupported` on a server without `process/closeStdin`.
    pub async fn close_stdin(&self) -> Result<(), ExecServerError> {
        let _turn = self.handle.turn.lock().await;
        let params = ProcessCloseStdinParams { process_id: self.id().clone() };
        let answer = self.call(Method::ProcessCloseStdin, &params, Replay::Safe).await?;
        match self.check_write(answer) {
            // Stdin may have been closed by an earlier attempt whose answer was lost.
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

    /// Changes the size of the terminal; fails with `Unsupported` on a server without `process/resize`.
    pub async fn resize(&self, size: TerminalSize) -> Result<(), ExecServerError> {
        let params = ProcessResizeParams { process_id: self.id().clone(), size };
        self.call(Method::ProcessResize, &params, Replay::Never).await.map(|Empty {}| ())
    }

    /// Sends a signal; not retried: if the connection breaks before the answer, the result is `Ambiguous`.
    pub async fn signal(&self, signal: ProcessSignal) -> Result<(), ExecServerError> {
        let params =
            ProcessSignalParams { process_id: self.id().clone(), signal, session_id: None };
        self.call(Method::ProcessSignal, &params, Replay::Never).await.map(|Empty {}| ())
    }

    /// Terminates the process and its descendants; returns whether the process was still running.
    ///
    /// With a `grace`, SIGTERM comes first. Not retried: if the connection breaks before the answer, the result is
    /// `Ambiguous`.
    pub async fn terminate(&self, grace: Option<Duration>) -> Result<bool, ExecServerError> {
        let grace_ms = grace.map(millis);
        let params =
            ProcessTerminateParams { process_id: self.id().clone(), grace_ms, session_id: None };
        let answer: ProcessTerminateResponse =
            self.call(Method::ProcessTerminate, &params, Replay::Never).await?;
        Ok(answer.running)
    }

    /// Terminates the process in the background; while disconnected, after the session has been resumed.
    pub fn terminate_later(&self) {
        self.handle.caller.clean_up_process(self.id());
    }

    /// Waits until the process has exited, or can no longer be followed.
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
        let Handle { caller, process, .. } = &*self.handle;
        caller.require_method(method).await?;
        caller.call_for(Some(process), method.name(), params, replay).await
    }
}

impl std::fmt::Debug for ProcessSession {
    fn fmt(&self, formatter: &mut std::fmt::Formatter) -> std::fmt::Result {
        formatter.debug_struct("ProcessSession").field("id", self.id()).finish_non_exhaustive()
    }
}
