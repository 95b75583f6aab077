//! Files of a real server through the client.

use exec_server::{
    ExecServerClient, ExecServerError, FsSearchParams, FsTextEdit, FsWalkOptions, Parents, Removal,
};
use exec_server_testkit::{DEADLINE, FaultProxy, TestExecutor};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use super::commands::connected;

#[tokio::test]
async fn a_watch_survives_a_cut_link() {
    let server = TestExecutor::start().await;
    let cable = FaultProxy::to(server.url()).await;
    let client = ExecServerClient::connect(cable.url()).await.unwrap();
    let directory = tempfile::tempdir().unwrap();
    let mut watch = client.fs().watch(directory.path().to_str().unwrap(), true).await.unwrap();
    assert_eq!(watch.answer().directories, 1);
    for name in ["a", "b", "c"] {
        std::fs::write(directory.path().join(name), "").unwrap();
        let mut seen = false;
        while !seen {
            let changes = watch.next().await.unwrap().expect("the directory is there");
            seen = changes.iter().any(|change| change.path.as_str().ends_with(name));
        }
        cable.cut();
    }
    directory.close().unwrap();
    while watch.next().await.unwrap().is_some() {}
}

#[tokio::test]
async fn a_search_is_read_in_pages_and_ends_when_it_is_dropped() {
    let server = TestExecutor::start().await;
    let client = ExecServerClient::connect(server.url()).await.unwrap();
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("f"), "x\n".repeat(2500)).unwrap();
    let path = client.fs().resolve(directory.path().to_str().unwrap()).await.unwrap();
    let params: FsSearchParams =
        serde_json::from_value(serde_json::json!({"path": path, "pattern": "x"})).unwrap();
    let mut pages = client.fs().search(params.clone()).await.unwrap();
    let mut lines = 0;
    while let Some(page) = pages.next_page().await.unwrap() {
        lines += page.matches.len();
    }
    assert_eq!(lines, 2500);
    assert!(pages.next_page().await.unwrap().is_none());
    // More than a connection may have at once, if a dropped one did not end.
    for _ in 0..20 {
        let mut pages = client.fs().search(params.clone()).await.unwrap();
        assert!(pages.next_page().await.unwrap().is_some());
    }
    let params = serde_json::from_value(serde_json::json!({"path": path})).unwrap();
    let page = client.fs().find(params).await.unwrap().next_page().await.unwrap().unwrap();
    assert_eq!(page.entries.len(), 1);
}

#[tokio::test]
async fn text_is_edited_and_processes_have_pids() {
    let server = TestExecutor::start().await;
    let client = ExecServerClient::connect(server.url()).await.unwrap();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("f");
    std::fs::write(&path, "a b a").unwrap();
    let edit = |old: &str, replace_all| FsTextEdit {
        old: old.to_owned(),
        new: "c".to_owned(),
        replace_all,
    };
    let name = path.to_str().unwrap();
    let error = client.fs().edit(name, vec![edit("a", false)]).await.unwrap_err();
    let mismatch = error.edit_mismatch().expect("it says why");
    assert_eq!((mismatch.occurrences, error.kind()), (2, Some("edit_not_unique")));
    let done = client.fs().edit(name, vec![edit("a", true), edit("b", false)]).await.unwrap();
    assert_eq!((done.edits[0].replacements, done.size), (2, 5));
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "c c c");
    let child = client.command("sh").args(["-c", "echo $$"]).spawn().await.unwrap();
    let pid = child.pid().expect("this server says so");
    let output = child.wait_with_output().await.unwrap();
    assert_eq!(output.stdout_text().trim(), pid.to_string());
}

#[tokio::test]
async fn whole_files_and_names() {
    let (_server, client) = connected().await;
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let fs = client.fs();
    fs.create_directory(at("a/b"), Parents::Create).await.unwrap();
    assert!(fs.create_directory(at("a/b"), Parents::Require).await.is_err());
    fs.write_file(at("a/b/c"), "hello").await.unwrap();
    assert_eq!(fs.read_file_text(at("a/b/c")).await.unwrap(), "hello");
    fs.append(at("a/b/c"), " you").await.unwrap();
    fs.truncate(at("a/b/c"), 7).await.unwrap();
    assert_eq!(fs.read_file(at("a/b/c")).await.unwrap(), b"hello y");
    let metadata = fs.metadata(at("a/b/c")).await.unwrap();
    assert!(metadata.is_file && metadata.size == 7 && metadata.details.is_some());
    fs.copy(at("a"), at("copy")).await.unwrap();
    fs.rename(at("copy"), at("moved")).await.unwrap();
    fs.symlink("b/c", at("moved/link")).await.unwrap();
    assert_eq!(fs.read_link(at("moved/link")).await.unwrap().target, "b/c");
    assert!(fs.symlink_metadata(at("moved/link")).await.unwrap().is_symlink);
    fs.set_permissions(at("moved/b/c"), 0o600).await.unwrap();
    let names: Vec<_> = fs.read_directory(at("moved")).await.unwrap();
    let mut names: Vec<_> = names.into_iter().map(|entry| entry.file_name).collect();
    names.sort();
    assert_eq!(names, ["b", "link"]);
    let canonical = fs.canonicalize(at("moved/link")).await.unwrap();
    assert!(canonical.as_str().ends_with("/moved/b/c"), "{canonical:?}");
    let options = FsWalkOptions {
        max_depth: 5,
        max_directories: 10,
        max_entries: 100,
        follow_directory_symlinks: false,
        prune_hidden_directories: false,
    };
    assert!(fs.walk(at("a"), options).await.unwrap().entries.len() >= 2);
    assert!(fs.remove(at("moved"), Removal::Single).await.is_err());
    fs.remove(at("moved"), Removal::Tree).await.unwrap();
    assert!(!fs.exists(at("moved")).await.unwrap());
    let error = fs.read_file(at("moved")).await.unwrap_err();
    assert!(error.is_not_found());
    assert_eq!(std::io::Error::from(error).kind(), std::io::ErrorKind::NotFound);
}

#[tokio::test]
async fn a_relative_path_starts_where_the_server_runs() {
    let folder = tempfile::tempdir().unwrap();
    let server = TestExecutor::builder().current_dir(folder.path()).start().await;
    let client = ExecServerClient::connect(server.url()).await.unwrap();
    client.fs().write_file("x", "y").await.unwrap();
    assert_eq!(std::fs::read(folder.path().join("x")).unwrap(), b"y");
    let output = client.command("cat").arg("x").output().await.unwrap();
    assert_eq!(output.stdout, b"y");
}

#[tokio::test]
async fn files_are_streamed_in_both_directions() {
    let (_server, client) = connected().await;
    let folder = tempfile::tempdir().unwrap();
    let fs = client.fs();
    for len in [0usize, 1, 1024 * 1024 - 1, 1024 * 1024, 1024 * 1024 + 1, 5_500_000] {
        let path = folder.path().join(len.to_string());
        let content: Vec<u8> = (0..len).map(|place| (place % 251) as u8).collect();
        let mut writer = fs.write_file_stream(&path).await.unwrap();
        writer.write_all(&content).await.unwrap();
        assert!(!path.exists(), "nothing is there before the end");
        writer.finish().await.unwrap();
        assert!(std::fs::read(&path).unwrap() == content);
        let mut reader = fs.read_file_stream(&path).await.unwrap();
        assert_eq!(reader.size(), Some(len as u64));
        let mut back = Vec::new();
        reader.read_to_end(&mut back).await.unwrap();
        assert!(back == content, "{len}");
    }
}

#[tokio::test]
async fn content_that_fits_into_no_message_is_streamed() {
    let (_server, client) = connected().await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x");
    let content = vec![3; 50 * 1024 * 1024];
    client.fs().write_file(&path, content.clone()).await.unwrap();
    assert!(std::fs::read(&path).unwrap() == content);
}

#[tokio::test]
async fn a_stream_that_is_dropped_frees_its_handle_and_writes_nothing() {
    let (_server, client) = connected().await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x");
    let fs = client.fs();
    // More than a connection may have open at once.
    for _ in 0..300 {
        let mut writer = fs.write_file_stream(&path).await.unwrap();
        writer.write_all(b"half").await.unwrap();
        writer.flush().await.unwrap();
    }
    assert!(!path.exists());
    std::fs::write(&path, vec![1; 3_000_000]).unwrap();
    for _ in 0..300 {
        let mut reader = fs.read_file_stream(&path).await.unwrap();
        reader.next_block().await.unwrap();
    }
}

#[tokio::test]
async fn a_watch_reports_when_a_missing_path_appears() {
    let (_server, client) = connected().await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("later");
    let fs = client.fs();
    let uri = fs.resolve(&path).await.unwrap();
    let mut watch = fs.watch_missing(vec![uri]).await.unwrap();
    assert!(watch.answer().watching);
    std::fs::write(&path, "").unwrap();
    timeout(DEADLINE, watch.changed()).await.expect("it is told").unwrap();
}

#[tokio::test]
async fn conditions_are_kept() {
    let (_server, client) = connected().await;
    let folder = tempfile::tempdir().unwrap();
    let fs = client.fs();
    let path = fs.resolve(folder.path().join("x")).await.unwrap();
    let params = serde_json::json!({"path": path, "dataBase64": "YQ==", "ifAbsent": true});
    let params: exec_server::FsWriteFileParams = serde_json::from_value(params).unwrap();
    fs.write_file_with(params.clone()).await.unwrap();
    let error = fs.write_file_with(params).await.unwrap_err();
    assert!(matches!(error, ExecServerError::Server { .. }), "{error}");
}
