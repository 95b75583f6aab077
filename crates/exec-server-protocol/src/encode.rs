//! Hand-written encoders for the most frequent messages.
//!
//! Process output is the hot path: its base64 is encoded straight into the message, without an
//! intermediate string, a value tree, or a scan for characters to escape.

use std::io::Write;

use crate::methods::PROCESS_OUTPUT;
use crate::process::OutputStream;
use crate::{base64, binary};

/// What follows the chunk.
const AFTER: &[u8] = b"\"}}";
/// Room for the sequence number, the stream and what is around the chunk.
const REST: usize = 64;

/// Encodes `process/output`; the constant prefix is built once per process.
#[derive(Debug, Clone)]
pub struct OutputEncoder {
    /// Everything before the sequence number.
    prefix: Box<str>,
}

impl OutputEncoder {
    /// Prepares the messages of one process.
    pub fn new(process_id: &str) -> Self {
        let id = serde_json::to_string(process_id).expect("a string serialises");
        let prefix =
            format!("{{\"method\":\"{PROCESS_OUTPUT}\",\"params\":{{\"processId\":{id},\"seq\":");
        Self { prefix: prefix.into() }
    }

    /// The text of one `process/output` notification, as UTF-8.
    pub fn output(&self, seq: u64, stream: OutputStream, bytes: &[u8]) -> Vec<u8> {
        let len = self.prefix.len() + base64::encoded_len(bytes.len()) + REST;
        let mut text = Vec::with_capacity(len);
        self.push_before(&mut text, seq, stream);
        base64::encode_into(bytes, &mut text);
        text.extend_from_slice(AFTER);
        text
    }

    /// The same notification as a binary message.
    pub fn binary_output(&self, seq: u64, stream: OutputStream, bytes: &[u8]) -> Vec<u8> {
        let len = binary::PREFIX_BYTES + self.prefix.len() + REST + bytes.len();
        let mut message = Vec::with_capacity(len);
        message.extend_from_slice(&binary::prefix(0));
        self.push_before(&mut message, seq, stream);
        message.extend_from_slice(AFTER);
        let prefix = binary::prefix(message.len() - binary::PREFIX_BYTES);
        message[..binary::PREFIX_BYTES].copy_from_slice(&prefix);
        message.extend_from_slice(bytes);
        message
    }

    fn push_before(&self, text: &mut Vec<u8>, seq: u64, stream: OutputStream) {
        text.extend_from_slice(self.prefix.as_bytes());
        write!(text, "{seq},\"stream\":\"{}\",\"chunk\":\"", stream.name())
            .expect("a vector takes everything");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::envelope;
    use crate::process::ProcessOutputNotification;

    #[test]
    fn the_hand_written_message_is_the_one_that_the_types_describe() {
        for id in ["p", "a\"b\\\u{1}", ""] {
            for len in [0, 1, 2, 3, 1000] {
                let bytes = vec![0xa5; len];
                let binary =
                    OutputEncoder::new(id).binary_output(u64::MAX, OutputStream::Stderr, &bytes);
                let by_hand = OutputEncoder::new(id).output(u64::MAX, OutputStream::Stderr, &bytes);
                let params = ProcessOutputNotification {
                    process_id: id.into(),
                    seq: u64::MAX,
                    stream: OutputStream::Stderr,
                    chunk: bytes.into(),
                };
                let by_hand = String::from_utf8(by_hand).unwrap();
                assert_eq!(binary::to_text(&binary).unwrap(), by_hand.as_bytes());
                assert_eq!(by_hand, envelope::notification("process/output", &params));
            }
        }
    }
}
