//! `fs/watch`: what is reported, in which order, and what survives a lost connection.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;

use exec_server_testkit::fs_fixture::{FsFixture, kind, uri};
use exec_server_testkit::{TestExecutor, eventually};
use serde_json::{Value, json};

use super::host::{skip, succeeds};
use super::{put_link, refused, resumed};

async fn watch(desk: &mut FsFixture, name: &str, recursive: bool) -> Value {
    let more = json!({"watchId": "w", "recursive": recursive, "coalesceMs": 20});
    desk.call("fs/watch", name, more).await.unwrap()
}

/// Reads changes until one is about `last`; as `kind name`.
async fn changes_until(desk: &mut FsFixture, after: &mut u64, last: &str) -> Vec<String> {
    let root = format!("{}/", desk.uri("").trim_end_matches('/'));
    let short = |uri: &Value| uri.as_str().unwrap().trim_start_matches(&root).to_owned();
    let mut seen = Vec::new();
    while !seen.iter().any(|text: &String| text == last) {
        let params = json!({"watchId": "w", "afterSeq": *after, "waitMs": 30_000});
        let answer = desk.client.call("fs/readChanges", params).await.unwrap();
        for change in answer["changes"].as_array().unwrap() {
            assert_eq!(change["seq"], *after + 1);
            *after += 1;
            let from = match change.get("from") {
                Some(from) => format!("{} > ", short(from)),
                None => String::new(),
            };
            let kind = change["kind"].as_str().unwrap();
            seen.push(format!("{kind} {from}{}", short(&change["path"])));
        }
        assert!(answer["ended"] == false || seen.iter().any(|text| text == last), "{seen:?}");
    }
    seen
}

#[tokio::test]
async fn every_kind_of_change_is_reported_in_order() {
    let desk = &mut FsFixture::new().await;
    std::fs::create_dir(desk.path("d")).unwrap();
    desk.put("f", "");
    let answer = watch(desk, "", true).await;
    assert_eq!(answer, json!({"watchId": "w", "directories": 2}));
    let mut seq = 0;
    desk.put("f", "content");
    desk.put("f", "more content");
    assert_eq!(changes_until(desk, &mut seq, "write f").await, ["write f"]);
    std::fs::set_permissions(desk.path("f"), PermissionsExt::from_mode(0o600)).unwrap();
    assert_eq!(changes_until(desk, &mut seq, "chmod f").await, ["chmod f"]);
    std::fs::rename(desk.path("f"), desk.path("d/g")).unwrap();
    assert_eq!(changes_until(desk, &mut seq, "rename f > d/g").await, ["rename f > d/g"]);
    std::fs::rename(desk.path("d"), desk.path("e")).unwrap();
    desk.put("e/h", "");
    let seen = changes_until(desk, &mut seq, "create e/h").await;
    assert_eq!(seen[0], "rename d > e");
    std::fs::remove_dir_all(desk.path("e")).unwrap();
    let seen = changes_until(desk, &mut seq, "remove e").await;
    assert!(seen.contains(&"remove e/g".to_owned()), "{seen:?}");
    // What is in a directory that came as a whole is reported, too.
    std::fs::create_dir_all(desk.path("new/deep/er")).unwrap();
    desk.put("new/deep/er/f", "x");
    let seen = changes_until(desk, &mut seq, "create new/deep/er/f").await;
    assert_eq!(seen[0], "create new", "{seen:?}");
    let outside = tempfile::tempdir_in(desk.root().parent().unwrap()).unwrap();
    std::fs::rename(desk.path("new"), outside.path().join("away")).unwrap();
    assert_eq!(changes_until(desk, &mut seq, "remove new").await, ["remove new"]);
    std::fs::write(outside.path().join("away/deep/unseen"), "").unwrap();
    std::fs::rename(outside.path().join("away"), desk.path("back")).unwrap();
    let seen = changes_until(desk, &mut seq, "create back/deep/er/f").await;
    assert!(!seen.iter().any(|text| text.contains("new")), "{seen:?}");
}

#[tokio::test]
async fn a_directory_alone_is_watched_without_what_is_below() {
    let desk = &mut FsFixture::new().await;
    std::fs::create_dir(desk.path("d")).unwrap();
    let outside = tempfile::tempdir().unwrap();
    put_link(desk, "out", outside.path());
    assert_eq!(watch(desk, "", false).await["directories"], 1);
    desk.put("d/below", "");
    std::fs::write(outside.path().join("outside"), "").unwrap();
    desk.put("here", "");
    let mut seq = 0;
    let seen = changes_until(desk, &mut seq, "create here").await;
    assert!(
        !seen.iter().any(|text| text.contains("below") || text.contains("outside")),
        "{seen:?}"
    );
    let unwatched = desk.client.call("fs/unwatch", json!({"watchId": "w"})).await.unwrap();
    assert_eq!(unwatched, json!({"watching": true}));
    let read = desk.client.call("fs/readChanges", json!({"watchId": "w"})).await;
    assert_eq!(kind(read), (-32004, "unknown_watch".to_owned()));
}

#[tokio::test]
async fn a_path_that_is_replaced_ends_its_watch() {
    let desk = &mut FsFixture::new().await;
    for (name, is_directory) in [("d", true), ("f", false)] {
        if is_directory {
            std::fs::create_dir(desk.path(name)).unwrap();
        } else {
            desk.put(name, "");
        }
        watch(desk, name, true).await;
        std::fs::rename(desk.path(name), desk.path("moved")).unwrap();
        desk.put(name, "another");
        let mut seq = 0;
        assert_eq!(changes_until(desk, &mut seq, &format!("remove {name}")).await.len(), 1);
        let params = json!({"watchId": "w", "afterSeq": seq, "waitMs": 30_000});
        let answer = desk.client.call("fs/readChanges", params).await.unwrap();
        assert_eq!(answer, json!({"changes": [], "ended": true}));
        desk.client.call("fs/unwatch", json!({"watchId": "w"})).await.unwrap();
        std::fs::rename(desk.path("moved"), desk.path(&format!("old {name}"))).unwrap();
    }
}

#[tokio::test]
async fn what_cannot_be_watched_is_refused() {
    let desk = &mut FsFixture::new().await;
    let id = |id: &str| json!({ "watchId": id });
    refused(desk.call("fs/watch", "missing", id("a")).await, -32004, "ENOENT");
    let proc = json!({"watchId": "a", "path": "file:///proc"});
    refused(desk.client.call("fs/watch", proc).await, -32600, "unwatchable");
    refused(desk.call("fs/watch", "", id(&"x".repeat(65))).await, -32602, "invalid_params");
    for number in 0..32 {
        desk.call("fs/watch", "", id(&number.to_string())).await.unwrap();
    }
    refused(desk.call("fs/watch", "", id("0")).await, -32600, "watch_exists");
    refused(desk.call("fs/watch", "", id("more")).await, -32600, "too_many_watches");
}

#[tokio::test]
async fn names_that_are_not_utf8_are_reported_exactly() {
    let desk = &mut FsFixture::new().await;
    watch(desk, "", true).await;
    let odd = |name: &[u8]| desk.root().join(OsStr::from_bytes(name));
    let (directory, moved) = (odd(b"d\xff"), odd(b"e\xfe"));
    let file = directory.join(OsStr::from_bytes(b"f\x80"));
    std::fs::create_dir(&directory).unwrap();
    std::fs::write(file, "").unwrap();
    let mut seq = 0;
    let seen = changes_until(desk, &mut seq, "create d%FF/f%80").await;
    assert_eq!(seen[0], "create d%FF", "{seen:?}");
    std::fs::rename(directory, &moved).unwrap();
    let seen = changes_until(desk, &mut seq, "rename d%FF > e%FE").await;
    std::fs::remove_dir_all(moved).unwrap();
    let rest = changes_until(desk, &mut seq, "remove e%FE").await;
    assert!(rest.contains(&"remove e%FE/f%80".to_owned()), "{seen:?} {rest:?}");
}

#[tokio::test]
async fn a_limit_of_the_machine_is_named() {
    // A user namespace has a limit of its own.
    let setup = "echo 5 > /proc/sys/user/max_inotify_watches";
    let unshare = |then: &str| format!("unshare -U -r /bin/sh -ec '{setup}\n{then}'");
    if !succeeds(&unshare("")) {
        skip("no user namespace can be made here");
        return;
    }
    let preparation = format!("exec {} \"$0\" \"$@\"", unshare("exec \"$0\" \"$@\""));
    let server = TestExecutor::builder().after(&preparation).start().await;
    let mut client = server.client().await;
    let tree = tempfile::tempdir().unwrap();
    for number in 0..10 {
        std::fs::create_dir(tree.path().join(number.to_string())).unwrap();
    }
    let params = json!({"watchId": "w", "path": uri(tree.path()), "recursive": true});
    let error = client.call("fs/watch", params.clone()).await.unwrap_err();
    let hint = error["data"]["hint"].as_str().unwrap_or_default().to_owned();
    assert!(hint.contains("max_user_watches"), "{error}");
    assert_eq!(kind(Err(error)), (-32600, "watch_limit".to_owned()));
    // The watches that were made are given back.
    let mut alone = params;
    alone["recursive"] = json!(false);
    client.call("fs/watch", alone).await.unwrap();
}

/// The threads of the server that watch.
fn watching(desk: &FsFixture) -> usize {
    let tasks = format!("/proc/{}/task", desk.server.serving_pid());
    let tasks = std::fs::read_dir(tasks).expect("the server runs").flatten();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
    names.filter(|name| name.trim() == "watch").count()
}

#[tokio::test]
async fn changes_while_the_client_is_away_are_kept_or_a_rescan_is_asked_for() {
    let desk = &mut FsFixture::new().await;
    watch(desk, "", false).await;
    let session = desk.client.session_id.clone();
    desk.client = desk.server.client().await;
    desk.put("away", "");
    desk.client = resumed(desk, &session).await;
    let mut seq = 0;
    assert_eq!(changes_until(desk, &mut seq, "create away").await, ["create away"]);
    for number in 0..20_000 {
        desk.put(&format!("many{number}"), "");
    }
    let root = desk.uri("").trim_end_matches('/').to_owned();
    let seen = changes_until(desk, &mut seq, &format!("rescan {root}")).await;
    assert!(seen.len() <= 16_385, "{}", seen.len());
    desk.client.call("fs/unwatch", json!({"watchId": "w"})).await.unwrap();
    eventually("the thread ends", || watching(desk) == 0).await;
}
