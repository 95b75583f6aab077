//! Prometheus metrics of the server.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use exec_server_protocol::http::HttpErrorKind;
use exec_server_protocol::methods::Method;
use exec_server_relay::handshake_limit::Refusal;
use exec_server_transport::metric_set::{MetricSet, SpanCounters};
use exec_server_transport::spans::Tracer;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};

/// The metrics of one server; cheap to clone.
#[derive(Clone)]
pub struct Metrics {
    inner: Arc<Inner>,
}

struct Inner {
    set: MetricSet,
    connections_active: Gauge,
    connections: Counter,
    sessions_active: Gauge,
    processes_active: Gauge,
    processes_finished: Counter,
    sandbox_denials: Counter,
    process_duration: Histogram,
    output_bytes: Counter,
    http_active: Gauge,
    /// One counter per failure kind; the last one counts successful exchanges.
    http_exchanges: Vec<Counter>,
    handshakes: Family<ResultLabel, Counter>,
    audit_written: Counter,
    audit_dropped: Counter,
    audit_refused: Counter,
    spans: SpanCounters,
    /// Counts the spans.
    tracer: Tracer,
    /// Indexed by method, so that counting a request needs no label lookup.
    requests: Vec<RequestMetrics>,
}

struct RequestMetrics {
    ok: Counter,
    error: Counter,
    duration: Histogram,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct RequestLabels {
    method: &'static str,
    result: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct MethodLabel {
    method: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OutcomeLabel {
    outcome: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ResultLabel {
    result: &'static str,
}

/// The `result` label of a successful handshake.
pub const HANDSHAKE_OK: &str = "ok";
/// The `outcome` label of a successful exchange.
const OK: &str = "ok";

impl Default for Metrics {
    fn default() -> Self {
        Self::new(Tracer::default())
    }
}

impl Metrics {
    /// The metrics of a server with this tracer.
    pub fn new(tracer: Tracer) -> Self {
        let mut set = MetricSet::default();
        let connections_active: Gauge = set.simple("connections_active", "Open connections");
        let connections: Counter = set.simple("connections", "Connections accepted");
        let sessions_active: Gauge =
            set.simple("sessions_active", "Sessions, attached or detached");
        let processes_active: Gauge = set.simple("processes_active", "Processes not yet closed");
        let processes_finished: Counter = set.simple("processes_finished", "Processes closed");
        let sandbox_denials: Counter = set.simple(
            "sandbox_denials",
            "Processes that failed because their sandbox denied something",
        );
        let process_duration = set.add(
            "process_duration_seconds",
            "Time from start to exit of a process",
            Histogram::new(exponential_buckets(0.001, 4.0, 10)),
        );
        let output_bytes: Counter = set.simple("output_bytes", "Output bytes of processes");
        let requests: Family<RequestLabels, Counter> = set.simple("requests", "Requests answered");
        let durations = Family::<MethodLabel, Histogram>::new_with_constructor(|| {
            Histogram::new(exponential_buckets(0.00005, 4.0, 10))
        });
        let durations =
            set.add("request_duration_seconds", "Time from request to reply", durations);
        let http_active: Gauge = set.simple("http_exchanges_active", "HTTP exchanges in progress");
        let http_outcomes: Family<OutcomeLabel, Counter> =
            set.simple("http_exchanges", "HTTP exchanges finished, by outcome");
        let outcomes = HttpErrorKind::ALL.map(HttpErrorKind::name).into_iter().chain([OK]);
        let http_exchanges = outcomes
            .map(|outcome| http_outcomes.get_or_create_owned(&OutcomeLabel { outcome }))
            .collect();
        let handshakes: Family<ResultLabel, Counter> =
            set.simple("noise_handshakes", "Noise handshakes of harnesses, by result");
        for result in Refusal::ALL.map(Refusal::name).into_iter().chain([HANDSHAKE_OK]) {
            drop(handshakes.get_or_create(&ResultLabel { result }));
        }
        let audit_written: Counter = set.simple("audit_records", "Audit records written");
        let audit_dropped: Counter = set.simple(
            "audit_records_dropped",
            "Audit records dropped because the log could not be written",
        );
        let audit_refused: Counter = set.simple(
            "audit_requests_refused",
            "Requests refused because the audit log could not be written",
        );
        let spans = SpanCounters::new(&mut set);
        let requests = Method::ALL
            .iter()
            .map(|method| {
                let method = method.name();
                RequestMetrics {
                    ok: requests.get_or_create_owned(&RequestLabels { method, result: "ok" }),
                    error: requests.get_or_create_owned(&RequestLabels { method, result: "error" }),
                    duration: durations.get_or_create_owned(&MethodLabel { method }),
                }
            })
            .collect();
        let inner = Inner {
            set,
            connections_active,
            connections,
            sessions_active,
            processes_active,
            processes_finished,
            sandbox_denials,
            process_duration,
            output_bytes,
            http_active,
            http_exchanges,
            handshakes,
            audit_written,
            audit_dropped,
            audit_refused,
            spans,
            tracer,
            requests,
        };
        Self { inner: Arc::new(inner) }
    }

    /// Renders all metrics in the Prometheus text format.
    pub fn render(&self) -> String {
        self.inner.spans.update(&self.inner.tracer);
        self.inner.set.text()
    }

    /// Counts a new connection, as active until the guard is dropped.
    pub fn connection(&self) -> ActiveGuard {
        self.inner.connections.inc();
        ActiveGuard::new(self.inner.connections_active.clone())
    }

    /// Counts a session as active until the guard is dropped.
    pub fn session(&self) -> ActiveGuard {
        ActiveGuard::new(self.inner.sessions_active.clone())
    }

    /// Counts a process as active until the guard is dropped.
    pub fn process(&self) -> ActiveGuard {
        ActiveGuard::new(self.inner.processes_active.clone())
    }

    /// Records an exit and the `seconds` since the start.
    pub fn process_exited(&self, seconds: f64) {
        self.inner.processes_finished.inc();
        self.inner.process_duration.observe(seconds);
    }

    /// Counts a process that failed because of its sandbox.
    pub fn sandbox_denial(&self) {
        self.inner.sandbox_denials.inc();
    }

    /// Adds output bytes of a process.
    pub fn output(&self, bytes: usize) {
        self.inner.output_bytes.inc_by(bytes as u64);
    }

    /// Counts a Noise handshake by its result.
    pub fn handshake(&self, result: &'static str) {
        self.inner.handshakes.get_or_create(&ResultLabel { result }).inc();
    }

    /// Counts an audit record that was written.
    pub fn audit_written(&self) {
        self.inner.audit_written.inc();
    }

    /// Counts audit records that were dropped.
    pub fn audit_dropped(&self, count: u64) {
        self.inner.audit_dropped.inc_by(count);
    }

    /// Counts a request that was refused because of the audit log.
    pub fn audit_refused(&self) {
        self.inner.audit_refused.inc();
    }

    /// Counts an HTTP exchange as active until the timer is dropped.
    pub fn http_exchange(&self) -> HttpTimer {
        let active = ActiveGuard::new(self.inner.http_active.clone());
        HttpTimer { metrics: self.clone(), _active: active, is_finished: false }
    }

    /// Starts timing one request.
    pub fn request(&self, method: Method) -> RequestTimer {
        RequestTimer { metrics: self.clone(), method, started: Instant::now() }
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        formatter.write_str("Metrics")
    }
}

/// Keeps a gauge incremented until it is dropped.
#[derive(Debug)]
pub struct ActiveGuard(Gauge);

impl ActiveGuard {
    fn new(gauge: Gauge) -> Self {
        gauge.inc();
        Self(gauge)
    }
}

impl Drop for ActiveGuard {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// Measures the time from one request to its reply.
#[derive(Debug)]
pub struct RequestTimer {
    metrics: Metrics,
    method: Method,
    started: Instant,
}

impl RequestTimer {
    /// Records the result and the duration.
    pub fn finish(self, is_ok: bool) {
        let metrics = &self.metrics.inner.requests[self.method as usize];
        if is_ok {
            metrics.ok.inc()
        } else {
            metrics.error.inc()
        };
        metrics.duration.observe(self.started.elapsed().as_secs_f64());
    }
}

/// Counts one HTTP exchange; dropping the timer unfinished counts the exchange as cancelled.
#[derive(Debug)]
pub struct HttpTimer {
    metrics: Metrics,
    _active: ActiveGuard,
    is_finished: bool,
}

impl HttpTimer {
    /// Records the outcome; `None` means success.
    pub fn finish(mut self, failure: Option<HttpErrorKind>) {
        self.count(failure);
    }

    fn count(&mut self, failure: Option<HttpErrorKind>) {
        self.is_finished = true;
        let place = failure.map_or(HttpErrorKind::ALL.len(), |kind| kind as usize);
        self.metrics.inner.http_exchanges[place].inc();
    }
}

impl Drop for HttpTimer {
    fn drop(&mut self) {
        if !self.is_finished {
            self.count(Some(HttpErrorKind::Cancelled));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exchange_is_counted_under_the_name_of_its_outcome() {
        for failure in HttpErrorKind::ALL.map(Some).into_iter().chain([None]) {
            let metrics = Metrics::default();
            metrics.http_exchange().finish(failure);
            let name = failure.map_or(OK, HttpErrorKind::name);
            let text = metrics.render();
            let line = format!("exec_server_http_exchanges_total{{outcome=\"{name}\"}} 1\n");
            assert!(text.contains(&line), "{line} in {text}");
        }
    }
}
