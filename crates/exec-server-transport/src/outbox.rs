//! The queue in front of one peer: replies and control go ahead, bulk output waits its turn and is bounded.
//!
//! Owner: the connection drains it; anyone may hold an [`Outbox`] and push.
//! Invariant: each lane keeps its order. A bulk message needs a [`Slot`] taken beforehand, so a slow peer slows its
//! producers; slots are given in the order in which they were asked for, so producers share the peer fairly.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Waker};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

/// Bulk output queued for one peer: enough to keep a socket busy, little enough to wait behind.
const BULK_BYTES: usize = 512 * 1024;
/// Slots are counted in pieces of this size, so that tiny messages are bounded in number as well.
const UNIT: usize = 1024;

/// A handle to push messages to one peer; cheap to clone.
#[derive(Debug, Clone)]
pub struct Outbox {
    shared: Arc<Shared>,
}

/// The right to queue one bulk message.
#[derive(Debug)]
pub struct Slot {
    permit: OwnedSemaphorePermit,
}

/// Requests that wait to be answered are in memory; while they are held the peer is not read beyond a limit.
#[derive(Debug)]
pub struct Held {
    outbox: Outbox,
    bytes: usize,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.outbox.update(|state| state.held_bytes -= self.bytes);
    }
}

/// Why a connection is to be closed, as the peer will see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CloseReason {
    /// A websocket close code.
    pub code: u16,
    /// A short text for people.
    pub reason: String,
}

impl CloseReason {
    /// The peer gave no sign of life.
    pub(crate) fn silent() -> Self {
        Self { code: 1001, reason: "no sign of life".to_owned() }
    }
}

/// The peer is gone, or will be told to go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the connection is closed")]
pub struct Closed;

/// Tells the answer to one ping from the answers to earlier ones.
pub(crate) type PingNumber = u64;
/// The number of pings that nobody in particular waits for.
const NO_PROBE: PingNumber = 0;

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    bulk: Arc<Semaphore>,
}

#[derive(Debug, Default)]
struct State {
    replies: VecDeque<Bytes>,
    reply_bytes: usize,
    bulk: VecDeque<(Bytes, Option<Slot>)>,
    /// Requests answered since the connection last asked.
    finished: usize,
    /// Bytes of large requests that are not answered yet.
    held_bytes: usize,
    ping: Option<PingNumber>,
    last_probe: PingNumber,
    /// Those who wait for the answer to a ping.
    probes: Vec<(PingNumber, oneshot::Sender<()>)>,
    close: Option<CloseReason>,
    /// Whether the close waits for bulk output as well.
    close_in_order: bool,
    is_closed: bool,
    /// Whether the connection sleeps; while it is awake it looks for itself, and a wake-up would cost it a turn.
    is_asleep: bool,
    waker: Option<Waker>,
}

impl Default for Outbox {
    fn default() -> Self {
        let bulk = Arc::new(Semaphore::new(BULK_BYTES / UNIT));
        Self { shared: Arc::new(Shared { state: Mutex::default(), bulk }) }
    }
}

impl Outbox {
    /// Queues a reply or another message that must not wait behind bulk output.
    pub fn push_reply(&self, message: impl Into<Bytes>) {
        let message = message.into();
        self.update(|state| {
            state.reply_bytes += message.len();
            state.replies.push_back(message);
        });
    }

    /// Queues the reply to a request that was counted as running.
    pub fn finish_request(&self, message: impl Into<Bytes>) {
        let message = message.into();
        self.update(|state| {
            state.finished += 1;
            state.reply_bytes += message.len();
            state.replies.push_back(message);
        });
    }

    /// Waits for room for one bulk message of about `bytes`.
    pub async fn reserve(&self, bytes: usize) -> Result<Slot, Closed> {
        let units = units(bytes);
        let permit =
            self.shared.bulk.clone().acquire_many_owned(units).await.map_err(|_| Closed)?;
        Ok(Slot { permit })
    }

    /// Queues a bulk message; what it does not need of its slot is free for others at once.
    pub fn push_bulk(&self, mut slot: Slot, message: impl Into<Bytes>) {
        let message = message.into();
        let spare = slot.permit.num_permits().saturating_sub(units(message.len()) as usize);
        drop(slot.permit.split(spare));
        self.update(|state| state.bulk.push_back((message, Some(slot))));
    }

    /// Queues a small message that must keep its place behind bulk output; for events that are few by nature.
    pub fn push_in_order(&self, message: impl Into<Bytes>) {
        let message = message.into();
        self.update(|state| state.bulk.push_back((message, None)));
    }

    /// Counts the bytes of a request as long as it takes to answer it.
    pub fn hold(&self, bytes: usize) -> Held {
        self.lock().held_bytes += bytes;
        Held { outbox: self.clone(), bytes }
    }

    /// Asks the peer for a sign of life, and says whether one came in time.
    pub async fn probe(&self, patience: Duration) -> bool {
        let (probe, sign) = oneshot::channel();
        self.update(|state| {
            state.last_probe += 1;
            state.ping = Some(state.last_probe);
            state.probes.push((state.last_probe, probe));
        });
        matches!(tokio::time::timeout(patience, sign).await, Ok(Ok(())))
    }

    /// Ends the connection after what is queued as replies.
    pub fn close(&self, code: u16, reason: impl Into<String>) {
        let reason = CloseReason { code, reason: reason.into() };
        self.update(|state| state.close = state.close.take().or(Some(reason)));
    }

    /// Ends the connection after everything that is queued.
    pub fn close_in_order(&self, code: u16, reason: impl Into<String>) {
        let reason = CloseReason { code, reason: reason.into() };
        self.update(|state| {
            state.close_in_order = true;
            state.close = state.close.take().or(Some(reason));
        });
    }

    /// Whether nothing pushed from now on will arrive.
    pub fn is_closed(&self) -> bool {
        self.lock().is_closed
    }

    fn update(&self, change: impl FnOnce(&mut State)) {
        let waker = {
            let mut state = self.lock();
            if state.is_closed {
                return;
            }
            change(&mut state);
            std::mem::take(&mut state.is_asleep).then(|| state.waker.clone()).flatten()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().expect("no holder panics")
    }
}

/// What the connection should do with its peer next.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    pub messages: Vec<Bytes>,
    pub slots: Vec<Slot>,
    pub ping: Option<PingNumber>,
    pub close: Option<CloseReason>,
}

impl Batch {
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty() && self.ping.is_none() && self.close.is_none()
    }
}

/// What is in memory because of a peer that sends more than it takes.
pub(crate) struct Backlog {
    /// Bytes of replies that the peer has not taken yet.
    pub unsent_reply_bytes: usize,
    /// Bytes of large requests that are not answered yet.
    pub held_bytes: usize,
}

/// Messages are handed to the socket in batches of about this size; later replies wait for no more than one.
const BATCH_BYTES: usize = 256 * 1024;

impl Outbox {
    /// The next batch, if there is anything to send.
    pub(crate) fn next_batch(&self) -> Option<Batch> {
        let mut state = self.lock();
        let mut batch = Batch { ping: state.ping.take(), ..Batch::default() };
        let mut bytes = 0;
        while bytes < BATCH_BYTES
            && let Some(message) = state.replies.pop_front()
        {
            bytes += message.len();
            state.reply_bytes -= message.len();
            batch.messages.push(message);
        }
        if state.replies.is_empty() && !state.close_in_order {
            batch.close = state.close.take();
        }
        while bytes < BATCH_BYTES
            && batch.close.is_none()
            && let Some((message, slot)) = state.bulk.pop_front()
        {
            bytes += message.len();
            batch.messages.push(message);
            batch.slots.extend(slot);
        }
        if state.replies.is_empty() && state.bulk.is_empty() && batch.close.is_none() {
            batch.close = state.close.take();
        }
        (!batch.is_empty()).then_some(batch)
    }

    /// The connection is awake: says how many requests have been answered since it last asked.
    pub(crate) fn take_finished(&self) -> usize {
        let mut state = self.lock();
        state.is_asleep = false;
        std::mem::take(&mut state.finished)
    }

    /// The connection has nothing to do: the next push will wake it. Says no if there was one just now.
    pub(crate) fn fall_asleep(&self, cx: &mut Context, is_writing: bool) -> bool {
        let mut state = self.lock();
        let has_more = !state.replies.is_empty()
            || !state.bulk.is_empty()
            || state.ping.is_some()
            || state.close.is_some();
        if state.finished > 0 || (has_more && !is_writing) {
            return false;
        }
        state.is_asleep = true;
        if !state.waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            state.waker = Some(cx.waker().clone());
        }
        true
    }

    /// Asks the peer for a sign of life; any will do, so the ping has no number of its own.
    pub(crate) fn ping(&self) {
        self.update(|state| state.ping = state.ping.or(Some(NO_PROBE)));
    }

    /// The peer answered a ping. An answer to an earlier one may have been on its way since the peer was alive.
    pub(crate) fn handle_pong(&self, number: PingNumber) {
        let mut state = self.lock();
        for (_, probe) in state.probes.extract_if(.., |(asked, _)| *asked <= number) {
            // Whoever asked may have lost patience.
            let _ = probe.send(());
        }
    }

    /// What is in memory because of this peer.
    pub(crate) fn backlog(&self) -> Backlog {
        let state = self.lock();
        Backlog { unsent_reply_bytes: state.reply_bytes, held_bytes: state.held_bytes }
    }

    /// The connection is gone: drops what is queued and releases everyone who waits.
    pub(crate) fn shut(&self) {
        let dropped = {
            let mut state = self.lock();
            state.is_closed = true;
            state.probes.clear();
            (std::mem::take(&mut state.replies), std::mem::take(&mut state.bulk))
        };
        self.shared.bulk.close();
        drop(dropped);
    }
}

fn units(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(UNIT)).unwrap_or(u32::MAX).clamp(1, (BULK_BYTES / UNIT) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(outbox: &Outbox) -> Option<Batch> {
        outbox.next_batch()
    }

    #[tokio::test]
    async fn replies_go_ahead_of_bulk_and_each_lane_keeps_its_order() {
        let outbox = Outbox::default();
        for text in ["b1", "b2"] {
            let slot = outbox.reserve(10).await.unwrap();
            outbox.push_bulk(slot, text);
        }
        outbox.push_reply("r1");
        outbox.push_reply("r2");
        assert_eq!(batch(&outbox).unwrap().messages, ["r1", "r2", "b1", "b2"]);
        assert!(batch(&outbox).is_none());
    }

    #[tokio::test]
    async fn bulk_is_bounded_until_it_was_sent() {
        let outbox = Outbox::default();
        let mut sent = 0;
        while let Ok(slot) =
            tokio::time::timeout(std::time::Duration::ZERO, outbox.reserve(65536)).await
        {
            outbox.push_bulk(slot.unwrap(), "x".repeat(65536));
            sent += 1;
        }
        assert_eq!(sent, BULK_BYTES / 65536);
        let first = batch(&outbox).unwrap();
        assert_eq!(first.messages.len(), BATCH_BYTES / 65536);
        drop(first);
        outbox.reserve(65536).await.unwrap();
    }

    #[tokio::test]
    async fn a_close_comes_after_the_replies_and_before_bulk() {
        let outbox = Outbox::default();
        let slot = outbox.reserve(1).await.unwrap();
        outbox.push_bulk(slot, "bulk");
        outbox.push_reply("reply");
        outbox.close(1001, "going away");
        let last = batch(&outbox).unwrap();
        assert_eq!(last.messages, ["reply"]);
        assert_eq!(last.close, Some(CloseReason { code: 1001, reason: "going away".into() }));
    }

    #[tokio::test]
    async fn a_gone_connection_releases_everyone() {
        let outbox = Outbox::default();
        let all = outbox.reserve(BULK_BYTES).await.unwrap();
        let waiting = tokio::spawn({
            let outbox = outbox.clone();
            async move { outbox.reserve(1).await.is_err() }
        });
        tokio::task::yield_now().await;
        outbox.shut();
        assert!(waiting.await.unwrap());
        outbox.push_bulk(all, "lost");
        assert!(outbox.is_closed());
    }
}
