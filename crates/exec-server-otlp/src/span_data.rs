//! Finished spans in the form of the OpenTelemetry SDK.

use std::str::FromStr;
use std::time::Duration;

use exec_server_transport::spans::{FinishedSpan, SpanKind, Value};
use opentelemetry::trace::{SpanContext, SpanId, Status, TraceFlags, TraceId, TraceState};
use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_otlp::{
    ExporterBuildError, Protocol, SpanExporter, WithExportConfig, WithHttpConfig,
};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanExporter as _, SpanLinks};
use std::sync::Arc;
use url::Url;

use crate::client::Client;

/// The name of what measures, as OTLP has it for spans and metrics.
pub(crate) const SCOPE: &str = "exec-server";

/// The exporter of spans to this URL; it sends each batch once.
pub(crate) fn exporter(
    url: &Url,
    client: Arc<Client>,
    is_compressed: bool,
    timeout: Duration,
    resource: &[(String, String)],
) -> Result<SpanExporter, ExporterBuildError> {
    let mut builder = SpanExporter::builder()
        .with_http()
        .with_shared_http_client(client)
        .with_protocol(Protocol::HttpBinary)
        .with_endpoint(url.as_str())
        .with_timeout(timeout)
        .with_retry_policy(opentelemetry_otlp::RetryPolicy::disabled());
    if is_compressed {
        builder = builder.with_compression(opentelemetry_otlp::Compression::Gzip);
    }
    let mut exporter = builder.build()?;
    let attributes =
        resource.iter().map(|(name, value)| KeyValue::new(name.clone(), value.clone()));
    exporter.set_resource(&Resource::builder_empty().with_attributes(attributes).build());
    Ok(exporter)
}

/// A span as the exporter takes it.
pub(crate) fn span_data(span: FinishedSpan) -> SpanData {
    let context = &span.context;
    let state = context.state.as_deref().and_then(|state| TraceState::from_str(state).ok());
    let span_context = SpanContext::new(
        TraceId::from_bytes(context.trace_id),
        SpanId::from_bytes(context.span_id),
        TraceFlags::new(context.flags),
        false,
        state.unwrap_or_default(),
    );
    let mut attributes: Vec<KeyValue> =
        span.attributes.into_iter().map(|(name, value)| attribute(name, value)).collect();
    let status = match span.error {
        None => Status::Unset,
        Some(kind) => {
            attributes.push(KeyValue::new("error.type", kind.clone()));
            Status::error(kind)
        }
    };
    SpanData {
        span_context,
        parent_span_id: span.parent.map_or(SpanId::INVALID, SpanId::from_bytes),
        parent_span_is_remote: span.has_remote_parent,
        span_kind: match span.kind {
            SpanKind::Internal => opentelemetry::trace::SpanKind::Internal,
            SpanKind::Client => opentelemetry::trace::SpanKind::Client,
            SpanKind::Server => opentelemetry::trace::SpanKind::Server,
        },
        name: span.name.into(),
        start_time: span.start,
        end_time: span.end,
        attributes,
        dropped_attributes_count: 0,
        events: SpanEvents::default(),
        links: SpanLinks::default(),
        status,
        instrumentation_scope: InstrumentationScope::builder(SCOPE)
            .with_version(env!("CARGO_PKG_VERSION"))
            .build(),
    }
}

fn attribute(name: &'static str, value: Value) -> KeyValue {
    match value {
        Value::Text(text) => KeyValue::new(name, text),
        Value::Number(number) => KeyValue::new(name, number),
        Value::Flag(flag) => KeyValue::new(name, flag),
    }
}
