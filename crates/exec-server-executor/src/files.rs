//! `fs/*`: handlers of file requests, and the open files of one connection.
//!
//! Requests that the kernel's caches can answer run on the connection's thread. Others run on blocking threads, and
//! sandboxed ones in a worker process, so that no connection waits for a disk or a network.

#![allow(
    clippy::result_large_err,
    reason = "the error returns the reply, and boxing it would cost every request"
)]

use std::sync::Arc;

use exec_server_fs::{Blocking, FsError, FsReply, FsRequest, answer_from_cache, perform};
use exec_server_protocol::user::UserName;
use exec_server_sandbox::WorkerOutcome;
use exec_server_sandbox::plan::{Class, FilesPolicy};
use exec_server_sandbox::policy::{Access, FilePolicy};

use crate::dispatch::Caller;
use crate::errors::RequestError;
use crate::reply::Reply;
use crate::reply_memory::CONNECTION_BYTES;
use crate::server::Server;
use crate::sessions::Session;
use crate::user::RequestUser;

mod answer;
mod batch;
mod block_text;
mod handles;
mod request;
mod search;
mod search_request;
mod tree_watches;
mod watch;
mod workers;

use answer::Appended;
use batch::BatchItem;
use handles::Handles;
pub use request::{FileCall, decode, decode_path};
use search::Searches;
pub use tree_watches::TreeWatches;
use watch::WatchSlot;
use workers::{Warm, WorkerLimits, Workers};

/// A request about a path, with its reply options and policy.
#[derive(Debug)]
pub struct PathCall {
    request: FsRequest,
    /// Whether the content of a file is returned with its version tag.
    detailed: bool,
    scope: Scope,
}

/// What limits a request: a sandbox policy, the rights of another user, or both.
#[derive(Debug, Clone, Default)]
pub struct Scope {
    policy: Option<Arc<FilesPolicy>>,
    user: Option<UserName>,
}

impl Scope {
    pub fn is_sandboxed(&self) -> bool {
        self.policy.is_some()
    }

    pub fn user(&self) -> Option<&UserName> {
        self.user.as_ref()
    }
}

/// The open files, the watch and the sandboxed workers of one connection.
#[derive(Debug, Default)]
pub struct Files {
    handles: Arc<Handles>,
    watch: WatchSlot,
    workers: Arc<Workers>,
    searches: Searches,
}

/// Cached files up to this size are read on the connection's thread, which is faster than waking another thread.
const QUICK_READ_BYTES: u64 = 128 * 1024;

impl Files {
    /// None if nothing limits the request.
    fn guard(&self, caller: &Caller, scope: Scope) -> Option<Guard> {
        let is_limited = scope.policy.is_some() || scope.user.is_some();
        is_limited.then(|| Guard {
            server: caller.server.clone(),
            session: caller.session.clone(),
            workers: self.workers.clone(),
            scope,
        })
    }

    fn run_batch(&self, caller: &Caller, items: Vec<BatchItem>, reply: Reply) {
        let items = items
            .into_iter()
            .map(|item| {
                item.map(|PathCall { request, detailed, scope }| {
                    (request, detailed, self.guard(caller, scope))
                })
            })
            .collect();
        batch::run(items, reply);
    }
}

/// Runs requests in a worker process, which the kernel confines to a policy, or to the rights of a user.
#[derive(Debug)]
pub struct Guard {
    server: Arc<Server>,
    session: Session,
    workers: Arc<Workers>,
    scope: Scope,
}

impl Guard {
    /// Runs a request that stages nothing; an error that the policy caused becomes `FilesDenied`.
    pub async fn perform(&self, request: FsRequest) -> Result<FsReply, RequestError> {
        match self.open(request).await? {
            WorkerOutcome::Reply(reply) => Ok(reply),
            WorkerOutcome::Staged(_) => Err(FsError::bad_descriptor().into()),
        }
    }

    /// Runs a request that may stage content; errors are those of [`Self::perform`].
    pub async fn open(&self, request: FsRequest) -> Result<WorkerOutcome, RequestError> {
        let class = if request.is_lookup() { Class::Read } else { Class::Write };
        let is_forbidden = self.forbids_change(&request);
        let limits = self.limits().await?;
        let worker = self.workers.get(&self.server, &self.session, limits, class).await?;
        worker.perform(request).await.map_err(|error| match error {
            // A path without write access may be missing from the worker's view: deny it whether it exists or not.
            FsError::System(source)
                if is_forbidden && source.kind() == std::io::ErrorKind::NotFound =>
            {
                RequestError::FilesDenied(FsError::System(exec_server_os::access_denied()))
            }
            error => self.error(error),
        })
    }

    /// The error of a worker; one that a policy caused is a denial. The rights of a user cause none.
    fn error(&self, error: FsError) -> RequestError {
        if self.scope.policy.is_some() && is_refusal(&error) {
            RequestError::FilesDenied(error)
        } else {
            error.into()
        }
    }

    /// Starts a worker that serves only the caller.
    async fn start_alone(&self) -> Result<Warm, RequestError> {
        workers::start(&self.server, &self.session, &self.limits().await?, Class::Read).await
    }

    async fn limits(&self) -> Result<WorkerLimits, RequestError> {
        let user = match &self.scope.user {
            Some(user) => RequestUser::find(user).await?.credentials,
            None => None,
        };
        Ok(WorkerLimits { policy: self.scope.policy.clone(), user })
    }

    fn forbids_change(&self, request: &FsRequest) -> bool {
        let Some(policy) = &self.scope.policy else { return false };
        let FilePolicy::Restricted(rules) = &policy.policy().files else { return false };
        request.changes().into_iter().any(|path| rules.access(path) < Access::Write)
    }
}

/// Whether the error code is one that the confinement produces.
fn is_refusal(error: &FsError) -> bool {
    match error {
        FsError::System(source) | FsError::ShortWrite { cause: source, .. } => {
            matches!(exec_server_os::errno_name(source), Some("EROFS" | "EACCES" | "EPERM"))
        }
        FsError::Incomplete { cause: source, .. } => is_refusal(source),
        _ => false,
    }
}

/// Runs a request about a path; answers at once if the kernel's caches have the result.
fn run_path(call: PathCall, mut reply: Reply) {
    let room = listing_room(&call.request);
    if !reply.try_reserve(room) {
        return reply.when_reserved(room, move |reply| run_path(call, reply));
    }
    let detailed = call.detailed;
    match answer_from_cache(&call.request) {
        Some(Ok(result)) => match finish(result, detailed, Blocking::None, reply) {
            Ok(()) => {}
            Err((reply, Obstacle::NoRoom(room))) => {
                reply.when_reserved(room, move |reply| run_path(call, reply));
            }
            Err((reply, Obstacle::Slow(result))) => {
                let again = Some(call);
                tokio::task::spawn_blocking(move || finish_slowly(*result, detailed, reply, again));
            }
        },
        Some(Err(error)) => reply.fail(&error.into()),
        None => drop(tokio::task::spawn_blocking(move || run_path_slowly(call, reply))),
    }
}

/// Runs a request about a path on a blocking thread.
fn run_path_slowly(call: PathCall, mut reply: Reply) {
    let room = directory_room(&call.request);
    if !reply.try_reserve(room) {
        return reply.when_reserved(room, move |reply| run_path(call, reply));
    }
    let PathCall { request, detailed, scope } = call;
    // Only lookups have large results, and lookups can be repeated.
    let again = request.is_lookup().then(|| PathCall { request: request.clone(), detailed, scope });
    match perform(request) {
        Ok(result) => finish_slowly(result, detailed, reply, again),
        Err(error) => reply.fail(&error.into()),
    }
}

fn finish_slowly(result: FsReply, detailed: bool, reply: Reply, again: Option<PathCall>) {
    match (finish(result, detailed, Blocking::Disk, reply), again) {
        (Ok(()), _) => {}
        (Err((reply, Obstacle::NoRoom(room))), Some(call)) => {
            reply.when_reserved(room, move |reply| run_path(call, reply));
        }
        (Err((reply, _)), _) => reply.fail(&RequestError::Abandoned),
    }
}

/// Runs a request about a path in a worker; repeats a lookup whose result needs more memory than was reserved.
async fn run_guarded(guard: Guard, request: FsRequest, detailed: bool, mut reply: Reply) {
    let mut room = match request {
        // Only the worker can see the size of the directory.
        FsRequest::List { page: None, .. } => CONNECTION_BYTES,
        _ => listing_room(&request),
    };
    let again = request.is_lookup().then(|| request.clone());
    let mut request = Some(request);
    while let Some(this) = request.take() {
        if !reply.try_reserve(room)
            && let Err(error) = reply.reserve(room).await
        {
            return reply.fail(&error);
        }
        let result = match guard.perform(this).await {
            Ok(result) => result,
            Err(error) => return reply.fail(&error),
        };
        let finished = match finish(result, detailed, Blocking::None, reply) {
            Err((reply, Obstacle::Slow(result))) => {
                let slowly = move || finish(*result, detailed, Blocking::Disk, reply);
                // A panic is a bug; the dropped reply has already sent an error.
                let Ok(finished) = tokio::task::spawn_blocking(slowly).await else { return };
                finished
            }
            finished => finished,
        };
        match finished {
            Ok(()) => return,
            Err((unanswered, Obstacle::NoRoom(needed))) => (reply, room) = (unanswered, needed),
            Err((reply, _)) => return reply.fail(&RequestError::Abandoned),
        }
        request.clone_from(&again);
    }
}

/// Why a reply cannot be written now.
enum Obstacle {
    /// The reply needs this many bytes of memory, more than was reserved.
    NoRoom(usize),
    /// The content is not cached, or is large enough to delay other connections.
    Slow(Box<FsReply>),
}

/// Memory for a listing of unknown size; most listings need less.
const LISTING_BYTES: usize = 2 * 1024 * 1024;
/// Memory per name of a listing: the entry and its JSON.
const NAME_BYTES: usize = 256;
/// Memory of a listing per byte of the directory's size. tmpfs counts 20 bytes for a name of any length.
const BYTES_PER_DIRECTORY_BYTE: u64 = 16;

/// The memory to reserve for the listing of a whole directory, so that large directories are listed one at a time.
/// May block.
fn directory_room(request: &FsRequest) -> usize {
    let FsRequest::List { path, page: None, .. } = request else { return 0 };
    let size = std::fs::metadata(path).map_or(0, |directory| directory.len());
    let room = usize::try_from(size.saturating_mul(BYTES_PER_DIRECTORY_BYTE)).unwrap_or(usize::MAX);
    room.clamp(LISTING_BYTES, CONNECTION_BYTES)
}

/// The memory to reserve for a result before the file system is accessed.
fn listing_room(request: &FsRequest) -> usize {
    let names = match request {
        FsRequest::List { page: Some(page), .. } => page.limit,
        FsRequest::Walk { options, .. } => {
            usize::try_from(options.max_entries).unwrap_or(usize::MAX)
        }
        FsRequest::List { page: None, .. } => usize::MAX,
        _ => 0,
    };
    names.saturating_mul(NAME_BYTES).min(LISTING_BYTES)
}

/// Sends a result, or returns the reply and why it cannot be sent now.
fn finish(
    result: FsReply,
    detailed: bool,
    blocking: Blocking,
    mut reply: Reply,
) -> Result<(), (Reply, Obstacle)> {
    let FsReply::Opened(file) = &result else {
        return finish_plain(result, reply);
    };
    let room = answer::room_for(file).max(reply.room());
    if !reply.try_reserve(room) {
        return Err((reply, Obstacle::NoRoom(room)));
    }
    if blocking == Blocking::None && file.size() > QUICK_READ_BYTES {
        return Err((reply, Obstacle::Slow(Box::new(result))));
    }
    let appended = reply.begin_text(answer::size_of(file)).and_then(|mut text| {
        let appended = answer::write_content(file, detailed, blocking, room, &mut text)?;
        Ok((appended, text))
    });
    match appended {
        Ok((Appended::Whole, text)) => reply.ok_text(text),
        Ok((Appended::NoRoom(room), _)) => return Err((reply, Obstacle::NoRoom(room))),
        Err(error) if answer::would_block(&error) => {
            return Err((reply, Obstacle::Slow(Box::new(result))));
        }
        Err(error) => reply.fail(&error),
    }
    Ok(())
}

/// Sends the result of a change.
fn finish_change(result: Result<FsReply, FsError>, reply: Reply) {
    match result {
        Ok(result) => {
            let finished = finish_plain(result, reply);
            debug_assert!(finished.is_ok(), "only lookups have large results");
        }
        Err(error) => reply.fail(&error.into()),
    }
}

/// Sends a result other than file content.
fn finish_plain(result: FsReply, mut reply: Reply) -> Result<(), (Reply, Obstacle)> {
    let mut text = match reply.begin_text(0) {
        Ok(text) => text,
        Err(error) => {
            reply.fail(&error);
            return Ok(());
        }
    };
    answer::write(&result, &mut text);
    let is_listing = matches!(result, FsReply::Listing(_) | FsReply::Walked(_) | FsReply::Text(_));
    if is_listing && !reply.try_reserve(text.memory()) {
        return Err((reply, Obstacle::NoRoom(text.memory())));
    }
    reply.ok_text(text);
    // Dropped after the reply: the last reference to a replaced file can block on the disk.
    drop(result);
    Ok(())
}
