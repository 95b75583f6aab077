//! Sends the response to the client: buffered in one reply, or streamed in deltas after it.

use bytes::Bytes;
use exec_server_protocol::base64;
use exec_server_protocol::http::{
    BodyDeltaEncoder, HttpBodyDeltaNotification, HttpRequestResponse, HttpResponseHeader,
};
use exec_server_protocol::limits::{MAX_HTTP_DELTA_BYTES, MAX_MESSAGE_BYTES};
use exec_server_protocol::{envelope, methods};
use exec_server_transport::outbox::Outbox;
use exec_server_transport::text::MessageText;
use hyper::header::HeaderMap;
use hyper::http::response;

use super::Shared;
use super::budget::Taken;
use super::connection::AnswerBody;
use super::error::HttpError;
use crate::reply::{Reply, SMALL_REPLY_BYTES};
use crate::reply_memory::Room;

/// A response head.
#[derive(Debug)]
pub struct AnswerHead {
    pub parts: response::Parts,
    /// The URL of the response, if redirects were followed.
    pub final_url: Option<String>,
}

impl AnswerHead {
    fn headers(&self) -> Vec<HttpResponseHeader> {
        let header = |(name, value): (&hyper::header::HeaderName, &hyper::header::HeaderValue)| {
            HttpResponseHeader::from_bytes(name.as_str(), value.as_bytes())
        };
        self.parts.headers.iter().map(header).collect()
    }

    /// The reply that precedes the deltas.
    pub fn before_deltas(self) -> HttpRequestResponse {
        HttpRequestResponse {
            status: self.parts.status.as_u16(),
            headers: self.headers(),
            body_base64: Vec::new().into(),
            final_url: self.final_url,
        }
    }
}

/// An upper bound of the reply's JSON besides headers and body.
const AROUND_BODY_BYTES: usize = 256;
/// Memory reserved before a request is sent, so that a client that does not read replies has few exchanges.
pub const FIRST_BYTES: usize = 64 * 1024;
/// Memory allocated because of a content-length alone; more is allocated only as bytes arrive.
const MAX_ON_TRUST: usize = 1024 * 1024;

/// Reads the whole body into the text of a reply, whose memory counts against the budget until it has been sent.
pub async fn buffer(
    head: &AnswerHead,
    body: &mut AnswerBody,
    max_body_bytes: Option<u64>,
    shared: &Shared,
    mut taken: Option<Room>,
    reply: &Reply,
) -> Result<(MessageText, Taken, Option<Room>), HttpError> {
    let over_budget = || HttpError::OverBudget;
    let budget = &shared.budget;
    let announced = body.announced_length();
    let likely = announced.and_then(|length| usize::try_from(length).ok()).unwrap_or(0);
    let likely = base64::encoded_len(likely.min(MAX_MESSAGE_BYTES / 4 * 3)) + AROUND_BODY_BYTES;
    let mut held = budget.take(likely.min(MAX_ON_TRUST)).ok_or_else(over_budget)?;
    make_room(&mut taken, shared, likely.min(MAX_ON_TRUST), reply).await?;
    let mut text = reply.begin_text(likely.min(MAX_ON_TRUST)).map_err(|_| over_budget())?;
    text.push("{\"status\":");
    text.push_json(&head.parts.status.as_u16());
    text.push(",\"headers\":");
    push_headers(&head.parts.headers, &mut text);
    if let Some(url) = &head.final_url {
        text.push(",\"finalUrl\":");
        text.push_json(url);
    }
    text.push(",\"bodyBase64\":\"");
    let room = MAX_MESSAGE_BYTES.saturating_sub(text.len() + AROUND_BODY_BYTES) / 4 * 3;
    let limit = Limit { reply: Some(room as u64), client: max_body_bytes };
    limit.check(announced.unwrap_or(0))?;
    // Doubling stops at the announced size, so that a long body does not take twice its memory.
    let most = if announced.is_some() { text.len() + likely } else { MAX_MESSAGE_BYTES };
    let (mut length, mut carry) = (0, Carry::default());
    while let Some(piece) = body.next().await {
        let piece = piece.map_err(HttpError::Body)?;
        length += piece.len() as u64;
        limit.check(length)?;
        let end = text.len() + base64::encoded_len(piece.len()) + AROUND_BODY_BYTES;
        let memory = match text.memory() {
            enough if end <= enough => enough,
            memory => end.max(most.min(memory * 2)),
        };
        if !held.grow_to(memory) {
            return Err(over_budget());
        }
        make_room(&mut taken, shared, memory, reply).await?;
        text.try_grow_to(memory).map_err(|_| over_budget())?;
        carry.push(&piece, &mut text);
    }
    text.push_base64(carry.rest());
    text.push("\"}");
    Ok((text, held, taken))
}

/// Reserves memory for a buffered response. If none is free, waits until the client reads before it takes more.
pub async fn make_room(
    room: &mut Option<Room>,
    shared: &Shared,
    bytes: usize,
    reply: &Reply,
) -> Result<(), HttpError> {
    let has_room = match room {
        _ if bytes <= SMALL_REPLY_BYTES => true,
        Some(room) => room.bytes() >= bytes || room.try_grow(bytes),
        None => {
            *room = shared.answers.try_take(bytes);
            room.is_some()
        }
    };
    if has_room {
        return Ok(());
    }
    reply.outbox().wait_for_reader().await.map_err(|_| HttpError::OverBudget)?;
    let room = match room {
        Some(room) => room,
        None => room.insert(shared.answers.count(1).ok_or(HttpError::OverBudget)?),
    };
    if room.force_grow(bytes) { Ok(()) } else { Err(HttpError::OverBudget) }
}

/// Writes the same JSON as [`AnswerHead::headers`], without copying each header.
fn push_headers(headers: &HeaderMap, text: &mut MessageText) {
    text.push("[");
    for (number, (name, value)) in headers.iter().enumerate() {
        let before = if number == 0 { "{\"name\":\"" } else { ",{\"name\":\"" };
        match std::str::from_utf8(value.as_bytes()) {
            Ok(value) => {
                text.push(before);
                // Header names need no JSON escapes.
                text.push(name.as_str());
                text.push("\",\"value\":");
                text.push_json(&value);
                text.push("}");
            }
            Err(_) => {
                text.push(&before[..number.min(1)]);
                text.push_json(&HttpResponseHeader::from_bytes(name.as_str(), value.as_bytes()));
            }
        }
    }
    text.push("]");
}

/// Bytes left over from groups of three, kept for the next piece: Base64 encodes three bytes at a time.
#[derive(Default)]
struct Carry {
    bytes: [u8; 2],
    len: usize,
}

impl Carry {
    fn push(&mut self, mut piece: &[u8], text: &mut MessageText) {
        if self.len > 0 {
            let missing = 3 - self.len;
            if piece.len() < missing {
                self.keep(piece);
                return;
            }
            let mut three = [0; 3];
            three[..self.len].copy_from_slice(self.rest());
            three[self.len..].copy_from_slice(&piece[..missing]);
            text.push_base64(&three);
            piece = &piece[missing..];
            self.len = 0;
        }
        let whole = piece.len() / 3 * 3;
        text.push_base64(&piece[..whole]);
        self.keep(&piece[whole..]);
    }

    fn keep(&mut self, rest: &[u8]) {
        self.bytes[self.len..self.len + rest.len()].copy_from_slice(rest);
        self.len += rest.len();
    }

    fn rest(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// The limits of a response body.
struct Limit {
    /// What fits into one reply, if the body is buffered.
    reply: Option<u64>,
    /// `maxBodyBytes`.
    client: Option<u64>,
}

impl Limit {
    fn check(&self, length: u64) -> Result<(), HttpError> {
        match (self.client, self.reply) {
            (Some(limit), _) if length > limit => Err(HttpError::OverLimit(limit)),
            (_, Some(limit)) if length > limit => Err(HttpError::OverReply(limit)),
            _ => Ok(()),
        }
    }
}

/// The deltas of one exchange.
#[derive(Debug)]
pub struct Deltas {
    outbox: Outbox,
    request_id: String,
    encoder: BodyDeltaEncoder,
    last: u64,
}

impl Deltas {
    /// The deltas of an exchange whose reply has been queued.
    pub fn new(outbox: Outbox, request_id: String) -> Self {
        let encoder = BodyDeltaEncoder::new(&request_id);
        Self { outbox, request_id, encoder, last: 0 }
    }

    /// Sends the body in deltas as it arrives, with backpressure from the client.
    pub async fn stream(
        &mut self,
        body: &mut AnswerBody,
        max_body_bytes: Option<u64>,
    ) -> Result<(), HttpError> {
        let limit = Limit { reply: None, client: max_body_bytes };
        limit.check(body.announced_length().unwrap_or(0))?;
        let mut length = 0;
        while let Some(piece) = body.next().await {
            let mut piece = piece.map_err(HttpError::Body)?;
            length += piece.len() as u64;
            limit.check(length)?;
            while !piece.is_empty() {
                let delta = piece.split_to(piece.len().min(MAX_HTTP_DELTA_BYTES));
                self.send(&delta).await;
            }
        }
        Ok(())
    }

    async fn send(&mut self, delta: &Bytes) {
        let room = base64::encoded_len(delta.len()) + self.encoder.around_bytes();
        // The client is gone; the exchange ends with its connection.
        let Ok(slot) = self.outbox.reserve(room).await else { return std::future::pending().await };
        self.last += 1;
        let mut text = MessageText::with_capacity(room);
        text.push(&self.encoder.before(self.last));
        text.push_base64(delta);
        text.push(BodyDeltaEncoder::AFTER);
        self.outbox.push_bulk(slot, Bytes::from_owner(text));
    }

    /// Sends the last delta, with the error if the body is incomplete.
    pub fn finish(self, result: &Result<(), HttpError>) {
        let error = result.as_ref().err();
        let params = HttpBodyDeltaNotification {
            request_id: self.request_id,
            seq: self.last + 1,
            delta_base64: Vec::new().into(),
            done: true,
            error: error.map(ToString::to_string),
            error_kind: error.map(HttpError::kind),
        };
        self.outbox.push_in_order(envelope::notification(methods::HTTP_BODY_DELTA, &params));
    }
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;

    use super::*;

    #[test]
    fn headers_are_written_as_they_would_be_serialised() {
        let mut headers = HeaderMap::new();
        let values: [&[u8]; 5] =
            [b"1", b"\xff", b"say \"hi\"\\", "gr\u{fc}\u{df}e".as_bytes(), b"\t"];
        for length in 0..=values.len() {
            for first in 0..values.len() {
                headers.clear();
                for number in 0..length {
                    let value = HeaderValue::from_bytes(values[(first + number) % values.len()]);
                    headers.append("x-name", value.unwrap());
                }
                let mut text = MessageText::default();
                push_headers(&headers, &mut text);
                let (mut parts, ()) = hyper::Response::new(()).into_parts();
                parts.headers = headers.clone();
                let whole = AnswerHead { parts, final_url: None }.headers();
                assert_eq!(text.as_ref(), serde_json::to_vec(&whole).unwrap());
            }
        }
    }

    #[test]
    fn pieces_of_any_length_become_one_base64_text() {
        for lengths in [&[1, 1, 1, 1][..], &[2, 2, 2], &[3, 0, 4], &[0], &[5, 1, 7, 2, 0, 1]] {
            let (mut text, mut carry, mut all) =
                (MessageText::default(), Carry::default(), Vec::new());
            for (number, length) in lengths.iter().enumerate() {
                let piece = vec![number as u8 + 1; *length];
                all.extend_from_slice(&piece);
                carry.push(&piece, &mut text);
            }
            text.push_base64(carry.rest());
            assert_eq!(text.as_ref(), base64::encode(&all).as_bytes(), "{lengths:?}");
        }
    }
}
