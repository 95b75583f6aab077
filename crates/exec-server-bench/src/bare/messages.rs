//! Fast paths of the bare server: requests are parsed in place, replies are encoded in the send buffer.

use base64_turbo::STANDARD;

use crate::frame;

/// Longer than the head of any request with a path.
const HEAD_SIZE: usize = 1024;

/// Appends one message.
pub fn push_text(out: &mut Vec<u8>, text: &str) {
    frame::push_header(out, frame::TEXT, text.len(), None);
    out.extend_from_slice(text.as_bytes());
}

/// Appends one `process/output` message.
pub fn push_output(out: &mut Vec<u8>, process: &str, seq: u64, stream: &str, data: &[u8]) {
    let head = format!(
        r#"{{"method":"process/output","params":{{"processId":{process},"seq":{seq},"stream":"{stream}","chunk":""#
    );
    push_encoded(out, &head, data, r#""}}"#);
}

/// Appends one message with these bytes as base64 between its head and its tail.
pub fn push_encoded(out: &mut Vec<u8>, head: &str, data: &[u8], tail: &str) {
    let encoded = STANDARD.encoded_len(data.len());
    frame::push_header(out, frame::TEXT, head.len() + encoded + tail.len(), None);
    out.extend_from_slice(head.as_bytes());
    let at = out.len();
    out.resize(at + encoded, 0);
    STANDARD.encode_slice(data, &mut out[at..]).expect("the slice was sized for this input");
    out.extend_from_slice(tail.as_bytes());
}

/// A `process/write` request.
pub struct WriteRequest<'a> {
    /// The id of the request.
    pub id: i64,
    /// The process to write to.
    pub process: &'a str,
    /// Content in base64.
    pub chunk: &'a [u8],
}

/// Parses a write in the member order of the measuring client, without scanning its content.
pub fn parse_write(text: &[u8]) -> Option<WriteRequest<'_>> {
    let head = head_of(text)?;
    let (id, rest) = head.strip_prefix(r#"{"id":"#)?.split_once(',')?;
    let rest = rest.strip_prefix(r#""method":"process/write","params":{"processId":""#)?;
    let (process, rest) = rest.split_once(r#"","writeId":""#)?;
    let (_, rest) = rest.split_once(r#"","chunk":""#)?;
    let chunk = text[head.len() - rest.len()..].strip_suffix(br#""}}"#)?;
    Some(WriteRequest { id: id.parse().ok()?, process, chunk })
}

/// An `fs/writeFile` request.
pub struct FileWrite<'a> {
    /// The id of the request.
    pub id: i64,
    /// The file to write, as a URI.
    pub path: &'a str,
    /// Content in base64.
    pub data: &'a [u8],
}

/// Parses an `fs/writeFile` request in the same way.
pub fn parse_file_write(text: &[u8]) -> Option<FileWrite<'_>> {
    let head = head_of(text)?;
    let (id, rest) = head.strip_prefix(r#"{"id":"#)?.split_once(',')?;
    let rest = rest.strip_prefix(r#""method":"fs/writeFile","params":{"path":""#)?;
    let (path, rest) = rest.split_once(r#"","dataBase64":""#)?;
    let data = text[head.len() - rest.len()..].strip_suffix(br#""}}"#)?;
    Some(FileWrite { id: id.parse().ok()?, path, data })
}

/// The start of a request, which holds everything but its content.
fn head_of(text: &[u8]) -> Option<&str> {
    std::str::from_utf8(&text[..text.len().min(HEAD_SIZE)]).ok()
}
