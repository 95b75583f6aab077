//! The file handles of one connection.
//!
//! Reads of a handle run concurrently. Writes, and the close that publishes them, run one at a time in the order of
//! their requests. Calls for a handle that is still being opened wait for the open.
//!
//! Invariant: calls are ordered (`Table::admit`, `place`) under the lock of the table, also after they waited for an
//! open, so no later call overtakes them.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};

use exec_server_core::handle_table::{HandleTable, NotReserved};
use exec_server_fs::{
    Blocking, FsError, FsReply, FsRequest, OpenFile, StagedFile, answer_from_cache, perform,
};
use exec_server_protocol::fs::{
    FsCloseParams, FsOpenResponse, FsReadBlockParams, FsWriteBlockParams,
};
use exec_server_protocol::limits::{MAX_FILE_BLOCK_BYTES, MAX_FILE_HANDLES, MAX_HANDLE_ID_BYTES};
use exec_server_protocol::process::Empty;
use exec_server_sandbox::{ConfinedFile, WorkerOutcome};

use super::block_text::BlockText;
use super::{Guard, Scope, answer};
use crate::errors::RequestError;
use crate::reply::Reply;

/// A decoded `fs/open`.
#[derive(Debug)]
pub struct OpenCall {
    /// The handle id, chosen by the client.
    pub id: String,
    /// Opens the file for reading or for replacing.
    pub request: FsRequest,
    /// Whether the response contains size and version tag.
    pub detailed: bool,
    /// Policy and user of the handle.
    pub scope: Scope,
}

/// The file handles of one connection.
#[derive(Debug)]
pub struct Handles {
    table: Mutex<Table>,
}

type Table = HandleTable<Handle, HandleCall>;

/// A call for a handle.
#[derive(Debug)]
enum HandleCall {
    Open(OpenCall, Option<Guard>, Reply),
    Read(FsReadBlockParams, Reply),
    Write(FsWriteBlockParams, Reply),
    Close(FsCloseParams, Reply),
}

/// The part of an ordered call that may be slow and needs no lock.
enum Rest {
    Open(OpenCall, Option<Guard>, Reply),
    Read(Arc<OpenFile>, FsReadBlockParams, Reply),
}

#[derive(Debug, Clone)]
enum Handle {
    Read(Arc<OpenFile>),
    Replace(Arc<Replacement>),
}

impl Default for Handles {
    fn default() -> Self {
        Self { table: Mutex::new(HandleTable::new(MAX_FILE_HANDLES)) }
    }
}

impl HandleCall {
    fn id(&self) -> &str {
        match self {
            Self::Open(call, _, _) => &call.id,
            Self::Read(params, _) => &params.handle_id,
            Self::Write(params, _) => &params.handle_id,
            Self::Close(params, _) => &params.handle_id,
        }
    }

    /// Checks that do not need the handle.
    fn check(&self) -> Result<(), RequestError> {
        check_id(self.id())?;
        match self {
            Self::Open(..) | Self::Close(..) => Ok(()),
            Self::Read(params, _) => check_len(params.len, "read"),
            Self::Write(params, _) => check_range(params),
        }
    }

    fn into_reply(self) -> Reply {
        match self {
            Self::Open(_, _, reply)
            | Self::Read(_, reply)
            | Self::Write(_, reply)
            | Self::Close(_, reply) => reply,
        }
    }
}

impl Handles {
    /// Answers `fs/open`.
    pub fn open(self: &Arc<Self>, call: OpenCall, guard: Option<Guard>, reply: Reply) {
        self.run(HandleCall::Open(call, guard, reply));
    }

    /// Answers `fs/readBlock`.
    pub fn read_block(self: &Arc<Self>, params: FsReadBlockParams, reply: Reply) {
        self.run(HandleCall::Read(params, reply));
    }

    /// Answers `fs/writeBlock`.
    pub fn write_block(self: &Arc<Self>, params: FsWriteBlockParams, reply: Reply) {
        self.run(HandleCall::Write(params, reply));
    }

    /// Answers `fs/close`.
    pub fn close(self: &Arc<Self>, params: FsCloseParams, reply: Reply) {
        self.run(HandleCall::Close(params, reply));
    }

    fn run(self: &Arc<Self>, call: HandleCall) {
        if let Err(error) = call.check() {
            return call.into_reply().fail(&error);
        }
        let rest = place(&mut self.lock(), call);
        rest.into_iter().for_each(|rest| self.finish(rest));
    }

    fn finish(self: &Arc<Self>, rest: Rest) {
        match rest {
            Rest::Open(call, guard, reply) => self.open_file(call, guard, reply),
            Rest::Read(file, params, reply) => self.read_file(file, &params, reply),
        }
    }

    fn open_file(self: &Arc<Self>, call: OpenCall, guard: Option<Guard>, reply: Reply) {
        let OpenCall { id, request, detailed, .. } = call;
        let handles = self.clone();
        if let Some(guard) = guard {
            let server = guard.server.clone();
            return server.spawn(async move {
                let result = guard.open(request).await;
                handles.finish_open(id, result, detailed, reply);
            });
        }
        if let Some(result) = answer_from_cache(&request) {
            let result = result.map(WorkerOutcome::Reply).map_err(RequestError::from);
            return self.finish_open(id, result, detailed, reply);
        }
        tokio::task::spawn_blocking(move || {
            let result = perform(request).map(WorkerOutcome::Reply).map_err(RequestError::from);
            handles.finish_open(id, result, detailed, reply);
        });
    }

    fn finish_open(
        self: &Arc<Self>,
        id: String,
        result: Result<WorkerOutcome, RequestError>,
        detailed: bool,
        reply: Reply,
    ) {
        let opened = result.and_then(|result| match result {
            WorkerOutcome::Reply(FsReply::Opened(file)) => {
                let size = detailed.then(|| file.size());
                let version_tag =
                    detailed.then(|| file.version_tag()).transpose().map_err(FsError::from)?;
                Ok((Handle::Read(Arc::new(file)), size, version_tag))
            }
            WorkerOutcome::Reply(FsReply::Staged(file)) => {
                let replacement = Replacement::new(&id, Staged::Here(Box::new(file)));
                Ok((Handle::Replace(Arc::new(replacement)), None, None))
            }
            WorkerOutcome::Staged(file) => {
                let replacement = Replacement::new(&id, Staged::Inside(file));
                Ok((Handle::Replace(Arc::new(replacement)), None, None))
            }
            WorkerOutcome::Reply(_) => unreachable!("files are opened for reading or replacing"),
        });
        let rest: Vec<Rest> = {
            let mut table = self.lock();
            let waiting = match opened {
                Ok((handle, size, version_tag)) => {
                    let waiting = table.handle_opened(&id, handle);
                    reply.ok(&FsOpenResponse { handle_id: id, size, version_tag });
                    waiting
                }
                Err(error) => {
                    reply.fail(&error);
                    table.handle_failed(&id)
                }
            };
            waiting.into_iter().filter_map(|call| place(&mut table, call)).collect()
        };
        rest.into_iter().for_each(|rest| self.finish(rest));
    }

    fn read_file(
        self: &Arc<Self>,
        file: Arc<OpenFile>,
        params: &FsReadBlockParams,
        mut reply: Reply,
    ) {
        let (offset, len) = (params.offset, params.len);
        let room = BlockText::room(&reply, usize::try_from(len).expect("was just checked"));
        if !reply.try_reserve(room) {
            let (handles, params) = (self.clone(), params.clone());
            let read = move |reply| handles.read_file(file, &params, reply);
            return reply.when_reserved(room, read);
        }
        let mut text = match BlockText::begin(&reply, room) {
            Ok(text) => text,
            Err(error) => return reply.fail(&error),
        };
        match text.write(&file, offset, len, Blocking::None) {
            Ok(()) => return text.send(reply),
            Err(error) if !answer::would_block(&error) => {
                self.forget(&params.handle_id, &file);
                return reply.fail(&error);
            }
            Err(_) => {}
        }
        let (handles, id) = (self.clone(), params.handle_id.clone());
        tokio::task::spawn_blocking(move || match text.write(&file, offset, len, Blocking::Disk) {
            Ok(()) => text.send(reply),
            Err(error) => {
                handles.forget(&id, &file);
                reply.fail(&error);
            }
        });
    }

    /// Closes the handle of a failed read, unless the id belongs to another file by now.
    fn forget(&self, id: &str, file: &Arc<OpenFile>) {
        let mut table = self.lock();
        if matches!(table.find(id), Some(Handle::Read(current)) if Arc::ptr_eq(current, file)) {
            table.close(id);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().expect("no holder panics")
    }
}

/// Orders a call among the calls for its handle; returns the part that is left to run without the lock.
fn place(table: &mut Table, call: HandleCall) -> Option<Rest> {
    let id = call.id().to_owned();
    match table.admit(&id, call)? {
        HandleCall::Open(call, guard, reply) => match table.reserve(&id) {
            Ok(()) => return Some(Rest::Open(call, guard, reply)),
            Err(NotReserved::Exists) => reply.fail(&RequestError::DuplicateHandle(id)),
            Err(NotReserved::Full) => reply.fail(&RequestError::TooManyHandles),
        },
        HandleCall::Read(params, reply) => match table.find(&id) {
            Some(Handle::Read(file)) => return Some(Rest::Read(file.clone(), params, reply)),
            // A failed read closes its handle.
            Some(Handle::Replace(_)) => {
                table.close(&id);
                reply.fail(&bad_descriptor());
            }
            None => reply.fail(&RequestError::UnknownHandle(id)),
        },
        HandleCall::Write(params, reply) => match table.find(&id) {
            Some(Handle::Replace(replacement)) => {
                let block = Block { offset: params.offset, bytes: params.chunk.0 };
                replacement.push(Job::Write(block, reply));
            }
            Some(Handle::Read(_)) => reply.fail(&bad_descriptor()),
            None => reply.fail(&RequestError::UnknownHandle(id)),
        },
        HandleCall::Close(params, reply) => match table.close(&id) {
            Some(Handle::Replace(replacement)) if params.discard == Some(true) => {
                replacement.push(Job::Discard(reply));
            }
            Some(Handle::Replace(replacement)) => replacement.push(Job::Publish(reply)),
            Some(Handle::Read(_)) | None => reply.ok(&Empty {}),
        },
    }
    None
}

fn check_id(id: &str) -> Result<(), RequestError> {
    if id.len() > MAX_HANDLE_ID_BYTES { Err(RequestError::HandleIdTooLong) } else { Ok(()) }
}

fn check_len(len: u64, verb: &'static str) -> Result<(), RequestError> {
    let is_fine = (1..=MAX_FILE_BLOCK_BYTES).contains(&len);
    if is_fine { Ok(()) } else { Err(RequestError::BlockLength { verb }) }
}

fn check_range(params: &FsWriteBlockParams) -> Result<(), RequestError> {
    let len = params.chunk.0.len() as u64;
    check_len(len, "write")?;
    let end = params.offset.checked_add(len).and_then(|end| i64::try_from(end).ok());
    end.map(drop).ok_or(RequestError::BlockRange)
}

/// The handle was opened for the other direction.
fn bad_descriptor() -> RequestError {
    RequestError::Files(FsError::bad_descriptor())
}

/// New content that is not published yet, with its queued jobs.
#[derive(Debug)]
struct Replacement {
    /// The handle id.
    id: String,
    work: Mutex<Work>,
    /// Runs the futures of a sandboxed worker from a blocking thread.
    event_loop: tokio::runtime::Handle,
}

#[derive(Debug)]
struct Work {
    /// `None` while a thread uses it, and after it was published or discarded.
    content: Option<Content>,
    jobs: VecDeque<Job>,
    is_running: bool,
}

/// The staged file: opened by this process, or by a sandboxed worker.
#[derive(Debug)]
enum Staged {
    Here(Box<StagedFile>),
    Inside(ConfinedFile),
}

#[derive(Debug)]
struct Content {
    file: Staged,
    /// Blocks that could not be written and have not been written since.
    missing: Vec<(u64, usize)>,
}

#[derive(Debug)]
enum Job {
    Write(Block, Reply),
    Publish(Reply),
    Discard(Reply),
}

#[derive(Debug)]
struct Block {
    offset: u64,
    bytes: Vec<u8>,
}

impl Replacement {
    fn new(id: &str, file: Staged) -> Self {
        let content = Some(Content { file, missing: Vec::new() });
        let work = Work { content, jobs: VecDeque::new(), is_running: false };
        let event_loop = tokio::runtime::Handle::current();
        Self { id: id.to_owned(), work: Mutex::new(work), event_loop }
    }

    /// Queues a job; one thread at a time runs the jobs in order.
    fn push(self: &Arc<Self>, job: Job) {
        let mut work = self.lock();
        work.jobs.push_back(job);
        if !work.is_running {
            work.is_running = true;
            let replacement = self.clone();
            tokio::task::spawn_blocking(move || replacement.run());
        }
    }

    fn run(&self) {
        let mut content = self.lock().content.take();
        loop {
            let job = {
                let mut work = self.lock();
                let Some(job) = work.jobs.pop_front() else {
                    work.content = content;
                    work.is_running = false;
                    return;
                };
                job
            };
            content = match content {
                Some(content) => perform_job(content, job, &self.event_loop),
                None => {
                    job.into_reply().fail(&RequestError::UnknownHandle(self.id.clone()));
                    None
                }
            };
        }
    }

    fn lock(&self) -> MutexGuard<'_, Work> {
        self.work.lock().expect("no holder panics")
    }
}

impl Job {
    fn into_reply(self) -> Reply {
        match self {
            Self::Write(_, reply) | Self::Publish(reply) | Self::Discard(reply) => reply,
        }
    }
}

/// Runs one job; returns the content for further jobs, or `None` once it was published or discarded.
fn perform_job(
    mut content: Content,
    job: Job,
    event_loop: &tokio::runtime::Handle,
) -> Option<Content> {
    match job {
        Job::Write(block, reply) => {
            reply.finish(content.write(&block));
            Some(content)
        }
        Job::Publish(reply) => {
            content.publish(event_loop, reply);
            None
        }
        Job::Discard(reply) => {
            content.discard(event_loop);
            reply.ok(&Empty {});
            None
        }
    }
}

impl Content {
    fn write(&mut self, block: &Block) -> Result<Empty, RequestError> {
        let range = (block.offset, block.bytes.len());
        self.missing.retain(|missing| *missing != range);
        let written = match &self.file {
            Staged::Here(file) => file.write_at(&block.bytes, block.offset),
            Staged::Inside(file) => file.write_at(&block.bytes, block.offset),
        };
        written.map_err(|error| {
            self.missing.push(range);
            RequestError::Files(error.into())
        })?;
        Ok(Empty {})
    }

    fn publish(self, event_loop: &tokio::runtime::Handle, reply: Reply) {
        if !self.missing.is_empty() {
            let missing = self.missing.len();
            self.discard(event_loop);
            return reply.fail(&RequestError::BlocksMissing(missing));
        }
        let published = match self.file {
            Staged::Here(file) => {
                file.publish().map(|(response, leftovers)| FsReply::Written(response, leftovers))
            }
            Staged::Inside(file) => event_loop.block_on(file.publish()),
        };
        super::finish_change(published, reply);
    }

    fn discard(self, event_loop: &tokio::runtime::Handle) {
        if let Staged::Inside(file) = self.file {
            // A worker that cannot be reached has ended, and its staged file with it.
            let _ = event_loop.block_on(file.discard());
        }
    }
}
