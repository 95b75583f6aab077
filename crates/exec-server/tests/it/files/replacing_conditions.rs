//! Conditional replacement, replacement through links, and failures.

use std::os::unix::fs::MetadataExt;

use exec_server_protocol::base64;
use exec_server_testkit::TestExecutor;
use exec_server_testkit::fs_fixture::{FsFixture, on_each_file_system};
use serde_json::{Value, json};

use super::{let_go, names, put_link, refused};

/// Opens for replacing, with `more` conditions.
async fn open(fixture: &mut FsFixture, name: &str, mut more: Value) -> Result<Value, Value> {
    more["handleId"] = json!("w");
    more["mode"] = json!("replace");
    fixture.call("fs/open", name, more).await
}

async fn write(fixture: &mut FsFixture, offset: u64, bytes: &[u8]) -> Result<Value, Value> {
    let params = json!({"handleId": "w", "offset": offset, "chunk": base64::encode(bytes)});
    fixture.client.call("fs/writeBlock", params).await
}

async fn close(fixture: &mut FsFixture) -> Result<Value, Value> {
    fixture.client.call("fs/close", json!({"handleId": "w"})).await
}

async fn tag(fixture: &mut FsFixture, name: &str) -> Value {
    fixture.call("fs/getMetadata", name, json!({"detailed": true})).await.unwrap()["versionTag"]
        .take()
}

#[tokio::test]
async fn a_file_that_must_be_new_is_refused_where_one_is() {
    on_each_file_system(async |fixture| {
        let if_absent = json!({"ifAbsent": true});
        fixture.put("f", "f");
        put_link(fixture, "link", "f");
        for name in ["f", "link"] {
            refused(open(fixture, name, if_absent.clone()).await, -32603, "EEXIST");
        }
        refused(write(fixture, 0, b"x").await, -32004, "unknown_handle");
        open(fixture, "new", if_absent.clone()).await.unwrap();
        write(fixture, 0, b"mine").await.unwrap();
        assert_eq!(close(fixture).await, Ok(json!({})));
        assert_eq!(fixture.get("new"), b"mine");
        // A file created between the open and the close keeps the name.
        open(fixture, "race", if_absent).await.unwrap();
        write(fixture, 0, b"mine").await.unwrap();
        fixture.put("race", "theirs");
        refused(close(fixture).await, -32603, "EEXIST");
        let_go(fixture).await;
        assert_eq!((fixture.get("race"), fixture.get("f")), (b"theirs".to_vec(), b"f".to_vec()));
        assert_eq!(names(fixture), ["f", "link", "new", "race"]);
    })
    .await;
}

#[tokio::test]
async fn only_the_version_that_was_named_is_replaced() {
    on_each_file_system(async |fixture| {
        fixture.put("f", "one");
        let first = tag(fixture, "f").await;
        refused(open(fixture, "f", json!({"ifMatch": "x"})).await, -32600, "version_mismatch");
        refused(open(fixture, "new", json!({"ifMatch": first})).await, -32600, "version_mismatch");
        let opened = open(fixture, "f", json!({"ifMatch": first, "detailed": true})).await.unwrap();
        assert_eq!(opened["handleId"], "w");
        write(fixture, 0, b"second").await.unwrap();
        let closed = close(fixture).await.unwrap();
        assert_eq!(closed, json!({"size": 6, "versionTag": tag(fixture, "f").await}));
        assert_ne!(closed["versionTag"], first);
        refused(open(fixture, "f", json!({"ifMatch": first})).await, -32600, "version_mismatch");
        // A change between the open and the close is not lost.
        open(fixture, "f", json!({"ifMatch": closed["versionTag"]})).await.unwrap();
        write(fixture, 0, b"third").await.unwrap();
        fixture.put("f", "by others");
        refused(close(fixture).await, -32600, "version_mismatch");
        assert_eq!(fixture.get("f"), b"by others");
        let now = tag(fixture, "f").await;
        open(fixture, "f", json!({"ifMatch": now})).await.unwrap();
        std::fs::remove_file(fixture.path("f")).unwrap();
        refused(close(fixture).await, -32600, "version_mismatch");
        let_go(fixture).await;
        assert_eq!(names(fixture), [""; 0]);
    })
    .await;
}

#[tokio::test]
async fn of_quick_replacements_of_one_version_exactly_one_wins() {
    on_each_file_system(async |fixture| {
        fixture.put("f", "start");
        for round in 0..20 {
            let version = tag(fixture, "f").await;
            let mut asked = Vec::new();
            for id in ["a", "b", "c"] {
                let params = json!({"handleId": id, "mode": "replace", "ifMatch": version});
                fixture.call("fs/open", "f", params).await.unwrap();
                let chunk = base64::encode(format!("{round}{id}").as_bytes());
                let params = json!({"handleId": id, "offset": 0, "chunk": chunk});
                fixture.client.call("fs/writeBlock", params).await.unwrap();
            }
            for id in ["a", "b", "c"] {
                asked.push((id, fixture.client.send("fs/close", json!({"handleId": id})).await));
            }
            let mut winners = Vec::new();
            for (id, asked) in asked {
                match fixture.client.reply(asked).await {
                    Ok(_) => winners.push(id),
                    Err(error) => refused(Err(error), -32600, "version_mismatch"),
                }
            }
            assert_eq!(winners.len(), 1, "{winners:?}");
            assert_eq!(fixture.get("f"), format!("{round}{}", winners[0]).as_bytes());
        }
    })
    .await;
}

#[tokio::test]
async fn the_last_to_close_wins() {
    on_each_file_system(async |fixture| {
        fixture.put("f", "old");
        for id in ["a", "b"] {
            let params = json!({"handleId": id, "mode": "replace"});
            fixture.call("fs/open", "f", params).await.unwrap();
            let chunk = base64::encode(id.as_bytes());
            let params = json!({"handleId": id, "offset": 0, "chunk": chunk});
            fixture.client.call("fs/writeBlock", params).await.unwrap();
        }
        for id in ["b", "a"] {
            fixture.client.call("fs/close", json!({"handleId": id})).await.unwrap();
            assert_eq!(fixture.get("f"), id.as_bytes());
        }
        // A file that is removed meanwhile is created again.
        open(fixture, "f", json!({})).await.unwrap();
        std::fs::remove_file(fixture.path("f")).unwrap();
        close(fixture).await.unwrap();
        assert_eq!((names(fixture), fixture.get("f")), (vec!["f".into()], vec![]));
    })
    .await;
}

#[tokio::test]
async fn a_link_stays_a_link_and_leads_to_the_new_content() {
    on_each_file_system(async |fixture| {
        std::fs::create_dir(fixture.path("d")).unwrap();
        fixture.put("d/f", "old");
        put_link(fixture, "link", "d/f");
        put_link(fixture, "second", "link");
        put_link(fixture, "dangling", "d/new");
        for (name, target) in [("second", "d/f"), ("dangling", "d/new")] {
            open(fixture, name, json!({})).await.unwrap();
            write(fixture, 0, name.as_bytes()).await.unwrap();
            close(fixture).await.unwrap();
            assert_eq!(fixture.get(target), name.as_bytes());
            assert!(fixture.path(name).is_symlink());
        }
        assert_eq!(names(fixture), ["d", "dangling", "link", "second"]);
        assert_eq!(fixture.path("d").read_dir().unwrap().count(), 2);
    })
    .await;
}

#[tokio::test]
async fn a_file_with_several_names_keeps_all_of_them() {
    on_each_file_system(async |fixture| {
        let path = fixture.put("f", "a long old content");
        std::fs::hard_link(&path, fixture.path("other name")).unwrap();
        let inode = path.metadata().unwrap().ino();
        open(fixture, "f", json!({"detailed": true})).await.unwrap();
        write(fixture, 0, b"new").await.unwrap();
        assert_eq!(fixture.get("f"), b"a long old content");
        let closed = close(fixture).await.unwrap();
        let expected = json!({"inPlace": true, "size": 3, "versionTag": tag(fixture, "f").await});
        assert_eq!(closed, expected);
        for name in ["f", "other name"] {
            assert_eq!(
                (fixture.get(name), fixture.path(name).metadata().unwrap().ino()),
                (b"new".into(), inode)
            );
        }
    })
    .await;
}

#[tokio::test]
async fn a_block_that_could_not_be_written_keeps_the_file_from_being_replaced() {
    on_each_file_system(async |fixture| {
        // A file that grows beyond this fails as it would on a full disk.
        let limits = "trap '' XFSZ; ulimit -f 200";
        fixture.server = TestExecutor::builder().after(limits).start().await;
        fixture.client = fixture.server.client().await;
        fixture.put("f", "old");
        open(fixture, "f", json!({})).await.unwrap();
        write(fixture, 0, b"fits").await.unwrap();
        for _ in 0..2 {
            refused(write(fixture, 1 << 20, b"does not fit").await, -32603, "EFBIG");
        }
        write(fixture, 4, b", too").await.unwrap();
        refused(close(fixture).await, -32603, "blocks_missing");
        refused(write(fixture, 0, b"x").await, -32004, "unknown_handle");
        assert_eq!(fixture.get("f"), b"old");
        // The handle can still be discarded after the failed write.
        open(fixture, "f", json!({})).await.unwrap();
        refused(write(fixture, 1 << 20, b"does not fit").await, -32603, "EFBIG");
        let discard = json!({"handleId": "w", "discard": true});
        assert_eq!(fixture.client.call("fs/close", discard).await, Ok(json!({})));
        let_go(fixture).await;
        assert_eq!(names(fixture), ["f"]);
    })
    .await;
}

#[tokio::test]
async fn every_degree_of_durability_ends_with_the_new_content() {
    on_each_file_system(async |fixture| {
        for durability in ["none", "data", "full"] {
            open(fixture, "f", json!({"durability": durability})).await.unwrap();
            write(fixture, 0, durability.as_bytes()).await.unwrap();
            close(fixture).await.unwrap();
            assert_eq!(fixture.get("f"), durability.as_bytes());
        }
        let result = open(fixture, "f", json!({"durability": "best"})).await;
        refused(result, -32602, "invalid_params");
    })
    .await;
}
