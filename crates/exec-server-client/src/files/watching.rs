//! A watch for missing paths.

use exec_server_protocol::fs::FsWatchMissingResponse;
use tokio::sync::oneshot;

use crate::connection::ExecServerConnection;
use crate::error::ExecServerError;

/// A watch for missing paths; dropping it ends it here.
pub struct MissingWatch {
    connection: ExecServerConnection,
    watch_id: u64,
    changed: oneshot::Receiver<()>,
    answer: FsWatchMissingResponse,
}

impl MissingWatch {
    pub(crate) fn new(
        connection: ExecServerConnection,
        watch_id: u64,
        changed: oneshot::Receiver<()>,
        answer: FsWatchMissingResponse,
    ) -> Self {
        Self { connection, watch_id, changed, answer }
    }

    /// Whether the server watches at all; if not, why.
    pub fn answer(&self) -> &FsWatchMissingResponse {
        &self.answer
    }

    /// Waits until one of the paths is there; fails if the link broke or a newer watch took this one's place.
    pub async fn changed(&mut self) -> Result<(), ExecServerError> {
        if !self.answer.watching {
            let reason = self.answer.reason.clone().unwrap_or_default();
            return Err(ExecServerError::Invalid(format!("the server does not watch: {reason}")));
        }
        (&mut self.changed).await.map_err(|_| ExecServerError::Disconnected {
            reason: "the watch ended with its connection, or for a newer one".into(),
        })
    }
}

impl Drop for MissingWatch {
    fn drop(&mut self) {
        self.connection.shared().routes().end_watch(self.watch_id);
    }
}
