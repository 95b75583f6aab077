//! The server's files.

use exec_server_protocol::fs::{
    FsAppendParams, FsCanonicalizeParams, FsCanonicalizeResponse, FsCopyParams,
    FsCreateDirectoryParams, FsDirectoryEntry, FsGetMetadataParams, FsGetMetadataResponse,
    FsReadDirectoryParams, FsReadDirectoryResponse, FsReadFileParams, FsReadFileResponse,
    FsReadLinkParams, FsReadLinkResponse, FsRemoveParams, FsRenameParams, FsSetPermissionsParams,
    FsSymlinkParams, FsTruncateParams, FsWalkOptions, FsWalkParams, FsWalkResponse,
    FsWatchMissingParams, FsWatchMissingResponse, FsWriteFileParams, FsWriteFileResponse, Sandbox,
    SandboxText,
};
use exec_server_protocol::limits::MAX_WHOLE_FILE_BYTES;
use exec_server_protocol::methods::Method;
use exec_server_protocol::path_uri::PathUri;
use exec_server_protocol::sandbox::SandboxParams;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::caller::{Caller, Replay};
use crate::error::ExecServerError;
use crate::remote_path::RemotePath;

mod reading;
mod watching;
mod writing;

pub use reading::FileReadStream;
pub use watching::MissingWatch;
pub use writing::FileWriteStream;

/// Entries of one page of a directory: large enough for most, and far from the limit of a message.
const PAGE: u64 = 5000;

/// The server's files; cheap to clone. No call is ever repeated after a cut.
///
/// Paths are absolute, relative to the server's working directory, or `file:` URIs.
#[derive(Clone)]
pub struct ExecutorFileSystem {
    caller: Caller,
    sandbox: Sandbox,
}

/// How a directory is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Parents {
    /// Missing parents are made, and an existing directory is fine.
    Create,
    /// The parent must be there and the directory must not.
    Require,
}

/// How much is removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Removal {
    /// A file or an empty directory, which must be there.
    Single,
    /// Everything below as well; what is not there is fine.
    Tree,
}

impl ExecutorFileSystem {
    pub(crate) fn new(caller: Caller) -> Self {
        Self { caller, sandbox: None }
    }

    /// The same files, where every request may touch only what a sandbox allows.
    #[must_use]
    pub fn with_sandbox(&self, sandbox: &SandboxParams) -> Self {
        Self { caller: self.caller.clone(), sandbox: Some(SandboxText::new(sandbox)) }
    }

    /// The whole of a file.
    pub async fn read_file(&self, path: impl Into<RemotePath>) -> Result<Vec<u8>, ExecServerError> {
        let params = FsReadFileParams {
            path: self.resolve(path).await?,
            follow_symlinks: None,
            sandbox: self.sandbox.clone(),
            detailed: None,
        };
        let answer: FsReadFileResponse = self.call(Method::FsReadFile, &params).await?;
        Ok(answer.data_base64.0)
    }

    /// The whole of a file that is text.
    pub async fn read_file_text(
        &self,
        path: impl Into<RemotePath>,
    ) -> Result<String, ExecServerError> {
        String::from_utf8(self.read_file(path).await?)
            .map_err(|error| ExecServerError::Invalid(format!("the file is no text: {error}")))
    }

    /// A file block by block; dropping the stream frees its handle.
    pub async fn read_file_stream(
        &self,
        path: impl Into<RemotePath>,
    ) -> Result<FileReadStream, ExecServerError> {
        let path = self.resolve(path).await?;
        FileReadStream::open(&self.caller, path, self.sandbox.clone()).await
    }

    /// New content for a file, which appears at once or not at all.
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

    /// The same with conditions, durability and details.
    pub async fn write_file_with(
        &self,
        params: FsWriteFileParams,
    ) -> Result<FsWriteFileResponse, ExecServerError> {
        let is_conditional = params.if_absent.is_some() || params.if_match.is_some();
        if is_conditional {
            self.require(|can| can.fs_conditional_write, "conditional writes").await?;
        }
        if params.durability.is_some() {
            self.require(|can| can.fs_atomic_write, "durable writes").await?;
        }
        self.call(Method::FsWriteFile, &params).await
    }

    /// New content for a file piece by piece; it takes the old one's place with [`FileWriteStream::finish`].
    pub async fn write_file_stream(
        &self,
        path: impl Into<RemotePath>,
    ) -> Result<FileWriteStream, ExecServerError> {
        self.require(|can| can.file_write_streaming, "writing a file in blocks").await?;
        let path = self.resolve(path).await?;
        FileWriteStream::open(&self.caller, path, self.sandbox.clone()).await
    }

    /// Bytes behind the end of a file, which is made if it is missing.
    pub async fn append(
        &self,
        path: impl Into<RemotePath>,
        content: impl Into<Vec<u8>>,
    ) -> Result<FsWriteFileResponse, ExecServerError> {
        self.require(|can| can.fs_append, "fs/append").await?;
        let params = FsAppendParams {
            path: self.resolve(path).await?,
            data_base64: content.into().into(),
            create: None,
            follow_symlinks: None,
            sandbox: self.sandbox.clone(),
            durability: None,
            if_match: None,
        };
        self.call(Method::FsAppend, &params).await
    }

    /// A new length for a file.
    pub async fn truncate(
        &self,
        path: impl Into<RemotePath>,
        size: u64,
    ) -> Result<FsWriteFileResponse, ExecServerError> {
        self.require(|can| can.fs_truncate, "fs/truncate").await?;
        let params = FsTruncateParams {
            path: self.resolve(path).await?,
            size,
            follow_symlinks: None,
            sandbox: self.sandbox.clone(),
            durability: None,
            if_match: None,
        };
        self.call(Method::FsTruncate, &params).await
    }

    /// A new directory.
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
        };
        self.call_for_nothing(Method::FsCreateDirectory, &params).await
    }

    /// What is known about what a path leads to.
    pub async fn metadata(
        &self,
        path: impl Into<RemotePath>,
    ) -> Result<FsGetMetadataResponse, ExecServerError> {
        self.ask_metadata(path, None).await
    }

    /// The same about a path itself, be it a link, on a server that can tell.
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
            detailed: can_detail.then_some(true),
        };
        self.call(Method::FsGetMetadata, &params).await
    }

    /// Whether a path leads anywhere.
    pub async fn exists(&self, path: impl Into<RemotePath>) -> Result<bool, ExecServerError> {
        match self.metadata(path).await {
            Ok(_) => Ok(true),
            Err(error) if error.is_not_found() => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// A path without links.
    pub async fn canonicalize(
        &self,
        path: impl Into<RemotePath>,
    ) -> Result<PathUri, ExecServerError> {
        let params =
            FsCanonicalizeParams { path: self.resolve(path).await?, sandbox: self.sandbox.clone() };
        let answer: FsCanonicalizeResponse = self.call(Method::FsCanonicalize, &params).await?;
        Ok(answer.path)
    }

    /// All names in a directory, page by page where the server can.
    pub async fn read_directory(
        &self,
        path: impl Into<RemotePath>,
    ) -> Result<Vec<FsDirectoryEntry>, ExecServerError> {
        let can_page = self.caller.capabilities().await?.fs_directory_paging;
        let mut params = FsReadDirectoryParams {
            path: self.resolve(path).await?,
            sandbox: self.sandbox.clone(),
            limit: can_page.then_some(PAGE),
            cursor: None,
            detailed: None,
        };
        let mut entries = Vec::new();
        loop {
            let page: FsReadDirectoryResponse = self.read_directory_page(&params).await?;
            entries.extend(page.entries);
            match page.next_cursor {
                Some(cursor) => params.cursor = Some(cursor),
                None => return Ok(entries),
            }
        }
    }

    /// One page of a directory.
    pub async fn read_directory_page(
        &self,
        params: &FsReadDirectoryParams,
    ) -> Result<FsReadDirectoryResponse, ExecServerError> {
        self.call(Method::FsReadDirectory, params).await
    }

    /// The names in a tree.
    pub async fn walk(
        &self,
        path: impl Into<RemotePath>,
        options: FsWalkOptions,
    ) -> Result<FsWalkResponse, ExecServerError> {
        let params = FsWalkParams {
            path: self.resolve(path).await?,
            options,
            sandbox: self.sandbox.clone(),
        };
        self.call(Method::FsWalk, &params).await
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
        };
        self.call_for_nothing(Method::FsRemove, &params).await
    }

    /// Copies a file, or a directory with its content.
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
        };
        self.call_for_nothing(Method::FsCopy, &params).await
    }

    /// A new name for a file or a tree; what had the name before is replaced.
    pub async fn rename(
        &self,
        source: impl Into<RemotePath>,
        destination: impl Into<RemotePath>,
    ) -> Result<(), ExecServerError> {
        self.require(|can| can.fs_rename, "fs/rename").await?;
        let params = FsRenameParams {
            source_path: self.resolve(source).await?,
            destination_path: self.resolve(destination).await?,
            no_replace: None,
            sandbox: self.sandbox.clone(),
        };
        self.call_for_nothing(Method::FsRename, &params).await
    }

    /// A new symbolic link that says `target`.
    pub async fn symlink(
        &self,
        target: impl Into<String>,
        path: impl Into<RemotePath>,
    ) -> Result<(), ExecServerError> {
        self.require(|can| can.fs_symlink, "fs/symlink").await?;
        let params = FsSymlinkParams {
            path: self.resolve(path).await?,
            target: Some(target.into()),
            target_base64: None,
            replace: None,
            sandbox: self.sandbox.clone(),
        };
        self.call_for_nothing(Method::FsSymlink, &params).await
    }

    /// What a symbolic link says.
    pub async fn read_link(
        &self,
        path: impl Into<RemotePath>,
    ) -> Result<FsReadLinkResponse, ExecServerError> {
        self.require(|can| can.fs_symlink, "fs/readLink").await?;
        let params =
            FsReadLinkParams { path: self.resolve(path).await?, sandbox: self.sandbox.clone() };
        self.call(Method::FsReadLink, &params).await
    }

    /// New permission bits.
    pub async fn set_permissions(
        &self,
        path: impl Into<RemotePath>,
        mode: u32,
    ) -> Result<(), ExecServerError> {
        self.require(|can| can.fs_set_permissions, "fs/setPermissions").await?;
        let params = FsSetPermissionsParams {
            path: self.resolve(path).await?,
            mode,
            modified_at_ms: None,
            follow_symlinks: None,
            sandbox: self.sandbox.clone(),
        };
        self.call_for_nothing(Method::FsSetPermissions, &params).await
    }

    /// Waits for the first of some missing paths to appear; a connection has one such watch at a time.
    pub async fn watch_missing(
        &self,
        missing: Vec<PathUri>,
    ) -> Result<MissingWatch, ExecServerError> {
        self.require(|can| can.fs_watch_missing, "fs/watchMissing").await?;
        let connection = self.caller.connection().await?;
        let (watch_id, changed) = connection.shared().routes().add_watch()?;
        let params = FsWatchMissingParams { watch_id, missing, present: None };
        let answer: FsWatchMissingResponse =
            connection.call(Method::FsWatchMissing.name(), &params).await?;
        Ok(MissingWatch::new(connection, watch_id, changed, answer))
    }

    /// The URI of a path on the server.
    pub async fn resolve(&self, path: impl Into<RemotePath>) -> Result<PathUri, ExecServerError> {
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
        self.caller.call(method, params, Replay::Never).await
    }

    async fn call_for_nothing(
        &self,
        method: Method,
        params: &impl Serialize,
    ) -> Result<(), ExecServerError> {
        self.call(method, params).await.map(|_: serde_json::Value| ())
    }

    async fn require(
        &self,
        has: impl Fn(&exec_server_protocol::environment::Capabilities) -> bool,
        what: &'static str,
    ) -> Result<(), ExecServerError> {
        self.caller.require(has, what).await
    }
}
