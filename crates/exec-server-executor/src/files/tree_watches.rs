//! `fs/watch`, `fs/readChanges` and `fs/unwatch`: the watches of one session, which outlive its connections.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use exec_server_fs::FsError;
use exec_server_fs::tree_watch::{Changes, ChangesRoom, TreeWatch, WatchError, WatchSpec};
use exec_server_protocol::fs::{
    FsReadChangesParams, FsReadChangesResponse, FsUnwatchParams, FsUnwatchResponse, FsWatchResponse,
};
use exec_server_protocol::limits::{MAX_CHANGES_WAIT_MS, MAX_PAGE_BYTES, MAX_WATCHES};
use exec_server_sandbox::Watching;

use super::workers::Warm;
use super::{Guard, Scope};
use crate::dispatch::Caller;
use crate::errors::RequestError;
use crate::reply::Reply;
use crate::server::Server;

/// `fs/watch` with decoded params.
#[derive(Debug)]
pub struct WatchCall {
    pub id: String,
    pub spec: WatchSpec,
    pub scope: Scope,
}

/// The watches of one session.
#[derive(Debug, Default)]
pub struct TreeWatches {
    by_id: Mutex<HashMap<String, Slot>>,
    /// For the changes of local watches; each worker has its own.
    room: ChangesRoom,
}

/// None while the watch is being set up.
type Slot = Option<Arc<Source>>;

#[derive(Debug)]
enum Source {
    /// A thread of this process.
    Local(TreeWatch),
    /// A worker of its own, confined or with the rights of a user.
    Confined(ConfinedWatch),
}

#[derive(Debug)]
struct ConfinedWatch {
    warm: Warm,
    /// Held by the one reader that waits in the worker; the others wait for the lock, and can give up in time.
    turn: tokio::sync::Mutex<()>,
}

/// A worker answers one request at a time, so a reader that waits lets others in between.
const TURN: Duration = Duration::from_millis(250);

/// Memory of an answer: its text in the reply, and its parts before that.
const CHANGES_ROOM: usize = 2 * MAX_PAGE_BYTES;

impl TreeWatches {
    /// Answers `fs/watch`.
    pub fn watch(caller: &Caller, call: WatchCall, guard: Option<Guard>, reply: Reply) {
        let watches = caller.session.watches().clone();
        if let Err(error) = watches.reserve(&call.id) {
            return reply.fail(&error);
        }
        caller.server.spawn(async move {
            let WatchCall { id, spec, .. } = call;
            let started = match guard {
                Some(guard) => start_confined(spec, &guard).await,
                None => start_local(spec, watches.room.clone()).await,
            };
            match started {
                Ok((source, Watching { directories, skipped })) => {
                    // The session may have ended, or `fs/unwatch` may have come first.
                    if let Some(slot) = watches.lock().get_mut(&id) {
                        *slot = Some(Arc::new(source));
                    }
                    reply.ok(&FsWatchResponse { watch_id: id, directories, skipped });
                }
                Err(error) => {
                    watches.lock().remove(&id);
                    reply.fail(&error);
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
            watch.wait_after(params.after_seq, wait).await;
            if !reply.try_reserve(CHANGES_ROOM)
                && let Err(error) = reply.reserve(CHANGES_ROOM).await
            {
                return reply.fail(&error);
            }
            watch.answer(params.after_seq, reply).await;
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

impl Source {
    /// Waits until there is something to read after `seq`, for up to `wait`.
    async fn wait_after(&self, seq: u64, wait: Duration) {
        match self {
            Self::Local(watch) => {
                // Without a change the answer is empty.
                let _ = tokio::time::timeout(wait, watch.wait_after(seq)).await;
            }
            Self::Confined(watch) => watch.wait_after(seq, wait).await,
        }
    }

    /// Sends what is there to read after `seq`.
    async fn answer(&self, seq: u64, reply: Reply) {
        match self {
            Self::Local(watch) => {
                let Changes { changes, ended, bytes } = watch.changes_after(seq);
                reply.ok_sized(&FsReadChangesResponse { changes, ended }, bytes);
            }
            Self::Confined(watch) => match watch.warm.worker().read_changes(seq).await {
                Ok(answer) => match reply.begin_text(answer.len()) {
                    Ok(mut text) => {
                        text.push(&answer);
                        reply.ok_text(text);
                    }
                    Err(error) => reply.fail(&error),
                },
                Err(error) => {
                    tracing::debug!(%error, "the worker of a watch has exited");
                    reply.ok(&FsReadChangesResponse { changes: Vec::new(), ended: true });
                }
            },
        }
    }
}

impl ConfinedWatch {
    async fn wait_after(&self, seq: u64, wait: Duration) {
        let until = tokio::time::Instant::now() + wait;
        loop {
            let left = until.saturating_duration_since(tokio::time::Instant::now());
            if left.is_zero() {
                return;
            }
            let Ok(_turn) = tokio::time::timeout_at(until, self.turn.lock()).await else { return };
            // A worker that has exited watches nothing any more.
            let is_changed = self.warm.worker().await_changes(seq, left.min(TURN)).await;
            if is_changed.unwrap_or(true) {
                return;
            }
        }
    }
}

async fn start_local(
    spec: WatchSpec,
    room: ChangesRoom,
) -> Result<(Source, Watching), RequestError> {
    let started = tokio::task::spawn_blocking(move || TreeWatch::start(&spec, &room)).await;
    let watch = started.map_err(|_| RequestError::Abandoned)?.map_err(RequestError::Watch)?;
    let watching = Watching { directories: watch.directories(), skipped: watch.skipped() };
    Ok((Source::Local(watch), watching))
}

async fn start_confined(
    spec: WatchSpec,
    guard: &Guard,
) -> Result<(Source, Watching), RequestError> {
    let warm = guard.start_alone().await?;
    let watching = warm.worker().watch(spec).await.map_err(|error| match error {
        WatchError::Path(source) => guard.error(FsError::System(source)),
        error => RequestError::Watch(error),
    })?;
    let turn = tokio::sync::Mutex::default();
    Ok((Source::Confined(ConfinedWatch { warm, turn }), watching))
}
