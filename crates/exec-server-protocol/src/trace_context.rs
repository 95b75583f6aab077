//! The W3C trace context of a request: which span of the caller it belongs to.
//!
//! A request carries it in the member `trace` of the message, or in `_meta` of its params as MCP has it.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::{hex, params};

/// The member of `params` that holds metadata of the request.
pub const META: &str = "_meta";
/// Longer states are dropped, as the recommendation allows; it also bounds what a peer can make a server pass on.
const MAX_STATE_BYTES: usize = 512;
const SAMPLED: u8 = 1;

/// A position in a trace: the trace, one span of it, and whether it is recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceContext {
    /// The id that all spans of the trace share; never all zero.
    pub trace_id: [u8; 16],
    /// The span that new spans are children of; never all zero.
    pub span_id: [u8; 8],
    /// The flags of `traceparent`; bit 0 means that the trace is recorded.
    pub flags: u8,
    /// `tracestate`, passed on unchanged.
    pub state: Option<String>,
}

/// A trace context as requests carry it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WireTrace<'a> {
    /// As in the W3C recommendation.
    #[serde(default, borrow, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<Cow<'a, str>>,
    /// As in the W3C recommendation.
    #[serde(default, borrow, skip_serializing_if = "Option::is_none")]
    pub tracestate: Option<Cow<'a, str>>,
}

impl TraceContext {
    /// Parses the header `traceparent`, and `tracestate` if there is one; `None` if the parent is not valid.
    pub fn parse(traceparent: &str, tracestate: Option<&str>) -> Option<Self> {
        let mut fields = traceparent.trim().split('-');
        let version = byte(fields.next()?)?;
        let trace_id = lower_hex(fields.next()?)?;
        let span_id = lower_hex(fields.next()?)?;
        let flags = byte(fields.next()?)?;
        // Later versions may have more fields; the first one has not.
        let is_known = version != 0xff && (version > 0 || fields.next().is_none());
        if !is_known || trace_id == [0; 16] || span_id == [0; 8] {
            return None;
        }
        let state = tracestate.map(str::trim).filter(|state| is_state(state));
        Some(Self { trace_id, span_id, flags, state: state.map(str::to_owned) })
    }

    /// The context that a request carries: the raw member `trace`, otherwise `_meta` of the raw params.
    pub fn of_request(trace: Option<&str>, params: &str) -> Option<Self> {
        let meta = || params::member(params, META).and_then(Self::of_member);
        trace.and_then(Self::of_member).or_else(meta)
    }

    fn of_member(raw: &str) -> Option<Self> {
        let wire: WireTrace = serde_json::from_str(raw).ok()?;
        Self::parse(wire.traceparent.as_deref()?, wire.tracestate.as_deref())
    }

    /// The value of the header `traceparent`.
    pub fn traceparent(&self) -> String {
        let Self { trace_id, span_id, flags, .. } = self;
        format!("00-{}-{}-{flags:02x}", hex::encode(trace_id), hex::encode(span_id))
    }

    /// The member `trace` of a request.
    pub fn wire(&self) -> WireTrace<'_> {
        WireTrace {
            traceparent: Some(self.traceparent().into()),
            tracestate: self.state.as_deref().map(Cow::Borrowed),
        }
    }

    /// Whether spans of the trace are recorded.
    pub fn is_sampled(&self) -> bool {
        self.flags & SAMPLED != 0
    }

    /// The context of a span that is a child of this one.
    #[must_use]
    pub fn child(&self, span_id: [u8; 8]) -> Self {
        Self { span_id, ..self.clone() }
    }

    /// The context of the first span of a new trace.
    pub fn root(trace_id: [u8; 16], span_id: [u8; 8], is_sampled: bool) -> Self {
        Self { trace_id, span_id, flags: u8::from(is_sampled), state: None }
    }
}

fn byte(digits: &str) -> Option<u8> {
    lower_hex::<1>(digits).map(|[byte]| byte)
}

/// Digits in small letters only, as the recommendation demands.
fn lower_hex<const N: usize>(digits: &str) -> Option<[u8; N]> {
    let is_lower = digits.len() == 2 * N
        && digits.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'));
    hex::decode(digits).filter(|_| is_lower)?.try_into().ok()
}

fn is_state(state: &str) -> bool {
    let is_text = |state: &str| state.bytes().all(|byte| matches!(byte, b' '..=b'~'));
    !state.is_empty() && state.len() <= MAX_STATE_BYTES && is_text(state)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn a_valid_parent_is_read_and_written_unchanged() {
        let context = TraceContext::parse(PARENT, Some("a=1,b=2")).unwrap();
        assert_eq!(context.traceparent(), PARENT);
        assert_eq!(context.state.as_deref(), Some("a=1,b=2"));
        assert!(context.is_sampled());
        let child = context.child([1; 8]);
        assert_eq!(child.traceparent(), PARENT.replace("00f067aa0ba902b7", "0101010101010101"));
        let text = serde_json::to_string(&context.wire()).unwrap();
        assert_eq!(text, format!(r#"{{"traceparent":"{PARENT}","tracestate":"a=1,b=2"}}"#));
    }

    #[test]
    fn later_versions_may_have_more_fields() {
        let later = PARENT.replace("00-4b", "01-4b") + "-more";
        assert!(TraceContext::parse(&later, None).is_some());
        assert!(TraceContext::parse(&format!("{PARENT}-more"), None).is_none());
    }

    #[test]
    fn invalid_parents_are_rejected() {
        for wrong in [
            "",
            "not a trace",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4bf92f3577b34da6a3ce929d0e0e473-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-1",
            "00-4bf92f3577b34da6a3ce929d0e0e473ü-00f067aa0ba902b7-01",
        ] {
            assert_eq!(TraceContext::parse(wrong, None), None, "{wrong}");
        }
        let long = "a=".to_owned() + &"x".repeat(MAX_STATE_BYTES);
        for wrong in ["", "a=\u{7}", long.as_str()] {
            assert_eq!(TraceContext::parse(PARENT, Some(wrong)).unwrap().state, None, "{wrong}");
        }
    }

    #[test]
    fn a_request_has_it_in_trace_or_in_meta() {
        let of = |trace: Option<&str>, params: &str| {
            TraceContext::of_request(trace, params).map(|context| context.traceparent())
        };
        let member = format!(r#"{{"traceparent":"{PARENT}"}}"#);
        let other = member.replace("00f067aa0ba902b7", "1111111111111111");
        let meta = format!(r#"{{"processId":"p","_meta":{other}}}"#);
        assert_eq!(of(Some(&member), "null").as_deref(), Some(PARENT));
        assert_eq!(of(Some(&member), &meta).as_deref(), Some(PARENT));
        assert_eq!(of(None, &meta), Some(PARENT.replace("00f067aa0ba902b7", "1111111111111111")));
        assert_eq!(of(Some("null"), &meta), of(None, &meta));
        for none in
            ["null", "{}", r#"{"_meta":5}"#, r#"{"_meta":{"traceparent":5}}"#, r#"["_meta"]"#]
        {
            assert_eq!(of(None, none), None, "{none}");
        }
        let nested = format!(r#"{{"env":{{"_meta":{member}}}}}"#);
        assert_eq!(of(None, &nested), None);
        let escaped = meta.replace("_meta", "\\u005fmeta");
        assert_eq!(of(None, &escaped), of(None, &meta));
    }
}
