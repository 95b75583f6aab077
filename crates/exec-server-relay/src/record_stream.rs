//! An open stream at either end: both directions and their acknowledgements.

use crate::frame::{Ack, RelayBody, RelayData, RelayFrame};
use bytes::Bytes;

use crate::framing::{Inbound, Outbound};
use crate::noise::handshake::Keys;
use crate::stream::StreamError;

/// Joins [`Inbound`] and [`Outbound`]: each data frame carries the acknowledgement of the other direction.
pub(crate) struct OpenStream {
    inbound: Inbound,
    outbound: Outbound,
}

impl OpenStream {
    pub(crate) fn new(keys: Keys) -> Self {
        Self { inbound: Inbound::new(keys.opener), outbound: Outbound::new(keys.sealer) }
    }

    /// Takes the acknowledgement that any frame carries.
    pub(crate) fn handle_ack(&mut self, ack: Ack, body: &RelayBody) {
        self.outbound.handle_ack(ack, matches!(body, RelayBody::Ack));
    }

    /// Takes a data frame and passes the messages that it completes to `message`.
    pub(crate) fn handle_data(
        &mut self,
        data: RelayData,
        message: impl FnMut(Bytes),
    ) -> Result<(), StreamError> {
        self.inbound.handle_data(data, message)
    }

    /// The owner has processed a message of this length, which opens the window again.
    pub(crate) fn take(&mut self, bytes: usize) {
        self.inbound.take(bytes);
    }

    pub(crate) fn send(&mut self, message: Bytes) -> Result<(), StreamError> {
        self.outbound.send(message)
    }

    /// Message bytes that are not sent yet.
    pub(crate) fn queued_bytes(&self) -> usize {
        self.outbound.queued_bytes()
    }

    /// Whether [`Self::poll_frame`] would return a frame.
    pub(crate) fn has_frame(&self) -> bool {
        self.outbound.can_send() || self.inbound.owes_ack()
    }

    /// The next data frame, or else an acknowledgement that is due.
    pub(crate) fn poll_frame(&mut self, stream_id: &str) -> Result<Option<Vec<u8>>, StreamError> {
        if self.outbound.can_send() {
            return self.outbound.poll_frame(stream_id, self.inbound.take_ack());
        }
        if !self.inbound.owes_ack() {
            return Ok(None);
        }
        let ack = self.inbound.take_ack();
        let frame = RelayFrame { ack, ..RelayFrame::new(stream_id, RelayBody::Ack) };
        Ok(Some(frame.encode()))
    }
}
