//! The numbered changes that the reader has not acknowledged.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};

use exec_server_protocol::fs::{ChangeKind, FsChange};
use exec_server_protocol::limits::MAX_PAGE_BYTES;
use tokio::sync::Notify;

use super::super::search::path_uri;
use super::staged::Staged;
use crate::tree_watch::{Changes, ChangesRoom, RoomShare};

/// Unread changes; a reader that is further behind gets one `rescan`.
const MAX_CHANGES: usize = 16_384;

/// What a change costs beside its names, as JSON or in memory.
const AROUND_BYTES: usize = 96;

/// The log of one watch.
#[derive(Debug)]
pub struct Log {
    root: PathBuf,
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug)]
struct State {
    room: RoomShare,
    changes: VecDeque<Logged>,
    last_seq: u64,
    /// Whether changes came while the log was full; the reader gets a `rescan` once there is room.
    has_dropped: bool,
    is_ended: bool,
}

#[derive(Debug)]
struct Logged {
    change: FsChange,
    /// What it has taken of the room.
    taken: usize,
}

impl Log {
    pub fn new(root: &Path, room: &ChangesRoom) -> Self {
        let state = State {
            room: room.share(),
            changes: VecDeque::new(),
            last_seq: 0,
            has_dropped: false,
            is_ended: false,
        };
        Self { root: root.to_owned(), state: Mutex::new(state), changed: Notify::new() }
    }

    /// Numbers the changes of a window.
    pub fn commit(&self, staged: &mut Staged) {
        let mut state = self.lock();
        match staged.take() {
            Some(changes) => {
                for change in changes {
                    let (path, from) = (&change.path, change.from.as_deref());
                    if state.has_dropped || !state.try_push(change.kind, path, from) {
                        state.has_dropped = true;
                        break;
                    }
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
        state.forget(seq);
        if state.has_dropped && state.try_push(ChangeKind::Rescan, &self.root, None) {
            state.has_dropped = false;
        }
        let mut bytes = 0;
        let mut changes = Vec::new();
        for Logged { change, .. } in &state.changes {
            let cost = cost(change);
            if bytes + cost > MAX_PAGE_BYTES {
                break;
            }
            bytes += cost;
            changes.push(change.clone());
        }
        let is_all = !state.has_dropped && changes.len() == state.changes.len();
        Changes { changes, ended: state.is_ended && is_all, bytes }
    }

    pub async fn wait_after(&self, seq: u64) {
        loop {
            let changed = self.changed.notified();
            {
                let state = self.lock();
                let last = state.changes.back();
                let has_more = last.is_some_and(|last| last.change.seq > seq);
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
    /// Whether there was room for the change. There always is for the first one, so that no reader waits for others.
    fn try_push(&mut self, kind: ChangeKind, path: &Path, from: Option<&Path>) -> bool {
        if self.changes.len() >= MAX_CHANGES {
            return false;
        }
        let seq = self.last_seq + 1;
        let change = FsChange { seq, kind, path: path_uri(path), from: from.map(path_uri) };
        let mut taken = cost(&change);
        if !self.room.try_take(taken) {
            if !self.changes.is_empty() {
                return false;
            }
            taken = 0;
        }
        self.last_seq = seq;
        self.changes.push_back(Logged { change, taken });
        true
    }

    fn forget(&mut self, seq: u64) {
        while self.changes.front().is_some_and(|first| first.change.seq <= seq) {
            let taken = self.changes.pop_front().map_or(0, |first| first.taken);
            self.room.give_back(taken);
        }
    }
}

/// Upper bound of the size of a change, as JSON and in memory.
fn cost(change: &FsChange) -> usize {
    let from = change.from.as_ref().map_or(0, |from| from.as_str().len());
    change.path.as_str().len() + from + AROUND_BYTES
}
