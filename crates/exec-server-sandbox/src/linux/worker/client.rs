//! The server's client for a confined file worker.

use std::fs::File;
use std::future::poll_fn;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Poll, ready};
use std::time::Duration;

use exec_server_fs::{FsError, FsReply, FsRequest, OpenFile};
use exec_server_os::linux::register;
use rustix::fs::{OFlags, fcntl_getfl};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::Mutex;

use super::wire::{Arrived, Arriving, Outgoing, WorkerReply, WorkerRequest};
use exec_server_fs::search::{PageText, SearchSpec};
use exec_server_fs::tree_watch::{WatchError, WatchSpec};

use crate::children::{Watching, WorkerOutcome};

/// A file worker process in a sandbox; it exits when this is dropped.
#[derive(Debug)]
pub struct FileWorker {
    /// `None` while a call is in progress: a cancelled call leaves the socket in the middle of a frame.
    socket: Mutex<Option<AsyncFd<OwnedFd>>>,
    calls: AtomicUsize,
}

/// A staged file inside a sandbox: the server fills it, the worker publishes it.
#[derive(Debug)]
pub struct ConfinedFile {
    file: File,
    id: u64,
    worker: Arc<FileWorker>,
}

/// A worker is replaced after this many calls, which bounds leaks.
const MAX_CALLS: usize = 1000;

impl FileWorker {
    /// Takes over the socket to a worker; requires a running event loop.
    pub fn new(socket: OwnedFd) -> io::Result<Self> {
        let socket = register(socket, Interest::READABLE)?;
        Ok(Self { socket: Mutex::new(Some(socket)), calls: AtomicUsize::new(0) })
    }

    /// Whether the worker should be replaced.
    pub fn is_worn(&self) -> bool {
        let is_broken = self.socket.try_lock().is_ok_and(|socket| socket.is_none());
        is_broken || self.calls.load(Ordering::Relaxed) >= MAX_CALLS
    }

    /// Performs a request inside the sandbox.
    pub async fn perform(self: &Arc<Self>, request: FsRequest) -> Result<WorkerOutcome, FsError> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let (reply, mut fds) = self.call(&WorkerRequest::Perform(request)).await?;
        let mut file = || fds.pop().ok_or_else(|| broken("the reply carries no file"));
        match reply {
            WorkerReply::Text(text) => Ok(WorkerOutcome::Reply(FsReply::Text(text))),
            WorkerReply::Failed(error) => Err(error),
            WorkerReply::Page(..)
            | WorkerReply::Watching(_)
            | WorkerReply::NotWatching(_)
            | WorkerReply::Changed(_)
            | WorkerReply::Changes(_) => Err(broken("the reply belongs to another request").into()),
            WorkerReply::Opened => {
                let file = file()?;
                check_access(&file, OFlags::RDONLY)?;
                Ok(WorkerOutcome::Reply(FsReply::Opened(OpenFile::checked(file)?)))
            }
            WorkerReply::Staged(id) => {
                let file = file()?;
                check_access(&file, OFlags::RDWR)?;
                let file = OpenFile::checked(file)?.into_file();
                Ok(WorkerOutcome::Staged(ConfinedFile { file, id, worker: self.clone() }))
            }
        }
    }

    /// Starts a search inside the sandbox and returns its first page; the worker then serves this search only.
    pub async fn search(&self, spec: SearchSpec) -> Result<PageText, FsError> {
        self.page(&WorkerRequest::Search(Box::new(spec))).await
    }

    /// The next page of the search.
    pub async fn next_page(&self) -> Result<PageText, FsError> {
        self.page(&WorkerRequest::NextPage).await
    }

    /// Starts a watch inside the sandbox; the worker then serves this watch only.
    pub async fn watch(&self, spec: WatchSpec) -> Result<Watching, WatchError> {
        let failed = |error: FsError| WatchError::Path(io::Error::other(error));
        match self.call(&WorkerRequest::Watch(spec)).await.map_err(failed)?.0 {
            WorkerReply::Watching(watching) => Ok(watching),
            WorkerReply::NotWatching(error) => Err(error),
            _ => Err(WatchError::Path(broken("the reply belongs to another request"))),
        }
    }

    /// Waits up to `wait` for a change of the watch after `seq`; whether there is one. Other calls wait meanwhile.
    pub async fn await_changes(&self, seq: u64, wait: Duration) -> Result<bool, FsError> {
        match self.call(&WorkerRequest::AwaitChanges { seq, wait }).await?.0 {
            WorkerReply::Changed(is_changed) => Ok(is_changed),
            WorkerReply::Failed(error) => Err(error),
            _ => Err(broken("the reply belongs to another request").into()),
        }
    }

    /// The first changes of the watch after `seq` as JSON text for the client, up to a page.
    pub async fn read_changes(&self, seq: u64) -> Result<String, FsError> {
        match self.call(&WorkerRequest::ReadChanges { seq }).await?.0 {
            WorkerReply::Changes(text) => Ok(text),
            WorkerReply::Failed(error) => Err(error),
            _ => Err(broken("the reply belongs to another request").into()),
        }
    }

    async fn page(&self, request: &WorkerRequest) -> Result<PageText, FsError> {
        match self.call(request).await?.0 {
            WorkerReply::Page(text, done) => Ok(PageText { text, done }),
            WorkerReply::Failed(error) => Err(error),
            _ => Err(broken("the reply belongs to another request").into()),
        }
    }

    async fn call(&self, request: &WorkerRequest) -> Result<(WorkerReply, Vec<OwnedFd>), FsError> {
        let mut held = self.socket.lock().await;
        let socket = held.take().ok_or_else(|| broken("the file worker has exited"))?;
        let arrived = exchange(&socket, request).await?;
        let reply = arrived.decode().map_err(FsError::System)?;
        *held = Some(socket);
        Ok((reply, arrived.fds))
    }
}

async fn exchange(socket: &AsyncFd<OwnedFd>, request: &WorkerRequest) -> io::Result<Arrived> {
    let mut outgoing = Outgoing::new(request)?;
    let mut arriving = Arriving::default();
    if !outgoing.send(socket.as_fd(), None)? {
        send_rest(socket, &mut outgoing).await?;
    }
    poll_fn(|cx| {
        loop {
            let mut ready = ready!(socket.poll_read_ready(cx))?;
            let arrived = arriving.receive(socket.as_fd())?;
            // Also after a whole frame: no data follows before the next request.
            ready.clear_ready();
            if let Some(arrived) = arrived {
                return Poll::Ready(Ok(arrived));
            }
        }
    })
    .await
}

/// Waits for writability on a duplicate descriptor: permanent write interest would wake this task each time the worker
/// reads a request.
async fn send_rest(socket: &AsyncFd<OwnedFd>, outgoing: &mut Outgoing) -> io::Result<()> {
    let socket = register(socket.get_ref().try_clone()?, Interest::WRITABLE)?;
    poll_fn(|cx| {
        loop {
            let mut ready = ready!(socket.poll_write_ready(cx))?;
            if outgoing.send(socket.as_fd(), None)? {
                return Poll::Ready(Ok(()));
            }
            ready.clear_ready();
        }
    })
    .await
}

impl ConfinedFile {
    /// Writes at any offset; gaps are zero.
    pub fn write_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        self.file.write_all_at(data, offset)
    }

    /// Publishes the staged content.
    pub async fn publish(self) -> Result<FsReply, FsError> {
        self.finish(WorkerRequest::Publish(self.id)).await
    }

    /// Discards the staged content.
    pub async fn discard(self) -> Result<FsReply, FsError> {
        self.finish(WorkerRequest::Discard(self.id)).await
    }

    async fn finish(&self, request: WorkerRequest) -> Result<FsReply, FsError> {
        match self.worker.call(&request).await?.0 {
            WorkerReply::Text(text) => Ok(FsReply::Text(text)),
            WorkerReply::Failed(error) => Err(error),
            _ => Err(broken("the reply belongs to another request").into()),
        }
    }
}

/// Checks the access mode: descriptors from inside a sandbox are untrusted.
fn check_access(file: &OwnedFd, wanted: OFlags) -> Result<(), FsError> {
    let flags = fcntl_getfl(file).map_err(io::Error::from)?;
    let is_path = flags.contains(OFlags::PATH);
    if is_path || flags & OFlags::ACCMODE != wanted {
        return Err(broken("the file has an unexpected access mode").into());
    }
    Ok(())
}

fn broken(what: &'static str) -> io::Error {
    io::Error::other(what)
}
