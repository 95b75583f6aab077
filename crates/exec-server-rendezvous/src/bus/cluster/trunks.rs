//! The trunks of a node, one per other node, and the tasks that publish and receive on the lanes.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Waker;
use std::time::{Duration, Instant};

use async_nats::Client;
use exec_server_relay::switchboard::BufferBudget;
use prost::Message;
use tokio::sync::mpsc;

use super::Shared;
use super::nats::{Subjects, next};
use crate::membership::MemberState;
use crate::trunk::{CreditPool, LANES, LinkId, Trunk, TrunkCounts, TrunkTimes};
use crate::wire::Batch;

/// A node that ignores its credits is not served for this long.
const CUT_OFF: Duration = Duration::from_secs(10);

/// Interval of marks while frames are unconfirmed, and while nothing is sent.
const MARK_EVERY: Duration = Duration::from_millis(500);
const IDLE_MARK_EVERY: Duration = Duration::from_secs(5);

type PeerQueue = mpsc::UnboundedSender<Arc<Peer>>;

/// The trunks of a node.
pub struct Trunks {
    node: String,
    epoch: AtomicU64,
    subjects: Subjects,
    lanes: Vec<Client>,
    state: Mutex<State>,
    /// Peers with output, per lane. Each peer is in a queue at most once.
    ready: Arc<[PeerQueue]>,
    next_link: AtomicU64,
    times: TrunkTimes,
    pool: Arc<CreditPool>,
    budget: Arc<BufferBudget>,
}

#[derive(Default)]
struct State {
    peers: BTreeMap<(String, u64), Arc<Peer>>,
    cut_off: BTreeMap<String, Instant>,
    /// Of peers that are gone.
    counts: TrunkCounts,
    ended: BTreeMap<&'static str, u64>,
}

/// One epoch of another node, with the trunk to it.
pub struct Peer {
    node: String,
    epoch: u64,
    board: Mutex<Board>,
    ready: Arc<[PeerQueue]>,
}

struct Board {
    trunk: Trunk,
    wakers: BTreeMap<LinkId, Waker>,
    is_ready: [bool; LANES],
}

/// The receiving ends of the queues of [`Trunks`].
pub type ReadyPeers = Vec<mpsc::UnboundedReceiver<Arc<Peer>>>;

/// Numbers for metrics.
#[derive(Debug, Clone, Default)]
pub struct TrunkReport {
    /// Open links, and those that wait for credits.
    pub links: (usize, usize),
    /// Bytes and gaps since the start.
    pub counts: TrunkCounts,
    /// Links that have ended, by reason.
    pub ended: BTreeMap<&'static str, u64>,
    /// Credits granted now, in bytes.
    pub granted: u64,
}

impl Trunks {
    /// Starts without trunks; the queues are for [`run_publisher`].
    pub fn new(
        node: &str,
        epoch: u64,
        subjects: Subjects,
        lanes: Vec<Client>,
        stall: Duration,
        budget: Arc<BufferBudget>,
    ) -> (Self, ReadyPeers) {
        let (ready, queues): (Vec<_>, ReadyPeers) =
            (0..LANES).map(|_| mpsc::unbounded_channel()).unzip();
        let trunks = Self {
            node: node.to_owned(),
            epoch: AtomicU64::new(epoch),
            subjects,
            lanes,
            state: Mutex::default(),
            ready: ready.into(),
            next_link: AtomicU64::new(0),
            times: TrunkTimes { mark: MARK_EVERY, idle: IDLE_MARK_EVERY, stall },
            pool: Arc::new(CreditPool::new(budget.total())),
            budget,
        };
        (trunks, queues)
    }

    /// Goes on with a new epoch; links of the old one are ended by the other nodes, too.
    pub fn set_epoch(&self, epoch: u64) {
        let peers = std::mem::take(&mut self.state().peers);
        for peer in peers.into_values() {
            self.end_peer(&peer);
        }
        self.epoch.store(epoch, Ordering::Release);
    }

    /// The epoch that messages are sent with.
    pub fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// The number of a new link.
    pub fn next_link(&self) -> u64 {
        self.next_link.fetch_add(1, Ordering::Relaxed)
    }

    /// The trunk to a node; none while that node is cut off.
    pub fn peer(&self, node: &str, epoch: u64) -> Option<Arc<Peer>> {
        let mut state = self.state();
        if state.cut_off.get(node).is_some_and(|until| Instant::now() < *until) {
            return None;
        }
        let peer = state.peers.entry((node.to_owned(), epoch)).or_insert_with(|| {
            let trunk = Trunk::new(self.times, self.pool.clone(), self.budget.clone());
            let (wakers, is_ready) = (BTreeMap::new(), [false; LANES]);
            let board = Mutex::new(Board { trunk, wakers, is_ready });
            Arc::new(Peer { node: node.to_owned(), epoch, board, ready: self.ready.clone() })
        });
        Some(peer.clone())
    }

    /// Counts the end of a link.
    pub fn note_end(&self, reason: &'static str) {
        *self.state().ended.entry(reason).or_default() += 1;
    }

    /// Ends the links of nodes that are gone, and lets the others send their marks.
    pub fn tick(&self, mut state_of: impl FnMut(&str, u64) -> MemberState) {
        let now = Instant::now();
        let peers: Vec<Arc<Peer>> = self.state().peers.values().cloned().collect();
        for peer in peers {
            if state_of(&peer.node, peer.epoch).is_reachable() {
                peer.with(|trunk| trunk.handle_tick(now));
            } else {
                self.state().peers.remove(&(peer.node.clone(), peer.epoch));
                self.end_peer(&peer);
            }
        }
    }

    /// Messages of a lane may be lost.
    pub fn handle_lane_lost(&self, lane: usize) {
        let peers: Vec<Arc<Peer>> = self.state().peers.values().cloned().collect();
        for peer in peers {
            peer.with(|trunk| trunk.handle_lane_lost(lane));
        }
    }

    /// Messages of another node have arrived.
    fn handle_batch(&self, batch: Batch) {
        let known = (batch.node, batch.epoch);
        // A node without links here has nothing to say that matters; its links end by themselves.
        let Some(peer) = self.state().peers.get(&known).cloned() else { return };
        let items = batch.items;
        let handled = peer.with(|trunk| items.into_iter().try_for_each(|it| trunk.handle_item(it)));
        if let Err(error) = handled {
            tracing::error!(node = peer.node, %error, "the node is cut off from trunks");
            let mut state = self.state();
            state.cut_off.insert(peer.node.clone(), Instant::now() + CUT_OFF);
            state.peers.remove(&known);
            drop(state);
            self.end_peer(&peer);
        }
    }

    fn end_peer(&self, peer: &Arc<Peer>) {
        let counts = peer.with(|trunk| {
            trunk.handle_peer_gone();
            trunk.counts()
        });
        add(&mut self.state().counts, counts);
    }

    /// Numbers for metrics.
    pub fn report(&self) -> TrunkReport {
        let state = self.state();
        let (mut counts, ended) = (state.counts, state.ended.clone());
        let peers: Vec<Arc<Peer>> = state.peers.values().cloned().collect();
        drop(state);
        let mut links = (0, 0);
        for peer in peers {
            let board = peer.board.lock().expect("no holder panics");
            let (open, waiting) = board.trunk.link_counts();
            links = (links.0 + open, links.1 + waiting);
            add(&mut counts, board.trunk.counts());
        }
        TrunkReport { links, counts, ended, granted: self.pool.granted() }
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().expect("no holder panics")
    }
}

fn add(sum: &mut TrunkCounts, more: TrunkCounts) {
    sum.sent_bytes += more.sent_bytes;
    sum.received_bytes += more.received_bytes;
    sum.gaps += more.gaps;
}

impl Peer {
    /// Runs one operation; wakes the links that it affects and the publishers, after releasing the lock.
    pub fn with<T>(self: &Arc<Self>, act: impl FnOnce(&mut Trunk) -> T) -> T {
        let mut woken = Vec::new();
        let mut lanes = [false; LANES];
        let value = {
            let mut board = self.board.lock().expect("no holder panics");
            let Board { trunk, wakers, is_ready } = &mut *board;
            let value = act(trunk);
            while let Some(link) = trunk.poll_wake() {
                woken.extend(wakers.remove(&link));
            }
            for lane in 0..LANES {
                lanes[lane] = trunk.has_output(lane) && !is_ready[lane];
                is_ready[lane] |= lanes[lane];
            }
            value
        };
        for lane in (0..LANES).filter(|lane| lanes[*lane]) {
            // Fails only while the node stops.
            let _ = self.ready[lane].send(self.clone());
        }
        woken.into_iter().for_each(Waker::wake);
        value
    }

    /// `waker` is called when the link changes.
    pub fn watch(&self, link: LinkId, waker: &Waker) {
        let mut board = self.board.lock().expect("no holder panics");
        if !board.wakers.get(&link).is_some_and(|known| known.will_wake(waker)) {
            board.wakers.insert(link, waker.clone());
        }
    }

    /// Forgets the waker of a link that has ended.
    pub fn unwatch(&self, link: LinkId) {
        self.board.lock().expect("no holder panics").wakers.remove(&link);
    }
}

/// Publishes the messages of all trunks on one lane.
pub async fn run_publisher(
    shared: Arc<Shared>,
    lane: usize,
    mut ready: mpsc::UnboundedReceiver<Arc<Peer>>,
) {
    let Some(nats) = &shared.nats else { return };
    let trunks = &nats.trunks;
    let client = &trunks.lanes[lane];
    while let Some(peer) = ready.recv().await {
        let items = {
            let mut board = peer.board.lock().expect("no holder panics");
            let items = board.trunk.poll_output(lane);
            let has_more = board.trunk.has_output(lane);
            board.is_ready[lane] = has_more;
            if has_more {
                let _ = peer.ready[lane].send(peer.clone());
            }
            items
        };
        if items.is_empty() {
            continue;
        }
        let batch = Batch { node: trunks.node.clone(), epoch: trunks.epoch(), items };
        let subject = trunks.subjects.frames(&peer.node, peer.epoch, lane);
        let bytes = batch.encode_to_vec().into();
        // Fails only when the node stops; a lost message is found by the other end.
        let _ = client.publish(subject, bytes).await;
    }
}

/// Receives the messages for this node on one lane.
pub async fn run_receiver(shared: Arc<Shared>, lane: usize) {
    let Some(nats) = &shared.nats else { return };
    let trunks = &nats.trunks;
    let subject = trunks.subjects.any_frames(&trunks.node, lane);
    let mut messages = match trunks.lanes[lane].subscribe(subject).await {
        Ok(messages) => messages,
        Err(error) => return tracing::error!(%error, lane, "cannot subscribe to frames"),
    };
    while let Some(message) = next(&mut messages).await {
        // Of an earlier process of this node, or of an earlier epoch.
        if Subjects::epoch(&message.subject) != Some(trunks.epoch()) {
            continue;
        }
        match Batch::decode(message.payload) {
            Ok(batch) => trunks.handle_batch(batch),
            Err(error) => tracing::warn!(%error, lane, "a message on a lane cannot be read"),
        }
    }
}
