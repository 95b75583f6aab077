//! Messages to records and back: a stream of `length ‖ message`, cut into sealed pieces.

use std::collections::VecDeque;

use bytes::Bytes;
use exec_server_protocol::relay_frame::{Ack, RelayData, begin_data_frame};

use super::StreamError;
use super::reorder::Reorder;
use crate::noise::records::{MAX_PLAINTEXT_BYTES, Opener, Sealer, TAG_BYTES};

/// The longest message that a stream carries.
pub const MAX_MESSAGE_BYTES: usize = 64 << 20;

/// The length before each message.
const LENGTH_BYTES: usize = 4;

/// More than any frame has around its record: the stream id, and a few numbers.
const FRAME_OVERHEAD: usize = 320;

/// Ciphertext that may be on its way, to a peer that acknowledges. A slow peer then fills this, and no relay.
pub const WINDOW_BYTES: usize = 4 << 20;

/// A receiver that sends nothing else acknowledges as often as this.
const ACKNOWLEDGE_BYTES: usize = WINDOW_BYTES / 8;

/// Messages that are not taken hold back the acknowledgement from here on.
const UNTAKEN_BYTES: usize = 1 << 20;

/// A peer that pays no attention to acknowledgements is cut off here.
const MAX_UNTAKEN_BYTES: usize = MAX_MESSAGE_BYTES + 2 * WINDOW_BYTES;

/// What one end receives: frames in any order, messages out.
pub struct Inbound {
    order: Reorder,
    opener: Opener,
    /// Messages that the owner has not yet passed on.
    untaken_bytes: usize,
    told: Ack,
    /// Ciphertext that came since the peer was told.
    untold_bytes: usize,
    is_silent: bool,
    /// Plaintext that is not handed out yet; a message begins at `at`.
    plain: Vec<u8>,
    at: usize,
}

impl Inbound {
    /// Nothing has come yet.
    pub fn new(opener: Opener) -> Self {
        Self {
            order: Reorder::default(),
            opener,
            untaken_bytes: 0,
            told: Ack::default(),
            untold_bytes: 0,
            is_silent: true,
            plain: Vec::new(),
            at: 0,
        }
    }

    /// A piece arrived; the messages that it completes are passed to `message`.
    pub fn handle_data(
        &mut self,
        data: RelayData,
        mut message: impl FnMut(Bytes),
    ) -> Result<(), StreamError> {
        self.untold_bytes += data.payload.len();
        self.order.handle_data(data)?;
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

    /// The owner passed on a message of this length.
    pub fn take(&mut self, bytes: usize) {
        self.untaken_bytes -= bytes;
    }

    /// Whether the peer should hear what has come, even if there is nothing else to say.
    ///
    /// The first record is acknowledged at once: it tells the peer that this end acknowledges.
    pub fn owes_ack(&self) -> bool {
        let is_due = self.untold_bytes >= ACKNOWLEDGE_BYTES || self.is_silent;
        is_due && self.untold_bytes > 0 && self.untaken_bytes <= UNTAKEN_BYTES
    }

    /// What the frame that leaves now says of what has come.
    pub fn tell_ack(&mut self) -> Ack {
        if self.untaken_bytes <= UNTAKEN_BYTES {
            self.told = self.order.ack();
            self.is_silent &= self.untold_bytes == 0;
            self.untold_bytes = 0;
        }
        self.told
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
            // Peers begin a record for every message, so this is the rule: the memory goes with the message.
            self.at = 0;
            return Ok(Some(Bytes::from(std::mem::take(&mut self.plain)).slice(start..)));
        }
        self.at = start + length;
        let message = Bytes::copy_from_slice(&self.plain[start..self.at]);
        self.forget_what_was_read();
        Ok(Some(message))
    }

    /// Keeps many short messages in few records from piling up.
    fn forget_what_was_read(&mut self) {
        if self.at > MAX_PLAINTEXT_BYTES {
            self.plain.drain(..self.at);
            self.at = 0;
        }
    }
}

/// What one end sends: messages in, frames out, one at a time.
pub struct Outbound {
    sealer: Sealer,
    queue: VecDeque<Bytes>,
    /// How much of the first message has left.
    sent: usize,
    queued_bytes: usize,
    /// The numbers and lengths of records that a peer which acknowledges has not acknowledged.
    in_flight: VecDeque<(u32, usize)>,
    in_flight_bytes: usize,
    peer_acknowledges: bool,
}

impl Outbound {
    /// Nothing is to be sent yet.
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

    /// A frame of the peer said what has come; `is_explicit` if that was all that it was for.
    ///
    /// Some peers leave these numbers at 0 for ever, so nothing is concluded from that.
    pub fn handle_ack(&mut self, ack: Ack, is_explicit: bool) {
        self.peer_acknowledges |= is_explicit || ack != Ack::default();
        while let Some((_, bytes)) = self.in_flight.pop_front_if(|(seq, _)| *seq <= ack.through) {
            self.in_flight_bytes -= bytes;
        }
    }

    /// Whether a frame can leave now.
    pub fn can_send(&self) -> bool {
        !self.queue.is_empty() && self.in_flight_bytes < WINDOW_BYTES
    }

    /// Queues a message; owners wait with more while [`Self::queued_bytes`] are many.
    pub fn send(&mut self, message: Bytes) -> Result<(), StreamError> {
        if message.is_empty() || message.len() > MAX_MESSAGE_BYTES {
            return Err(StreamError::MessageLength);
        }
        self.queued_bytes += message.len();
        self.queue.push_back(message);
        Ok(())
    }

    /// How much is waiting to leave.
    pub fn queued_bytes(&self) -> usize {
        self.queued_bytes
    }

    /// The next frame, if anything is waiting and the peer has room for it.
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
