//! Requests about a process: the process task answers each, now or later.

use std::time::{Duration, Instant};

use exec_server_core::read_waiters::ReadWaiters;
use exec_server_protocol::process::{
    Empty, ExitReason, ProcessReadParams, ProcessSignal, ProcessSummary, ProcessTerminateResponse,
    TerminalSize,
};
use tokio::sync::oneshot;

use super::{ProcessTask, answer_write, since_1970_ms};
use crate::errors::RequestError;
use crate::reply::Reply;

/// A request to the process task.
///
/// The queue is unbounded, because requests are bounded per connection and the task handles commands first.
#[derive(Debug)]
pub enum Command {
    /// The client repeated the start request after a lost connection.
    StartAgain(Reply),
    /// `process/read`.
    Read(ProcessReadParams, Reply),
    /// `process/write`.
    Write {
        /// A repeated id is applied once.
        id: Option<String>,
        bytes: Vec<u8>,
        reply: Reply,
    },
    /// `process/closeStdin`.
    CloseStdin(Reply),
    /// `process/signal`.
    Signal(ProcessSignal, Reply),
    /// `process/resize`.
    Resize(TerminalSize, Reply),
    /// `process/terminate`.
    Terminate {
        /// The time from SIGTERM to SIGKILL; none sends SIGKILL at once.
        grace: Option<Duration>,
        reply: Reply,
    },
    /// Drop the record of a closed process to make room for another.
    Forget,
    /// Part of `process/list`.
    Summarise(oneshot::Sender<ProcessSummary>),
    /// The session or the server ends: terminate the process and drop its record.
    End {
        reason: ExitReason,
        /// The time from SIGTERM to SIGKILL; none sends SIGKILL at once.
        grace: Option<Duration>,
    },
}

impl ProcessTask {
    /// Handles a command; the process is killed if the session has dropped the sender.
    pub(super) fn handle_command_or_end(&mut self, command: Option<Command>) {
        match command {
            Some(command) => self.handle_command(command),
            None => self.terminate(ExitReason::Terminated, None),
        }
    }

    pub fn handle_command(&mut self, command: Command) {
        match command {
            Command::StartAgain(reply) => reply.ok(&self.start_response()),
            Command::Read(params, reply) => self.handle_read(params, reply),
            Command::Write { id, bytes, reply } => {
                if let Some((reply, answer)) = self.stdin.handle_write(reply, id, bytes) {
                    answer_write(reply, answer);
                }
            }
            Command::CloseStdin(reply) => self.handle_close_stdin(reply),
            Command::Signal(signal, reply) => reply.finish(self.handle_signal(signal)),
            Command::Resize(size, reply) => reply.finish(self.handle_resize(size)),
            Command::Terminate { grace, reply } => {
                reply.ok(&ProcessTerminateResponse { running: self.child.is_running() });
                // A closed process has closed its streams, so a daemon that it left was meant to stay. The daemon is
                // terminated with the session, or by a request with a grace of its own.
                if !self.log.is_closed() || grace.is_some() {
                    self.terminate(ExitReason::Terminated, grace);
                }
            }
            Command::Forget => self.record.is_forgotten_when_closed = true,
            Command::Summarise(reply) => drop(reply.send(self.summary())),
            Command::End { reason, grace } => {
                self.record.is_forgotten_when_closed = true;
                self.terminate(reason, grace);
            }
        }
    }

    fn handle_read(&mut self, params: ProcessReadParams, reply: Reply) {
        if params.view.is_some() {
            return self.answer_view(params, reply);
        }
        if !ReadWaiters::<Reply>::must_wait(&params, &self.log) {
            return self.answer_read(&params, reply);
        }
        // A read with `until` returns no output, so it confirms nothing.
        if params.until.is_none() {
            self.note_read(&reply, params.after_seq.unwrap_or(0), self.log.next_seq());
        }
        self.readers.push(Instant::now(), params, reply);
    }

    /// A read by the attached client shows which events it has; a read over another connection does not.
    pub(super) fn note_read(&mut self, reply: &Reply, after: u64, next_seq: u64) {
        // The client may read before this task has seen that it is attached.
        if self.link.attached.has_changed().unwrap_or(false) {
            self.handle_attached();
        }
        if self.link.is_to(reply.outbox()) {
            self.gate.handle_read(after, next_seq.saturating_sub(1), &self.log);
        }
    }

    /// Answers from the log, once there is memory for the answer.
    fn answer_read(&mut self, params: &ProcessReadParams, mut reply: Reply) {
        if params.until.is_some() {
            return reply.ok(&self.log.state());
        }
        let after = params.after_seq.unwrap_or(0);
        if self.is_in_spool(after) {
            return self.answer_from_spool(params, after, reply);
        }
        let bytes = self.log.read_bytes(after, params.max_bytes);
        if !reply.try_reserve(bytes) {
            return self.unread.wait(params.clone(), reply, bytes);
        }
        let mut answer = self.log.read(after, params.max_bytes);
        if params.timestamps {
            self.log.add_times(&mut answer);
        }
        answer.extent = self.extent_of_spool();
        self.note_read(&reply, after, answer.next_seq);
        reply.ok_sized(&answer, bytes);
    }

    /// Memory for an answer was reserved; none if the connection of the read has closed.
    pub(super) fn handle_reserved(&mut self, read: Option<(ProcessReadParams, Reply)>) {
        if let Some((params, reply)) = read {
            self.answer_read(&params, reply);
        }
    }

    pub(super) fn answer_readers(&mut self, now: Instant) {
        if self.readers.is_empty() {
            return;
        }
        let due = self.readers.take_due(now, &self.log, |reply| reply.outbox().is_closed());
        for (params, reply) in due {
            self.answer_read(&params, reply);
        }
    }

    fn handle_close_stdin(&mut self, reply: Reply) {
        // On a terminal the end of input is a character of the line discipline, not the end of the stream.
        const END_OF_INPUT: u8 = 0x04;
        let answered = if self.config.is_terminal {
            self.stdin.handle_write(reply, None, vec![END_OF_INPUT])
        } else {
            self.stdin.handle_close(reply)
        };
        if let Some((reply, answer)) = answered {
            answer_write(reply, answer);
        }
    }

    fn handle_signal(&mut self, signal: ProcessSignal) -> Result<Empty, RequestError> {
        let number = exec_server_os::signal_number(signal);
        self.child.tree.signal(number).map_err(RequestError::Signal)?;
        Ok(Empty {})
    }

    fn handle_resize(&mut self, size: TerminalSize) -> Result<Empty, RequestError> {
        if !self.config.is_terminal {
            return Err(RequestError::NoTerminal(self.config.id.to_string()));
        }
        if let Some(input) = &self.child.input {
            input.resize(size).map_err(RequestError::Resize)?;
        }
        Ok(Empty {})
    }

    fn summary(&self) -> ProcessSummary {
        let exit = self.log.exit();
        ProcessSummary {
            process_id: self.config.id.clone(),
            pid: self.child.pid,
            argv: self.config.argv.clone(),
            cwd: self.config.cwd.clone(),
            tty: self.config.is_terminal,
            user: self
                .config
                .user
                .clone()
                .or_else(|| self.server.environment.host.as_ref()?.user.clone()),
            started_at_ms: since_1970_ms(self.child.started_at),
            next_seq: self.log.next_seq(),
            exited: exit.is_some(),
            exit_code: exit.map(|exit| exit.code),
            closed: self.log.is_closed(),
            details: exit.map(|exit| exit.details.clone()).unwrap_or_default(),
        }
    }
}
