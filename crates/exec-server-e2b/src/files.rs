//! Upload and download of files by HTTP.

use std::io::{self, Write};

use bytes::Bytes;
use exec_server_client::{ExecServerError, FileReadStream, FileWriteStream, Parents};
use flate2::Compression;
use flate2::write::GzEncoder;
use http::{HeaderMap, Request, Response, StatusCode, header};
use http_body_util::BodyExt;
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::Incoming;
use serde_json::{Value, json};

use crate::Shared;
use crate::body::{self, Body, BodySender};
use crate::file_metadata::{self, Pairs};
use crate::paths::{name_of, parent_of, uri_of};
use crate::refusal::Refusal;
use crate::users::UserFiles;

/// The body of an upload.
type Received = UnsyncBoxBody<Bytes, io::Error>;

/// The query of a request.
pub struct Query(Vec<(String, String)>);

impl Query {
    pub fn of(query: Option<&str>) -> Self {
        let pairs = url::form_urlencoded::parse(query.unwrap_or_default().as_bytes());
        Self(pairs.into_owned().collect())
    }

    pub fn pairs(&self) -> &[(String, String)] {
        &self.0
    }

    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    fn user(&self) -> Option<String> {
        self.get("username").map(str::to_owned)
    }
}

impl Shared {
    /// `GET /files`: the bytes of a file.
    pub async fn download(
        &self,
        headers: &HeaderMap,
        query: &Query,
    ) -> Result<Response<Body>, Refusal> {
        let files = self.files_of(self.users.of_transfer(query.user())?);
        let path = files.absolute(query.get("path").unwrap_or_default()).await?;
        let found = files.fs.metadata(uri_of(&path)).await?;
        if !found.is_file {
            let kind = if found.is_directory { "a directory" } else { "no regular file" };
            return Err(Refusal::invalid(format!("path {path:?} is {kind}")));
        }
        let stream = files.fs.read_file_stream(uri_of(&path)).await?;
        let (sender, body) = body::stream();
        let mut response = Response::new(body);
        let reply = response.headers_mut();
        reply.insert(header::CONTENT_TYPE, value("application/octet-stream"));
        reply.insert(header::VARY, value("accept-encoding"));
        // Compressing is worth it only where it is the only thing that the caller asks for.
        let is_zipped = headers.get(header::ACCEPT_ENCODING).is_some_and(|value| value == "gzip");
        match (is_zipped, stream.size()) {
            (true, _) => drop(reply.insert(header::CONTENT_ENCODING, value("gzip"))),
            (false, Some(size)) => drop(reply.insert(header::CONTENT_LENGTH, size.into())),
            (false, None) => {}
        }
        tokio::spawn(send_blocks(stream, sender, is_zipped));
        Ok(response)
    }

    /// `POST /files`: one file as bytes, or several as parts of a form.
    pub async fn upload(
        &self,
        request: Request<Incoming>,
        query: &Query,
    ) -> Result<Response<Body>, Refusal> {
        let files = self.files_of(self.users.of_transfer(query.user())?);
        let metadata = file_metadata::from_headers(request.headers())?;
        let kind = request.headers().get(header::CONTENT_TYPE).cloned();
        let kind = kind.as_ref().and_then(|value| value.to_str().ok()).unwrap_or_default();
        let is_zipped = match request.headers().get(header::CONTENT_ENCODING) {
            None => false,
            Some(value) if value == "identity" => false,
            Some(value) if value == "gzip" => true,
            Some(value) => {
                return Err(Refusal::unimplemented(format!(
                    "the encoding {value:?} is not supported"
                )));
            }
        };
        let path = query.get("path").filter(|path| !path.is_empty());
        let body = |request: Request<Incoming>| body::received(request.into_body(), is_zipped);
        let written = if let Ok(boundary) = multer::parse_boundary(kind) {
            self.upload_form(&files, body(request), &boundary, path, &metadata).await?
        } else if kind.starts_with("application/octet-stream") {
            let path = path.ok_or_else(|| Refusal::invalid("the query has no path"))?;
            vec![self.upload_bytes(&files, body(request), path, &metadata).await?]
        } else {
            return Err(Refusal::invalid(format!(
                "the content type is {kind:?}, but multipart/form-data or application/octet-stream is needed"
            )));
        };
        Ok(body::json(StatusCode::OK, &Value::Array(written)))
    }

    async fn upload_form(
        &self,
        files: &UserFiles<'_>,
        body: Received,
        boundary: &str,
        path: Option<&str>,
        metadata: &Pairs,
    ) -> Result<Vec<Value>, Refusal> {
        let wrong = |error| Refusal::invalid(format!("the form cannot be read: {error}"));
        let mut form = multer::Multipart::new(body.into_data_stream(), boundary);
        let mut written = Vec::new();
        while let Some(mut field) = form.next_field().await.map_err(wrong)? {
            if field.name() != Some("file") {
                continue;
            }
            if path.is_some() && !written.is_empty() {
                return Err(Refusal::invalid("a path in the query goes with one file"));
            }
            let name = path.map(str::to_owned).or_else(|| field.file_name().map(str::to_owned));
            let name = name.ok_or_else(|| Refusal::invalid("a file of the form has no name"))?;
            let mut file = create(files, &name).await?;
            while let Some(chunk) = field.chunk().await.map_err(wrong)? {
                file.stream.write(&chunk).await?;
            }
            written.push(self.finish(files, file, metadata).await?);
        }
        if written.is_empty() {
            return Err(Refusal::invalid("the form has no part `file`"));
        }
        Ok(written)
    }

    async fn upload_bytes(
        &self,
        files: &UserFiles<'_>,
        mut body: Received,
        path: &str,
        metadata: &Pairs,
    ) -> Result<Value, Refusal> {
        let mut file = create(files, path).await?;
        while let Some(frame) = body.frame().await {
            if let Ok(data) = frame.map_err(broken_upload)?.into_data() {
                file.stream.write(&data).await?;
            }
        }
        self.finish(files, file, metadata).await
    }

    /// Publishes the content and tells about the file.
    async fn finish(
        &self,
        files: &UserFiles<'_>,
        file: Upload,
        metadata: &Pairs,
    ) -> Result<Value, Refusal> {
        let Upload { path, stream } = file;
        stream.finish().await.map_err(|error| upload_refusal(error, &path))?;
        let found = files.fs.metadata(uri_of(&path)).await?;
        if let Some(details) = found.details {
            self.metadata.set(&path, details.inode, metadata.clone())?;
        } else if !metadata.is_empty() {
            return Err(Refusal::unimplemented("the server does not tell which file has metadata"));
        }
        let mut told = json!({"path": path, "name": name_of(&path), "type": "file"});
        if !metadata.is_empty() {
            told["metadata"] = json!(metadata);
        }
        Ok(told)
    }
}

/// Opens a file for its new content; its directory is created if it is missing.
async fn create(files: &UserFiles<'_>, path: &str) -> Result<Upload, Refusal> {
    let path = files.absolute(path).await?;
    let opened = match files.fs.write_file_stream(uri_of(&path)).await {
        Err(error) if error.is_not_found() => {
            files.fs.create_directory(uri_of(parent_of(&path)), Parents::Create).await?;
            files.fs.write_file_stream(uri_of(&path)).await
        }
        opened => opened,
    };
    Ok(Upload { stream: opened.map_err(|error| upload_refusal(error, &path))?, path })
}

/// A file that is being written; dropping it discards the new content.
struct Upload {
    path: String,
    stream: FileWriteStream,
}

fn upload_refusal(error: ExecServerError, path: &str) -> Refusal {
    let refusal = Refusal::from(error);
    Refusal::new(refusal.code, format!("cannot write {path:?}: {}", refusal.message))
}

fn broken_upload(error: io::Error) -> Refusal {
    match error.kind() {
        io::ErrorKind::InvalidData => Refusal::invalid(error.to_string()),
        _ => Refusal::unavailable(format!("the upload broke: {error}; the file is unchanged")),
    }
}

fn value(text: &'static str) -> header::HeaderValue {
    header::HeaderValue::from_static(text)
}

async fn send_blocks(mut stream: FileReadStream, sender: BodySender, is_zipped: bool) {
    let mut zip = is_zipped.then(|| GzEncoder::new(Vec::new(), Compression::fast()));
    loop {
        let piece = match stream.next_block().await {
            Ok(Some(block)) => match &mut zip {
                None => Ok(block),
                Some(zip) => {
                    zip.write_all(&block).expect("writing to memory succeeds");
                    Ok(Bytes::from(std::mem::take(zip.get_mut())))
                }
            },
            Ok(None) => break,
            // The connection breaks, so that a part is not taken for the whole.
            Err(error) => Err(io::Error::other(error)),
        };
        let is_broken = piece.is_err();
        if sender.send(piece).await.is_err() || is_broken {
            return;
        }
    }
    if let Some(zip) = zip {
        let rest = zip.finish().expect("writing to memory succeeds");
        // A reader that is gone needs no end.
        let _ = sender.send(Ok(rest.into())).await;
    }
}
