//! The bounded queue between the threads of a search and its reader, and what they count together.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use exec_server_protocol::fs::{FsFoundEntry, FsSearchMatch, FsWalkError};
use exec_server_protocol::path_uri::PathUri;

use super::walk::path_uri;

/// Memory of items that wait for the reader: the searches of a connection that reads nothing have 8 MiB together.
const MAX_QUEUED_BYTES: usize = 1024 * 1024;
/// Items are sent in batches, so that threads seldom wait for each other.
const BATCH_BYTES: usize = 64 * 1024;
/// Paths that could not be read and are named.
const MAX_ERRORS: usize = 100;

/// One thing that was found.
#[derive(Debug)]
pub enum Item {
    Match(Box<FsSearchMatch>),
    File(PathUri),
    Binary(PathUri),
    Entry(FsFoundEntry),
}

impl Item {
    /// Memory that it takes, about.
    fn memory(&self) -> usize {
        // Each text is an allocation of its own.
        const ALLOCATIONS: usize = 64;
        let boxed = if let Self::Match(_) = self { size_of::<FsSearchMatch>() } else { 0 };
        self.weight() + size_of::<Self>() + boxed + ALLOCATIONS
    }

    /// The bytes that count against the limits.
    pub fn weight(&self) -> usize {
        match self {
            Self::Match(found) => {
                let lines = found.before.iter().chain(&found.after);
                let context: usize = lines.map(|line| line.len() + AROUND_BYTES).sum();
                let exact = found.text_base64.as_ref().map_or(0, |text| text.0.len() * 2);
                let ranges = found.ranges.len() * AROUND_BYTES;
                let text = found.text.len() + exact + context + ranges;
                found.path.as_str().len() + text + 4 * AROUND_BYTES
            }
            Self::File(path) | Self::Binary(path) => path.as_str().len() + AROUND_BYTES,
            Self::Entry(entry) => entry.path.as_str().len() + 3 * AROUND_BYTES,
        }
    }
}

/// What an item costs in JSON beside its text.
const AROUND_BYTES: usize = 16;

/// Items on their way into the queue.
#[derive(Debug, Default)]
pub struct Batch {
    pub items: Vec<Item>,
    bytes: usize,
    /// When the oldest item was found.
    since: Option<Instant>,
}

/// A batch is kept for so long: each one wakes the reader.
const MAX_AGE: Duration = Duration::from_millis(5);

/// What a thread publishes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Publish {
    /// A batch that is full, or old enough.
    Due,
    All,
}

impl Batch {
    pub fn push(&mut self, item: Item) {
        self.bytes += item.memory();
        self.items.push(item);
    }

    pub fn is_full(&self) -> bool {
        self.bytes >= BATCH_BYTES
    }
}

/// State that the threads of a search and its reader share.
#[derive(Debug)]
pub struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    is_cancelled: AtomicBool,
    pub deadline: Instant,
    pub visited: AtomicU64,
    pub binary: AtomicU64,
    errors: Mutex<Errors>,
}

#[derive(Debug, Default)]
struct State {
    batches: VecDeque<Batch>,
    /// Memory of the batches.
    bytes: usize,
    is_finished: bool,
}

#[derive(Debug, Default)]
struct Errors {
    count: u64,
    named: usize,
    waiting: Vec<FsWalkError>,
}

/// What the reader got from the queue.
pub enum Popped {
    Items(Vec<Item>),
    /// Nothing more will come.
    Finished,
    /// Nothing has come in time.
    Late,
}

impl Shared {
    pub fn new(deadline: Instant) -> Self {
        Self {
            state: Mutex::default(),
            changed: Condvar::new(),
            is_cancelled: AtomicBool::new(false),
            deadline,
            visited: AtomicU64::new(0),
            binary: AtomicU64::new(0),
            errors: Mutex::default(),
        }
    }

    /// Whether the threads are to stop.
    pub fn is_over(&self) -> bool {
        self.is_over_at(Instant::now())
    }

    fn is_over_at(&self, now: Instant) -> bool {
        self.is_cancelled.load(Ordering::Relaxed) || now >= self.deadline
    }

    pub fn cancel(&self) {
        self.is_cancelled.store(true, Ordering::Relaxed);
        // Taken, so that a thread between its check and its wait does not miss the signal.
        drop(self.lock());
        self.changed.notify_all();
    }

    /// Called when all threads have ended.
    pub fn finish(&self) {
        self.lock().is_finished = true;
        self.changed.notify_all();
    }

    pub fn is_finished(&self) -> bool {
        let state = self.lock();
        state.is_finished && state.batches.is_empty()
    }

    /// Queues a batch unless it may wait for more. Whether the thread goes on.
    pub fn publish(&self, batch: &mut Batch, what: Publish) -> bool {
        let now = Instant::now();
        if batch.items.is_empty() {
            batch.since = None;
        } else {
            let since = *batch.since.get_or_insert(now);
            if what == Publish::All || batch.is_full() || now.duration_since(since) >= MAX_AGE {
                return self.push(batch);
            }
        }
        !self.is_over_at(now)
    }

    /// Queues a batch; waits for room. Whether the thread goes on.
    pub fn push(&self, batch: &mut Batch) -> bool {
        let batch = std::mem::take(batch);
        if batch.items.is_empty() {
            return !self.is_over();
        }
        let mut state = self.lock();
        while state.bytes >= MAX_QUEUED_BYTES && !self.is_over() {
            let left = self.deadline.saturating_duration_since(Instant::now());
            state = self.changed.wait_timeout(state, left).expect("no holder panics").0;
        }
        if self.is_over() {
            return false;
        }
        state.bytes += batch.bytes;
        state.batches.push_back(batch);
        self.changed.notify_all();
        true
    }

    /// The next batch; waits until `until`.
    pub fn pop(&self, until: Instant) -> Popped {
        let mut state = self.lock();
        loop {
            if let Some(batch) = state.batches.pop_front() {
                state.bytes -= batch.bytes;
                self.changed.notify_all();
                return Popped::Items(batch.items);
            }
            let left = until.min(self.deadline).saturating_duration_since(Instant::now());
            if state.is_finished || self.is_cancelled.load(Ordering::Relaxed) {
                return Popped::Finished;
            }
            if left.is_zero() {
                return Popped::Late;
            }
            state = self.changed.wait_timeout(state, left).expect("no holder panics").0;
        }
    }

    /// Records a path that could not be read.
    pub fn note_error(&self, path: &Path, message: String) {
        let mut errors = self.errors.lock().expect("no holder panics");
        errors.count += 1;
        if errors.named < MAX_ERRORS {
            errors.named += 1;
            errors.waiting.push(FsWalkError { path: path_uri(path), message });
        }
    }

    /// The errors since the last call, and the number of all.
    pub fn take_errors(&self) -> (Vec<FsWalkError>, u64) {
        let mut errors = self.errors.lock().expect("no holder panics");
        (std::mem::take(&mut errors.waiting), errors.count)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder panics")
    }
}
