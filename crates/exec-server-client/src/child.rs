//! A running command with its stdin, stdout and stderr as byte streams.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, Bytes};
use exec_server_core::event_order::{ProcessEvent, ProcessExit};
use exec_server_protocol::process::{
    ExitDetails, OutputStream, ProcessId, ProcessSignal, TerminalSize,
};
use tokio::io::{AsyncRead, ReadBuf};

use crate::child_stdin::ChildStdin;
use crate::command::collect_output;
use crate::error::ExecServerError;
use crate::events::ProcessEvents;
use crate::process::ProcessSession;

/// A command that runs on the server; created by [`Command::spawn`](crate::Command::spawn).
pub struct Child {
    /// The command's stdin; dropping it closes a pipe, on a server that supports `process/closeStdin`.
    pub stdin: Option<ChildStdin>,
    /// The command's stdout, or the output of its terminal.
    pub stdout: Option<ChildOutput>,
    /// The command's stderr; `None` with a terminal.
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

/// The exit status and the collected output of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Output {
    /// The exit code, the signal and details.
    pub status: ExitStatus,
    /// The complete stdout, or the complete output of the terminal.
    pub stdout: Vec<u8>,
    /// The complete stderr; empty with a terminal.
    pub stderr: Vec<u8>,
}

impl Output {
    /// Decodes stdout as UTF-8 and replaces invalid sequences.
    pub fn stdout_text(&self) -> std::borrow::Cow<'_, str> {
        String::from_utf8_lossy(&self.stdout)
    }

    /// Decodes stderr as UTF-8 and replaces invalid sequences.
    pub fn stderr_text(&self) -> std::borrow::Cow<'_, str> {
        String::from_utf8_lossy(&self.stderr)
    }
}

impl ExitStatus {
    /// Whether the exit code is 0.
    pub fn success(&self) -> bool {
        self.code == 0
    }

    /// The exit code, 0 to 255; for a signal, 128 plus its number.
    pub fn code(&self) -> i32 {
        self.code
    }

    /// The signal that ended the command, such as `SIGKILL`, if the server reports it.
    pub fn signal(&self) -> Option<&str> {
        self.details.signal.as_deref()
    }

    /// Whether the sandbox denied an operation and the command failed because of it; `None` if unknown.
    pub fn sandbox_denied(&self) -> Option<bool> {
        self.sandbox_denied
    }

    /// Further details of the exit: its cause, the run time, the resource usage.
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

    /// The process id within the session.
    pub fn id(&self) -> &ProcessId {
        self.session.id()
    }

    /// The operating system's id of the process, on a server that reports it.
    pub fn pid(&self) -> Option<u32> {
        self.session.pid()
    }

    /// The process with all operations of the protocol.
    pub fn session(&self) -> &ProcessSession {
        &self.session
    }

    /// Closes stdin and waits until the command has exited; its output can still be read afterwards.
    pub async fn wait(&mut self) -> Result<ExitStatus, ExecServerError> {
        drop(self.stdin.take());
        self.session.wait().await.map(ExitStatus::from)
    }

    /// The exit status, if the command has exited.
    pub fn try_wait(&self) -> Option<ExitStatus> {
        self.session.exit().map(ExitStatus::from)
    }

    /// Closes stdin, waits until the command has exited, and collects its output.
    ///
    /// Dropping the future terminates the command only if `kill_on_drop` is set.
    pub async fn wait_with_output(mut self) -> Result<Output, ExecServerError> {
        drop(self.stdin.take());
        let output = collect_output(&self.session).await?;
        self.kill_on_drop = false;
        Ok(output)
    }

    /// Kills the command and its descendants, and waits until the command has exited.
    pub async fn kill(&mut self) -> Result<(), ExecServerError> {
        self.session.terminate(None).await?;
        self.session.wait().await.map(drop)
    }

    /// Sends SIGTERM, kills the command after `grace`, and waits until it has exited.
    pub async fn terminate(&mut self, grace: Duration) -> Result<ExitStatus, ExecServerError> {
        self.session.terminate(Some(grace)).await?;
        self.session.wait().await.map(ExitStatus::from)
    }

    /// Sends a signal; see [`ProcessSession::signal`].
    pub async fn signal(&self, signal: ProcessSignal) -> Result<(), ExecServerError> {
        self.session.signal(signal).await
    }

    /// Changes the size of the terminal; see [`ProcessSession::resize`].
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

/// One output stream of a command.
///
/// If the server evicted output before it was read, one read fails with [`io::ErrorKind::InvalidData`] in place of
/// the gap, and the next read continues after the gap.
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
                    // A terminal has one output stream, which is delivered as stdout.
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
