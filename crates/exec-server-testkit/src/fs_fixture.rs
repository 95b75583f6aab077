//! A temporary directory, on disk or in memory, with a server and a client.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use exec_server_protocol::base64;
use exec_server_protocol::path_uri::PathUri;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{TestClient, TestExecutor};

/// A temporary directory with a server and a client.
pub struct FsFixture {
    /// The server.
    pub server: TestExecutor,
    /// A client of the server.
    pub client: TestClient,
    root: TempDir,
}

/// Runs a test on disk and again in memory (tmpfs), whose kernel features differ.
pub async fn on_each_file_system(test: impl AsyncFn(&mut FsFixture)) {
    for parent in [std::env::temp_dir(), PathBuf::from("/dev/shm")] {
        test(&mut FsFixture::in_directory(&parent).await).await;
    }
}

impl FsFixture {
    /// A fixture on disk.
    pub async fn new() -> Self {
        Self::in_directory(&std::env::temp_dir()).await
    }

    async fn in_directory(parent: &Path) -> Self {
        let root = tempfile::Builder::new().prefix("exec-server-test-").tempdir_in(parent);
        let root = root.expect("a temporary directory can be made");
        let server = TestExecutor::start().await;
        let client = server.client().await;
        Self { server, client, root }
    }

    /// The directory.
    pub fn root(&self) -> &Path {
        self.root.path()
    }

    /// A path in the directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.root().join(name)
    }

    /// The URI of a path in the directory.
    pub fn uri(&self, name: &str) -> String {
        uri(&self.path(name))
    }

    /// The URI of a path in the directory whose name is any bytes.
    pub fn uri_of_bytes(&self, name: &[u8]) -> String {
        uri(&self.root().join(OsStr::from_bytes(name)))
    }

    /// Creates a file without the server.
    pub fn put(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, content).expect("the file can be written");
        path
    }

    /// Reads a file without the server.
    pub fn get(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.path(name)).expect("the file can be read")
    }

    /// Calls `method` for `name`; `more` are further params.
    pub async fn call(&mut self, method: &str, name: &str, more: Value) -> Result<Value, Value> {
        let params = with(json!({"path": self.uri(name)}), more);
        self.client.call(method, params).await
    }

    /// Writes a file through the server.
    pub async fn write(&mut self, name: &str, content: &[u8], more: Value) -> Result<Value, Value> {
        let data = json!({"dataBase64": base64::encode(content)});
        self.call("fs/writeFile", name, with(data, more)).await
    }

    /// Reads a file through the server.
    pub async fn read(&mut self, name: &str) -> Result<Vec<u8>, Value> {
        let result = self.call("fs/readFile", name, json!({})).await?;
        Ok(content(&result["dataBase64"]))
    }
}

/// The URI of a path of this machine.
pub fn uri(path: &Path) -> String {
    PathUri::from_posix(path.as_os_str().as_bytes()).as_str().to_owned()
}

/// The bytes of a base64 string in a reply.
pub fn content(value: &Value) -> Vec<u8> {
    base64::decode(value.as_str().expect("content is a string")).expect("content is base64")
}

/// Code and errno of an error.
pub fn code(result: Result<Value, Value>) -> (i64, String) {
    let error = result.expect_err("the request was refused");
    let errno = error["data"]["errno"].as_str().unwrap_or_default();
    (error["code"].as_i64().expect("an error has a code"), errno.to_owned())
}

/// Code and kind of an error without an errno.
pub fn kind(result: Result<Value, Value>) -> (i64, String) {
    let error = result.expect_err("the request was refused");
    let kind = error["data"]["kind"].as_str().expect("every error has a kind");
    (error["code"].as_i64().expect("an error has a code"), kind.to_owned())
}

fn with(mut params: Value, more: Value) -> Value {
    let members = params.as_object_mut().expect("params are an object");
    members.extend(more.as_object().expect("more params are an object").clone());
    params
}
