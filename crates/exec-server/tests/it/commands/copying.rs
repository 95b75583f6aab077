//! `cp`: trees there and back, and what goes wrong on the way.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use exec_server_testkit::TestExecutor;

use super::{cli, ran};

#[tokio::test]
async fn a_tree_there_and_back_is_the_same_tree() {
    let server = TestExecutor::start().await;
    let directory = tempfile::tempdir().unwrap();
    let tree = directory.path().join("tree");
    make_tree(&tree);
    let spot = |name: &str| format!("{}:{}", server.url(), directory.path().join(name).display());
    let local = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    assert_eq!(cli(&["cp", "-rp", &local("tree"), &spot("there")]).await, ran(0, "", ""));
    assert_eq!(cli(&["cp", "-rp", &spot("there"), &local("back")]).await, ran(0, "", ""));
    assert_eq!(cli(&["cp", "-rp", &spot("there"), &spot("other")]).await, ran(0, "", ""));
    for copy in ["there", "back", "other"] {
        assert_eq!(list(&directory.path().join(copy)), list(&tree), "{copy}");
    }
    // Into a directory that is there, it goes under its own name.
    assert_eq!(cli(&["cp", "-r", &local("tree"), &spot("there")]).await, ran(0, "", ""));
    assert!(directory.path().join("there/tree/small").exists());
}

#[tokio::test]
async fn a_file_keeps_what_it_should_and_never_shows_half() {
    let server = TestExecutor::start().await;
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    std::fs::write(path("script"), "#!/bin/sh\n").unwrap();
    std::fs::set_permissions(path("script"), PermissionsExt::from_mode(0o755)).unwrap();
    std::fs::write(path("private"), "old").unwrap();
    std::fs::set_permissions(path("private"), PermissionsExt::from_mode(0o600)).unwrap();
    let spot = |name: &str| format!("{}:{}", server.url(), path(name).display());
    let local = |name: &str| path(name).to_str().unwrap().to_owned();
    for (from, to) in [(local("script"), spot("up")), (spot("script"), local("down"))] {
        assert_eq!(cli(&["cp", &from, &to]).await, ran(0, "", ""));
    }
    for copy in ["up", "down"] {
        assert_eq!(
            std::fs::metadata(path(copy)).unwrap().permissions().mode() & 0o777,
            0o755,
            "{copy}"
        );
    }
    // A file that was there keeps its own rights.
    assert_eq!(cli(&["cp", &spot("script"), &local("private")]).await, ran(0, "", ""));
    assert_eq!(std::fs::metadata(path("private")).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(std::fs::read(path("private")).unwrap(), b"#!/bin/sh\n");
}

#[tokio::test]
async fn what_cannot_be_copied_is_told() {
    let server = TestExecutor::start().await;
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).display().to_string();
    std::fs::create_dir(path("dir")).unwrap();
    std::fs::write(path("file"), "x").unwrap();
    let spot = |name: &str| format!("{}:{}", server.url(), path(name));
    let missing = cli(&["cp", &path("missing"), &spot("x")]).await;
    assert_eq!(missing.code, 1);
    assert!(missing.err.contains("missing"), "{}", missing.err);
    let missing = cli(&["cp", &spot("missing"), &path("x")]).await;
    assert_eq!(missing.code, 1);
    let folder = cli(&["cp", &path("dir"), &spot("x")]).await;
    assert!(folder.err.contains("-r copies it"), "{}", folder.err);
    let local = cli(&["cp", &path("file"), &path("x")]).await;
    assert!(local.err.contains("both are on this machine"), "{}", local.err);
    let nowhere = cli(&["cp", &path("file"), &spot("no/such/dir/x")]).await;
    assert_eq!(nowhere.code, 1, "{}", nowhere.err);
    let slash = cli(&["cp", &path("file"), &spot("new/")]).await;
    assert!(slash.err.contains("is no directory"), "{}", slash.err);
    assert!(!Path::new(&path("x")).exists());
}

#[tokio::test]
async fn many_small_files_go_at_once() {
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
    let spot = |name: &str| format!("{}:{}", server.url(), directory.path().join(name).display());
    let local = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    assert_eq!(cli(&["cp", "-r", &local("many"), &spot("there")]).await, ran(0, "", ""));
    assert_eq!(cli(&["cp", "-r", &spot("there"), &local("back")]).await, ran(0, "", ""));
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
    std::fs::File::options()
        .write(true)
        .open(root.join("small"))
        .unwrap()
        .set_modified(time)
        .unwrap();
}

/// Everything that should be the same: names, kinds, modes, times of files, content.
fn list(root: &Path) -> Vec<String> {
    let mut all = Vec::new();
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
                all.push(format!("{name}/ {mode:o}"));
                queue.push(path);
            } else {
                let time =
                    metadata.modified().unwrap().duration_since(std::time::UNIX_EPOCH).unwrap();
                let content = std::fs::read(&path).unwrap();
                let sum =
                    content.iter().fold(0_u64, |sum, byte| sum.wrapping_mul(31) + u64::from(*byte));
                all.push(format!("{name} {mode:o} {} {} {sum}", time.as_millis(), content.len()));
            }
        }
    }
    all.sort();
    all
}
