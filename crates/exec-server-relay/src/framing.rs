//! Splits messages into encrypted records and reassembles them.
//!
//! Each direction is a byte stream of `length ‖ message`, cut into records of at most [`MAX_PLAINTEXT_BYTES`].

use std::collections::VecDeque;

use crate::frame::{Ack, RelayData, begin_data_frame};
use bytes::Bytes;

use crate::noise::records::{MAX_PLAINTEXT_BYTES, Opener, Sealer, TAG_BYTES};
use crate::reorder::Reorder;
use crate::stream::StreamError;

/// Longer messages are rejected at both ends, so a length prefix cannot claim unbounded memory.
pub const MAX_MESSAGE_BYTES: usize = 64 << 20;

/// Size of the big-endian length before each message.
const LENGTH_BYTES: usize = 4;

/// Upper bound for the bytes of a frame around its record: the stream id and a few varints.
const FRAME_OVERHEAD: usize = 320;

/// Unacknowledged ciphertext that may be in flight to a peer that acknowledges.
/// The sender stops there, so a slow peer does not fill the relay's queues.
pub const WINDOW_BYTES: usize = 4 << 20;

/// A receiver with nothing else to send acknowledges after this much ciphertext.
const ACKNOWLEDGE_BYTES: usize = WINDOW_BYTES / 8;

/// Acknowledgements are withheld while the owner has more than this still to take.
const UNTAKEN_BYTES: usize = 1 << 20;

/// A peer that ignores the window gets [`StreamError::Overrun`] above this.
const MAX_UNTAKEN_BYTES: usize = MAX_MESSAGE_BYTES + 2 * WINDOW_BYTES;

/// Receiving direction: takes data frames in any order and yields messages.
pub struct Inbound {
    order: Reorder,
    opener: Opener,
    /// Set once record 1 has been checked for a peer that numbers from 1.
    has_checked_first_seq: bool,
    /// Bytes of messages that the owner has not taken yet.
    untaken_bytes: usize,
    last_ack: Ack,
    /// Ciphertext received since the last acknowledgement.
    unacked_bytes: usize,
    has_never_acked: bool,
    /// Decrypted bytes; the next message begins at `at`.
    plain: Vec<u8>,
    at: usize,
}

impl Inbound {
    /// Starts before the first record.
    pub fn new(opener: Opener) -> Self {
        Self {
            order: Reorder::default(),
            opener,
            has_checked_first_seq: false,
            untaken_bytes: 0,
            last_ack: Ack::default(),
            unacked_bytes: 0,
            has_never_acked: true,
            plain: Vec::new(),
            at: 0,
        }
    }

    /// Takes a data frame and passes the messages that it completes to `message`.
    pub fn handle_data(
        &mut self,
        data: RelayData,
        mut message: impl FnMut(Bytes),
    ) -> Result<(), StreamError> {
        self.unacked_bytes += data.payload.len();
        self.order.handle_data(data)?;
        if !self.has_checked_first_seq {
            self.detect_first_seq();
        }
        while let Some(record) = self.order.poll_record() {
            self.opener.open(&record, &mut self.plain)?;
            while let Some(next) = self.next_message()? {
                self.untaken_bytes += next.len();
                message(next);
            }
        }
        if self.untaken_bytes > MAX_UNTAKEN_BYTES {
            return Err(StreamError::Overrun);
        }
        Ok(())
    }

    /// Detects a peer that numbers from 1: its record 1 decrypts under nonce 0.
    fn detect_first_seq(&mut self) {
        let Some(record) = self.order.record_one() else { return };
        self.has_checked_first_seq = true;
        if self.opener.is_first(&record) {
            self.order.count_from_one();
        }
    }

    /// The owner has processed a message of this length, which opens the window again.
    pub fn take(&mut self, bytes: usize) {
        self.untaken_bytes -= bytes;
    }

    /// Whether an acknowledgement is due, even if there is no data to send.
    ///
    /// The first record is acknowledged at once, so that the peer learns that this end acknowledges.
    pub fn owes_ack(&self) -> bool {
        let is_due = self.unacked_bytes >= ACKNOWLEDGE_BYTES || self.has_never_acked;
        is_due && self.unacked_bytes > 0 && self.untaken_bytes <= UNTAKEN_BYTES
    }

    /// The acknowledgement for the frame being sent; unchanged while the owner is behind.
    pub fn take_ack(&mut self) -> Ack {
        if self.untaken_bytes <= UNTAKEN_BYTES {
            self.last_ack = self.order.ack();
            self.has_never_acked &= self.unacked_bytes == 0;
            self.unacked_bytes = 0;
        }
        self.last_ack
    }

    fn next_message(&mut self) -> Result<Option<Bytes>, StreamError> {
        let rest = &self.plain[self.at..];
        let Some((length, rest)) = rest.split_first_chunk::<LENGTH_BYTES>() else {
            return Ok(None);
        };
        let length = u32::from_be_bytes(*length) as usize;
        if length == 0 || length > MAX_MESSAGE_BYTES {
            return Err(StreamError::MessageLength);
        }
        if rest.len() < length {
            return Ok(None);
        }
        let start = self.at + LENGTH_BYTES;
        if rest.len() == length {
            // The usual case, as peers start a record per message: hand over the buffer without a copy.
            self.at = 0;
            return Ok(Some(Bytes::from(std::mem::take(&mut self.plain)).slice(start..)));
        }
        self.at = start + length;
        let message = Bytes::copy_from_slice(&self.plain[start..self.at]);
        self.discard_read();
        Ok(Some(message))
    }

    /// Without this, the buffer would grow while short messages never end exactly at a record's end.
    fn discard_read(&mut self) {
        if self.at > MAX_PLAINTEXT_BYTES {
            self.plain.drain(..self.at);
            self.at = 0;
        }
    }
}

/// Sending direction: queues messages and yields one frame at a time.
pub struct Outbound {
    sealer: Sealer,
    queue: VecDeque<Bytes>,
    /// Bytes of the first queued message that are already sent.
    sent: usize,
    queued_bytes: usize,
    /// Sequence number and length of each unacknowledged record; empty if the peer does not acknowledge.
    in_flight: VecDeque<(u32, usize)>,
    in_flight_bytes: usize,
    peer_acknowledges: bool,
}

impl Outbound {
    /// Starts with an empty queue.
    pub fn new(sealer: Sealer) -> Self {
        Self {
            sealer,
            queue: VecDeque::new(),
            sent: 0,
            queued_bytes: 0,
            in_flight: VecDeque::new(),
            in_flight_bytes: 0,
            peer_acknowledges: false,
        }
    }

    /// Takes the acknowledgement of a frame; `is_explicit` if the frame is an acknowledgement only.
    ///
    /// Some peers never set these numbers, so zeros in another frame do not turn on the window.
    pub fn handle_ack(&mut self, ack: Ack, is_explicit: bool) {
        self.peer_acknowledges |= is_explicit || ack != Ack::default();
        while let Some((_, bytes)) = self.in_flight.pop_front_if(|(seq, _)| *seq <= ack.through) {
            self.in_flight_bytes -= bytes;
        }
    }

    /// Whether a message is queued and the window is open.
    pub fn can_send(&self) -> bool {
        !self.queue.is_empty() && self.in_flight_bytes < WINDOW_BYTES
    }

    /// Queues a message; the queue has no limit, so owners bound [`Self::queued_bytes`].
    pub fn send(&mut self, message: Bytes) -> Result<(), StreamError> {
        if message.is_empty() || message.len() > MAX_MESSAGE_BYTES {
            return Err(StreamError::MessageLength);
        }
        self.queued_bytes += message.len();
        self.queue.push_back(message);
        Ok(())
    }

    /// Message bytes that are not sent yet.
    pub fn queued_bytes(&self) -> usize {
        self.queued_bytes
    }

    /// The next frame, if a message is queued and the window is open.
    pub fn poll_frame(
        &mut self,
        stream_id: &str,
        ack: Ack,
    ) -> Result<Option<Vec<u8>>, StreamError> {
        if !self.can_send() {
            return Ok(None);
        }
        let Some(message) = self.queue.front() else { return Ok(None) };
        let prefix = if self.sent == 0 { LENGTH_BYTES } else { 0 };
        let remaining = message.len() - self.sent;
        let piece = remaining.min(MAX_PLAINTEXT_BYTES - prefix);
        let record_len = prefix + piece + TAG_BYTES;
        let seq = self.sealer.next_seq()?;
        let mut frame = Vec::with_capacity(FRAME_OVERHEAD + record_len);
        begin_data_frame(stream_id, ack, seq, record_len, &mut frame);
        let start = frame.len();
        if prefix > 0 {
            let length = u32::try_from(message.len()).expect("messages are bounded");
            frame.extend_from_slice(&length.to_be_bytes());
        }
        frame.extend_from_slice(&message[self.sent..self.sent + piece]);
        self.sealer.seal(&mut frame, start)?;
        if self.peer_acknowledges {
            self.in_flight.push_back((seq, record_len));
            self.in_flight_bytes += record_len;
        }
        self.queued_bytes -= piece;
        self.sent += piece;
        if piece == remaining {
            self.sent = 0;
            self.queue.pop_front();
        }
        Ok(Some(frame))
    }
}

#[cfg(test)]
mod tests;
