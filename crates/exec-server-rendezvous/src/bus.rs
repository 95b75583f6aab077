//! Interface to the registry of attached sockets.
//!
//! [`LocalBus`] serves a single node from memory. A cluster would need only another implementation, because callers do
//! not know on which node the other end of a link is.

mod arrivals;
mod local;

use std::collections::BTreeMap;
use std::pin::Pin;
use std::task::Waker;
use std::time::{Duration, Instant};

use bytes::Bytes;
use exec_server_relay::switchboard::{
    AttachError, BufferBudget, CloseReason, Presence, RouteOutcome, Ticket,
};

pub use local::LocalBus;

/// A result that may come from another node.
pub type Answer<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Registry of attached executors and harnesses.
pub trait Bus: Send + Sync + 'static {
    /// The attached executor of an environment, if any.
    fn presence<'a>(&'a self, environment: &'a str) -> Answer<'a, Option<Presence>>;
    /// As `presence`, but waits up to `time` for an executor that was attached a moment ago.
    fn await_presence<'a>(
        &'a self,
        environment: &'a str,
        time: Duration,
    ) -> Answer<'a, Option<Presence>>;
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
    /// Closes all sockets of this node for shutdown.
    fn drain(&self);
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
