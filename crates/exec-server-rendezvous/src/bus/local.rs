//! Registry of the sockets attached to this node.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex};
use std::task::Waker;
use std::time::{Duration, Instant};

use bytes::Bytes;
use exec_server_relay::switchboard::{
    AttachError, BufferBudget, CloseReason, RouteOutcome, SocketId, Switchboard, SwitchboardLimits,
    Ticket,
};

use tokio::sync::Notify;

use super::arrivals::{Arrivals, Waiting, WaitingGuard};
use super::{Answer, Bus, ClusterReport, Link, LinkState, NodeView, Presence};
use crate::clock::{self, Seconds};
use crate::store::StoreError;

/// Environments do not interact, so each shard has its own lock; more shards than cores keep contention low.
const SHARDS: usize = 16;

/// Registry of the sockets attached to this node.
pub struct LocalBus {
    shards: Vec<Arc<Shard>>,
    hasher: RandomState,
    budget: Arc<BufferBudget>,
    waiting: Waiting,
}

/// The switchboard of a subset of the environments.
struct Shard(Mutex<Board>);

struct Board {
    switchboard: Switchboard,
    wakers: BTreeMap<SocketId, Waker>,
    arrivals: Arrivals,
}

struct LocalLink {
    shard: Arc<Shard>,
    socket: SocketId,
}

impl LocalBus {
    /// Creates an empty registry whose queues hold up to `budget` bytes.
    pub fn new(limits: SwitchboardLimits, budget: usize) -> Self {
        let budget = BufferBudget::new(budget);
        let shard = || {
            let switchboard = Switchboard::new(limits, budget.clone());
            let (wakers, arrivals) = (BTreeMap::new(), Arrivals::default());
            Arc::new(Shard(Mutex::new(Board { switchboard, wakers, arrivals })))
        };
        let shards = (0..SHARDS).map(|_| shard()).collect();
        Self { shards, hasher: RandomState::new(), budget, waiting: Waiting::default() }
    }

    /// The attached executor of an environment.
    pub fn presence(&self, environment: &str) -> Option<Presence> {
        let found = self.shard(environment).with(|board| board.presence(environment))?;
        let ago = found.since.elapsed().as_secs();
        Some(Presence {
            registration: found.registration,
            since: clock::now() - Seconds::try_from(ago).unwrap_or(0),
            streams: Some(found.streams),
            is_full: found.is_full,
            home: None,
        })
    }

    /// Attaches an executor.
    pub fn attach(&self, ticket: Ticket, generation: u64) -> Result<Box<dyn Link>, AttachError> {
        let shard = self.shard(&ticket.environment).clone();
        let environment = ticket.environment.clone();
        let attached =
            shard.with(|board| board.attach_executor(Instant::now(), ticket, generation));
        if attached.is_ok() {
            shard.0.lock().expect("no holder panics").arrivals.handle_arrival(&environment);
        }
        shard.link(attached)
    }

    /// Closes the executor of an environment.
    pub fn close_executor(&self, environment: &str, why: CloseReason) {
        self.shard(environment).with(|board| board.close_executor(environment, why));
    }

    /// A place among the waiting requests, unless all are taken.
    pub fn enter_waiting(&self) -> Option<WaitingGuard<'_>> {
        self.waiting.enter()
    }

    /// The budget of this node's queues, for other parts that queue.
    pub fn shared_budget(&self) -> Arc<BufferBudget> {
        self.budget.clone()
    }

    /// Lets every socket look at its state again.
    pub fn wake_all(&self) {
        for shard in &self.shards {
            let wakers = std::mem::take(&mut shard.0.lock().expect("no holder panics").wakers);
            wakers.into_values().for_each(Waker::wake);
        }
    }

    fn shard(&self, environment: &str) -> &Arc<Shard> {
        &self.shards[self.hasher.hash_one(environment) as usize % SHARDS]
    }
}

impl Bus for LocalBus {
    fn presences<'a>(
        &'a self,
        environments: &'a [String],
    ) -> Answer<'a, Result<BTreeMap<String, Presence>, StoreError>> {
        let found = environments.iter().filter_map(|id| Some((id.clone(), self.presence(id)?)));
        Box::pin(std::future::ready(Ok(found.collect())))
    }

    fn await_presence<'a>(
        &'a self,
        environment: &'a str,
        time: Duration,
    ) -> Answer<'a, Result<Option<Presence>, StoreError>> {
        Box::pin(async move {
            let presence = self.presence(environment);
            if presence.is_none()
                && let Some(_guard) = self.enter_waiting()
            {
                self.shard(environment).wait_for_arrival(environment, time).await;
                return Ok(self.presence(environment));
            }
            Ok(presence)
        })
    }

    fn attach_executor(
        &self,
        ticket: Ticket,
        generation: u64,
    ) -> Answer<'_, Result<Box<dyn Link>, AttachError>> {
        Box::pin(std::future::ready(self.attach(ticket, generation)))
    }

    fn attach_harness(
        &self,
        ticket: Ticket,
        max_streams: Option<usize>,
    ) -> Answer<'_, Result<Box<dyn Link>, AttachError>> {
        let shard = self.shard(&ticket.environment).clone();
        let attached =
            shard.with(|board| board.attach_harness(Instant::now(), ticket, max_streams));
        Box::pin(std::future::ready(shard.link(attached)))
    }

    fn supersede<'a>(&'a self, environment: &'a str, generation: u64) -> Answer<'a, ()> {
        self.shard(environment).with(|board| board.supersede(environment, generation));
        Box::pin(std::future::ready(()))
    }

    fn end_tokens<'a>(&'a self, ended: &'a BTreeMap<String, CloseReason>) -> Answer<'a, ()> {
        for shard in &self.shards {
            shard.with(|board| board.end_tokens(ended));
        }
        Box::pin(std::future::ready(()))
    }

    fn revoke_tokens<'a>(&'a self, ended: &'a BTreeMap<String, CloseReason>) -> Answer<'a, ()> {
        self.end_tokens(ended)
    }

    fn begin_leaving(&self) {}

    fn move_executors(&self, most: usize) -> usize {
        let (mut left, mut remaining) = (most, 0);
        for shard in &self.shards {
            let (closed, rest) =
                shard.with(|board| board.close_executors(left, CloseReason::Leaving));
            left -= closed;
            remaining += rest;
        }
        remaining
    }

    fn drain(&self) {
        for shard in &self.shards {
            shard.with(Switchboard::drain);
        }
    }

    fn counts(&self) -> (usize, usize) {
        let counts = self.shards.iter().map(|shard| shard.with(|board| board.counts()));
        counts.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
    }

    fn leave(&self) -> Answer<'_, ()> {
        Box::pin(std::future::ready(()))
    }

    fn is_ready(&self) -> bool {
        true
    }

    fn members(&self) -> BTreeMap<String, NodeView> {
        BTreeMap::new()
    }

    fn report(&self) -> Option<ClusterReport> {
        None
    }

    fn waiting(&self) -> usize {
        self.waiting.count()
    }

    fn budget(&self) -> &BufferBudget {
        &self.budget
    }
}

impl Shard {
    /// Runs one operation and wakes the sockets that it affects, after releasing the lock.
    fn with<T>(&self, act: impl FnOnce(&mut Switchboard) -> T) -> T {
        let mut woken = Vec::new();
        let value = {
            let mut board = self.0.lock().expect("no holder panics");
            let value = act(&mut board.switchboard);
            while let Some(socket) = board.switchboard.poll_wake() {
                woken.extend(board.wakers.remove(&socket));
            }
            while let Some(environment) = board.switchboard.poll_departure() {
                board.arrivals.handle_departure(Instant::now(), environment);
            }
            value
        };
        woken.into_iter().for_each(Waker::wake);
        value
    }

    /// Waits until an executor attaches, if one is expected, and at most for `time`.
    async fn wait_for_arrival(&self, environment: &str, time: Duration) {
        let awaited = {
            let mut board = self.0.lock().expect("no holder panics");
            if !board.arrivals.is_expected(Instant::now(), environment) {
                return;
            }
            let signal = Some(board.arrivals.signal(environment));
            AwaitedArrival { shard: self, environment, signal }
        };
        let signal = awaited.signal.as_deref().expect("only dropping takes it");
        let mut arrival = std::pin::pin!(signal.notified());
        arrival.as_mut().enable();
        // The executor may have attached before the signal was armed.
        if self.with(|board| board.presence(environment)).is_none() {
            let _ = tokio::time::timeout(time, arrival).await;
        }
    }

    fn link(
        self: Arc<Self>,
        attached: Result<SocketId, AttachError>,
    ) -> Result<Box<dyn Link>, AttachError> {
        Ok(Box::new(LocalLink { socket: attached?, shard: self }))
    }
}

/// The signal of a waiting request; dropping the last one removes it from the registry.
struct AwaitedArrival<'a> {
    shard: &'a Shard,
    environment: &'a str,
    signal: Option<Arc<Notify>>,
}

impl Drop for AwaitedArrival<'_> {
    fn drop(&mut self) {
        self.signal = None;
        let mut board = self.shard.0.lock().expect("no holder panics");
        board.arrivals.forget(self.environment);
    }
}

impl Link for LocalLink {
    fn handle_frame(&self, frame: Bytes) -> RouteOutcome {
        self.shard.with(|board| board.handle_frame(Instant::now(), self.socket, frame))
    }

    fn handle_misuse(&self, why: CloseReason) {
        self.shard.with(|board| board.handle_misuse(self.socket, why));
    }

    fn handle_timeout(&self) {
        self.shard.with(|board| board.handle_timeout(Instant::now(), self.socket));
    }

    fn stream_id(&self) -> Option<String> {
        let board = self.shard.0.lock().expect("no holder panics");
        board.switchboard.stream_id(self.socket).map(str::to_owned)
    }

    fn poll_frame(&self) -> Option<Bytes> {
        self.shard.with(|board| board.poll_frame(self.socket))
    }

    fn state(&self, waker: &Waker) -> LinkState {
        let mut board = self.shard.0.lock().expect("no holder panics");
        if !board.wakers.get(&self.socket).is_some_and(|known| known.will_wake(waker)) {
            board.wakers.insert(self.socket, waker.clone());
        }
        let switchboard = &mut board.switchboard;
        LinkState {
            is_reading: switchboard.poll_reading(self.socket),
            is_ending: switchboard.is_ending(self.socket),
            close_reason: switchboard.poll_close_reason(self.socket),
            timeout: switchboard.poll_timeout(self.socket),
        }
    }
}

impl Drop for LocalLink {
    fn drop(&mut self) {
        self.shard.with(|board| board.handle_gone(self.socket));
        self.shard.0.lock().expect("no holder panics").wakers.remove(&self.socket);
    }
}
