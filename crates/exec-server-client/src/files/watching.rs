//! Waits until one of several missing paths exists.

use exec_server_protocol::fs::FsWatchMissingResponse;
use tokio::sync::oneshot;

use crate::connection::ExecServerConnection;
use crate::error::ExecServerError;

/// A watch for missing paths; after a drop, the server's notification is ignored.
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

    /// Whether the server watches the paths; if not, the reason.
    pub fn answer(&self) -> &FsWatchMissingResponse {
        &self.answer
    }

    /// Waits until one of the paths exists; fails if the connection ends or a newer watch replaces this one.
    pub async fn changed(&mut self) -> Result<(), ExecServerError> {
        if !self.answer.watching {
            let reason = self.answer.reason.clone().unwrap_or_default();
            return Err(ExecServerError::Invalid(format!(
                "the server cannot watch these paths: {reason}"
            )));
        }
        (&mut self.changed).await.map_err(|_| ExecServerError::Disconnected {
            reason: "the connection ended, or a newer watch replaced this one".into(),
        })
    }
}

impl Drop for MissingWatch {
    fn drop(&mut self) {
        self.connection.shared().routes().end_watch(self.watch_id);
    }
}
