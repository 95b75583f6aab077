//! Interface to the registry of attached sockets.
//!
//! [`LocalBus`] serves a single node from memory, [`ClusterBus`] one node of several that share a database.

mod arrivals;
mod cluster;
mod local;

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use bytes::Bytes;
use exec_server_relay::switchboard::{
    AttachError, BufferBudget, CloseReason, RouteOutcome, Ticket,
};

use crate::clock::Seconds;
use crate::membership::{Load, MemberState};
use crate::store::StoreError;

pub use cluster::{ClusterBus, JoinError, NatsConfig, NatsError, NodeConfig, TrunkReport};
pub use local::LocalBus;

/// A result that may come from another node.
pub type Answer<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// An executor that is attached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Presence {
    /// The registration that it attached with.
    pub registration: String,
    /// When it attached.
    pub since: Seconds,
    /// Number of attached harnesses; none if the executor is at another node.
    pub streams: Option<usize>,
    /// Whether further harnesses are refused.
    pub is_full: bool,
    /// Base URL of its node; none for the URL that all nodes share.
    pub home: Option<Arc<str>>,
}

/// A node of the cluster, as this node sees it.
#[derive(Debug, Clone)]
pub struct NodeView {
    /// Its epoch.
    pub epoch: u64,
    /// Its state.
    pub state: MemberState,
    /// Load and version, if it sends heartbeats.
    pub load: Option<Load>,
}

/// What a node has done in its cluster since it started.
#[derive(Debug, Clone, Default)]
pub struct ClusterReport {
    /// Claims of executors.
    pub claims: u64,
    /// Statements that made them.
    pub claim_batches: u64,
    /// Executors closed because a newer claim or registration has replaced them.
    pub superseded: u64,
    /// Links to other nodes; empty without NATS.
    pub trunks: TrunkReport,
}

/// Registry of attached executors and harnesses.
pub trait Bus: Send + Sync + 'static {
    /// The attached executors of these environments.
    fn presences<'a>(
        &'a self,
        environments: &'a [String],
    ) -> Answer<'a, Result<BTreeMap<String, Presence>, StoreError>>;
    /// The attached executor of an environment; waits up to `time` for one that was attached a moment ago.
    fn await_presence<'a>(
        &'a self,
        environment: &'a str,
        time: Duration,
    ) -> Answer<'a, Result<Option<Presence>, StoreError>>;
    /// Attaches an executor.
    fn attach_executor(
        &self,
        ticket: Ticket,
        generation: u64,
    ) -> Answer<'_, Result<Box<dyn Link>, AttachError>>;
    /// Attaches a harness.
    fn attach_harness(
        &self,
        ticket: Ticket,
        max_streams: Option<usize>,
    ) -> Answer<'_, Result<Box<dyn Link>, AttachError>>;
    /// Closes executors of older registrations.
    fn supersede<'a>(&'a self, environment: &'a str, generation: u64) -> Answer<'a, ()>;
    /// Closes the sockets of these tokens with the given reasons.
    fn end_tokens<'a>(&'a self, ended: &'a BTreeMap<String, CloseReason>) -> Answer<'a, ()>;
    /// Closes the sockets of revoked tokens at all nodes.
    fn revoke_tokens<'a>(&'a self, ended: &'a BTreeMap<String, CloseReason>) -> Answer<'a, ()>;
    /// Tells the other nodes that this one is about to leave.
    fn begin_leaving(&self);
    /// Closes up to `most` executors, so that other nodes take them over; returns how many are left.
    fn move_executors(&self, most: usize) -> usize;
    /// Closes all sockets of this node for shutdown.
    fn drain(&self);
    /// Gives up the place in the cluster, after all sockets are closed.
    fn leave(&self) -> Answer<'_, ()>;
    /// Whether executors and harnesses can attach.
    fn is_ready(&self) -> bool;
    /// The nodes of the cluster that are not dead; none without a cluster.
    fn members(&self) -> BTreeMap<String, NodeView>;
    /// What this node has done in its cluster; none without a cluster.
    fn report(&self) -> Option<ClusterReport>;
    /// Number of attached executors and harnesses on this node.
    fn counts(&self) -> (usize, usize);
    /// Number of requests that wait for an executor.
    fn waiting(&self) -> usize;
    /// The budget of this node's queues.
    fn budget(&self) -> &BufferBudget;
}

/// The attachment of one socket; dropping it detaches the socket.
pub trait Link: Send + 'static {
    /// A binary message arrived.
    fn handle_frame(&self, frame: Bytes) -> RouteOutcome;
    /// Reports a protocol violation by the peer.
    fn handle_misuse(&self, why: CloseReason);
    /// The time in [`LinkState::timeout`] has been reached.
    fn handle_timeout(&self);
    /// The stream that a harness has claimed.
    fn stream_id(&self) -> Option<String>;
    /// The next frame to write.
    fn poll_frame(&self) -> Option<Bytes>;
    /// The current state; `waker` is called when it changes.
    fn state(&self, waker: &Waker) -> LinkState;
}

/// State of a link, beside its queued frames.
#[derive(Debug, Clone, Copy)]
pub struct LinkState {
    /// Whether reading from the socket is allowed.
    pub is_reading: bool,
    /// Whether the socket is to be closed after its queued frames.
    pub is_ending: bool,
    /// The close reason, once all queued frames are written.
    pub close_reason: Option<CloseReason>,
    /// When [`Link::handle_timeout`] must be called.
    pub timeout: Option<Instant>,
}
