//! An OpenTelemetry collector for OTLP over HTTP with protobuf, which a test can make slow or make refuse.

use std::collections::VecDeque;
use std::io::Read;
use std::sync::{Arc, Mutex};

use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::metrics::v1::{Metric, metric::Data, number_data_point};
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::DEADLINE;
use crate::web::{Visit, Web, WebRequest, answer};

/// A collector; it stops with the test.
pub struct Collector {
    web: Web,
    received: Arc<Received>,
}

/// How the collector treats a request.
#[derive(Debug, Clone, Copy)]
pub enum Reaction {
    /// Takes it.
    Accept,
    /// Answers with this status, and with `Retry-After` in seconds.
    Refuse(u16, Option<u64>),
    /// Never answers.
    Hang,
}

#[derive(Default)]
struct Received {
    /// For the next requests; later ones are accepted.
    script: Mutex<VecDeque<Reaction>>,
    spans: watch::Sender<Vec<CollectedSpan>>,
    metrics: watch::Sender<Vec<Metric>>,
}

/// A span with the service that sent it.
#[derive(Debug, Clone)]
pub struct CollectedSpan {
    /// `service.name` of the resource.
    pub service: String,
    /// The span.
    pub span: Span,
}

impl Collector {
    /// A collector that takes everything.
    pub async fn start() -> Self {
        Self::scripted([]).await
    }

    /// A collector that treats its first requests in this way.
    pub async fn scripted(script: impl IntoIterator<Item = Reaction>) -> Self {
        let received = Arc::new(Received::default());
        received.script.lock().expect("no holder panics").extend(script);
        let shared = received.clone();
        let serve = move |mut visit: Visit| {
            let received = shared.clone();
            async move {
                while let Some(request) = visit.request().await {
                    match received.next_reaction() {
                        Reaction::Hang => return visit.closed().await,
                        Reaction::Refuse(status, after) => {
                            let after = after.map(|seconds| seconds.to_string());
                            let after = after.as_deref().map(|seconds| ("Retry-After", seconds));
                            visit.send(&answer(status, after.as_slice(), "no")).await;
                        }
                        Reaction::Accept => {
                            received.take(&request);
                            let kind = [("Content-Type", "application/x-protobuf")];
                            visit.send(&answer(200, &kind, "")).await;
                        }
                    }
                }
            }
        };
        Self { web: Web::start(serve).await, received }
    }

    /// The base URL, for `--otlp`.
    pub fn url(&self) -> String {
        self.web.url("")
    }

    /// All requests so far.
    pub fn requests(&self) -> Vec<WebRequest> {
        self.web.requests()
    }

    /// All spans so far.
    pub fn spans(&self) -> Vec<CollectedSpan> {
        self.received.spans.borrow().clone()
    }

    /// Waits for a span.
    pub async fn span(&self, what: &str, is_it: impl Fn(&CollectedSpan) -> bool) -> CollectedSpan {
        let mut spans = self.received.spans.subscribe();
        let waiting = spans.wait_for(|spans| spans.iter().any(&is_it));
        let Ok(found) = timeout(DEADLINE, waiting).await else {
            panic!("no span of {what} in {:#?}", self.spans());
        };
        let found = found.expect("the collector lives");
        found.iter().find(|span| is_it(span)).expect("just seen").clone()
    }

    /// Waits for a span of this service with this name.
    pub async fn span_named(&self, service: &str, name: &str) -> CollectedSpan {
        let is_it = |span: &CollectedSpan| span.service == service && span.span.name == name;
        self.span(&format!("{service}: {name}"), is_it).await
    }

    /// Waits for metrics, and returns the last ones.
    pub async fn metrics(&self, has_all: impl Fn(&[Metric]) -> bool) -> Vec<Metric> {
        let mut metrics = self.received.metrics.subscribe();
        let waiting = metrics.wait_for(|metrics| has_all(metrics));
        let found = timeout(DEADLINE, waiting).await.expect("the metrics come in time");
        found.expect("the collector lives").clone()
    }
}

impl Received {
    fn next_reaction(&self) -> Reaction {
        let mut script = self.script.lock().expect("no holder panics");
        script.pop_front().unwrap_or(Reaction::Accept)
    }

    fn take(&self, request: &WebRequest) {
        assert_eq!(request.header("content-type"), Some("application/x-protobuf"));
        let mut body = request.body.clone();
        if request.header("content-encoding") == Some("gzip") {
            body.clear();
            let mut decoder = flate2::read::GzDecoder::new(&request.body[..]);
            decoder.read_to_end(&mut body).expect("gzip");
        }
        match request.target.as_str() {
            "/v1/traces" => {
                let sent = ExportTraceServiceRequest::decode(&body[..]).expect("spans");
                let spans = sent.resource_spans.into_iter().flat_map(|of_resource| {
                    let resource = of_resource.resource.unwrap_or_default();
                    let service = text(&resource.attributes, "service.name").unwrap_or_default();
                    let spans = of_resource.scope_spans.into_iter().flat_map(|scope| scope.spans);
                    spans.map(move |span| CollectedSpan { service: service.clone(), span })
                });
                let spans: Vec<CollectedSpan> = spans.collect();
                self.spans.send_modify(|all| all.extend(spans));
            }
            "/v1/metrics" => {
                let sent = ExportMetricsServiceRequest::decode(&body[..]).expect("metrics");
                let of_resources = sent.resource_metrics.into_iter();
                let scopes = of_resources.flat_map(|resource| resource.scope_metrics);
                let metrics = scopes.flat_map(|scope| scope.metrics).collect();
                self.metrics.send_replace(metrics);
            }
            other => panic!("a request for {other}"),
        }
    }
}

impl CollectedSpan {
    /// A text attribute.
    pub fn text(&self, name: &str) -> Option<String> {
        text(&self.span.attributes, name)
    }

    /// A number.
    pub fn number(&self, name: &str) -> Option<i64> {
        match value(&self.span.attributes, name)? {
            Value::IntValue(number) => Some(*number),
            _ => None,
        }
    }

    /// Whether this span is a child of the other one, in the same trace.
    pub fn is_child_of(&self, parent: &Self) -> bool {
        self.span.trace_id == parent.span.trace_id
            && self.span.parent_span_id == parent.span.span_id
    }

    /// The code of the status: 0 is unset, 2 an error.
    pub fn status(&self) -> i32 {
        self.span.status.as_ref().map_or(0, |status| status.code)
    }
}

/// The sum of the points of a counter or gauge.
pub fn total(metrics: &[Metric], name: &str) -> Option<i64> {
    let metric = metrics.iter().find(|metric| metric.name == name)?;
    let points = match metric.data.as_ref()? {
        Data::Sum(sum) => &sum.data_points,
        Data::Gauge(gauge) => &gauge.data_points,
        _ => return None,
    };
    let number =
        |point: &opentelemetry_proto::tonic::metrics::v1::NumberDataPoint| match point.value {
            Some(number_data_point::Value::AsInt(number)) => number,
            _ => 0,
        };
    Some(points.iter().map(number).sum())
}

fn value<'a>(attributes: &'a [KeyValue], name: &str) -> Option<&'a Value> {
    let found = attributes.iter().find(|attribute| attribute.key == name)?;
    found.value.as_ref()?.value.as_ref()
}

fn text(attributes: &[KeyValue], name: &str) -> Option<String> {
    match value(attributes, name)? {
        Value::StringValue(text) => Some(text.clone()),
        _ => None,
    }
}
