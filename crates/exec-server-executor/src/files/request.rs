//! Decodes requests of `fs/*` and routes them to their handlers.

use exec_server_fs::{FsRequest, PathParams, local_path};
use exec_server_protocol::fs::{
    FsBatchParams, FsBatchRequest, FsCancelSearchParams, FsCloseParams, FsNextPageParams,
    FsOpenParams, FsReadBlockParams, FsReadChangesParams, FsUnwatchParams, FsWatchMissingParams,
    FsWatchParams, FsWriteBlockParams, Sandbox,
};
use exec_server_protocol::limits::{MAX_BATCH_REQUESTS, MAX_SEARCH_ID_BYTES};
use exec_server_protocol::methods::Method;
use exec_server_protocol::path_uri::NativePaths;
use exec_server_protocol::user::UserName;
use exec_server_sandbox::plan::Sandboxes;

use super::batch::BatchItem;
use super::handles::OpenCall;
use super::search::SearchCall;
use super::tree_watches::{TreeWatches, WatchCall};
use super::{Files, PathCall, Scope, run_guarded, run_path};
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
    /// The request that changes files, and what limits it.
    pub fn changing(&self) -> Option<(&FsRequest, &Scope)> {
        let (request, scope) = match self {
            Self::Path(call) => (&call.request, &call.scope),
            Self::Open(call) => (&call.request, &call.scope),
            _ => return None,
        };
        (!request.is_lookup()).then_some((request, scope))
    }
}

/// Decodes the params of an `fs/*` method.
pub fn decode(server: &Server, method: Method, raw: &str) -> Result<FileCall, RequestError> {
    let decoder = Decoder { native: server.config.native_paths, sandboxes: &server.sandboxes };
    Ok(match method {
        Method::FsOpen => FileCall::Open(decoder.open(read(raw)?)?),
        Method::FsReadBlock => FileCall::ReadBlock(read(raw)?),
        Method::FsWriteBlock => {
            let params = FsWriteBlockParams::decode(raw).map_err(RequestError::InvalidParams)?;
            FileCall::WriteBlock(params)
        }
        Method::FsClose => FileCall::Close(read(raw)?),
        Method::FsBatch => FileCall::Batch(decoder.batch(read(raw)?)?),
        Method::FsWatch => FileCall::Watch(decoder.watch(read(raw)?)?),
        Method::FsReadChanges => FileCall::ReadChanges(read(raw)?),
        Method::FsUnwatch => FileCall::Unwatch(read(raw)?),
        Method::FsSearch => FileCall::Search(Box::new(decoder.search(read(raw)?)?)),
        Method::FsFind => FileCall::Search(Box::new(decoder.find(read(raw)?)?)),
        Method::FsNextPage => FileCall::NextPage(read(raw)?),
        Method::FsCancelSearch => FileCall::CancelSearch(read(raw)?),
        Method::FsWatchMissing => FileCall::WatchMissing(read(raw)?),
        method => FileCall::Path(decoder.path_call(method, raw)?),
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
            FileCall::Watch(call) => {
                TreeWatches::watch(caller.session.watches().clone(), call, reply)
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

impl Decoder<'_> {
    fn path_call(&self, method: Method, raw: &str) -> Result<PathCall, RequestError> {
        let decoded = exec_server_fs::decode(method, raw, self.native);
        let decoded = decoded.unwrap_or_else(|| unreachable!("{} has no path", method.name()))?;
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

    fn watch(&self, params: FsWatchParams) -> Result<WatchCall, RequestError> {
        if params.watch_id.len() > MAX_SEARCH_ID_BYTES {
            let reason = format!("watchId must not exceed {MAX_SEARCH_ID_BYTES} bytes");
            return Err(RequestError::InvalidParams(reason));
        }
        Ok(WatchCall {
            id: params.watch_id,
            path: local_path(&params.path, self.native)?,
            recursive: params.recursive,
            coalesce_ms: params.coalesce_ms,
        })
    }

    fn batch(&self, params: FsBatchParams) -> Result<Vec<BatchItem>, RequestError> {
        if params.requests.len() > MAX_BATCH_REQUESTS {
            return Err(RequestError::BatchTooLong);
        }
        let item = |request: &FsBatchRequest| {
            let method = Method::by_name(&request.method).filter(|method| is_lookup(*method));
            let method = method.ok_or_else(|| RequestError::NotForBatch(request.method.clone()))?;
            self.path_call(method, request.params.get())
        };
        Ok(params.requests.iter().map(item).collect())
    }
}

/// Whether a method is allowed in `fs/batch`.
fn is_lookup(method: Method) -> bool {
    matches!(
        method,
        Method::FsReadFile
            | Method::FsGetMetadata
            | Method::FsCanonicalize
            | Method::FsReadDirectory
            | Method::FsReadLink
    )
}
