//! The link from a process to the client that is attached to its session.

use exec_server_core::output_gate::Confirmation;
use exec_server_protocol::base64::encoded_len;
use exec_server_protocol::encode::OutputEncoder;
use exec_server_protocol::envelope;
use exec_server_protocol::limits::MAX_OUTPUT_CHUNK_BYTES;
use exec_server_protocol::process::{OutputStream, ProcessId};
use exec_server_transport::outbox::{Outbox, Slot};
use tokio::sync::{oneshot, watch};

/// What a message around a full chunk takes in the outbox.
const CHUNK_MESSAGE_BYTES: usize = encoded_len(MAX_OUTPUT_CHUNK_BYTES) + 512;

/// Sends the events of one process to the attached client, if there is one.
pub struct Link {
    /// Published by the session task.
    pub attached: watch::Receiver<Option<Outbox>>,
    pub outbox: Option<Outbox>,
    /// Answered when the client has everything that was sent before.
    pub mark: Option<oneshot::Receiver<()>>,
    encoder: OutputEncoder,
    is_silent: bool,
}

impl Link {
    pub fn new(id: &ProcessId, mut attached: watch::Receiver<Option<Outbox>>) -> Self {
        let outbox = attached.borrow_and_update().clone();
        Self { attached, outbox, mark: None, encoder: OutputEncoder::new(id), is_silent: false }
    }

    /// Sends no event from now on.
    pub fn silence(&mut self) {
        self.is_silent = true;
        self.outbox = None;
    }

    pub fn is_attached(&self) -> bool {
        self.outbox.is_some()
    }

    /// Whether this is the outbox of the attached client.
    pub fn is_to(&self, outbox: &Outbox) -> bool {
        self.outbox.as_ref().is_some_and(|own| own.is_same(outbox))
    }

    /// Takes what the session task has published.
    pub fn update(&mut self) {
        self.outbox = self.attached.borrow_and_update().clone().filter(|_| !self.is_silent);
        self.mark = None;
    }

    pub fn drop_closed(&mut self) {
        if self.outbox.as_ref().is_some_and(Outbox::is_closed) {
            self.outbox = None;
        }
    }

    pub fn send_mark(&mut self) {
        self.mark = self.outbox.as_ref().map(Outbox::delivered);
    }

    /// Sends a chunk; returns whether a client is attached.
    pub fn send_output(
        &self,
        slot: Option<Slot>,
        seq: u64,
        stream: OutputStream,
        bytes: &[u8],
    ) -> bool {
        let (Some(outbox), Some(slot)) = (&self.outbox, slot) else { return false };
        let message = match outbox.takes_binary() {
            true => self.encoder.binary_output(seq, stream, bytes),
            false => self.encoder.output(seq, stream, bytes),
        };
        outbox.push_bulk(slot, message);
        true
    }

    /// Sends a notification; returns whether a client is attached.
    pub fn notify(&self, method: &str, params: &impl serde::Serialize) -> bool {
        let Some(outbox) = &self.outbox else { return false };
        outbox.push_in_order(envelope::notification(method, params));
        true
    }
}

/// Waits for room for one chunk; no room is needed while no client is attached.
pub async fn reserve(outbox: &Option<Outbox>) -> Option<Slot> {
    match outbox {
        Some(outbox) => outbox.reserve(CHUNK_MESSAGE_BYTES).await.ok(),
        None => None,
    }
}

/// Waits for the answer to the latest mark, or for ever without a mark.
pub async fn confirmation(mark: &mut Option<oneshot::Receiver<()>>) -> Confirmation {
    let Some(mark) = mark else { return std::future::pending().await };
    if mark.await.is_ok() { Confirmation::Received } else { Confirmation::LinkLost }
}
