//! Keeps all output of a process in a file without a name, in the state directory.
//!
//! The process task enters output into a [`SpoolIndex`] and collects it in batches; one thread of the server writes the
//! batches (`writer`), so that no event loop waits for a disk. Reads run on blocking threads (`reader`). A failed write
//! ends the spool: what was written stays readable, and the process goes on.

mod reader;
mod writer;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use exec_server_core::output_view::SegmentStart;
use exec_server_core::spool_index::{MIN_SPOOL_BYTES, RecordHeader, SpoolEnd, SpoolIndex};
use exec_server_fs::UnnamedFile;
use exec_server_protocol::limits::MAX_OUTPUT_CHUNK_BYTES;
use exec_server_protocol::process::{OutputSpool, OutputStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::config::ServerLimits;
use crate::errors::RequestError;

pub use reader::SpoolReader;
use writer::{Batch, SharedFile, Writer};

/// Output that is written at once. With one more chunk it stays below the size that the allocator maps separately.
const BATCH_BYTES: usize = 128 << 10;
/// A smaller batch of a closed process stays in memory.
const IDLE_BATCH_BYTES: usize = 16 << 10;
/// The part of the server's budget that a growing spool takes at once.
const GROWTH_BYTES: u64 = 4 << 20;
/// A spool whose disk takes no batch for this long is given up, so that its process goes on.
const STALL_TIME: Duration = Duration::from_secs(5);

/// The spools of a server.
#[derive(Debug)]
pub struct Spools {
    dir: Option<PathBuf>,
    most_per_process: u64,
    budget: Arc<Budget>,
    writer: Writer,
}

impl Spools {
    /// Spools in this state directory.
    pub fn new(state_dir: Option<&Path>, limits: &ServerLimits) -> Self {
        Self {
            dir: state_dir.map(|dir| dir.join("spool")),
            most_per_process: limits.output_spool.max(MIN_SPOOL_BYTES),
            budget: Arc::new(Budget { most: limits.output_spools, used: AtomicU64::new(0) }),
            writer: Writer::default(),
        }
    }

    /// Makes a spool for one process.
    pub async fn open(&self, wanted: OutputSpool) -> Result<Spool, RequestError> {
        let Some(dir) = self.dir.clone() else {
            let why = "this server has no state directory (see --state-dir)";
            return Err(RequestError::SpoolUnavailable(why.to_owned()));
        };
        let unavailable = |error: std::io::Error| RequestError::SpoolUnavailable(error.to_string());
        let room = self.budget.reserve(MIN_SPOOL_BYTES);
        let room = room.ok_or(RequestError::SpoolsFull(self.budget.most))?;
        let writer = self.writer.handle().map_err(unavailable)?;
        let file = tokio::task::spawn_blocking(move || UnnamedFile::create(&dir)).await;
        let file = file.map_err(std::io::Error::other).flatten().map_err(unavailable)?;
        let most = wanted.max_bytes.unwrap_or(u64::MAX);
        Ok(Spool {
            most: most.clamp(MIN_SPOOL_BYTES, self.most_per_process),
            file: SharedFile::new(file),
            index: SpoolIndex::new(MIN_SPOOL_BYTES),
            batch: Vec::new(),
            batch_at: 0,
            writer,
            room,
        })
    }
}

/// The spool of one process.
#[derive(Debug)]
pub struct Spool {
    most: u64,
    file: Arc<SharedFile>,
    index: SpoolIndex,
    /// Records that are not written yet.
    batch: Vec<u8>,
    /// Position of the batch.
    batch_at: u64,
    writer: writer::Handle,
    /// The part of the server's budget that the ring uses.
    room: Reserved,
}

impl Spool {
    /// The largest size of the file.
    pub fn max_bytes(&self) -> u64 {
        self.most
    }

    /// Enters a piece of output.
    pub fn push(&mut self, seq: u64, stream: OutputStream, at_ms: u64, bytes: &[u8]) {
        if self.settle_failure() {
            return;
        }
        if self.index.wants_to_grow(bytes.len()) {
            let most = self.most - self.index.size();
            // Without room the oldest output is evicted.
            let steps = [GROWTH_BYTES, MIN_SPOOL_BYTES].map(|more| more.min(most));
            if let Some(more) = steps.into_iter().find(|more| *more > 0 && self.room.grow(*more)) {
                self.index.grow(self.index.size() + more);
            }
        }
        let position = self.index.append(seq, bytes.len());
        self.file.set_tail(self.index.tail());
        if self.batch.is_empty() {
            self.batch_at = position;
            // A process with little output keeps a small batch.
            if position > 0 {
                self.batch.reserve_exact(BATCH_BYTES + MAX_OUTPUT_CHUNK_BYTES);
            }
        }
        let len = u32::try_from(bytes.len()).expect("a chunk is one bounded read");
        self.batch.extend_from_slice(&RecordHeader { seq, at_ms, len, stream }.encode());
        self.batch.extend_from_slice(bytes);
    }

    /// Whether another piece may be entered; passes a full batch on if the writer has room for it.
    pub fn has_room(&mut self) -> bool {
        if self.batch.len() < BATCH_BYTES || self.settle_failure() {
            return true;
        }
        match self.writer.room.clone().try_acquire_owned() {
            Ok(permit) => self.send(Some(permit)),
            Err(_) => return false,
        }
        true
    }

    /// The writer has room for a batch; none if its disk has stalled.
    pub fn handle_room(&mut self, room: Option<OwnedSemaphorePermit>) {
        match room {
            Some(permit) => self.send(Some(permit)),
            None => {
                self.file.fail("stalled");
                self.settle_failure();
            }
        }
    }

    /// Why the spool has ended.
    pub fn failure(&self) -> Option<&'static str> {
        self.file.failure()
    }

    /// Number of the last output that is no longer kept because of the size; 0 if there is none.
    pub fn evicted_through(&self) -> u64 {
        self.index.evicted_through()
    }

    /// The first output that is kept, if any is.
    pub fn first(&self) -> Option<SegmentStart> {
        self.index.segments().front().map(|first| first.start)
    }

    /// The end of what is kept.
    pub fn end(&mut self) -> SpoolEnd {
        self.settle_failure();
        self.index.place()
    }

    /// The process has closed its streams: a large batch is written, so that it takes no memory.
    pub fn handle_closed(&mut self) {
        if self.batch.len() > IDLE_BATCH_BYTES {
            self.send(None);
        }
    }

    /// A reader of everything that was entered so far.
    pub fn reader(&mut self) -> SpoolReader {
        self.settle_failure();
        if !self.batch.is_empty() {
            // Reads are bounded per connection, so these batches need no room.
            self.send(None);
        }
        SpoolReader::new(self.file.clone(), &self.index, self.writer.flush())
    }

    fn send(&mut self, permit: Option<OwnedSemaphorePermit>) {
        let bytes = std::mem::take(&mut self.batch);
        let (file, position) = (self.file.clone(), self.batch_at);
        let (size, end) = (self.index.size(), self.index.place());
        self.writer.write(Batch { file, position, size, bytes, end, permit });
    }

    /// Whether a write has failed; forgets what was not written.
    fn settle_failure(&mut self) -> bool {
        if self.file.failure().is_none() {
            return false;
        }
        self.batch = Vec::new();
        self.index.truncate(self.file.written());
        true
    }
}

impl Drop for Spool {
    fn drop(&mut self) {
        // Freeing the space can block on the disk.
        self.writer.close(self.file.clone());
    }
}

/// Waits until the writer has room for a batch; none if its disk has stalled.
pub async fn room(spool: Option<&Spool>) -> Option<OwnedSemaphorePermit> {
    let room: Arc<Semaphore> = spool?.writer.room.clone();
    tokio::time::timeout(STALL_TIME, room.acquire_owned()).await.ok()?.ok()
}

/// Bytes that all spools of a server may use.
#[derive(Debug)]
struct Budget {
    most: u64,
    used: AtomicU64,
}

impl Budget {
    fn reserve(self: &Arc<Self>, bytes: u64) -> Option<Reserved> {
        let mut reserved = Reserved { budget: self.clone(), bytes: 0 };
        reserved.grow(bytes).then_some(reserved)
    }
}

/// A part of the budget; given back on drop.
#[derive(Debug)]
struct Reserved {
    budget: Arc<Budget>,
    bytes: u64,
}

impl Reserved {
    fn grow(&mut self, more: u64) -> bool {
        let Budget { most, used } = &*self.budget;
        let add = |used: u64| used.checked_add(more).filter(|sum| sum <= most);
        let is_granted = used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).is_ok();
        self.bytes += if is_granted { more } else { 0 };
        is_granted
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use exec_server_core::output_view::OutputSource;

    use super::*;

    #[tokio::test]
    async fn a_disk_that_stalls_ends_the_spool_and_what_was_written_stays() {
        let state = tempfile::tempdir().unwrap();
        let spools = Spools::new(Some(state.path()), &ServerLimits::default());
        let mut spool = spools.open(OutputSpool::default()).await.unwrap();
        spool.push(1, OutputStream::Stdout, 0, b"written\n");
        spool.reader().flushed().await;
        // As if all batches that may wait were waiting for the disk.
        let room = spool.writer.room.clone();
        let free = u32::try_from(room.available_permits()).unwrap();
        let _waiting = room.acquire_many_owned(free).await.unwrap();
        let lost = [0; MAX_OUTPUT_CHUNK_BYTES];
        let mut seq = 1;
        while spool.has_room() {
            seq += 1;
            spool.push(seq, OutputStream::Stdout, 0, &lost);
        }
        spool.handle_room(None);
        assert_eq!(spool.failure(), Some("stalled"));
        // The process goes on, and its output is no longer entered.
        spool.push(seq + 1, OutputStream::Stdout, 0, &lost);
        assert!(spool.has_room());
        assert_eq!(spool.end().offset, 8);
        let mut reader = spool.reader();
        reader.flushed().await;
        let records: Vec<_> =
            (0..reader.segments().len()).flat_map(|index| reader.load(index).unwrap()).collect();
        assert_eq!(records.len(), 1);
        assert_eq!(records[0].bytes, b"written\n");
    }
}
