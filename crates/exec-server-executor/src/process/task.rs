//! The task that owns one running process until its record expires.
//!
//! Only this task changes the state of the process. It numbers events and sends them itself, so the order on the wire
//! is the order of the numbers. The rules are machines in `exec-server-core`; this file connects them to the child
//! (`child`), the client (`link`) and the session (`commands`).
//!
//! Attached, it reads only what the client has room for. Detached, it reads everything, and the oldest output is
//! evicted from the log. With `waitWhenDetached` the gate stays shut instead.

mod child;
pub mod commands;
mod exit;
mod link;
mod placeholders;
mod views;

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime};

use exec_server_core::output_gate::{Confirmation, GateInput, GateRules, OutputGate};
use exec_server_core::process_log::ProcessLog;
use exec_server_core::read_waiters::ReadWaiters;
use exec_server_core::stdin_ledger::{Answer, StdinLedger};
use exec_server_core::termination::{Step, Termination};
use exec_server_core::time_limits::{IdleTimer, TimeLimits};
use exec_server_os::spawn::{ExitStatus, Spawned};
use exec_server_protocol::duration::millis;
use exec_server_protocol::methods::{PROCESS_CLOSED, PROCESS_EXITED};
use exec_server_protocol::process::{
    ExitReason, ProcessClosedNotification, ProcessExitedNotification, ProcessStartResponse,
    ProcessWriteResponse,
};
use exec_server_protocol::trace_context::TraceContext;
use exec_server_sandbox::RefusedCalls;
use exec_server_transport::outbox::{Outbox, Slot};
use exec_server_transport::spans::Span;
use tokio::sync::{OwnedSemaphorePermit, mpsc, watch};
use tokio::task::JoinSet;

use super::config::ProcessConfig;
use super::unread::UnreadAnswers;
use super::{ClosedMark, Command};
use crate::errors::RequestError;
use crate::metrics::ActiveGuard;
use crate::reply::Reply;
use crate::request_spans::{end_process_span, process_span};
use crate::server::Server;
use crate::sessions::ClientKind;
use crate::spool::{self, Spool};
use crate::timings::sleep_until;
use child::Child;
use link::{Link, confirmation, reserve};
use placeholders::PlaceholderRelease;

/// The state of one process.
pub(super) struct ProcessTask {
    server: Arc<Server>,
    config: ProcessConfig,
    child: Child,
    link: Link,
    log: ProcessLog,
    gate: OutputGate,
    stdin: StdinLedger<Reply>,
    readers: ReadWaiters<Reply>,
    /// Boxed, because few processes have one.
    spool: Option<Box<Spool>>,
    /// Reads of the spool, and views.
    views: JoinSet<()>,
    unread: UnreadAnswers,
    time_limits: TimeLimits,
    termination: Termination,
    placeholders: PlaceholderRelease,
    record: Record,
}

/// What the session and the metrics know of the process.
struct Record {
    is_forgotten_when_closed: bool,
    /// Counts the process as active until it is closed.
    active: Option<ActiveGuard>,
    closed: ClosedMark,
    /// Ends with the exit.
    span: Span,
}

impl ProcessTask {
    pub fn new(
        server: Arc<Server>,
        config: ProcessConfig,
        spawned: Spawned,
        spool: Option<Spool>,
        attached: watch::Receiver<Option<Outbox>>,
        closed: ClosedMark,
        trace: Option<&TraceContext>,
    ) -> Self {
        let child = Child::new(spawned, config.is_terminal);
        let span = process_span(&server.config.tracer, trace, &config, child.pid);
        let gate = OutputGate::new(GateRules {
            started: child.started,
            retain_bytes: config.retain_bytes,
            is_reference_client: config.client == ClientKind::Reference,
            waits_when_detached: config.waits_when_detached,
        });
        Self {
            link: Link::new(&config.id, attached),
            log: ProcessLog::new(config.retain_bytes, config.retain_closed),
            gate,
            stdin: StdinLedger::new(child.input.is_some()),
            readers: ReadWaiters::default(),
            spool: spool.map(Box::new),
            views: JoinSet::new(),
            unread: UnreadAnswers::default(),
            time_limits: TimeLimits::new(child.started, config.timeout, config.idle_timeout),
            termination: Termination::new(server.config.timings.drain_after_kill),
            placeholders: PlaceholderRelease::default(),
            record: Record {
                is_forgotten_when_closed: false,
                active: Some(server.metrics.process()),
                closed,
                span,
            },
            server,
            config,
            child,
        }
    }

    pub fn start_response(&self) -> ProcessStartResponse {
        self.config.start_response(self.child.pid)
    }

    /// Kills a process whose start was cancelled, and sends no event about it.
    pub fn abandon(&mut self) {
        self.record.is_forgotten_when_closed = true;
        self.link.silence();
        self.terminate(ExitReason::Terminated, None);
    }

    /// Runs until the process is closed and its record has expired.
    pub async fn run(&mut self, commands: &mut mpsc::UnboundedReceiver<Command>) {
        loop {
            let now = Instant::now();
            self.settle(now);
            if self.is_done(now) {
                break;
            }
            let deadline = self.deadline(now);
            let has_spool_room = self.spool.as_mut().is_none_or(|spool| spool.has_room());
            let may_read =
                !self.child.is_ready() || has_spool_room && self.gate.is_open(self.gate_input(now));
            tokio::select! {
                biased;
                command = commands.recv() => self.handle_command_or_end(command),
                read = self.unread.next(), if self.unread.is_waiting() => self.handle_reserved(read),
                Ok(()) = self.link.attached.changed() => self.handle_attached(),
                confirmation = confirmation(&mut self.link.mark), if self.gate.awaits_confirmation() => {
                    self.handle_confirmation(confirmation);
                }
                () = sleep_until(deadline), if deadline.is_some() => self.handle_timeout(),
                result = self.child.write(self.stdin.pending()), if self.stdin.pending().is_some() => {
                    self.handle_written(result);
                }
                slot = reserve(&self.link.outbox), if self.child.is_ready() && may_read => self.read_ready(slot),
                room = spool::room(self.spool.as_deref()), if self.child.is_ready() && !has_spool_room => {
                    self.handle_spool_room(room);
                }
                Some(_) = self.views.join_next(), if !self.views.is_empty() => {}
                source = self.child.readable(), if self.child.wants_readable() => self.child.set_ready(source),
                status = self.child.exited(), if self.child.is_running() && may_read => self.handle_exit(status),
                () = std::future::ready(()), if self.child.is_burst_over() => self.child.start_burst(),
            }
        }
    }

    /// Does everything that follows from the present state.
    fn settle(&mut self, now: Instant) {
        self.link.drop_closed();
        if self.stdin.is_closed() {
            self.child.input = None;
        }
        if self.log.exit().is_some() && !self.child.has_streams() && !self.log.is_closed() {
            self.handle_closed(now);
        }
        self.answer_readers(now);
        let input = GateInput {
            now,
            log: &self.log,
            is_attached: self.link.is_attached(),
            is_ending: self.termination.is_requested(),
        };
        if self.gate.poll_mark(input) {
            self.link.send_mark();
        }
    }

    fn is_done(&self, now: Instant) -> bool {
        self.log.is_closed()
            && self.readers.is_empty()
            && !self.unread.is_waiting()
            && self.views.is_empty()
            && (self.record.is_forgotten_when_closed
                || self.log.poll_timeout().is_some_and(|at| now >= at))
            && !self.termination.is_in_progress()
            && self.placeholders.poll_timeout().is_none()
    }

    fn deadline(&self, now: Instant) -> Option<Instant> {
        let is_terminating = self.termination.is_in_progress();
        let is_expiring = !is_terminating && !self.unread.is_waiting() && self.views.is_empty();
        [
            self.readers.poll_timeout(),
            self.termination.poll_timeout().filter(|_| is_terminating || !self.log.is_closed()),
            // The record cannot expire during a termination or a waiting read, so no wake-up is needed.
            self.log.poll_timeout().filter(|_| is_expiring),
            self.time_limits.poll_timeout(self.idle_timer()).filter(|_| self.has_time_limits()),
            self.gate.poll_timeout(self.gate_input(now)).filter(|_| self.child.is_ready()),
            self.placeholders.poll_timeout(),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    fn gate_input(&self, now: Instant) -> GateInput<'_> {
        let is_attached = self.link.is_attached();
        GateInput { now, log: &self.log, is_attached, is_ending: self.termination.is_requested() }
    }

    fn has_time_limits(&self) -> bool {
        self.child.is_running() && self.termination.reason().is_none()
    }

    fn idle_timer(&self) -> IdleTimer {
        if self.child.is_ready() { IdleTimer::Paused } else { IdleTimer::Runs }
    }

    fn handle_attached(&mut self) {
        self.link.update();
        self.gate.handle_link_changed();
    }

    fn handle_confirmation(&mut self, confirmation: Confirmation) {
        self.link.mark = None;
        self.gate.handle_confirmation(Instant::now(), confirmation);
    }

    fn handle_timeout(&mut self) {
        let now = Instant::now();
        self.placeholders.handle_timeout(now, &mut self.config.sandbox, &self.child.tree);
        let step = self.termination.handle_timeout(now);
        self.perform(now, step);
        if self.has_time_limits()
            && let Some(reason) = self.time_limits.exceeded(now, self.idle_timer())
        {
            self.terminate(reason, Some(self.server.config.timings.kill_grace));
        }
    }

    fn terminate(&mut self, reason: ExitReason, grace: Option<Duration>) {
        let now = Instant::now();
        let step = self.termination.handle_request(now, reason, grace);
        self.perform(now, step);
    }

    fn perform(&mut self, now: Instant, step: Option<Step>) {
        let is_tree_empty = match step {
            None => false,
            Some(Step::Ask) => {
                if let Err(error) = self.child.tree.signal(exec_server_os::SIGTERM) {
                    tracing::debug!(%error, process_id = %self.config.id, "could not send SIGTERM to a process");
                }
                false
            }
            Some(Step::Kill) => self.child.tree.kill_pass() == 0,
            Some(Step::Look) => self.child.tree.is_empty(),
            Some(Step::CloseStreams) => {
                self.child.close_output();
                false
            }
        };
        if is_tree_empty {
            self.termination.handle_tree_empty(now);
        }
    }

    fn handle_written(&mut self, result: io::Result<usize>) {
        match result {
            Ok(count) => self.stdin.handle_taken(count, answer_write),
            // The child closed its end or has exited.
            Err(_) => self.stdin.close_now(answer_write),
        }
    }

    /// Reads one chunk, records it, and sends it if a client is attached.
    fn read_ready(&mut self, slot: Option<Slot>) {
        self.child.read_ready(|stream, bytes| {
            self.time_limits.handle_output(Instant::now());
            self.gate.handle_output(bytes.len());
            self.server.metrics.output(bytes.len());
            let at_ms = since_1970_ms(SystemTime::now());
            let seq = self.log.handle_output(stream, bytes, at_ms);
            if let Some(spool) = &mut self.spool {
                spool.push(seq, stream, at_ms, bytes);
            }
            if self.link.send_output(slot, seq, stream, bytes) {
                self.gate.handle_pushed(seq, bytes.len());
            }
        });
    }

    fn handle_spool_room(&mut self, room: Option<OwnedSemaphorePermit>) {
        if let Some(spool) = &mut self.spool {
            spool.handle_room(room);
        }
    }

    fn handle_exit(&mut self, status: io::Result<ExitStatus>) {
        let duration = self.child.started.elapsed();
        let now = Instant::now();
        self.child.handle_reaped();
        self.placeholders.handle_root_exited(now, &mut self.config.sandbox, &self.child.tree);
        self.termination.handle_root_exited(now);
        self.stdin.close_now(answer_write);
        self.config.has_exited.store(true, Ordering::Release);
        let exit = self.describe_exit(status, duration);
        self.server.metrics.process_exited(duration.as_secs_f64());
        if exit.sandbox_denied {
            self.server.metrics.sandbox_denial();
        }
        // The counter is shared memory that nothing reads after this.
        if let Some(sandbox) = &mut self.config.sandbox {
            sandbox.refused = RefusedCalls::default();
        }
        tracing::debug!(process_id = %self.config.id, pid = self.child.pid, exit_code = exit.code, "process exited");
        self.record_exit(&exit);
        end_process_span(std::mem::take(&mut self.record.span), &exit);
        let seq = self.log.handle_exit(exit.clone());
        let notification = ProcessExitedNotification {
            process_id: self.config.id.clone(),
            seq,
            exit_code: exit.code,
            sandbox_denied: exit.sandbox_denied,
            details: exit.details,
        };
        self.notify(PROCESS_EXITED, seq, &notification);
    }

    fn handle_closed(&mut self, now: Instant) {
        let seq = self.log.handle_closed(now);
        if let Some(spool) = &mut self.spool {
            spool.handle_closed();
        }
        let process_id = self.config.id.clone();
        self.notify(PROCESS_CLOSED, seq, &ProcessClosedNotification { process_id, seq });
        self.record.active = None;
        self.record.closed.set();
    }

    fn notify(&mut self, method: &str, seq: u64, params: &impl serde::Serialize) {
        if self.link.notify(method, params) {
            self.gate.handle_pushed(seq, 0);
        }
    }
}

fn answer_write(reply: Reply, answer: Answer) {
    match answer {
        Answer::Status(status) => reply.ok(&ProcessWriteResponse { status }),
        Answer::Overloaded => reply.fail(&RequestError::StdinOverloaded),
    }
}

fn since_1970_ms(time: SystemTime) -> u64 {
    millis(time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default())
}
