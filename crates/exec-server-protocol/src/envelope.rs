//! Message envelopes: request, notification, reply, error.
//!
//! Messages have no `jsonrpc` member, unless a client puts `"jsonrpc":"2.0"` in its requests: that client gets the
//! member in every message, because generic JSON-RPC libraries reject messages without it.

use std::borrow::Cow;

use serde::{Serialize, Serializer};

use crate::binary::BinaryError;
use crate::errors::RpcError;
use crate::json::{self, JsonError};
use crate::limits::MAX_REQUEST_ID_BYTES;
use crate::trace_context::{TraceContext, WireTrace};

/// The id of a request, chosen by its sender.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum RequestId {
    /// A signed 64-bit integer.
    Integer(i64),
    /// Any string, even an empty one.
    String(String),
}

/// The id in replies to messages that could not be read.
pub const MALFORMED_ID: RequestId = RequestId::Integer(-1);

impl Serialize for RequestId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Integer(id) => serializer.serialize_i64(*id),
            Self::String(id) => serializer.serialize_str(id),
        }
    }
}

/// One decoded message; `params`, `result` and `error` are still raw JSON.
#[derive(Debug, Clone, PartialEq)]
pub enum Incoming<'a> {
    /// A request, which is answered by one reply.
    Request {
        /// Repeated in the reply.
        id: RequestId,
        /// Method name.
        method: Cow<'a, str>,
        /// Raw JSON; `null` when the member was missing.
        params: &'a str,
        /// Whether the message has `"jsonrpc":"2.0"`.
        has_version: bool,
        /// Raw JSON of the member `trace`.
        trace: Option<&'a str>,
    },
    /// A notification, which is not answered.
    Notification {
        /// Method name.
        method: Cow<'a, str>,
        /// Raw JSON; `null` when the member was missing.
        params: &'a str,
    },
    /// A reply to one of our requests.
    Response {
        /// The id that we gave the request.
        id: RequestId,
        /// Raw JSON.
        result: &'a str,
    },
    /// An error reply to one of our requests.
    Error {
        /// The id that we gave the request.
        id: RequestId,
        /// Raw JSON.
        error: &'a str,
    },
}

/// Why a message could not be decoded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MalformedMessage {
    /// Not UTF-8.
    #[error("invalid UTF-8 at byte {0}")]
    NotUtf8(usize),
    /// Not one valid JSON object.
    #[error(transparent)]
    Json(#[from] JsonError),
    /// A binary message whose header cannot be found.
    #[error(transparent)]
    Binary(#[from] BinaryError),
    /// A required member is missing.
    #[error("missing field `{0}`")]
    Missing(&'static str),
    /// A member has the wrong type.
    #[error("invalid value for `{member}`, expected {expected}")]
    WrongType {
        /// Name of the member.
        member: &'static str,
        /// Expected type.
        expected: &'static str,
    },
}

/// Decodes one message from bytes, which may not be UTF-8.
pub fn decode(bytes: &[u8]) -> Result<Incoming<'_>, MalformedMessage> {
    let text = std::str::from_utf8(bytes)
        .map_err(|error| MalformedMessage::NotUtf8(error.valid_up_to()))?;
    decode_text(text)
}

/// Decodes one message.
pub fn decode_text(text: &str) -> Result<Incoming<'_>, MalformedMessage> {
    let mut members = Members::default();
    json::scan_object(text, |key, value| members.take(key, value))?;
    members.classify()
}

#[derive(Default)]
struct Members<'a> {
    id: Option<&'a str>,
    method: Option<&'a str>,
    params: Option<&'a str>,
    result: Option<&'a str>,
    error: Option<&'a str>,
    trace: Option<&'a str>,
    version: Option<&'a str>,
}

impl<'a> Members<'a> {
    fn take(&mut self, key: &str, value: &'a str) {
        match key {
            "id" => self.id = Some(value),
            "method" => self.method = Some(value),
            "params" => self.params = Some(value),
            "result" => self.result = Some(value),
            "error" => self.error = Some(value),
            "trace" => self.trace = Some(value),
            "jsonrpc" => self.version = Some(value),
            _ => {}
        }
    }

    fn classify(self) -> Result<Incoming<'a>, MalformedMessage> {
        let Some(method) = self.method else {
            return self.classify_reply();
        };
        let method = json::string_value(method)
            .ok_or(MalformedMessage::WrongType { member: "method", expected: "a string" })?;
        let params = self.params.unwrap_or("null");
        let Some(id) = self.id else {
            return Ok(Incoming::Notification { method, params });
        };
        let id = request_id(id)?;
        check_trace(self.trace)?;
        let has_version = self.version.is_some_and(|version| version == "\"2.0\"");
        Ok(Incoming::Request { id, method, params, has_version, trace: self.trace })
    }

    fn classify_reply(self) -> Result<Incoming<'a>, MalformedMessage> {
        if let Some(result) = self.result {
            let id = request_id(self.id.ok_or(MalformedMessage::Missing("id"))?)?;
            return Ok(Incoming::Response { id, result });
        }
        let error = self.error.ok_or(MalformedMessage::Missing("error"))?;
        let id = request_id(self.id.ok_or(MalformedMessage::Missing("id"))?)?;
        serde_json::from_str::<RpcErrorShape>(error).map_err(|_| MalformedMessage::WrongType {
            member: "error",
            expected: "an object with `code` and `message`",
        })?;
        Ok(Incoming::Error { id, error })
    }
}

#[derive(serde::Deserialize)]
struct RpcErrorShape {
    #[serde(rename = "code")]
    _code: i64,
    #[serde(rename = "message")]
    _message: String,
}

fn request_id(raw: &str) -> Result<RequestId, MalformedMessage> {
    if raw.len() > MAX_REQUEST_ID_BYTES {
        return Err(MalformedMessage::WrongType { member: "id", expected: "at most 1024 bytes" });
    }
    let wrong = MalformedMessage::WrongType {
        member: "id",
        expected: "a string or a signed 64-bit integer",
    };
    if let Some(text) = json::string_value(raw) {
        return Ok(RequestId::String(text.into_owned()));
    }
    if raw == "-0" {
        return Err(wrong);
    }
    raw.parse().map(RequestId::Integer).map_err(|_| wrong)
}

/// An invalid trace context has no effect, but a member of the wrong type spoils the message.
fn check_trace(raw: Option<&str>) -> Result<(), MalformedMessage> {
    let Some(raw) = raw else { return Ok(()) };
    let is_map = raw == "null" || raw.starts_with('{');
    if is_map && serde_json::from_str::<Option<WireTrace>>(raw).is_ok() {
        return Ok(());
    }
    Err(MalformedMessage::WrongType { member: "trace", expected: "a trace context" })
}

/// The text of a reply.
pub fn response(id: &RequestId, result: &impl Serialize) -> String {
    #[derive(Serialize)]
    struct Response<'a, T> {
        id: &'a RequestId,
        result: &'a T,
    }
    to_text(&Response { id, result })
}

/// The text before a hand-written result; [`AFTER_RESULT`] follows it.
pub fn before_result(id: &RequestId) -> String {
    format!("{{\"id\":{},\"result\":", to_text(id))
}

/// The end of a reply that [`before_result`] began.
pub const AFTER_RESULT: &str = "}";

/// The text of an error reply.
pub fn error(id: &RequestId, error: &RpcError) -> String {
    #[derive(Serialize)]
    struct Error<'a> {
        error: &'a RpcError,
        id: &'a RequestId,
    }
    to_text(&Error { error, id })
}

/// The text of a notification.
pub fn notification(method: &str, params: &impl Serialize) -> String {
    #[derive(Serialize)]
    struct Notification<'a, T> {
        method: &'a str,
        params: &'a T,
    }
    to_text(&Notification { method, params })
}

/// The text of a request; `trace` is its trace context, if it has one.
pub fn request(
    id: &RequestId,
    method: &str,
    params: &impl Serialize,
    trace: Option<&TraceContext>,
) -> String {
    #[derive(Serialize)]
    struct Request<'a, T> {
        id: &'a RequestId,
        method: &'a str,
        params: &'a T,
        #[serde(skip_serializing_if = "Option::is_none")]
        trace: Option<WireTrace<'a>>,
    }
    to_text(&Request { id, method, params, trace: trace.map(TraceContext::wire) })
}

/// The start of a message, in place of its brace, for a client that sends `"jsonrpc":"2.0"`.
pub const VERSION_PREFIX: &str = "{\"jsonrpc\":\"2.0\",";

/// Adds the `jsonrpc` member to a message.
pub fn with_version(message: &[u8]) -> Vec<u8> {
    let members = message.strip_prefix(b"{").expect("a message is an object with members");
    let mut text = Vec::with_capacity(VERSION_PREFIX.len() + members.len());
    text.extend_from_slice(VERSION_PREFIX.as_bytes());
    text.extend_from_slice(members);
    text
}

fn to_text(message: &impl Serialize) -> String {
    serde_json::to_string(message)
        .expect("wire types have string keys and cannot fail to serialise")
}

#[cfg(test)]
mod tests;
