//! Exports the spans and metrics of this program to an OpenTelemetry collector, by OTLP over HTTP with protobuf.
//!
//! | look here | for |
//! |---|---|
//! | [`Otlp`] | starts the exporter; it is the recorder of a `Tracer` |
//! | [`OtlpOptions`] | the collector, and what the exporter tells about this program |
//! | `settings` | the options and the standard variables, checked |
//! | `headers` | credentials for the collector |
//! | `exporter` | the thread that sends batches, retries and gives up |
//! | `client` | HTTP requests on the transport of this program |
//! | `span_data`, `metric_data` | spans and metrics in the form of OTLP |
//!
//! Requests never wait for the exporter: the queue is bounded, and a span that finds it full is dropped and counted.

#![warn(unreachable_pub)]

mod client;
mod exporter;
mod headers;
mod metric_data;
mod settings;
mod span_data;

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use exec_server_transport::spans::{FinishedSpan, MetricsReader, Recorder, SpanCounts};
use tokio::sync::mpsc;

use exporter::Exporter;
use settings::Settings;
pub use settings::{Endpoints, OtlpError, OtlpOptions};

/// Spans that wait for the exporter; as many as the specification recommends.
const MAX_QUEUED_SPANS: usize = 2048;
/// The longest wait for the last spans when a program ends.
const LAST_SPANS: Duration = Duration::from_secs(2);

/// A running exporter.
pub struct Otlp {
    shared: Arc<Shared>,
    spans: mpsc::Sender<FinishedSpan>,
    stop: Mutex<Option<mpsc::Sender<Done>>>,
    sampler: settings::Sampler,
}

type Done = std::sync::mpsc::Sender<Result<(), String>>;

/// State that the recorder and the thread share.
#[derive(Default)]
struct Shared {
    exported: AtomicU64,
    dropped: AtomicU64,
    metrics: Mutex<Vec<MetricsReader>>,
}

impl Otlp {
    /// Starts the exporter with the standard variables; `None` if `OTEL_SDK_DISABLED` is set.
    pub fn start(
        options: OtlpOptions,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Option<Arc<Self>>, OtlpError> {
        let Some(settings) = Settings::new(options, variable)? else { return Ok(None) };
        let shared = Arc::new(Shared::default());
        let (spans, queue) = mpsc::channel(MAX_QUEUED_SPANS);
        let (stop, stopped) = mpsc::channel(1);
        let sampler = settings.sampler;
        let exporter = Exporter::new(settings, shared.clone(), queue, stopped)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(OtlpError::SetUp)?;
        let thread = std::thread::Builder::new().name("otlp".to_owned());
        let metrics = shared.clone();
        let run = move || {
            runtime.block_on(exporter.run());
            // Readers may hold this recorder, which would keep both for ever.
            metrics.metrics.lock().expect("no holder panics").clear();
        };
        thread.spawn(run).map_err(OtlpError::SetUp)?;
        let stop = Mutex::new(Some(stop));
        Ok(Some(Arc::new(Self { shared, spans, stop, sampler })))
    }

    /// Sends what is queued, and the metrics once more; gives up after two seconds. Spans that come later are dropped.
    pub fn shut_down(&self) -> Result<(), String> {
        let Some(stop) = self.stop.lock().expect("no holder panics").take() else { return Ok(()) };
        let (done, finished) = std::sync::mpsc::channel();
        if stop.try_send(done).is_err() {
            return Ok(());
        }
        match finished.recv_timeout(LAST_SPANS) {
            Ok(result) => result,
            Err(RecvTimeoutError::Timeout) => {
                Err(format!("the collector did not answer within {LAST_SPANS:?}"))
            }
            Err(RecvTimeoutError::Disconnected) => Ok(()),
        }
    }
}

impl Recorder for Otlp {
    fn record(&self, span: FinishedSpan) {
        if self.spans.try_send(span).is_err() {
            self.shared.drop_spans(1);
        }
    }

    fn samples(&self, trace_id: &[u8; 16]) -> bool {
        self.sampler.samples(trace_id)
    }

    fn counts(&self) -> SpanCounts {
        SpanCounts {
            exported: self.shared.exported.load(Ordering::Relaxed),
            dropped: self.shared.dropped.load(Ordering::Relaxed),
        }
    }

    fn add_metrics(&self, read: MetricsReader) {
        self.shared.metrics.lock().expect("no holder panics").push(read);
    }
}

impl Shared {
    fn drop_spans(&self, count: u64) {
        self.dropped.fetch_add(count, Ordering::Relaxed);
    }
}

impl fmt::Debug for Otlp {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        formatter.debug_struct("Otlp").field("counts", &self.counts()).finish_non_exhaustive()
    }
}
