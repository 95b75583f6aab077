//! The file handles of one connection.
//!
//! Reads of a handle run beside each other. Writes, and the close that puts them in place, run one after the other in
//! the order in which they came. Calls for a handle that is still being opened wait for it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};

use exec_server_machines::handle_table::{Closed, Found, HandleTable, NotReserved, Ticket};
use exec_server_os::ConfinedFile;
use exec_server_os::files::{
    FsError, FsReply, FsRequest, OpenFile, Patience, StagedFile, answer_from_cache, perform,
};
use exec_server_protocol::base64;
use exec_server_protocol::fs::{
    FsCloseParams, FsOpenResponse, FsReadBlockParams, FsWriteBlockParams,
};
use exec_server_protocol::limits::{MAX_FILE_BLOCK_BYTES, MAX_FILE_HANDLES, MAX_HANDLE_ID_BYTES};
use exec_server_protocol::process::Empty;

use super::{Guard, answer};
use crate::errors::RequestError;
use crate::reply::Reply;
use crate::sandbox::FilesPolicy;
use crate::server::Server;

/// `fs/open` with what it opens.
#[derive(Debug)]
pub struct OpenCall {
    /// The client's name for the handle.
    pub id: String,
    /// How to open it.
    pub request: FsRequest,
    /// Whether the answer tells size and version.
    pub detailed: bool,
    /// What it may touch, if somebody confines it.
    pub policy: Option<Arc<FilesPolicy>>,
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
    Read(FsReadBlockParams, Reply),
    Write(FsWriteBlockParams, Reply),
    Close(FsCloseParams, Reply),
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

impl Handles {
    /// Answers `fs/open`.
    pub fn open(
        self: &Arc<Self>,
        server: &Server,
        call: OpenCall,
        guard: Option<Guard>,
        reply: Reply,
    ) {
        let ticket = match self.reserve(&call.id) {
            Ok(ticket) => ticket,
            Err(error) => return reply.fail(&error),
        };
        let OpenCall { id, request, detailed, .. } = call;
        let handles = self.clone();
        if let Some(guard) = guard {
            return server.spawn(async move {
                let result = guard.perform(request).await;
                handles.finish_open(id, ticket, result, detailed, reply);
            });
        }
        if let Some(result) = answer_from_cache(&request) {
            let result = result.map_err(RequestError::from);
            return self.finish_open(id, ticket, result, detailed, reply);
        }
        tokio::task::spawn_blocking(move || {
            let result = perform(request).map_err(RequestError::from);
            handles.finish_open(id, ticket, result, detailed, reply);
        });
    }

    fn reserve(&self, id: &str) -> Result<Ticket, RequestError> {
        check_id(id)?;
        self.lock().reserve(id).map_err(|refused| match refused {
            NotReserved::Exists => RequestError::DuplicateHandle(id.to_owned()),
            NotReserved::Full => RequestError::TooManyHandles,
        })
    }

    fn finish_open(
        self: &Arc<Self>,
        id: String,
        ticket: Ticket,
        result: Result<FsReply, RequestError>,
        detailed: bool,
        reply: Reply,
    ) {
        let opened = result.and_then(|result| match result {
            FsReply::Opened(file) => {
                let size = detailed.then(|| file.size());
                let version_tag =
                    detailed.then(|| file.version_tag()).transpose().map_err(FsError::from)?;
                Ok((Handle::Read(Arc::new(file)), size, version_tag))
            }
            FsReply::Staged(file) => {
                let replacement = Replacement::new(Staged::Here(Box::new(file)));
                Ok((Handle::Replace(Arc::new(replacement)), None, None))
            }
            FsReply::StagedInside(file) => {
                let replacement = Replacement::new(Staged::Inside(file));
                Ok((Handle::Replace(Arc::new(replacement)), None, None))
            }
            _ => unreachable!("files are opened for reading or replacing"),
        });
        match opened {
            Ok((handle, size, version_tag)) => {
                let placed = self.lock().handle_opened(&id, ticket, handle);
                match placed {
                    Ok(waiting) => {
                        reply.ok(&FsOpenResponse { handle_id: id, size, version_tag });
                        self.run_waiting(waiting);
                    }
                    Err(_) => reply.fail(&RequestError::HandleClosed(id)),
                }
            }
            Err(error) => {
                let waiting = self.lock().handle_failed(&id, ticket);
                reply.fail(&error);
                self.run_waiting(waiting);
            }
        }
    }

    fn run_waiting(self: &Arc<Self>, waiting: Vec<HandleCall>) {
        for call in waiting {
            match call {
                HandleCall::Read(params, reply) => self.read_block(params, reply),
                HandleCall::Write(params, reply) => self.write_block(params, reply),
                HandleCall::Close(params, reply) => self.close(params, reply),
            }
        }
    }

    /// Answers `fs/readBlock`.
    pub fn read_block(self: &Arc<Self>, params: FsReadBlockParams, reply: Reply) {
        let checked = check_id(&params.handle_id).and_then(|()| check_len(params.len, "read"));
        if let Err(error) = checked {
            return reply.fail(&error);
        }
        let handle = match self.lock().find(&params.handle_id) {
            Found::Open(handle) => handle.clone(),
            Found::Opening(waiting) => return waiting.push(HandleCall::Read(params, reply)),
            Found::Nothing => return reply.fail(&RequestError::UnknownHandle(params.handle_id)),
        };
        match handle {
            Handle::Read(file) => self.read_file(file, &params, reply),
            Handle::Replace(_) => {
                self.forget(&params.handle_id, &handle);
                reply.fail(&bad_descriptor());
            }
        }
    }

    fn read_file(self: &Arc<Self>, file: Arc<OpenFile>, params: &FsReadBlockParams, reply: Reply) {
        let (offset, len) = (params.offset, params.len);
        let room = base64::encoded_len(usize::try_from(len).expect("was just checked")) + 32;
        let mut text = reply.begin_text(room);
        let begun = text.len();
        match answer::write_block(&file, offset, len, Patience::None, &mut text) {
            Ok(()) => return reply.ok_text(text),
            Err(error) if !answer::would_block(&error) => {
                self.forget(&params.handle_id, &Handle::Read(file));
                return reply.fail(&error);
            }
            Err(_) => text.truncate(begun),
        }
        let (handles, id) = (self.clone(), params.handle_id.clone());
        tokio::task::spawn_blocking(move || {
            match answer::write_block(&file, offset, len, Patience::Disk, &mut text) {
                Ok(()) => reply.ok_text(text),
                Err(error) => {
                    handles.forget(&id, &Handle::Read(file));
                    reply.fail(&error);
                }
            }
        });
    }

    /// Answers `fs/writeBlock`.
    pub fn write_block(&self, params: FsWriteBlockParams, reply: Reply) {
        let checked = check_id(&params.handle_id).and_then(|()| check_range(&params));
        if let Err(error) = checked {
            return reply.fail(&error);
        }
        let handle = match self.lock().find(&params.handle_id) {
            Found::Open(handle) => handle.clone(),
            Found::Opening(waiting) => return waiting.push(HandleCall::Write(params, reply)),
            Found::Nothing => return reply.fail(&RequestError::UnknownHandle(params.handle_id)),
        };
        match handle {
            Handle::Replace(replacement) => {
                let block = Block { offset: params.offset, bytes: params.chunk.0 };
                replacement.push(Job::Write(block, reply));
            }
            Handle::Read(_) => reply.fail(&bad_descriptor()),
        }
    }

    /// Answers `fs/close`.
    pub fn close(&self, params: FsCloseParams, reply: Reply) {
        if let Err(error) = check_id(&params.handle_id) {
            return reply.fail(&error);
        }
        let closed = match self.lock().close(&params.handle_id) {
            Closed::Now(closed) => closed,
            Closed::Later(waiting) => return waiting.push(HandleCall::Close(params, reply)),
        };
        match closed {
            Some(Handle::Replace(replacement)) if params.discard == Some(true) => {
                replacement.push(Job::Discard(reply));
            }
            Some(Handle::Replace(replacement)) => replacement.push(Job::Publish(reply)),
            Some(Handle::Read(_)) | None => reply.ok(&Empty {}),
        }
    }

    /// A read that failed ends its handle, unless the name stands for another one by now.
    fn forget(&self, id: &str, handle: &Handle) {
        let mut table = self.lock();
        if matches!(table.find(id), Found::Open(current) if current.is(handle)) {
            table.close(id);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().expect("no holder panics")
    }
}

impl Handle {
    fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Read(one), Self::Read(other)) => Arc::ptr_eq(one, other),
            (Self::Replace(one), Self::Replace(other)) => Arc::ptr_eq(one, other),
            _ => false,
        }
    }
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

/// The handle is for the other direction.
fn bad_descriptor() -> RequestError {
    RequestError::Files(FsError::bad_descriptor())
}

/// New content on its way, and what is still to be done with it.
#[derive(Debug)]
struct Replacement {
    work: Mutex<Work>,
    /// Where a worker's answers arrive.
    event_loop: tokio::runtime::Handle,
}

#[derive(Debug)]
struct Work {
    /// Missing while a thread works with it, and when it was published or thrown away.
    content: Option<Content>,
    jobs: VecDeque<Job>,
    is_running: bool,
}

/// Where new content lies.
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
    fn new(file: Staged) -> Self {
        let content = Some(Content { file, missing: Vec::new() });
        let work = Work { content, jobs: VecDeque::new(), is_running: false };
        Self { work: Mutex::new(work), event_loop: tokio::runtime::Handle::current() }
    }

    /// Queues a job; one thread at a time does them in order.
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
            content = perform_job(content, job, &self.event_loop);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Work> {
        self.work.lock().expect("no holder panics")
    }
}

fn perform_job(
    content: Option<Content>,
    job: Job,
    event_loop: &tokio::runtime::Handle,
) -> Option<Content> {
    let Some(mut content) = content else {
        // A write that was queued behind the close of its handle cannot happen: the close took the name.
        unreachable!("a closed handle takes no more jobs");
    };
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
        super::finish(published, false, reply);
    }

    fn discard(self, event_loop: &tokio::runtime::Handle) {
        if let Staged::Inside(file) = self.file {
            // A worker that cannot be told has nothing left to throw away.
            let _ = event_loop.block_on(file.discard());
        }
    }
}
