//! The numbered changes that the reader has not acknowledged.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};

use exec_server_protocol::fs::{ChangeKind, FsChange};
use exec_server_protocol::path_uri::PathUri;
use tokio::sync::Notify;

use super::super::search::path_uri;
use super::staged::Staged;
use crate::tree_watch::Changes;

/// Unread changes; a reader that is further behind gets one `rescan`.
const MAX_CHANGES: usize = 16_384;

/// The log of one watch.
#[derive(Debug)]
pub struct Log {
    root: PathBuf,
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    changes: VecDeque<FsChange>,
    last_seq: u64,
    /// Whether changes came while the log was full; the reader gets a `rescan` once there is room.
    has_dropped: bool,
    is_ended: bool,
}

impl Log {
    pub fn new(root: &Path) -> Self {
        Self { root: root.to_owned(), state: Mutex::default(), changed: Notify::new() }
    }

    /// Numbers the changes of a window.
    pub fn commit(&self, staged: &mut Staged) {
        let mut state = self.lock();
        match staged.take() {
            Some(changes) => {
                for change in changes {
                    if state.has_dropped || state.changes.len() >= MAX_CHANGES {
                        state.has_dropped = true;
                        break;
                    }
                    let from = change.from.as_deref().map(path_uri);
                    state.push(change.kind, &change.path, from);
                }
            }
            None => state.has_dropped = true,
        }
        drop(state);
        self.changed.notify_waiters();
    }

    pub fn end(&self) {
        self.lock().is_ended = true;
        self.changed.notify_waiters();
    }

    pub fn read_after(&self, seq: u64) -> Changes {
        let mut state = self.lock();
        while state.changes.front().is_some_and(|change| change.seq <= seq) {
            state.changes.pop_front();
        }
        if state.has_dropped && state.changes.len() < MAX_CHANGES {
            state.has_dropped = false;
            state.push(ChangeKind::Rescan, &self.root, None);
        }
        Changes { changes: state.changes.iter().cloned().collect(), ended: state.is_ended }
    }

    pub async fn wait_after(&self, seq: u64) {
        loop {
            let changed = self.changed.notified();
            {
                let state = self.lock();
                let has_more = state.changes.back().is_some_and(|change| change.seq > seq);
                if state.is_ended || state.has_dropped || has_more {
                    return;
                }
            }
            changed.await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder panics")
    }
}

impl State {
    fn push(&mut self, kind: ChangeKind, path: &Path, from: Option<PathUri>) {
        self.last_seq += 1;
        self.changes.push_back(FsChange { seq: self.last_seq, kind, path: path_uri(path), from });
    }
}
