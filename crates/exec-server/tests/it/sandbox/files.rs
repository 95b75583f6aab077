//! Requests about files under a sandbox, carried out by a confined worker.

use std::os::unix::fs::symlink;

use exec_server_protocol::base64;
use exec_server_testkit::fs_fixture::content;

use super::*;

/// A desk with a workspace and something beside it, and the policy that keeps to the workspace.
fn furnish(desk: &FsFixture) -> Value {
    for name in ["work", "outside"] {
        std::fs::create_dir(desk.path(name)).unwrap();
    }
    desk.put("outside/f", "outside");
    workspace_write(&[&desk.path("work")], "restricted")
}

/// Asserts that the sandbox is named as the reason, and gives the code.
#[track_caller]
fn denied(result: Result<Value, Value>) -> i64 {
    let error = result.expect_err("the sandbox forbids it");
    assert_eq!(error["data"]["sandboxDenied"], true, "{error}");
    error["code"].as_i64().unwrap()
}

#[tokio::test]
async fn files_of_the_workspace_are_read_and_written_and_others_only_read() {
    // Memory that is shared with the machine is hidden from every sandbox, so this is about a disk.
    let desk = &mut FsFixture::new().await;
    let policy = furnish(desk);
    let more = json!({"sandbox": policy});
    desk.write("work/f", b"inside", more.clone()).await.unwrap();
    assert_eq!(desk.get("work/f"), b"inside");
    for (name, expected) in [("work/f", "inside"), ("outside/f", "outside")] {
        let read = desk.call("fs/readFile", name, more.clone()).await.unwrap();
        assert_eq!(content(&read["dataBase64"]), expected.as_bytes());
    }
    denied(desk.write("outside/f", b"x", more.clone()).await);
    denied(desk.write("outside/new", b"x", more.clone()).await);
    denied(desk.call("fs/remove", "outside/f", more.clone()).await);
    denied(desk.call("fs/createDirectory", "outside/d", more.clone()).await);
    assert_eq!(desk.get("outside/f"), b"outside");
    assert!(!desk.path("outside/new").exists() && !desk.path("outside/d").exists());
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
    let desk = &mut FsFixture::new().await;
    let policy = furnish(desk);
    let more = json!({"sandbox": policy});
    std::fs::create_dir(desk.path("work/dir")).unwrap();
    desk.put("work/dir/f", "");
    for (method, name, errno) in [
        ("fs/readFile", "outside/none", "ENOENT"),
        ("fs/readFile", "work/none", "ENOENT"),
        ("fs/readDirectory", "outside/f", "ENOTDIR"),
        ("fs/createDirectory", "work/dir/f/below", "ENOTDIR"),
    ] {
        let error = desk.call(method, name, more.clone()).await.unwrap_err();
        assert_eq!(error["data"]["errno"], errno, "{method} {name}: {error}");
        assert_eq!(error["data"]["sandboxDenied"], Value::Null, "{method} {name}: {error}");
    }
    // A change outside of the grant is refused in the same way where its place is not even in the view.
    let hidden = with_entries(&[&desk.path("work")], "restricted", &[special("minimal", "read")]);
    let error = desk.write("outside/new", b"", json!({"sandbox": hidden})).await.unwrap_err();
    assert_eq!(error["data"]["errno"], "EACCES", "{error}");
    assert_eq!(error["data"]["sandboxDenied"], true, "{error}");
}

#[tokio::test]
async fn a_link_leads_nowhere_that_is_forbidden() {
    // Memory that is shared with the machine is hidden from every sandbox, so this is about a disk.
    let desk = &mut FsFixture::new().await;
    let policy = furnish(desk);
    let more = json!({"sandbox": policy});
    symlink(desk.path("outside"), desk.path("work/link")).unwrap();
    symlink(desk.path("outside/f"), desk.path("work/leaf")).unwrap();
    denied(desk.write("work/link/f", b"x", more.clone()).await);
    denied(desk.write("work/leaf", b"x", more.clone()).await);
    denied(desk.call("fs/remove", "work/link/f", more.clone()).await);
    assert_eq!(desk.get("outside/f"), b"outside");
}

#[tokio::test]
async fn new_content_is_streamed_and_put_in_place_inside() {
    // Memory that is shared with the machine is hidden from every sandbox, so this is about a disk.
    let desk = &mut FsFixture::new().await;
    let policy = furnish(desk);
    desk.put("work/f", "old");
    let open = json!({"handleId": "h", "mode": "replace", "sandbox": policy});
    desk.call("fs/open", "work/f", open.clone()).await.unwrap();
    let block = json!({"handleId": "h", "offset": 0, "chunk": base64::encode(b"new")});
    desk.client.call("fs/writeBlock", block).await.unwrap();
    assert_eq!(desk.get("work/f"), b"old");
    desk.client.call("fs/close", json!({"handleId": "h"})).await.unwrap();
    assert_eq!(desk.get("work/f"), b"new");
    denied(desk.call("fs/open", "outside/f", open).await);
    let open = json!({"handleId": "r", "sandbox": policy});
    desk.call("fs/open", "outside/f", open).await.unwrap();
    let block = json!({"handleId": "r", "offset": 3, "len": 100});
    let read = desk.client.call("fs/readBlock", block).await.unwrap();
    assert_eq!(content(&read["chunk"]), b"side");
}

#[tokio::test]
async fn protected_names_are_kept_whether_they_are_there_or_not() {
    // Memory that is shared with the machine is hidden from every sandbox, so this is about a disk.
    let desk = &mut FsFixture::new().await;
    let policy = furnish(desk);
    let more = json!({"sandbox": policy});
    std::fs::create_dir(desk.path("work/.git")).unwrap();
    desk.put("work/.git/config", "mine");
    denied(desk.write("work/.git/config", b"x", more.clone()).await);
    denied(desk.call("fs/createDirectory", "work/.codex/d", more.clone()).await);
    symlink(".", desk.path("work/here")).unwrap();
    denied(desk.write("work/here/.codex/f", b"x", more.clone()).await);
    assert_eq!(desk.get("work/.git/config"), b"mine");
    // A look makes no placeholder, and what a write made goes with the connection.
    desk.client = desk.server.client().await;
    let gone = || !desk.path("work/.codex").exists() && !desk.path("work/.agents").exists();
    exec_server_testkit::eventually("the placeholders are gone", gone).await;
}

#[tokio::test]
async fn a_place_that_somebody_else_replaced_is_looked_at_again() {
    let desk = &mut FsFixture::new().await;
    std::fs::create_dir(desk.path("work")).unwrap();
    let mut policy = workspace_write(&[&desk.path("work")], "restricted");
    let only = json!({"type": "path", "path": desk.uri("f")});
    policy["permissions"]["file_system"]["entries"][1] = json!({"path": only, "access": "write"});
    for number in 0..3 {
        // Another file under the same name, as editors make it.
        let aside = desk.put("aside", "old");
        std::fs::rename(aside, desk.path("f")).unwrap();
        let text = format!("new {number}");
        let more = json!({"sandbox": policy});
        let written = desk.write("f", text.as_bytes(), more).await.unwrap();
        assert_eq!(written, json!({"inPlace": true}));
        assert_eq!(desk.get("f"), text.as_bytes());
    }
}

#[tokio::test]
async fn content_that_fills_every_buffer_on_the_way_arrives_whole() {
    let desk = &mut FsFixture::new().await;
    let more = json!({"sandbox": furnish(desk)});
    for size in [0, 1, 16 * 1024 - 40, 16 * 1024, 300 * 1024, 5 * 1024 * 1024] {
        let data: Vec<u8> =
            (0..size).map(|index: u32| index.to_le_bytes()[index as usize % 3]).collect();
        desk.write("work/f", &data, more.clone()).await.unwrap();
        assert!(desk.get("work/f") == data, "{size} bytes");
        let read = desk.call("fs/readFile", "work/f", more.clone()).await.unwrap();
        assert!(content(&read["dataBase64"]) == data, "{size} bytes");
    }
}

#[tokio::test]
async fn a_policy_that_was_sent_before_still_means_what_is_there_now() {
    let desk = &mut FsFixture::new().await;
    let mut policy = furnish(desk);
    let entries = policy["permissions"]["file_system"]["entries"].as_array_mut().unwrap();
    entries.push(at(&desk.path("work/secret"), "deny"));
    let more = json!({"sandbox": policy});
    let read = desk.call("fs/readFile", "work/secret", more.clone()).await;
    assert_eq!(read.unwrap_err()["code"], -32004);
    desk.put("work/secret", "hidden");
    denied(desk.call("fs/readFile", "work/secret", more.clone()).await);
    std::fs::remove_file(desk.path("work/secret")).unwrap();
    let read = desk.call("fs/readFile", "work/secret", more).await;
    assert_eq!(read.unwrap_err()["code"], -32004);
}
