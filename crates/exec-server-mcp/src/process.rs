//! One command: its state, what was collected of its output, and what is told about it.
//!
//! Owner of the state: the follower task of the command.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use exec_server_client::{ProcessEvent, ProcessEvents, ProcessExit, ProcessSession};
use exec_server_protocol::process::{OutputView, ProcessReadResponse};
use serde::Serialize;
use tokio::sync::watch;

use crate::call::Answer;
use crate::caller::Viewer;
use crate::output_log::{OutputLog, Piece};

/// The longest wait of a call: clients give up after a minute.
const MAX_YIELD_MS: u64 = 50_000;
/// Output that still comes after the exit is waited for this long.
const AFTER_EXIT: Duration = Duration::from_millis(250);
/// An answer waits for the spool so long: the link may be lost, and what is kept here is there at once.
const SPOOL_TIME: Duration = Duration::from_secs(5);
/// Between SIGTERM and SIGKILL.
pub const GRACE: Duration = Duration::from_secs(2);

/// A command that was started.
pub struct Process {
    id: String,
    /// Who may see it in a list.
    pub viewer: Viewer,
    command: String,
    pub session: ProcessSession,
    /// Whether the exec-server keeps the output in a spool as well.
    has_spool: bool,
    state: Mutex<State>,
    /// Changes whenever the state does.
    version: watch::Sender<u64>,
}

/// What is known of a command.
#[derive(Default)]
pub struct State {
    pub log: OutputLog,
    exit: Option<ProcessExit>,
    pub ended: Option<Instant>,
    is_closed: bool,
    failure: Option<String>,
}

/// What is told about a command.
#[derive(Serialize)]
struct Report {
    process_id: String,
    running: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    exit_code: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    signal: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    failure: Option<String>,
    output: String,
    total_bytes: u64,
    omitted_bytes: u64,
    next_offset: u64,
    /// Whether every byte of the output can still be read.
    all_available: bool,
}

/// How long a call waits for a command.
#[derive(Debug, PartialEq, Eq)]
enum Wait {
    Over,
    Until(Instant),
    Open,
}

/// One line of the list of commands.
#[derive(Serialize)]
pub struct Listed {
    pub process_id: String,
    pub command: String,
    pub running: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    total_bytes: u64,
}

impl Process {
    /// Follows a command that was started; `note_end` gets its end and the bytes kept of its output, whenever these change.
    pub fn follow(
        id: String,
        viewer: Viewer,
        command: String,
        session: ProcessSession,
        has_spool: bool,
        note_end: impl Fn(Instant, usize) + Send + 'static,
    ) -> Arc<Self> {
        let events = session.paced_events_after(0);
        let process = Arc::new(Self {
            id,
            viewer,
            command,
            session,
            has_spool,
            state: Mutex::default(),
            version: watch::Sender::new(0),
        });
        tokio::spawn(follow(process.clone(), events, note_end));
        process
    }

    /// The state.
    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder panics")
    }

    /// The id that clients use.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Whether the command has not ended.
    pub fn is_running(&self) -> bool {
        self.lock().ended.is_none()
    }

    /// Ends the command and everything that it started.
    pub async fn stop(&self) {
        // The link may be gone; then the session ends by itself.
        let _ = self.session.terminate(Some(GRACE)).await;
    }

    /// Waits for [`Process::settled`], but not longer than a call may take; the command goes on.
    pub async fn wait(&self, wait_ms: u64, seen: Option<u64>) {
        let wait = Duration::from_millis(wait_ms.min(MAX_YIELD_MS));
        let _ = tokio::time::timeout(wait, self.settled(seen)).await;
    }

    /// Waits until the command is over, or, with `seen`, has written more than that.
    pub async fn settled(&self, seen: Option<u64>) {
        let mut version = self.version.subscribe();
        loop {
            version.borrow_and_update();
            let wait = self.lock().wait(seen);
            match wait {
                Wait::Over => return,
                Wait::Until(end) => {
                    let changed = tokio::time::timeout_at(end.into(), version.changed()).await;
                    if !matches!(changed, Ok(Ok(()))) {
                        return;
                    }
                }
                Wait::Open => {
                    if version.changed().await.is_err() {
                        return;
                    }
                }
            }
        }
    }

    /// The state, with the beginning and the end of the output after `from`.
    pub async fn report(&self, from: u64, most: usize) -> Answer {
        let ((output, omitted), next_offset) = {
            let state = self.lock();
            (state.log.summary(from, most), state.log.total())
        };
        self.answer(output, omitted, next_offset).await
    }

    /// The state, with a piece of the output.
    pub async fn report_piece(&self, offset: i64, most: usize) -> Answer {
        let (start, mut piece) = {
            let log = &self.lock().log;
            (log.start_of(offset), log.read(offset, most))
        };
        if piece.offset > start
            && let Some(spooled) = self.read_spool(start, most).await
            && spooled.offset < piece.offset
        {
            piece = spooled;
        }
        let output = String::from_utf8_lossy(&piece.bytes).into_owned();
        self.answer(output, piece.offset - start, piece.next_offset).await
    }

    /// A piece of the output from the spool of the exec-server, if it has one there or behind it.
    async fn read_spool(&self, start: u64, most: usize) -> Option<Piece> {
        let most_bytes = u64::try_from(most).unwrap_or(u64::MAX);
        let read = self.view(OutputView::Offset(start), most_bytes).await?;
        let mut chunks = read.chunks.into_iter().filter(|chunk| !chunk.chunk.0.is_empty());
        let first = chunks.next()?;
        let (offset, mut bytes) = (first.offset?.max(start), first.chunk.0);
        for chunk in chunks {
            // What was evicted during the read is the next piece.
            if chunk.offset != Some(offset + bytes.len() as u64) {
                break;
            }
            bytes.extend_from_slice(&chunk.chunk.0);
        }
        bytes.truncate(most);
        let next_offset = offset + bytes.len() as u64;
        Some(Piece { bytes, offset, next_offset })
    }

    /// What the exec-server keeps; none if that cannot be read now.
    async fn view(&self, view: OutputView, most: u64) -> Option<ProcessReadResponse> {
        // After a gap the offsets of the exec-server differ from those here.
        if !self.has_spool || self.lock().log.has_gap() {
            return None;
        }
        let read = self.session.read_view(view, Some(most));
        tokio::time::timeout(SPOOL_TIME, read).await.ok()?.ok()
    }

    /// Whether every byte of the output can still be read, here or at the exec-server.
    async fn has_all(&self) -> bool {
        if self.lock().log.is_complete() {
            return true;
        }
        let extent = self.view(OutputView::HeadBytes(1), 1).await.and_then(|read| read.extent);
        extent.is_some_and(|extent| extent.first_offset == 0 && extent.spool_failure.is_none())
    }

    async fn answer(&self, output: String, omitted: u64, next_offset: u64) -> Answer {
        let all_available = self.has_all().await;
        let state = self.lock();
        let running = state.ended.is_none();
        let status = match (&state.failure, &state.exit) {
            (Some(reason), _) => format!("the process cannot be followed any further: {reason}"),
            (None, Some(exit)) => match &exit.details.signal {
                Some(signal) => format!("ended by {signal} (code {})", exit.exit_code),
                None => format!("exit code {}", exit.exit_code),
            },
            (None, None) => format!("still running as process {}", self.id),
        };
        let report = Report {
            process_id: self.id.clone(),
            running,
            exit_code: state.exit.as_ref().map(|exit| exit.exit_code),
            signal: state.exit.as_ref().and_then(|exit| exit.details.signal.clone()),
            failure: state.failure.clone(),
            total_bytes: state.log.total(),
            omitted_bytes: omitted,
            next_offset,
            all_available,
            output,
        };
        Answer::new(format!("{}\n[{status}]", report.output.trim_end_matches('\n')), &report)
    }

    /// Its line in a list.
    pub fn listed(&self) -> Listed {
        let state = self.lock();
        Listed {
            process_id: self.id.clone(),
            command: self.command.clone(),
            running: state.ended.is_none(),
            exit_code: state.exit.as_ref().map(|exit| exit.exit_code),
            total_bytes: state.log.total(),
        }
    }
}

/// Collects the events of a command until nothing more comes.
async fn follow(
    process: Arc<Process>,
    mut events: ProcessEvents,
    note_end: impl Fn(Instant, usize) + Send,
) {
    while let Some(event) = events.next().await {
        let (ended, bytes) = {
            let mut state = process.lock();
            state.handle_event(event);
            (state.ended, state.log.retained_bytes())
        };
        if let Some(ended) = ended {
            note_end(ended, bytes);
        }
        process.version.send_modify(|version| *version += 1);
    }
}

impl State {
    /// How long a call waits for the end, or, with `seen`, for more output than that.
    fn wait(&self, seen: Option<u64>) -> Wait {
        let has_more = seen.is_some_and(|seen| self.log.total() > seen);
        match self.ended {
            _ if has_more || self.is_closed || self.failure.is_some() => Wait::Over,
            // A child of the command may keep its output open for long.
            Some(ended) => Wait::Until(ended + AFTER_EXIT),
            None => Wait::Open,
        }
    }

    fn handle_event(&mut self, event: ProcessEvent) {
        match event {
            ProcessEvent::Output { bytes, .. } => self.log.push(&bytes),
            ProcessEvent::Exited { exit, .. } => {
                self.exit = Some(exit);
                self.ended = Some(Instant::now());
            }
            ProcessEvent::Closed { .. } => self.is_closed = true,
            ProcessEvent::Gap(_) => self.log.note_gap(),
            ProcessEvent::ResyncRequired => {}
            ProcessEvent::Failed(reason) => {
                self.failure = Some(reason.to_string());
                self.ended.get_or_insert_with(Instant::now);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_after_the_exit_is_waited_for_until_the_streams_end() {
        let mut state = State::default();
        assert_eq!(state.wait(None), Wait::Open);
        let ended = Instant::now();
        state.ended = Some(ended);
        for piece in [&b"late"[..], b"later"] {
            state.log.push(piece);
            assert_eq!(state.wait(None), Wait::Until(ended + AFTER_EXIT));
        }
        assert_eq!(state.wait(Some(4)), Wait::Over);
        assert_eq!(state.wait(Some(9)), Wait::Until(ended + AFTER_EXIT));
        state.is_closed = true;
        assert_eq!(state.wait(Some(9)), Wait::Over);
    }
}
