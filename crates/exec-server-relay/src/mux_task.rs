//! Runs an executor's relay socket and the streams on it.
//!
//! Owner: one task per socket ([`run_relay`]). Each open stream is a [`StreamWire`] owned by its connection.
//! The socket task and the connection share a small mutex-protected state with a waker for each side.

use std::collections::{BTreeMap, VecDeque};
use std::future::{Future, pending, poll_fn};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker, ready};
use std::time::Instant;

use crate::handshake_limit::{Refusal, Verdict};
use crate::mux::{Mux, MuxOutput, StreamKey};
use crate::noise::SystemRandom;
use crate::registry_types::PublicKey;
use crate::stream::StreamError;
use bytes::Bytes;
use tokio::sync::{mpsc, watch};
use tokio::task::{Id, JoinSet};

use crate::harness_wire::start_batch;
use exec_server_transport::connection::{Ended, InMessage, Received, Wire, WireError};
use exec_server_transport::keepalive_timer::{KeepaliveAction, KeepaliveConfig, KeepaliveTimer};
use exec_server_transport::outbox::CloseReason;

/// Callbacks from the relay socket to the executor.
pub trait RelayHost {
    /// Asks the registry whether a harness is allowed; the implementation applies its own timeout.
    fn validate(
        &self,
        stream_id: String,
        harness: PublicKey,
        authorization: String,
    ) -> impl Future<Output = Verdict> + Send + 'static;
    /// Reports a refused handshake.
    fn refused(&self, stream_id: &str, why: Refusal);
    /// Starts to serve a stream that has just opened; must not block.
    fn serve(&self, wire: StreamWire, harness: PublicKey);
}

/// A stream accepts no more messages from its connection while this much is queued in the socket task.
const MAX_QUEUED_BYTES: usize = 512 * 1024;
/// Bounds the reads of one turn, so that a busy relay cannot starve the writes.
const READS_PER_WRITE: usize = 64;

/// Runs a relay socket and its streams until the socket ends; once `leaving` is true, until the last stream has ended.
pub async fn run_relay(
    socket: Box<dyn Wire>,
    mux: Mux<SystemRandom>,
    pings: KeepaliveConfig,
    host: &impl RelayHost,
    leaving: watch::Receiver<bool>,
) -> Ended {
    let (changed_sender, changed) = mpsc::unbounded_channel();
    let mut relay = Relay {
        socket,
        mux,
        host,
        streams: BTreeMap::new(),
        changed,
        changed_sender,
        validations: JoinSet::new(),
        asked: BTreeMap::new(),
        keepalive: KeepaliveTimer::new(pings),
        is_leaving: false,
    };
    let mut leaving = pin!(leave_requested(leaving));
    let ended = poll_fn(|cx| {
        relay.is_leaving = relay.is_leaving || leaving.as_mut().poll(cx).is_ready();
        relay.poll(cx)
    });
    ended.await
}

/// A dropped sender means that the executor never asks the socket to close.
async fn leave_requested(mut leaving: watch::Receiver<bool>) {
    if leaving.wait_for(|leave| *leave).await.is_err() {
        pending::<()>().await;
    }
}

struct Relay<'a, H> {
    socket: Box<dyn Wire>,
    mux: Mux<SystemRandom>,
    host: &'a H,
    streams: BTreeMap<StreamKey, Arc<Shared>>,
    /// Keys of streams whose shared state was changed by their connection.
    changed: mpsc::UnboundedReceiver<StreamKey>,
    changed_sender: mpsc::UnboundedSender<StreamKey>,
    validations: JoinSet<Verdict>,
    /// The stream of each task in `validations`.
    asked: BTreeMap<Id, StreamKey>,
    keepalive: KeepaliveTimer,
    is_leaving: bool,
}

impl<H: RelayHost> Relay<'_, H> {
    fn poll(&mut self, cx: &mut Context) -> Poll<Ended> {
        loop {
            let mut is_paused = self.poll_streams(cx);
            match self.poll_socket(cx) {
                Ok(more) => is_paused |= more,
                Err(ended) => return Poll::Ready(ended),
            }
            self.handle_outputs();
            // After `handle_outputs`, so that the waker is registered for validations that it started.
            self.poll_validations(cx);
            self.handle_outputs();
            match self.poll_pump(cx) {
                Poll::Ready(Err(error)) => return Poll::Ready(Ended::Broken(error)),
                Poll::Ready(Ok(())) if self.is_leaving && self.streams.is_empty() => {
                    return Poll::Ready(self.close_socket(cx));
                }
                Poll::Ready(Ok(())) | Poll::Pending => {}
            }
            match self.poll_keepalive(cx) {
                Ok(true) => is_paused = true,
                Ok(false) => {}
                Err(ended) => return Poll::Ready(ended),
            }
            if !is_paused {
                return Poll::Pending;
            }
        }
    }

    /// Applies changes made by connections; true if more may be queued.
    fn poll_streams(&mut self, cx: &mut Context) -> bool {
        for _ in 0..READS_PER_WRITE {
            match self.changed.poll_recv(cx) {
                Poll::Ready(Some(key)) => self.handle_changed(key),
                Poll::Ready(None) | Poll::Pending => return false,
            }
        }
        true
    }

    /// Passes finished validations to the mux.
    fn poll_validations(&mut self, cx: &mut Context) {
        while let Poll::Ready(Some(done)) = self.validations.poll_join_next_with_id(cx) {
            let (id, verdict) = match done {
                Ok(done) => done,
                // A validation that panicked must not admit the harness.
                Err(error) => (error.id(), Verdict::Unknown),
            };
            let stream = self.asked.remove(&id).expect("entered when the validation was spawned");
            self.mux.handle_validated(Instant::now(), stream, verdict);
        }
    }

    /// Reads frames; true if more may be waiting.
    fn poll_socket(&mut self, cx: &mut Context) -> Result<bool, Ended> {
        for _ in 0..READS_PER_WRITE {
            match self.socket.poll_next(cx) {
                Poll::Pending => return Ok(false),
                Poll::Ready(None) => return Err(Ended::ByPeer),
                Poll::Ready(Some(Err(error))) => return Err(Ended::Broken(error)),
                Poll::Ready(Some(Ok(received))) => {
                    self.keepalive.handle_activity();
                    // Text is ignored, for compatibility with other executors.
                    if let Received::Message(InMessage::Bytes(frame)) = received {
                        self.mux.handle_frame(Instant::now(), frame);
                    }
                }
            }
        }
        Ok(true)
    }

    fn handle_outputs(&mut self) {
        while let Some(output) = self.mux.poll_output() {
            match output {
                MuxOutput::Validate { stream, stream_id, harness, authorization } => {
                    let asked = self.host.validate(stream_id, harness, authorization);
                    let id = self.validations.spawn(asked).id();
                    self.asked.insert(id, stream);
                }
                MuxOutput::Opened { stream, stream_id, harness } => {
                    tracing::debug!(stream_id, "relay stream opened");
                    let shared = Arc::new(Shared {
                        key: stream,
                        stream_id,
                        changed: self.changed_sender.clone(),
                        state: Mutex::default(),
                    });
                    self.streams.insert(stream, shared.clone());
                    self.host.serve(StreamWire { shared }, harness);
                }
                MuxOutput::Refused { stream_id, why } => self.host.refused(&stream_id, why),
                MuxOutput::Message { stream, message } => {
                    if let Some(shared) = self.streams.get(&stream) {
                        let mut state = shared.lock();
                        state.inbox.push_back(message);
                        wake(&mut state.reader);
                    }
                }
                MuxOutput::Ended { stream, why } => {
                    if let Some(shared) = self.streams.remove(&stream) {
                        let (stream_id, why_text) = (&shared.stream_id, why.to_string());
                        tracing::info!(stream_id, why = why_text, "harness disconnected");
                        shared.end(Some(why));
                    }
                }
            }
        }
    }

    /// A connection took messages, queued messages or was dropped.
    fn handle_changed(&mut self, key: StreamKey) {
        let Some(shared) = self.streams.get(&key).cloned() else { return };
        let mut state = shared.lock();
        state.is_queued = false;
        self.mux.take(key, std::mem::take(&mut state.taken_bytes));
        for message in std::mem::take(&mut state.outgoing) {
            // Unreachable in practice: the outbox limits the message length.
            if let Err(error) = self.mux.send(key, message) {
                tracing::warn!(%error, "relay stream dropped a message");
            }
        }
        self.settle(&mut state, key);
    }

    /// Updates the queue length that a connection sees, and closes the stream of a dropped one once drained.
    fn settle(&mut self, state: &mut State, key: StreamKey) {
        state.queued_bytes = self.mux.queued_bytes(key);
        if state.queued_bytes < MAX_QUEUED_BYTES {
            wake(&mut state.writer);
        }
        if state.is_closing && state.queued_bytes == 0 {
            self.mux.close(key);
            if let Some(shared) = self.streams.remove(&key) {
                tracing::info!(stream_id = shared.stream_id, "relay stream closed by the executor");
            }
        }
    }

    /// Ready when every frame that may be sent now is flushed.
    fn poll_pump(&mut self, cx: &mut Context) -> Poll<Result<(), WireError>> {
        loop {
            ready!(self.socket.poll_flush(cx))?;
            if !start_batch(&mut *self.socket, || Ok(self.mux.poll_frame()))? {
                return Poll::Ready(Ok(()));
            }
            let waiting: Vec<_> = self.streams.values().cloned().collect();
            for shared in waiting {
                let mut state = shared.lock();
                if state.queued_bytes > 0 {
                    self.settle(&mut state, shared.key);
                }
            }
        }
    }

    /// Best effort: the close frame is lost if the socket cannot take it immediately.
    fn close_socket(&mut self, cx: &mut Context) -> Ended {
        let reason = CloseReason { code: 1001, reason: "the executor is shutting down".into() };
        if self.socket.start_close(&reason).is_ok() {
            let _ = self.socket.poll_flush(cx);
        }
        Ended::ByUs(reason)
    }

    /// True if a ping was queued.
    fn poll_keepalive(&mut self, cx: &mut Context) -> Result<bool, Ended> {
        let mut has_ping = false;
        while let Poll::Ready(action) = self.keepalive.poll(cx) {
            match action {
                KeepaliveAction::GiveUp => return Err(Ended::Silent),
                KeepaliveAction::Ping => {
                    self.socket.start_ping(0).map_err(Ended::Broken)?;
                    has_ping = true;
                }
            }
        }
        Ok(has_ping)
    }
}

impl<H> Drop for Relay<'_, H> {
    fn drop(&mut self) {
        for shared in self.streams.values() {
            shared.end(None);
        }
    }
}

/// The connection's end of one stream.
pub struct StreamWire {
    shared: Arc<Shared>,
}

impl StreamWire {
    /// The id that harness, relay, registry and executor log for this stream.
    pub fn stream_id(&self) -> &str {
        &self.shared.stream_id
    }

    /// Waits until the stream has ended; messages received before can still be read.
    pub async fn ended(&mut self) {
        poll_fn(|cx| {
            let mut state = self.shared.lock();
            if state.end.is_some() {
                return Poll::Ready(());
            }
            state.reader = Some(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }
}

/// Shared by the socket task and a stream's connection.
struct Shared {
    key: StreamKey,
    stream_id: String,
    changed: mpsc::UnboundedSender<StreamKey>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    inbox: VecDeque<Bytes>,
    /// Bytes that the connection took since the socket task last read this.
    taken_bytes: usize,
    outgoing: Vec<Bytes>,
    /// Bytes queued in the socket task, as of its last update.
    queued_bytes: usize,
    sent_bytes: u64,
    is_queued: bool,
    is_closing: bool,
    end: Option<Option<StreamError>>,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder panics")
    }

    /// Queues the stream's key for the socket task, once until the task has handled it.
    fn notify(&self, state: &mut State) {
        if !std::mem::replace(&mut state.is_queued, true) {
            // Sending fails only after the socket task has ended the stream.
            let _ = self.changed.send(self.key);
        }
    }

    fn end(&self, why: Option<StreamError>) {
        let mut state = self.lock();
        state.end.get_or_insert(why);
        wake(&mut state.reader);
        wake(&mut state.writer);
    }
}

impl Wire for StreamWire {
    fn poll_next(&mut self, cx: &mut Context) -> Poll<Option<Result<Received, WireError>>> {
        let mut state = self.shared.lock();
        if let Some(message) = state.inbox.pop_front() {
            state.taken_bytes += message.len();
            self.shared.notify(&mut state);
            return Poll::Ready(Some(Ok(Received::Message(InMessage::Bytes(message)))));
        }
        match state.end.take() {
            Some(why) => {
                state.end = Some(None);
                Poll::Ready(why.map(|why| Err(why.into())))
            }
            None => {
                state.reader = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }

    fn start_send(&mut self, message: Bytes) -> Result<(), WireError> {
        let mut state = self.shared.lock();
        if state.end.is_none() {
            state.sent_bytes += message.len() as u64;
            state.outgoing.push(message);
            self.shared.notify(&mut state);
        }
        Ok(())
    }

    fn poll_flush(&mut self, cx: &mut Context) -> Poll<Result<(), WireError>> {
        let mut state = self.shared.lock();
        let has_left = state.outgoing.is_empty() && state.queued_bytes < MAX_QUEUED_BYTES;
        if has_left || state.end.is_some() {
            return Poll::Ready(Ok(()));
        }
        state.writer = Some(cx.waker().clone());
        Poll::Pending
    }

    fn bytes_sent(&self) -> u64 {
        let state = self.shared.lock();
        state.sent_bytes - state.queued_bytes.min(state.sent_bytes as usize) as u64
    }

    fn carries_binary(&self) -> bool {
        true
    }

    fn describe(&self) -> String {
        "failed to parse JSON-RPC message from relay stream".to_owned()
    }
}

impl Drop for StreamWire {
    /// The socket task still sends the queued messages, then resets the stream.
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.is_closing = true;
        self.shared.notify(&mut state);
    }
}

fn wake(waker: &mut Option<Waker>) {
    if let Some(waker) = waker.take() {
        waker.wake();
    }
}

#[cfg(test)]
mod tests;
