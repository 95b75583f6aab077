//! File operations on a server.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use exec_server_client::{
    ExecServerConnection, ExecServerError, ExecutorFileSystem, FileReadStream,
    RemoteExecServerClient,
};
use exec_server_protocol::environment::Capabilities;
use exec_server_protocol::fs::{
    FileKind, FsCloseParams, FsCreateDirectoryParams, FsGetMetadataParams, FsGetMetadataResponse,
    FsOpenParams, FsOpenResponse, FsReadLinkParams, FsReadLinkResponse, FsSetPermissionsParams,
    FsSymlinkParams, FsWriteBlockParams, FsWriteFileParams, FsWriteFileResponse, OpenMode,
};
use exec_server_protocol::limits::MAX_FILE_BLOCK_BYTES;
use exec_server_protocol::methods::Method;
use exec_server_protocol::path_uri::{NativePaths, PathUri};
use exec_server_protocol::process::Empty;
use exec_server_protocol::user::UserName;
use serde_json::Value;
use tokio::task::{JoinHandle, JoinSet};

use super::super::failure::Failure;
use super::super::format::plain;
use super::super::ls::{entries, shown};
use super::super::user_option::files;
use super::endpoint::{Attributes, Entry, Kind, join};
use super::progress::Progress;
use super::transfer::own_umask;

/// Blocks in flight: enough for a link with high latency, and little memory.
const BLOCKS_AHEAD: usize = 8;

/// Concurrent metadata requests to a server whose listings contain only names.
const MAX_METADATA_REQUESTS: usize = 64;

const NOTHING: Entry = Entry { kind: Kind::Nameless, size: 0, mode: None, modified_ms: 0 };

/// A server as one end of a copy.
#[derive(Debug, Clone)]
pub struct RemoteEndpoint {
    client: RemoteExecServerClient,
    name: String,
    progress: Arc<Progress>,
    user: Option<UserName>,
}

/// Writes a file with several blocks in flight.
pub struct RemoteWriter {
    /// The handle is valid only on the connection that opened it.
    connection: ExecServerConnection,
    handle_id: String,
    offset: u64,
    sent: VecDeque<JoinHandle<Result<Empty, ExecServerError>>>,
    is_open: bool,
    /// Printed if the writer is dropped before it is finished.
    warning: Option<(Arc<Progress>, String)>,
}

impl RemoteEndpoint {
    pub fn new(
        client: RemoteExecServerClient,
        target: Option<&str>,
        progress: Arc<Progress>,
        user: Option<UserName>,
    ) -> Self {
        Self { client, name: target.unwrap_or_default().to_owned(), progress, user }
    }

    fn files(&self) -> ExecutorFileSystem {
        files(&self.client, &self.user)
    }

    pub fn client(&self) -> &RemoteExecServerClient {
        &self.client
    }

    /// The target as the user wrote it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The server as messages show it.
    pub fn title(&self) -> String {
        match self.name.as_str() {
            "" => "the server".to_owned(),
            name => format!("the server {}", plain(name)),
        }
    }

    async fn can(&self) -> Result<Capabilities, Failure> {
        Ok(self.client.session().connection().await?.capabilities())
    }

    pub async fn stat(&self, path: &[u8]) -> Result<Option<Entry>, Failure> {
        Ok(self.metadata(path).await?.map(|metadata| entry(&metadata, false)))
    }

    async fn metadata(&self, path: &[u8]) -> Result<Option<FsGetMetadataResponse>, Failure> {
        let params = FsGetMetadataParams {
            path: PathUri::from_posix(path),
            follow_symlinks: None,
            sandbox: None,
            user: self.user.clone(),
            detailed: Some(true),
        };
        match self.client.call(Method::FsGetMetadata.name(), &params).await {
            Ok(metadata) => Ok(Some(metadata)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(self.about(path, error)),
        }
    }

    pub async fn list(&self, path: &[u8]) -> Result<Vec<(Vec<u8>, Entry)>, Failure> {
        let uri = PathUri::from_posix(path);
        let found = entries(&self.client, &uri, &self.user)
            .await
            .map_err(|error| error.about(shown(&uri)))?;
        let can = self.can().await?;
        let mut listed = Vec::with_capacity(found.len());
        let mut unknown = Vec::new();
        for (name, found) in found {
            match found.metadata {
                Some(metadata) => listed.push((name, entry(&metadata, found.is_symlink))),
                None => unknown.push((name, found.uri.is_some())),
            }
        }
        for names in unknown.chunks(MAX_METADATA_REQUESTS) {
            let mut looks = JoinSet::new();
            for (name, is_exact) in names.iter().cloned() {
                let (there, path) = (self.clone(), join(path, &name));
                looks.spawn(async move {
                    let entry = there.entry_metadata(&path, can).await?;
                    let is_lossy = !is_exact && String::from_utf8_lossy(&name).contains('\u{fffd}');
                    // A lossy name refers to no file, or to a different one.
                    Ok::<_, Failure>(if is_lossy {
                        Some((name, Entry { kind: Kind::Nameless, ..entry.unwrap_or(NOTHING) }))
                    } else {
                        entry.map(|entry| (name, entry))
                    })
                });
            }
            while let Some(looked) = looks.join_next().await {
                match looked {
                    Ok(result) => listed.extend(result?),
                    Err(error) => std::panic::resume_unwind(error.into_panic()),
                }
            }
        }
        Ok(listed)
    }

    /// Which of `names` are symbolic links in a directory.
    pub async fn links_among(
        &self,
        directory: &[u8],
        names: &BTreeSet<&[u8]>,
    ) -> Result<BTreeSet<Vec<u8>>, Failure> {
        let uri = PathUri::from_posix(directory);
        let found = entries(&self.client, &uri, &self.user)
            .await
            .map_err(|error| error.about(shown(&uri)))?;
        let mut links = BTreeSet::new();
        for (name, found) in found {
            if !names.contains(name.as_slice()) {
                continue;
            }
            let is_link = match found.metadata {
                Some(_) => found.is_symlink,
                None => self
                    .metadata(&join(directory, &name))
                    .await?
                    .is_some_and(|metadata| metadata.is_symlink),
            };
            if is_link {
                links.insert(name);
            }
        }
        Ok(links)
    }

    /// Metadata of an entry that was listed by name only; none if it was removed since.
    async fn entry_metadata(
        &self,
        path: &[u8],
        can: Capabilities,
    ) -> Result<Option<Entry>, Failure> {
        let Some(metadata) = self.metadata(path).await? else { return Ok(None) };
        let found = entry(&metadata, false);
        if !metadata.is_symlink {
            return Ok(Some(found));
        }
        // Without `fs/readLink` a link to a file is copied as the file; a link to a directory could be a cycle.
        if can.fs_symlink || found.kind != Kind::File {
            return Ok(Some(Entry { kind: Kind::Link, ..found }));
        }
        self.progress.note_once(format!(
            "{} does not report link targets; links to files are copied as files",
            self.title()
        ));
        Ok(Some(found))
    }

    pub async fn read_link(&self, path: &[u8]) -> Result<Vec<u8>, Failure> {
        if !self.can().await?.fs_symlink {
            return Err(self.about(path, ExecServerError::Unsupported("reading links")));
        }
        let params = FsReadLinkParams {
            path: PathUri::from_posix(path),
            sandbox: None,
            user: self.user.clone(),
        };
        let link: FsReadLinkResponse = self.call(path, Method::FsReadLink, &params).await?;
        Ok(match link.target_base64 {
            Some(bytes) => bytes.0,
            None => link.target.into_bytes(),
        })
    }

    pub async fn read(&self, path: &[u8]) -> Result<Vec<u8>, Failure> {
        let read = self.files().read_file(PathUri::from_posix(path)).await;
        read.map_err(|error| self.about(path, error))
    }

    pub async fn reader(&self, path: &[u8]) -> Result<FileReadStream, Failure> {
        let opened = self.files().read_file_stream(PathUri::from_posix(path)).await;
        opened.map_err(|error| self.about(path, error))
    }

    pub async fn write(
        &self,
        path: &[u8],
        content: Vec<u8>,
        attributes: Attributes,
    ) -> Result<(), Failure> {
        let (mode_bits, new_mode_bits, modified_at_ms) = self.on_the_wire(attributes).await?;
        let params = FsWriteFileParams {
            path: PathUri::from_posix(path),
            data_base64: content.into(),
            follow_symlinks: None,
            sandbox: None,
            user: self.user.clone(),
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
        let (mode_bits, new_mode_bits, modified_at_ms) = self.on_the_wire(attributes).await?;
        let connection = self.client.session().connection().await?;
        let can = connection.capabilities();
        if !can.file_write_streaming {
            let what = ExecServerError::Unsupported("files of more than 256 KiB or unknown size");
            return Err(self.about(path, what));
        }
        let handle_id = uuid::Uuid::new_v4().simple().to_string();
        let params = FsOpenParams {
            handle_id: handle_id.clone(),
            path: PathUri::from_posix(path),
            mode: OpenMode::Replace,
            sandbox: None,
            user: self.user.clone(),
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
        let warning = (!can.fs_atomic_write).then(|| {
            let what = format!("{}:{}", self.name, plain(&String::from_utf8_lossy(path)));
            let text =
                format!("{what} is incomplete; this server does not replace files atomically");
            (self.progress.clone(), text)
        });
        let sent = VecDeque::new();
        Ok(RemoteWriter { connection, handle_id, offset: 0, sent, is_open: true, warning })
    }

    pub async fn make_directory(&self, path: &[u8]) -> Result<(), Failure> {
        let params = FsCreateDirectoryParams {
            path: PathUri::from_posix(path),
            recursive: Some(true),
            follow_symlinks: None,
            sandbox: None,
            user: self.user.clone(),
        };
        self.call(path, Method::FsCreateDirectory, &params).await.map(|_: Value| ())
    }

    pub async fn make_link(&self, path: &[u8], target: Vec<u8>) -> Result<(), Failure> {
        if !self.can().await?.fs_symlink {
            return Err(self.about(path, ExecServerError::Unsupported("creating links")));
        }
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
            user: self.user.clone(),
        };
        self.call(path, Method::FsSymlink, &params).await.map(|_: Value| ())
    }

    pub async fn set_attributes(
        &self,
        path: &[u8],
        mode: Option<u32>,
        modified_ms: i64,
    ) -> Result<(), Failure> {
        let Some(mode) = mode else { return Ok(()) };
        if !self.can().await?.fs_set_permissions {
            self.warn_of_attributes();
            return Ok(());
        }
        let params = FsSetPermissionsParams {
            path: PathUri::from_posix(path),
            mode,
            modified_at_ms: Some(modified_ms),
            follow_symlinks: None,
            sandbox: None,
            user: self.user.clone(),
        };
        self.call(path, Method::FsSetPermissions, &params).await.map(|_: Value| ())
    }

    /// The attribute members of a write request; warns once if the server does not support them.
    async fn on_the_wire(
        &self,
        attributes: Attributes,
    ) -> Result<(Option<u32>, Option<u32>, Option<i64>), Failure> {
        if !self.can().await?.fs_write_attributes {
            let is_usual =
                matches!(attributes, Attributes::New(mode) if mode == 0o666 & !own_umask());
            if !is_usual {
                self.warn_of_attributes();
            }
            return Ok((None, None, None));
        }
        Ok(match attributes {
            Attributes::New(mode) => (None, Some(mode), None),
            Attributes::Keep { mode, modified_ms } => (mode, None, Some(modified_ms)),
        })
    }

    fn warn_of_attributes(&self) {
        self.progress.note_once(format!(
            "{} cannot set permission bits and times; copies get its defaults",
            self.title()
        ));
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
    /// Sends the next blocks, and waits while too many are in flight.
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

    /// Waits for all blocks and closes the handle, which gives the file its final name.
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
            if let Some((progress, text)) = self.warning.take() {
                progress.note(&text);
            }
            let params = FsCloseParams { handle_id: self.handle_id.clone(), discard: Some(true) };
            let connection = self.connection.clone();
            // An error is ignored: a closed connection has discarded the handle already.
            tokio::spawn(async move {
                let _: Result<Value, _> = connection.call(Method::FsClose.name(), &params).await;
            });
        }
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
    let mode = metadata.details.as_ref().map(|details| details.mode & 0o7777);
    Entry { kind, size: metadata.size, mode, modified_ms: metadata.modified_at_ms }
}

/// The POSIX path of a URI.
pub fn bytes_of(uri: &PathUri) -> Result<Vec<u8>, Failure> {
    uri.to_posix(NativePaths::Accept)
        .map_err(|error| Failure::Usage(format!("`{}`: {error}", uri.as_str())))
}
