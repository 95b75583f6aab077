//! `filesystem.Filesystem`: names, directories and watches.

use exec_server_client::protocol::fs::FsReadDirectoryParams;
use exec_server_client::{Parents, Removal};
use http::{Request, Response};
use hyper::body::Incoming;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::body::Body;
use crate::connect::{self, Deadline};
use crate::paths::{parent_of, text_of, uri_of};
use crate::refusal::{Code, Refusal};
use crate::users::UserFiles;
use crate::watchers::{self, WatchParams};
use crate::{Shared, entry};

/// Entries of one listing; with their metadata about 100 MiB.
const MAX_ENTRIES: usize = 200_000;
/// Names per request to the server.
const PAGE: u64 = 2000;

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Params {
    path: String,
    source: String,
    destination: String,
    depth: u32,
    watcher_id: String,
}

impl Shared {
    /// The calls with one message and one answer.
    pub async fn filesystem_call(
        &self,
        method: &str,
        sandbox: &str,
        request: Request<Incoming>,
    ) -> Result<Value, Refusal> {
        let files = self.files_of(self.users.of_file_call(request.headers())?);
        if method == "CreateWatcher" {
            let params: WatchParams = connect::unary(request).await?;
            let id = self.create_watcher(sandbox, &files, &params).await?;
            return Ok(json!({"watcherId": id}));
        }
        let params: Params = connect::unary(request).await?;
        match method {
            "Stat" => self.stat(&files, &files.absolute(&params.path).await?).await,
            "MakeDir" => self.make_dir(&files, &params.path).await,
            "Move" => self.rename(&files, &params.source, &params.destination).await,
            "ListDir" => self.list_dir(&files, &params.path, params.depth.max(1)).await,
            "Remove" => {
                let path = files.absolute(&params.path).await?;
                files.fs.remove(uri_of(&path), Removal::Tree).await?;
                self.metadata.handle_remove(&path);
                Ok(json!({}))
            }
            "GetWatcherEvents" => self.watcher_events(&files, sandbox, &params.watcher_id).await,
            "RemoveWatcher" => {
                self.watchers.remove(sandbox, &params.watcher_id)?;
                Ok(json!({}))
            }
            method => {
                Err(Refusal::unimplemented(format!("filesystem.Filesystem/{method} is not known")))
            }
        }
    }

    /// `WatchDir`, which answers with a stream.
    pub async fn watch_dir(&self, request: Request<Incoming>) -> Result<Response<Body>, Refusal> {
        let files = self.files_of(self.users.of_file_call(request.headers())?);
        let deadline = Deadline::of(request.headers())?;
        let params: WatchParams = connect::stream_request(request).await?;
        let watch = self.start_watch(&files, &params).await?;
        let (sink, response) = connect::stream();
        tokio::spawn(watchers::pump(watch, sink, deadline));
        Ok(response)
    }

    async fn stat(&self, files: &UserFiles<'_>, path: &str) -> Result<Value, Refusal> {
        Ok(json!({"entry": entry::stat(&files.fs, path, &self.metadata).await?}))
    }

    async fn make_dir(&self, files: &UserFiles<'_>, path: &str) -> Result<Value, Refusal> {
        let path = files.absolute(path).await?;
        match files.fs.metadata(uri_of(&path)).await {
            Ok(found) if found.is_directory => {
                let text = format!("directory already exists: {path}");
                return Err(Refusal::new(Code::AlreadyExists, text));
            }
            Ok(_) => {
                return Err(Refusal::invalid(format!(
                    "path exists but is not a directory: {path}"
                )));
            }
            Err(error) if error.is_not_found() => {}
            Err(error) => return Err(error.into()),
        }
        files.fs.create_directory(uri_of(&path), Parents::Create).await?;
        self.stat(files, &path).await
    }

    async fn rename(
        &self,
        files: &UserFiles<'_>,
        source: &str,
        destination: &str,
    ) -> Result<Value, Refusal> {
        let (from, to) = (files.absolute(source).await?, files.absolute(destination).await?);
        // A missing source is told before anything is created.
        files.fs.symlink_metadata(uri_of(&from)).await?;
        files.fs.create_directory(uri_of(parent_of(&to)), Parents::Create).await?;
        files.fs.rename(uri_of(&from), uri_of(&to)).await?;
        self.metadata.handle_remove(&to);
        self.metadata.handle_move(&from, &to);
        self.stat(files, &to).await
    }

    async fn list_dir(
        &self,
        files: &UserFiles<'_>,
        path: &str,
        depth: u32,
    ) -> Result<Value, Refusal> {
        let path = files.absolute(path).await?;
        let found = files.fs.metadata(uri_of(&path)).await?;
        if !found.is_directory {
            return Err(Refusal::invalid(format!("path is not a directory: {path}")));
        }
        // Listing a link lists its target, under the path of the target.
        let root = match found.is_symlink {
            true => text_of(&files.fs.canonicalize(uri_of(&path)).await?),
            false => path,
        };
        let mut entries = Vec::new();
        let mut pending = vec![(root, depth)];
        while let Some((directory, depth)) = pending.pop() {
            let mut below = self.list_one(files, &directory, &mut entries).await?;
            if depth > 1 {
                below.reverse();
                pending.extend(below.into_iter().map(|path| (path, depth - 1)));
            }
        }
        Ok(json!({"entries": entries}))
    }

    /// Adds the entries of a directory; returns the directories among them.
    async fn list_one(
        &self,
        files: &UserFiles<'_>,
        directory: &str,
        entries: &mut Vec<Value>,
    ) -> Result<Vec<String>, Refusal> {
        let can_page = self.info.capabilities.fs_directory_paging;
        let params = FsReadDirectoryParams {
            path: uri_of(directory),
            sandbox: None,
            limit: can_page.then_some(PAGE),
            cursor: None,
            detailed: Some(true),
            user: files.user.clone().map(Into::into),
        };
        let mut names = files.fs.read_whole_directory(params).await?;
        names.sort_by(|first, second| first.0.cmp(&second.0));
        if entries.len() + names.len() > MAX_ENTRIES {
            let text = format!("the listing has more than {MAX_ENTRIES} entries");
            return Err(Refusal::new(Code::ResourceExhausted, text));
        }
        let mut below = Vec::new();
        for (name, found) in names {
            let name = String::from_utf8_lossy(&name);
            let path = format!("{}/{name}", directory.trim_end_matches('/'));
            let described = match &found.metadata {
                Some(metadata) if !found.is_symlink => {
                    Ok(entry::entry(&path, metadata, None, &self.metadata))
                }
                Some(metadata) => {
                    let target = Some(&**metadata).filter(|_| found.is_directory || found.is_file);
                    entry::link(&files.fs, &path, target, &self.metadata).await
                }
                None => entry::stat(&files.fs, &path, &self.metadata).await,
            };
            match described {
                Ok(described) => entries.push(described),
                // It was removed after the listing.
                Err(refusal) if refusal.code == Code::NotFound => continue,
                Err(refusal) => return Err(refusal),
            }
            if found.is_directory && !found.is_symlink {
                below.push(path);
            }
        }
        Ok(below)
    }
}
