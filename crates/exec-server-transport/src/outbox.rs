//! Send queue of one peer: replies have priority, bulk output is bounded.
//!
//! Owner: the connection drains the queue; any task may hold an [`Outbox`] and push.
//! Invariant: each lane keeps its order. A bulk message needs a [`Slot`], so a slow peer slows its producers; slots are
//! granted in request order, so producers share the peer fairly.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Waker};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

/// Limit of queued bulk output per peer: keeps a socket busy without a long delay for later messages.
const BULK_BYTES: usize = 512 * 1024;
/// Slots are counted in units of this size, which also bounds the number of tiny messages.
const UNIT: usize = 1024;

/// A cheap, cloneable handle that pushes messages to one peer.
#[derive(Debug, Clone)]
pub struct Outbox {
    shared: Arc<Shared>,
}

/// Reserved space for one bulk message.
#[derive(Debug)]
pub struct Slot {
    permit: OwnedSemaphorePermit,
}

/// Counts the memory of an unanswered request; above a limit the connection stops reading from the peer.
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

/// Where the memory of a reply is accounted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Payment {
    /// A small reply, counted against the peer's unread messages.
    Unpaid,
    /// Reserved beforehand in another budget.
    Paid,
}

/// Estimated overhead of a queued message.
const AROUND_MESSAGE_BYTES: usize = 96;

/// New requests start only while the memory of unread small messages is below this.
const ROOM_BYTES: usize = 2 * 1024 * 1024;

/// Close code and text that the peer sees.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CloseReason {
    /// A websocket close code.
    pub code: u16,
    /// Human-readable text.
    pub reason: String,
}

impl CloseReason {
    /// The peer answered no ping.
    pub(crate) fn silent() -> Self {
        Self { code: 1001, reason: "no sign of life".to_owned() }
    }
}

/// The connection is closed or closing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the connection is closed")]
pub struct Closed;

/// Numbers a ping, so that its pong is not confused with an earlier one.
pub(crate) type PingNumber = u64;
/// Number of keepalive pings, which no caller waits for.
const NO_PROBE: PingNumber = 0;

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// Whether the peer takes binary messages.
    takes_binary: AtomicBool,
    bulk: Arc<Semaphore>,
}

#[derive(Debug, Default)]
struct State {
    replies: VecDeque<(Bytes, Payment)>,
    reply_bytes: usize,
    bulk: VecDeque<Bulk>,
    /// Last message for carriers without close reasons, such as a relay stream.
    notice: Option<Bytes>,
    /// Memory of queued messages that were not reserved.
    unpaid_bytes: usize,
    /// Whether new requests wait for the peer to read some of these messages.
    wants_room: bool,
    /// Whether the carrier has no pings.
    cannot_ping: bool,
    /// Whether the carrier has binary messages.
    carries_binary: bool,
    /// Requests answered since the last `take_finished`.
    finished: usize,
    /// Bytes of large requests that are not answered yet.
    held_bytes: usize,
    ping: Option<PingNumber>,
    last_probe: PingNumber,
    /// Callers that wait for a pong.
    probes: Vec<(PingNumber, oneshot::Sender<()>)>,
    close: Option<CloseReason>,
    /// Whether bulk output is sent before the close.
    close_in_order: bool,
    is_closed: bool,
    /// Whether the connection task waits; an awake one polls the queue anyway, so waking it would cost a turn.
    is_asleep: bool,
    waker: Option<Waker>,
}

/// Entries of the bulk lane.
#[derive(Debug)]
enum Bulk {
    Message(Bytes, Option<Slot>),
    /// Asks for confirmation of everything queued before it.
    Mark(oneshot::Sender<()>),
}

impl Default for Outbox {
    fn default() -> Self {
        let bulk = Arc::new(Semaphore::new(BULK_BYTES / UNIT));
        let takes_binary = AtomicBool::new(false);
        Self { shared: Arc::new(Shared { state: Mutex::default(), takes_binary, bulk }) }
    }
}

impl Outbox {
    /// Queues a reply or control message ahead of bulk output.
    pub fn push_reply(&self, message: impl Into<Bytes>) {
        self.push_paid_reply(message, Payment::Unpaid);
    }

    /// Queues a reply whose memory may be accounted elsewhere.
    pub fn push_paid_reply(&self, message: impl Into<Bytes>, payment: Payment) {
        let message = message.into();
        self.update(|state| state.push_reply(message, payment));
    }

    /// Queues the reply to a request that counts as running.
    pub fn finish_request(&self, message: impl Into<Bytes>, payment: Payment) {
        let message = message.into();
        self.update(|state| {
            state.finished += 1;
            state.push_reply(message, payment);
        });
    }

    /// Whether another request may be started; if not, the connection reports [`Event::Finished`] once it may.
    ///
    /// [`Event::Finished`]: crate::connection::Event::Finished
    pub fn has_room(&self) -> bool {
        let mut state = self.lock();
        state.wants_room = state.unpaid_bytes >= ROOM_BYTES;
        !state.wants_room
    }

    /// Waits until the peer has answered a ping; returns at once on a carrier without pings.
    pub async fn wait_for_reader(&self) -> Result<(), Closed> {
        let (probe, sign) = oneshot::channel();
        if self.lock().cannot_ping {
            return Ok(());
        }
        self.push_probe(probe);
        sign.await.map_err(|_| Closed)
    }

    /// Waits for space for one bulk message of about `bytes`.
    pub async fn reserve(&self, bytes: usize) -> Result<Slot, Closed> {
        let units = units(bytes);
        let permit =
            self.shared.bulk.clone().acquire_many_owned(units).await.map_err(|_| Closed)?;
        Ok(Slot { permit })
    }

    /// Queues a bulk message and releases the unused part of its slot.
    pub fn push_bulk(&self, mut slot: Slot, message: impl Into<Bytes>) {
        let message = message.into();
        let spare = slot.permit.num_permits().saturating_sub(units(message.len()) as usize);
        drop(slot.permit.split(spare));
        self.update(|state| state.bulk.push_back(Bulk::Message(message, Some(slot))));
    }

    /// Queues a small message behind bulk output, without a slot; only for rare events.
    pub fn push_in_order(&self, message: impl Into<Bytes>) {
        let message = message.into();
        self.update(|state| {
            state.unpaid_bytes += memory_of(&message);
            state.bulk.push_back(Bulk::Message(message, None));
        });
    }

    /// Resolves when the peer has received everything queued so far; fails if the connection ends before that.
    ///
    /// On a carrier without pings, resolves when the carrier has accepted everything.
    pub fn delivered(&self) -> oneshot::Receiver<()> {
        let (mark, delivered) = oneshot::channel();
        self.update(|state| state.bulk.push_back(Bulk::Mark(mark)));
        delivered
    }

    /// Whether both handles belong to the same peer.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// Counts the bytes of a request until the result is dropped.
    pub fn hold(&self, bytes: usize) -> Held {
        self.lock().held_bytes += bytes;
        Held { outbox: self.clone(), bytes }
    }

    /// Whether the carrier has pings, so that silence is a sign of a dead peer.
    pub fn can_ping(&self) -> bool {
        !self.lock().cannot_ping
    }

    /// Allows binary messages to the peer, which asked for them, if the carrier has them.
    pub fn allow_binary(&self, is_asked: bool) {
        let is_allowed = is_asked && self.lock().carries_binary;
        self.shared.takes_binary.store(is_allowed, Ordering::Relaxed);
    }

    /// Whether binary messages may be sent to the peer.
    pub fn takes_binary(&self) -> bool {
        self.shared.takes_binary.load(Ordering::Relaxed)
    }

    /// Returns whether the connection ends within `timeout`.
    pub async fn ends_within(&self, timeout: Duration) -> bool {
        let (probe, end) = oneshot::channel();
        {
            let mut state = self.lock();
            if state.is_closed {
                return true;
            }
            state.probes.retain(|(_, waiting)| !waiting.is_closed());
            // No pong has this number; the end of the connection drops the sender.
            state.probes.push((PingNumber::MAX, probe));
        }
        tokio::time::timeout(timeout, end).await.is_ok()
    }

    /// Pings the peer and returns whether a pong came within `timeout`.
    pub async fn probe(&self, timeout: Duration) -> bool {
        let (probe, sign) = oneshot::channel();
        self.push_probe(probe);
        matches!(tokio::time::timeout(timeout, sign).await, Ok(Ok(())))
    }

    /// Closes the connection after the queued replies.
    pub fn close(&self, code: u16, reason: impl Into<String>) {
        let reason = CloseReason { code, reason: reason.into() };
        self.update(|state| state.close = state.close.take().or(Some(reason)));
    }

    /// Sets the message that [`Outbox::close_with_notice`] sends before closing.
    pub fn set_notice(&self, notice: impl Into<Bytes>) {
        self.lock().notice = Some(notice.into());
    }

    /// Closes the connection after the queued replies and the notice, if one was set.
    pub fn close_with_notice(&self, code: u16, reason: impl Into<String>) {
        let notice = self.lock().notice.take();
        if let Some(notice) = notice {
            self.push_reply(notice);
        }
        self.close(code, reason);
    }

    /// Closes the connection after everything queued.
    pub fn close_in_order(&self, code: u16, reason: impl Into<String>) {
        let reason = CloseReason { code, reason: reason.into() };
        self.update(|state| {
            state.close_in_order = true;
            state.close = state.close.take().or(Some(reason));
        });
    }

    /// Whether the connection has ended, so that pushed messages are dropped.
    pub fn is_closed(&self) -> bool {
        self.lock().is_closed
    }

    fn push_probe(&self, probe: oneshot::Sender<()>) {
        self.update(|state| {
            state.last_probe += 1;
            state.ping = Some(state.last_probe);
            state.probes.push((state.last_probe, probe));
        });
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

impl State {
    fn push_reply(&mut self, message: Bytes, payment: Payment) {
        self.reply_bytes += message.len();
        if payment == Payment::Unpaid {
            self.unpaid_bytes += memory_of(&message);
        }
        self.replies.push_back((message, payment));
    }

    fn take_reply(&mut self) -> Option<Bytes> {
        let (message, payment) = self.replies.pop_front()?;
        self.reply_bytes -= message.len();
        if payment == Payment::Unpaid {
            self.unpaid_bytes -= memory_of(&message);
        }
        Some(message)
    }

    fn take_bulk(&mut self) -> Option<Bulk> {
        let next = self.bulk.pop_front()?;
        if let Bulk::Message(message, None) = &next {
            self.unpaid_bytes -= memory_of(message);
        }
        Some(next)
    }

    fn has_new_room(&self) -> bool {
        self.wants_room && self.unpaid_bytes < ROOM_BYTES / 2
    }
}

fn memory_of(message: &Bytes) -> usize {
    message.len() + AROUND_MESSAGE_BYTES
}

/// The next messages and control frames to write.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    pub messages: Vec<Bytes>,
    pub slots: Vec<Slot>,
    /// Resolved when the peer has received the messages.
    pub marks: Vec<oneshot::Sender<()>>,
    pub ping: Option<PingNumber>,
    pub close: Option<CloseReason>,
}

impl Batch {
    pub(crate) fn is_empty(&self) -> bool {
        self.messages.is_empty()
            && self.marks.is_empty()
            && self.ping.is_none()
            && self.close.is_none()
    }
}

/// Memory held for a peer.
pub(crate) struct Backlog {
    /// Bytes of queued replies.
    pub unsent_reply_bytes: usize,
    /// Memory of queued small messages.
    pub unpaid_bytes: usize,
    /// Bytes of large requests that are not answered yet.
    pub held_bytes: usize,
}

/// Size of one batch; a later reply waits for at most one batch.
const BATCH_BYTES: usize = 256 * 1024;

impl Outbox {
    /// The next batch, if there is anything to send.
    pub(crate) fn next_batch(&self) -> Option<Batch> {
        let mut state = self.lock();
        let mut batch = Batch { ping: state.ping.take(), ..Batch::default() };
        let mut bytes = 0;
        while bytes < BATCH_BYTES
            && let Some(message) = state.take_reply()
        {
            bytes += message.len();
            batch.messages.push(message);
        }
        if state.replies.is_empty() && !state.close_in_order {
            batch.close = state.close.take();
        }
        while bytes < BATCH_BYTES
            && batch.close.is_none()
            && let Some(next) = state.take_bulk()
        {
            match next {
                Bulk::Message(message, slot) => {
                    bytes += message.len();
                    batch.messages.push(message);
                    batch.slots.extend(slot);
                }
                Bulk::Mark(mark) => batch.marks.push(mark),
            }
        }
        if state.replies.is_empty() && state.bulk.is_empty() && batch.close.is_none() {
            batch.close = state.close.take();
        }
        (!batch.is_empty()).then_some(batch)
    }

    /// Marks the connection as awake; returns the number of requests answered since the last call, or `Some(0)` if only
    /// room for new requests has become free.
    pub(crate) fn take_finished(&self) -> Option<usize> {
        let mut state = self.lock();
        state.is_asleep = false;
        let has_new_room = state.has_new_room();
        state.wants_room &= !has_new_room;
        let finished = std::mem::take(&mut state.finished);
        (finished > 0 || has_new_room).then_some(finished)
    }

    /// Records that the carrier has no pings.
    pub fn set_cannot_ping(&self) {
        self.lock().cannot_ping = true;
    }

    /// Records that the carrier has binary messages.
    pub(crate) fn set_carries_binary(&self) {
        self.lock().carries_binary = true;
    }

    /// Registers the waker; returns false if there is work to do already.
    pub(crate) fn fall_asleep(&self, cx: &mut Context, is_writing: bool) -> bool {
        let mut state = self.lock();
        let has_more = !state.replies.is_empty()
            || !state.bulk.is_empty()
            || state.ping.is_some()
            || state.close.is_some();
        if state.finished > 0 || state.has_new_room() || (has_more && !is_writing) {
            return false;
        }
        state.is_asleep = true;
        if !state.waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            state.waker = Some(cx.waker().clone());
        }
        true
    }

    /// Requests a keepalive ping.
    pub(crate) fn ping(&self) {
        self.update(|state| state.ping = state.ping.or(Some(NO_PROBE)));
    }

    /// Numbers a ping whose pong confirms `marks`; a pong also confirms all earlier pings.
    pub(crate) fn number_marks(&self, marks: Vec<oneshot::Sender<()>>) -> PingNumber {
        let mut state = self.lock();
        state.last_probe += 1;
        let number = state.last_probe;
        if !state.is_closed {
            state.probes.extend(marks.into_iter().map(|mark| (number, mark)));
        }
        number
    }

    /// Confirms this ping and all earlier ones, but no later ones.
    pub(crate) fn handle_pong(&self, number: PingNumber) {
        let mut state = self.lock();
        for (_, probe) in state.probes.extract_if(.., |(asked, _)| *asked <= number) {
            // The receiver may have timed out.
            let _ = probe.send(());
        }
    }

    /// Current memory held for this peer.
    pub(crate) fn backlog(&self) -> Backlog {
        let state = self.lock();
        Backlog {
            unsent_reply_bytes: state.reply_bytes,
            unpaid_bytes: state.unpaid_bytes,
            held_bytes: state.held_bytes,
        }
    }

    /// Ends the queue: drops its messages and fails all waiting callers.
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
    async fn small_messages_that_are_not_taken_leave_no_room_for_more_requests() {
        let outbox = Outbox::default();
        let text = "x".repeat(64 * 1024);
        outbox.finish_request(text.clone(), Payment::Paid);
        while outbox.has_room() {
            outbox.push_reply(text.clone());
            outbox.push_in_order(text.clone());
        }
        assert_eq!(outbox.take_finished(), Some(1));
        assert_eq!(outbox.take_finished(), None);
        let taken: usize =
            std::iter::from_fn(|| outbox.take_finished().is_none().then(|| batch(&outbox)))
                .flatten()
                .map(|batch| batch.messages.len())
                .sum();
        assert!(taken > ROOM_BYTES / 2 / text.len(), "{taken}");
        assert_eq!(outbox.take_finished(), None, "reported once");
        while batch(&outbox).is_some() {}
        assert_eq!(outbox.backlog().unpaid_bytes, 0);
    }

    #[tokio::test]
    async fn a_peer_that_reads_is_known_by_its_pong() {
        let outbox = Outbox::default();
        let waiting = tokio::spawn({
            let outbox = outbox.clone();
            async move { outbox.wait_for_reader().await }
        });
        tokio::task::yield_now().await;
        let ping = batch(&outbox).unwrap().ping.unwrap();
        outbox.handle_pong(ping);
        assert_eq!(waiting.await.unwrap(), Ok(()));
        outbox.set_cannot_ping();
        assert_eq!(outbox.wait_for_reader().await, Ok(()));
    }

    #[tokio::test]
    async fn queued_messages_are_delivered_when_a_later_ping_is_answered() {
        let outbox = Outbox::default();
        let slot = outbox.reserve(1).await.unwrap();
        outbox.push_bulk(slot, "bulk");
        let mut delivered = outbox.delivered();
        let first = batch(&outbox).unwrap();
        assert_eq!((first.messages.len(), first.marks.len()), (1, 1));
        let number = outbox.number_marks(first.marks);
        outbox.handle_pong(number - 1);
        assert!(delivered.try_recv().is_err(), "an earlier ping was answered");
        outbox.handle_pong(number);
        assert!(delivered.try_recv().is_ok());
        let lost = outbox.delivered();
        outbox.shut();
        assert!(lost.await.is_err() && outbox.delivered().await.is_err());
    }

    #[test]
    fn binary_messages_need_a_carrier_and_a_peer_that_takes_them() {
        let outbox = Outbox::default();
        outbox.allow_binary(true);
        assert!(!outbox.takes_binary(), "a carrier of text");
        outbox.set_carries_binary();
        assert!(!outbox.takes_binary());
        outbox.allow_binary(true);
        assert!(outbox.takes_binary());
        outbox.allow_binary(false);
        assert!(!outbox.takes_binary(), "the last `initialize` counts");
    }

    #[tokio::test]
    async fn a_closed_connection_fails_all_waiting_callers() {
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
