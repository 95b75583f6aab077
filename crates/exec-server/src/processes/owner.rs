//! The task that owns a running child: its output, its input, its end, and its memory of all that.
//!
//! One task per process and nobody else changes its state. The task numbers events and sends them itself, so the
//! order on the wire is the order of the numbers. Attached, it reads only what the client has room for; detached, it
//! reads everything and the oldest output falls out of the log, or nothing if the client asked for that.

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::io;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant, SystemTime};

use exec_server_machines::process_log::{Exit, ProcessLog};
use exec_server_machines::stdin_ledger::{Answer, StdinLedger};
use exec_server_os::spawn::{ExitStatus, Spawned};
use exec_server_os::{ChildInput, ChildOutput, ExitWatch, ProcessTree, RefusedCalls};
use exec_server_protocol::encode::OutputEncoder;
use exec_server_protocol::envelope;
use exec_server_protocol::limits::MAX_OUTPUT_CHUNK_BYTES;
use exec_server_protocol::methods::{PROCESS_CLOSED, PROCESS_EXITED};
use exec_server_protocol::path_uri::PathUri;
use exec_server_protocol::process::{
    Empty, ExitDetails, ExitReason, LimitsReport, OutputStream, ProcessClosedNotification,
    ProcessExitedNotification, ProcessId, ProcessReadParams, ProcessSignal, ProcessStartResponse,
    ProcessSummary, ProcessTerminateResponse, ProcessWriteResponse, ResourceUsage, SandboxReport,
    SandboxType, TerminalSize,
};
use exec_server_transport::outbox::{Outbox, Slot};
use tokio::sync::{mpsc, watch};

use super::Command;
use super::denial;
use super::ending::Ending;
use crate::errors::RequestError;
use crate::metrics::ActiveGuard;
use crate::reply::Reply;
use crate::sandbox::{NetworkUser, Placeholder};
use crate::server::Server;
use crate::sessions::ClientKind;
use crate::timings::sleep_until;

/// Output that is read in a row before the owner looks whether the child has ended.
const MAX_BURST: usize = 32;

/// What a message around a full chunk takes in the outbox.
const CHUNK_MESSAGE_BYTES: usize =
    exec_server_protocol::base64::encoded_len(MAX_OUTPUT_CHUNK_BYTES) + 512;

/// The reference client keeps 1 MiB of a process's events until somebody in it listens, and loses what does not fit.
/// So a process of its may write only half of that before its listener has had time to come.
const HEAD_START: Duration = Duration::from_millis(50);
const HEAD_START_BYTES: u64 = 512 * 1024;

/// How long a client that came back may take from one read of what it missed to the next, before output goes on anyway.
const CATCH_UP_PATIENCE: Duration = Duration::from_secs(10);

thread_local! {
    /// One buffer per thread instead of one per process: it is only used between two waits.
    static SCRATCH: RefCell<Vec<u8>> = RefCell::new(vec![0; MAX_OUTPUT_CHUNK_BYTES]);
}

/// What is known about a process from its start.
pub(super) struct Birth {
    pub id: ProcessId,
    pub argv: Vec<String>,
    pub cwd: PathUri,
    pub is_terminal: bool,
    pub retain_bytes: usize,
    pub retain_closed: Duration,
    /// Whether output waits while nobody is attached.
    pub waits_when_detached: bool,
    pub timeout: Option<Duration>,
    pub idle_timeout: Option<Duration>,
    pub client: ClientKind,
    /// What limits it.
    pub limits: LimitsReport,
    /// What confines it, and what must stay for as long.
    pub sandbox: Option<BirthSandbox>,
}

/// What a process has to do with its sandbox.
pub(super) struct BirthSandbox {
    pub placeholders: Vec<Placeholder>,
    pub network_user: Option<NetworkUser>,
    pub report: SandboxReport,
}

/// A running child and everything known about it.
pub(super) struct Owner {
    server: Arc<Server>,
    birth: Birth,
    pid: u32,
    started: Instant,
    started_at: SystemTime,
    log: ProcessLog,
    encoder: OutputEncoder,
    stdin: StdinLedger<Reply>,
    input: Option<ChildInput>,
    output: Option<ChildOutput>,
    error_output: Option<ChildOutput>,
    exit: Option<ExitWatch>,
    tree: ProcessTree,
    refused: RefusedCalls,
    ending: Ending,
    end_reason: Option<ExitReason>,
    is_forgotten_when_closed: bool,
    is_silent: bool,
    readers: Vec<WaitingReader>,
    attached: watch::Receiver<Option<Outbox>>,
    outbox: Option<Outbox>,
    /// Until when a client that came back is expected to read what it missed.
    catching_up_until: Option<Instant>,
    ready: Option<Source>,
    burst: usize,
    last_output: Instant,
    output_bytes: u64,
    /// When to look whether everything inside has ended, so that what stands in the workspace for it can go.
    next_clearing: Option<Instant>,
    /// Held until the process is closed.
    active: Option<ActiveGuard>,
}

struct WaitingReader {
    params: ProcessReadParams,
    deadline: Option<Instant>,
    reply: Reply,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Source {
    Output,
    ErrorOutput,
}

impl Owner {
    pub fn new(
        server: Arc<Server>,
        birth: Birth,
        spawned: Spawned,
        mut attached: watch::Receiver<Option<Outbox>>,
    ) -> Self {
        let now = Instant::now();
        let active = server.metrics.process();
        let outbox = attached.borrow_and_update().clone();
        Self {
            log: ProcessLog::new(birth.retain_bytes, birth.retain_closed),
            encoder: OutputEncoder::new(&birth.id),
            stdin: StdinLedger::new(spawned.input.is_some()),
            server,
            birth,
            pid: spawned.pid,
            started: now,
            started_at: SystemTime::now(),
            input: spawned.input,
            output: Some(spawned.output),
            error_output: spawned.error_output,
            exit: Some(spawned.exit),
            tree: spawned.tree,
            refused: spawned.refused,
            ending: Ending::default(),
            end_reason: None,
            is_forgotten_when_closed: false,
            is_silent: false,
            readers: Vec::new(),
            attached,
            outbox,
            catching_up_until: None,
            ready: None,
            burst: 0,
            last_output: now,
            output_bytes: 0,
            next_clearing: None,
            active: Some(active),
        }
    }

    /// The reply to the start request.
    pub fn start_response(&self) -> ProcessStartResponse {
        let sandbox = self.birth.sandbox.as_ref().map(|sandbox| sandbox.report.clone());
        let sandbox_type =
            if sandbox.is_some() { SandboxType::LinuxSeccomp } else { SandboxType::None };
        let limits = Some(&self.birth.limits).filter(|limits| !limits.is_empty()).cloned();
        ProcessStartResponse { process_id: self.birth.id.clone(), sandbox_type, sandbox, limits }
    }

    /// Nobody wants this process: it ends at once, and without a word.
    pub fn abandon(&mut self) {
        self.is_forgotten_when_closed = true;
        self.is_silent = true;
        self.outbox = None;
        self.end(ExitReason::Terminated, None);
    }

    /// Runs until the process is closed and forgotten.
    pub async fn run(&mut self, commands: &mut mpsc::UnboundedReceiver<Command>) {
        loop {
            self.settle();
            if self.is_done() {
                break;
            }
            let deadline = self.deadline();
            let is_attached = self.outbox.is_some();
            let may_read = !self.waits_for_listener() && !self.waits_for_client();
            let first = self.ready_first();
            tokio::select! {
                biased;
                command = commands.recv() => match command {
                    Some(command) => self.handle_command(command),
                    None => self.end(ExitReason::Terminated, None),
                },
                Ok(()) = self.attached.changed() => self.handle_attached(),
                () = sleep_until(deadline), if deadline.is_some() => self.handle_timeout(),
                result = write_pending(&self.input, &self.stdin), if self.stdin.pending().is_some() => {
                    self.handle_written(result);
                }
                slot = reserve(&self.outbox), if self.ready.is_some() && may_read => {
                    self.read_ready(slot);
                }
                source = readable(&self.output, &self.error_output, first),
                    if self.ready.is_none() && self.burst < MAX_BURST => self.ready = Some(source),
                status = wait_exit(&self.exit), if self.exit.is_some() && may_read => self.handle_exit(status),
                () = std::future::ready(()), if self.burst >= MAX_BURST => self.burst = 0,
            }
            if is_attached && self.outbox.as_ref().is_some_and(Outbox::is_closed) {
                self.outbox = None;
            }
        }
    }

    /// Whether output is held back until the client can be expected to listen.
    fn waits_for_listener(&self) -> bool {
        self.birth.client == ClientKind::Reference
            && self.outbox.is_some()
            && self.ready.is_some()
            && self.output_bytes >= HEAD_START_BYTES
            && self.started.elapsed() < HEAD_START
    }

    /// Whether output stays where it is until a client is attached again and has read what it missed; so it misses
    /// nothing, which more output would push out of the log.
    fn waits_for_client(&self) -> bool {
        self.birth.waits_when_detached
            && (self.outbox.is_none() || self.is_catching_up())
            && self.ready.is_some()
            && matches!(self.ending, Ending::Running)
    }

    fn is_catching_up(&self) -> bool {
        self.catching_up_until.is_some_and(|until| Instant::now() < until)
    }

    /// Does everything that follows from what is known now.
    fn settle(&mut self) {
        if self.stdin.is_closed() {
            self.input = None;
        }
        let has_streams = self.output.is_some() || self.error_output.is_some();
        if self.log.exit().is_some() && !has_streams && !self.log.is_closed() {
            let seq = self.log.handle_closed(Instant::now());
            let process_id = self.birth.id.clone();
            self.notify(PROCESS_CLOSED, &ProcessClosedNotification { process_id, seq });
            self.active = None;
        }
        self.answer_readers();
    }

    fn is_done(&self) -> bool {
        self.log.is_closed()
            && self.readers.is_empty()
            && (self.is_forgotten_when_closed
                || self.log.poll_timeout().is_some_and(|at| Instant::now() >= at))
            && !matches!(self.ending, Ending::Killing { .. } | Ending::Asked { .. })
            && self.next_clearing.is_none()
    }

    fn deadline(&self) -> Option<Instant> {
        let is_running = self.exit.is_some() && self.end_reason.is_none();
        let timeout = self.birth.timeout.filter(|_| is_running);
        let idle = self.birth.idle_timeout.filter(|_| is_running && !self.has_unread());
        [
            self.readers.iter().filter_map(|reader| reader.deadline).min(),
            self.ending.poll_timeout().filter(|_| self.is_still_ending() || self.is_draining()),
            // Until the end is complete nothing is forgotten, so there is nothing to wake up for.
            self.log.poll_timeout().filter(|_| !self.is_still_ending()),
            timeout.and_then(|timeout| self.started.checked_add(timeout)),
            idle.and_then(|idle| self.last_output.checked_add(idle)),
            self.waits_for_listener().then(|| self.started + HEAD_START),
            self.catching_up_until.filter(|_| self.outbox.is_some() && self.waits_for_client()),
            self.next_clearing,
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Whether all are gone but somebody else may still hold the streams.
    ///
    /// Not before the exit is known: a time that has passed would otherwise be handled for ever, ahead of the exit.
    fn is_draining(&self) -> bool {
        self.exit.is_none() && !self.log.is_closed()
    }

    /// Whether output waits until the client has room for it: the client is slow then, not the process.
    fn has_unread(&self) -> bool {
        self.ready.is_some()
    }

    fn is_still_ending(&self) -> bool {
        matches!(self.ending, Ending::Asked { .. } | Ending::Killing { .. })
    }

    pub fn handle_command(&mut self, command: Command) {
        match command {
            Command::StartAgain(reply) => reply.ok(&self.start_response()),
            Command::Read(params, reply) => self.handle_read(params, reply),
            Command::Write { id, bytes, reply } => {
                let answered = self.stdin.handle_write(reply, id, bytes);
                answered.into_iter().for_each(answer_write);
            }
            Command::CloseStdin(reply) => self.handle_close_stdin(reply),
            Command::Signal(signal, reply) => reply.finish(self.handle_signal(signal)),
            Command::Resize(size, reply) => reply.finish(self.handle_resize(size)),
            Command::Terminate { grace, reply } => {
                reply.ok(&ProcessTerminateResponse { running: self.exit.is_some() });
                // A closed process has let go of its streams, so what it left behind was meant to stay: it ends with
                // the session, or when a client asks for it with a grace of its own.
                if !self.log.is_closed() || grace.is_some() {
                    self.end(ExitReason::Terminated, grace);
                }
            }
            Command::Summarise(reply) => drop(reply.send(self.summary())),
            Command::End { reason, grace } => {
                self.is_forgotten_when_closed = true;
                self.end(reason, grace);
            }
        }
    }

    fn handle_read(&mut self, params: ProcessReadParams, reply: Reply) {
        let wait = Duration::from_millis(params.wait_ms.unwrap_or(0));
        let after = params.after_seq.unwrap_or(0);
        if wait.is_zero() || self.log.has_news(after) {
            let answer = self.log.read(after, params.max_bytes);
            let has_all = answer.next_seq >= self.log.next_seq();
            self.catching_up_until = self
                .catching_up_until
                .filter(|_| !has_all)
                .map(|_| Instant::now() + CATCH_UP_PATIENCE);
            reply.ok(&answer);
        } else {
            self.catching_up_until = None;
            let deadline = Instant::now().checked_add(wait);
            self.readers.push(WaitingReader { params, deadline, reply });
        }
    }

    fn answer_readers(&mut self) {
        if self.readers.is_empty() {
            return;
        }
        let now = Instant::now();
        let log = &self.log;
        let due = self.readers.extract_if(.., |reader| {
            log.has_news(reader.params.after_seq.unwrap_or(0))
                || reader.deadline.is_some_and(|deadline| now >= deadline)
                || reader.reply.outbox().is_closed()
        });
        for reader in due {
            reader
                .reply
                .ok(&log.read(reader.params.after_seq.unwrap_or(0), reader.params.max_bytes));
        }
    }

    fn handle_close_stdin(&mut self, reply: Reply) {
        // On a terminal the end of input is a character of the line discipline, not the end of the stream.
        const END_OF_INPUT: u8 = 0x04;
        let answered = if self.birth.is_terminal {
            self.stdin.handle_write(reply, None, vec![END_OF_INPUT])
        } else {
            self.stdin.handle_close(reply)
        };
        answered.into_iter().for_each(answer_write);
    }

    fn handle_signal(&mut self, signal: ProcessSignal) -> Result<Empty, RequestError> {
        let number = exec_server_os::signal_number(signal);
        self.tree.signal(number).map_err(RequestError::Signal)?;
        Ok(Empty {})
    }

    fn handle_resize(&mut self, size: TerminalSize) -> Result<Empty, RequestError> {
        if !self.birth.is_terminal {
            return Err(RequestError::NoTerminal(self.birth.id.to_string()));
        }
        if let Some(input) = &self.input {
            input.resize(size).map_err(RequestError::Resize)?;
        }
        Ok(Empty {})
    }

    fn handle_attached(&mut self) {
        self.outbox = self.attached.borrow_and_update().clone().filter(|_| !self.is_silent);
        self.catching_up_until = Some(Instant::now() + CATCH_UP_PATIENCE);
    }

    fn handle_timeout(&mut self) {
        let now = Instant::now();
        if self.next_clearing.is_some_and(|at| now >= at) {
            self.clear_placeholders(now);
        }
        let drain = self.server.config.timings.drain_after_kill;
        if self.ending.handle_timeout(&self.tree, now, drain) && self.exit.is_none() {
            self.output = None;
            self.error_output = None;
            self.ready = None;
        }
        if self.exit.is_none() || self.end_reason.is_some() {
            return;
        }
        let is_over = |since: Instant, limit: Option<Duration>| {
            limit.and_then(|limit| since.checked_add(limit)).is_some_and(|at| now >= at)
        };
        let grace = Some(self.server.config.timings.kill_grace);
        if is_over(self.started, self.birth.timeout) {
            self.end(ExitReason::Timeout, grace);
        } else if is_over(self.last_output, self.birth.idle_timeout) && !self.has_unread() {
            self.end(ExitReason::IdleTimeout, grace);
        }
    }

    fn end(&mut self, reason: ExitReason, grace: Option<Duration>) {
        if self.exit.is_some() {
            self.end_reason.get_or_insert(reason);
        }
        let drain = self.server.config.timings.drain_after_kill;
        let now = Instant::now();
        self.ending.begin(&self.tree, now, grace, drain);
        if self.exit.is_none() {
            self.ending.handle_root_ended(now);
        }
    }

    fn handle_written(&mut self, result: io::Result<usize>) {
        match result {
            Ok(count) => {
                self.stdin.handle_taken(count, |reply, answer| answer_write((reply, answer)))
            }
            // The child closed its end, or is gone.
            Err(_) => self.stdin.close_now(|reply, answer| answer_write((reply, answer))),
        }
    }

    /// Reads one chunk, keeps it, and sends it if somebody listens.
    fn read_ready(&mut self, slot: Option<Slot>) {
        let Some(source) = self.ready.take() else { return };
        let (stream, child_output) = match source {
            Source::Output if self.birth.is_terminal => (OutputStream::Pty, &mut self.output),
            Source::Output => (OutputStream::Stdout, &mut self.output),
            Source::ErrorOutput => (OutputStream::Stderr, &mut self.error_output),
        };
        SCRATCH.with_borrow_mut(|scratch| {
            match child_output.as_mut().map(|output| output.read_now(scratch)) {
                None | Some(Ok(None)) => {}
                Some(Ok(Some(0)) | Err(_)) => *child_output = None,
                Some(Ok(Some(count))) => {
                    self.burst += 1;
                    self.last_output = Instant::now();
                    self.output_bytes += count as u64;
                    self.server.metrics.output(count);
                    let bytes = &scratch[..count];
                    let seq = self.log.handle_output(stream, bytes);
                    if let (Some(outbox), Some(slot)) = (&self.outbox, slot) {
                        outbox.push_bulk(slot, self.encoder.output(seq, stream, bytes));
                    }
                }
            }
        });
    }

    /// Which stream is asked first: they take turns.
    fn ready_first(&self) -> Source {
        if self.burst.is_multiple_of(2) { Source::Output } else { Source::ErrorOutput }
    }

    fn handle_exit(&mut self, status: io::Result<ExitStatus>) {
        let duration = self.started.elapsed();
        self.exit = None;
        self.tree.handle_root_reaped();
        if let Some(sandbox) = &mut self.birth.sandbox {
            sandbox.network_user = None;
        }
        self.clear_placeholders(Instant::now());
        self.ending.handle_root_ended(Instant::now());
        self.stdin.close_now(|reply, answer| answer_write((reply, answer)));
        let exit = match status {
            Ok(status) => self.describe_exit(status, duration),
            // Somebody else reaped our child; what it was is lost, and -1 says so.
            Err(error) => {
                tracing::error!(%error, process_id = %self.birth.id, "could not learn how a process ended");
                Exit { code: -1, sandbox_denied: false, details: ExitDetails::default() }
            }
        };
        self.server.metrics.process_exited(duration.as_secs_f64());
        if exit.sandbox_denied {
            self.server.metrics.sandbox_denial();
        }
        // It has been judged, so its memory can go.
        self.refused = RefusedCalls::default();
        tracing::debug!(process_id = %self.birth.id, pid = self.pid, exit_code = exit.code, "process exited");
        let seq = self.log.handle_exit(exit.clone());
        let notification = ProcessExitedNotification {
            process_id: self.birth.id.clone(),
            seq,
            exit_code: exit.code,
            sandbox_denied: exit.sandbox_denied,
            details: exit.details,
        };
        self.notify(PROCESS_EXITED, &notification);
    }

    /// A launcher that was killed may be gone a moment before what it launched, which could take a name that is free.
    fn clear_placeholders(&mut self, now: Instant) {
        const PAUSE: Duration = Duration::from_millis(2);
        let Some(sandbox) = &mut self.birth.sandbox else { return };
        self.next_clearing = None;
        if sandbox.placeholders.is_empty() || self.tree.is_empty() {
            sandbox.placeholders.clear();
        } else {
            self.next_clearing = Some(now + PAUSE);
        }
    }

    fn describe_exit(&self, status: ExitStatus, duration: Duration) -> Exit {
        let reason = match (self.end_reason, status.signal) {
            (Some(reason), _) => reason,
            (None, None) => ExitReason::Exited,
            (None, Some(signal)) if signal == exec_server_os::SIGKILL && self.was_oom_killed() => {
                ExitReason::OomKilled
            }
            (None, Some(_)) => ExitReason::Signaled,
        };
        let details = ExitDetails {
            signal: status.signal.map(exec_server_os::signal_name),
            reason: Some(reason),
            duration_ms: Some(millis(duration)),
            rusage: Some(ResourceUsage {
                user_ms: millis(status.user),
                system_ms: millis(status.system),
                max_rss_bytes: status.max_rss,
            }),
        };
        let sandbox_denied = self.birth.sandbox.is_some()
            && denial::looks_denied(status.code, self.refused.count(), &self.log.read(0, None));
        Exit { code: status.code, sandbox_denied, details }
    }

    /// A cgroup counts its own kills, and the machine only all of them.
    fn was_oom_killed(&self) -> bool {
        self.tree.had_oom_kill().unwrap_or_else(|| self.server.oom.take_kill())
    }

    fn notify(&self, method: &str, params: &impl serde::Serialize) {
        if let Some(outbox) = &self.outbox {
            outbox.push_in_order(envelope::notification(method, params));
        }
    }

    fn summary(&self) -> ProcessSummary {
        let exit = self.log.exit();
        let since_1970 = self.started_at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        ProcessSummary {
            process_id: self.birth.id.clone(),
            pid: self.pid,
            argv: self.birth.argv.clone(),
            cwd: self.birth.cwd.clone(),
            tty: self.birth.is_terminal,
            started_at_ms: millis(since_1970),
            next_seq: self.log.next_seq(),
            exited: exit.is_some(),
            exit_code: exit.map(|exit| exit.code),
            closed: self.log.is_closed(),
            details: exit.map(|exit| exit.details.clone()).unwrap_or_default(),
        }
    }
}

fn answer_write((reply, answer): (Reply, Answer)) {
    match answer {
        Answer::Status(status) => reply.ok(&ProcessWriteResponse { status }),
        Answer::Overloaded => reply.fail(&RequestError::StdinOverloaded),
    }
}

/// Room for one chunk, or none needed when nobody listens.
async fn reserve(outbox: &Option<Outbox>) -> Option<Slot> {
    match outbox {
        Some(outbox) => outbox.reserve(CHUNK_MESSAGE_BYTES).await.ok(),
        None => None,
    }
}

fn readable(
    output: &Option<ChildOutput>,
    error_output: &Option<ChildOutput>,
    first: Source,
) -> impl Future<Output = Source> {
    poll_fn(move |cx| {
        let mut is_ready = |source| {
            let stream = if source == Source::Output { output } else { error_output };
            stream.as_ref().is_some_and(|stream| stream.poll_readable(cx).is_ready())
        };
        let second = if first == Source::Output { Source::ErrorOutput } else { Source::Output };
        if is_ready(first) {
            Poll::Ready(first)
        } else if is_ready(second) {
            Poll::Ready(second)
        } else {
            Poll::Pending
        }
    })
}

fn write_pending(
    input: &Option<ChildInput>,
    stdin: &StdinLedger<Reply>,
) -> impl Future<Output = io::Result<usize>> {
    poll_fn(move |cx| match (input, stdin.pending()) {
        (Some(input), Some(bytes)) => input.poll_write(cx, bytes),
        _ => Poll::Pending,
    })
}

fn wait_exit(exit: &Option<ExitWatch>) -> impl Future<Output = io::Result<ExitStatus>> {
    poll_fn(move |cx| match exit {
        Some(exit) => exit.poll_exit(cx),
        None => Poll::Pending,
    })
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
