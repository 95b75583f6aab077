//! `cp`: trees in both directions, and failures.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::time::Duration;

use exec_server::protocol::base64;
use exec_server_testkit::executor::binary;
use exec_server_testkit::fault_proxy::{FaultSchedule, Toward};
use exec_server_testkit::{FaultProxy, Terminal, TestExecutor, eventually};
use serde_json::json;

use super::hostile_server::{HostileServer, entry, metadata};
use super::{cli, command, finish, ran};

#[tokio::test]
async fn a_tree_there_and_back_is_the_same_tree() {
    let server = TestExecutor::start().await;
    let directory = tempfile::tempdir().unwrap();
    let tree = directory.path().join("tree");
    make_tree(&tree);
    let remote = |name: &str| format!("{}:{}", server.url(), directory.path().join(name).display());
    let local = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    assert_eq!(cli(&["cp", "-rp", &local("tree"), &remote("there")]).await, ran(0, "", ""));
    assert_eq!(cli(&["cp", "-rp", &remote("there"), &local("back")]).await, ran(0, "", ""));
    assert_eq!(cli(&["cp", "-rp", &remote("there"), &remote("other")]).await, ran(0, "", ""));
    for copy in ["there", "back", "other"] {
        assert_eq!(list(&directory.path().join(copy)), list(&tree), "{copy}");
    }
    // An existing destination directory gets the source as an entry.
    assert_eq!(cli(&["cp", "-r", &local("tree"), &remote("there")]).await, ran(0, "", ""));
    assert!(directory.path().join("there/tree/small").exists());
}

#[tokio::test]
async fn a_copied_file_keeps_its_mode_and_is_never_incomplete() {
    let server = TestExecutor::start().await;
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    std::fs::write(path("script"), "#!/bin/sh\n").unwrap();
    std::fs::set_permissions(path("script"), PermissionsExt::from_mode(0o755)).unwrap();
    std::fs::write(path("private"), "old").unwrap();
    std::fs::set_permissions(path("private"), PermissionsExt::from_mode(0o600)).unwrap();
    let remote = |name: &str| format!("{}:{}", server.url(), path(name).display());
    let local = |name: &str| path(name).to_str().unwrap().to_owned();
    for (from, to) in [(local("script"), remote("up")), (remote("script"), local("down"))] {
        assert_eq!(cli(&["cp", &from, &to]).await, ran(0, "", ""));
    }
    for copy in ["up", "down"] {
        assert_eq!(
            std::fs::metadata(path(copy)).unwrap().permissions().mode() & 0o777,
            0o755,
            "{copy}"
        );
    }
    // An existing file keeps its mode.
    assert_eq!(cli(&["cp", &remote("script"), &local("private")]).await, ran(0, "", ""));
    assert_eq!(std::fs::metadata(path("private")).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(std::fs::read(path("private")).unwrap(), b"#!/bin/sh\n");
}

#[tokio::test]
async fn failed_copies_are_reported() {
    let server = TestExecutor::start().await;
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).display().to_string();
    std::fs::create_dir(path("dir")).unwrap();
    std::fs::write(path("file"), "x").unwrap();
    let remote = |name: &str| format!("{}:{}", server.url(), path(name));
    let missing = cli(&["cp", &path("missing"), &remote("x")]).await;
    assert_eq!(missing.code, 1);
    assert!(missing.err.contains("missing"), "{}", missing.err);
    let missing = cli(&["cp", &remote("missing"), &path("x")]).await;
    assert_eq!(missing.code, 1);
    let folder = cli(&["cp", &path("dir"), &remote("x")]).await;
    assert!(folder.err.contains("use -r to copy it"), "{}", folder.err);
    let local = cli(&["cp", &path("file"), &path("x")]).await;
    assert!(local.err.contains("are both on this machine"), "{}", local.err);
    let nowhere = cli(&["cp", &path("file"), &remote("no/such/dir/x")]).await;
    assert_eq!(nowhere.code, 1, "{}", nowhere.err);
    let slash = cli(&["cp", &path("file"), &remote("new/")]).await;
    assert!(slash.err.contains("is no directory"), "{}", slash.err);
    assert!(!Path::new(&path("x")).exists());
}

#[tokio::test]
async fn a_file_never_replaces_a_directory_nor_a_directory_a_file() {
    let server = TestExecutor::start().await;
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).display().to_string();
    let remote = |name: &str| format!("{}:{}", server.url(), path(name));
    std::fs::create_dir_all(path("tree/x")).unwrap();
    std::fs::write(path("tree/x/inner"), "inner").unwrap();
    std::fs::write(path("tree/y"), "y").unwrap();
    std::fs::write(path("file"), "file").unwrap();
    for (from, to) in [(path("tree"), remote("file")), (remote("tree"), path("file"))] {
        let refused = cli(&["cp", "-r", &from, &to]).await;
        assert_eq!(refused.code, 1);
        assert!(refused.err.contains("a directory cannot be copied there"), "{}", refused.err);
    }
    // Deeper in the tree: the rest is copied, and the existing entry stays.
    for side in ["up", "down"] {
        std::fs::create_dir_all(path(&format!("{side}/tree/y"))).unwrap();
        std::fs::write(path(&format!("{side}/tree/x")), "in the way").unwrap();
    }
    for (from, to, side) in
        [(path("tree"), remote("up"), "up"), (remote("tree"), path("down"), "down")]
    {
        let partly = cli(&["cp", "-rp", &from, &to]).await;
        assert_eq!(partly.code, 1, "{}", partly.err);
        assert!(partly.err.contains("2 could not be copied"), "{}", partly.err);
        let inside = |name: &str| directory.path().join(side).join("tree").join(name);
        assert_eq!(std::fs::read(inside("x")).unwrap(), b"in the way");
        assert_eq!(std::fs::read_dir(inside("y")).unwrap().count(), 0);
    }
    assert_eq!(std::fs::read(path("file")).unwrap(), b"file");
}

#[tokio::test]
async fn special_files_are_skipped_with_a_message() {
    let server = TestExecutor::start().await;
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).display().to_string();
    let remote = |name: &str| format!("{}:{}", server.url(), path(name));
    std::fs::create_dir(path("tree")).unwrap();
    std::fs::write(path("tree/file"), "file").unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, path("tree/pipe"), rustix::fs::Mode::RWXU).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(path("tree/socket")).unwrap();
    for (from, to, copy) in
        [(path("tree"), remote("up"), "up"), (remote("tree"), path("down"), "down")]
    {
        let partly = cli(&["cp", "-r", &from, &to]).await;
        assert_eq!(partly.code, 1, "{}", partly.err);
        for name in ["tree/pipe", "tree/socket"] {
            let told = format!("{name} is no file, directory or link");
            assert!(partly.err.contains(&told), "{}", partly.err);
        }
        assert!(partly.err.contains("2 could not be copied"), "{}", partly.err);
        assert_eq!(std::fs::read_dir(path(copy)).unwrap().count(), 1);
    }
}

#[tokio::test]
async fn an_interrupted_copy_leaves_nothing() {
    let server = TestExecutor::start().await;
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).display().to_string();
    std::fs::write(path("large"), vec![0x5a; 30_000_000]).unwrap();
    for (side, toward) in [("down", Toward::Client), ("up", Toward::Server)] {
        let target = directory.path().join(side);
        std::fs::create_dir(&target).unwrap();
        let proxy = FaultProxy::to(server.url()).await;
        let there = |name: &str| format!("{}:{}", proxy.url(), path(name));
        let child = match side {
            "up" => command(&["cp", &path("large"), &there("up/copy")]).spawn().unwrap(),
            _ => command(&["cp", &there("large"), &path("down/copy")]).spawn().unwrap(),
        };
        proxy.wait_for_carried(toward, 5_000_000).await;
        proxy.stall(toward);
        let pid = rustix::process::Pid::from_raw(child.id().unwrap().cast_signed()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
        assert_eq!(finish(child).await.code, 130, "{side}");
        let is_empty = || std::fs::read_dir(&target).unwrap().count() == 0;
        eventually("nothing is left", is_empty).await;
    }
}

#[tokio::test]
async fn a_progress_line_is_shown_and_removed_at_the_end() {
    let server = TestExecutor::start().await;
    let proxy = FaultProxy::to(server.url()).await;
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).display().to_string();
    std::fs::write(path("large"), vec![0x5a; 20_000_000]).unwrap();
    let program = exec_server_testkit::executor::binary();
    let remote = format!("{}:{}", proxy.url(), path("large"));
    let copy = [program.to_str().unwrap(), "cp", &remote, &path("copy")];
    let mut terminal = Terminal::start(&copy, &[("HOME", "/nonexistent")]).await;
    proxy.wait_for_carried(Toward::Client, 5_000_000).await;
    proxy.stall(Toward::Client);
    terminal.expect("0/1 files").await;
    terminal.expect("of 20.0 MB").await;
    proxy.resume();
    let (code, shown) = terminal.finish().await;
    assert_eq!(code, 0, "{shown}");
    assert!(shown.ends_with("\r\u{1b}[K"), "{shown:?}");
    assert_eq!(std::fs::metadata(path("copy")).unwrap().len(), 20_000_000);
}

#[tokio::test]
async fn without_a_terminal_there_is_no_line_however_long_it_takes() {
    let server = TestExecutor::start().await;
    let proxy = FaultProxy::to(server.url()).await;
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).display().to_string();
    std::fs::write(path("large"), vec![0x5a; 3_000_000]).unwrap();
    let remote = format!("{}:{}", proxy.url(), path("large"));
    // About a second in total, several times the delay of the progress line.
    proxy.set_faults(Some(FaultSchedule {
        delay: Duration::from_millis(15)..Duration::from_millis(20),
        piece: 60_000..65_536,
        ..FaultSchedule::default()
    }));
    assert_eq!(cli(&["cp", &remote, &path("copy")]).await, ran(0, "", ""));
}

#[tokio::test]
async fn many_small_files_are_copied_concurrently() {
    let server = TestExecutor::start().await;
    let directory = tempfile::tempdir().unwrap();
    for folder in 0..10 {
        let folder = directory.path().join("many").join(folder.to_string());
        std::fs::create_dir_all(&folder).unwrap();
        for file in 0..100 {
            std::fs::write(folder.join(file.to_string()), format!("{file}\n").repeat(file))
                .unwrap();
        }
    }
    let remote = |name: &str| format!("{}:{}", server.url(), directory.path().join(name).display());
    let local = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    assert_eq!(cli(&["cp", "-r", &local("many"), &remote("there")]).await, ran(0, "", ""));
    assert_eq!(cli(&["cp", "-r", &remote("there"), &local("back")]).await, ran(0, "", ""));
    assert_eq!(
        list(&directory.path().join("back")).len(),
        list(&directory.path().join("many")).len()
    );
}

fn make_tree(root: &Path) {
    std::fs::create_dir_all(root.join("sub/deep")).unwrap();
    std::fs::create_dir(root.join("empty")).unwrap();
    std::fs::write(root.join("small"), "small\n").unwrap();
    std::fs::write(root.join("sub/empty"), "").unwrap();
    std::fs::write(root.join("sub/deep/large"), vec![0xa5; 3_500_001]).unwrap();
    std::fs::write(root.join("sub/odd name: \u{fc}"), "odd").unwrap();
    symlink("../small", root.join("sub/link")).unwrap();
    symlink("/nowhere/at/all", root.join("dangling")).unwrap();
    std::fs::set_permissions(root.join("small"), PermissionsExt::from_mode(0o640)).unwrap();
    std::fs::set_permissions(root.join("sub/deep"), PermissionsExt::from_mode(0o750)).unwrap();
    let time = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000);
    // Directories from the deepest up, because what is made in them changes their times.
    for name in ["small", "sub/deep", "sub", "empty", ""] {
        std::fs::File::open(root.join(name)).unwrap().set_modified(time).unwrap();
    }
    std::fs::set_permissions(root.join("empty"), PermissionsExt::from_mode(0o555)).unwrap();
}

fn millis(metadata: &std::fs::Metadata) -> u128 {
    metadata.modified().unwrap().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis()
}

/// All compared attributes: names, kinds, modes, times, content.
fn list(root: &Path) -> Vec<String> {
    let metadata = std::fs::symlink_metadata(root).unwrap();
    let mut all = vec![format!("/ {:o} {}", metadata.permissions().mode(), millis(&metadata))];
    let mut queue = vec![root.to_owned()];
    while let Some(directory) = queue.pop() {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            let metadata = std::fs::symlink_metadata(&path).unwrap();
            let name = path.strip_prefix(root).unwrap().display().to_string();
            let mode = metadata.permissions().mode();
            if metadata.is_symlink() {
                all.push(format!("{name} -> {}", std::fs::read_link(&path).unwrap().display()));
            } else if metadata.is_dir() {
                all.push(format!("{name}/ {mode:o} {}", millis(&metadata)));
                queue.push(path);
            } else {
                let content = std::fs::read(&path).unwrap();
                let sum =
                    content.iter().fold(0_u64, |sum, byte| sum.wrapping_mul(31) + u64::from(*byte));
                all.push(format!("{name} {mode:o} {} {} {sum}", millis(&metadata), content.len()));
            }
        }
    }
    all.sort();
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tree_shows_no_percentage_before_all_of_it_is_listed() {
    let (list, is_listed) = std::sync::mpsc::channel::<()>();
    let is_listed = std::sync::Mutex::new(is_listed);
    let server = HostileServer::start(move |method, params| {
        let path = params["path"].as_str().unwrap_or_default();
        match method {
            "fs/getMetadata" => {
                Some(metadata(if path.ends_with("/x") { "directory" } else { "file" }, 4))
            }
            "fs/readDirectory" if path.ends_with("/x") => Some(json!({"entries":
                [entry("first", "file", None), entry("sub", "directory", None)]})),
            "fs/readDirectory" => {
                // Listed only when the test has seen the progress without it.
                let listed = || is_listed.lock().unwrap().recv();
                tokio::task::block_in_place(listed).unwrap();
                Some(json!({"entries": [entry("second", "file", None)]}))
            }
            "fs/readFile" => Some(json!({"dataBase64": base64::encode(b"text")})),
            _ => None,
        }
    })
    .await;
    let folder = tempfile::tempdir().unwrap();
    let to = folder.path().join("to");
    let program = binary();
    let copy = [program.to_str().unwrap(), "cp", "-r", &server.remote("/x"), to.to_str().unwrap()];
    let mut terminal = Terminal::start(&copy, &[("HOME", "/nonexistent")]).await;
    let shown = terminal.expect("/1+ files").await;
    assert!(!shown.contains('%'), "{shown:?}");
    list.send(()).unwrap();
    let (code, shown) = terminal.finish().await;
    assert_eq!(code, 0, "{shown:?}");
    assert_eq!(std::fs::read_to_string(to.join("sub/second")).unwrap(), "text");
    let unlisted = shown.rfind("+ files").expect("it was shown");
    assert!(!shown[..unlisted].contains('%'), "{shown:?}");
}
