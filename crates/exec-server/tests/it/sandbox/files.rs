//! `fs/*` requests under a sandbox, performed by a confined worker.

use std::os::unix::fs::symlink;

use exec_server_protocol::base64;
use exec_server_testkit::fs_fixture::content;

use super::*;

/// A fixture with a workspace and a directory beside it, and a policy for the workspace.
fn furnish(fixture: &FsFixture) -> Value {
    for name in ["work", "outside"] {
        std::fs::create_dir(fixture.path(name)).unwrap();
    }
    fixture.put("outside/f", "outside");
    workspace_write(&[&fixture.path("work")], "restricted")
}

/// Asserts that the error names the sandbox, and returns its code.
#[track_caller]
fn denied(result: Result<Value, Value>) -> i64 {
    let error = result.expect_err("the sandbox forbids it");
    assert_eq!(error["data"]["sandboxDenied"], true, "{error}");
    error["code"].as_i64().unwrap()
}

#[tokio::test]
async fn files_of_the_workspace_are_read_and_written_and_others_only_read() {
    // Memory that is shared with the machine is hidden from every sandbox, so this is about a disk.
    let fixture = &mut FsFixture::new().await;
    let policy = furnish(fixture);
    let more = json!({"sandbox": policy});
    fixture.write("work/f", b"inside", more.clone()).await.unwrap();
    assert_eq!(fixture.get("work/f"), b"inside");
    for (name, expected) in [("work/f", "inside"), ("outside/f", "outside")] {
        let read = fixture.call("fs/readFile", name, more.clone()).await.unwrap();
        assert_eq!(content(&read["dataBase64"]), expected.as_bytes());
    }
    denied(fixture.write("outside/f", b"x", more.clone()).await);
    denied(fixture.write("outside/new", b"x", more.clone()).await);
    denied(fixture.call("fs/remove", "outside/f", more.clone()).await);
    denied(fixture.call("fs/createDirectory", "outside/d", more.clone()).await);
    assert_eq!(fixture.get("outside/f"), b"outside");
    assert!(!fixture.path("outside/new").exists() && !fixture.path("outside/d").exists());
}

#[tokio::test]
async fn edits_and_searches_are_confined_like_reads_and_writes() {
    let desk = &mut FsFixture::new().await;
    let policy = furnish(desk);
    let more = json!({"sandbox": policy});
    desk.put("work/f", "inside text");
    let edit = |old: &str| json!({"sandbox": policy, "edits": [{"old": old, "new": "content"}]});
    let done = desk.call("fs/edit", "work/f", edit("text")).await.unwrap();
    assert_eq!((desk.get("work/f"), &done["size"]), (b"inside content".to_vec(), &json!(14)));
    let missing = desk.call("fs/edit", "work/f", edit("insid content")).await.unwrap_err();
    assert_eq!(missing["data"]["edit"]["nearest"]["line"], 1, "{missing}");
    denied(desk.call("fs/edit", "outside/f", edit("outside")).await);
    assert_eq!(desk.get("outside/f"), b"outside");

    // Only what the policy shows is found, in pages, by a worker of its own.
    let hidden = with_entries(
        &[&desk.path("work")],
        "restricted",
        &[special("minimal", "read"), special("project_roots", "write")],
    );
    desk.put("work/lines", "line\n".repeat(3000));
    let params = json!({"pattern": ".", "sandbox": hidden, "searchId": "s"});
    let mut page = desk.call("fs/search", "work", params).await.unwrap();
    let mut lines = page["matches"].as_array().unwrap().len();
    while page["done"] == false {
        page = desk.client.call("fs/nextPage", json!({"searchId": "s"})).await.unwrap();
        lines += page["matches"].as_array().unwrap().len();
    }
    assert_eq!(lines, 3001, "{page}");
    let find = json!({"patterns": ["f", "lines"], "sandbox": hidden});
    let page = desk.call("fs/find", "work", find).await.unwrap();
    assert_eq!(page["entries"].as_array().unwrap().len(), 2, "{page}");
    let outside = json!({"pattern": ".", "sandbox": hidden});
    assert!(desk.call("fs/search", "outside", outside).await.is_err());
    let wrong = json!({"pattern": "(", "sandbox": hidden});
    let error = desk.call("fs/search", "work", wrong).await.unwrap_err();
    assert_eq!(error["data"]["kind"], "invalid_pattern", "{error}");
    let page = desk.call("fs/search", "", json!({"pattern": "outside", "sandbox": policy})).await;
    assert_eq!(page.unwrap()["matches"].as_array().unwrap().len(), 1);
    let page = desk.call("fs/find", "outside", more).await.unwrap();
    assert_eq!(page["entries"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn only_a_refusal_counts_as_denied() {
    let fixture = &mut FsFixture::new().await;
    let policy = furnish(fixture);
    let more = json!({"sandbox": policy});
    std::fs::create_dir(fixture.path("work/dir")).unwrap();
    fixture.put("work/dir/f", "");
    for (method, name, errno) in [
        ("fs/readFile", "outside/none", "ENOENT"),
        ("fs/readFile", "work/none", "ENOENT"),
        ("fs/readDirectory", "outside/f", "ENOTDIR"),
        ("fs/createDirectory", "work/dir/f/below", "ENOTDIR"),
    ] {
        let error = fixture.call(method, name, more.clone()).await.unwrap_err();
        assert_eq!(error["data"]["errno"], errno, "{method} {name}: {error}");
        assert_eq!(error["data"]["sandboxDenied"], Value::Null, "{method} {name}: {error}");
    }
    // A change outside of the grant is refused in the same way where its place is not even in the view.
    let hidden =
        with_entries(&[&fixture.path("work")], "restricted", &[special("minimal", "read")]);
    let error = fixture.write("outside/new", b"", json!({"sandbox": hidden})).await.unwrap_err();
    assert_eq!(error["data"]["errno"], "EACCES", "{error}");
    assert_eq!(error["data"]["sandboxDenied"], true, "{error}");
}

#[tokio::test]
async fn a_link_leads_nowhere_that_is_forbidden() {
    // Memory that is shared with the machine is hidden from every sandbox, so this is about a disk.
    let fixture = &mut FsFixture::new().await;
    let policy = furnish(fixture);
    let more = json!({"sandbox": policy});
    symlink(fixture.path("outside"), fixture.path("work/link")).unwrap();
    symlink(fixture.path("outside/f"), fixture.path("work/leaf")).unwrap();
    denied(fixture.write("work/link/f", b"x", more.clone()).await);
    denied(fixture.write("work/leaf", b"x", more.clone()).await);
    denied(fixture.call("fs/remove", "work/link/f", more.clone()).await);
    assert_eq!(fixture.get("outside/f"), b"outside");
}

#[tokio::test]
async fn new_content_is_streamed_and_put_in_place_inside() {
    // Memory that is shared with the machine is hidden from every sandbox, so this is about a disk.
    let fixture = &mut FsFixture::new().await;
    let policy = furnish(fixture);
    fixture.put("work/f", "old");
    let open = json!({"handleId": "h", "mode": "replace", "sandbox": policy});
    fixture.call("fs/open", "work/f", open.clone()).await.unwrap();
    let block = json!({"handleId": "h", "offset": 0, "chunk": base64::encode(b"new")});
    fixture.client.call("fs/writeBlock", block).await.unwrap();
    assert_eq!(fixture.get("work/f"), b"old");
    fixture.client.call("fs/close", json!({"handleId": "h"})).await.unwrap();
    assert_eq!(fixture.get("work/f"), b"new");
    denied(fixture.call("fs/open", "outside/f", open).await);
    let open = json!({"handleId": "r", "sandbox": policy});
    fixture.call("fs/open", "outside/f", open).await.unwrap();
    let block = json!({"handleId": "r", "offset": 3, "len": 100});
    let read = fixture.client.call("fs/readBlock", block).await.unwrap();
    assert_eq!(content(&read["chunk"]), b"side");
}

#[tokio::test]
async fn protected_names_are_kept_whether_they_are_there_or_not() {
    // Memory that is shared with the machine is hidden from every sandbox, so this is about a disk.
    let fixture = &mut FsFixture::new().await;
    let policy = furnish(fixture);
    let more = json!({"sandbox": policy});
    std::fs::create_dir(fixture.path("work/.git")).unwrap();
    fixture.put("work/.git/config", "mine");
    denied(fixture.write("work/.git/config", b"x", more.clone()).await);
    denied(fixture.call("fs/createDirectory", "work/.codex/d", more.clone()).await);
    symlink(".", fixture.path("work/here")).unwrap();
    denied(fixture.write("work/here/.codex/f", b"x", more.clone()).await);
    assert_eq!(fixture.get("work/.git/config"), b"mine");
    // A lookup creates no placeholder, and the placeholders of a write are removed with the connection.
    fixture.client = fixture.server.client().await;
    let gone = || !fixture.path("work/.codex").exists() && !fixture.path("work/.agents").exists();
    exec_server_testkit::eventually("the placeholders are gone", gone).await;
}

#[tokio::test]
async fn a_path_that_was_replaced_is_resolved_again() {
    let fixture = &mut FsFixture::new().await;
    std::fs::create_dir(fixture.path("work")).unwrap();
    let mut policy = workspace_write(&[&fixture.path("work")], "restricted");
    let only = json!({"type": "path", "path": fixture.uri("f")});
    policy["permissions"]["file_system"]["entries"][1] = json!({"path": only, "access": "write"});
    for number in 0..3 {
        // Another file under the same name, as editors make it.
        let aside = fixture.put("aside", "old");
        std::fs::rename(aside, fixture.path("f")).unwrap();
        let text = format!("new {number}");
        let more = json!({"sandbox": policy});
        let written = fixture.write("f", text.as_bytes(), more).await.unwrap();
        assert_eq!(written, json!({"inPlace": true}));
        assert_eq!(fixture.get("f"), text.as_bytes());
    }
}

#[tokio::test]
async fn content_that_fills_every_buffer_on_the_way_arrives_whole() {
    let fixture = &mut FsFixture::new().await;
    let more = json!({"sandbox": furnish(fixture)});
    for size in [0, 1, 16 * 1024 - 40, 16 * 1024, 300 * 1024, 5 * 1024 * 1024] {
        let data: Vec<u8> =
            (0..size).map(|index: u32| index.to_le_bytes()[index as usize % 3]).collect();
        fixture.write("work/f", &data, more.clone()).await.unwrap();
        assert!(fixture.get("work/f") == data, "{size} bytes");
        let read = fixture.call("fs/readFile", "work/f", more.clone()).await.unwrap();
        assert!(content(&read["dataBase64"]) == data, "{size} bytes");
    }
}

#[tokio::test]
async fn a_cached_policy_applies_to_the_current_files() {
    let fixture = &mut FsFixture::new().await;
    let mut policy = furnish(fixture);
    let entries = policy["permissions"]["file_system"]["entries"].as_array_mut().unwrap();
    entries.push(at(&fixture.path("work/secret"), "deny"));
    let more = json!({"sandbox": policy});
    let read = fixture.call("fs/readFile", "work/secret", more.clone()).await;
    assert_eq!(read.unwrap_err()["code"], -32004);
    fixture.put("work/secret", "hidden");
    denied(fixture.call("fs/readFile", "work/secret", more.clone()).await);
    std::fs::remove_file(fixture.path("work/secret")).unwrap();
    let read = fixture.call("fs/readFile", "work/secret", more).await;
    assert_eq!(read.unwrap_err()["code"], -32004);
}
