//! An open stream at either end: what comes, what goes, and what is said of what has come.

use bytes::Bytes;
use exec_server_protocol::relay_frame::{Ack, RelayBody, RelayData, RelayFrame};

use super::StreamError;
use super::framing::{Inbound, Outbound};
use crate::noise::handshake::Keys;

/// Both directions of an open stream.
pub struct OpenStream {
    inbound: Inbound,
    outbound: Outbound,
}

impl OpenStream {
    /// Nothing has come or gone yet.
    pub fn new(keys: Keys) -> Self {
        Self { inbound: Inbound::new(keys.opener), outbound: Outbound::new(keys.sealer) }
    }

    /// A frame said what has come to the other end.
    pub fn handle_ack(&mut self, ack: Ack, body: &RelayBody) {
        self.outbound.handle_ack(ack, matches!(body, RelayBody::Ack));
    }

    /// A piece arrived; the messages that it completes are passed to `message`.
    pub fn handle_data(
        &mut self,
        data: RelayData,
        message: impl FnMut(Bytes),
    ) -> Result<(), StreamError> {
        self.inbound.handle_data(data, message)
    }

    /// The owner passed on a message of this length.
    pub fn take(&mut self, bytes: usize) {
        self.inbound.take(bytes);
    }

    /// Queues a message.
    pub fn send(&mut self, message: Bytes) -> Result<(), StreamError> {
        self.outbound.send(message)
    }

    /// How much is waiting to leave.
    pub fn queued_bytes(&self) -> usize {
        self.outbound.queued_bytes()
    }

    /// Whether there is a frame to be sent now.
    pub fn has_frame(&self) -> bool {
        self.outbound.can_send() || self.inbound.owes_ack()
    }

    /// The next frame: of a message, or else a bare acknowledgement that is due.
    pub fn poll_frame(&mut self, stream_id: &str) -> Result<Option<Vec<u8>>, StreamError> {
        if self.outbound.can_send() {
            return self.outbound.poll_frame(stream_id, self.inbound.tell_ack());
        }
        if !self.inbound.owes_ack() {
            return Ok(None);
        }
        let ack = self.inbound.tell_ack();
        let frame = RelayFrame { ack, ..RelayFrame::new(stream_id, RelayBody::Ack) };
        Ok(Some(frame.encode()))
    }
}
