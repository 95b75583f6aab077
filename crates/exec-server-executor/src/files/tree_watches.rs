//! `fs/watch`, `fs/readChanges` and `fs/unwatch`: the watches of one session, which outlive its connections.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use exec_server_fs::tree_watch::TreeWatch;
use exec_server_protocol::fs::{
    FsReadChangesParams, FsReadChangesResponse, FsUnwatchParams, FsUnwatchResponse, FsWatchResponse,
};
use exec_server_protocol::limits::{
    DEFAULT_COALESCE_MS, MAX_CHANGES_WAIT_MS, MAX_COALESCE_MS, MAX_WATCHES,
};

use crate::errors::RequestError;
use crate::reply::Reply;
use crate::server::Server;

/// `fs/watch` with decoded params.
#[derive(Debug)]
pub struct WatchCall {
    pub id: String,
    pub path: PathBuf,
    pub recursive: bool,
    pub coalesce_ms: Option<u64>,
}

/// The watches of one session.
#[derive(Debug, Default)]
pub struct TreeWatches {
    by_id: Mutex<HashMap<String, Slot>>,
}

/// None while the watch is being set up.
type Slot = Option<Arc<TreeWatch>>;

/// Memory of an answer with many changes.
const CHANGES_ROOM: usize = 2 * 1024 * 1024;

impl TreeWatches {
    /// Answers `fs/watch`.
    pub fn watch(watches: Arc<Self>, call: WatchCall, reply: Reply) {
        if let Err(error) = watches.reserve(&call.id) {
            return reply.fail(&error);
        }
        tokio::task::spawn_blocking(move || {
            let window = call.coalesce_ms.unwrap_or(DEFAULT_COALESCE_MS).min(MAX_COALESCE_MS);
            let window = Duration::from_millis(window);
            match TreeWatch::start(&call.path, call.recursive, window) {
                Ok(watch) => {
                    let (directories, skipped) = (watch.directories(), watch.skipped());
                    // The session may have ended, or `fs/unwatch` may have come first.
                    if let Some(slot) = watches.lock().get_mut(&call.id) {
                        *slot = Some(Arc::new(watch));
                    }
                    reply.ok(&FsWatchResponse { watch_id: call.id, directories, skipped });
                }
                Err(error) => {
                    watches.lock().remove(&call.id);
                    reply.fail(&RequestError::Watch(error));
                }
            }
        });
    }

    /// Answers `fs/readChanges`.
    pub fn read(&self, server: &Server, params: FsReadChangesParams, mut reply: Reply) {
        let watch = self.lock().get(&params.watch_id).cloned().flatten();
        let Some(watch) = watch else {
            return reply.fail(&RequestError::UnknownWatch(params.watch_id));
        };
        server.spawn(async move {
            let wait = Duration::from_millis(params.wait_ms.min(MAX_CHANGES_WAIT_MS));
            // Without a change the answer is empty.
            let _ = tokio::time::timeout(wait, watch.wait_after(params.after_seq)).await;
            if !reply.try_reserve(CHANGES_ROOM)
                && let Err(error) = reply.reserve(CHANGES_ROOM).await
            {
                return reply.fail(&error);
            }
            let found = watch.changes_after(params.after_seq);
            let answer = FsReadChangesResponse { changes: found.changes, ended: found.ended };
            reply.ok_sized(&answer, 0);
        });
    }

    /// Answers `fs/unwatch`.
    pub fn unwatch(&self, params: &FsUnwatchParams, reply: Reply) {
        let watching = self.lock().remove(&params.watch_id).is_some();
        reply.ok(&FsUnwatchResponse { watching });
    }

    /// Ends all watches.
    pub fn clear(&self) {
        self.lock().clear();
    }

    fn reserve(&self, id: &str) -> Result<(), RequestError> {
        let mut watches = self.lock();
        if watches.contains_key(id) {
            return Err(RequestError::DuplicateWatch(id.to_owned()));
        }
        if watches.len() >= MAX_WATCHES {
            return Err(RequestError::TooManyWatches);
        }
        watches.insert(id.to_owned(), None);
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Slot>> {
        self.by_id.lock().expect("no holder panics")
    }
}
