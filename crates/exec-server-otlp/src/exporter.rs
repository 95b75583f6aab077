//! The thread that sends spans in batches, and metrics at their interval.
//!
//! ```text
//! empty ─span▶ gathering ─full, or a second old▶ sending ─accepted▶ empty
//!                                                  ▲  └─transient failure▶ waiting(until t) ─t▶ sending
//!                                                  └──────────────────────────┘ after a minute: dropped
//! ```
//!
//! Owner: the thread `otlp`. Spans that come while a batch waits stay in the queue, which is bounded.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use exec_server_transport::spans::FinishedSpan;
use opentelemetry_otlp::SpanExporter;
use opentelemetry_sdk::trace::{SpanData, SpanExporter as _};
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep_until, timeout};
use url::Url;

use crate::client::{Client, Failure};
use crate::settings::{OtlpError, Settings};
use crate::span_data::{exporter, span_data};
use crate::{Done, LAST_SPANS, Shared, metric_data};

/// As many spans per request as the specification recommends.
const MAX_BATCH: usize = 512;
/// Spans wait so long for others; short, because a trace is looked at while it is made.
const BATCH_DELAY: Duration = Duration::from_secs(1);
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// A batch that could not be sent for so long is dropped.
const GIVE_UP: Duration = Duration::from_secs(60);

pub(crate) struct Exporter {
    shared: Arc<Shared>,
    client: Arc<Client>,
    spans: Option<SpanExporter>,
    metrics: Option<Url>,
    settings: Settings,
    queue: mpsc::Receiver<FinishedSpan>,
    stop: mpsc::Receiver<Done>,
    started: SystemTime,
    /// Whether the last request failed, which is logged once.
    is_failing: bool,
}

/// Spans that are sent together.
struct Batch {
    spans: Vec<SpanData>,
    /// When it is sent, or sent again.
    due: Instant,
    /// The pause after the next failure, and when the batch is dropped; set by the first failure.
    retry: Option<(Duration, Instant)>,
}

impl Exporter {
    pub(crate) fn new(
        settings: Settings,
        shared: Arc<Shared>,
        queue: mpsc::Receiver<FinishedSpan>,
        stop: mpsc::Receiver<Done>,
    ) -> Result<Self, OtlpError> {
        let client = Arc::new(Client::new(&settings));
        let build = |url: &Url| {
            let Settings { is_compressed, timeout, resource, .. } = &settings;
            exporter(url, client.clone(), *is_compressed, *timeout, resource)
        };
        let spans = settings.endpoints.traces.as_ref().map(build).transpose();
        let spans = spans.map_err(|error| OtlpError::Exporter(error.to_string()))?;
        let metrics = settings.endpoints.metrics.clone();
        let started = SystemTime::now();
        let is_failing = false;
        Ok(Self { shared, client, spans, metrics, settings, queue, stop, started, is_failing })
    }

    pub(crate) async fn run(mut self) {
        let mut batch = Batch::new();
        let every = self.settings.interval;
        let mut tick = interval_at(Instant::now() + every, every);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                done = self.stop.recv() => {
                    // Without a sender the program has ended in another way.
                    let Some(done) = done else { return };
                    let result = self.finish(batch).await;
                    // The waiting thread may have given up.
                    let _ = done.send(result);
                    return;
                }
                Some(span) = self.queue.recv(), if batch.has_room() => batch.push(span),
                () = sleep_until(batch.due), if !batch.spans.is_empty() => {
                    // Failures are noted inside, and the batch waits for its next attempt.
                    let _ = self.send(&mut batch).await;
                }
                _ = tick.tick(), if self.metrics.is_some() => {
                    let sent = self.send_metrics().await;
                    self.note(&sent);
                }
            }
        }
    }

    /// Sends a batch once; afterwards it is empty, or waits for another attempt.
    async fn send(&mut self, batch: &mut Batch) -> Result<(), Failure> {
        let Some(exporter) = &self.spans else {
            *batch = Batch::new();
            return Ok(());
        };
        let count = batch.spans.len() as u64;
        let sent = exporter.export(batch.spans.clone()).await;
        let sent = sent.map_err(|error| {
            self.client.take_failure().unwrap_or_else(|| Failure {
                reason: error.to_string(),
                is_transient: false,
                retry_after: None,
            })
        });
        self.note(&sent);
        match &sent {
            Ok(()) => {
                self.shared.exported.fetch_add(count, Ordering::Relaxed);
                *batch = Batch::new();
            }
            Err(failure) => {
                if !batch.waits_after(failure, Instant::now()) {
                    self.shared.drop_spans(count);
                    *batch = Batch::new();
                }
            }
        }
        sent
    }

    async fn send_metrics(&self) -> Result<(), Failure> {
        let Some(url) = &self.metrics else { return Ok(()) };
        let texts: Vec<String> = {
            let readers = self.shared.metrics.lock().expect("no holder panics");
            readers.iter().map(|read| read()).collect()
        };
        let resource = &self.settings.resource;
        match metric_data::message(&texts, resource, self.started, SystemTime::now()) {
            Some(message) => self.client.post(url, message).await.map(drop),
            None => Ok(()),
        }
    }

    /// Sends everything once, within the time that the program waits.
    async fn finish(&mut self, mut batch: Batch) -> Result<(), String> {
        let everything = async {
            loop {
                while batch.has_room()
                    && let Ok(span) = self.queue.try_recv()
                {
                    batch.push(span);
                }
                if batch.spans.is_empty() {
                    break;
                }
                self.send(&mut batch).await?;
            }
            self.send_metrics().await
        };
        let result = match timeout(LAST_SPANS, everything).await {
            Ok(sent) => sent.map_err(|failure| failure.reason),
            Err(_) => Err(format!("the collector did not answer within {LAST_SPANS:?}")),
        };
        let left = batch.spans.len() + self.queue.len();
        self.shared.drop_spans(left as u64);
        if let Err(reason) = &result {
            tracing::warn!(reason, spans = left, "the last telemetry could not be sent");
        }
        result
    }

    /// Logs the first of several failures, and the end of them.
    fn note(&mut self, sent: &Result<(), Failure>) {
        match sent {
            Ok(()) if self.is_failing => tracing::info!("telemetry is sent again"),
            Err(failure) if !self.is_failing => {
                let collector = self.settings.endpoints.traces.as_ref().or(self.metrics.as_ref());
                let (reason, collector) = (&failure.reason, collector.map(Url::as_str));
                tracing::warn!(
                    collector,
                    reason,
                    "cannot send telemetry; spans are kept for a minute at most, requests are served as usual"
                );
            }
            Ok(()) | Err(_) => {}
        }
        self.is_failing = sent.is_err();
    }
}

impl Batch {
    fn new() -> Self {
        Self { spans: Vec::new(), due: Instant::now(), retry: None }
    }

    fn has_room(&self) -> bool {
        self.spans.len() < MAX_BATCH && self.retry.is_none()
    }

    fn push(&mut self, span: FinishedSpan) {
        if self.spans.is_empty() {
            self.due = Instant::now() + BATCH_DELAY;
        }
        self.spans.push(span_data(span));
        if !self.has_room() {
            self.due = Instant::now();
        }
    }

    /// Decides after a failure whether the batch is sent again, and when.
    fn waits_after(&mut self, failure: &Failure, now: Instant) -> bool {
        let (pause, give_up) = self.retry.unwrap_or((FIRST_PAUSE, now + GIVE_UP));
        let next = now + failure.retry_after.unwrap_or(pause);
        self.retry = Some(((2 * pause).min(LONGEST_PAUSE), give_up));
        self.due = next;
        failure.is_transient && next <= give_up
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(is_transient: bool, retry_after: Option<Duration>) -> Failure {
        Failure { reason: String::new(), is_transient, retry_after }
    }

    #[test]
    fn a_batch_waits_longer_after_each_failure_and_is_dropped_after_a_minute() {
        let (mut batch, start) = (Batch::new(), Instant::now());
        let (mut now, mut pauses) = (start, Vec::new());
        while batch.waits_after(&failure(true, None), now) {
            pauses.push((batch.due - now).as_secs());
            now = batch.due;
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16]);
        assert!(!batch.has_room(), "spans that come meanwhile stay in the queue");
    }

    #[test]
    fn the_collector_may_ask_for_a_pause_and_refuse_for_good() {
        let (mut batch, now) = (Batch::new(), Instant::now());
        let pause = Duration::from_secs(7);
        assert!(batch.waits_after(&failure(true, Some(pause)), now));
        assert_eq!(batch.due, now + pause);
        assert!(!batch.waits_after(&failure(false, None), now));
    }
}
