//! A command that runs on the server, with its input and outputs as byte streams.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, Bytes};
use exec_server_machines::event_order::{ProcessEvent, ProcessExit};
use exec_server_protocol::process::{
    ExitDetails, OutputStream, ProcessId, ProcessSignal, TerminalSize,
};
use tokio::io::{AsyncRead, ReadBuf};

use crate::child_stdin::ChildStdin;
use crate::command::collect_output;
use crate::error::ExecServerError;
use crate::events::ProcessEvents;
use crate::process::ProcessSession;

/// A command that runs on the server; made by [`Command::spawn`](crate::Command::spawn).
pub struct Child {
    /// Takes the command's input; dropping it ends the input, where the server can do that.
    pub stdin: Option<ChildStdin>,
    /// Everything that the command writes to stdout, or to its terminal.
    pub stdout: Option<ChildOutput>,
    /// Everything that the command writes to stderr.
    pub stderr: Option<ChildOutput>,
    session: ProcessSession,
    kill_on_drop: bool,
}

/// How a command ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExitStatus {
    code: i32,
    sandbox_denied: Option<bool>,
    details: ExitDetails,
}

/// Everything that came of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Output {
    /// How it ended.
    pub status: ExitStatus,
    /// All of stdout, or of the terminal.
    pub stdout: Vec<u8>,
    /// All of stderr.
    pub stderr: Vec<u8>,
}

impl Output {
    /// Stdout as text.
    pub fn stdout_text(&self) -> std::borrow::Cow<'_, str> {
        String::from_utf8_lossy(&self.stdout)
    }

    /// Stderr as text.
    pub fn stderr_text(&self) -> std::borrow::Cow<'_, str> {
        String::from_utf8_lossy(&self.stderr)
    }
}

impl ExitStatus {
    /// Whether it ended with 0.
    pub fn success(&self) -> bool {
        self.code == 0
    }

    /// 0 to 255, or 128 plus the signal's number.
    pub fn code(&self) -> i32 {
        self.code
    }

    /// The signal that ended it, such as `SIGKILL`, from a server that tells.
    pub fn signal(&self) -> Option<&str> {
        self.details.signal.as_deref()
    }

    /// Whether the sandbox refused something that made it fail; none if nobody could say.
    pub fn sandbox_denied(&self) -> Option<bool> {
        self.sandbox_denied
    }

    /// The rest of the truth: why it ended, how long it ran, what it used.
    pub fn details(&self) -> &ExitDetails {
        &self.details
    }
}

impl From<ProcessExit> for ExitStatus {
    fn from(exit: ProcessExit) -> Self {
        let ProcessExit { exit_code: code, sandbox_denied, details } = exit;
        Self { code, sandbox_denied, details }
    }
}

impl std::fmt::Display for ExitStatus {
    fn fmt(&self, formatter: &mut std::fmt::Formatter) -> std::fmt::Result {
        match self.signal() {
            Some(signal) => write!(formatter, "signal: {signal}"),
            None => write!(formatter, "exit status: {}", self.code),
        }
    }
}

impl Child {
    pub(crate) fn new(
        session: ProcessSession,
        has_stdin: bool,
        has_terminal: bool,
        kill_on_drop: bool,
    ) -> Self {
        let output = |stream| ChildOutput::new(&session, stream);
        Self {
            stdin: has_stdin.then(|| ChildStdin::new(session.clone(), !has_terminal)),
            stdout: Some(output(OutputStream::Stdout)),
            stderr: (!has_terminal).then(|| output(OutputStream::Stderr)),
            session,
            kill_on_drop,
        }
    }

    /// The process's key in its session.
    pub fn id(&self) -> &ProcessId {
        self.session.id()
    }

    /// The process, with all that can be done to it.
    pub fn session(&self) -> &ProcessSession {
        &self.session
    }

    /// Ends its input and waits until it has ended; its outputs may still be read afterwards.
    pub async fn wait(&mut self) -> Result<ExitStatus, ExecServerError> {
        drop(self.stdin.take());
        self.session.wait().await.map(ExitStatus::from)
    }

    /// How it ended, if it has.
    pub fn try_wait(&self) -> Option<ExitStatus> {
        self.session.exit().map(ExitStatus::from)
    }

    /// Ends its input, waits for its end, and collects everything that it wrote.
    ///
    /// If the future is dropped, `kill_on_drop` decides about the command.
    pub async fn wait_with_output(mut self) -> Result<Output, ExecServerError> {
        drop(self.stdin.take());
        let output = collect_output(&self.session).await?;
        self.kill_on_drop = false;
        Ok(output)
    }

    /// Ends it and everything that came from it, at once.
    pub async fn kill(&mut self) -> Result<(), ExecServerError> {
        self.session.terminate(None).await?;
        self.session.wait().await.map(drop)
    }

    /// Asks it to end (SIGTERM), and ends it by force after `grace`.
    pub async fn terminate(&mut self, grace: Duration) -> Result<ExitStatus, ExecServerError> {
        self.session.terminate(Some(grace)).await?;
        self.session.wait().await.map(ExitStatus::from)
    }

    /// Sends a signal.
    pub async fn signal(&self, signal: ProcessSignal) -> Result<(), ExecServerError> {
        self.session.signal(signal).await
    }

    /// Gives its terminal a new size.
    pub async fn resize(&self, size: TerminalSize) -> Result<(), ExecServerError> {
        self.session.resize(size).await
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if self.kill_on_drop && !self.session.is_closed() {
            self.session.terminate_later();
        }
    }
}

/// One output of a command.
///
/// If some of it fell out of the server's retention before it could be read, one read fails with
/// [`io::ErrorKind::InvalidData`] in its place, and the next one goes on behind it.
pub struct ChildOutput {
    events: ProcessEvents,
    stream: OutputStream,
    rest: Bytes,
    is_over: bool,
}

impl ChildOutput {
    fn new(session: &ProcessSession, stream: OutputStream) -> Self {
        Self { events: session.events(), stream, rest: Bytes::new(), is_over: false }
    }

    fn poll_bytes(&mut self, cx: &mut Context) -> Poll<Result<Option<Bytes>, ExecServerError>> {
        if !self.rest.is_empty() {
            return Poll::Ready(Ok(Some(std::mem::take(&mut self.rest))));
        }
        while !self.is_over {
            match ready!(self.events.poll_event(cx)) {
                Some(ProcessEvent::Output { stream, bytes, .. }) => {
                    // A terminal has one output, and it counts as stdout.
                    let is_ours = match stream {
                        OutputStream::Pty => self.stream == OutputStream::Stdout,
                        stream => stream == self.stream,
                    };
                    if is_ours && !bytes.is_empty() {
                        return Poll::Ready(Ok(Some(bytes)));
                    }
                }
                Some(ProcessEvent::Gap(gap)) => {
                    let process_id = self.events.session().id().clone();
                    return Poll::Ready(Err(ExecServerError::OutputLost { process_id, gap }));
                }
                Some(ProcessEvent::Failed(reason)) => {
                    let process_id = self.events.session().id().clone();
                    self.is_over = true;
                    return Poll::Ready(Err(ExecServerError::ProcessFailed { process_id, reason }));
                }
                Some(ProcessEvent::Exited { .. } | ProcessEvent::ResyncRequired) => {}
                Some(ProcessEvent::Closed { .. }) | None => self.is_over = true,
            }
        }
        Poll::Ready(Ok(None))
    }
}

impl AsyncRead for ChildOutput {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context,
        buffer: &mut ReadBuf,
    ) -> Poll<io::Result<()>> {
        let Some(mut bytes) = ready!(self.poll_bytes(cx))? else { return Poll::Ready(Ok(())) };
        let count = bytes.len().min(buffer.remaining());
        buffer.put_slice(&bytes[..count]);
        bytes.advance(count);
        self.rest = bytes;
        Poll::Ready(Ok(()))
    }
}
