//! Spans of calls, requests and processes, for a recorder that exports them; without a recorder they cost nothing.
//!
//! The crates that make spans know no exporter: `exec-server-otlp` has one, and a program that embeds them may bring its
//! own [`Recorder`].

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use exec_server_protocol::trace_context::TraceContext;

/// Where finished spans go.
pub trait Recorder: fmt::Debug + Send + Sync {
    /// Takes a span; must not block.
    fn record(&self, span: FinishedSpan);

    /// Whether a new trace is recorded; children follow their parent.
    fn samples(&self, trace_id: &[u8; 16]) -> bool;

    /// The spans so far.
    fn counts(&self) -> SpanCounts;

    /// Gives the recorder the metrics of this program, which it reads in the Prometheus text format when it exports.
    fn add_metrics(&self, read: MetricsReader);
}

/// Renders all metrics in the Prometheus text format.
pub type MetricsReader = Box<dyn Fn() -> String + Send + Sync>;

/// Spans since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SpanCounts {
    /// The collector has accepted them.
    pub exported: u64,
    /// The queue was full, or the collector did not accept them.
    pub dropped: u64,
}

/// The side of a call that a span describes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpanKind {
    /// Work inside of one program, or a process.
    Internal,
    /// A request that another program answers.
    Client,
    /// A request of another program.
    Server,
}

/// The value of an attribute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// Text.
    Text(Cow<'static, str>),
    /// A whole number.
    Number(i64),
    /// A truth value.
    Flag(bool),
}

/// A span that has ended.
#[derive(Debug, Clone)]
pub struct FinishedSpan {
    /// Its trace and its own id.
    pub context: TraceContext,
    /// The span that it is part of.
    pub parent: Option<[u8; 8]>,
    /// Whether the parent is a span of another program.
    pub has_remote_parent: bool,
    /// The side of a call.
    pub kind: SpanKind,
    /// What was done, such as a method.
    pub name: &'static str,
    /// When it started.
    pub start: SystemTime,
    /// When it ended.
    pub end: SystemTime,
    /// Facts about it.
    pub attributes: Vec<(&'static str, Value)>,
    /// The kind of the error, if it failed.
    pub error: Option<Cow<'static, str>>,
}

/// Starts spans; cheap to clone. The default one starts none.
#[derive(Debug, Clone, Default)]
pub struct Tracer(Option<Arc<dyn Recorder>>);

/// The parent of a new span.
#[derive(Debug, Clone, Copy)]
pub enum Parent<'a> {
    /// The span starts a trace of its own.
    None,
    /// A span of this program.
    Local(&'a TraceContext),
    /// A span of another program.
    Remote(&'a TraceContext),
}

/// A span that has not ended; dropping it ends it.
#[derive(Default)]
pub struct Span(Option<Box<Open>>);

struct Open {
    /// None if the trace is not recorded.
    recorder: Option<Arc<dyn Recorder>>,
    span: FinishedSpan,
    started: Instant,
}

impl Tracer {
    /// Starts spans for this recorder.
    pub fn new(recorder: Arc<dyn Recorder>) -> Self {
        Self(Some(recorder))
    }

    /// The recorder, if there is one.
    pub fn recorder(&self) -> Option<&Arc<dyn Recorder>> {
        self.0.as_ref()
    }

    /// Whether spans are made at all.
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Starts a span.
    pub fn start(&self, kind: SpanKind, name: &'static str, parent: Parent) -> Span {
        let Some(recorder) = &self.0 else { return Span(None) };
        let (of_parent, has_remote_parent) = match parent {
            Parent::None => (None, false),
            Parent::Local(context) => (Some(context), false),
            Parent::Remote(context) => (Some(context), true),
        };
        let context = match of_parent {
            Some(context) => context.child(random_id()),
            None => {
                let trace_id = random_id();
                TraceContext::root(trace_id, random_id(), recorder.samples(&trace_id))
            }
        };
        let (start, started) = (SystemTime::now(), Instant::now());
        let recorder = context.is_sampled().then(|| recorder.clone());
        let span = FinishedSpan {
            context,
            parent: of_parent.map(|context| context.span_id),
            has_remote_parent,
            kind,
            name,
            start,
            end: start,
            attributes: Vec::new(),
            error: None,
        };
        Span(Some(Box::new(Open { recorder, span, started })))
    }
}

impl Span {
    /// The position of this span in its trace; none if no spans are made.
    pub fn context(&self) -> Option<&TraceContext> {
        self.0.as_ref().map(|open| &open.span.context)
    }

    /// The parent of spans that belong to this one.
    pub fn as_parent(&self) -> Parent<'_> {
        self.context().map_or(Parent::None, Parent::Local)
    }

    /// Adds an attribute.
    pub fn set(&mut self, name: &'static str, value: impl Into<Value>) {
        if let Some(span) = self.recorded() {
            span.attributes.push((name, value.into()));
        }
    }

    /// Marks the span as failed; `kind` is a short name of the error, without data of the request.
    pub fn fail(&mut self, kind: impl Into<Cow<'static, str>>) {
        if let Some(span) = self.recorded() {
            span.error = Some(kind.into());
        }
    }

    /// Whether attributes of this span are recorded, so that it is worth to compute them.
    pub fn is_recorded(&self) -> bool {
        self.0.as_ref().is_some_and(|open| open.recorder.is_some())
    }

    fn recorded(&mut self) -> Option<&mut FinishedSpan> {
        self.0.as_mut().filter(|open| open.recorder.is_some()).map(|open| &mut open.span)
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        let Some(open) = self.0.take() else { return };
        let Open { recorder, mut span, started } = *open;
        if let Some(recorder) = recorder {
            // The monotonic clock measures the length, so that a change of the system's time cannot make it negative.
            span.end = span.start + started.elapsed();
            recorder.record(span);
        }
    }
}

impl fmt::Debug for Span {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        match self.context() {
            Some(context) => formatter.debug_tuple("Span").field(&context.traceparent()).finish(),
            None => formatter.write_str("Span(none)"),
        }
    }
}

impl From<&'static str> for Value {
    fn from(text: &'static str) -> Self {
        Self::Text(Cow::Borrowed(text))
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::Text(Cow::Owned(text))
    }
}

impl From<i64> for Value {
    fn from(number: i64) -> Self {
        Self::Number(number)
    }
}

impl From<bool> for Value {
    fn from(flag: bool) -> Self {
        Self::Flag(flag)
    }
}

/// Random bytes that are not all zero.
fn random_id<const N: usize>() -> [u8; N] {
    let mut id = [0; N];
    loop {
        aws_lc_rs::rand::fill(&mut id).expect("the system has random bytes");
        if id != [0; N] {
            return id;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[derive(Debug, Default)]
    struct Kept {
        spans: Mutex<Vec<FinishedSpan>>,
        is_off: bool,
    }

    impl Recorder for Kept {
        fn record(&self, span: FinishedSpan) {
            self.spans.lock().unwrap().push(span);
        }

        fn samples(&self, _: &[u8; 16]) -> bool {
            !self.is_off
        }

        fn counts(&self) -> SpanCounts {
            SpanCounts::default()
        }

        fn add_metrics(&self, _: MetricsReader) {}
    }

    fn context() -> TraceContext {
        let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        TraceContext::parse(parent, Some("a=1")).unwrap()
    }

    #[test]
    fn without_a_recorder_there_is_no_span() {
        let span = Tracer::default().start(SpanKind::Server, "x", Parent::Remote(&context()));
        assert!(span.context().is_none() && !span.is_recorded());
    }

    #[test]
    fn children_share_the_trace_and_name_their_parent() {
        let kept = Arc::new(Kept::default());
        let tracer = Tracer::new(kept.clone());
        let mut outer = tracer.start(SpanKind::Server, "outer", Parent::Remote(&context()));
        outer.set("a", 1);
        let mut inner = tracer.start(SpanKind::Internal, "inner", outer.as_parent());
        inner.fail("broken");
        let position = outer.context().unwrap().clone();
        drop((inner, outer));
        let spans = kept.spans.lock().unwrap();
        let [inner, outer] = &spans[..] else { panic!("{spans:?}") };
        assert_eq!(outer.parent, Some(context().span_id));
        assert!(outer.has_remote_parent && !inner.has_remote_parent);
        assert_eq!(inner.parent, Some(position.span_id));
        assert_eq!(inner.context.trace_id, context().trace_id);
        assert_eq!(inner.context.state.as_deref(), Some("a=1"));
        assert_eq!(outer.attributes, [("a", Value::Number(1))]);
        assert_eq!((inner.error.as_deref(), outer.error.as_deref()), (Some("broken"), None));
        assert!(outer.end >= outer.start);
    }

    #[test]
    fn a_trace_that_is_not_sampled_is_passed_on_but_not_recorded() {
        let kept = Arc::new(Kept { is_off: true, ..Kept::default() });
        let tracer = Tracer::new(kept.clone());
        let root = tracer.start(SpanKind::Client, "root", Parent::None);
        assert!(root.context().is_some_and(|context| !context.is_sampled()));
        let child = tracer.start(SpanKind::Internal, "child", root.as_parent());
        assert!(!child.is_recorded());
        drop((root, child));
        assert!(kept.spans.lock().unwrap().is_empty());
        // A parent that is recorded decides for its children.
        drop(tracer.start(SpanKind::Server, "recorded", Parent::Remote(&context())));
        assert_eq!(kept.spans.lock().unwrap().len(), 1);
    }
}
