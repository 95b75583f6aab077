//! Links between this node and one other: credits, sequence numbers, loss; without clock and I/O.
//!
//! ```text
//!   send ▶ data ──────────▶ queue ▶ pop       credits bound what is between send and pop
//!        ◀────────── credit ◀───────┘
//! mark ▶ every half second while frames are unconfirmed, and rarely while idle; answered by a credit
//! ```
//!
//! A link is one harness's stream: one end is at the node of its websocket, the other at the home node of its executor.
//! Frames are never sent twice and never reordered. Invariant: what `pop` returns is a prefix of what the other end has
//! sent; if a message is missing, doubled or out of order, the link ends at both ends.

mod credit;
mod link;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use exec_server_relay::switchboard::{BufferBudget, Charge, CloseReason};

use crate::wire::{Item, ItemKind};
pub use credit::CreditPool;
use link::End;

/// Links are spread over this many subjects and connections.
pub const LANES: usize = 4;

/// Small frames that have queued up travel together up to this size.
const BATCH_BYTES: usize = 64 * 1024;

/// Charged per frame, so that tiny frames cannot outnumber what a subscription holds.
pub const FRAME_OVERHEAD: usize = 128;

/// Identifies a link at this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct LinkId {
    /// Whether this node has opened it.
    pub is_ours: bool,
    /// Unique among the links that the opening epoch of a node has opened.
    pub number: u64,
}

/// Times of a trunk.
#[derive(Debug, Clone, Copy)]
pub struct TrunkTimes {
    /// Interval of marks while frames are unconfirmed.
    pub mark: Duration,
    /// Interval of marks while nothing is sent.
    pub idle: Duration,
    /// A mark that is not answered for this long ends the link.
    pub stall: Duration,
}

/// Numbers for metrics, since the trunk exists.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TrunkCounts {
    /// Bytes of frames sent.
    pub sent_bytes: u64,
    /// Bytes of frames received.
    pub received_bytes: u64,
    /// Links that ended because a message was missing, doubled or out of order.
    pub gaps: u64,
}

/// The peer sent more than it was allowed to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the node sends more than its credits")]
pub struct Overdrawn;

/// The links between this node and one epoch of another.
pub struct Trunk {
    links: BTreeMap<LinkId, End>,
    output: [VecDeque<(Item, Charge)>; LANES],
    /// Links whose owners must be woken.
    wakes: BTreeSet<LinkId>,
    /// Unknown links that were answered since the last tick.
    answered: BTreeSet<LinkId>,
    counts: TrunkCounts,
    times: TrunkTimes,
    pool: Arc<CreditPool>,
    budget: Arc<BufferBudget>,
}

impl LinkId {
    /// The lane that carries the link in both directions.
    pub fn lane(self) -> usize {
        (self.number % LANES as u64) as usize
    }
}

impl Trunk {
    /// Starts without links.
    pub fn new(times: TrunkTimes, pool: Arc<CreditPool>, budget: Arc<BufferBudget>) -> Self {
        Self {
            links: BTreeMap::new(),
            output: Default::default(),
            wakes: BTreeSet::new(),
            answered: BTreeSet::new(),
            counts: TrunkCounts::default(),
            times,
            pool,
            budget,
        }
    }

    /// Adds a link; returns the bytes that the other end may send at first. `credit` is what this end may send.
    pub fn open(&mut self, now: Instant, id: LinkId, credit: u64) -> u64 {
        let end = End::new(now, credit, &self.pool);
        let granted = end.granted();
        self.links.insert(id, end);
        granted
    }

    /// Whether this end of the link exists.
    pub fn is_open(&self, id: LinkId) -> bool {
        self.links.contains_key(&id)
    }

    /// The other end has answered that the link is open.
    pub fn handle_opened(&mut self, id: LinkId, credit: u64) {
        if let Some(end) = self.links.get_mut(&id) {
            end.raise_limit(credit);
            self.wakes.insert(id);
        }
    }

    /// Whether [`Trunk::send`] may be called.
    pub fn can_send(&self, id: LinkId) -> bool {
        self.links.get(&id).is_some_and(End::can_send)
    }

    /// Sends a frame; the last one may exceed the credit.
    pub fn send(&mut self, now: Instant, id: LinkId, frame: Bytes) {
        let Some(end) = self.links.get_mut(&id).filter(|end| end.reason().is_none()) else {
            return;
        };
        self.counts.sent_bytes += frame.len() as u64;
        let sequence = end.note_sent(now, frame.len());
        self.push(id, Item { sequence, frame, ..item(ItemKind::Data) });
    }

    /// The next frame from the other end.
    pub fn pop(&mut self, id: LinkId) -> Option<Bytes> {
        let end = self.links.get_mut(&id)?;
        let frame = end.pop()?;
        if end.reason().is_none()
            && let Some(credit) = end.grant(&self.pool)
        {
            let sequence = end.received();
            self.push(id, Item { sequence, credit, ..item(ItemKind::Credit) });
        }
        Some(frame)
    }

    /// Why the link has ended; frames that arrived before may still be popped. An unknown link has ended.
    pub fn end_reason(&self, id: LinkId) -> Option<CloseReason> {
        self.links.get(&id).map_or(Some(CloseReason::TrunkLost), End::reason)
    }

    /// Whether [`Trunk::pop`] has a frame.
    pub fn has_frame(&self, id: LinkId) -> bool {
        self.links.get(&id).is_some_and(End::has_frame)
    }

    /// Ends a link at this end, after the frames that were sent; it is forgotten.
    pub fn close(&mut self, id: LinkId, why: CloseReason) {
        let Some(end) = self.links.remove(&id) else { return };
        self.wakes.remove(&id);
        if end.reason().is_none() {
            let (sequence, reason) = (end.sent(), why.reason().to_owned());
            self.push(id, Item { sequence, reason, ..item(ItemKind::Close) });
        }
    }

    /// A message of the other node has arrived.
    pub fn handle_item(&mut self, got: Item) -> Result<(), Overdrawn> {
        let id = LinkId { is_ours: !got.is_opener, number: got.link };
        let kind = got.kind();
        let Some(end) = self.links.get_mut(&id) else {
            self.answer_unknown(id, kind);
            return Ok(());
        };
        if end.reason().is_some() {
            return Ok(());
        }
        let is_in_order = match kind {
            ItemKind::Data => {
                self.counts.received_bytes += got.frame.len() as u64;
                let is_next = got.sequence == end.received();
                if is_next && !end.may_receive() {
                    return Err(Overdrawn);
                }
                if is_next {
                    let charge = self.budget.charge(got.frame.len() + FRAME_OVERHEAD);
                    end.note_received(got.frame, charge);
                    self.wakes.insert(id);
                }
                is_next
            }
            ItemKind::Credit => {
                if end.handle_credit(got.sequence, got.credit) {
                    self.wakes.insert(id);
                }
                got.sequence <= end.sent()
            }
            ItemKind::Mark => got.sequence == end.received(),
            ItemKind::Close => {
                let reason = CloseReason::from_reason(&got.reason);
                let reason = reason.unwrap_or(CloseReason::TrunkLost);
                let is_whole = got.sequence == end.received() || reason == CloseReason::TrunkLost;
                if is_whole {
                    end.end(reason);
                    self.wakes.insert(id);
                }
                is_whole
            }
            ItemKind::Unknown => true,
        };
        if !is_in_order {
            self.counts.gaps += 1;
            self.lose(id);
        } else if kind == ItemKind::Mark {
            self.answer_mark(id);
        }
        Ok(())
    }

    /// Messages of a lane were lost, or may have been.
    pub fn handle_lane_lost(&mut self, lane: usize) {
        if let Some(output) = self.output.get_mut(lane) {
            output.clear();
        }
        let lost: Vec<LinkId> = self.links.keys().copied().filter(|it| it.lane() == lane).collect();
        for id in lost {
            self.lose(id);
        }
    }

    /// The other node is gone; nothing is sent to it any more.
    pub fn handle_peer_gone(&mut self) {
        let links: Vec<LinkId> = self.links.keys().copied().collect();
        for id in links {
            self.lose(id);
        }
        self.output = Default::default();
    }

    /// Sends marks that are due, and ends links whose marks are not answered.
    pub fn handle_tick(&mut self, now: Instant) {
        self.answered.clear();
        let mut marks = Vec::new();
        let mut lost = Vec::new();
        for (id, end) in &mut self.links {
            match end.poll_mark(now, &self.times) {
                link::Mark::NotDue => {}
                link::Mark::Due => marks.push((*id, end.sent())),
                link::Mark::Unanswered => lost.push(*id),
            }
        }
        for (id, sequence) in marks {
            self.push(id, Item { sequence, ..item(ItemKind::Mark) });
        }
        for id in lost {
            self.lose(id);
        }
    }

    /// Messages to publish on a lane together.
    pub fn poll_output(&mut self, lane: usize) -> Vec<Item> {
        let output = &mut self.output[lane];
        let mut bytes = 0;
        let mut items = Vec::new();
        while let Some((next, _)) = output.front() {
            bytes += next.frame.len() + FRAME_OVERHEAD;
            if bytes > BATCH_BYTES && !items.is_empty() {
                break;
            }
            items.extend(output.pop_front().map(|(item, _)| item));
        }
        items
    }

    /// Whether [`Trunk::poll_output`] has something.
    pub fn has_output(&self, lane: usize) -> bool {
        !self.output[lane].is_empty()
    }

    /// A link with a frame, an end, or permission to send.
    pub fn poll_wake(&mut self) -> Option<LinkId> {
        self.wakes.pop_first()
    }

    /// Number of links, and of those that wait for credits.
    pub fn link_counts(&self) -> (usize, usize) {
        let waiting = self.links.values().filter(|end| end.reason().is_none() && !end.can_send());
        (self.links.len(), waiting.count())
    }

    /// Numbers for metrics.
    pub fn counts(&self) -> TrunkCounts {
        self.counts
    }

    /// Ends a link because the other end cannot be whole any more, and says so.
    fn lose(&mut self, id: LinkId) {
        let Some(end) = self.links.get_mut(&id).filter(|end| end.reason().is_none()) else {
            return;
        };
        end.end(CloseReason::TrunkLost);
        let (sequence, reason) = (end.sent(), CloseReason::TrunkLost.reason().to_owned());
        self.wakes.insert(id);
        self.push(id, Item { sequence, reason, ..item(ItemKind::Close) });
    }

    fn answer_mark(&mut self, id: LinkId) {
        let Some(end) = self.links.get(&id) else { return };
        let (sequence, credit) = (end.received(), end.granted());
        self.push(id, Item { sequence, credit, ..item(ItemKind::Credit) });
    }

    /// Tells the other end that this end is gone.
    fn answer_unknown(&mut self, id: LinkId, kind: ItemKind) {
        if matches!(kind, ItemKind::Data | ItemKind::Mark) && self.answered.insert(id) {
            let reason = CloseReason::TrunkLost.reason().to_owned();
            self.push(id, Item { reason, ..item(ItemKind::Close) });
        }
    }

    fn push(&mut self, id: LinkId, item: Item) {
        let charge = self.budget.charge(item.frame.len() + FRAME_OVERHEAD);
        let item = Item { link: id.number, is_opener: id.is_ours, ..item };
        self.output[id.lane()].push_back((item, charge));
    }
}

fn item(kind: ItemKind) -> Item {
    Item { kind: kind.into(), ..Item::default() }
}

#[cfg(test)]
mod tests;
