//! Replacing a file on conditions, through links, and when something goes wrong.

use std::os::unix::fs::MetadataExt;

use exec_server_protocol::base64;
use exec_server_testkit::TestExecutor;
use exec_server_testkit::fs_fixture::{FsFixture, on_each_file_system};
use serde_json::{Value, json};

use super::{let_go, names, put_link, refused};

/// Opens for replacing, with `more` conditions.
async fn open(desk: &mut FsFixture, name: &str, mut more: Value) -> Result<Value, Value> {
    more["handleId"] = json!("w");
    more["mode"] = json!("replace");
    desk.call("fs/open", name, more).await
}

async fn write(desk: &mut FsFixture, offset: u64, bytes: &[u8]) -> Result<Value, Value> {
    let params = json!({"handleId": "w", "offset": offset, "chunk": base64::encode(bytes)});
    desk.client.call("fs/writeBlock", params).await
}

async fn close(desk: &mut FsFixture) -> Result<Value, Value> {
    desk.client.call("fs/close", json!({"handleId": "w"})).await
}

async fn tag(desk: &mut FsFixture, name: &str) -> Value {
    desk.call("fs/getMetadata", name, json!({"detailed": true})).await.unwrap()["versionTag"].take()
}

#[tokio::test]
async fn a_file_that_must_be_new_is_refused_where_one_is() {
    on_each_file_system(async |desk| {
        let if_absent = json!({"ifAbsent": true});
        desk.put("f", "f");
        put_link(desk, "link", "f");
        for name in ["f", "link"] {
            refused(open(desk, name, if_absent.clone()).await, -32603, "EEXIST");
        }
        refused(write(desk, 0, b"x").await, -32004, "unknown_handle");
        open(desk, "new", if_absent.clone()).await.unwrap();
        write(desk, 0, b"mine").await.unwrap();
        assert_eq!(close(desk).await, Ok(json!({})));
        assert_eq!(desk.get("new"), b"mine");
        // A file created between the open and the close keeps the name.
        open(desk, "race", if_absent).await.unwrap();
        write(desk, 0, b"mine").await.unwrap();
        desk.put("race", "theirs");
        refused(close(desk).await, -32603, "EEXIST");
        let_go(desk).await;
        assert_eq!((desk.get("race"), desk.get("f")), (b"theirs".to_vec(), b"f".to_vec()));
        assert_eq!(names(desk), ["f", "link", "new", "race"]);
    })
    .await;
}

#[tokio::test]
async fn only_the_version_that_was_named_is_replaced() {
    on_each_file_system(async |desk| {
        desk.put("f", "one");
        let first = tag(desk, "f").await;
        refused(open(desk, "f", json!({"ifMatch": "x"})).await, -32600, "version_mismatch");
        refused(open(desk, "new", json!({"ifMatch": first})).await, -32600, "version_mismatch");
        let opened = open(desk, "f", json!({"ifMatch": first, "detailed": true})).await.unwrap();
        assert_eq!(opened["handleId"], "w");
        write(desk, 0, b"second").await.unwrap();
        let closed = close(desk).await.unwrap();
        assert_eq!(closed, json!({"size": 6, "versionTag": tag(desk, "f").await}));
        assert_ne!(closed["versionTag"], first);
        refused(open(desk, "f", json!({"ifMatch": first})).await, -32600, "version_mismatch");
        // A change between the open and the close is not lost.
        open(desk, "f", json!({"ifMatch": closed["versionTag"]})).await.unwrap();
        write(desk, 0, b"third").await.unwrap();
        desk.put("f", "by others");
        refused(close(desk).await, -32600, "version_mismatch");
        assert_eq!(desk.get("f"), b"by others");
        let now = tag(desk, "f").await;
        open(desk, "f", json!({"ifMatch": now})).await.unwrap();
        std::fs::remove_file(desk.path("f")).unwrap();
        refused(close(desk).await, -32600, "version_mismatch");
        let_go(desk).await;
        assert_eq!(names(desk), [""; 0]);
    })
    .await;
}

#[tokio::test]
async fn of_quick_replacements_of_one_version_exactly_one_wins() {
    on_each_file_system(async |desk| {
        desk.put("f", "start");
        for round in 0..20 {
            let version = tag(desk, "f").await;
            let mut asked = Vec::new();
            for id in ["a", "b", "c"] {
                let params = json!({"handleId": id, "mode": "replace", "ifMatch": version});
                desk.call("fs/open", "f", params).await.unwrap();
                let chunk = base64::encode(format!("{round}{id}").as_bytes());
                let params = json!({"handleId": id, "offset": 0, "chunk": chunk});
                desk.client.call("fs/writeBlock", params).await.unwrap();
            }
            for id in ["a", "b", "c"] {
                asked.push((id, desk.client.send("fs/close", json!({"handleId": id})).await));
            }
            let mut winners = Vec::new();
            for (id, asked) in asked {
                match desk.client.reply(asked).await {
                    Ok(_) => winners.push(id),
                    Err(error) => refused(Err(error), -32600, "version_mismatch"),
                }
            }
            assert_eq!(winners.len(), 1, "{winners:?}");
            assert_eq!(desk.get("f"), format!("{round}{}", winners[0]).as_bytes());
        }
    })
    .await;
}

#[tokio::test]
async fn the_last_to_close_wins() {
    on_each_file_system(async |desk| {
        desk.put("f", "old");
        for id in ["a", "b"] {
            let params = json!({"handleId": id, "mode": "replace"});
            desk.call("fs/open", "f", params).await.unwrap();
            let chunk = base64::encode(id.as_bytes());
            let params = json!({"handleId": id, "offset": 0, "chunk": chunk});
            desk.client.call("fs/writeBlock", params).await.unwrap();
        }
        for id in ["b", "a"] {
            desk.client.call("fs/close", json!({"handleId": id})).await.unwrap();
            assert_eq!(desk.get("f"), id.as_bytes());
        }
        // One that goes away meanwhile is there again.
        open(desk, "f", json!({})).await.unwrap();
        std::fs::remove_file(desk.path("f")).unwrap();
        close(desk).await.unwrap();
        assert_eq!((names(desk), desk.get("f")), (vec!["f".into()], vec![]));
    })
    .await;
}

#[tokio::test]
async fn a_link_stays_a_link_and_leads_to_the_new_content() {
    on_each_file_system(async |desk| {
        std::fs::create_dir(desk.path("d")).unwrap();
        desk.put("d/f", "old");
        put_link(desk, "link", "d/f");
        put_link(desk, "second", "link");
        put_link(desk, "dangling", "d/new");
        for (name, target) in [("second", "d/f"), ("dangling", "d/new")] {
            open(desk, name, json!({})).await.unwrap();
            write(desk, 0, name.as_bytes()).await.unwrap();
            close(desk).await.unwrap();
            assert_eq!(desk.get(target), name.as_bytes());
            assert!(desk.path(name).is_symlink());
        }
        assert_eq!(names(desk), ["d", "dangling", "link", "second"]);
        assert_eq!(desk.path("d").read_dir().unwrap().count(), 2);
    })
    .await;
}

#[tokio::test]
async fn a_file_with_several_names_keeps_all_of_them() {
    on_each_file_system(async |desk| {
        let path = desk.put("f", "a long old content");
        std::fs::hard_link(&path, desk.path("other name")).unwrap();
        let inode = path.metadata().unwrap().ino();
        open(desk, "f", json!({"detailed": true})).await.unwrap();
        write(desk, 0, b"new").await.unwrap();
        assert_eq!(desk.get("f"), b"a long old content");
        let closed = close(desk).await.unwrap();
        let expected = json!({"inPlace": true, "size": 3, "versionTag": tag(desk, "f").await});
        assert_eq!(closed, expected);
        for name in ["f", "other name"] {
            assert_eq!(
                (desk.get(name), desk.path(name).metadata().unwrap().ino()),
                (b"new".into(), inode)
            );
        }
    })
    .await;
}

#[tokio::test]
async fn a_block_that_could_not_be_written_keeps_the_file_from_being_replaced() {
    on_each_file_system(async |desk| {
        // A file that grows beyond this fails as it would on a full disk.
        let limits = "trap '' XFSZ; ulimit -f 200";
        desk.server = TestExecutor::builder().after(limits).start().await;
        desk.client = desk.server.client().await;
        desk.put("f", "old");
        open(desk, "f", json!({})).await.unwrap();
        write(desk, 0, b"fits").await.unwrap();
        for _ in 0..2 {
            refused(write(desk, 1 << 20, b"does not fit").await, -32603, "EFBIG");
        }
        write(desk, 4, b", too").await.unwrap();
        refused(close(desk).await, -32603, "blocks_missing");
        refused(write(desk, 0, b"x").await, -32004, "unknown_handle");
        assert_eq!(desk.get("f"), b"old");
        // The handle can still be discarded after the failed write.
        open(desk, "f", json!({})).await.unwrap();
        refused(write(desk, 1 << 20, b"does not fit").await, -32603, "EFBIG");
        let discard = json!({"handleId": "w", "discard": true});
        assert_eq!(desk.client.call("fs/close", discard).await, Ok(json!({})));
        let_go(desk).await;
        assert_eq!(names(desk), ["f"]);
    })
    .await;
}

#[tokio::test]
async fn every_degree_of_durability_ends_with_the_new_content() {
    on_each_file_system(async |desk| {
        for durability in ["none", "data", "full"] {
            open(desk, "f", json!({"durability": durability})).await.unwrap();
            write(desk, 0, durability.as_bytes()).await.unwrap();
            close(desk).await.unwrap();
            assert_eq!(desk.get("f"), durability.as_bytes());
        }
        let result = open(desk, "f", json!({"durability": "best"})).await;
        refused(result, -32602, "invalid_params");
    })
    .await;
}
