//! How long the operations of a store take, for metrics.

use std::time::Instant;

use exec_server_transport::metric_set::MetricSet;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};

use super::StoreError;

/// Durations and failures by operation; clones count together.
#[derive(Debug, Clone)]
pub struct StoreTimes {
    durations: Family<OperationLabel, Histogram>,
    failures: Family<OperationLabel, Counter>,
    /// Requests answered by one statement.
    together: Family<OperationLabel, Histogram>,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OperationLabel {
    operation: &'static str,
}

impl Default for StoreTimes {
    fn default() -> Self {
        // From 0.1 ms to 6 s; a statement is given up after 5 s.
        let durations = || Histogram::new(exponential_buckets(0.0001, 3.0, 11));
        let sizes = || Histogram::new(exponential_buckets(1.0, 4.0, 7));
        Self {
            durations: Family::new_with_constructor(durations),
            failures: Family::default(),
            together: Family::new_with_constructor(sizes),
        }
    }
}

impl StoreTimes {
    /// Adds the metrics to a set.
    pub fn register(&self, set: &mut MetricSet) {
        let duration = "Time that a caller waits for the store";
        set.add("store_duration_seconds", duration, self.durations.clone());
        set.add("store_failures", "Failed operations of the store", self.failures.clone());
        let together = "Requests that one statement has answered";
        set.add("store_batch_size", together, self.together.clone());
    }

    /// Measures an operation; one that its caller gives up is not counted.
    pub async fn of<T>(
        &self,
        operation: &'static str,
        asked: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let begun = Instant::now();
        let answer = asked.await;
        let label = OperationLabel { operation };
        self.durations.get_or_create(&label).observe(begun.elapsed().as_secs_f64());
        if answer.is_err() {
            self.failures.get_or_create(&label).inc();
        }
        answer
    }

    /// Counts a statement that answers this many requests.
    pub fn note_together(&self, operation: &'static str, requests: usize) {
        self.together.get_or_create(&OperationLabel { operation }).observe(requests as f64);
    }
}
