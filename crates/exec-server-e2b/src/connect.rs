//! The Connect protocol, version 1, with the JSON codec.
//!
//! A message of a stream is a flag byte, a length (4 bytes, big endian) and JSON. The last one has flag 2 and `{}` or an
//! error.

use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use http::{HeaderMap, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::body::{self, Body, BodySender};
use crate::refusal::{Code, Refusal};

/// A request with 64 MiB of input, in base64.
const MAX_MESSAGE: usize = 96 * 1024 * 1024;
const END: u8 = 2;
const COMPRESSED: u8 = 1;
const HEAD: usize = 5;
const STREAM: &str = "application/connect+json";

/// When the caller gives up.
#[derive(Debug, Clone, Copy)]
pub struct Deadline {
    pub at: Option<Instant>,
    /// The time that the caller has given, for the server.
    pub timeout: Option<Duration>,
}

impl Deadline {
    pub fn of(headers: &HeaderMap) -> Result<Self, Refusal> {
        let Some(value) = headers.get("connect-timeout-ms") else {
            return Ok(Self { at: None, timeout: None });
        };
        let millis: Option<u64> = value.to_str().ok().and_then(|text| text.parse().ok());
        let millis =
            millis.ok_or_else(|| Refusal::invalid("connect-timeout-ms is not a number"))?;
        let timeout = Duration::from_millis(millis);
        Ok(Self { at: Instant::now().checked_add(timeout), timeout: Some(timeout) })
    }

    /// Resolves at the deadline, or never.
    pub async fn passed(self) {
        match self.at {
            Some(at) => tokio::time::sleep_until(at).await,
            None => std::future::pending().await,
        }
    }

    pub fn refusal() -> Refusal {
        Refusal::new(Code::DeadlineExceeded, "the time limit of the request has passed")
    }
}

/// The message of a unary call.
pub async fn unary<T: DeserializeOwned>(request: Request<Incoming>) -> Result<T, Refusal> {
    expect_codec(request.headers(), "application/json")?;
    parse(&whole_body(request.into_body()).await?)
}

/// The one message of a call that is answered by a stream.
pub async fn stream_request<T: DeserializeOwned>(request: Request<Incoming>) -> Result<T, Refusal> {
    expect_codec(request.headers(), STREAM)?;
    let mut rest = BytesMut::from(&whole_body(request.into_body()).await?[..]);
    match take_message(&mut rest)? {
        Some(message) => parse(&message),
        None => Err(Refusal::invalid("the request has no message")),
    }
}

/// The messages of a stream of the caller, one after the other.
pub struct Messages {
    body: Incoming,
    rest: BytesMut,
}

impl Messages {
    pub fn of(request: Request<Incoming>) -> Result<Self, Refusal> {
        expect_codec(request.headers(), STREAM)?;
        Ok(Self { body: request.into_body(), rest: BytesMut::new() })
    }

    /// The next message; none at the end of the stream.
    pub async fn next<T: DeserializeOwned>(&mut self) -> Result<Option<T>, Refusal> {
        loop {
            if let Some(message) = take_message(&mut self.rest)? {
                return parse(&message).map(Some);
            }
            match self.body.frame().await {
                None if self.rest.is_empty() => return Ok(None),
                None => return Err(Refusal::invalid("the stream ends within a message")),
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        self.rest.extend_from_slice(&data);
                    }
                }
                Some(Err(error)) => {
                    return Err(Refusal::unavailable(format!("the request broke: {error}")));
                }
            }
        }
    }
}

/// The answer to a unary call.
pub fn answer(result: Result<Value, Refusal>) -> Response<Body> {
    match result {
        Ok(value) => body::json(StatusCode::OK, &value),
        // The SDKs recognise an ended sandbox only by the reply of their proxy.
        Err(refusal) if refusal.code == Code::NoSandbox => {
            body::json(refusal.code.status(), &refusal.to_http())
        }
        Err(refusal) => body::json(refusal.code.status(), &refusal.to_connect()),
    }
}

/// A streamed answer, and the sink for its messages.
pub fn stream() -> (Sink, Response<Body>) {
    let (sender, body) = body::stream();
    let mut response = Response::new(body);
    let kind = header::HeaderValue::from_static(STREAM);
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    (Sink(sender), response)
}

/// The answer to a stream of the caller: one message, and the end.
pub fn stream_answer(result: Result<Value, Refusal>) -> Response<Body> {
    let (message, end) = match &result {
        Ok(value) => (Some(value), json!({})),
        Err(refusal) => (None, json!({"error": refusal.to_connect()})),
    };
    let mut bytes = message.map_or_else(Vec::new, |value| envelope(0, value));
    bytes.extend(envelope(END, &end));
    let mut response = Response::new(body::whole(bytes));
    let kind = header::HeaderValue::from_static(STREAM);
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

/// Where the messages of a streamed answer go.
pub struct Sink(BodySender);

impl Sink {
    /// Sends a message and waits for a slow reader; false if the reader is gone.
    pub async fn send(&self, message: &Value) -> bool {
        self.0.send(Ok(envelope(0, message).into())).await.is_ok()
    }

    /// Resolves when the reader is gone.
    pub async fn closed(&self) {
        self.0.closed().await;
    }

    /// Ends the stream.
    pub async fn finish(self, result: Result<(), Refusal>) {
        let end = match result {
            Ok(()) => json!({}),
            Err(refusal) => json!({"error": refusal.to_connect()}),
        };
        // A reader that is gone needs no end.
        let _ = self.0.send(Ok(envelope(END, &end).into())).await;
    }
}

fn envelope(flag: u8, message: &Value) -> Vec<u8> {
    let mut bytes = vec![flag, 0, 0, 0, 0];
    serde_json::to_writer(&mut bytes, message).expect("JSON is written to memory");
    let length = u32::try_from(bytes.len() - HEAD).expect("messages are far below 4 GiB");
    bytes[1..HEAD].copy_from_slice(&length.to_be_bytes());
    bytes
}

/// Takes a whole message from the front, if there is one; the end of the caller's stream is no message.
fn take_message(rest: &mut BytesMut) -> Result<Option<Bytes>, Refusal> {
    loop {
        if rest.len() < HEAD {
            return Ok(None);
        }
        let flag = rest[0];
        let length = u32::from_be_bytes([rest[1], rest[2], rest[3], rest[4]]) as usize;
        if flag & COMPRESSED != 0 {
            return Err(Refusal::unimplemented("compressed messages are not supported"));
        }
        if length > MAX_MESSAGE {
            return Err(Refusal::invalid(format!("a message has more than {MAX_MESSAGE} bytes")));
        }
        if rest.len() < HEAD + length {
            return Ok(None);
        }
        rest.advance(HEAD);
        let message = rest.split_to(length).freeze();
        if flag & END == 0 {
            return Ok(Some(message));
        }
    }
}

fn expect_codec(headers: &HeaderMap, wanted: &str) -> Result<(), Refusal> {
    let given = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let given = given.unwrap_or_default();
    let kind = given.split(';').next().unwrap_or_default().trim();
    if kind.eq_ignore_ascii_case(wanted) {
        return Ok(());
    }
    Err(Refusal::unimplemented(format!("the content type is {given:?}, but {wanted} is supported")))
}

/// A message of JSON.
pub fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Refusal> {
    // An empty message is one with default values.
    let bytes = if bytes.is_empty() { b"{}" } else { bytes };
    // The derived readers would take the members of an array in their order.
    if bytes.iter().find(|byte| !byte.is_ascii_whitespace()) != Some(&b'{') {
        return Err(Refusal::invalid("the message is no JSON object"));
    }
    serde_json::from_slice(bytes)
        .map_err(|error| Refusal::invalid(format!("the message cannot be read: {error}")))
}

/// A whole body within the limit of a message.
pub async fn whole_body(body: Incoming) -> Result<Bytes, Refusal> {
    match Limited::new(body, MAX_MESSAGE).collect().await {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) => Err(Refusal::invalid(format!("the request cannot be read: {error}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_cut_out_of_any_pieces() {
        let mut bytes = envelope(0, &json!({"a": 1}));
        bytes.extend(envelope(0, &json!({"b": 2})));
        bytes.extend(envelope(END, &json!({})));
        let mut rest = BytesMut::new();
        let mut found = Vec::new();
        for byte in bytes {
            rest.extend_from_slice(&[byte]);
            while let Some(message) = take_message(&mut rest).unwrap() {
                found.push(String::from_utf8(message.to_vec()).unwrap());
            }
        }
        assert_eq!(found, [r#"{"a":1}"#, r#"{"b":2}"#]);
        assert!(rest.is_empty());
    }

    #[test]
    fn compressed_and_endless_messages_are_refused() {
        let compressed = take_message(&mut BytesMut::from(&[1, 0, 0, 0, 0][..]));
        assert_eq!(compressed.unwrap_err().code, Code::Unimplemented);
        let endless = take_message(&mut BytesMut::from(&[0, 255, 255, 255, 255][..]));
        assert_eq!(endless.unwrap_err().code, Code::InvalidArgument);
    }
}
