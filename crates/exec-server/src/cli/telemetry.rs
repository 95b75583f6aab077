//! The trace of a client command: one span around it, below the one that `TRACEPARENT` names.

use std::sync::{Mutex, OnceLock};

use exec_server_client::spans::{Parent, Span, SpanKind};
use exec_server_client::{TraceContext, Tracing};

use super::otlp_options::{OtlpOptions, Telemetry, TelemetryError};

/// One command per process has one trace; set when the command connects for the first time.
static CURRENT: OnceLock<Command> = OnceLock::new();

struct Command {
    telemetry: Telemetry,
    span: Mutex<Span>,
    /// The parent of calls.
    context: Option<TraceContext>,
}

/// Starts the trace of this command; later calls change nothing.
pub fn start(collector: Option<&str>) -> Result<(), TelemetryError> {
    if CURRENT.get().is_some() {
        return Ok(());
    }
    let telemetry = OtlpOptions::to(collector.map(str::to_owned)).start("exec-server-client")?;
    let of_caller = context_of_variables(|name| std::env::var(name).ok());
    let parent = of_caller.as_ref().map_or(Parent::None, Parent::Remote);
    let mut span = telemetry.tracer.start(SpanKind::Internal, "exec-server", parent);
    if let Some(command) = std::env::args().nth(1) {
        span.set("exec_server.command", command);
    }
    let context = span.context().cloned().or(of_caller);
    // Another thread cannot have been faster: commands connect on one.
    let _ = CURRENT.set(Command { telemetry, span: Mutex::new(span), context });
    Ok(())
}

/// The trace that calls of this command belong to.
pub fn tracing() -> Tracing {
    let Some(command) = CURRENT.get() else { return Tracing::default() };
    let context = command.context.clone();
    Tracing::current(move || context.clone()).with_spans(command.telemetry.tracer.clone())
}

/// Ends the span of this command and sends what is left.
pub fn finish(exit_code: u8) {
    let Some(command) = CURRENT.get() else { return };
    let mut span = std::mem::take(&mut *command.span.lock().expect("no holder panics"));
    span.set("process.exit.code", i64::from(exit_code));
    if exit_code != 0 {
        span.fail("exit_code");
    }
    drop(span);
    if let Err(reason) = command.telemetry.finish() {
        eprintln!("exec-server: warning: the trace of this command was not sent: {reason}");
    }
}

/// The context that a calling program passes on in `TRACEPARENT` and `TRACESTATE`.
fn context_of_variables(variable: impl Fn(&str) -> Option<String>) -> Option<TraceContext> {
    TraceContext::parse(&variable("TRACEPARENT")?, variable("TRACESTATE").as_deref())
}
