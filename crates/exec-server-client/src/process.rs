//! One process as its client sees it: what is known of it, and what can be done to it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use exec_server_machines::event_order::ProcessExit;
use exec_server_protocol::answers::ProcessStartAnswer;
use exec_server_protocol::methods::Method;
use exec_server_protocol::process::{
    Empty, ProcessCloseStdinParams, ProcessId, ProcessReadParams, ProcessReadResponse,
    ProcessResizeParams, ProcessSignal, ProcessSignalParams, ProcessTerminateParams,
    ProcessTerminateResponse, ProcessWriteParams, ProcessWriteResponse, TerminalSize, WriteStatus,
};
use tokio::sync::watch;

use crate::caller::{Caller, Replay};
use crate::error::ExecServerError;
use crate::events::ProcessEvents;
use crate::process_state::{Process, Reader};

/// Bytes of stdin in one request: enough to keep a link busy, and little to send again after a cut.
const MAX_WRITE_BYTES: usize = 1024 * 1024;

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
        self.handle.process.id()
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

    /// Every event of the process after number `seq`, with the whole link at the pace of this reader.
    ///
    /// While it does not read, nothing is read from the server, so that the process itself has to wait and nothing is
    /// ever missed. Other calls of the same client wait as well.
    pub fn paced_events_after(&self, seq: u64) -> ProcessEvents {
        let mut events = self.events_after(seq);
        events.pace();
        events
    }

    /// Tells the highest number that can be read, whenever it grows and when the link broke.
    pub fn subscribe_wake(&self) -> watch::Receiver<u64> {
        self.handle.process.subscribe_wake()
    }

    /// The highest number of an event that has come so far.
    pub fn last_seq(&self) -> u64 {
        self.handle.process.last_seq()
    }

    /// How the process ended, if it has.
    pub fn exit(&self) -> Option<ProcessExit> {
        self.handle.process.exit()
    }

    /// Whether nothing more will come.
    pub fn is_closed(&self) -> bool {
        self.handle.process.is_closed()
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
            session_id: None,
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
        let params =
            ProcessSignalParams { process_id: self.id().clone(), signal, session_id: None };
        self.call(Method::ProcessSignal, &params, Replay::Never).await.map(|Empty {}| ())
    }

    /// Ends the process and everything that came from it, and says whether it was still there.
    ///
    /// With a grace it is asked first (SIGTERM). Never repeated after a cut, but then an error says so.
    pub async fn terminate(&self, grace: Option<Duration>) -> Result<bool, ExecServerError> {
        let grace_ms = grace.map(|grace| u64::try_from(grace.as_millis()).unwrap_or(u64::MAX));
        let params =
            ProcessTerminateParams { process_id: self.id().clone(), grace_ms, session_id: None };
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
