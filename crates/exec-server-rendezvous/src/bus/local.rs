//! Registry of the sockets attached to this node.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex};
use std::task::Waker;
use std::time::Instant;

use bytes::Bytes;
use exec_server_relay::switchboard::{
    AttachError, CloseReason, Presence, RouteOutcome, SocketId, Switchboard, SwitchboardLimits,
    Ticket,
};

use super::{Answer, Bus, Link, LinkState};

/// Environments do not interact, so each shard has its own lock; more shards than cores keep contention low.
const SHARDS: usize = 16;

/// Registry of the sockets attached to this node.
pub struct LocalBus {
    shards: Vec<Arc<Shard>>,
    hasher: RandomState,
}

/// The switchboard of a subset of the environments.
struct Shard(Mutex<Board>);

struct Board {
    switchboard: Switchboard,
    wakers: BTreeMap<SocketId, Waker>,
}

struct LocalLink {
    shard: Arc<Shard>,
    socket: SocketId,
}

impl LocalBus {
    /// Creates an empty registry.
    pub fn new(limits: SwitchboardLimits) -> Self {
        let shard = || {
            let switchboard = Switchboard::new(limits);
            Arc::new(Shard(Mutex::new(Board { switchboard, wakers: BTreeMap::new() })))
        };
        Self { shards: (0..SHARDS).map(|_| shard()).collect(), hasher: RandomState::new() }
    }

    fn shard(&self, environment: &str) -> &Arc<Shard> {
        &self.shards[self.hasher.hash_one(environment) as usize % SHARDS]
    }
}

impl Bus for LocalBus {
    fn presence<'a>(&'a self, environment: &'a str) -> Answer<'a, Option<Presence>> {
        let presence = self.shard(environment).with(|board| board.presence(environment));
        Box::pin(std::future::ready(presence))
    }

    fn attach_executor(
        &self,
        ticket: Ticket,
        generation: u64,
    ) -> Answer<'_, Result<Box<dyn Link>, AttachError>> {
        let shard = self.shard(&ticket.environment).clone();
        let attached =
            shard.with(|board| board.attach_executor(Instant::now(), ticket, generation));
        Box::pin(std::future::ready(shard.link(attached)))
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

    fn drain(&self) {
        for shard in &self.shards {
            shard.with(Switchboard::drain);
        }
    }

    fn counts(&self) -> (usize, usize) {
        let counts = self.shards.iter().map(|shard| shard.with(|board| board.counts()));
        counts.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
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
            value
        };
        woken.into_iter().for_each(Waker::wake);
        value
    }

    fn link(
        self: Arc<Self>,
        attached: Result<SocketId, AttachError>,
    ) -> Result<Box<dyn Link>, AttachError> {
        Ok(Box::new(LocalLink { socket: attached?, shard: self }))
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
        let switchboard = &board.switchboard;
        LinkState {
            is_reading: switchboard.is_reading(self.socket),
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
