//! `fs/*` on real file systems: on a disk and in memory.

use std::os::unix::fs::lchown;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use exec_server_testkit::executor::ExecutorBuilder;
use exec_server_testkit::fs_fixture::FsFixture;
use exec_server_testkit::{TestClient, TestExecutor, eventually};
use serde_json::{Value, json};

mod attributes;
mod batch;
mod canonical;
mod changes;
mod conditional;
mod copying;
mod copying_trees;
mod crashing;
mod editing;
mod handles;
pub mod host;
mod keeping;
mod large;
mod layout;
mod listing;
mod metadata;
mod naming;
mod obstacles;
mod params;
mod paths;
mod pipelining;
mod reading;
mod removing;
mod replacing;
mod replacing_conditions;
mod searching;
mod stepping;
mod walking;
mod watching;
mod writing;

/// Asserts the code of an error and the word for it, which is its errno or else its kind.
#[track_caller]
fn refused(result: Result<Value, Value>, code: i64, word: &str) {
    let error = result.expect_err("the request was to be refused");
    let data = &error["data"];
    assert!(data["kind"].is_string(), "every error has a kind: {error}");
    assert_eq!(error["code"].as_i64(), Some(code), "{error}");
    assert!(data["errno"] == word || data["kind"] == word, "{word}: {error}");
}

/// A client of the session, as soon as the server has noticed that the first one is gone.
pub async fn resumed(desk: &FsFixture, session: &str) -> TestClient {
    loop {
        let mut client = TestClient::connect(desk.server.url()).await;
        match client.resume(session).await {
            Ok(_) => return client,
            Err(error) => assert_eq!(error["code"], -32010, "{error}"),
        }
    }
}

/// Both modes for links.
fn both_ways() -> [Value; 2] {
    [json!({}), json!({"followSymlinks": false})]
}

/// Changes permission bits.
fn set_mode(fixture: &FsFixture, name: &str, mode: u32) {
    host::set_mode(&fixture.path(name), mode);
}

/// A named pipe.
fn put_fifo(fixture: &FsFixture, name: &str) -> PathBuf {
    let path = fixture.path(name);
    host::make_fifo(&path);
    path
}

/// A socket with a listener, which lives as long as the result.
fn put_socket(fixture: &FsFixture, name: &str) -> UnixListener {
    UnixListener::bind(fixture.path(name)).expect("a socket can be made")
}

/// A link.
fn put_link(fixture: &FsFixture, name: &str, target: impl AsRef<Path>) {
    std::os::unix::fs::symlink(target, fixture.path(name)).expect("a link can be made");
}

/// Serves the fixture as an unprivileged user, because root ignores permissions; `None` if that is impossible here.
async fn serve_as_ordinary_user(fixture: &mut FsFixture) -> bool {
    start_as_ordinary_user(fixture, TestExecutor::builder()).await
}

/// Starts a configured server as an unprivileged user.
async fn start_as_ordinary_user(fixture: &mut FsFixture, builder: ExecutorBuilder) -> bool {
    let Some(builder) = host::as_nobody(builder) else { return false };
    if rustix::process::geteuid().is_root() {
        give_to(fixture.root(), host::NOBODY);
    }
    fixture.server = builder.start().await;
    fixture.client = fixture.server.client().await;
    true
}

fn give_to(path: &Path, user: u32) {
    lchown(path, Some(user), Some(user)).expect("root may give things away");
    if path.symlink_metadata().expect("it is there").is_dir() {
        for entry in path.read_dir().expect("root may look") {
            give_to(&entry.expect("it can be listed").path(), user);
        }
    }
}

/// Waits until the server has no open file in the fixture.
async fn let_go(fixture: &FsFixture) {
    let open = PathBuf::from(format!("/proc/{}/fd", fixture.server.serving_pid()));
    eventually("the server has closed the files", || {
        let mut files = open.read_dir().expect("the server runs").flatten();
        !files.any(|file| file.path().read_link().is_ok_and(|to| to.starts_with(fixture.root())))
    })
    .await;
}

/// Sorted names in the fixture's directory.
fn names(fixture: &FsFixture) -> Vec<String> {
    host::names(fixture.root())
}
