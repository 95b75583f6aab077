//! A process over there that behaves like one over here, until it ends or is let go of.
//!
//! ```text
//! stdin ──thread──▶ keys that let go? ──task──▶ process/write          events ──▶ one piece of output ──thread──▶ stdout, stderr
//! ```
//!
//! Nothing in the loop waits for anything but the next thing that happens: while our output is not taken, no event is
//! asked for, and signals still get through.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use bytes::Bytes;
use exec_server_client::{
    ExecServerError, ProcessEvent, ProcessEvents, ProcessExit, ProcessSession,
};
use exec_server_os::{RawMode, terminal_size};
use exec_server_protocol::process::{ExitReason, OutputStream, ProcessSignal};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::detach_keys::{DetachKeys, DetachWatch};
use super::failure::Failure;
use super::output::{self, Output, Stream, Written};
use super::signals::{Signals, Wanted};
use super::stdin;

/// From SIGTERM to SIGKILL for what does not end when it is asked.
const GRACE: Duration = Duration::from_secs(2);
/// How long descendants that hold the output of a command that has ended may be silent before we leave.
const SILENCE_AFTER_EXIT: Duration = Duration::from_secs(1);
/// How long the last word may take to be answered.
const FAREWELL: Duration = Duration::from_secs(2);
/// 128 plus SIGPIPE.
const BROKEN_PIPE: u8 = 141;
const TIMED_OUT: u8 = 124;

/// What of this side belongs to the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Input {
    /// Nothing.
    None,
    /// Our stdin, to its end.
    Stdin,
}

/// How a process is followed.
#[derive(Debug)]
pub struct Manner {
    /// What it gets of our stdin.
    pub input: Input,
    /// Whether it has a terminal, which is then ours.
    pub has_terminal: bool,
    /// The keys that let go of it.
    pub detach_keys: DetachKeys,
    /// From where on.
    pub after_seq: u64,
}

/// How it ended for us.
#[derive(Debug)]
pub enum Outcome {
    /// The process ended, or we left it; the code is ours.
    Exited(u8),
    /// The user let go of it.
    Detached,
}

/// Follows a process until it ends or is let go of.
pub async fn follow(process: &ProcessSession, manner: Manner) -> Result<Outcome, Failure> {
    let failed = |source| Failure::here("could not take over signals", source);
    let signals = Signals::take().map_err(failed)?;
    let raw = if manner.has_terminal && io::stdin().is_terminal() {
        Some(
            RawMode::enter()
                .map_err(|source| Failure::here("could not use the terminal", source))?,
        )
    } else {
        None
    };
    let (output, written) = output::begin();
    let mut follower = Follower {
        process,
        events: Some(process.paced_events_after(manner.after_seq)),
        output: Some(output),
        written,
        pending: None,
        keys: DetachWatch::new(manner.detach_keys),
        is_raw: raw.is_some(),
        has_terminal: manner.has_terminal,
        tasks: JoinSet::new(),
        interrupts: 0,
        exit: None,
        heard: Instant::now(),
        is_lost: false,
        has_gap: false,
    };
    let outcome = follower.run(signals, manner.input).await;
    let is_clean = follower.exit.is_some();
    if raw.is_some() && !is_clean {
        reset_screen();
    }
    drop(raw);
    outcome
}

struct Follower<'a> {
    process: &'a ProcessSession,
    /// Whoever leaves lets go of them, so that answers are read again whatever waits to be written.
    events: Option<ProcessEvents>,
    output: Option<Output>,
    written: Written,
    /// Output that our streams have no room for yet.
    pending: Option<(Stream, Bytes)>,
    keys: DetachWatch,
    is_raw: bool,
    has_terminal: bool,
    /// Requests that nobody waits for.
    tasks: JoinSet<()>,
    interrupts: u32,
    exit: Option<ProcessExit>,
    heard: Instant,
    is_lost: bool,
    has_gap: bool,
}

impl Follower<'_> {
    async fn run(&mut self, mut signals: Signals, input: Input) -> Result<Outcome, Failure> {
        let mut typed = match input {
            Input::Stdin => Some(stdin::read()),
            Input::None => None,
        };
        let mut writer = (input == Input::Stdin).then(|| self.spawn_writer());
        loop {
            let held_until = self.keys.poll_timeout();
            // Without a link silence means nothing.
            let has_exited = self.exit.is_some() && !self.is_lost;
            let leave_at = has_exited.then(|| self.heard + SILENCE_AFTER_EXIT);
            tokio::select! {
                biased;
                wanted = signals.next() => {
                    if let Some(code) = self.handle_wanted(wanted) {
                        self.leave().await;
                        return Ok(Outcome::Exited(code));
                    }
                }
                result = self.written.ended() => {
                    self.handle_output_gone(&result);
                    self.leave().await;
                    return Ok(Outcome::Exited(BROKEN_PIPE));
                }
                permit = reserve(self.output.clone()), if self.pending.is_some() => {
                    if let (Some(permit), Some(piece)) = (permit, self.pending.take()) {
                        permit.send(piece);
                    }
                }
                event = next_event(&mut self.events), if self.pending.is_none() => {
                    match event {
                        Some(event) => if self.handle_event(event)? {
                            break;
                        },
                        None => break,
                    }
                }
                typing = next_typed(&mut typed, writer.clone()), if typed.is_some() => {
                    match typing {
                        Some((permit, bytes)) if self.is_raw => {
                            let typed = self.keys.handle_typed(Instant::now(), &bytes);
                            pass_on(permit, typed.bytes);
                            if typed.is_detached {
                                return Ok(Outcome::Detached);
                            }
                        }
                        Some((permit, bytes)) => pass_on(permit, bytes),
                        None => {
                            typed = None;
                            // The end of the channel is the end of the process's stdin.
                            writer = None;
                        }
                    }
                }
                permit = room_after(held_until, writer.clone()), if held_until.is_some() => {
                    let keys = self.keys.handle_timeout(Instant::now());
                    if let Some(permit) = permit {
                        pass_on(permit, keys);
                    }
                }
                () = sleep_until(leave_at), if leave_at.is_some() && self.pending.is_none() => break,
                Some(_) = self.tasks.join_next(), if !self.tasks.is_empty() => {}
            }
        }
        self.flush(signals).await
    }

    /// Our streams may be slower than the process was; a signal ends the waiting.
    async fn flush(&mut self, mut signals: Signals) -> Result<Outcome, Failure> {
        self.output = None;
        loop {
            tokio::select! {
                biased;
                wanted = signals.next() => if wanted != Wanted::Resize {
                    return Ok(Outcome::Exited(wanted.exit_code()));
                },
                result = self.written.ended() => return match (result, &self.exit) {
                    (Err(_), _) => Ok(Outcome::Exited(BROKEN_PIPE)),
                    (Ok(()), Some(exit)) => Ok(Outcome::Exited(self.exit_code(exit))),
                    (Ok(()), None) => Err(Failure::LinkLost("the server did not say how the command ended".to_owned())),
                },
            }
        }
    }

    fn exit_code(&self, exit: &ProcessExit) -> u8 {
        match exit.details.reason {
            Some(ExitReason::Timeout | ExitReason::IdleTimeout) => {
                self.notice("the command's time was up");
                return TIMED_OUT;
            }
            Some(ExitReason::ServerShutdown) => self.notice("the server shut down"),
            Some(ExitReason::OomKilled) => self.notice("the command ran out of memory"),
            _ => {}
        }
        if exit.sandbox_denied == Some(true) {
            self.notice("the sandbox refused something that the command wanted");
        }
        // What is missing must not look like success.
        if self.has_gap && !self.has_terminal {
            255
        } else {
            u8::try_from(exit.exit_code).unwrap_or(255)
        }
    }

    /// Says whether it was the last.
    fn handle_event(&mut self, event: ProcessEvent) -> Result<bool, Failure> {
        self.heard = Instant::now();
        if self.is_lost && !matches!(event, ProcessEvent::ResyncRequired | ProcessEvent::Failed(_))
        {
            self.is_lost = false;
            self.notice("the connection is back");
        }
        match event {
            ProcessEvent::Output { stream, bytes, .. } => {
                let stream = match stream {
                    OutputStream::Stdout | OutputStream::Pty => Stream::Out,
                    OutputStream::Stderr => Stream::Err,
                };
                self.pending = Some((stream, bytes));
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
                    self.notice("lost the connection; trying to get it back");
                }
                self.is_lost = true;
            }
            ProcessEvent::Failed(reason) => return Err(Failure::LinkLost(reason.to_string())),
        }
        Ok(false)
    }

    /// Passes a wish on; says with which code to leave if nothing else helps.
    fn handle_wanted(&mut self, wanted: Wanted) -> Option<u8> {
        let signal = match wanted {
            Wanted::Resize => {
                if let Some(size) = terminal_size().filter(|_| self.has_terminal) {
                    let process = self.process.clone();
                    self.tasks.spawn(async move { drop(process.resize(size).await) });
                }
                return None;
            }
            Wanted::Signal(signal) => signal,
        };
        self.interrupts += 1;
        let process = self.process.clone();
        match (self.interrupts, signal) {
            // Without a link nothing can be passed on, and the user wants out.
            _ if self.is_lost => {
                self.notice("the command may still be running");
                Some(255)
            }
            // Keys come as bytes, so this is somebody who wants us to go, and a shell would not go for it.
            _ if self.is_raw => Some(wanted.exit_code()),
            (1, _) => {
                self.tasks.spawn(async move { drop(process.signal(signal).await) });
                None
            }
            (2, _) => {
                self.notice("ending the command; once more leaves it");
                self.tasks.spawn(async move { drop(process.terminate(Some(GRACE)).await) });
                None
            }
            _ => Some(wanted.exit_code()),
        }
    }

    /// We go: what has our terminal is told, and has the time of its session's linger; anything else ends.
    async fn leave(&mut self) {
        self.events = None;
        if self.is_lost {
            return;
        }
        let farewell = async {
            if self.is_raw {
                self.process.signal(ProcessSignal::Hangup).await.is_ok()
            } else {
                self.process.terminate(None).await.is_ok()
            }
        };
        // A link that does not carry it any more carries nothing else either.
        let _ = tokio::time::timeout(FAREWELL, farewell).await;
    }

    /// Nobody reads our output: the command would get a SIGPIPE here.
    fn handle_output_gone(&self, result: &io::Result<()>) {
        if let Err(error) = result
            && error.kind() != io::ErrorKind::BrokenPipe
        {
            self.notice(&format!("could not write the output: {error}"));
        }
    }

    /// Passes input on in a task of its own, because a command that does not read makes it wait.
    fn spawn_writer(&mut self) -> Writer {
        let (sender, mut receiver) = mpsc::channel::<Vec<u8>>(4);
        let process = self.process.clone();
        self.tasks.spawn(async move {
            while let Some(mut bytes) = receiver.recv().await {
                while let Ok(more) = receiver.try_recv() {
                    bytes.extend(more);
                }
                if process.write(&bytes).await.is_err() {
                    // The command takes no more, or has ended; the events tell.
                    return;
                }
            }
            match process.close_stdin().await {
                Ok(())
                | Err(ExecServerError::StdinClosed(_) | ExecServerError::UnknownProcess(_)) => {}
                Err(error) => tracing::debug!(%error, "could not end the input"),
            }
        });
        sender
    }

    fn notice(&self, text: &str) {
        // In raw mode a line end alone does not go back to the first column.
        let end = if self.is_raw { "\r\n" } else { "\n" };
        let start = if self.is_raw { "\r\n" } else { "" };
        // Without a stderr there is nobody to tell.
        let _ = write!(io::stderr(), "{start}exec-server: {text}{end}");
    }
}

async fn next_event(events: &mut Option<ProcessEvents>) -> Option<ProcessEvent> {
    events.as_mut()?.next().await
}

async fn reserve(output: Option<Output>) -> Option<mpsc::OwnedPermit<(Stream, Bytes)>> {
    output?.reserve_owned().await.ok()
}

type Writer = mpsc::Sender<Vec<u8>>;
type Room = mpsc::OwnedPermit<Vec<u8>>;

fn pass_on(room: Room, bytes: Vec<u8>) {
    if !bytes.is_empty() {
        room.send(bytes);
    }
}

/// What is typed next, once there is room for it; none at its end, or when nobody takes it.
async fn next_typed(
    typed: &mut Option<mpsc::Receiver<Vec<u8>>>,
    writer: Option<Writer>,
) -> Option<(Room, Vec<u8>)> {
    let room = writer?.reserve_owned().await.ok()?;
    Some((room, typed.as_mut()?.recv().await?))
}

async fn room_after(deadline: Option<Instant>, writer: Option<Writer>) -> Option<Room> {
    sleep_until(deadline).await;
    writer?.reserve_owned().await.ok()
}

async fn sleep_until(deadline: Option<Instant>) {
    if let Some(deadline) = deadline {
        tokio::time::sleep_until(deadline.into()).await;
    }
}

/// Undoes what a program on the screen may have left behind: another screen, no cursor, a mouse that talks.
fn reset_screen() {
    const RESET: &str = "\x1b[?1047l\x1b[?25h\x1b[?2004l\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1006l\x1b[?1l\x1b>\x1b[0m\r\n";
    if io::stdout().is_terminal() {
        let mut stdout = io::stdout();
        let _ = stdout.write_all(RESET.as_bytes()).and_then(|()| stdout.flush());
    }
}
