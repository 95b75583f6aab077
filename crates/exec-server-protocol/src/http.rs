//! Payloads of `http/*`: HTTP requests made by the server for the client.

#![allow(
    missing_docs,
    reason = "wire members repeat their JSON names; docs state only extra facts"
)]

use serde::{Deserialize, Serialize};

use crate::bytes64::Bytes64;
use crate::fs::Sandbox;
use crate::methods::HTTP_BODY_DELTA;
use crate::{base64, json, params};

/// Params of `http/request`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct HttpRequestParams {
    /// Any HTTP token; sent unchanged.
    pub method: String,
    /// An absolute `http` or `https` URL.
    pub url: String,
    /// Headers in the order in which they are sent.
    #[serde(default)]
    pub headers: Vec<HttpRequestHeader>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body_base64: Option<Bytes64>,
    /// Time limit of the exchange, from the request to the last byte of the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// How redirects are handled.
    #[serde(default)]
    pub redirect_policy: RedirectPolicy,
    /// Id of the exchange, chosen by the client; unique among the streams of a connection.
    pub request_id: String,
    /// Whether the response body follows in notifications.
    #[serde(default)]
    pub stream_response: bool,
    /// Whether the request body follows in `http/requestBody`.
    #[serde(default, skip_serializing_if = "crate::is_false")]
    pub stream_body: bool,
    /// Limit of the response body; a longer one is an error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_body_bytes: Option<u64>,
    /// A policy whose network rule applies to the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Sandbox,
}

impl HttpRequestParams {
    /// A `GET` without headers, body or limits.
    pub fn get(request_id: impl Into<String>, url: impl Into<String>) -> Self {
        Self {
            method: "GET".to_owned(),
            url: url.into(),
            headers: Vec::new(),
            body_base64: None,
            timeout_ms: None,
            redirect_policy: RedirectPolicy::default(),
            request_id: request_id.into(),
            stream_response: false,
            stream_body: false,
            max_body_bytes: None,
            sandbox: None,
        }
    }
}

/// A header of a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct HttpRequestHeader {
    /// The name.
    pub name: String,
    /// The value, or the prefix of the variable's value.
    pub value: String,
    /// A variable of the server's environment whose value is appended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value_env_var: Option<String>,
}

impl HttpRequestHeader {
    /// A header with a literal value.
    pub fn new(name: impl Into<String>, value: impl Into<String>) -> Self {
        Self { name: name.into(), value: value.into(), value_env_var: None }
    }
}

/// How redirects are handled.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum RedirectPolicy {
    /// Follows up to `MAX_HTTP_REDIRECTS` redirects.
    #[default]
    Follow,
    /// Returns the redirect response itself.
    Stop,
}

/// Result of `http/request`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct HttpRequestResponse {
    /// The status code.
    pub status: u16,
    /// Headers in the order in which they were received.
    pub headers: Vec<HttpResponseHeader>,
    /// The whole body; empty if it is streamed.
    pub body_base64: Bytes64,
    /// URL of the final response after redirects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub final_url: Option<String>,
}

/// A response header.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct HttpResponseHeader {
    /// The name, in lower case.
    pub name: String,
    /// The value as UTF-8; other bytes are decoded as Latin-1.
    pub value: String,
    /// Exact bytes of a value that is not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value_base64: Option<Bytes64>,
}

impl HttpResponseHeader {
    /// A header from its bytes, without loss.
    pub fn from_bytes(name: &str, value: &[u8]) -> Self {
        let name = name.to_owned();
        match std::str::from_utf8(value) {
            Ok(value) => Self { name, value: value.to_owned(), value_base64: None },
            Err(_) => Self {
                name,
                value: value.iter().copied().map(char::from).collect(),
                value_base64: Some(Bytes64(value.to_vec())),
            },
        }
    }
}

/// Params of `http/request/bodyDelta`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct HttpBodyDeltaNotification {
    pub request_id: String,
    /// Sequence number of the delta, from 1.
    pub seq: u64,
    pub delta_base64: Bytes64,
    pub done: bool,
    /// Why the body ended early.
    pub error: Option<String>,
    /// Machine-readable form of `error`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_kind: Option<HttpErrorKind>,
}

/// Why an exchange failed: `error.data.kind` of the reply, and `errorKind` of the last delta.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum HttpErrorKind {
    /// `timeoutMs` has passed.
    Timeout,
    /// The host name did not resolve.
    Dns,
    /// The connection was refused, or closed before the response began.
    Connect,
    /// The certificate was rejected, or the TLS handshake failed.
    Tls,
    /// Too many redirects, or a redirect to a forbidden destination.
    Redirect,
    /// The response was truncated or is not valid HTTP.
    Body,
    /// The response exceeds `maxBodyBytes` or the reply limit.
    TooLarge,
    /// `http/cancel` ended the exchange.
    Cancelled,
    /// The egress policy forbids the destination.
    Forbidden,
}

impl HttpErrorKind {
    /// Every kind.
    pub const ALL: [Self; 9] = [
        Self::Timeout,
        Self::Dns,
        Self::Connect,
        Self::Tls,
        Self::Redirect,
        Self::Body,
        Self::TooLarge,
        Self::Cancelled,
        Self::Forbidden,
    ];

    /// What the kind means.
    pub fn description(self) -> &'static str {
        match self {
            Self::Timeout => "`timeoutMs` of the exchange has passed.",
            Self::Dns => "The host name did not resolve.",
            Self::Connect => "The connection was refused, or closed before the response began.",
            Self::Tls => "The certificate was rejected, or the TLS handshake failed.",
            Self::Redirect => "Too many redirects, or a redirect to a forbidden destination.",
            Self::Body => "The response was truncated or is not valid HTTP.",
            Self::TooLarge => "The response exceeds `maxBodyBytes` or the limit of a reply.",
            Self::Cancelled => "`http/cancel` ended the exchange.",
            Self::Forbidden => "The egress policy or the sandbox forbids the destination.",
        }
    }

    /// The name on the wire.
    pub fn name(self) -> &'static str {
        match self {
            Self::Timeout => "timeout",
            Self::Dns => "dns",
            Self::Connect => "connect",
            Self::Tls => "tls",
            Self::Redirect => "redirect",
            Self::Body => "body",
            Self::TooLarge => "tooLarge",
            Self::Cancelled => "cancelled",
            Self::Forbidden => "forbidden",
        }
    }
}

/// Prepared constant parts of an exchange's deltas; the sender writes the base64 between them.
#[derive(Debug, Clone)]
pub struct BodyDeltaEncoder {
    /// Everything before the sequence number.
    prefix: Box<str>,
}

impl BodyDeltaEncoder {
    /// The text after the base64 of a delta that is not the last.
    pub const AFTER: &str = "\",\"done\":false,\"error\":null}}";

    /// Prepares the deltas of one exchange.
    pub fn new(request_id: &str) -> Self {
        let id = serde_json::to_string(request_id).expect("a string serialises");
        let prefix =
            format!("{{\"method\":\"{HTTP_BODY_DELTA}\",\"params\":{{\"requestId\":{id},\"seq\":");
        Self { prefix: prefix.into() }
    }

    /// The text before the base64 of a delta.
    pub fn before(&self, seq: u64) -> String {
        format!("{}{seq},\"deltaBase64\":\"", self.prefix)
    }

    /// Approximate length of a message without its base64.
    pub fn around_bytes(&self) -> usize {
        const REST: usize = 80;
        self.prefix.len() + REST
    }
}

/// Params of `http/requestBody`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct HttpRequestBodyParams {
    pub request_id: String,
    /// Sequence number of the chunk, from 1.
    pub seq: u64,
    /// The bytes; may be empty.
    pub chunk: Bytes64,
    #[serde(default)]
    pub done: bool,
}

impl HttpRequestBodyParams {
    /// Decodes raw params and the base64 chunk without an intermediate string.
    pub fn decode(raw: &str) -> Result<Self, String> {
        Self::decode_fast(raw).map_or_else(|| params::decode(raw), Ok)
    }

    /// Decodes the common form only; `None` falls back to serde, which also produces the error text.
    fn decode_fast(raw: &str) -> Option<Self> {
        let (mut request_id, mut seq, mut chunk, mut done) = (None, None, None, "false");
        json::scan_object(raw, |key, value| match key {
            "requestId" => request_id = Some(value),
            "seq" => seq = Some(value),
            "chunk" => chunk = Some(value),
            "done" => done = value,
            _ => {}
        })
        .ok()?;
        Some(Self {
            request_id: json::string_value(request_id?)?.into_owned(),
            seq: serde_json::from_str(seq?).ok()?,
            chunk: Bytes64(base64::decode(&json::string_value(chunk?)?).ok()?),
            done: serde_json::from_str(done).ok()?,
        })
    }
}

/// Result of `http/requestBody`: sent once there is room for more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct HttpRequestBodyResponse {
    /// False if the other side has answered and accepts no more of the body.
    pub accepted: bool,
}

/// Params of `http/cancel`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct HttpCancelParams {
    pub request_id: String,
}

/// Result of `http/cancel`; the exchange itself ends with [`HttpErrorKind::Cancelled`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct HttpCancelResponse {
    /// Whether an exchange with this id was in progress.
    pub cancelled: bool,
}

#[cfg(test)]
mod tests;
