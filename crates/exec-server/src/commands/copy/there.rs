//! Files of a server.

use std::collections::VecDeque;

use bytes::Bytes;
use exec_server_client::{
    ExecServerConnection, ExecServerError, FileReadStream, RemoteExecServerClient,
};
use exec_server_protocol::fs::{
    FileKind, FsCloseParams, FsCreateDirectoryParams, FsGetMetadataParams, FsGetMetadataResponse,
    FsOpenParams, FsOpenResponse, FsReadLinkParams, FsReadLinkResponse, FsSetPermissionsParams,
    FsSymlinkParams, FsWriteBlockParams, FsWriteFileParams, FsWriteFileResponse, OpenMode,
};
use exec_server_protocol::limits::MAX_FILE_BLOCK_BYTES;
use exec_server_protocol::methods::Method;
use exec_server_protocol::path_uri::{NativePaths, PathUri};
use exec_server_protocol::process::Empty;
use serde_json::Value;
use tokio::task::JoinHandle;

use super::super::failure::Failure;
use super::super::look::{entries, shown};
use super::super::show::plain;
use super::side::{Attributes, Entry, Kind};

/// Blocks on their way at once: enough for a long road, and little memory.
const BLOCKS_AHEAD: usize = 8;

/// A server as one end of a copy.
#[derive(Debug, Clone)]
pub struct There {
    client: RemoteExecServerClient,
    name: String,
}

/// New content for a file, in blocks that are on their way at the same time.
pub struct RemoteWriter {
    /// A handle lives and dies with its connection.
    connection: ExecServerConnection,
    handle_id: String,
    offset: u64,
    sent: VecDeque<JoinHandle<Result<Empty, ExecServerError>>>,
    is_open: bool,
}

impl There {
    pub fn new(client: RemoteExecServerClient, target: Option<&str>) -> Self {
        Self { client, name: target.unwrap_or_default().to_owned() }
    }

    pub fn client(&self) -> &RemoteExecServerClient {
        &self.client
    }

    /// For messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub async fn look(&self, path: &[u8]) -> Result<Option<Entry>, Failure> {
        let params = FsGetMetadataParams {
            path: PathUri::from_posix(path),
            follow_symlinks: None,
            sandbox: None,
            detailed: Some(true),
        };
        let found: Result<FsGetMetadataResponse, _> =
            self.client.call(Method::FsGetMetadata.name(), &params).await;
        match found {
            Ok(metadata) => Ok(Some(entry(&metadata, false))),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(self.about(path, error)),
        }
    }

    pub async fn list(&self, path: &[u8]) -> Result<Vec<(Vec<u8>, Entry)>, Failure> {
        let uri = PathUri::from_posix(path);
        let found = entries(&self.client, &uri).await.map_err(|error| error.about(shown(&uri)))?;
        let named = found.into_iter().map(|found| {
            let name = match &found.uri {
                // Names that are no text are only in the address.
                Some(uri) => {
                    let path = bytes_of(uri)?;
                    path.rsplit(|byte| *byte == b'/').next().unwrap_or_default().to_vec()
                }
                None => found.file_name.into_bytes(),
            };
            let metadata = found.metadata.map(|metadata| *metadata).unwrap_or_default();
            Ok((name, entry(&metadata, found.is_symlink)))
        });
        named.collect()
    }

    pub async fn read_link(&self, path: &[u8]) -> Result<Vec<u8>, Failure> {
        let params = FsReadLinkParams { path: PathUri::from_posix(path), sandbox: None };
        let link: FsReadLinkResponse = self.call(path, Method::FsReadLink, &params).await?;
        Ok(match link.target_base64 {
            Some(bytes) => bytes.0,
            None => link.target.into_bytes(),
        })
    }

    pub async fn read(&self, path: &[u8]) -> Result<Vec<u8>, Failure> {
        let read = self.client.fs().read_file(PathUri::from_posix(path)).await;
        read.map_err(|error| self.about(path, error))
    }

    pub async fn reader(&self, path: &[u8]) -> Result<FileReadStream, Failure> {
        let opened = self.client.fs().read_file_stream(PathUri::from_posix(path)).await;
        opened.map_err(|error| self.about(path, error))
    }

    pub async fn write(
        &self,
        path: &[u8],
        content: Vec<u8>,
        attributes: Attributes,
    ) -> Result<(), Failure> {
        let (mode_bits, new_mode_bits, modified_at_ms) = on_the_wire(attributes);
        let params = FsWriteFileParams {
            path: PathUri::from_posix(path),
            data_base64: content.into(),
            follow_symlinks: None,
            sandbox: None,
            durability: None,
            if_absent: None,
            if_match: None,
            detailed: None,
            mode_bits,
            new_mode_bits,
            modified_at_ms,
        };
        let _: FsWriteFileResponse = self.call(path, Method::FsWriteFile, &params).await?;
        Ok(())
    }

    pub async fn writer(
        &self,
        path: &[u8],
        attributes: Attributes,
    ) -> Result<RemoteWriter, Failure> {
        let connection = self.client.session().connection().await?;
        let (mode_bits, new_mode_bits, modified_at_ms) = on_the_wire(attributes);
        let handle_id = uuid::Uuid::new_v4().simple().to_string();
        let params = FsOpenParams {
            handle_id: handle_id.clone(),
            path: PathUri::from_posix(path),
            mode: OpenMode::Replace,
            sandbox: None,
            detailed: None,
            durability: None,
            if_absent: None,
            if_match: None,
            mode_bits,
            new_mode_bits,
            modified_at_ms,
        };
        let opened: Result<FsOpenResponse, _> =
            connection.call(Method::FsOpen.name(), &params).await;
        opened.map_err(|error| self.about(path, error))?;
        Ok(RemoteWriter { connection, handle_id, offset: 0, sent: VecDeque::new(), is_open: true })
    }

    pub async fn make_directory(&self, path: &[u8]) -> Result<(), Failure> {
        let params = FsCreateDirectoryParams {
            path: PathUri::from_posix(path),
            recursive: Some(true),
            follow_symlinks: None,
            sandbox: None,
        };
        self.call(path, Method::FsCreateDirectory, &params).await.map(|_: Value| ())
    }

    pub async fn make_link(&self, path: &[u8], target: Vec<u8>) -> Result<(), Failure> {
        let (text, bytes) = match String::from_utf8(target) {
            Ok(text) => (Some(text), None),
            Err(error) => (None, Some(error.into_bytes().into())),
        };
        let params = FsSymlinkParams {
            path: PathUri::from_posix(path),
            target: text,
            target_base64: bytes,
            replace: Some(true),
            sandbox: None,
        };
        self.call(path, Method::FsSymlink, &params).await.map(|_: Value| ())
    }

    pub async fn set_attributes(
        &self,
        path: &[u8],
        mode: u32,
        modified_ms: i64,
    ) -> Result<(), Failure> {
        let params = FsSetPermissionsParams {
            path: PathUri::from_posix(path),
            mode,
            modified_at_ms: Some(modified_ms),
            follow_symlinks: None,
            sandbox: None,
        };
        self.call(path, Method::FsSetPermissions, &params).await.map(|_: Value| ())
    }

    async fn call<R: serde::de::DeserializeOwned>(
        &self,
        path: &[u8],
        method: Method,
        params: &impl serde::Serialize,
    ) -> Result<R, Failure> {
        let answer = self.client.call(method.name(), params).await;
        answer.map_err(|error| self.about(path, error))
    }

    fn about(&self, path: &[u8], error: ExecServerError) -> Failure {
        Failure::from(error).about(format!(
            "{}:{}",
            self.name,
            plain(&String::from_utf8_lossy(path))
        ))
    }
}

impl RemoteWriter {
    /// Takes the next piece, and waits if too many are on their way.
    pub async fn write(&mut self, piece: Bytes) -> Result<(), Failure> {
        let block = usize::try_from(MAX_FILE_BLOCK_BYTES).expect("a block fits into memory");
        for chunk in piece.chunks(block) {
            while self.sent.len() >= BLOCKS_AHEAD {
                self.wait_for_first().await?;
            }
            let params = FsWriteBlockParams {
                handle_id: self.handle_id.clone(),
                offset: self.offset,
                chunk: chunk.to_vec().into(),
            };
            self.offset += chunk.len() as u64;
            let connection = self.connection.clone();
            self.sent.push_back(tokio::spawn(async move {
                connection.call(Method::FsWriteBlock.name(), &params).await
            }));
        }
        Ok(())
    }

    /// Puts the content in its place.
    pub async fn finish(mut self) -> Result<(), Failure> {
        while !self.sent.is_empty() {
            self.wait_for_first().await?;
        }
        self.is_open = false;
        let params = FsCloseParams { handle_id: self.handle_id.clone(), discard: None };
        let _: FsWriteFileResponse = self.connection.call(Method::FsClose.name(), &params).await?;
        Ok(())
    }

    async fn wait_for_first(&mut self) -> Result<(), Failure> {
        let Some(first) = self.sent.pop_front() else { return Ok(()) };
        match first.await {
            Ok(answer) => Ok(answer.map(|Empty {}| ())?),
            Err(_) => Err(Failure::LinkLost("a block was not sent".to_owned())),
        }
    }
}

impl Drop for RemoteWriter {
    fn drop(&mut self) {
        for call in &self.sent {
            call.abort();
        }
        if self.is_open {
            let params = FsCloseParams { handle_id: self.handle_id.clone(), discard: Some(true) };
            let connection = self.connection.clone();
            // A handle whose connection is gone is gone with it.
            tokio::spawn(async move {
                let _: Result<Value, _> = connection.call(Method::FsClose.name(), &params).await;
            });
        }
    }
}

fn on_the_wire(attributes: Attributes) -> (Option<u32>, Option<u32>, Option<i64>) {
    match attributes {
        Attributes::New(mode) => (None, Some(mode), None),
        Attributes::Keep { mode, modified_ms } => (Some(mode), None, Some(modified_ms)),
    }
}

fn entry(metadata: &FsGetMetadataResponse, is_link: bool) -> Entry {
    let kind = match metadata.details.as_ref().map(|details| details.kind) {
        _ if is_link => Kind::Link,
        Some(FileKind::File) => Kind::File,
        Some(FileKind::Directory) => Kind::Directory,
        Some(FileKind::Symlink) => Kind::Link,
        Some(_) => Kind::Other,
        None if metadata.is_directory => Kind::Directory,
        None if metadata.is_file => Kind::File,
        None => Kind::Other,
    };
    let mode = metadata.details.as_ref().map_or(0o644, |details| details.mode & 0o7777);
    Entry { kind, size: metadata.size, mode, modified_ms: metadata.modified_at_ms }
}

/// The path that a URI names.
pub fn bytes_of(uri: &PathUri) -> Result<Vec<u8>, Failure> {
    uri.to_posix(NativePaths::Accept)
        .map_err(|error| Failure::Usage(format!("`{}`: {error}", uri.as_str())))
}
