//! Registry of the sockets of one node in a cluster: claims say at which node an executor is.
//!
//! ```text
//! executor attaches ▶ claim (batched) ▶ local registry ▶ socket ends ▶ release
//! every second      ▶ renew the lease ▶ close executors that were claimed elsewhere
//! ```
//!
//! The node of an executor alone routes its streams, by a [`LocalBus`]. Harnesses are sent to that node by the URL that
//! `connect` answers; one that arrives elsewhere is refused and asks again.

mod claims;
mod lease;

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

use super::{Answer, Bus, Link, LinkState, LocalBus, Presence};
use crate::clock::Clock;
use crate::membership::{LEASE, Lease, MemberState, Membership};
use crate::store::{ClaimId, ClaimRequest, Located, PostgresStore, StoreError};
use claims::{ClaimMessage, run_claims};
use lease::run_lease;

pub use lease::JoinError;

/// Claims and releases that wait for the database.
const MOST_REQUESTS: usize = 16_384;

/// How often a waiting `connect` looks whether its executor has attached at any node.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

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
}

struct State {
    epoch: u64,
    /// When the lease was renewed last.
    renewed: Instant,
    /// Whether the lease was this node's at that time.
    is_held: bool,
    membership: Membership,
    /// The executors of this node.
    held: BTreeMap<String, Held>,
}

#[derive(Clone)]
struct Held {
    claim: ClaimId,
    registration: String,
    /// Tells the sockets of one environment apart.
    socket: u64,
}

impl ClusterBus {
    /// Takes a lease and starts to renew it; waits for that of an earlier process of this node.
    pub async fn join(
        store: Arc<PostgresStore>,
        node: NodeConfig,
        clock: Clock,
        limits: SwitchboardLimits,
        budget: usize,
    ) -> Result<Self, JoinError> {
        let epoch = lease::join(&store, &node).await?;
        let (requests, queue) = mpsc::channel(MOST_REQUESTS);
        let state = State {
            epoch,
            renewed: Instant::now(),
            is_held: true,
            membership: Membership::default(),
            held: BTreeMap::new(),
        };
        let shared = Arc::new(Shared {
            local: LocalBus::new(limits, budget),
            store,
            node,
            clock,
            requests,
            state: Mutex::new(state),
            is_leaving: AtomicBool::new(false),
        });
        let mut tasks = tokio::task::JoinSet::new();
        tasks.spawn(run_claims(shared.clone(), queue));
        tasks.spawn(run_lease(shared.clone()));
        Ok(Self { shared, _tasks: tasks })
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
            let is_ours = state.held.get(&located.environment).map(|it| it.claim);
            drop(state);
            let local = self.local.presence(&located.environment);
            let home = Some(self.node.url.as_str().into());
            return local
                .filter(|_| is_ours == Some(located.claim))
                .map(|presence| Presence { home, ..presence });
        }
        state.membership.handle_lease(now, lease);
        if state.membership.state(now, &node, epoch) == MemberState::Dead {
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

    /// Releases the claim of a socket that has ended, unless another socket of this node has replaced it.
    fn release(&self, environment: String, socket: u64) {
        let claim = {
            let mut state = self.state();
            if state.held.get(&environment).is_none_or(|it| it.socket != socket) {
                return;
            }
            let Some(held) = state.held.remove(&environment) else { return };
            held.claim
        };
        // Beyond the limit the entry stays; it is replaced by the next claim, and counts for nothing until then.
        let _ = self.requests.try_send(ClaimMessage::Release { environment, claim });
    }
}

impl Bus for ClusterBus {
    fn presences<'a>(
        &'a self,
        environments: &'a [String],
    ) -> Answer<'a, Result<BTreeMap<String, Presence>, StoreError>> {
        Box::pin(async move {
            let located = self.shared.locate(environments).await?;
            let judge =
                |it: Located| self.shared.judge(&it).map(|presence| (it.environment, presence));
            Ok(located.into_iter().filter_map(judge).collect())
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
            let request = ClaimRequest {
                environment: ticket.environment.clone(),
                registration: ticket.registration.clone(),
                generation,
            };
            let claim = claims::claim(shared, request).await?;
            let (environment, registration) =
                (ticket.environment.clone(), ticket.registration.clone());
            // The sequence of a claim is unique, and so tells sockets apart even after the claim was made again.
            let socket = claim.sequence;
            let held = Held { claim, registration, socket };
            shared.state().held.insert(environment.clone(), held);
            let claimed = Claimed { shared: shared.clone(), environment, socket };
            let link = shared.local.attach_executor(ticket, generation).await;
            Ok(Box::new(ClusterLink { link: link?, _claimed: claimed }) as Box<dyn Link>)
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
            let held = self.shared.state().held.get(&ticket.environment).map(|it| it.claim);
            let is_home = located.first().is_some_and(|it| Some(it.claim) == held);
            if !is_home {
                return Err(AttachError::Offline);
            }
            self.shared.local.attach_harness(ticket, max_streams).await
        })
    }

    fn supersede<'a>(&'a self, environment: &'a str, generation: u64) -> Answer<'a, ()> {
        self.shared.local.supersede(environment, generation)
    }

    fn end_tokens<'a>(&'a self, ended: &'a BTreeMap<String, CloseReason>) -> Answer<'a, ()> {
        self.shared.local.end_tokens(ended)
    }

    fn drain(&self) {
        self.shared.is_leaving.store(true, Ordering::Relaxed);
        self.shared.local.drain();
    }

    fn leave(&self) -> Answer<'_, ()> {
        Box::pin(lease::leave(&self.shared))
    }

    fn is_ready(&self) -> bool {
        let state = self.shared.state();
        state.is_held && state.renewed.elapsed() < LEASE
    }

    fn counts(&self) -> (usize, usize) {
        self.shared.local.counts()
    }

    fn members(&self) -> (usize, usize) {
        self.shared.state().membership.counts(Instant::now())
    }

    fn waiting(&self) -> usize {
        self.shared.local.waiting()
    }

    fn budget(&self) -> &BufferBudget {
        self.shared.local.budget()
    }
}

/// Releases a claim when it is dropped.
struct Claimed {
    shared: Arc<Shared>,
    environment: String,
    socket: u64,
}

impl Drop for Claimed {
    fn drop(&mut self) {
        self.shared.release(std::mem::take(&mut self.environment), self.socket);
    }
}

/// The attachment of an executor with its claim; the socket is detached before the claim is released.
struct ClusterLink {
    link: Box<dyn Link>,
    _claimed: Claimed,
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
        self.link.poll_frame()
    }

    fn state(&self, waker: &Waker) -> LinkState {
        self.link.state(waker)
    }
}
