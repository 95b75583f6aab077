//! `fs/*` on real file systems: on a disk and in memory.

use std::os::unix::fs::lchown;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use exec_server_testkit::executor::ExecutorBuilder;
use exec_server_testkit::fs_fixture::FsFixture;
use exec_server_testkit::{TestExecutor, eventually};
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
pub mod surroundings;
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

/// Both ways to treat links.
fn both_ways() -> [Value; 2] {
    [json!({}), json!({"followSymlinks": false})]
}

/// Changes permission bits.
fn set_mode(desk: &FsFixture, name: &str, mode: u32) {
    surroundings::set_mode(&desk.path(name), mode);
}

/// A named pipe.
fn put_fifo(desk: &FsFixture, name: &str) -> PathBuf {
    let path = desk.path(name);
    surroundings::make_fifo(&path);
    path
}

/// A socket with a listener, which lives as long as the result.
fn put_socket(desk: &FsFixture, name: &str) -> UnixListener {
    UnixListener::bind(desk.path(name)).expect("a socket can be made")
}

/// A link.
fn put_link(desk: &FsFixture, name: &str, target: impl AsRef<Path>) {
    std::os::unix::fs::symlink(target, desk.path(name)).expect("a link can be made");
}

/// Serves the desk as an unprivileged user, because root ignores permissions; `None` if that is impossible here.
async fn serve_as_ordinary_user(desk: &mut FsFixture) -> bool {
    start_as_ordinary_user(desk, TestExecutor::builder()).await
}

/// Starts a configured server as an unprivileged user.
async fn start_as_ordinary_user(desk: &mut FsFixture, builder: ExecutorBuilder) -> bool {
    let Some(builder) = surroundings::as_nobody(builder) else { return false };
    if rustix::process::geteuid().is_root() {
        give_to(desk.root(), surroundings::NOBODY);
    }
    desk.server = builder.start().await;
    desk.client = desk.server.client().await;
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

/// Waits until the server has no file below the desk open.
async fn let_go(desk: &FsFixture) {
    let open = PathBuf::from(format!("/proc/{}/fd", desk.server.serving_pid()));
    eventually("the server lets go of the files", || {
        let mut files = open.read_dir().expect("the server runs").flatten();
        !files.any(|file| file.path().read_link().is_ok_and(|to| to.starts_with(desk.root())))
    })
    .await;
}

/// The names in the desk, sorted.
fn names(desk: &FsFixture) -> Vec<String> {
    surroundings::names(desk.root())
}
