//! What the server counts, in the form that Prometheus reads.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Instant;

use exec_server_machines::relay::door::Refusal;
use exec_server_protocol::http::HttpErrorKind;
use exec_server_protocol::methods::Method;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

/// What the server counts; cheap to clone.
#[derive(Clone)]
pub struct Metrics {
    inner: Arc<Inner>,
}

struct Inner {
    registry: Registry,
    connections_active: Gauge,
    connections: Counter,
    sessions_active: Gauge,
    processes_active: Gauge,
    processes_finished: Counter,
    sandbox_denials: Counter,
    process_duration: Histogram,
    output_bytes: Counter,
    http_active: Gauge,
    /// One per kind of failure, and the last for those without one.
    http_exchanges: Vec<Counter>,
    handshakes: Family<ResultLabel, Counter>,
    /// One pair per method of the table, so that counting a request looks nothing up.
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

/// The result of a handshake after which a harness was served.
pub const HANDSHAKE_OK: &str = "ok";
/// The outcome of an exchange that did not fail.
const OK: &str = "ok";

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("exec_server");
        let connections_active = Gauge::default();
        let connections = Counter::default();
        let sessions_active = Gauge::default();
        let processes_active = Gauge::default();
        let processes_finished = Counter::default();
        let sandbox_denials = Counter::default();
        let output_bytes = Counter::<u64, AtomicU64>::default();
        let process_duration = Histogram::new(exponential_buckets(0.001, 4.0, 10));
        let requests = Family::<RequestLabels, Counter>::default();
        let durations = Family::<MethodLabel, Histogram>::new_with_constructor(|| {
            Histogram::new(exponential_buckets(0.00005, 4.0, 10))
        });
        registry.register("connections_active", "Open connections", connections_active.clone());
        registry.register("connections", "Connections accepted", connections.clone());
        registry.register(
            "sessions_active",
            "Sessions, attached or waiting",
            sessions_active.clone(),
        );
        registry.register("processes_active", "Processes not yet closed", processes_active.clone());
        registry.register("processes_finished", "Processes closed", processes_finished.clone());
        registry.register(
            "sandbox_denials",
            "Processes that failed because of their sandbox",
            sandbox_denials.clone(),
        );
        registry.register(
            "process_duration_seconds",
            "From start to exit",
            process_duration.clone(),
        );
        registry.register("output_bytes", "Bytes that processes wrote", output_bytes.clone());
        registry.register("requests", "Requests answered", requests.clone());
        registry.register("request_duration_seconds", "From request to answer", durations.clone());
        let http_active = Gauge::default();
        let http_outcomes = Family::<OutcomeLabel, Counter>::default();
        let outcomes = HttpErrorKind::ALL.map(HttpErrorKind::name).into_iter().chain([OK]);
        let http_exchanges = outcomes
            .map(|outcome| http_outcomes.get_or_create_owned(&OutcomeLabel { outcome }))
            .collect();
        registry.register("http_exchanges_active", "Exchanges not yet ended", http_active.clone());
        registry.register("http_exchanges", "Exchanges ended", http_outcomes);
        let handshakes = Family::<ResultLabel, Counter>::default();
        for result in Refusal::ALL.map(Refusal::name).into_iter().chain([HANDSHAKE_OK]) {
            drop(handshakes.get_or_create(&ResultLabel { result }));
        }
        registry.register(
            "noise_handshakes",
            "Harnesses that came through a relay, and those that did not come in",
            handshakes.clone(),
        );
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
            registry,
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
            requests,
        };
        Self { inner: Arc::new(inner) }
    }
}

impl Metrics {
    /// Everything as text.
    pub fn render(&self) -> String {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.inner.registry)
            .expect("a string takes everything");
        text
    }

    /// A connection was opened; it is counted as open until the guard is dropped.
    pub fn connection(&self) -> ActiveGuard {
        self.inner.connections.inc();
        ActiveGuard::new(self.inner.connections_active.clone())
    }

    /// A session was opened; it is counted until the guard is dropped.
    pub fn session(&self) -> ActiveGuard {
        ActiveGuard::new(self.inner.sessions_active.clone())
    }

    /// A process was started; it is counted until the guard is dropped.
    pub fn process(&self) -> ActiveGuard {
        ActiveGuard::new(self.inner.processes_active.clone())
    }

    /// A process has exited after `seconds`.
    pub fn process_exited(&self, seconds: f64) {
        self.inner.processes_finished.inc();
        self.inner.process_duration.observe(seconds);
    }

    /// A process has failed because of its sandbox.
    pub fn sandbox_denial(&self) {
        self.inner.sandbox_denials.inc();
    }

    /// A process wrote.
    pub fn output(&self, bytes: usize) {
        self.inner.output_bytes.inc_by(bytes as u64);
    }

    /// A harness came in through a relay, or did not.
    pub fn handshake(&self, result: &'static str) {
        self.inner.handshakes.get_or_create(&ResultLabel { result }).inc();
    }

    /// An exchange with another server began.
    pub fn http_exchange(&self) -> HttpTimer {
        let active = ActiveGuard::new(self.inner.http_active.clone());
        HttpTimer { metrics: self.clone(), _active: active, is_finished: false }
    }

    /// Starts the clock of one request.
    pub fn request(&self, method: Method) -> RequestTimer {
        RequestTimer { metrics: self.clone(), method, started: Instant::now() }
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        formatter.write_str("Metrics")
    }
}

/// Counts something as active while it is held.
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

/// The clock of one request.
#[derive(Debug)]
pub struct RequestTimer {
    metrics: Metrics,
    method: Method,
    started: Instant,
}

impl RequestTimer {
    /// The request was answered.
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

/// Counts one exchange with another server; dropped before its end, it counts as cancelled.
#[derive(Debug)]
pub struct HttpTimer {
    metrics: Metrics,
    _active: ActiveGuard,
    is_finished: bool,
}

impl HttpTimer {
    /// The exchange has ended.
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
