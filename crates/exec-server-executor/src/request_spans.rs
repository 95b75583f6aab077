//! The spans of requests and processes; nothing of argv, environment or content is in them.

use std::borrow::Cow;

use exec_server_core::process_log::Exit;
use exec_server_protocol::methods::Method;
use exec_server_protocol::trace_context::TraceContext;
use exec_server_transport::spans::{Parent, Span, SpanKind, Tracer, Value};

use crate::errors::RequestError;
use crate::process::ProcessConfig;

/// The span of a request, as a child of the trace context that the request carries.
pub fn request_span(
    tracer: &Tracer,
    method: Method,
    raw_params: &str,
    trace: Option<&str>,
) -> Span {
    if !tracer.is_on() {
        return Span::default();
    }
    let context = TraceContext::of_request(trace, raw_params);
    let parent = context.as_ref().map_or(Parent::None, Parent::Remote);
    let mut span = tracer.start(SpanKind::Server, method.name(), parent);
    span.set("rpc.system", "jsonrpc");
    span.set("rpc.method", method.name());
    span
}

/// Marks a span with the kind of an error; the message may have paths, so it is left out.
pub fn fail_span(span: &mut Span, error: &RequestError) {
    if span.is_recorded() {
        let error = error.to_rpc();
        span.set("rpc.jsonrpc.error_code", error.code);
        span.fail(error.data.map_or(Cow::Borrowed("error"), |data| Cow::Owned(data.kind)));
    }
}

/// The span of a process, from its start to its exit.
pub fn process_span(
    tracer: &Tracer,
    start: Option<&TraceContext>,
    config: &ProcessConfig,
    pid: u32,
) -> Span {
    let Some(start) = start else { return Span::default() };
    let mut span = tracer.start(SpanKind::Internal, "process", Parent::Local(start));
    if span.is_recorded() {
        let level = config.sandbox.as_ref().map(|sandbox| sandbox.report.level.clone());
        span.set("process.pid", i64::from(pid));
        span.set("process.interactive", config.is_terminal);
        span.set("exec_server.process.id", config.id.to_string());
        span.set("exec_server.sandbox", level.map_or("none".into(), Value::from));
    }
    span
}

/// Ends the span of a process with its exit.
pub fn end_process_span(mut span: Span, exit: &Exit) {
    if !span.is_recorded() {
        return;
    }
    span.set("process.exit.code", i64::from(exit.code));
    if let Some(signal) = &exit.details.signal {
        span.set("exec_server.exit.signal", signal.to_string());
    }
    let reason = exit.details.reason.as_ref().map(plain_name);
    if let Some(reason) = reason.clone() {
        span.set("exec_server.exit.reason", reason);
    }
    span.set("exec_server.sandbox.denied", exit.sandbox_denied);
    if exit.code != 0 {
        span.fail(match reason {
            Some(Value::Text(reason)) => reason,
            _ => Cow::Borrowed("error"),
        });
    }
}

/// A wire name, as texts of the protocol have it.
fn plain_name(name: &impl serde::Serialize) -> Value {
    match serde_json::to_value(name) {
        Ok(serde_json::Value::String(name)) => name.into(),
        _ => "unknown".into(),
    }
}
