//! Decodes the params of `fs/*` into file requests.

use std::cell::RefCell;
use std::path::PathBuf;
use std::time::Duration;

use exec_server_fs::byte_fields::path_from_bytes;
use exec_server_fs::tree_watch::WatchSpec;
use exec_server_fs::{
    Detail, FileAttributes, FsRequest, Links, Page, TextEdit, WriteOptions, decode_cursor,
};
use exec_server_protocol::fs::{
    Data64, Durability, FsAppendParams, FsBatchParams, FsCanonicalizeParams, FsCopyParams,
    FsCreateDirectoryParams, FsEditParams, FsGetMetadataParams, FsOpenParams,
    FsReadDirectoryParams, FsReadFileParams, FsReadLinkParams, FsRemoveParams, FsRenameParams,
    FsSetPermissionsParams, FsSymlinkParams, FsTextEdit, FsTruncateParams, FsWalkParams,
    FsWatchParams, FsWriteBlockParams, FsWriteFileParams, OpenMode, Sandbox,
};
use exec_server_protocol::limits::{
    DEFAULT_COALESCE_MS, MAX_BATCH_REQUESTS, MAX_COALESCE_MS, MAX_DETAILED_ENTRIES,
    MAX_DIRECTORY_ENTRIES, MAX_SEARCH_ID_BYTES, MAX_TEXT_EDITS,
};
use exec_server_protocol::methods::Method;
use exec_server_protocol::path_uri::{NativePaths, PathUri};
use exec_server_protocol::user::UserName;
use exec_server_sandbox::plan::Sandboxes;

use super::batch::BatchItem;
use super::handles::OpenCall;
use super::tree_watches::WatchCall;
use super::{FileCall, PathCall, Scope};
use crate::dispatch::read;
use crate::errors::RequestError;
use crate::server::Server;

/// Decodes the params of an `fs/*` method.
pub fn decode(server: &Server, method: Method, raw: &str) -> Result<FileCall, RequestError> {
    let native = server.config.native_paths;
    let decoder = Decoder { native, sandboxes: &server.sandboxes, scope: RefCell::default() };
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

pub(super) struct Decoder<'a> {
    native: NativePaths,
    sandboxes: &'a Sandboxes,
    /// Policy and user of the request that is being decoded; set by `path`.
    pub(super) scope: RefCell<Scope>,
}

impl Decoder<'_> {
    fn path_call(&self, method: Method, raw: &str) -> Result<PathCall, RequestError> {
        let plain = |request| PathCall { request, detailed: false, scope: self.scope.take() };
        Ok(match method {
            Method::FsReadFile => self.read_file(read(raw)?)?,
            Method::FsWriteFile => {
                let params = FsWriteFileParams::decode(raw).map_err(RequestError::InvalidParams)?;
                plain(self.write_file(params)?)
            }
            Method::FsAppend => plain(self.append(read(raw)?)?),
            Method::FsTruncate => plain(self.truncate(read(raw)?)?),
            Method::FsEdit => plain(self.edit(read(raw)?)?),
            Method::FsCreateDirectory => plain(self.create_directory(read(raw)?)?),
            Method::FsGetMetadata => plain(self.metadata(read(raw)?)?),
            Method::FsCanonicalize => {
                let params: FsCanonicalizeParams = read(raw)?;
                plain(FsRequest::Canonicalize {
                    path: self.path(&params.path, &params.sandbox, &params.user)?,
                })
            }
            Method::FsReadDirectory => plain(self.list(read(raw)?)?),
            Method::FsWalk => {
                let params: FsWalkParams = read(raw)?;
                let path = self.path(&params.path, &params.sandbox, &params.user)?;
                plain(FsRequest::Walk { path, options: params.options })
            }
            Method::FsRemove => plain(self.remove(read(raw)?)?),
            Method::FsCopy => plain(self.copy(read(raw)?)?),
            Method::FsRename => plain(self.rename(read(raw)?)?),
            Method::FsSymlink => plain(self.symlink(read(raw)?)?),
            Method::FsReadLink => {
                let params: FsReadLinkParams = read(raw)?;
                plain(FsRequest::ReadLink {
                    path: self.path(&params.path, &params.sandbox, &params.user)?,
                })
            }
            Method::FsSetPermissions => plain(self.set_permissions(read(raw)?)?),
            other => unreachable!("{} is not about a path", other.name()),
        })
    }

    pub(super) fn path(
        &self,
        uri: &PathUri,
        sandbox: &Sandbox,
        user: &Option<UserName>,
    ) -> Result<PathBuf, RequestError> {
        let policy = self.sandboxes.for_files(sandbox.as_ref())?;
        *self.scope.borrow_mut() = Scope { policy, user: user.clone() };
        Ok(path_from_bytes(uri.to_posix(self.native)?))
    }

    fn read_file(&self, params: FsReadFileParams) -> Result<PathCall, RequestError> {
        let path = self.path(&params.path, &params.sandbox, &params.user)?;
        let request = FsRequest::Read { path, links: links(params.follow_symlinks) };
        let detailed = params.detailed == Some(true);
        Ok(PathCall { request, detailed, scope: self.scope.take() })
    }

    fn open(&self, params: FsOpenParams) -> Result<OpenCall, RequestError> {
        let path = self.path(&params.path, &params.sandbox, &params.user)?;
        let detailed = params.detailed == Some(true);
        let request = match params.mode {
            OpenMode::Read => FsRequest::Read { path, links: Links::Follow },
            OpenMode::Replace => {
                let options = WriteOptions {
                    if_absent: params.if_absent == Some(true),
                    attributes: attributes(
                        params.mode_bits,
                        params.new_mode_bits,
                        params.modified_at_ms,
                    )?,
                    ..change(params.durability, params.if_match, detailed)
                };
                FsRequest::Replace { path, options }
            }
        };
        Ok(OpenCall { id: params.handle_id, request, detailed, scope: self.scope.take() })
    }

    fn write_file(&self, params: FsWriteFileParams) -> Result<FsRequest, RequestError> {
        let path = self.path(&params.path, &params.sandbox, &params.user)?;
        let attributes = attributes(params.mode_bits, params.new_mode_bits, params.modified_at_ms)?;
        let options = WriteOptions {
            if_absent: params.if_absent == Some(true),
            attributes,
            ..change(params.durability, params.if_match, params.detailed == Some(true))
        };
        let data = content("fs/writeFile", params.data_base64)?;
        Ok(FsRequest::Write { path, links: links(params.follow_symlinks), data, options })
    }

    fn append(&self, params: FsAppendParams) -> Result<FsRequest, RequestError> {
        Ok(FsRequest::Append {
            path: self.path(&params.path, &params.sandbox, &params.user)?,
            links: links(params.follow_symlinks),
            data: content("fs/append", params.data_base64)?,
            create: params.create.unwrap_or(true),
            options: change(params.durability, params.if_match, true),
        })
    }

    fn truncate(&self, params: FsTruncateParams) -> Result<FsRequest, RequestError> {
        Ok(FsRequest::Truncate {
            path: self.path(&params.path, &params.sandbox, &params.user)?,
            links: links(params.follow_symlinks),
            size: params.size,
            options: change(params.durability, params.if_match, true),
        })
    }

    fn edit(&self, params: FsEditParams) -> Result<FsRequest, RequestError> {
        let wrong = |reason: &str| Err(RequestError::InvalidParams(reason.to_owned()));
        if params.edits.is_empty() || params.edits.len() > MAX_TEXT_EDITS {
            return wrong(&format!("fs/edit takes 1 to {MAX_TEXT_EDITS} edits"));
        }
        if params.edits.iter().any(|edit| edit.old.is_empty()) {
            return wrong("`old` must not be empty; use fs/writeFile for a new file");
        }
        let edit = |edit: FsTextEdit| TextEdit {
            old: edit.old,
            new: edit.new,
            replace_all: edit.replace_all,
        };
        Ok(FsRequest::Edit {
            path: self.path(&params.path, &params.sandbox, &params.user)?,
            links: links(params.follow_symlinks),
            edits: params.edits.into_iter().map(edit).collect(),
            options: change(params.durability, params.if_match, true),
            dry_run: params.dry_run,
        })
    }

    fn create_directory(&self, params: FsCreateDirectoryParams) -> Result<FsRequest, RequestError> {
        Ok(FsRequest::CreateDirectory {
            path: self.path(&params.path, &params.sandbox, &params.user)?,
            recursive: params.recursive.unwrap_or(true),
            links: links(params.follow_symlinks),
        })
    }

    fn metadata(&self, params: FsGetMetadataParams) -> Result<FsRequest, RequestError> {
        Ok(FsRequest::Metadata {
            path: self.path(&params.path, &params.sandbox, &params.user)?,
            links: links(params.follow_symlinks),
            detail: detail(params.detailed),
        })
    }

    fn list(&self, params: FsReadDirectoryParams) -> Result<FsRequest, RequestError> {
        let detail = detail(params.detailed);
        let most = match detail {
            Detail::Basic => MAX_DIRECTORY_ENTRIES,
            Detail::Full => MAX_DETAILED_ENTRIES,
        };
        let after = match &params.cursor {
            None => None,
            Some(cursor) => Some(decode_cursor(cursor).ok_or_else(|| {
                RequestError::InvalidParams("cursor was not issued by this server".to_owned())
            })?),
        };
        let page = match (params.limit, after) {
            (None, None) => None,
            (Some(0), _) => {
                return Err(RequestError::InvalidParams("limit must not be zero".to_owned()));
            }
            (limit, after) => {
                let limit = limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(most);
                Some(Page { limit: limit.min(most), after })
            }
        };
        Ok(FsRequest::List {
            path: self.path(&params.path, &params.sandbox, &params.user)?,
            page,
            detail,
        })
    }

    fn remove(&self, params: FsRemoveParams) -> Result<FsRequest, RequestError> {
        Ok(FsRequest::Remove {
            path: self.path(&params.path, &params.sandbox, &params.user)?,
            recursive: params.recursive.unwrap_or(true),
            force: params.force.unwrap_or(true),
            links: links(params.follow_symlinks),
        })
    }

    fn copy(&self, params: FsCopyParams) -> Result<FsRequest, RequestError> {
        Ok(FsRequest::Copy {
            source: self.path(&params.source_path, &params.sandbox, &params.user)?,
            destination: self.path(&params.destination_path, &params.sandbox, &params.user)?,
            recursive: params.recursive,
        })
    }

    fn rename(&self, params: FsRenameParams) -> Result<FsRequest, RequestError> {
        Ok(FsRequest::Rename {
            source: self.path(&params.source_path, &params.sandbox, &params.user)?,
            destination: self.path(&params.destination_path, &params.sandbox, &params.user)?,
            no_replace: params.no_replace == Some(true),
        })
    }

    fn symlink(&self, params: FsSymlinkParams) -> Result<FsRequest, RequestError> {
        let target = match (params.target, params.target_base64) {
            (Some(text), None) => text.into_bytes(),
            (None, Some(bytes)) => bytes.0,
            _ => {
                let reason = "either `target` or `targetBase64` must be given";
                return Err(RequestError::InvalidParams(reason.to_owned()));
            }
        };
        let path = self.path(&params.path, &params.sandbox, &params.user)?;
        Ok(FsRequest::Symlink { path, target, replace: params.replace == Some(true) })
    }

    fn set_permissions(&self, params: FsSetPermissionsParams) -> Result<FsRequest, RequestError> {
        check_mode(params.mode)?;
        Ok(FsRequest::SetPermissions {
            path: self.path(&params.path, &params.sandbox, &params.user)?,
            mode: params.mode,
            modified_at_ms: params.modified_at_ms,
            links: links(params.follow_symlinks),
        })
    }

    fn watch(&self, params: FsWatchParams) -> Result<WatchCall, RequestError> {
        if params.watch_id.len() > MAX_SEARCH_ID_BYTES {
            let reason = format!("watchId must not exceed {MAX_SEARCH_ID_BYTES} bytes");
            return Err(RequestError::InvalidParams(reason));
        }
        let window = params.coalesce_ms.unwrap_or(DEFAULT_COALESCE_MS).min(MAX_COALESCE_MS);
        Ok(WatchCall {
            id: params.watch_id,
            spec: WatchSpec {
                path: self.path(&params.path, &params.sandbox, &params.user)?,
                recursive: params.recursive,
                window: Duration::from_millis(window),
            },
            scope: self.scope.take(),
        })
    }

    fn batch(&self, params: FsBatchParams) -> Result<Vec<BatchItem>, RequestError> {
        if params.requests.len() > MAX_BATCH_REQUESTS {
            return Err(RequestError::BatchTooLong);
        }
        let item = |request: &exec_server_protocol::fs::FsBatchRequest| {
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

fn links(follow: Option<bool>) -> Links {
    if follow.unwrap_or(true) { Links::Follow } else { Links::Refuse }
}

fn detail(detailed: Option<bool>) -> Detail {
    if detailed == Some(true) { Detail::Full } else { Detail::Basic }
}

/// The write options that all changes of a file share.
fn change(
    durability: Option<Durability>,
    if_match: Option<String>,
    detailed: bool,
) -> WriteOptions {
    let durability = durability.unwrap_or_default();
    WriteOptions { durability, if_match, detailed, ..WriteOptions::default() }
}

fn attributes(
    mode: Option<u32>,
    new_mode: Option<u32>,
    modified_at_ms: Option<i64>,
) -> Result<FileAttributes, RequestError> {
    [mode, new_mode].into_iter().flatten().try_for_each(check_mode)?;
    Ok(FileAttributes { mode, new_mode, modified_at_ms })
}

fn check_mode(mode: u32) -> Result<(), RequestError> {
    if mode > 0o7777 {
        let reason = format!("mode {mode:#o} has more than permission bits");
        return Err(RequestError::InvalidParams(reason));
    }
    Ok(())
}

fn content(method: &'static str, data: Data64) -> Result<Vec<u8>, RequestError> {
    data.0.map_err(|source| RequestError::Content { method, source })
}
