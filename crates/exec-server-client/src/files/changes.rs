//! Follows the changes of a tree.

use exec_server_protocol::fs::{
    FsChange, FsReadChangesParams, FsReadChangesResponse, FsUnwatchParams, FsWatchResponse,
};
use exec_server_protocol::methods::Method;

use crate::caller::{Caller, Replay};
use crate::connection::ExecServerConnection;
use crate::error::ExecServerError;

/// How long one request waits for a change.
const WAIT_MS: u64 = 30_000;

/// A watch of a path; dropping it ends the watch on the server.
///
/// The watch belongs to the session: after a disconnect, the changes since the last ones arrive, or one `rescan`.
pub struct TreeWatch {
    caller: Caller,
    connection: ExecServerConnection,
    answer: FsWatchResponse,
    last_seq: u64,
    has_ended: bool,
}

impl TreeWatch {
    pub(super) fn new(
        caller: Caller,
        connection: ExecServerConnection,
        answer: FsWatchResponse,
    ) -> Self {
        Self { caller, connection, answer, last_seq: 0, has_ended: false }
    }

    /// The server's answer: how many directories it watches.
    pub fn answer(&self) -> &FsWatchResponse {
        &self.answer
    }

    /// Waits for the next changes; `None` after the watched path was removed or moved.
    pub async fn next(&mut self) -> Result<Option<Vec<FsChange>>, ExecServerError> {
        while !self.has_ended {
            self.connection = self.caller.connection().await?;
            let params = FsReadChangesParams {
                watch_id: self.answer.watch_id.clone(),
                after_seq: self.last_seq,
                wait_ms: WAIT_MS,
            };
            let found: FsReadChangesResponse =
                self.caller.call(Method::FsReadChanges, &params, Replay::Safe).await?;
            self.has_ended = found.ended;
            if let Some(last) = found.changes.last() {
                self.last_seq = last.seq;
                return Ok(Some(found.changes));
            }
        }
        Ok(None)
    }
}

impl Drop for TreeWatch {
    fn drop(&mut self) {
        let params = FsUnwatchParams { watch_id: self.answer.watch_id.clone() };
        self.connection.shared().clean_up(Method::FsUnwatch.name(), &params);
    }
}
