//! `fs/watchMissing`: one watch per connection; a newer watch replaces the older one.

use std::error::Error;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard};

use exec_server_fs::byte_fields::path_from_bytes;
use exec_server_fs::{MissingWatch, NotWatched};
use exec_server_protocol::envelope;
use exec_server_protocol::fs::{
    FsMissingChangedNotification, FsWatchMissingParams, FsWatchMissingResponse,
};
use exec_server_protocol::methods::FS_MISSING_CHANGED;
use exec_server_protocol::path_uri::{NativePaths, PathUri};
use tokio::sync::oneshot;

use crate::reply::Reply;
use crate::server::Server;

/// The watch of one connection.
#[derive(Debug, Default)]
pub struct WatchSlot {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    newest: Option<u64>,
    /// Dropping it ends the watch.
    current: Option<oneshot::Sender<()>>,
}

impl WatchSlot {
    /// Answers `fs/watchMissing`.
    pub fn watch(&self, server: &Server, params: FsWatchMissingParams, reply: Reply) {
        let Some(cancelled) = self.replace(params.watch_id) else {
            return refuse("watchId must be higher than all before it on this connection", reply);
        };
        let native = server.config.native_paths;
        server.spawn(run(params, native, cancelled, reply));
    }

    /// Replaces the current watch, unless `id` is not higher than all earlier ids.
    fn replace(&self, id: u64) -> Option<oneshot::Receiver<()>> {
        let mut state = self.lock();
        if state.newest.is_some_and(|newest| newest >= id) {
            return None;
        }
        let (current, cancelled) = oneshot::channel();
        state.newest = Some(id);
        drop(state.current.replace(current));
        Some(cancelled)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder panics")
    }
}

/// Watches until a change, or until the watch is replaced or its connection ends.
async fn run(
    params: FsWatchMissingParams,
    native: NativePaths,
    mut cancelled: oneshot::Receiver<()>,
    reply: Reply,
) {
    let watch_id = params.watch_id;
    let outbox = reply.outbox().clone();
    let begun = tokio::task::spawn_blocking(move || begin(&params, native)).await;
    let watch = match begun {
        Ok(Ok(watch)) => watch,
        Ok(Err(reason)) => return refuse(&reason, reply),
        // A panic is a bug; dropping the reply sends an error.
        Err(_) => return,
    };
    if cancelled.try_recv() != Err(oneshot::error::TryRecvError::Empty) {
        return refuse("replaced by a newer watch", reply);
    }
    reply.ok(&FsWatchMissingResponse { watching: true, reason: None });
    tokio::select! {
        biased;
        _ = &mut cancelled => {}
        changed = watch.changed() => {
            if let Err(error) = changed {
                tracing::warn!(%error, "a watch failed; the client is notified as if the path had changed");
            }
            let params = FsMissingChangedNotification { watch_id };
            outbox.push_reply(envelope::notification(FS_MISSING_CHANGED, &params));
        }
    }
}

/// Starts the watch, or returns why it is not possible; may block.
fn begin(params: &FsWatchMissingParams, native: NativePaths) -> Result<MissingWatch, String> {
    let path = |uri: &PathUri| -> Result<PathBuf, String> {
        uri.to_posix(native).map(path_from_bytes).map_err(|error| error.to_string())
    };
    let missing = params.missing.iter().map(path).collect::<Result<Vec<_>, _>>()?;
    let present = params.present.as_ref().map(path).transpose()?;
    MissingWatch::new(&missing, present.as_deref()).map_err(|error| explain(&error))
}

fn explain(error: &NotWatched) -> String {
    match error.source() {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}

fn refuse(reason: &str, reply: Reply) {
    reply.ok(&FsWatchMissingResponse { watching: false, reason: Some(reason.to_owned()) });
}
