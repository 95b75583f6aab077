//! Prometheus metrics of a rendezvous.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use exec_server_transport::metric_set::{MetricSet, SpanCounters};
use exec_server_transport::spans::Tracer;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};

use crate::bus::{Bus, ClusterReport};
use crate::store::StoreTimes;

/// Prometheus metrics of a rendezvous.
pub struct Metrics {
    set: MetricSet,
    connections_active: Gauge,
    connections: Counter,
    requests: Family<RequestLabels, Counter>,
    durations: Family<MethodLabel, Histogram>,
    executors_active: Gauge,
    streams_active: Gauge,
    waiting: Gauge,
    members: Family<StateLabel, Gauge>,
    buffered: Gauge,
    budget: Gauge,
    frames: Family<DirectionLabel, Counter>,
    bytes: Family<DirectionLabel, Counter>,
    handshakes: Family<ResultLabel, Counter>,
    refusals: Family<RefusalLabels, Counter>,
    dropped: Family<ReasonLabel, Counter>,
    rejections: Family<ReasonLabel, Counter>,
    closes: Family<ReasonLabel, Counter>,
    claims: Counter,
    claim_batches: Counter,
    superseded: Counter,
    trunk_links: Gauge,
    trunk_links_waiting: Gauge,
    trunk_credits: Gauge,
    trunk_bytes: Family<DirectionLabel, Counter>,
    trunk_gaps: Counter,
    trunk_links_ended: Family<ReasonLabel, Counter>,
    spans: SpanCounters,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct RequestLabels {
    method: &'static str,
    result: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct RefusalLabels {
    method: &'static str,
    code: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct StateLabel {
    state: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct MethodLabel {
    method: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct DirectionLabel {
    dir: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ResultLabel {
    result: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ReasonLabel {
    reason: &'static str,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut set = MetricSet::default();
        let connections_active = set.simple("connections_active", "Open connections");
        let connections = set.simple("connections", "Connections accepted");
        let requests = set.simple("requests", "Requests answered");
        let durations = Family::<MethodLabel, Histogram>::new_with_constructor(|| {
            Histogram::new(exponential_buckets(0.0005, 4.0, 8))
        });
        let durations = set.add("request_duration_seconds", "From request to answer", durations);
        let executors_active = set.simple("relay_executors_active", "Executors attached");
        let streams_active = set.simple("relay_streams_active", "Harnesses attached");
        let waiting = set.simple("connects_waiting", "Connect requests that wait for an executor");
        let members = set.simple("cluster_nodes", "Nodes of the cluster by state");
        let buffered = set.simple("relay_buffered_bytes", "Bytes in queues");
        let budget = set.simple("relay_buffer_budget_bytes", "Limit for all queues");
        let frames = set.simple("relay_frames", "Frames received and sent");
        let bytes = set.simple("relay_bytes", "Bytes of frames received and sent");
        let handshakes =
            set.simple("noise_handshakes", "Harness authorizations checked for executors");
        let refusals = set.simple("request_refusals", "Requests refused");
        let dropped =
            set.simple("relay_dropped_frames", "Frames dropped without a matching stream");
        let rejections = set.simple("relay_rejections", "Websocket upgrades rejected");
        let closes = set.simple("relay_closes", "Websockets closed");
        let claims = set.simple("cluster_claims", "Executors claimed for this node");
        let claim_batches = set.simple("cluster_claim_batches", "Statements that made the claims");
        let superseded = set.simple(
            "cluster_superseded",
            "Executors closed because a newer claim or registration has replaced them",
        );
        let trunk_links = set.simple("trunk_links", "Streams to or from another node");
        let trunk_links_waiting =
            set.simple("trunk_links_waiting", "Streams that wait for credits of another node");
        let trunk_credits = set.simple("trunk_credits_bytes", "Credits granted to other nodes");
        let trunk_bytes = set.simple("trunk_bytes", "Bytes of frames from and to other nodes");
        let trunk_gaps =
            set.simple("trunk_gaps", "Messages of other nodes found missing, doubled or swapped");
        let trunk_links_ended = set.simple("trunk_links_ended", "Streams through trunks ended");
        let spans = SpanCounters::new(&mut set);
        Self {
            set,
            connections_active,
            connections,
            requests,
            durations,
            executors_active,
            streams_active,
            waiting,
            members,
            buffered,
            budget,
            frames,
            bytes,
            handshakes,
            refusals,
            dropped,
            rejections,
            closes,
            claims,
            claim_batches,
            superseded,
            trunk_links,
            trunk_links_waiting,
            trunk_credits,
            trunk_bytes,
            trunk_gaps,
            trunk_links_ended,
            spans,
        }
    }
}

impl Metrics {
    /// Metrics of a rendezvous with this store.
    pub fn with_store(times: &StoreTimes) -> Self {
        let mut metrics = Self::default();
        times.register(&mut metrics.set);
        metrics
    }

    /// Renders all metrics, with the current state of the bus and the spans so far.
    pub fn render(&self, bus: &dyn Bus, tracer: &Tracer) -> String {
        self.spans.update(tracer);
        let ((executors, harnesses), budget) = (bus.counts(), bus.budget());
        self.set_members(bus);
        self.set_cluster(&bus.report().unwrap_or_default());
        let set = |gauge: &Gauge, value| gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
        set(&self.executors_active, executors);
        set(&self.streams_active, harnesses);
        set(&self.waiting, bus.waiting());
        set(&self.buffered, budget.used());
        set(&self.budget, budget.total());
        self.set.text()
    }

    fn set_members(&self, bus: &dyn Bus) {
        let members = bus.members();
        // A single node is a cluster of one.
        let alone = usize::from(members.is_empty());
        for state in ["ready", "suspect", "leaving", "silent"] {
            let count = members.values().filter(|node| node.state.name() == state).count();
            let count = if state == "ready" { count + alone } else { count };
            let gauge = self.members.get_or_create_owned(&StateLabel { state });
            gauge.set(i64::try_from(count).unwrap_or(i64::MAX));
        }
    }

    fn set_cluster(&self, report: &ClusterReport) {
        let set = |counter: &Counter, value| counter.inner().store(value, Ordering::Relaxed);
        set(&self.claims, report.claims);
        set(&self.claim_batches, report.claim_batches);
        set(&self.superseded, report.superseded);
        let trunks = &report.trunks;
        let gauge = |gauge: &Gauge, value| gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
        gauge(&self.trunk_links, trunks.links.0);
        gauge(&self.trunk_links_waiting, trunks.links.1);
        gauge(&self.trunk_credits, usize::try_from(trunks.granted).unwrap_or(usize::MAX));
        let bytes = |dir| self.trunk_bytes.get_or_create_owned(&DirectionLabel { dir });
        set(&bytes("in"), trunks.counts.received_bytes);
        set(&bytes("out"), trunks.counts.sent_bytes);
        set(&self.trunk_gaps, trunks.counts.gaps);
        for (reason, count) in &trunks.ended {
            set(&self.trunk_links_ended.get_or_create_owned(&ReasonLabel { reason }), *count);
        }
    }

    /// Counts an accepted connection; it is active until the guard is dropped.
    pub fn connection(self: &Arc<Self>) -> ConnectionGuard {
        self.connections.inc();
        self.connections_active.inc();
        ConnectionGuard(self.clone())
    }

    /// Number of open connections.
    pub fn open_connections(&self) -> usize {
        usize::try_from(self.connections_active.get()).unwrap_or(0)
    }

    /// Counts a request.
    pub fn request(&self, method: &'static str, is_ok: bool, started: Instant) {
        let result = if is_ok { "ok" } else { "error" };
        self.requests.get_or_create(&RequestLabels { method, result }).inc();
        let seconds = started.elapsed().as_secs_f64();
        self.durations.get_or_create(&MethodLabel { method }).observe(seconds);
    }

    /// Counts a rejected request by error code.
    pub fn refusal(&self, method: &'static str, code: &'static str) {
        self.refusals.get_or_create(&RefusalLabels { method, code }).inc();
    }

    /// Counts a validation request of an executor.
    pub fn handshake(&self, is_allowed: bool) {
        let result = if is_allowed { "ok" } else { "refused" };
        self.handshakes.get_or_create(&ResultLabel { result }).inc();
    }

    /// Counts a rejected websocket upgrade.
    pub fn rejection(&self, reason: &'static str) {
        self.rejections.get_or_create(&ReasonLabel { reason }).inc();
    }

    /// Counts a closed websocket.
    pub fn close(&self, reason: &'static str) {
        self.closes.get_or_create(&ReasonLabel { reason }).inc();
    }

    /// Creates the frame counters of one socket.
    pub fn relay_meter(&self) -> RelayMeter {
        let frames = |dir| self.frames.get_or_create_owned(&DirectionLabel { dir });
        let bytes = |dir| self.bytes.get_or_create_owned(&DirectionLabel { dir });
        RelayMeter {
            incoming: (frames("in"), bytes("in")),
            outgoing: (frames("out"), bytes("out")),
            dropped: self.dropped.clone(),
        }
    }
}

/// Frame counters of one socket.
pub struct RelayMeter {
    incoming: (Counter<u64, AtomicU64>, Counter<u64, AtomicU64>),
    outgoing: (Counter<u64, AtomicU64>, Counter<u64, AtomicU64>),
    dropped: Family<ReasonLabel, Counter>,
}

impl RelayMeter {
    /// Counts a received frame.
    pub fn received(&self, bytes: usize) {
        self.incoming.0.inc();
        self.incoming.1.inc_by(bytes as u64);
    }

    /// Counts a dropped frame.
    pub fn dropped(&self, reason: &'static str) {
        self.dropped.get_or_create(&ReasonLabel { reason }).inc();
    }

    /// Counts a sent frame.
    pub fn sent(&self, bytes: usize) {
        self.outgoing.0.inc();
        self.outgoing.1.inc_by(bytes as u64);
    }
}

/// Counts a connection as open while it is held.
pub struct ConnectionGuard(Arc<Metrics>);

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        self.0.connections_active.dec();
    }
}
