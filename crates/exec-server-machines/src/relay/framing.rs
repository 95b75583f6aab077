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

/// What one end receives: frames in any order, messages out.
pub struct Inbound {
    order: Reorder,
    opener: Opener,
    /// Plaintext that is not handed out yet; a message begins at `at`.
    plain: Vec<u8>,
    at: usize,
}

impl Inbound {
    /// Nothing has come yet.
    pub fn new(opener: Opener) -> Self {
        Self { order: Reorder::default(), opener, plain: Vec::new(), at: 0 }
    }

    /// A piece arrived; the messages that it completes are passed to `message`.
    pub fn handle_data(
        &mut self,
        data: RelayData,
        mut message: impl FnMut(Bytes),
    ) -> Result<(), StreamError> {
        self.order.handle_data(data)?;
        while let Some(record) = self.order.poll_record() {
            self.opener.open(&record, &mut self.plain)?;
            while let Some(next) = self.next_message()? {
                message(next);
            }
        }
        Ok(())
    }

    /// What the other end may be told.
    pub fn ack(&self) -> Ack {
        self.order.ack()
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
}

impl Outbound {
    /// Nothing is to be sent yet.
    pub fn new(sealer: Sealer) -> Self {
        Self { sealer, queue: VecDeque::new(), sent: 0, queued_bytes: 0 }
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

    /// The next frame, if anything is waiting.
    pub fn poll_frame(
        &mut self,
        stream_id: &str,
        ack: Ack,
    ) -> Result<Option<Vec<u8>>, StreamError> {
        let Some(message) = self.queue.front() else { return Ok(None) };
        let prefix = if self.sent == 0 { LENGTH_BYTES } else { 0 };
        let remaining = message.len() - self.sent;
        let piece = remaining.min(MAX_PLAINTEXT_BYTES - prefix);
        let record_len = prefix + piece + TAG_BYTES;
        let mut frame = Vec::with_capacity(FRAME_OVERHEAD + record_len);
        begin_data_frame(stream_id, ack, self.sealer.next_seq()?, record_len, &mut frame);
        let start = frame.len();
        if prefix > 0 {
            let length = u32::try_from(message.len()).expect("messages are bounded");
            frame.extend_from_slice(&length.to_be_bytes());
        }
        frame.extend_from_slice(&message[self.sent..self.sent + piece]);
        self.sealer.seal(&mut frame, start)?;
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
