//! File operations on the server's machine.

use exec_server_core::listing::{BadListing, Listing};
use exec_server_protocol::fs::{
    FsAppendParams, FsCanonicalizeParams, FsCanonicalizeResponse, FsCopyParams,
    FsCreateDirectoryParams, FsDirectoryEntry, FsEditParams, FsEditResponse, FsFindPage,
    FsFindParams, FsGetMetadataParams, FsGetMetadataResponse, FsReadDirectoryParams,
    FsReadDirectoryResponse, FsReadFileParams, FsReadFileResponse, FsReadLinkParams,
    FsReadLinkResponse, FsRemoveParams, FsRenameParams, FsSearchPage, FsSearchParams,
    FsSetPermissionsParams, FsSymlinkParams, FsTextEdit, FsTruncateParams, FsWalkOptions,
    FsWalkParams, FsWalkResponse, FsWatchMissingParams, FsWatchMissingResponse, FsWatchParams,
    FsWatchResponse, FsWriteFileParams, FsWriteFileResponse, Sandbox, SandboxText,
};
use exec_server_protocol::limits::MAX_WHOLE_FILE_BYTES;
use exec_server_protocol::methods::Method;
use exec_server_protocol::path_uri::PathUri;
use exec_server_protocol::sandbox::SandboxParams;
use exec_server_protocol::user::UserName;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::caller::{Caller, Replay};
use crate::error::ExecServerError;
use crate::remote_path::RemotePath;

mod answers;
mod changes;
mod reading;
mod searching;
mod watching;
mod writing;

pub use changes::TreeWatch;
pub use reading::FileReadStream;
pub use searching::{SearchPage, SearchPages};
pub use watching::MissingWatch;
pub use writing::FileWriteStream;

/// Directory entries per page: most directories fit into one page, and a page stays far below the message limit.
const PAGE: u64 = 5000;

/// File operations on the server's machine; cheap to clone. No call is retried after a disconnect.
///
/// Paths are absolute, relative to the server's working directory, or `file:` URIs.
#[derive(Clone)]
pub struct ExecutorFileSystem {
    caller: Caller,
    sandbox: Sandbox,
    user: Option<UserName>,
}

/// How a directory is created.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Parents {
    /// Creates missing parents; an existing directory is not an error.
    Create,
    /// The parent must exist and the directory must not.
    Require,
}

/// What a removal includes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Removal {
    /// A file or an empty directory, which must exist.
    Single,
    /// The whole tree; a missing path is not an error.
    Tree,
}

impl ExecutorFileSystem {
    pub(crate) fn new(caller: Caller) -> Self {
        Self { caller, sandbox: None, user: None }
    }

    /// The same files, with every request restricted to what the sandbox policy allows.
    #[must_use]
    pub fn with_sandbox(&self, sandbox: &SandboxParams) -> Self {
        Self { sandbox: Some(SandboxText::new(sandbox)), ..self.clone() }
    }

    /// The same files, with the rights of this user of the server's machine, a name or a number; new files belong to it.
    #[must_use]
    pub fn with_user(&self, user: impl Into<UserName>) -> Self {
        Self { user: Some(user.into()), ..self.clone() }
    }

    /// Reads a whole file.
    pub async fn read_file(&self, path: impl Into<RemotePath>) -> Result<Vec<u8>, ExecServerError> {
        let params = FsReadFileParams {
            path: self.resolve(path).await?,
            follow_symlinks: None,
            sandbox: self.sandbox.clone(),
            user: self.user.clone(),
            detailed: None,
        };
        let answer: FsReadFileResponse = self.call(Method::FsReadFile, &params).await?;
        Ok(answer.data_base64.0)
    }

    /// Reads a whole file and checks that it is UTF-8.
    pub async fn read_file_text(
        &self,
        path: impl Into<RemotePath>,
    ) -> Result<String, ExecServerError> {
        String::from_utf8(self.read_file(path).await?)
            .map_err(|error| ExecServerError::Invalid(format!("the file is not UTF-8: {error}")))
    }

    /// Opens a file for reading in blocks; dropping the stream closes its handle.
    pub async fn read_file_stream(
        &self,
        path: impl Into<RemotePath>,
    ) -> Result<FileReadStream, ExecServerError> {
        let path = self.resolve(path).await?;
        FileReadStream::open(&self.caller, path, self.sandbox.clone(), self.user.clone()).await
    }

    /// Replaces the content of a file atomically; content above the limit of one message is sent in blocks.
    pub async fn write_file(
        &self,
        path: impl Into<RemotePath>,
        content: impl Into<Vec<u8>>,
    ) -> Result<FsWriteFileResponse, ExecServerError> {
        let (path, content) = (self.resolve(path).await?, content.into());
        if content.len() as u64 > MAX_WHOLE_FILE_BYTES {
            let mut stream = self.write_file_stream(path).await?;
            stream.write(&content).await?;
            return stream.finish().await;
        }
        let params = FsWriteFileParams {
            path,
            data_base64: content.into(),
            follow_symlinks: None,
            sandbox: self.sandbox.clone(),
            user: self.user.clone(),
            durability: None,
            if_absent: None,
            if_match: None,
            detailed: None,
            mode_bits: None,
            new_mode_bits: None,
            modified_at_ms: None,
        };
        self.write_file_with(params).await
    }

    /// Writes a file with conditions, durability and details.
    pub async fn write_file_with(
        &self,
        params: FsWriteFileParams,
    ) -> Result<FsWriteFileResponse, ExecServerError> {
        if params.user.is_some() {
            self.require_user().await?;
        }
        let is_conditional = params.if_absent.is_some() || params.if_match.is_some();
        if is_conditional {
            self.require(|can| can.fs_conditional_write, "conditional writes").await?;
        }
        if params.durability.is_some() {
            self.require(|can| can.fs_atomic_write, "durable writes").await?;
        }
        self.call(Method::FsWriteFile, &params).await
    }

    /// Opens a file for writing in blocks; [`FileWriteStream::finish`] replaces the old content.
    pub async fn write_file_stream(
        &self,
        path: impl Into<RemotePath>,
    ) -> Result<FileWriteStream, ExecServerError> {
        self.require(|can| can.file_write_streaming, "writing a file in blocks").await?;
        let path = self.resolve(path).await?;
        FileWriteStream::open(&self.caller, path, self.sandbox.clone(), self.user.clone()).await
    }

    /// Appends to a file, and creates it if it does not exist.
    pub async fn append(
        &self,
        path: impl Into<RemotePath>,
        content: impl Into<Vec<u8>>,
    ) -> Result<FsWriteFileResponse, ExecServerError> {
        let params = FsAppendParams {
            path: self.resolve(path).await?,
            data_base64: content.into().into(),
            create: None,
            follow_symlinks: None,
            sandbox: self.sandbox.clone(),
            user: self.user.clone(),
            durability: None,
            if_match: None,
        };
        self.call(Method::FsAppend, &params).await
    }

    /// Sets the length of a file.
    pub async fn truncate(
        &self,
        path: impl Into<RemotePath>,
        size: u64,
    ) -> Result<FsWriteFileResponse, ExecServerError> {
        let params = FsTruncateParams {
            path: self.resolve(path).await?,
            size,
            follow_symlinks: None,
            sandbox: self.sandbox.clone(),
            user: self.user.clone(),
            durability: None,
            if_match: None,
        };
        self.call(Method::FsTruncate, &params).await
    }

    /// Replaces pieces of text in a file, all of them or none.
    ///
    /// Text that is missing or not unique fails with an error whose [`edit_mismatch`](ExecServerError::edit_mismatch) says
    /// how often it occurs, or where the most similar text is.
    pub async fn edit(
        &self,
        path: impl Into<RemotePath>,
        edits: Vec<FsTextEdit>,
    ) -> Result<FsEditResponse, ExecServerError> {
        self.edit_with(FsEditParams {
            path: self.resolve(path).await?,
            edits,
            follow_symlinks: None,
            sandbox: self.sandbox.clone(),
            user: self.user.clone(),
            durability: None,
            if_match: None,
            dry_run: false,
        })
        .await
    }

    /// Edits a file with conditions and durability.
    pub async fn edit_with(&self, params: FsEditParams) -> Result<FsEditResponse, ExecServerError> {
        self.require(|can| can.fs_edit, "fs/edit").await?;
        if params.user.is_some() {
            self.require_user().await?;
        }
        self.call(Method::FsEdit, &params).await
    }

    /// Creates a directory.
    pub async fn create_directory(
        &self,
        path: impl Into<RemotePath>,
        parents: Parents,
    ) -> Result<(), ExecServerError> {
        let params = FsCreateDirectoryParams {
            path: self.resolve(path).await?,
            recursive: Some(parents == Parents::Create),
            follow_symlinks: None,
            sandbox: self.sandbox.clone(),
            user: self.user.clone(),
        };
        self.call_for_nothing(Method::FsCreateDirectory, &params).await
    }

    /// Reads the metadata of a file; follows symbolic links.
    pub async fn metadata(
        &self,
        path: impl Into<RemotePath>,
    ) -> Result<FsGetMetadataResponse, ExecServerError> {
        self.ask_metadata(path, None).await
    }

    /// Reads the metadata of a path without following a symbolic link, on a server with detailed metadata.
    pub async fn symlink_metadata(
        &self,
        path: impl Into<RemotePath>,
    ) -> Result<FsGetMetadataResponse, ExecServerError> {
        self.require(|can| can.fs_detailed_metadata, "metadata of links").await?;
        self.ask_metadata(path, Some(false)).await
    }

    async fn ask_metadata(
        &self,
        path: impl Into<RemotePath>,
        follow_symlinks: Option<bool>,
    ) -> Result<FsGetMetadataResponse, ExecServerError> {
        let can_detail = self.caller.capabilities().await?.fs_detailed_metadata;
        let params = FsGetMetadataParams {
            path: self.resolve(path).await?,
            follow_symlinks,
            sandbox: self.sandbox.clone(),
            user: self.user.clone(),
            detailed: can_detail.then_some(true),
        };
        self.call(Method::FsGetMetadata, &params).await
    }

    /// Whether a path exists; a broken symbolic link does not.
    pub async fn exists(&self, path: impl Into<RemotePath>) -> Result<bool, ExecServerError> {
        match self.metadata(path).await {
            Ok(_) => Ok(true),
            Err(error) if error.is_not_found() => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Resolves all symbolic links of a path.
    pub async fn canonicalize(
        &self,
        path: impl Into<RemotePath>,
    ) -> Result<PathUri, ExecServerError> {
        let params = FsCanonicalizeParams {
            path: self.resolve(path).await?,
            sandbox: self.sandbox.clone(),
            user: self.user.clone(),
        };
        let answer: FsCanonicalizeResponse = self.call(Method::FsCanonicalize, &params).await?;
        Ok(answer.path)
    }

    /// Lists a directory, in pages if the server supports them.
    ///
    /// An entry whose name is empty, `.`, `..`, a path or a duplicate is a protocol error.
    pub async fn read_directory(
        &self,
        path: impl Into<RemotePath>,
    ) -> Result<Vec<FsDirectoryEntry>, ExecServerError> {
        let can_page = self.caller.capabilities().await?.fs_directory_paging;
        let params = FsReadDirectoryParams {
            path: self.resolve(path).await?,
            sandbox: self.sandbox.clone(),
            user: self.user.clone(),
            limit: can_page.then_some(PAGE),
            cursor: None,
            detailed: None,
        };
        let entries = self.read_whole_directory(params).await?;
        Ok(entries.into_iter().map(|(_, entry)| entry).collect())
    }

    /// Lists a directory from the cursor of `params`, and returns the exact bytes of every name.
    pub async fn read_whole_directory(
        &self,
        mut params: FsReadDirectoryParams,
    ) -> Result<Vec<(Vec<u8>, FsDirectoryEntry)>, ExecServerError> {
        if params.user.is_some() {
            self.require_user().await?;
        }
        let wrong = |error: BadListing| ExecServerError::Protocol(error.to_string());
        let mut listing = Listing::default();
        let mut entries = Vec::new();
        loop {
            let page: FsReadDirectoryResponse = self.read_directory_page(&params).await?;
            let has_next = page.next_cursor.is_some();
            listing.handle_page_end(page.entries.len(), has_next).map_err(wrong)?;
            for entry in page.entries {
                let address = entry.uri.as_ref().and_then(answers::last_component);
                let name =
                    listing.handle_entry(&entry.file_name, address.as_deref()).map_err(wrong)?;
                entries.push((name, entry));
            }
            match page.next_cursor {
                Some(cursor) => params.cursor = Some(cursor),
                None => return Ok(entries),
            }
        }
    }

    /// Reads one page of a directory, without checking the names.
    pub async fn read_directory_page(
        &self,
        params: &FsReadDirectoryParams,
    ) -> Result<FsReadDirectoryResponse, ExecServerError> {
        self.call(Method::FsReadDirectory, params).await
    }

    /// Lists a tree; an entry outside of it, a duplicate, or more entries than requested are a protocol error.
    pub async fn walk(
        &self,
        path: impl Into<RemotePath>,
        options: FsWalkOptions,
    ) -> Result<FsWalkResponse, ExecServerError> {
        let path = self.resolve(path).await?;
        let params =
            FsWalkParams { path, options, sandbox: self.sandbox.clone(), user: self.user.clone() };
        let found: FsWalkResponse = self.call(Method::FsWalk, &params).await?;
        answers::check_walk(&params, &found)?;
        Ok(found)
    }

    /// Searches the content of a tree or a file; the pages are read one by one.
    ///
    /// The id and, unless `params` has them, the sandbox and the user are set by this call.
    pub async fn search(
        &self,
        mut params: FsSearchParams,
    ) -> Result<SearchPages<FsSearchPage>, ExecServerError> {
        self.require(|can| can.fs_search, "fs/search").await?;
        let id = uuid::Uuid::new_v4().simple().to_string();
        params.search_id = Some(id.clone());
        params.sandbox = params.sandbox.or_else(|| self.sandbox.clone());
        params.user = params.user.or_else(|| self.user.clone());
        if params.user.is_some() {
            self.require_user().await?;
        }
        SearchPages::start(&self.caller, Method::FsSearch, id, &params).await
    }

    /// Searches the names of a tree; the pages are read one by one.
    ///
    /// The id and, unless `params` has them, the sandbox and the user are set by this call.
    pub async fn find(
        &self,
        mut params: FsFindParams,
    ) -> Result<SearchPages<FsFindPage>, ExecServerError> {
        self.require(|can| can.fs_search, "fs/find").await?;
        let id = uuid::Uuid::new_v4().simple().to_string();
        params.search_id = Some(id.clone());
        params.sandbox = params.sandbox.or_else(|| self.sandbox.clone());
        params.user = params.user.or_else(|| self.user.clone());
        if params.user.is_some() {
            self.require_user().await?;
        }
        SearchPages::start(&self.caller, Method::FsFind, id, &params).await
    }

    /// Watches a path, and with `recursive` everything below it.
    pub async fn watch(
        &self,
        path: impl Into<RemotePath>,
        recursive: bool,
    ) -> Result<TreeWatch, ExecServerError> {
        self.require(|can| can.fs_watch, "fs/watch").await?;
        if self.user.is_some() {
            self.require_user().await?;
        }
        let params = FsWatchParams {
            watch_id: uuid::Uuid::new_v4().simple().to_string(),
            path: self.resolve(path).await?,
            sandbox: self.sandbox.clone(),
            user: self.user.clone(),
            recursive,
            coalesce_ms: None,
        };
        let connection = self.caller.connection().await?;
        let answer: FsWatchResponse = self.call(Method::FsWatch, &params).await?;
        Ok(TreeWatch::new(self.caller.clone(), connection, answer))
    }

    /// Removes a file or a tree.
    pub async fn remove(
        &self,
        path: impl Into<RemotePath>,
        removal: Removal,
    ) -> Result<(), ExecServerError> {
        let params = FsRemoveParams {
            path: self.resolve(path).await?,
            recursive: Some(removal == Removal::Tree),
            force: Some(removal == Removal::Tree),
            follow_symlinks: None,
            sandbox: self.sandbox.clone(),
            user: self.user.clone(),
        };
        self.call_for_nothing(Method::FsRemove, &params).await
    }

    /// Copies a file, or a directory recursively.
    pub async fn copy(
        &self,
        source: impl Into<RemotePath>,
        destination: impl Into<RemotePath>,
    ) -> Result<(), ExecServerError> {
        let params = FsCopyParams {
            source_path: self.resolve(source).await?,
            destination_path: self.resolve(destination).await?,
            recursive: true,
            sandbox: self.sandbox.clone(),
            user: self.user.clone(),
        };
        self.call_for_nothing(Method::FsCopy, &params).await
    }

    /// Renames a file or directory; an existing destination is replaced.
    pub async fn rename(
        &self,
        source: impl Into<RemotePath>,
        destination: impl Into<RemotePath>,
    ) -> Result<(), ExecServerError> {
        let params = FsRenameParams {
            source_path: self.resolve(source).await?,
            destination_path: self.resolve(destination).await?,
            no_replace: None,
            sandbox: self.sandbox.clone(),
            user: self.user.clone(),
        };
        self.call_for_nothing(Method::FsRename, &params).await
    }

    /// Creates a symbolic link at `path` that points to `target`.
    pub async fn symlink(
        &self,
        target: impl Into<String>,
        path: impl Into<RemotePath>,
    ) -> Result<(), ExecServerError> {
        let params = FsSymlinkParams {
            path: self.resolve(path).await?,
            target: Some(target.into()),
            target_base64: None,
            replace: None,
            sandbox: self.sandbox.clone(),
            user: self.user.clone(),
        };
        self.call_for_nothing(Method::FsSymlink, &params).await
    }

    /// Reads the target of a symbolic link.
    pub async fn read_link(
        &self,
        path: impl Into<RemotePath>,
    ) -> Result<FsReadLinkResponse, ExecServerError> {
        let params = FsReadLinkParams {
            path: self.resolve(path).await?,
            sandbox: self.sandbox.clone(),
            user: self.user.clone(),
        };
        self.call(Method::FsReadLink, &params).await
    }

    /// Sets the permission bits of a file.
    pub async fn set_permissions(
        &self,
        path: impl Into<RemotePath>,
        mode: u32,
    ) -> Result<(), ExecServerError> {
        let params = FsSetPermissionsParams {
            path: self.resolve(path).await?,
            mode,
            modified_at_ms: None,
            follow_symlinks: None,
            sandbox: self.sandbox.clone(),
            user: self.user.clone(),
        };
        self.call_for_nothing(Method::FsSetPermissions, &params).await
    }

    /// Watches until one of the missing paths exists; a new watch replaces the previous one of the connection.
    pub async fn watch_missing(
        &self,
        missing: Vec<PathUri>,
    ) -> Result<MissingWatch, ExecServerError> {
        self.caller.require_method(Method::FsWatchMissing).await?;
        let connection = self.caller.connection().await?;
        let (watch_id, changed) = connection.shared().routes().add_watch()?;
        let params = FsWatchMissingParams { watch_id, missing, present: None };
        let answer: FsWatchMissingResponse =
            connection.call(Method::FsWatchMissing.name(), &params).await?;
        Ok(MissingWatch::new(connection, watch_id, changed, answer))
    }

    /// Resolves a path to a URI; a relative path is resolved against the server's working directory.
    pub async fn resolve(&self, path: impl Into<RemotePath>) -> Result<PathUri, ExecServerError> {
        if self.user.is_some() {
            self.require_user().await?;
        }
        let path = path.into();
        if !path.is_relative() {
            return path.resolve(None);
        }
        let cwd = self.caller.info().await?.and_then(|info| info.cwd);
        path.resolve(cwd.as_ref())
    }

    async fn call<R: DeserializeOwned>(
        &self,
        method: Method,
        params: &impl Serialize,
    ) -> Result<R, ExecServerError> {
        self.caller.call(method, params, replay(method)).await
    }

    async fn call_for_nothing(
        &self,
        method: Method,
        params: &impl Serialize,
    ) -> Result<(), ExecServerError> {
        self.call(method, params).await.map(|_: serde_json::Value| ())
    }

    async fn require_user(&self) -> Result<(), ExecServerError> {
        self.require(|can| can.fs_user, "files with the rights of another user").await
    }

    async fn require(
        &self,
        has: impl Fn(&exec_server_protocol::environment::Capabilities) -> bool,
        what: &'static str,
    ) -> Result<(), ExecServerError> {
        self.caller.require(has, what).await
    }
}

/// What changes nothing is asked again if its answer was lost with the connection.
fn replay(method: Method) -> Replay {
    match method {
        Method::FsReadFile
        | Method::FsGetMetadata
        | Method::FsCanonicalize
        | Method::FsReadDirectory
        | Method::FsReadLink
        | Method::FsWalk => Replay::Safe,
        _ => Replay::Never,
    }
}
