//! `fs/*`: what a connection asks about files, and the files that it has open.
//!
//! Whatever the kernel has in memory is answered at once; everything else is done by threads that may wait for a disk
//! or a network, so that no connection waits for them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use exec_server_os::files::{
    FsError, FsReply, FsRequest, OpenFile, Patience, answer_from_cache, perform,
};
use exec_server_os::sandbox::{Access, FilePolicy};
use exec_server_protocol::fs::{
    FsCloseParams, FsReadBlockParams, FsWatchMissingParams, FsWriteBlockParams,
};

use crate::dispatch::Caller;
use crate::errors::RequestError;
use crate::reply::Reply;
use crate::sandbox::{Class, FilesPolicy};
use crate::server::Server;
use crate::sessions::Session;

mod answer;
mod batch;
mod handles;
mod request;
mod watch;
mod workers;

use batch::BatchItem;
use handles::{Handles, OpenCall};
pub use request::decode;
use watch::WatchSlot;
use workers::Workers;

/// A request about files whose params have been read.
#[derive(Debug)]
pub enum FileCall {
    /// Something about a path.
    Path(PathCall),
    /// `fs/open`.
    Open(OpenCall),
    /// `fs/readBlock`.
    ReadBlock(FsReadBlockParams),
    /// `fs/writeBlock`.
    WriteBlock(FsWriteBlockParams),
    /// `fs/close`.
    Close(FsCloseParams),
    /// `fs/batch`.
    Batch(Vec<BatchItem>),
    /// `fs/watchMissing`.
    WatchMissing(FsWatchMissingParams),
}

/// Something to do with a path, and how much to tell about it.
#[derive(Debug)]
pub struct PathCall {
    request: FsRequest,
    /// Whether the content of a file comes with its version.
    detailed: bool,
    /// What it may touch, if somebody confines it.
    policy: Option<Arc<FilesPolicy>>,
}

/// The files that one connection has open, and what it watches.
#[derive(Debug, Default)]
pub struct Files {
    handles: Arc<Handles>,
    watch: WatchSlot,
    workers: Arc<Workers>,
}

/// Files up to this size are read by the connection's own thread if they are in memory: it takes less time than to
/// wake another thread.
const QUICK_READ_BYTES: u64 = 128 * 1024;

impl Files {
    /// Answers a request, or hands it to whoever may wait.
    pub fn run(&self, caller: &Caller, call: FileCall, reply: Reply) {
        match call {
            FileCall::Path(PathCall { request, detailed, policy: Some(policy) }) => {
                let guard = self.guard(caller, policy);
                caller.server.spawn(async move {
                    match guard.perform(request).await {
                        Ok(FsReply::Opened(file)) => finish_reading(file, detailed, reply),
                        Ok(result) => finish(Ok(result), detailed, reply),
                        Err(error) => reply.fail(&error),
                    }
                });
            }
            FileCall::Path(call) => run_path(call, reply),
            FileCall::Open(mut call) => {
                let guard = call.policy.take().map(|policy| self.guard(caller, policy));
                self.handles.open(caller.server, call, guard, reply);
            }
            FileCall::ReadBlock(params) => self.handles.read_block(params, reply),
            FileCall::WriteBlock(params) => self.handles.write_block(params, reply),
            FileCall::Close(params) => self.handles.close(params, reply),
            FileCall::Batch(items) => self.run_batch(caller, items, reply),
            FileCall::WatchMissing(params) => self.watch.watch(caller.server, params, reply),
        }
    }

    fn guard(&self, caller: &Caller, policy: Arc<FilesPolicy>) -> Guard {
        Guard {
            server: caller.server.clone(),
            session: caller.session.clone(),
            workers: self.workers.clone(),
            policy,
        }
    }

    fn run_batch(&self, caller: &Caller, items: Vec<BatchItem>, reply: Reply) {
        let items: Vec<_> = items
            .into_iter()
            .map(|item| {
                item.map(|PathCall { request, detailed, policy }| {
                    (request, detailed, policy.map(|policy| self.guard(caller, policy)))
                })
            })
            .collect();
        let event_loop = tokio::runtime::Handle::current();
        tokio::task::spawn_blocking(move || batch::run(items, &event_loop, reply));
    }
}

/// Carries requests out under a policy, in a worker that the kernel confines to it.
pub struct Guard {
    server: Arc<Server>,
    session: Session,
    workers: Arc<Workers>,
    policy: Arc<FilesPolicy>,
}

impl Guard {
    /// Carries out a request; an error says whether the policy had a part in it.
    pub async fn perform(&self, request: FsRequest) -> Result<FsReply, RequestError> {
        let class = if request.is_lookup() { Class::Read } else { Class::Write };
        let paths: Vec<PathBuf> = request.paths().into_iter().map(Path::to_owned).collect();
        let worker = self.workers.get(&self.server, &self.session, &self.policy, class).await?;
        worker.perform(request).await.map_err(|error| {
            let is_denied = self.is_denied(&error, class, &paths);
            if is_denied { RequestError::FilesDenied(error) } else { error.into() }
        })
    }

    /// Whether the policy forbids it, or the system used the words that only a policy makes it use.
    fn is_denied(&self, error: &FsError, class: Class, paths: &[PathBuf]) -> bool {
        let FilePolicy::Restricted(rules) = &self.policy.policy().files else { return false };
        let needed = match class {
            Class::Read => Access::Read,
            Class::Write => Access::Write,
        };
        let is_forbidden = paths.iter().any(|path| rules.access(path) < needed);
        let errno = match error {
            FsError::System(source) => exec_server_os::errno_name(source),
            _ => None,
        };
        is_forbidden || matches!(errno, Some("EROFS" | "EACCES" | "EPERM"))
    }
}

fn run_path(call: PathCall, reply: Reply) {
    let reply = match answer_from_cache(&call.request) {
        Some(Ok(FsReply::Opened(file))) => match read_quickly(&file, call.detailed, reply) {
            Ok(()) => return,
            Err(reply) => reply,
        },
        Some(result) => return finish(result, call.detailed, reply),
        None => reply,
    };
    tokio::task::spawn_blocking(move || finish(perform(call.request), call.detailed, reply));
}

/// Reads a file that is open already.
fn finish_reading(file: OpenFile, detailed: bool, reply: Reply) {
    if let Err(reply) = read_quickly(&file, detailed, reply) {
        tokio::task::spawn_blocking(move || finish(Ok(FsReply::Opened(file)), detailed, reply));
    }
}

fn read_quickly(file: &OpenFile, detailed: bool, reply: Reply) -> Result<(), Reply> {
    if file.size() > QUICK_READ_BYTES {
        return Err(reply);
    }
    let mut text = reply.begin_text(answer::room_for(file));
    match answer::write_content(file, detailed, Patience::None, &mut text) {
        Ok(()) => reply.ok_text(text),
        Err(error) if answer::would_block(&error) => return Err(reply),
        Err(error) => reply.fail(&error),
    }
    Ok(())
}

fn finish(result: Result<FsReply, FsError>, detailed: bool, reply: Reply) {
    let result = match result {
        Ok(result) => result,
        Err(error) => return reply.fail(&error.into()),
    };
    let room = match &result {
        FsReply::Opened(file) => answer::room_for(file),
        _ => 0,
    };
    let mut text = reply.begin_text(room);
    match answer::write(&result, detailed, &mut text) {
        Ok(()) => reply.ok_text(text),
        Err(error) => reply.fail(&error),
    }
    // Only now, because it may take longer than all before.
    drop(result);
}
