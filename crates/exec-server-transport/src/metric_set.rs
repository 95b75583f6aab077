//! The metrics of a server and their Prometheus text; feature `metrics`, so that clients do not compile it.

use std::sync::atomic::Ordering;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::{Metric, Registry};

use crate::spans::Tracer;

/// The metrics of one server, in the order in which they are added.
#[derive(Debug)]
pub struct MetricSet(Registry);

impl Default for MetricSet {
    fn default() -> Self {
        Self(Registry::with_prefix("exec_server"))
    }
}

impl MetricSet {
    /// Adds a metric and returns a handle to it.
    pub fn add<M: Metric + Clone>(&mut self, name: &str, help: &str, metric: M) -> M {
        self.0.register(name, help, metric.clone());
        metric
    }

    /// Adds a metric without settings of its own.
    pub fn simple<M: Metric + Clone + Default>(&mut self, name: &str, help: &str) -> M {
        self.add(name, help, M::default())
    }

    /// All metrics in the Prometheus text format.
    pub fn text(&self) -> String {
        let mut text = String::new();
        encode(&mut text, &self.0).expect("writing to a string cannot fail");
        text
    }
}

/// Counters of the spans of a tracer.
#[derive(Debug)]
pub struct SpanCounters {
    exported: Counter,
    dropped: Counter,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct SpanLabel {
    result: &'static str,
}

impl SpanCounters {
    /// Adds the counters to a set.
    pub fn new(set: &mut MetricSet) -> Self {
        let spans: Family<SpanLabel, Counter> =
            set.simple("spans", "Spans for OpenTelemetry, by what became of them");
        let counter = |result| spans.get_or_create_owned(&SpanLabel { result });
        Self { exported: counter("exported"), dropped: counter("dropped") }
    }

    /// Takes over the counts of a tracer.
    pub fn update(&self, tracer: &Tracer) {
        if let Some(recorder) = tracer.recorder() {
            let counts = recorder.counts();
            self.exported.inner().store(counts.exported, Ordering::Relaxed);
            self.dropped.inner().store(counts.dropped, Ordering::Relaxed);
        }
    }
}
