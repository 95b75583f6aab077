//! Decodes requests of `fs/*` and routes them to their handlers.

use std::time::Duration;

use exec_server_fs::tree_watch::WatchSpec;
use exec_server_fs::{PathParams, local_path};
use exec_server_protocol::fs::{
    FsBatchParams, FsBatchRequest, FsCancelSearchParams, FsCloseParams, FsNextPageParams,
    FsOpenParams, FsReadBlockParams, FsReadChangesParams, FsUnwatchParams, FsWatchMissingParams,
    FsWatchParams, FsWriteBlockParams, Sandbox,
};
use exec_server_protocol::limits::{
    DEFAULT_COALESCE_MS, MAX_BATCH_REQUESTS, MAX_COALESCE_MS, MAX_SEARCH_ID_BYTES,
};
use exec_server_protocol::methods::{FileMethod, Handler, Method, PathMethod};
use exec_server_protocol::path_uri::NativePaths;
use exec_server_protocol::user::UserName;
use exec_server_sandbox::plan::Sandboxes;

use super::batch::BatchItem;
use super::handles::OpenCall;
use super::search::SearchCall;
use super::tree_watches::{TreeWatches, WatchCall};
use super::{Files, PathCall, Scope, run_guarded, run_path};
use crate::audit;
use crate::dispatch::{Caller, read};
use crate::errors::RequestError;
use crate::reply::Reply;
use crate::server::Server;

/// A file request with decoded params.
#[derive(Debug)]
pub enum FileCall {
    /// A request about a path.
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
    /// `fs/watch`.
    Watch(WatchCall),
    /// `fs/readChanges`.
    ReadChanges(FsReadChangesParams),
    /// `fs/unwatch`.
    Unwatch(FsUnwatchParams),
    /// `fs/search` and `fs/find`.
    Search(Box<SearchCall>),
    /// `fs/nextPage`.
    NextPage(FsNextPageParams),
    /// `fs/cancelSearch`.
    CancelSearch(FsCancelSearchParams),
}

impl FileCall {
    /// What the audit log says about a call that changes files; `None` for every other call.
    pub fn audit_details(&self) -> Option<audit::Details> {
        let (request, scope) = match self {
            Self::Path(call) => (&call.request, &call.scope),
            Self::Open(call) => (&call.request, &call.scope),
            // The blocks and the end of a handle belong to its `fs/open`.
            Self::ReadBlock(_)
            | Self::WriteBlock(_)
            | Self::Close(_)
            | Self::Batch(_)
            | Self::WatchMissing(_)
            | Self::Watch(_)
            | Self::ReadChanges(_)
            | Self::Unwatch(_)
            | Self::Search(_)
            | Self::NextPage(_)
            | Self::CancelSearch(_) => return None,
        };
        (!request.is_lookup()).then(|| audit::Details {
            paths: request.changes().into_iter().map(audit::shown).collect(),
            sandboxed: Some(scope.is_sandboxed()),
            user: scope.user().cloned(),
            ..audit::Details::default()
        })
    }
}

/// Decodes the params of an `fs/*` method about a path.
pub fn decode_path(
    server: &Server,
    method: PathMethod,
    raw: &str,
) -> Result<FileCall, RequestError> {
    Decoder::new(server).path_call(method, raw).map(FileCall::Path)
}

/// Decodes the params of every other `fs/*` method.
pub fn decode(server: &Server, method: FileMethod, raw: &str) -> Result<FileCall, RequestError> {
    let decoder = Decoder::new(server);
    Ok(match method {
        FileMethod::FsOpen => FileCall::Open(decoder.open(read(raw)?)?),
        FileMethod::FsReadBlock => FileCall::ReadBlock(read(raw)?),
        FileMethod::FsWriteBlock => {
            let params = FsWriteBlockParams::decode(raw).map_err(RequestError::InvalidParams)?;
            FileCall::WriteBlock(params)
        }
        FileMethod::FsClose => FileCall::Close(read(raw)?),
        FileMethod::FsBatch => FileCall::Batch(decoder.batch(read(raw)?)?),
        FileMethod::FsWatch => FileCall::Watch(decoder.watch(read(raw)?)?),
        FileMethod::FsReadChanges => FileCall::ReadChanges(read(raw)?),
        FileMethod::FsUnwatch => FileCall::Unwatch(read(raw)?),
        FileMethod::FsSearch => FileCall::Search(Box::new(decoder.search(read(raw)?)?)),
        FileMethod::FsFind => FileCall::Search(Box::new(decoder.find(read(raw)?)?)),
        FileMethod::FsNextPage => FileCall::NextPage(read(raw)?),
        FileMethod::FsCancelSearch => FileCall::CancelSearch(read(raw)?),
        FileMethod::FsWatchMissing => FileCall::WatchMissing(read(raw)?),
    })
}

impl Files {
    /// Answers a request at once, or moves it to a blocking thread or a task.
    pub fn run(&self, caller: &Caller, call: FileCall, reply: Reply) {
        match call {
            FileCall::Path(PathCall { request, detailed, scope }) => {
                match self.guard(caller, scope) {
                    Some(guard) => {
                        caller.server.spawn(run_guarded(guard, request, detailed, reply));
                    }
                    None => {
                        run_path(PathCall { request, detailed, scope: Scope::default() }, reply);
                    }
                }
            }
            FileCall::Open(mut call) => {
                let guard = self.guard(caller, std::mem::take(&mut call.scope));
                self.handles.open(call, guard, reply);
            }
            FileCall::ReadBlock(params) => self.handles.read_block(params, reply),
            FileCall::WriteBlock(params) => self.handles.write_block(params, reply),
            FileCall::Close(params) => self.handles.close(params, reply),
            FileCall::Batch(items) => self.run_batch(caller, items, reply),
            FileCall::Watch(mut call) => {
                let guard = self.guard(caller, std::mem::take(&mut call.scope));
                TreeWatches::watch(caller, call, guard, reply);
            }
            FileCall::ReadChanges(params) => {
                caller.session.watches().read(caller.server, params, reply);
            }
            FileCall::Unwatch(params) => caller.session.watches().unwatch(&params, reply),
            FileCall::Search(mut call) => {
                let guard = self.guard(caller, std::mem::take(&mut call.scope));
                self.searches.start(caller.server, *call, guard, reply);
            }
            FileCall::NextPage(params) => self.searches.next_page(caller.server, params, reply),
            FileCall::CancelSearch(params) => self.searches.cancel(params, reply),
            FileCall::WatchMissing(params) => self.watch.watch(caller.server, params, reply),
        }
    }
}

pub(super) struct Decoder<'a> {
    pub(super) native: NativePaths,
    sandboxes: &'a Sandboxes,
}

impl<'a> Decoder<'a> {
    fn new(server: &'a Server) -> Self {
        Self { native: server.config.native_paths, sandboxes: &server.sandboxes }
    }

    fn path_call(&self, method: PathMethod, raw: &str) -> Result<PathCall, RequestError> {
        let decoded = exec_server_fs::decode(method, raw, self.native)?;
        let scope = self.scope((decoded.sandbox, decoded.user))?;
        Ok(PathCall { request: decoded.request, detailed: decoded.detailed, scope })
    }

    /// Compiles the policy of a request.
    pub(super) fn scope(
        &self,
        (sandbox, user): (Sandbox, Option<UserName>),
    ) -> Result<Scope, RequestError> {
        Ok(Scope { policy: self.sandboxes.for_files(sandbox.as_ref())?, user })
    }

    fn open(&self, mut params: FsOpenParams) -> Result<OpenCall, RequestError> {
        let id = std::mem::take(&mut params.handle_id);
        let decoded = params.decode(self.native)?;
        let scope = self.scope((decoded.sandbox, decoded.user))?;
        Ok(OpenCall { id, request: decoded.request, detailed: decoded.detailed, scope })
    }

    fn watch(&self, mut params: FsWatchParams) -> Result<WatchCall, RequestError> {
        if params.watch_id.len() > MAX_SEARCH_ID_BYTES {
            let reason = format!("watchId must not exceed {MAX_SEARCH_ID_BYTES} bytes");
            return Err(RequestError::InvalidParams(reason));
        }
        let scope = self.scope((params.sandbox.take(), params.user.take()))?;
        let window = params.coalesce_ms.unwrap_or(DEFAULT_COALESCE_MS).min(MAX_COALESCE_MS);
        Ok(WatchCall {
            id: params.watch_id,
            spec: WatchSpec {
                path: local_path(&params.path, self.native)?,
                recursive: params.recursive,
                window: Duration::from_millis(window),
            },
            scope,
        })
    }

    fn batch(&self, params: FsBatchParams) -> Result<Vec<BatchItem>, RequestError> {
        if params.requests.len() > MAX_BATCH_REQUESTS {
            return Err(RequestError::BatchTooLong);
        }
        let item = |request: &FsBatchRequest| match Method::by_name(&request.method)
            .map(Method::handler)
        {
            Some(Handler::Path(method)) if is_lookup(method) => {
                self.path_call(method, request.params.get())
            }
            _ => Err(RequestError::NotForBatch(request.method.clone())),
        };
        Ok(params.requests.iter().map(item).collect())
    }
}

/// Whether a method is allowed in `fs/batch`.
fn is_lookup(method: PathMethod) -> bool {
    matches!(
        method,
        PathMethod::FsReadFile
            | PathMethod::FsGetMetadata
            | PathMethod::FsCanonicalize
            | PathMethod::FsReadDirectory
            | PathMethod::FsReadLink
    )
}
