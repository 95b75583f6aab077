//! Frames that an executor and a harness exchange through a rendezvous relay.
//!
//! The protobuf package is `codex.exec_server.relay.v1`. The relay reads only the version, the stream id and the kind of
//! body; payloads are ciphertext. Executor, harness and relay share the validation in this file.

use bytes::{BufMut, Bytes};
use prost::Message;

/// The only protocol version; frames with another version are rejected.
pub const RELAY_VERSION: u32 = 1;

/// Reset reason for a protocol violation; deliberately gives the peer no detail.
pub const RESET_PROTOCOL_ERROR: &str = "noise_relay_protocol_error";

/// Reset reason that tells an executor that the harness of a stream has disconnected.
pub const RESET_HARNESS_DISCONNECTED: &str = "harness_disconnected";

/// Bounds the memory per stream id. Real ids are UUIDs, which are far shorter.
pub const MAX_STREAM_ID_BYTES: usize = 256;

/// One frame of one stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RelayFrame {
    /// Chosen by the harness; not blank, and at most [`MAX_STREAM_ID_BYTES`] long.
    pub stream_id: String,
    /// Records that the sender of this frame has received.
    pub ack: Ack,
    /// Exactly one body per frame.
    pub body: RelayBody,
}

/// Records that a peer has received: all up to `through`, and later ones by bit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Ack {
    /// Every record up to and including this number has arrived; also 0 before the first record.
    pub through: u32,
    /// Bit `i` stands for the sequence number `through + 1 + i`.
    pub bits: u32,
}

/// The body of a frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RelayBody {
    /// An encrypted record, or a segment of one.
    Data(RelayData),
    /// Empty: the frame is sent only for the acknowledgement in its header.
    Ack,
    /// The first frame from a harness: it claims the stream id.
    Resume {
        /// The sequence number that the sender expects next.
        next_seq: u32,
    },
    /// Ends the stream.
    Reset {
        /// One word for logs, never empty.
        reason: String,
    },
    /// Keepalive; has no content.
    Heartbeat,
    /// A Noise handshake message.
    Handshake(Bytes),
}

/// A record, or a segment of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RelayData {
    /// The record's sequence number, counted from 0 in each direction.
    pub seq: u32,
    /// Position of this segment within the record, from 0.
    pub segment_index: u32,
    /// Number of segments in the record; 1 for an unsegmented record.
    pub segment_count: u32,
    /// Ciphertext, never empty.
    pub payload: Bytes,
}

/// The part of a frame that a relay reads; the body may be of a kind that this version does not know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RelayHeader {
    /// Routes the frame.
    pub stream_id: String,
    /// The kind of body, as far as the relay has rules for it.
    pub kind: RelayKind,
}

/// Kinds of frame that a relay treats differently.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RelayKind {
    /// Allowed once per harness socket.
    Handshake,
    /// Ends the stream.
    Reset,
    /// Forwarded unread.
    Other,
}

/// Why bytes are not a valid frame.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// Not valid protobuf.
    #[error("not a relay frame")]
    Malformed,
    /// A version other than [`RELAY_VERSION`].
    #[error("unsupported relay version {0}")]
    Version(u32),
    /// The stream id is blank or too long.
    #[error("the stream id is blank or longer than {MAX_STREAM_ID_BYTES} bytes")]
    StreamId,
    /// No body, or only a body of a kind that this version does not know.
    #[error("the frame has no body")]
    NoBody,
    /// The body lacks a required value or has an inconsistent one.
    #[error("the {0} frame is incomplete or inconsistent")]
    Incomplete(&'static str),
}

impl RelayFrame {
    /// A frame with an empty acknowledgement.
    pub fn new(stream_id: impl Into<String>, body: RelayBody) -> Self {
        Self { stream_id: stream_id.into(), ack: Ack::default(), body }
    }

    /// Decodes and validates a frame; payloads share the memory of `bytes`.
    pub fn decode(bytes: Bytes) -> Result<Self, FrameError> {
        let frame = wire::RelayMessageFrame::decode(bytes).map_err(|_| FrameError::Malformed)?;
        check(frame.version, &frame.stream_id)?;
        Ok(Self {
            stream_id: frame.stream_id,
            ack: Ack { through: frame.ack, bits: frame.ack_bits },
            body: RelayBody::checked(frame.body.ok_or(FrameError::NoBody)?)?,
        })
    }

    /// Encodes the frame for the wire.
    pub fn encode(&self) -> Vec<u8> {
        let frame = wire::RelayMessageFrame {
            version: RELAY_VERSION,
            stream_id: self.stream_id.clone(),
            ack: self.ack.through,
            ack_bits: self.ack.bits,
            body: Some(self.body.clone().into()),
            traceparent: None,
            tracestate: None,
        };
        frame.encode_to_vec()
    }
}

impl RelayHeader {
    /// Decodes version, stream id and kind of body; the body's content is not validated.
    pub fn decode(bytes: Bytes) -> Result<Self, FrameError> {
        let frame = wire::RelayHeader::decode(bytes).map_err(|_| FrameError::Malformed)?;
        check(frame.version, &frame.stream_id)?;
        // Hostile frames may have several bodies; a handshake must not hide behind a reset.
        let kind = match (frame.handshake, frame.reset) {
            (Some(_), _) => RelayKind::Handshake,
            (None, Some(_)) => RelayKind::Reset,
            (None, None) => RelayKind::Other,
        };
        Ok(Self { stream_id: frame.stream_id, kind })
    }
}

fn check(version: u32, stream_id: &str) -> Result<(), FrameError> {
    if version != RELAY_VERSION {
        return Err(FrameError::Version(version));
    }
    if stream_id.trim().is_empty() || stream_id.len() > MAX_STREAM_ID_BYTES {
        return Err(FrameError::StreamId);
    }
    Ok(())
}

impl RelayBody {
    fn checked(body: wire::Body) -> Result<Self, FrameError> {
        Ok(match body {
            wire::Body::Data(data) => {
                if data.payload.is_empty() || data.segment_index >= data.segment_count {
                    return Err(FrameError::Incomplete("data"));
                }
                let wire::RelayData { seq, segment_index, segment_count, payload } = data;
                Self::Data(RelayData { seq, segment_index, segment_count, payload })
            }
            wire::Body::AckFrame(_) => Self::Ack,
            wire::Body::Resume(resume) => Self::Resume { next_seq: resume.next_seq },
            wire::Body::Reset(reset) if reset.reason.is_empty() => {
                return Err(FrameError::Incomplete("reset"));
            }
            wire::Body::Reset(reset) => Self::Reset { reason: reset.reason },
            wire::Body::Heartbeat(_) => Self::Heartbeat,
            wire::Body::Handshake(handshake) if handshake.payload.is_empty() => {
                return Err(FrameError::Incomplete("handshake"));
            }
            wire::Body::Handshake(handshake) => Self::Handshake(handshake.payload),
        })
    }
}

/// Appends the encoding of a data frame up to its payload of `payload_len` bytes.
///
/// The caller encrypts the record in place behind it, so that the payload is not copied.
pub fn begin_data_frame(
    stream_id: &str,
    ack: Ack,
    seq: u32,
    payload_len: usize,
    out: &mut Vec<u8>,
) {
    const VERSION: u8 = 0x08;
    const STREAM_ID: u8 = 0x12;
    const ACK: u8 = 0x18;
    const ACK_BITS: u8 = 0x20;
    const DATA: u8 = 0x2a;
    const SEQ: u8 = 0x08;
    const SEGMENT_COUNT: u8 = 0x18;
    const PAYLOAD: u8 = 0x22;

    out.put_slice(&[VERSION, 1, STREAM_ID]);
    put_varint(stream_id.len() as u64, out);
    out.put_slice(stream_id.as_bytes());
    put_number(ACK, ack.through, out);
    put_number(ACK_BITS, ack.bits, out);
    out.put_u8(DATA);
    let seq_len = if seq == 0 { 0 } else { 1 + varint_len(seq.into()) };
    let inner = seq_len + 2 + 1 + varint_len(payload_len as u64) + payload_len;
    put_varint(inner as u64, out);
    put_number(SEQ, seq, out);
    out.put_slice(&[SEGMENT_COUNT, 1, PAYLOAD]);
    put_varint(payload_len as u64, out);
}

/// Proto3 omits numbers that are 0.
fn put_number(tag: u8, value: u32, out: &mut Vec<u8>) {
    if value != 0 {
        out.put_u8(tag);
        put_varint(value.into(), out);
    }
}

fn put_varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.put_u8(value as u8 | 0x80);
        value >>= 7;
    }
    out.put_u8(value as u8);
}

fn varint_len(value: u64) -> usize {
    prost::encoding::encoded_len_varint(value)
}

/// The protobuf messages.
mod wire {
    use bytes::Bytes;
    use prost::{Message, Oneof};

    #[derive(Clone, PartialEq, Message)]
    pub(super) struct RelayMessageFrame {
        #[prost(uint32, tag = "1")]
        pub version: u32,
        #[prost(string, tag = "2")]
        pub stream_id: String,
        #[prost(uint32, tag = "3")]
        pub ack: u32,
        #[prost(uint32, tag = "4")]
        pub ack_bits: u32,
        #[prost(oneof = "Body", tags = "5, 6, 7, 8, 9, 10")]
        pub body: Option<Body>,
        #[prost(string, optional, tag = "11")]
        pub traceparent: Option<String>,
        #[prost(string, optional, tag = "12")]
        pub tracestate: Option<String>,
    }

    /// The same message with only the fields that a relay reads.
    #[derive(Clone, PartialEq, Message)]
    pub(super) struct RelayHeader {
        #[prost(uint32, tag = "1")]
        pub version: u32,
        #[prost(string, tag = "2")]
        pub stream_id: String,
        #[prost(bytes = "bytes", optional, tag = "8")]
        pub reset: Option<Bytes>,
        #[prost(bytes = "bytes", optional, tag = "10")]
        pub handshake: Option<Bytes>,
    }

    #[derive(Clone, PartialEq, Oneof)]
    pub(super) enum Body {
        #[prost(message, tag = "5")]
        Data(RelayData),
        #[prost(message, tag = "6")]
        AckFrame(Empty),
        #[prost(message, tag = "7")]
        Resume(RelayResume),
        #[prost(message, tag = "8")]
        Reset(RelayReset),
        #[prost(message, tag = "9")]
        Heartbeat(Empty),
        #[prost(message, tag = "10")]
        Handshake(RelayHandshake),
    }

    #[derive(Clone, PartialEq, Message)]
    pub(super) struct RelayData {
        #[prost(uint32, tag = "1")]
        pub seq: u32,
        #[prost(uint32, tag = "2")]
        pub segment_index: u32,
        #[prost(uint32, tag = "3")]
        pub segment_count: u32,
        #[prost(bytes = "bytes", tag = "4")]
        pub payload: Bytes,
    }

    #[derive(Clone, Copy, PartialEq, Message)]
    pub(super) struct Empty {}

    #[derive(Clone, Copy, PartialEq, Message)]
    pub(super) struct RelayResume {
        #[prost(uint32, tag = "1")]
        pub next_seq: u32,
    }

    #[derive(Clone, PartialEq, Message)]
    pub(super) struct RelayReset {
        #[prost(string, tag = "1")]
        pub reason: String,
    }

    #[derive(Clone, PartialEq, Message)]
    pub(super) struct RelayHandshake {
        #[prost(bytes = "bytes", tag = "1")]
        pub payload: Bytes,
    }

    impl From<super::RelayBody> for Body {
        fn from(body: super::RelayBody) -> Self {
            use super::RelayBody;
            match body {
                RelayBody::Data(data) => {
                    let super::RelayData { seq, segment_index, segment_count, payload } = data;
                    Self::Data(RelayData { seq, segment_index, segment_count, payload })
                }
                RelayBody::Ack => Self::AckFrame(Empty {}),
                RelayBody::Resume { next_seq } => Self::Resume(RelayResume { next_seq }),
                RelayBody::Reset { reason } => Self::Reset(RelayReset { reason }),
                RelayBody::Heartbeat => Self::Heartbeat(Empty {}),
                RelayBody::Handshake(payload) => Self::Handshake(RelayHandshake { payload }),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use exec_server_protocol::hex::encode as hex;

    const STREAM: &str = "0801120873747265616d2d31";

    #[test]
    fn encoded_frames_match_the_peers_bytes() {
        let reset = RelayBody::Reset { reason: RESET_PROTOCOL_ERROR.into() };
        check(RelayBody::Resume { next_seq: 0 }, "3a00");
        check(
            data(0, "8d5299ae96ab7413295801bf48cc68e32293890afef1"),
            "2a1a180122168d5299ae96ab7413295801bf48cc68e32293890afef1",
        );
        check(
            data(1, "8304e4c17c1fa397baeb394f0607b3e7"),
            "2a160801180122108304e4c17c1fa397baeb394f0607b3e7",
        );
        check(reset, "421c0a1a6e6f6973655f72656c61795f70726f746f636f6c5f6572726f72");
        check(RelayBody::Heartbeat, "4a00");
    }

    #[test]
    fn an_acknowledgement_is_encoded_before_the_body() {
        let ack = Ack { through: 5, bits: 3 };
        let frame = RelayFrame { ack, ..RelayFrame::new("stream-1", RelayBody::Ack) };
        assert_eq!(hex(&frame.encode()), format!("{STREAM}180520033200"));
        assert_eq!(RelayFrame::decode(frame.encode().into()), Ok(frame));
    }

    #[test]
    fn trace_context_is_skipped() {
        let mut bytes = unhex(&format!("{STREAM}2a051801220101"));
        bytes.extend(unhex("5a03616263620664643d733a31"));
        assert_eq!(RelayFrame::decode(bytes.into()).unwrap().body, data(0, "01"));
    }

    #[test]
    fn each_invalid_frame_has_its_error() {
        let cases = [
            ("ff", FrameError::Malformed),
            ("", FrameError::Version(0)),
            ("0802", FrameError::Version(2)),
            ("08013a00", FrameError::StreamId),
            ("08011201203a00", FrameError::StreamId),
            (STREAM, FrameError::NoBody),
            (&format!("{STREAM}4200"), FrameError::Incomplete("reset")),
            (&format!("{STREAM}5200"), FrameError::Incomplete("handshake")),
            (&format!("{STREAM}2a0218012a00"), FrameError::Incomplete("data")),
            (&format!("{STREAM}2a03220101"), FrameError::Incomplete("data")),
            (&format!("{STREAM}2a0710011801220101"), FrameError::Incomplete("data")),
        ];
        for (bytes, error) in cases {
            assert_eq!(RelayFrame::decode(unhex(bytes).into()), Err(error), "{bytes}");
        }
        let long = RelayFrame::new("x".repeat(MAX_STREAM_ID_BYTES + 1), RelayBody::Ack);
        assert_eq!(RelayFrame::decode(long.encode().into()), Err(FrameError::StreamId));
    }

    proptest! {
        #[test]
        fn a_hand_written_data_frame_equals_the_encoded_one(
            stream in "[a-z0-9-]{1,200}", through: u32, bits: u32, seq: u32,
            payload in prop::collection::vec(any::<u8>(), 1..400),
        ) {
            let ack = Ack { through, bits };
            let mut by_hand = Vec::new();
            begin_data_frame(&stream, ack, seq, payload.len(), &mut by_hand);
            by_hand.extend_from_slice(&payload);
            let body = RelayBody::Data(RelayData { seq, segment_index: 0, segment_count: 1, payload: payload.into() });
            let frame = RelayFrame { stream_id: stream, ack, body };
            prop_assert_eq!(&by_hand, &frame.encode());
            prop_assert_eq!(RelayFrame::decode(by_hand.into()), Ok(frame));
        }

        #[test]
        fn hostile_bytes_never_panic_the_decoder(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = RelayFrame::decode(bytes.into());
        }
    }

    fn check(body: RelayBody, expected: &str) {
        let frame = RelayFrame::new("stream-1", body);
        assert_eq!(hex(&frame.encode()), format!("{STREAM}{expected}"));
        assert_eq!(RelayFrame::decode(frame.encode().into()), Ok(frame));
    }

    fn data(seq: u32, payload: &str) -> RelayBody {
        let payload = unhex(payload).into();
        RelayBody::Data(RelayData { seq, segment_index: 0, segment_count: 1, payload })
    }

    fn unhex(text: &str) -> Vec<u8> {
        exec_server_protocol::hex::decode(text).expect("digits")
    }
}
