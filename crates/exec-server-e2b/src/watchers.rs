//! Watches of directories: as a stream, and as watchers that are asked for their events.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use exec_server_client::protocol::fs::{ChangeKind, FsChange};
use exec_server_client::{ExecutorFileSystem, TreeWatch};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::task::AbortHandle;

use crate::connect::{Deadline, Sink};
use crate::file_metadata::FileMetadata;
use crate::paths::{text_of, uri_of};
use crate::refusal::{Code, Refusal};
use crate::users::UserFiles;
use crate::{Shared, entry};

/// Events that wait to be asked for; beyond it they are lost, and the next question says so.
const MAX_EVENTS: usize = 16_384;
/// A stream without events sends a message this often, so that a dead reader is noticed.
const KEEPALIVE: Duration = Duration::from_secs(50);

/// Params of `WatchDir` and `CreateWatcher`.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct WatchParams {
    path: String,
    recursive: bool,
    include_entry: bool,
    allow_network_mounts: bool,
}

/// The watchers by their id.
#[derive(Default)]
pub struct Watchers {
    by_id: Mutex<BTreeMap<String, Watcher>>,
}

struct Watcher {
    sandbox: String,
    collected: Arc<Mutex<Collected>>,
    includes_entry: bool,
    task: AbortHandle,
}

#[derive(Default)]
struct Collected {
    events: Vec<Event>,
    failure: Option<Refusal>,
}

/// A watch that has begun.
pub struct Watch {
    tree: TreeWatch,
    root: String,
    fs: ExecutorFileSystem,
    metadata: Arc<FileMetadata>,
    includes_entry: bool,
}

/// A change with its path.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Event {
    name: String,
    kind: &'static str,
    path: String,
}

impl Shared {
    /// Begins to watch a directory.
    pub async fn start_watch(
        &self,
        files: &UserFiles<'_>,
        params: &WatchParams,
    ) -> Result<Watch, Refusal> {
        let path = files.absolute(&params.path).await?;
        let found = files.fs.metadata(uri_of(&path)).await?;
        if !found.is_directory {
            return Err(Refusal::invalid(format!("path is not a directory: {path}")));
        }
        let watched = files.fs.watch(uri_of(&path), params.recursive).await;
        let tree = watched.map_err(|error| match error.kind() {
            Some("unwatchable") if params.allow_network_mounts => Refusal::unimplemented(format!(
                "{path} is on a file system that does not report changes, also with allow_network_mounts"
            )),
            _ => error.into(),
        })?;
        Ok(Watch {
            tree,
            root: path,
            fs: files.fs.clone(),
            metadata: self.metadata.clone(),
            includes_entry: params.include_entry,
        })
    }

    /// Begins to collect events.
    pub async fn create_watcher(
        &self,
        sandbox: &str,
        files: &UserFiles<'_>,
        params: &WatchParams,
    ) -> Result<String, Refusal> {
        let watch = self.start_watch(files, params).await?;
        Ok(self.watchers.add(sandbox, watch))
    }

    /// The events since the last question.
    pub async fn watcher_events(
        &self,
        files: &UserFiles<'_>,
        sandbox: &str,
        id: &str,
    ) -> Result<Value, Refusal> {
        let (events, includes_entry) = self.watchers.take(sandbox, id)?;
        let mut told = Vec::new();
        for event in events {
            told.push(describe(&files.fs, &event, includes_entry, &self.metadata).await);
        }
        Ok(json!({"events": told}))
    }
}

impl Watchers {
    fn add(&self, sandbox: &str, watch: Watch) -> String {
        let id = uuid::Uuid::new_v4().simple().to_string();
        let collected = Arc::new(Mutex::new(Collected::default()));
        let includes_entry = watch.includes_entry;
        let task = tokio::spawn(collect(watch, collected.clone())).abort_handle();
        let watcher = Watcher { sandbox: sandbox.to_owned(), collected, includes_entry, task };
        self.lock().insert(id.clone(), watcher);
        id
    }

    fn take(&self, sandbox: &str, id: &str) -> Result<(Vec<Event>, bool), Refusal> {
        let watchers = self.lock();
        let watcher = watchers.get(id).filter(|watcher| watcher.sandbox == sandbox);
        let watcher = watcher.ok_or_else(|| unknown(id))?;
        let mut collected = watcher.collected.lock().expect("no holder panics");
        if collected.events.is_empty()
            && let Some(failure) = collected.failure.take()
        {
            return Err(failure);
        }
        Ok((std::mem::take(&mut collected.events), watcher.includes_entry))
    }

    /// Ends a watcher.
    pub fn remove(&self, sandbox: &str, id: &str) -> Result<(), Refusal> {
        let mut watchers = self.lock();
        if watchers.get(id).is_none_or(|watcher| watcher.sandbox != sandbox) {
            return Err(unknown(id));
        }
        watchers.remove(id).expect("checked above").task.abort();
        Ok(())
    }

    /// Ends the watchers of a sandbox.
    pub fn end_of(&self, sandbox: &str) {
        self.lock().retain(|_, watcher| {
            if watcher.sandbox == sandbox {
                watcher.task.abort();
            }
            watcher.sandbox != sandbox
        });
    }

    /// Ends all watchers.
    pub fn end_all(&self) {
        for watcher in std::mem::take(&mut *self.lock()).into_values() {
            watcher.task.abort();
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Watcher>> {
        self.by_id.lock().expect("no holder panics")
    }
}

fn unknown(id: &str) -> Refusal {
    Refusal::new(Code::NotFound, format!("watcher with id {id} not found"))
}

async fn collect(mut watch: Watch, collected: Arc<Mutex<Collected>>) {
    loop {
        let found = watch.next().await;
        let mut collected = collected.lock().expect("no holder panics");
        match found {
            Ok(Some(events)) => {
                let room = MAX_EVENTS - collected.events.len();
                if events.len() > room {
                    collected.failure.get_or_insert_with(lost);
                }
                collected.events.extend(events.into_iter().take(room));
            }
            Ok(None) => return,
            Err(refusal) => {
                collected.failure = Some(refusal.clone());
                if refusal.code != Code::DataLoss {
                    return;
                }
            }
        }
    }
}

fn lost() -> Refusal {
    Refusal::new(Code::DataLoss, "changes were lost; look again at the whole directory")
}

/// Sends events until the watched directory is gone, the deadline, or the reader is gone.
pub async fn pump(mut watch: Watch, sink: Sink, deadline: Deadline) {
    let work = async {
        sink.send(&json!({"start": {}})).await;
        loop {
            let found = match tokio::time::timeout(KEEPALIVE, watch.next()).await {
                Ok(found) => found?,
                Err(_) => {
                    sink.send(&json!({"keepalive": {}})).await;
                    continue;
                }
            };
            let Some(events) = found else { return Ok(()) };
            for event in events {
                let told = describe(&watch.fs, &event, watch.includes_entry, &watch.metadata).await;
                sink.send(&json!({"filesystem": told})).await;
            }
        }
    };
    let result = tokio::select! {
        biased;
        result = work => result,
        () = sink.closed() => return,
        () = deadline.passed() => Err(Deadline::refusal()),
    };
    sink.finish(result).await;
}

impl Watch {
    /// The next events; none after the directory is gone. Cancelling it loses nothing.
    async fn next(&mut self) -> Result<Option<Vec<Event>>, Refusal> {
        let Some(changes) = self.tree.next().await? else { return Ok(None) };
        if changes.iter().any(|change| change.kind == ChangeKind::Rescan) {
            return Err(lost());
        }
        Ok(Some(changes.iter().flat_map(|change| events_of(change, &self.root)).collect()))
    }
}

/// A rename is two events: the old name is gone, and the new one is there.
fn events_of(change: &FsChange, root: &str) -> Vec<Event> {
    let event = |kind, path: String| {
        let name = path.strip_prefix(root).unwrap_or(&path).trim_start_matches('/').to_owned();
        Event { name, kind, path }
    };
    let path = text_of(&change.path);
    match change.kind {
        ChangeKind::Create => vec![event("EVENT_TYPE_CREATE", path)],
        ChangeKind::Write => vec![event("EVENT_TYPE_WRITE", path)],
        ChangeKind::Remove => vec![event("EVENT_TYPE_REMOVE", path)],
        ChangeKind::Chmod => vec![event("EVENT_TYPE_CHMOD", path)],
        ChangeKind::Rename => {
            let mut events = Vec::new();
            events
                .extend(change.from.as_ref().map(|from| event("EVENT_TYPE_RENAME", text_of(from))));
            events.push(event("EVENT_TYPE_CREATE", path));
            events
        }
        ChangeKind::Rescan => Vec::new(),
    }
}

/// The event, with its entry if it is wanted and still there.
async fn describe(
    fs: &ExecutorFileSystem,
    event: &Event,
    includes_entry: bool,
    metadata: &FileMetadata,
) -> Value {
    let mut told = json!({"name": event.name, "type": event.kind});
    if includes_entry && let Ok(entry) = entry::stat(fs, &event.path, metadata).await {
        told["entry"] = entry;
    }
    told
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rename_is_told_as_two_events_with_relative_names() {
        let change = FsChange {
            seq: 1,
            kind: ChangeKind::Rename,
            path: uri_of("/watched/sub/new"),
            from: Some(uri_of("/watched/old")),
        };
        let told: Vec<_> = events_of(&change, "/watched")
            .into_iter()
            .map(|event| (event.kind, event.name))
            .collect();
        assert_eq!(
            told,
            [("EVENT_TYPE_RENAME", "old".to_owned()), ("EVENT_TYPE_CREATE", "sub/new".to_owned())]
        );
    }
}
