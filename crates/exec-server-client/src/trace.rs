//! The trace that calls belong to: servers continue it, so that their spans are part of the caller's trace.

use std::fmt;
use std::sync::Arc;

use exec_server_protocol::trace_context::TraceContext;
use exec_server_transport::spans::{Parent, Span, SpanKind, Tracer};

tokio::task_local! {
    static CURRENT: TraceContext;
}

/// The trace of a client's calls.
///
/// A program with a tracing library of its own gives its current context:
///
/// ```
/// # use exec_server_client::{RemoteExecServerConnectArgs, TraceContext, Tracing};
/// # fn current_traceparent() -> Option<String> { None }
/// let tracing = Tracing::current(|| TraceContext::parse(&current_traceparent()?, None));
/// let args = RemoteExecServerConnectArgs::new("ws://127.0.0.1:7777").tracing(tracing);
/// ```
#[derive(Clone, Default)]
pub struct Tracing {
    tracer: Tracer,
    current: Option<Arc<dyn Fn() -> Option<TraceContext> + Send + Sync>>,
}

impl Tracing {
    /// Calls belong to the trace that `current` names when they are made, on the task that makes them.
    pub fn current(current: impl Fn() -> Option<TraceContext> + Send + Sync + 'static) -> Self {
        Self { tracer: Tracer::default(), current: Some(Arc::new(current)) }
    }

    /// Makes a span of each call.
    #[must_use]
    pub fn with_spans(mut self, tracer: Tracer) -> Self {
        self.tracer = tracer;
        self
    }

    /// The span of a call, and the context that its request carries.
    pub(crate) fn begin(&self, name: &'static str) -> (Span, Option<TraceContext>) {
        let parent = self.context();
        if !self.tracer.is_on() {
            return (Span::default(), parent);
        }
        let of_parent = parent.as_ref().map_or(Parent::None, Parent::Local);
        let span = self.tracer.start(SpanKind::Client, name, of_parent);
        let context = span.context().cloned();
        (span, context)
    }

    /// The context of the caller.
    fn context(&self) -> Option<TraceContext> {
        let scoped = CURRENT.try_with(TraceContext::clone).ok();
        scoped.or_else(|| self.current.as_ref().and_then(|current| current()))
    }
}

/// Runs `work` with this trace context: calls that it makes on its own task belong to the trace.
pub async fn with_trace_context<F: Future>(context: TraceContext, work: F) -> F::Output {
    CURRENT.scope(context, work).await
}

impl fmt::Debug for Tracing {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        formatter.debug_struct("Tracing").field("tracer", &self.tracer).finish_non_exhaustive()
    }
}
