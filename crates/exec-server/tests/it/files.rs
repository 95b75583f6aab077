//! `fs/*` on real file systems: on a disk and in memory.

use std::fs::Permissions;
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use exec_server_testkit::desk::Desk;
use exec_server_testkit::executor::{self, ExecutorBuilder};
use exec_server_testkit::{TestExecutor, eventually};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use serde_json::{Value, json};

mod batch;
mod canonical;
mod conditional;
mod copying;
mod copying_trees;
mod crashing;
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
mod reading;
mod removing;
mod replacing;
mod replacing_conditions;
mod stepping;
mod surroundings;
mod walking;
mod watching;
mod writing;

/// Asserts the code of an error and the word for it, which is its errno or else its kind.
#[track_caller]
fn refused(result: Result<Value, Value>, code: i64, word: &str) {
    let error = result.expect_err("the request was to be refused");
    let data = &error["data"];
    assert!(data["kind"].is_string(), "every error has a kind: {error}");
    let name = if data["errno"].is_string() { &data["errno"] } else { &data["kind"] };
    assert_eq!((error["code"].as_i64(), name.as_str()), (Some(code), Some(word)), "{error}");
}

/// Both ways to treat links.
fn both_ways() -> [Value; 2] {
    [json!({}), json!({"followSymlinks": false})]
}

/// Changes permission bits.
fn set_mode(desk: &Desk, name: &str, mode: u32) {
    let mode = Permissions::from_mode(mode);
    std::fs::set_permissions(desk.path(name), mode).expect("the file is ours");
}

/// A named pipe.
fn put_fifo(desk: &Desk, name: &str) -> PathBuf {
    let path = desk.path(name);
    let mode = Mode::RUSR | Mode::WUSR;
    mknodat(CWD, &path, FileType::Fifo, mode, 0).expect("a pipe can be made");
    path
}

/// A socket on which somebody listens as long as the result is kept.
fn put_socket(desk: &Desk, name: &str) -> UnixListener {
    UnixListener::bind(desk.path(name)).expect("a socket can be made")
}

/// A link.
fn put_link(desk: &Desk, name: &str, target: impl AsRef<Path>) {
    std::os::unix::fs::symlink(target, desk.path(name)).expect("a link can be made");
}

/// Serves the desk as somebody whom permissions bind, which root is not; says whether that is possible here.
async fn serve_as_ordinary_user(desk: &mut Desk) -> bool {
    start_as_ordinary_user(desk, TestExecutor::builder()).await
}

/// Starts a server of a special kind as somebody whom permissions bind.
async fn start_as_ordinary_user(desk: &mut Desk, mut builder: ExecutorBuilder) -> bool {
    const NOBODY: u32 = 65534;
    if !rustix::process::geteuid().is_root() {
        desk.server = builder.start().await;
        desk.client = desk.server.client().await;
        return true;
    }
    let program = executor::binary();
    let is_open = |path: &Path| path.metadata().is_ok_and(|found| found.mode() & 0o005 == 0o005);
    if !program.ancestors().all(is_open) {
        eprintln!("skipped: nobody but root can run {}", program.display());
        return false;
    }
    give_to(desk.root(), NOBODY);
    builder.command().uid(NOBODY).gid(NOBODY);
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
async fn let_go(desk: &Desk) {
    let open = PathBuf::from(format!("/proc/{}/fd", desk.server.serving_pid()));
    eventually("the server lets go of the files", || {
        let mut files = open.read_dir().expect("the server runs").flatten();
        !files.any(|file| file.path().read_link().is_ok_and(|to| to.starts_with(desk.root())))
    })
    .await;
}

/// The names in the desk, sorted.
fn names(desk: &Desk) -> Vec<String> {
    let entries = desk.root().read_dir().expect("the desk is there");
    let mut names: Vec<String> = entries
        .map(|entry| entry.expect("it can be listed").file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}
