//! Configuration, limits and timings of a rendezvous.

use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use exec_server_relay::switchboard::DEFAULT_BUDGET;
use exec_server_transport::spans::Tracer;

use crate::bus::{NatsConfig, NodeConfig};
use crate::clock::Clock;

/// Configuration of a rendezvous.
#[derive(Debug, Clone)]
pub struct RendezvousConfig {
    /// Listen address.
    pub listen: SocketAddr,
    /// A socket that is bound to this address already, in place of a new one.
    pub inherited: Option<Arc<TcpListener>>,
    /// Data directory.
    pub data: PathBuf,
    /// The place of this node in a cluster; its state is then in PostgreSQL instead of the data directory.
    pub cluster: Option<ClusterConfig>,
    /// Base URL for peers, if it differs from the listen address.
    pub public_url: Option<String>,
    /// Certificate chain and private key, as PEM files.
    pub tls: Option<(PathBuf, PathBuf)>,
    /// Listen address for unauthenticated metrics.
    pub metrics: Option<SocketAddr>,
    /// Resource limits.
    pub limits: Limits,
    /// Intervals and timeouts.
    pub timings: Timings,
    /// Clock for the expiry of tokens, URLs and authorizations.
    pub clock: Clock,
    /// Records spans of requests; the default records nothing.
    pub tracer: Tracer,
    /// Returns free memory of the allocator to the system; called after a burst.
    pub release_memory: Option<fn()>,
}

/// A node of a cluster.
#[derive(Clone)]
pub struct ClusterConfig {
    /// PostgreSQL URL; may contain a password.
    pub store: String,
    /// Name and address of this node.
    pub node: NodeConfig,
    /// Name of the cluster; a node refuses the database of another one.
    pub name: String,
    /// File with the signing keys, the same for all nodes.
    pub signing_keys: PathBuf,
    /// Where NATS is; without it the nodes know each other only by the database.
    pub nats: Option<NatsConfig>,
    /// How long the executors of a node that stops are closed, one after the other.
    pub drain_time: Duration,
    /// How long a node that does not reach NATS or the database keeps its executors.
    pub isolation_grace: Duration,
    /// Interval of heartbeats; a node that misses four counts as silent.
    pub heartbeat: Duration,
}

impl std::fmt::Debug for ClusterConfig {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            store: _,
            node,
            name,
            signing_keys,
            nats,
            drain_time,
            isolation_grace,
            heartbeat,
        } = self;
        let nats = nats.as_ref().map(NatsConfig::address);
        let mut shown = formatter.debug_struct("ClusterConfig");
        let shown = shown.field("node", node).field("name", name);
        let shown = shown.field("signing_keys", signing_keys).field("nats", &nats);
        let shown = shown.field("drain_time", drain_time);
        let shown = shown.field("isolation_grace", isolation_grace);
        shown.field("heartbeat", heartbeat).finish_non_exhaustive()
    }
}

/// Resource limits.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Concurrent connections, including websockets.
    pub connections: usize,
    /// Concurrent harnesses per executor; an executor itself accepts 128 authenticated ones.
    pub streams_per_environment: usize,
    /// Unused authorizations per token; a harness needs one at a time.
    pub unused_authorizations: u32,
    /// Bytes that may be queued for all sockets together.
    pub buffer_budget: usize,
}

/// Intervals and timeouts.
#[derive(Debug, Clone)]
pub struct Timings {
    /// Interval of keepalive pings; shorter than the idle timeouts of common proxies.
    pub ping_interval: Duration,
    /// Time without activity after which a socket is closed.
    pub pong_deadline: Duration,
    /// Timeout of a TLS handshake, of the request headers, and of the request body.
    pub handshake: Duration,
    /// Timeout for a harness to claim its stream.
    pub claim: Duration,
    /// Stall timeout: how long an executor waits for a harness that does not read, and the other way round.
    pub slow_timeout: Duration,
    /// How long `connect` waits for an executor that was attached a moment ago.
    pub arrival: Duration,
    /// Timeout for closing a socket.
    pub close: Duration,
    /// Lifetime of an executor URL; the executor then registers again.
    pub executor_url: Duration,
    /// Lifetime of a harness URL and its authorization.
    pub harness_bundle: Duration,
    /// Interval of pruning, of the search for ended tokens, and of the check for new certificates and signing keys.
    pub maintenance: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 16_384,
            streams_per_environment: 256,
            unused_authorizations: 256,
            buffer_budget: DEFAULT_BUDGET,
        }
    }
}

impl Default for Timings {
    fn default() -> Self {
        Self {
            ping_interval: Duration::from_secs(20),
            pong_deadline: Duration::from_secs(60),
            handshake: Duration::from_secs(10),
            claim: Duration::from_secs(10),
            slow_timeout: Duration::from_secs(5),
            arrival: Duration::from_secs(1),
            close: Duration::from_secs(5),
            executor_url: Duration::from_secs(30 * 24 * 3600),
            harness_bundle: Duration::from_secs(60),
            maintenance: Duration::from_secs(2),
        }
    }
}

impl RendezvousConfig {
    /// Default limits and timings.
    pub fn new(listen: SocketAddr, data: PathBuf) -> Self {
        Self {
            listen,
            inherited: None,
            data,
            cluster: None,
            public_url: None,
            tls: None,
            metrics: None,
            limits: Limits::default(),
            timings: Timings::default(),
            clock: Clock::default(),
            tracer: Tracer::default(),
            release_memory: None,
        }
    }
}
