//! The stdin of a command as a byte stream.
//!
//! Owner: the sender task, [`run_sender`]. It retries a write after a disconnect even if no caller polls, and stops when
//! the input ends or a write fails.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};

use tokio::io::AsyncWrite;
use tokio::sync::Notify;

use crate::error::ExecServerError;
use crate::process::ProcessSession;

/// Bytes that are buffered while an earlier write is in flight.
const MAX_BUFFERED_INPUT: usize = 256 * 1024;

/// The stdin of a command.
///
/// Written bytes are sent in the background; a flush waits until the server has accepted all of them. Shutdown or drop
/// closes the pipe, on a server that supports `process/closeStdin`.
pub struct ChildStdin {
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    /// Wakes the sender task.
    news: Notify,
}

#[derive(Default)]
struct State {
    buffer: Vec<u8>,
    is_sending: bool,
    /// Set by shutdown or drop: no more bytes are accepted.
    is_ending: bool,
    /// Set after the sender task has sent all bytes and closed the pipe.
    is_over: bool,
    error: Option<ExecServerError>,
    waker: Option<Waker>,
}

impl ChildStdin {
    /// `ends` says whether stdin is a pipe that is closed at the end; a terminal is not closed.
    pub(crate) fn new(session: ProcessSession, ends: bool) -> Self {
        let shared = Arc::new(Shared { state: Mutex::default(), news: Notify::new() });
        // The task stops after this handle is dropped or shut down.
        tokio::spawn(run_sender(shared.clone(), session, ends));
        Self { shared }
    }

    fn poll_until(
        &self,
        cx: &mut Context,
        is_so: impl Fn(&State) -> bool,
    ) -> Poll<Result<MutexGuard<'_, State>, ExecServerError>> {
        let mut state = self.shared.lock();
        if let Some(error) = &state.error {
            return Poll::Ready(Err(error.clone()));
        }
        if is_so(&state) {
            return Poll::Ready(Ok(state));
        }
        state.waker = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl AsyncWrite for ChildStdin {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let has_room = |state: &State| state.buffer.len() < MAX_BUFFERED_INPUT;
        let Poll::Ready(state) = self.poll_until(cx, has_room) else { return Poll::Pending };
        let mut state = state?;
        if state.is_ending {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let count = bytes.len().min(MAX_BUFFERED_INPUT - state.buffer.len());
        state.buffer.extend_from_slice(&bytes[..count]);
        drop(state);
        self.shared.news.notify_one();
        Poll::Ready(Ok(count))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context) -> Poll<io::Result<()>> {
        let is_sent = |state: &State| state.buffer.is_empty() && !state.is_sending;
        self.poll_until(cx, is_sent).map(|state| state.map(drop).map_err(io::Error::from))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context) -> Poll<io::Result<()>> {
        self.shared.end();
        let is_over = |state: &State| state.is_over;
        self.poll_until(cx, is_over).map(|state| state.map(drop).map_err(io::Error::from))
    }
}

impl Drop for ChildStdin {
    fn drop(&mut self) {
        self.shared.end();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder panics")
    }

    fn end(&self) {
        self.lock().is_ending = true;
        self.news.notify_one();
    }

    /// Changes the state and wakes the waiting writer.
    fn update(&self, change: impl FnOnce(&mut State)) {
        let waker = {
            let mut state = self.lock();
            change(&mut state);
            state.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// Sends buffered bytes until the input ends or a write fails.
async fn run_sender(shared: Arc<Shared>, session: ProcessSession, ends: bool) {
    loop {
        let (bytes, is_ending) = {
            let mut state = shared.lock();
            state.is_sending = !state.buffer.is_empty();
            (std::mem::take(&mut state.buffer), state.is_ending)
        };
        let result = if !bytes.is_empty() {
            shared.update(|_| {});
            session.write(&bytes).await
        } else if is_ending {
            let result = if ends { session.close_stdin().await } else { Ok(()) };
            shared.update(|state| {
                state.is_over = true;
                state.error = result.err();
            });
            return;
        } else {
            shared.news.notified().await;
            continue;
        };
        shared.update(|state| state.is_sending = false);
        if let Err(error) = result {
            shared.update(|state| state.error = Some(error));
            return;
        }
    }
}
