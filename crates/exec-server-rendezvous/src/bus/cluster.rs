//! Registry of the sockets of one node in a cluster: claims say at which node an executor is.
//!
//! ```text
//! executor attaches ▶ claim (batched) ▶ local registry ▶ socket ends ▶ release
//! every second      ▶ renew the lease ▶ close executors that were claimed elsewhere
//! ```
//!
//! The node of an executor alone routes its streams, by a [`LocalBus`]. Harnesses are sent to that node by the URL that
//! `connect` answers. One that arrives elsewhere gets a trunk link to that node; without NATS, it is refused and asks
//! again.
//!
//! | module | contains |
//! |---|---|
//! | `lease`, `claims` | what the database knows: leases of nodes, claims of executors |
//! | `pause`, `isolation` | notice that the process was stopped, or reaches no engine |
//! | `nats` | connections, subjects, errors |
//! | `heartbeat`, `control` | heartbeats; requests and signals between nodes |
//! | `trunks`, `trunk_link` | frames between nodes: lanes, and the two ends of a link |

mod claims;
mod control;
mod heartbeat;
mod isolation;
mod lease;
mod nats;
mod pause;
mod trunk_link;
mod trunks;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Waker;
use std::time::{Duration, Instant};

use bytes::Bytes;
use exec_server_relay::switchboard::{
    AttachError, BufferBudget, CloseReason, RouteOutcome, SwitchboardLimits, Ticket,
};
use tokio::sync::mpsc;

use super::{Answer, Bus, ClusterReport, Link, LinkState, LocalBus, NodeView, Presence};
use crate::clock::{Clock, Seconds};
use crate::config::ClusterConfig;
use crate::held_claims::{Entry, HeldClaims, Verdict};
use crate::membership::{LEASE, Lease, MemberState, Membership};
use crate::store::{ClaimId, ClaimRequest, Located, PostgresStore, StoreError};
use crate::trunk::LANES;
use claims::{ClaimMessage, run_claims};
use control::{Home, open_link, run_control};
use heartbeat::run_heartbeat;
use isolation::run_isolation;
use lease::run_lease;
use nats::{Connections, Nats, Subjects};
use pause::Pause;
use trunks::{Trunks, run_publisher, run_receiver};

pub use lease::JoinError;
pub use nats::{NatsConfig, NatsError};
pub use trunks::TrunkReport;

/// Claims and releases that wait for the database.
const MOST_REQUESTS: usize = 16_384;

/// How often a waiting `connect` looks whether its executor has attached at any node.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Messages to other nodes that wait for the control connection; each has a repair.
const MOST_MESSAGES: usize = 4096;

/// How long an executor that left is expected back.
const EXPECTED_BACK: Duration = Duration::from_secs(5);

/// A node's name and address.
#[derive(Debug, Clone)]
pub struct NodeConfig {
    /// Node id; unique in the cluster.
    pub id: String,
    /// Base URL that leads to this node alone.
    pub url: String,
}

/// Registry of the sockets of one node in a cluster.
pub struct ClusterBus {
    shared: Arc<Shared>,
    /// The tasks end with the bus.
    _tasks: tokio::task::JoinSet<()>,
}

struct Shared {
    local: LocalBus,
    store: Arc<PostgresStore>,
    node: NodeConfig,
    clock: Clock,
    requests: mpsc::Sender<ClaimMessage>,
    state: Mutex<State>,
    is_leaving: AtomicBool,
    /// Whether the executors of this node are being closed because only other nodes can serve them.
    is_isolated: AtomicBool,
    pause: Arc<Pause>,
    nats: Option<Nats>,
}

struct State {
    epoch: u64,
    /// When the lease was renewed last.
    renewed: Instant,
    /// Whether the lease was this node's at that time.
    is_held: bool,
    /// Whether another node has said that this epoch is dead for it.
    is_disowned: bool,
    membership: Membership,
    /// The executors of this node.
    claims: HeldClaims,
    /// Claims that have ended while the database was away.
    unreleased: BTreeMap<String, ClaimId>,
    /// By how much the clocks differed when that was logged last.
    noted_difference: Seconds,
    counts: Counts,
}

/// For metrics.
#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    claims: u64,
    claim_batches: u64,
    superseded: u64,
}

impl ClusterBus {
    /// Takes a lease and starts to renew it; waits for that of an earlier process of this node.
    pub async fn join(
        store: Arc<PostgresStore>,
        config: &ClusterConfig,
        clock: Clock,
        limits: SwitchboardLimits,
        budget: usize,
    ) -> Result<Self, JoinError> {
        let node = config.node.clone();
        // Checked before the lease is taken, so that a failed start leaves nothing behind.
        let checked = match &config.nats {
            None => None,
            Some(nats) => {
                let subjects = Subjects::new(&config.name, &node.id)?;
                let database = store.identity().await?;
                let connections = Connections::open(nats, &node.id).await?;
                connections.check(&subjects, &config.name, &node.id, &database).await?;
                Some((subjects, database, connections))
            }
        };
        let epoch = lease::join(&store, &node).await?;
        let (requests, queue) = mpsc::channel(MOST_REQUESTS);
        let state = State {
            epoch,
            renewed: Instant::now(),
            is_held: true,
            is_disowned: false,
            membership: Membership::default(),
            claims: HeldClaims::default(),
            unreleased: BTreeMap::new(),
            noted_difference: 0,
            counts: Counts::default(),
        };
        let local = LocalBus::new(limits, budget);
        let mut tasks = tokio::task::JoinSet::new();
        let (mut nats, mut queues) = (None, None);
        if let Some((subjects, database, connections)) = checked {
            let Connections { heartbeat, control, lanes, lost_lanes, .. } = connections;
            let (stall, budget) = (limits.slow_timeout, local.shared_budget());
            let (trunks, ready) =
                Trunks::new(&node.id, epoch, subjects.clone(), lanes, stall, budget);
            let (outbox, messages) = mpsc::channel(MOST_MESSAGES);
            nats = Some(Nats { subjects, database, heartbeat, control, trunks, outbox });
            queues = Some((ready, messages, lost_lanes));
        }
        let shared = Arc::new(Shared {
            local,
            store,
            node,
            clock,
            requests,
            state: Mutex::new(state),
            is_leaving: AtomicBool::new(false),
            is_isolated: AtomicBool::new(false),
            pause: Arc::default(),
            nats,
        });
        lease::begin(&shared).await;
        tasks.spawn(run_claims(shared.clone(), queue));
        tasks.spawn(run_lease(shared.clone()));
        tasks.spawn(shared.pause.clone().run());
        if let Some((ready, messages, lost_lanes)) = queues {
            tasks.spawn(run_heartbeat(shared.clone(), config.heartbeat));
            tasks.spawn(run_isolation(shared.clone(), config.isolation_grace));
            tasks.spawn(run_control(shared.clone(), messages, lost_lanes));
            for (lane, ready) in (0..LANES).zip(ready) {
                tasks.spawn(run_publisher(shared.clone(), lane, ready));
                tasks.spawn(run_receiver(shared.clone(), lane));
            }
        }
        Ok(Self { shared, _tasks: tasks })
    }
}

impl State {
    /// Whether executors can be claimed and streams opened here, as far as the database is concerned.
    fn has_lease(&self) -> bool {
        self.is_held && self.renewed.elapsed() < LEASE
    }

    /// Keeps a claim that could not be released; beyond the limit its entry stays until the next claim.
    fn release_later(&mut self, environment: String, claim: ClaimId) {
        if self.unreleased.len() < MOST_REQUESTS {
            self.unreleased.insert(environment, claim);
        }
    }
}

impl Shared {
    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().expect("no holder panics")
    }

    async fn locate(&self, environments: &[String]) -> Result<Vec<Located>, StoreError> {
        self.store.locate(environments).await
    }

    /// The executor of an entry, if its node is alive.
    fn judge(&self, located: &Located) -> Option<Presence> {
        if located.is_released {
            return None;
        }
        let now = Instant::now();
        let lease = located.lease.clone()?;
        let (node, epoch) = (lease.node.clone(), lease.epoch);
        let mut state = self.state();
        if node == self.node.id {
            // Of this node only what is really attached counts; the entry may be of an earlier process.
            let is_ours = state.claims.claim(&located.environment);
            drop(state);
            let local = self.local.presence(&located.environment);
            let home = Some(self.node.url.as_str().into());
            return local
                .filter(|_| is_ours == Some(located.claim))
                .map(|presence| Presence { home, ..presence });
        }
        state.membership.handle_lease(now, lease);
        if !state.membership.state(now, &node, epoch).is_reachable() {
            return None;
        }
        let home = state.membership.url(&node);
        let (registration, since) = (located.registration.clone(), located.since);
        Some(Presence { registration, since, streams: None, is_full: false, home })
    }

    /// Whether an executor that is not attached is likely to come back soon.
    fn is_expected(&self, located: &Located) -> bool {
        let away = u64::try_from(self.clock.now() - located.since).unwrap_or(0);
        let is_recent = located.is_released && away < EXPECTED_BACK.as_secs();
        // The node of the entry has stopped a moment ago, so its executors are on their way to another.
        let has_stopped = |lease: &Lease| lease.age < LEASE + EXPECTED_BACK;
        is_recent || located.lease.as_ref().is_some_and(has_stopped)
    }

    /// Tells the node that held a claim that it was replaced.
    fn tell_superseded(&self, environment: &str, previous: (String, u64, ClaimId)) {
        if let Some(nats) = &self.nats {
            nats.tell_superseded(environment, previous);
        }
    }

    /// Adds the numbers of harnesses that other nodes know.
    async fn ask_for_streams(&self, located: &[Located], found: &mut BTreeMap<String, Presence>) {
        let Some(nats) = &self.nats else { return };
        let mut asked: BTreeMap<(&str, u64), Vec<String>> = BTreeMap::new();
        for it in located {
            let is_wanted = found.get(&it.environment).is_some_and(|it| it.streams.is_none());
            if let Some(lease) = it.lease.as_ref().filter(|_| is_wanted) {
                let node = asked.entry((&lease.node, lease.epoch)).or_default();
                node.push(it.environment.clone());
            }
        }
        for ((node, epoch), environments) in asked {
            for (environment, (streams, is_full)) in nats.streams(node, epoch, environments).await {
                if let Some(presence) = found.get_mut(&environment) {
                    (presence.streams, presence.is_full) = (Some(streams), is_full);
                }
            }
        }
    }

    /// Whether the own heartbeat comes back; also true while no other node hears one, because then NATS is away.
    fn is_heard(&self) -> bool {
        let now = Instant::now();
        let mut state = self.state();
        self.nats.is_none()
            || state.membership.heard_since(now).is_some()
            || !state.membership.do_others_hear(now, &self.node.id)
    }

    /// Attaches an executor whose claim was made. Of two sockets of one environment at once, the older claim is refused,
    /// in whatever order they come here; so is one that another node has replaced meanwhile.
    fn attach_claimed(
        self: &Arc<Self>,
        ticket: Ticket,
        claim: ClaimId,
    ) -> Result<Box<dyn Link>, AttachError> {
        let environment = ticket.environment.clone();
        let registration = ticket.registration.clone();
        let attached = {
            let mut state = self.state();
            match state.claims.may_attach(&environment, claim) {
                false => Err(AttachError::Stale),
                true => self.local.attach(ticket, claim.generation).inspect(|_| {
                    state.claims.hold(&environment, &registration, claim);
                }),
            }
        };
        match attached {
            Ok(link) => {
                let claimed = Claimed { shared: self.clone(), environment, claim };
                Ok(Box::new(ClusterLink { link, claimed }))
            }
            Err(error) => {
                self.send_release(environment, claim);
                Err(error)
            }
        }
    }

    /// Releases the claim of a socket that has ended; a newer claim stays.
    fn release(&self, environment: String, claim: ClaimId) {
        self.state().claims.handle_gone(&environment, claim);
        self.send_release(environment, claim);
    }

    /// A claim was replaced; closes its executor, if it is still attached here.
    fn handle_replaced(&self, environment: &str, claim: ClaimId) {
        let mut state = self.state();
        if state.claims.handle_replaced(environment, claim) {
            self.close_replaced(&mut state, environment);
        }
    }

    /// Compares an environment with the database; returns whether its executor must be claimed again.
    fn check(&self, environment: &str, entry: Entry) -> bool {
        let mut state = self.state();
        match state.claims.check(environment, entry) {
            Verdict::Keep => {}
            Verdict::Close => self.close_replaced(&mut state, environment),
            Verdict::ClaimAgain => return true,
        }
        false
    }

    /// Closes an executor. The state is locked all the time, so that no newer one attaches before and is closed instead.
    fn close_replaced(&self, state: &mut State, environment: &str) {
        tracing::info!(environment, "a newer socket or registration has replaced the executor");
        state.counts.superseded += 1;
        self.local.close_executor(environment, CloseReason::Superseded);
    }

    fn send_release(&self, environment: String, claim: ClaimId) {
        let message = ClaimMessage::Release { environment, claim };
        let unsent = self.requests.try_send(message).map_err(mpsc::error::TrySendError::into_inner);
        if let Err(ClaimMessage::Release { environment, claim }) = unsent {
            self.state().release_later(environment, claim);
        }
    }
}

impl Bus for ClusterBus {
    fn presences<'a>(
        &'a self,
        environments: &'a [String],
    ) -> Answer<'a, Result<BTreeMap<String, Presence>, StoreError>> {
        Box::pin(async move {
            let located = self.shared.locate(environments).await?;
            let judge = |it: &Located| Some((it.environment.clone(), self.shared.judge(it)?));
            let mut found = located.iter().filter_map(judge).collect();
            self.shared.ask_for_streams(&located, &mut found).await;
            Ok(found)
        })
    }

    fn await_presence<'a>(
        &'a self,
        environment: &'a str,
        time: Duration,
    ) -> Answer<'a, Result<Option<Presence>, StoreError>> {
        Box::pin(async move {
            let environments = [environment.to_owned()];
            let deadline = Instant::now() + time;
            let mut guard = None;
            loop {
                let located = self.shared.locate(&environments).await?.into_iter().next();
                let presence = located.as_ref().and_then(|it| self.shared.judge(it));
                if presence.is_some() {
                    return Ok(presence);
                }
                if guard.is_none() {
                    guard = self.shared.local.enter_waiting();
                }
                let is_expected = located.is_some_and(|it| self.shared.is_expected(&it));
                if !is_expected || guard.is_none() || Instant::now() >= deadline {
                    return Ok(None);
                }
                tokio::time::sleep(LOOK_AGAIN.min(time)).await;
            }
        })
    }

    fn attach_executor(
        &self,
        ticket: Ticket,
        generation: u64,
    ) -> Answer<'_, Result<Box<dyn Link>, AttachError>> {
        Box::pin(async move {
            let shared = &self.shared;
            if shared.is_isolated.load(Ordering::Relaxed) {
                return Err(AttachError::Unavailable);
            }
            let request = ClaimRequest {
                environment: ticket.environment.clone(),
                registration: ticket.registration.clone(),
                generation,
            };
            let _asking = Asking::begin(shared, &ticket.environment);
            let claim = claims::claim(shared, request).await?;
            shared.attach_claimed(ticket, claim)
        })
    }

    fn attach_harness(
        &self,
        ticket: Ticket,
        max_streams: Option<usize>,
    ) -> Answer<'_, Result<Box<dyn Link>, AttachError>> {
        Box::pin(async move {
            // The entry decides, so that a node whose claim was replaced opens no new stream.
            let environments = [ticket.environment.clone()];
            let located = self.shared.locate(&environments).await;
            let located = located.map_err(|error| {
                tracing::error!(%error, "the store failed");
                AttachError::Unavailable
            })?;
            let located = located.first().ok_or(AttachError::Offline)?;
            let shared = &self.shared;
            let held = shared.state().claims.claim(&ticket.environment);
            if Some(located.claim) == held {
                return shared.local.attach_harness(ticket, max_streams).await;
            }
            let (Some(nats), Some(lease)) = (&shared.nats, &located.lease) else {
                return Err(AttachError::Offline);
            };
            if lease.node == shared.node.id || shared.judge(located).is_none() {
                return Err(AttachError::Offline);
            }
            let home = Home { node: &lease.node, epoch: lease.epoch, claim: located.claim };
            open_link(shared, nats, home, ticket, max_streams).await
        })
    }

    fn supersede<'a>(&'a self, environment: &'a str, generation: u64) -> Answer<'a, ()> {
        Box::pin(async move {
            let shared = &self.shared;
            let newest_old =
                ClaimId { generation: generation.saturating_sub(1), sequence: u64::MAX };
            shared.handle_replaced(environment, newest_old);
            match shared.store.supersede(&shared.node.id, environment, generation).await {
                Ok(Some(previous)) => shared.tell_superseded(environment, previous),
                Ok(None) => {}
                Err(error) => {
                    tracing::debug!(%error, environment, "the node of the older registration finds out by its next check");
                }
            }
        })
    }

    fn end_tokens<'a>(&'a self, ended: &'a BTreeMap<String, CloseReason>) -> Answer<'a, ()> {
        self.shared.local.end_tokens(ended)
    }

    fn revoke_tokens<'a>(&'a self, ended: &'a BTreeMap<String, CloseReason>) -> Answer<'a, ()> {
        if let Some(nats) = &self.shared.nats {
            nats.tell_revoked(&self.shared.node.id, ended.keys().cloned());
        }
        self.shared.local.end_tokens(ended)
    }

    fn begin_leaving(&self) {
        self.shared.is_leaving.store(true, Ordering::Relaxed);
    }

    fn move_executors(&self, most: usize) -> usize {
        self.shared.local.move_executors(most)
    }

    fn drain(&self) {
        self.shared.is_leaving.store(true, Ordering::Relaxed);
        self.shared.local.drain();
    }

    fn leave(&self) -> Answer<'_, ()> {
        Box::pin(lease::leave(&self.shared))
    }

    fn is_ready(&self) -> bool {
        let has_lease = self.shared.state().has_lease();
        has_lease && self.shared.is_heard() && !self.shared.is_leaving.load(Ordering::Relaxed)
    }

    fn counts(&self) -> (usize, usize) {
        self.shared.local.counts()
    }

    fn members(&self) -> BTreeMap<String, NodeView> {
        let mut shared = self.shared.state();
        let (members, epoch) = (shared.membership.list(Instant::now()), shared.epoch);
        drop(shared);
        let view = |(node, (epoch, state, load))| (node, NodeView { epoch, state, load });
        let mut members: BTreeMap<String, NodeView> = members.into_iter().map(view).collect();
        let state = match self.shared.is_leaving.load(Ordering::Relaxed) {
            true => MemberState::Leaving,
            false => MemberState::Alive,
        };
        members.insert(self.shared.node.id.clone(), NodeView { epoch, state, load: None });
        members
    }

    fn report(&self) -> Option<ClusterReport> {
        let shared = &self.shared;
        let trunks = shared.nats.as_ref().map(|nats| nats.trunks.report());
        let Counts { claims, claim_batches, superseded } = shared.state().counts;
        let trunks = trunks.unwrap_or_default();
        Some(ClusterReport { claims, claim_batches, superseded, trunks })
    }

    fn waiting(&self) -> usize {
        self.shared.local.waiting()
    }

    fn budget(&self) -> &BufferBudget {
        self.shared.local.budget()
    }
}

/// A claim whose answer is awaited; what replaces it meanwhile is kept until this is dropped.
struct Asking<'a> {
    shared: &'a Shared,
    environment: String,
}

impl<'a> Asking<'a> {
    fn begin(shared: &'a Shared, environment: &str) -> Self {
        shared.state().claims.begin_asking(environment);
        Self { shared, environment: environment.to_owned() }
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.shared.state().claims.end_asking(&self.environment);
    }
}

/// Releases a claim when it is dropped.
struct Claimed {
    shared: Arc<Shared>,
    environment: String,
    claim: ClaimId,
}

impl Drop for Claimed {
    fn drop(&mut self) {
        self.shared.release(std::mem::take(&mut self.environment), self.claim);
    }
}

/// The attachment of an executor with its claim; the socket is detached before the claim is released.
struct ClusterLink {
    link: Box<dyn Link>,
    claimed: Claimed,
}

impl ClusterLink {
    /// Every frame passes an executor, so holding those back holds back all.
    fn is_paused(&self) -> bool {
        self.claimed.shared.pause.is_on()
    }
}

impl Link for ClusterLink {
    fn handle_frame(&self, frame: Bytes) -> RouteOutcome {
        self.link.handle_frame(frame)
    }

    fn handle_misuse(&self, why: CloseReason) {
        self.link.handle_misuse(why);
    }

    fn handle_timeout(&self) {
        self.link.handle_timeout();
    }

    fn stream_id(&self) -> Option<String> {
        self.link.stream_id()
    }

    fn poll_frame(&self) -> Option<Bytes> {
        if self.is_paused() { None } else { self.link.poll_frame() }
    }

    fn state(&self, waker: &Waker) -> LinkState {
        let state = self.link.state(waker);
        LinkState { is_reading: state.is_reading && !self.is_paused(), ..state }
    }
}
