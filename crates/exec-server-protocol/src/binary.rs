//! Binary messages: bulk bytes beside their JSON, instead of as base64 inside.
//!
//! ```text
//! 0x01 | length of the header: 4 bytes, big endian | header | bytes
//! ```
//!
//! The header is an ordinary JSON message whose `params` or `result` has an empty `chunk`; the bytes are its value. No
//! JSON begins with 0x01, so the first byte tells the two forms apart on every carrier.

use crate::{base64, json};

/// First byte of a binary message.
pub const MARKER: u8 = 1;
/// Bytes in front of the header.
pub const PREFIX_BYTES: usize = 5;

/// Why a binary message was rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BinaryError {
    /// The message ends before its header does.
    #[error("a binary message of {0} bytes ends within its header")]
    Truncated(usize),
    /// The bytes belong to no member.
    #[error("the header of a binary message has no empty `chunk` in `params` or `result`")]
    NoChunk,
}

/// Whether a message has the binary form.
pub fn is_binary(message: &[u8]) -> bool {
    message.first() == Some(&MARKER)
}

/// What precedes a header of this length.
pub fn prefix(header: usize) -> [u8; PREFIX_BYTES] {
    let len = u32::try_from(header).expect("a header is shorter than a message").to_be_bytes();
    [MARKER, len[0], len[1], len[2], len[3]]
}

/// Where the bytes of a binary message begin; its header ends there.
pub fn bytes_at(message: &[u8]) -> Result<usize, BinaryError> {
    let truncated = || BinaryError::Truncated(message.len());
    let len = message.get(1..PREFIX_BYTES).ok_or_else(truncated)?;
    let len = u32::from_be_bytes(len.try_into().expect("the range has four bytes"));
    let end = usize::try_from(len).ok().and_then(|len| len.checked_add(PREFIX_BYTES));
    end.filter(|end| *end <= message.len()).ok_or_else(truncated)
}

/// The header and the bytes of a binary message.
pub fn split(message: &[u8]) -> Result<(&[u8], &[u8]), BinaryError> {
    let (header, bytes) = message.split_at(bytes_at(message)?);
    Ok((&header[PREFIX_BYTES..], bytes))
}

/// The JSON form of a binary message, for carriers of text.
pub fn to_text(message: &[u8]) -> Result<Vec<u8>, BinaryError> {
    let (header, bytes) = split(message)?;
    let header = std::str::from_utf8(header).map_err(|_| BinaryError::NoChunk)?;
    let payload = member(header, "params").or_else(|| member(header, "result"));
    let payload = payload.ok_or(BinaryError::NoChunk)?;
    let filled = fill(payload, bytes)?;
    let begin = payload.as_ptr().addr() - header.as_ptr().addr();
    Ok([&header.as_bytes()[..begin], &filled, &header.as_bytes()[begin + payload.len()..]].concat())
}

/// An object with these bytes as the value of its empty `chunk`.
pub fn fill(object: &str, bytes: &[u8]) -> Result<Vec<u8>, BinaryError> {
    let chunk = member(object, "chunk").filter(|chunk| *chunk == "\"\"");
    let chunk = chunk.ok_or(BinaryError::NoChunk)?;
    let inside = chunk.as_ptr().addr() - object.as_ptr().addr() + 1;
    let mut text = Vec::with_capacity(object.len() + base64::encoded_len(bytes.len()));
    text.extend_from_slice(&object.as_bytes()[..inside]);
    base64::encode_into(bytes, &mut text);
    text.extend_from_slice(&object.as_bytes()[inside..]);
    Ok(text)
}

fn member<'a>(object: &'a str, name: &str) -> Option<&'a str> {
    let mut found = None;
    json::scan_object(object, |key, value| {
        if key == name {
            found = Some(value);
        }
    })
    .ok()?;
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(header: &str, bytes: &[u8]) -> Vec<u8> {
        [&prefix(header.len())[..], header.as_bytes(), bytes].concat()
    }

    #[test]
    fn a_message_is_its_header_and_its_bytes() {
        let whole = message("{\"a\":1}", b"\x00\xff");
        assert!(is_binary(&whole) && !is_binary(b"{}") && !is_binary(b""));
        assert_eq!(split(&whole), Ok((&b"{\"a\":1}"[..], &b"\x00\xff"[..])));
        assert_eq!(split(&message("", b"")), Ok((&b""[..], &b""[..])));
        for len in 1..PREFIX_BYTES + 7 {
            assert_eq!(split(&whole[..len]), Err(BinaryError::Truncated(len)));
        }
        assert_eq!(split(&[MARKER, 255, 255, 255, 255, b'{']), Err(BinaryError::Truncated(6)));
    }

    #[test]
    fn the_json_form_has_the_bytes_in_the_empty_chunk_of_its_payload() {
        for (header, expected) in [
            (
                r#"{"method":"m","params":{"id":"\"chunk\":\"\"","chunk" : "","eof":true}}"#,
                r#"{"method":"m","params":{"id":"\"chunk\":\"\"","chunk" : "aGk=","eof":true}}"#,
            ),
            (r#"{"id":1,"result":{"chunk":""}}"#, r#"{"id":1,"result":{"chunk":"aGk="}}"#),
        ] {
            let text = to_text(&message(header, b"hi")).unwrap();
            assert_eq!(String::from_utf8(text).unwrap(), expected);
        }
        for header in [
            "not json",
            "{}",
            r#"{"chunk":""}"#,
            r#"{"params":{}}"#,
            r#"{"params":{"chunk":"aGk="}}"#,
            r#"{"params":{"a":{"chunk":""}}}"#,
        ] {
            assert_eq!(to_text(&message(header, b"hi")), Err(BinaryError::NoChunk), "{header}");
        }
    }
}
