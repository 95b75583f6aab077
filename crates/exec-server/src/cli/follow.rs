//! Connects a remote process to the local terminal until the process exits or the user leaves.
//!
//! ```text
//! stdin ──thread──▶ input (local keys?) ──▶ process/write          events ──▶ one chunk of output ──thread──▶ stdout, stderr
//! ```
//!
//! The loop never blocks on a single source: while stdout is not read, no event is requested, and signals and keys are
//! still handled.

use std::cmp::Ordering;
use std::collections::VecDeque;
use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use bytes::Bytes;
use exec_server_client::{
    ExecServerError, ProcessEvent, ProcessEvents, ProcessExit, ProcessSession,
    RemoteExecServerClient,
};
use exec_server_os::terminal_size;
use exec_server_protocol::errors::ErrorCode;
use exec_server_protocol::process::{ExitReason, OutputStream, ProcessSignal};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::console::{self, Console};
use super::escapes::Escape;
use super::failure::Failure;
use super::input_queue::Typed;
use super::output::{self, Output, Stream, Written};
use super::parting::Parting;
use super::reattach::ReattachHint;
use super::replay::{Age, Replay, Reports};
use super::signals::ClientSignal;
use super::stdin_writer::StdinWriter;

/// From SIGTERM to SIGKILL after a second interrupt.
const GRACE: Duration = Duration::from_secs(2);
/// After the exit, descendants may hold the output open; the client leaves after this silence.
const SILENCE_AFTER_EXIT: Duration = Duration::from_secs(1);
/// Longest wait for a server to accept a signal or a terminate request.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(2);
/// 128 plus SIGPIPE.
const BROKEN_PIPE: u8 = 141;
const TIMED_OUT: u8 = 124;

/// Where the input of the process comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Input {
    None,
    /// The stdin of this client, until its end.
    Stdin,
}

/// How a process is followed.
#[derive(Debug)]
pub struct FollowOptions {
    pub input: Input,
    /// Whether the process has a terminal, which mirrors the local one.
    pub has_terminal: bool,
    /// Events up to this one are skipped.
    pub after_seq: u64,
    /// Longest wait for the server when a signal ends the client.
    pub leave_timeout: Duration,
    /// How to attach again.
    pub reattach: ReattachHint,
    /// Timeout that the client enforces, because the server cannot.
    pub timeout: Option<Duration>,
    /// Whether the end of stdin is sent as Ctrl-D, because the server cannot close stdin.
    pub ends_input_by_key: bool,
}

impl FollowOptions {
    pub fn has_input(&self) -> bool {
        self.input == Input::Stdin
    }

    /// Sends no stdin to the process.
    pub fn leave_input(&mut self) {
        self.input = Input::None;
    }
}

/// Why following ended.
#[derive(Debug)]
pub enum Outcome {
    /// The process exited or was left behind; the exit code of this client.
    Exited(u8),
    /// The user detached from it.
    Detached(Parting),
    /// The user left; the server was not informed.
    Left,
}

/// Follows a process until it exits or the user leaves.
pub async fn follow(
    client: &RemoteExecServerClient,
    process: &ProcessSession,
    console: &mut Console,
    follow_options: FollowOptions,
) -> Result<Outcome, Failure> {
    let is_raw =
        follow_options.input == Input::Stdin && follow_options.has_terminal && console.go_raw()?;
    if follow_options.input == Input::Stdin && !is_raw {
        console.read_pipe();
    }
    let (output, written) = output::begin();
    let mut follower = Follower {
        client,
        process,
        events: Some(process.paced_events_after(follow_options.after_seq)),
        replay: Replay::new(if is_raw { Reports::Passed } else { Reports::Unwanted }),
        output: Some(output),
        written,
        pending: None,
        notices: VecDeque::new(),
        stdin_writer: StdinWriter::new(process.clone(), follow_options.ends_input_by_key),
        is_raw,
        has_terminal: follow_options.has_terminal,
        leave_timeout: follow_options.leave_timeout,
        reattach: follow_options.reattach,
        tasks: JoinSet::new(),
        interrupts: 0,
        exit: None,
        heard: Instant::now(),
        is_lost: false,
        has_gap: false,
        deadline: follow_options.timeout.map(|timeout| Instant::now() + timeout),
        is_timed_out: false,
    };
    let outcome = follower.run(console).await;
    if is_raw {
        follower.written.abandon();
        console.restore();
        if follower.exit.is_none() && io::stdout().is_terminal() {
            output::print_stdout(RESET_SCREEN);
        }
    }
    follower.print_notices();
    outcome
}

struct Follower<'a> {
    client: &'a RemoteExecServerClient,
    process: &'a ProcessSession,
    /// Dropped on leaving, so that replies are read even while output is blocked.
    events: Option<ProcessEvents>,
    replay: Replay,
    output: Option<Output>,
    written: Written,
    /// Output that waits for room in the local streams.
    pending: Option<(Stream, Bytes)>,
    /// Messages in raw mode, printed between chunks of output.
    notices: VecDeque<Bytes>,
    stdin_writer: StdinWriter,
    is_raw: bool,
    has_terminal: bool,
    leave_timeout: Duration,
    reattach: ReattachHint,
    /// Requests that the loop does not wait for.
    tasks: JoinSet<TaskOutcome>,
    interrupts: u32,
    exit: Option<ProcessExit>,
    heard: Instant,
    is_lost: bool,
    has_gap: bool,
    /// When the client-side timeout ends.
    deadline: Option<Instant>,
    is_timed_out: bool,
}

/// Result of a request that the loop did not wait for.
enum TaskOutcome {
    Nothing,
    /// The signal did not reach the server; exit with this code.
    Undelivered(u8),
}

impl Follower<'_> {
    async fn run(&mut self, console: &mut Console) -> Result<Outcome, Failure> {
        loop {
            self.stdin_writer.begin(&mut console.input);
            // While disconnected, silence proves nothing.
            let has_exited = self.exit.is_some() && !self.is_lost;
            let leave_at = has_exited.then(|| self.heard + SILENCE_AFTER_EXIT);
            tokio::select! {
                biased;
                wanted = console.signals.next() => {
                    if let Some(code) = self.handle_wanted(wanted) {
                        self.leave(self.leave_timeout).await;
                        return Ok(Outcome::Exited(code));
                    }
                }
                // Before the output, which may be continuous.
                () = sleep_until(self.deadline), if self.deadline.is_some() && self.exit.is_none() => {
                    self.deadline = None;
                    self.is_timed_out = true;
                    self.process.terminate_later();
                }
                typed = console::next(&mut console.input), if console.input.is_some() => {
                    if let Some(outcome) = self.handle_typed(typed, console).await? {
                        return Ok(outcome);
                    }
                }
                result = self.stdin_writer.written() => {
                    // The command closed its stdin or exited; the events tell which.
                    if let (Err(error), Some(input)) = (result, &mut console.input) {
                        tracing::debug!(%error, "the command accepts no more input");
                        input.refuse();
                    }
                }
                result = self.written.ended() => {
                    self.handle_output_gone(&result);
                    self.leave(LEAVE_TIMEOUT).await;
                    return Ok(Outcome::Exited(BROKEN_PIPE));
                }
                permit = reserve(self.output.clone()), if self.has_something_to_show() => {
                    if let Some(permit) = permit {
                        self.show_next(permit);
                    }
                }
                Some(told) = self.tasks.join_next(), if !self.tasks.is_empty() => match told {
                    Ok(TaskOutcome::Undelivered(code)) => {
                        self.notice_left_alone();
                        self.events = None;
                        return Ok(Outcome::Exited(code));
                    }
                    Ok(TaskOutcome::Nothing) | Err(_) => {}
                },
                event = next_event(&mut self.events), if self.pending.is_none() => {
                    match event {
                        Some(event) => if self.handle_event(event)? {
                            break;
                        },
                        None => break,
                    }
                }
                () = sleep_until(leave_at), if leave_at.is_some() && self.pending.is_none() => break,
            }
        }
        self.flush(console).await
    }

    /// Waits until all output is written; a signal or a local key ends the wait.
    async fn flush(&mut self, console: &mut Console) -> Result<Outcome, Failure> {
        self.output = None;
        loop {
            tokio::select! {
                biased;
                wanted = console.signals.next() => if wanted != ClientSignal::Resize {
                    return Ok(Outcome::Exited(wanted.exit_code()));
                },
                typed = console::next(&mut console.input), if self.is_raw && console.input.is_some() => {
                    if let Some(outcome) = self.handle_typed(typed, console).await? {
                        return Ok(outcome);
                    }
                }
                result = self.written.ended() => return match (result, self.exit.clone()) {
                    (Err(_), _) => Ok(Outcome::Exited(BROKEN_PIPE)),
                    (Ok(()), Some(exit)) => Ok(Outcome::Exited(self.exit_code(&exit))),
                    (Ok(()), None) => Err(Failure::LinkLost("the server did not report how the command ended".to_owned())),
                },
            }
        }
    }

    fn exit_code(&mut self, exit: &ProcessExit) -> u8 {
        if self.is_timed_out {
            self.notice("the command timed out");
            return TIMED_OUT;
        }
        match exit.details.reason {
            Some(ExitReason::Timeout | ExitReason::IdleTimeout) => {
                self.notice("the command timed out");
                return TIMED_OUT;
            }
            Some(ExitReason::ServerShutdown) => self.notice("the server shut down"),
            Some(ExitReason::OomKilled) => self.notice("the command ran out of memory"),
            _ => {}
        }
        if exit.sandbox_denied == Some(true) {
            self.notice("the sandbox denied an operation of the command");
        }
        // Missing output must not look like success.
        if self.has_gap && !self.has_terminal {
            255
        } else {
            u8::try_from(exit.exit_code).unwrap_or(255)
        }
    }

    /// Returns whether this was the last event.
    fn handle_event(&mut self, event: ProcessEvent) -> Result<bool, Failure> {
        self.heard = Instant::now();
        if self.is_lost && !matches!(event, ProcessEvent::ResyncRequired | ProcessEvent::Failed(_))
        {
            self.is_lost = false;
            self.notice("the connection is back");
        }
        match event {
            ProcessEvent::Output { seq, stream, bytes } => {
                let stream = match stream {
                    OutputStream::Stdout | OutputStream::Pty => Stream::Out,
                    OutputStream::Stderr => Stream::Err,
                };
                let age = match seq.cmp(&self.process.replayed_through()) {
                    Ordering::Less => Age::Replayed,
                    Ordering::Equal => Age::LastReplayed,
                    Ordering::Greater => Age::Live,
                };
                let bytes = self.replay.show(age, stream, bytes);
                self.pending = (!bytes.is_empty()).then_some((stream, bytes));
            }
            ProcessEvent::Exited { exit, .. } => self.exit = Some(exit),
            ProcessEvent::Closed { .. } => return Ok(true),
            ProcessEvent::Gap(gap) => {
                self.has_gap = true;
                let what = match gap.evicted_bytes {
                    Some(bytes) => format!("{bytes} bytes of output are lost"),
                    None => "some output is lost".to_owned(),
                };
                self.notice(&what);
            }
            ProcessEvent::ResyncRequired => {
                if !self.is_lost {
                    self.notice("lost the connection; reconnecting");
                }
                self.is_lost = true;
            }
            ProcessEvent::Failed(reason) => return Err(self.failure(&reason)),
        }
        Ok(false)
    }

    fn failure(&self, reason: &str) -> Failure {
        let error = self.client.session().terminal_error();
        let is_taken_over = match &error {
            Some(ExecServerError::TakenOver) => true,
            // The reconnect found the session attached to another client.
            Some(ExecServerError::SessionLost { source, .. }) => matches!(
                **source,
                ExecServerError::Server { code, .. } if code == ErrorCode::SessionAttached as i64
            ),
            _ => false,
        };
        if is_taken_over {
            Failure::TakenOver { attach_command: self.reattach.command().to_owned() }
        } else {
            Failure::LinkLost(reason.to_owned())
        }
    }

    /// Forwards a signal; returns the exit code if the client must leave.
    fn handle_wanted(&mut self, wanted: ClientSignal) -> Option<u8> {
        let signal = match wanted {
            ClientSignal::Resize => {
                self.resize();
                return None;
            }
            ClientSignal::Signal(signal) => signal,
        };
        self.interrupts += 1;
        let process = self.process.clone();
        let code = wanted.exit_code();
        match (self.interrupts, signal) {
            // While disconnected no signal can be forwarded, so the client leaves.
            _ if self.is_lost => {
                self.notice_left_alone();
                Some(code)
            }
            // In raw mode Ctrl-C arrives as a byte, so a signal is meant for this client.
            _ if self.is_raw => Some(code),
            (1, _) => {
                self.tasks.spawn(async move {
                    match timeout(LEAVE_TIMEOUT, process.signal(signal)).await {
                        // The server does not support the signal: terminate the command instead.
                        Ok(Err(ExecServerError::Server { .. })) => {
                            drop(process.terminate(Some(GRACE)).await);
                            TaskOutcome::Nothing
                        }
                        Ok(Err(error)) if error.is_disconnected() => TaskOutcome::Undelivered(code),
                        Err(_) => TaskOutcome::Undelivered(code),
                        Ok(_) => TaskOutcome::Nothing,
                    }
                });
                None
            }
            (2, _) => {
                self.notice("terminating the command; interrupt again to leave it");
                self.tasks.spawn(async move {
                    drop(process.terminate(Some(GRACE)).await);
                    TaskOutcome::Nothing
                });
                None
            }
            _ => Some(code),
        }
    }

    async fn handle_typed(
        &mut self,
        typed: Typed,
        console: &mut Console,
    ) -> Result<Option<Outcome>, Failure> {
        match typed {
            Typed::More | Typed::End => {}
            Typed::Dropped => {
                self.notice("the command does not read its input; further keys are dropped\x07")
            }
            Typed::Escape(Escape::Leave) => {
                self.events = None;
                return Ok(Some(Outcome::Left));
            }
            Typed::Escape(Escape::Detach) if !console.can_detach() => {
                self.notice("this server does not keep detached commands");
            }
            Typed::Escape(Escape::Detach) => {
                let parting = Parting::begin();
                self.events = None;
                if !self.is_lost {
                    // The user may have been faster than the link.
                    let _ = parting.input(self.stdin_writer.finish(&mut console.input)).await;
                }
                return Ok(Some(Outcome::Detached(parting)));
            }
            Typed::Escape(Escape::Help) => self.notice(&console.help()),
            Typed::Escape(Escape::Suspend) => {
                console.suspend()?;
                self.resize();
            }
        }
        Ok(None)
    }

    fn resize(&mut self) {
        if let Some(size) = terminal_size().filter(|_| self.has_terminal) {
            let process = self.process.clone();
            self.tasks.spawn(async move {
                drop(process.resize(size).await);
                TaskOutcome::Nothing
            });
        }
    }

    /// Leaves: a process with the local terminal gets SIGHUP and keeps its session linger; any other is terminated.
    async fn leave(&mut self, leave_timeout: Duration) {
        self.events = None;
        if self.is_lost {
            return;
        }
        let leaving = async {
            if self.is_raw {
                self.process.signal(ProcessSignal::Hangup).await.is_ok()
            } else {
                self.process.terminate(None).await.is_ok()
            }
        };
        // After a timeout the connection is considered dead; nothing else is sent.
        if timeout(leave_timeout, leaving).await.is_err() {
            self.notice_left_alone();
        }
    }

    /// Reports a write error; a closed pipe is silent, as SIGPIPE is for a local command.
    fn handle_output_gone(&mut self, result: &io::Result<()>) {
        if let Err(error) = result
            && error.kind() != io::ErrorKind::BrokenPipe
        {
            self.notice(&format!("could not write the output: {error}"));
        }
    }

    fn has_something_to_show(&self) -> bool {
        self.pending.is_some() || !self.notices.is_empty()
    }

    fn show_next(&mut self, permit: mpsc::OwnedPermit<(Stream, Bytes)>) {
        let notice = || self.notices.pop_front().map(|notice| (Stream::Err, notice));
        if let Some(piece) = self.pending.take().or_else(notice) {
            permit.send(piece);
        }
    }

    fn notice_left_alone(&mut self) {
        let reattach = self.reattach.describe();
        self.notice(&format!("the command may still be running; {reattach}"));
    }

    fn notice(&mut self, text: &str) {
        if self.is_raw {
            // In raw mode a line feed does not return to the first column.
            let text = format!("\nexec-server: {text}\n").replace('\n', "\r\n");
            self.notices.push_back(text.into());
        } else {
            // A closed stderr loses the notice.
            let _ = writeln!(io::stderr(), "exec-server: {text}");
        }
    }

    fn print_notices(&mut self) {
        for notice in self.notices.drain(..) {
            output::print_stderr(&String::from_utf8_lossy(&notice));
        }
    }
}

async fn next_event(events: &mut Option<ProcessEvents>) -> Option<ProcessEvent> {
    events.as_mut()?.next().await
}

async fn reserve(output: Option<Output>) -> Option<mpsc::OwnedPermit<(Stream, Bytes)>> {
    output?.reserve_owned().await.ok()
}

async fn sleep_until(deadline: Option<Instant>) {
    if let Some(deadline) = deadline {
        tokio::time::sleep_until(deadline.into()).await;
    }
}

/// Resets the alternate screen, the cursor, bracketed paste, and reports of mouse, focus and size after a full-screen program.
const RESET_SCREEN: &str = "\x1b[?1047l\x1b[?25h\x1b[?2004l\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1006l\x1b[?1004l\x1b[?2048l\x1b[?1l\x1b>\x1b[0m\r\n";
