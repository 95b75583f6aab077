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
#[serde(rename_all = "camelCase")]
pub struct HttpRequestParams {
    /// Any token; sent as it is.
    pub method: String,
    /// An absolute `http` or `https` URL.
    pub url: String,
    /// The headers, in the order in which they go out.
    #[serde(default)]
    pub headers: Vec<HttpRequestHeader>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body_base64: Option<Bytes64>,
    /// How long the exchange may take, from the request to the last byte of the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// How redirects are handled.
    #[serde(default)]
    pub redirect_policy: RedirectPolicy,
    /// The client's name for the exchange; unique among the streams of a connection.
    pub request_id: String,
    /// Whether the body of the answer follows in notifications.
    #[serde(default)]
    pub stream_response: bool,
    /// Whether the body of the request follows in `http/requestBody`.
    #[serde(default, skip_serializing_if = "crate::is_false")]
    pub stream_body: bool,
    /// How long the body of the answer may be; more is an error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_body_bytes: Option<u64>,
    /// A policy whose network rule the request must keep.
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
#[serde(rename_all = "camelCase")]
pub struct HttpRequestHeader {
    pub name: String,
    /// The value, or what stands before the variable's value.
    pub value: String,
    /// A variable of the server's environment whose value is appended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value_env_var: Option<String>,
}

impl HttpRequestHeader {
    /// A header with a value of its own.
    pub fn new(name: impl Into<String>, value: impl Into<String>) -> Self {
        Self { name: name.into(), value: value.into(), value_env_var: None }
    }
}

/// How redirects are handled.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
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
#[serde(rename_all = "camelCase")]
pub struct HttpRequestResponse {
    pub status: u16,
    /// The headers, in the order in which they came.
    pub headers: Vec<HttpResponseHeader>,
    /// The whole body; empty where it is streamed.
    pub body_base64: Bytes64,
    /// Where the answer came from, if the request was sent on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub final_url: Option<String>,
}

/// A header of an answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HttpResponseHeader {
    /// The name, in lower case.
    pub name: String,
    /// The value as UTF-8 text; if it is none, every byte as the character of its number (Latin-1).
    pub value: String,
    /// The bytes of a value that is no UTF-8 text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value_base64: Option<Bytes64>,
}

impl HttpResponseHeader {
    /// A header as it came; nothing of it is lost.
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
#[serde(rename_all = "camelCase")]
pub struct HttpBodyDeltaNotification {
    pub request_id: String,
    /// Its place among the deltas of the exchange, from 1.
    pub seq: u64,
    pub delta_base64: Bytes64,
    pub done: bool,
    /// Why the body ended early.
    pub error: Option<String>,
    /// The same as a word of [`HttpErrorKind`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_kind: Option<HttpErrorKind>,
}

/// What went wrong with an exchange: `error.data.kind` of the reply, and `errorKind` of the last delta.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
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
    /// The answer is longer than `maxBodyBytes` or than a reply may be.
    TooLarge,
    /// It was ended by `http/cancel`.
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

    /// The word on the wire.
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

/// The parts of an exchange's deltas that never change, prepared once; the base64 between them is written by the sender.
#[derive(Debug, Clone)]
pub struct BodyDeltaEncoder {
    /// Everything before the sequence number.
    prefix: Box<str>,
}

impl BodyDeltaEncoder {
    /// What stands behind the base64 of a delta that is not the last.
    pub const AFTER: &str = "\",\"done\":false,\"error\":null}}";

    /// Prepares the deltas of one exchange.
    pub fn new(request_id: &str) -> Self {
        let id = serde_json::to_string(request_id).expect("a string serialises");
        let prefix =
            format!("{{\"method\":\"{HTTP_BODY_DELTA}\",\"params\":{{\"requestId\":{id},\"seq\":");
        Self { prefix: prefix.into() }
    }

    /// What stands before the base64 of a delta.
    pub fn before(&self, seq: u64) -> String {
        format!("{}{seq},\"deltaBase64\":\"", self.prefix)
    }

    /// About how long a message is beside its base64.
    pub fn around_bytes(&self) -> usize {
        const REST: usize = 80;
        self.prefix.len() + REST
    }
}

/// Params of `http/requestBody`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HttpRequestBodyParams {
    pub request_id: String,
    /// Its place among the chunks of the exchange, from 1.
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
#[serde(rename_all = "camelCase")]
pub struct HttpRequestBodyResponse {
    /// False if the other side has answered and wants no more of the body.
    pub accepted: bool,
}

/// Params of `http/cancel`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HttpCancelParams {
    pub request_id: String,
}

/// Result of `http/cancel`; the exchange itself ends with [`HttpErrorKind::Cancelled`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HttpCancelResponse {
    /// Whether there was one to cancel.
    pub cancelled: bool,
}

#[cfg(test)]
mod tests;
