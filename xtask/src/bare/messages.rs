//! The bare server's short cuts: input read where it lies, output encoded where it will be sent
//! from.

use base64_turbo::STANDARD;

use crate::frame;

/// A path and what belongs to it on the wire fit into far less than this.
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

/// Appends one message that has these bytes in base64 between its head and its tail.
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
    /// What to write, in base64.
    pub chunk: &'a [u8],
}

/// Reads a write in the member order of the measuring client, without looking at every byte of it.
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
    /// What to write, in base64.
    pub data: &'a [u8],
}

/// Reads such a request in the same way.
pub fn parse_file_write(text: &[u8]) -> Option<FileWrite<'_>> {
    let head = head_of(text)?;
    let (id, rest) = head.strip_prefix(r#"{"id":"#)?.split_once(',')?;
    let rest = rest.strip_prefix(r#""method":"fs/writeFile","params":{"path":""#)?;
    let (path, rest) = rest.split_once(r#"","dataBase64":""#)?;
    let data = text[head.len() - rest.len()..].strip_suffix(br#""}}"#)?;
    Some(FileWrite { id: id.parse().ok()?, path, data })
}

/// As much of a request as holds everything but the bytes in it.
fn head_of(text: &[u8]) -> Option<&str> {
    std::str::from_utf8(&text[..text.len().min(HEAD_SIZE)]).ok()
}
