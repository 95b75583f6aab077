//! The thread that writes the batches of all spools.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, mpsc};

use exec_server_core::spool_index::SpoolEnd;
use exec_server_fs::UnnamedFile;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

/// Batches that wait for the disk, over all processes: about 6 MiB of memory.
const MAX_WAITING: usize = 32;

/// Starts the thread with the first spool.
#[derive(Debug, Default)]
pub struct Writer(Mutex<Option<Handle>>);

/// Passes batches to the thread; cheap to clone.
#[derive(Debug, Clone)]
pub struct Handle {
    jobs: mpsc::Sender<Job>,
    /// Permits for batches.
    pub room: Arc<Semaphore>,
}

/// Records that follow each other in a spool.
#[derive(Debug)]
pub struct Batch {
    pub file: Arc<SharedFile>,
    pub position: u64,
    /// Size of the ring.
    pub size: u64,
    pub bytes: Vec<u8>,
    /// The end of the spool with this batch.
    pub end: SpoolEnd,
    /// Released when the batch is written.
    pub permit: Option<OwnedSemaphorePermit>,
}

#[derive(Debug)]
enum Job {
    Write(Batch),
    /// Answered when all earlier batches are written.
    Flush(oneshot::Sender<()>),
    Close(Arc<SharedFile>),
}

impl Writer {
    pub fn handle(&self) -> io::Result<Handle> {
        let mut handle = self.0.lock().expect("no holder panics");
        if let Some(handle) = &*handle {
            return Ok(handle.clone());
        }
        let (jobs, queue) = mpsc::channel();
        std::thread::Builder::new().name("spool".to_owned()).spawn(move || run(&queue))?;
        let room = Arc::new(Semaphore::new(MAX_WAITING));
        Ok(handle.insert(Handle { jobs, room }).clone())
    }
}

impl Handle {
    pub fn write(&self, batch: Batch) {
        self.send(Job::Write(batch));
    }

    pub fn flush(&self) -> oneshot::Receiver<()> {
        let (done, flushed) = oneshot::channel();
        self.send(Job::Flush(done));
        flushed
    }

    pub fn close(&self, file: Arc<SharedFile>) {
        self.send(Job::Close(file));
    }

    fn send(&self, job: Job) {
        // The thread ends after the last handle.
        let _ = self.jobs.send(job);
    }
}

fn run(queue: &mpsc::Receiver<Job>) {
    while let Ok(job) = queue.recv() {
        match job {
            Job::Write(batch) => batch.write(),
            Job::Flush(done) => drop(done.send(())),
            Job::Close(file) => drop(file),
        }
    }
}

impl Batch {
    fn write(self) {
        let Self { file, position, size, bytes, end, permit } = self;
        if file.failure().is_none() {
            match write_ring(&file.file, &bytes, position, size) {
                Ok(()) => *file.written.lock().expect("no holder panics") = end,
                Err(error) => {
                    tracing::warn!(%error, "cannot write an output spool; later output of the process is kept in memory only");
                    file.fail(failure_kind(&error));
                }
            }
        }
        drop(permit);
    }
}

fn write_ring(file: &UnnamedFile, bytes: &[u8], position: u64, size: u64) -> io::Result<()> {
    let place = position % size;
    let until_end = usize::try_from(size - place).unwrap_or(usize::MAX).min(bytes.len());
    file.write_at(&bytes[..until_end], place)?;
    if until_end < bytes.len() {
        file.write_at(&bytes[until_end..], 0)?;
    }
    Ok(())
}

fn failure_kind(error: &io::Error) -> &'static str {
    match exec_server_os::errno_name(error) {
        Some("ENOSPC" | "EDQUOT") => "no_space",
        Some("EFBIG") => "file_size_limit",
        _ => "file_system",
    }
}

/// A spool file, shared by the process task, the writer and readers.
#[derive(Debug)]
pub struct SharedFile {
    file: UnnamedFile,
    /// Everything below was overwritten, or may be at any time.
    tail: AtomicU64,
    /// Everything before was written.
    written: Mutex<SpoolEnd>,
    failure: OnceLock<&'static str>,
}

impl SharedFile {
    pub fn new(file: UnnamedFile) -> Arc<Self> {
        let (tail, written) = Default::default();
        Arc::new(Self { file, tail, written, failure: OnceLock::new() })
    }

    pub fn set_tail(&self, tail: u64) {
        self.tail.store(tail, Ordering::Release);
    }

    pub fn written(&self) -> SpoolEnd {
        *self.written.lock().expect("no holder panics")
    }

    pub fn failure(&self) -> Option<&'static str> {
        self.failure.get().copied()
    }

    /// The first failure stays.
    pub fn fail(&self, kind: &'static str) {
        let _ = self.failure.set(kind);
    }

    /// Reads from a ring of this size; `None` if the part was overwritten meanwhile.
    pub fn read(&self, position: u64, len: usize, size: u64) -> io::Result<Option<Vec<u8>>> {
        let mut bytes = vec![0; len];
        let place = position % size;
        let until_end = usize::try_from(size - place).unwrap_or(usize::MAX).min(len);
        self.file.read_at(&mut bytes[..until_end], place)?;
        if until_end < len {
            self.file.read_at(&mut bytes[until_end..], 0)?;
        }
        // The tail moves before the writer gets the batch that overwrites it.
        Ok((self.tail.load(Ordering::Acquire) <= position).then_some(bytes))
    }
}
