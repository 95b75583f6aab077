//! File handles: names, limits, reading, and closing.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;

use exec_server_protocol::limits::MAX_FILE_BLOCK_BYTES;
use exec_server_testkit::TestClient;
use exec_server_testkit::fs_fixture::{FsFixture, content, on_each_file_system};
use serde_json::{Value, json};

use super::{let_go, names, put_fifo, put_link, put_socket, refused};

async fn open(fixture: &mut FsFixture, id: &str, name: &str) -> Result<Value, Value> {
    fixture.call("fs/open", name, json!({"handleId": id})).await
}

async fn block(fixture: &mut FsFixture, id: &str, offset: u64, len: u64) -> Result<Value, Value> {
    let params = json!({"handleId": id, "offset": offset, "len": len});
    fixture.client.call("fs/readBlock", params).await
}

async fn close(fixture: &mut FsFixture, id: &str) -> Result<Value, Value> {
    fixture.client.call("fs/close", json!({"handleId": id})).await
}

#[tokio::test]
async fn blocks_are_read_at_any_offset_and_a_short_block_reports_the_end() {
    on_each_file_system(async |fixture| {
        fixture.put("f", "0123456789");
        fixture.put("empty", "");
        assert_eq!(open(fixture, "h", "f").await, Ok(json!({"handleId": "h"})));
        for (offset, len, chunk, eof) in [
            (6, 3, "Njc4", false),
            (8, 4, "ODk=", true),
            (0, 10, "MDEyMzQ1Njc4OQ==", false),
            (10, 1, "", true),
            (0, 1, "MA==", false),
            (9, 1, "OQ==", false),
            (0, MAX_FILE_BLOCK_BYTES, "MDEyMzQ1Njc4OQ==", true),
            (1 << 40, 5, "", true),
        ] {
            let expected = json!({"chunk": chunk, "eof": eof});
            assert_eq!(block(fixture, "h", offset, len).await, Ok(expected), "{offset} {len}");
        }
        open(fixture, "e", "empty").await.unwrap();
        assert_eq!(block(fixture, "e", 0, 1).await, Ok(json!({"chunk": "", "eof": true})));
    })
    .await;
}

#[tokio::test]
async fn a_file_streams_in_full_blocks() {
    on_each_file_system(async |fixture| {
        let size = 2 * usize::try_from(MAX_FILE_BLOCK_BYTES).unwrap();
        let bytes: Vec<u8> = (0..size).map(|at| (at / 5 % 251) as u8).collect();
        fixture.put("f", &bytes);
        open(fixture, "h", "f").await.unwrap();
        // All at once, from the end to the beginning.
        let mut asked = Vec::new();
        for offset in [2, 1, 0].map(|place| place * MAX_FILE_BLOCK_BYTES) {
            let params = json!({"handleId": "h", "offset": offset, "len": MAX_FILE_BLOCK_BYTES});
            asked.push(fixture.client.send("fs/readBlock", params).await);
        }
        let mut blocks = Vec::new();
        for id in asked {
            let block = fixture.client.reply(id).await.unwrap();
            blocks.push((content(&block["chunk"]), block["eof"].as_bool().unwrap()));
        }
        assert_eq!(blocks[0], (vec![], true));
        assert!(!blocks[1].1 && !blocks[2].1);
        assert!([&blocks[2].0[..], &blocks[1].0].concat() == bytes);
    })
    .await;
}

#[tokio::test]
async fn a_name_has_at_most_64_bytes() {
    on_each_file_system(async |fixture| {
        fixture.put("f", "f");
        for id in ["", "h", &"x".repeat(64), &"ü".repeat(32), "a\nb\"\0"] {
            assert_eq!(open(fixture, id, "f").await, Ok(json!({"handleId": id})));
            assert_eq!(block(fixture, id, 0, 1).await, Ok(json!({"chunk": "Zg==", "eof": false})));
            assert_eq!(close(fixture, id).await, Ok(json!({})));
        }
        for id in ["x".repeat(65), "ü".repeat(33)] {
            let error = open(fixture, &id, "f").await.unwrap_err();
            assert_eq!(error["message"], "file handle ID must not exceed 64 bytes");
            let replace = json!({"handleId": id, "mode": "replace"});
            let write = json!({"handleId": id, "offset": 0, "chunk": "AA=="});
            for result in [
                fixture.call("fs/open", "new", replace).await,
                open(fixture, &id, "nope").await,
                block(fixture, &id, 0, 1).await,
                fixture.client.call("fs/writeBlock", write).await,
                close(fixture, &id).await,
            ] {
                refused(result, -32600, "handle_id_too_long");
            }
        }
        assert_eq!(names(fixture), ["f"]);
    })
    .await;
}

#[tokio::test]
async fn a_handle_id_is_taken_until_its_close_and_late_calls_change_nothing() {
    on_each_file_system(async |fixture| {
        fixture.put("f", "first");
        fixture.put("g", "second");
        open(fixture, "h", "f").await.unwrap();
        let error = open(fixture, "h", "g").await.unwrap_err();
        assert_eq!(error["message"], "file handle `h` already exists");
        for name in ["f", "g", "new", "no/such/place"] {
            let replace = json!({"handleId": "h", "mode": "replace"});
            refused(fixture.call("fs/open", name, replace).await, -32600, "handle_exists");
            refused(open(fixture, "h", name).await, -32600, "handle_exists");
        }
        let result = block(fixture, "h", 0, 5).await.unwrap();
        assert_eq!(content(&result["chunk"]), b"first");
        assert_eq!(
            (names(fixture), fixture.get("g")),
            (vec!["f".into(), "g".into()], b"second".to_vec())
        );
        // A failed open frees the name.
        close(fixture, "h").await.unwrap();
        refused(open(fixture, "h", "nope").await, -32004, "ENOENT");
        open(fixture, "h", "g").await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_connection_has_128_handles() {
    on_each_file_system(async |fixture| {
        fixture.put("f", "f");
        for round in 0..130 {
            open(fixture, "h", "f").await.unwrap();
            close(fixture, "h").await.unwrap();
            refused(open(fixture, "h", "nope").await, -32004, "ENOENT");
            refused(block(fixture, &format!("{round}"), 0, 1).await, -32004, "unknown_handle");
        }
        for place in 0..128 {
            let replace = json!({"handleId": place.to_string(), "mode": "replace"});
            let read = json!({"handleId": place.to_string()});
            let more = if place % 2 == 0 { read } else { replace };
            fixture.call("fs/open", "f", more).await.unwrap();
        }
        let error = open(fixture, "more", "f").await.unwrap_err();
        assert_eq!(error["message"], "at most 128 file handles may be open per connection");
        refused(open(fixture, "more", "nope").await, -32600, "too_many_handles");
        let replace = json!({"handleId": "more", "mode": "replace"});
        refused(fixture.call("fs/open", "new", replace).await, -32600, "too_many_handles");
        // A name in use stays in use, and other names are free.
        refused(open(fixture, "5", "f").await, -32600, "handle_exists");
        let mut other = fixture.server.client().await;
        let params = json!({"handleId": "5", "path": fixture.uri("f")});
        other.call("fs/open", params).await.unwrap();
        close(fixture, "6").await.unwrap();
        open(fixture, "more", "f").await.unwrap();
        refused(open(fixture, "6", "f").await, -32600, "too_many_handles");
        assert_eq!(names(fixture), ["f"]);
    })
    .await;
}

#[tokio::test]
async fn the_length_of_a_block_is_looked_at_first_and_costs_no_handle() {
    on_each_file_system(async |fixture| {
        fixture.put("f", "f");
        open(fixture, "h", "f").await.unwrap();
        for id in ["h", "nobody"] {
            for len in [0, MAX_FILE_BLOCK_BYTES + 1, u64::MAX] {
                let error = block(fixture, id, 0, len).await.unwrap_err();
                let text = "file read block length must be between 1 and 1048576";
                assert_eq!((&error["code"], &error["message"]), (&json!(-32600), &json!(text)));
            }
        }
        for offset in ["-1", "18446744073709551616", "1e3"] {
            let text = format!(
                r#"{{"id":"o","method":"fs/readBlock","params":{{"handleId":"h","offset":{offset},"len":1}}}}"#
            );
            fixture.client.send_text(text).await;
            let reply = fixture.client.next_json().await;
            assert_eq!((&reply["id"], &reply["error"]["code"]), (&json!("o"), &json!(-32602)));
        }
        block(fixture, "h", 0, 1).await.unwrap();
        let error = block(fixture, "nobody", 0, 1).await.unwrap_err();
        assert_eq!(error["message"], "unknown file handle `nobody`");
        assert_eq!((&error["code"], &error["data"]), (&json!(-32004), &json!({"kind": "unknown_handle"})));
    })
    .await;
}

#[tokio::test]
async fn a_read_that_fails_ends_its_handle() {
    on_each_file_system(async |fixture| {
        fixture.put("f", "f");
        for offset in [i64::MAX as u64, i64::MAX as u64 + 1, u64::MAX - 1, u64::MAX] {
            open(fixture, "h", "f").await.unwrap();
            let error = block(fixture, "h", offset, 1).await.unwrap_err();
            assert_eq!(error["message"], "Invalid argument (os error 22)", "{offset}");
            assert_eq!(
                (&error["code"], &error["data"]["errno"]),
                (&json!(-32600), &json!("EINVAL"))
            );
            refused(block(fixture, "h", 0, 1).await, -32004, "unknown_handle");
        }
        open(fixture, "h", "f").await.unwrap();
        block(fixture, "h", 0, 1).await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_handle_stays_with_its_file_whatever_becomes_of_the_name() {
    on_each_file_system(async |fixture| {
        for (id, change) in [
            ("unlinked", (|path| std::fs::remove_file(path)) as fn(&std::path::Path) -> _),
            ("renamed", |path| std::fs::rename(path, path.with_extension("moved"))),
            ("replaced", |path| {
                std::fs::write(path.with_extension("new"), "other")?;
                std::fs::rename(path.with_extension("new"), path)
            }),
            ("locked", |path| std::fs::set_permissions(path, Permissions::from_mode(0o000))),
        ] {
            let path = fixture.put(id, "content");
            open(fixture, id, id).await.unwrap();
            change(&path).unwrap();
            let result = block(fixture, id, 0, 7).await.unwrap();
            assert_eq!(content(&result["chunk"]), b"content", "{id}");
        }
        // Appended data can be read as well.
        fixture.put("f", "one");
        open(fixture, "h", "f").await.unwrap();
        fixture.put("f", "one, two");
        let result = block(fixture, "h", 5, 3).await;
        assert_eq!(result, Ok(json!({"chunk": "dHdv", "eof": false})));
    })
    .await;
}

#[tokio::test]
async fn only_regular_files_are_opened_and_links_are_always_followed() {
    on_each_file_system(async |fixture| {
        put_fifo(fixture, "fifo");
        let _socket = put_socket(fixture, "sock");
        fixture.put("f", "f");
        put_link(fixture, "link", "f");
        put_link(fixture, "dangling", "nothing");
        for _ in 0..2 {
            refused(open(fixture, "h", "").await, -32600, "not_a_file");
            refused(open(fixture, "h", "fifo").await, -32600, "not_a_file");
            refused(open(fixture, "h", "/dev/zero").await, -32600, "not_a_file");
            refused(open(fixture, "h", "sock").await, -32603, "ENXIO");
            refused(open(fixture, "h", "f/x").await, -32603, "ENOTDIR");
            refused(open(fixture, "h", "dangling").await, -32004, "ENOENT");
        }
        let error = open(fixture, "h", "fifo").await.unwrap_err();
        assert!(error["message"].as_str().unwrap().ends_with("is not a file"), "{error}");
        for (name, errno) in
            [("", "EISDIR"), ("/", "EISDIR"), ("fifo", "EINVAL"), ("/dev/zero", "EINVAL")]
        {
            let error = open(fixture, "h", name).await.unwrap_err();
            assert_eq!(error["data"], json!({"kind": "not_a_file", "errno": errno}), "{name}");
        }
        let follow = json!({"handleId": "h", "followSymlinks": false});
        fixture.call("fs/open", "link", follow).await.unwrap();
        assert_eq!(block(fixture, "h", 0, 1).await, Ok(json!({"chunk": "Zg==", "eof": false})));
    })
    .await;
}

#[tokio::test]
async fn a_detailed_open_returns_size_and_version() {
    on_each_file_system(async |fixture| {
        fixture.put("f", "12345");
        let metadata =
            fixture.call("fs/getMetadata", "f", json!({"detailed": true})).await.unwrap();
        let result = fixture.call("fs/open", "f", json!({"handleId": "h", "detailed": true})).await;
        let expected = json!({"handleId": "h", "size": 5, "versionTag": metadata["versionTag"]});
        assert_eq!(result, Ok(expected));
    })
    .await;
}

#[tokio::test]
async fn closing_always_succeeds_and_is_final() {
    on_each_file_system(async |fixture| {
        fixture.put("f", "f");
        for id in ["never", "", "h"] {
            assert_eq!(close(fixture, id).await, Ok(json!({})));
        }
        open(fixture, "h", "f").await.unwrap();
        for _ in 0..3 {
            assert_eq!(close(fixture, "h").await, Ok(json!({})));
            refused(block(fixture, "h", 0, 1).await, -32004, "unknown_handle");
        }
        let_go(fixture).await;
    })
    .await;
}

#[tokio::test]
async fn handles_belong_to_their_connection_and_end_with_it() {
    on_each_file_system(async |fixture| {
        fixture.put("f", "first");
        fixture.put("g", "other");
        open(fixture, "h", "f").await.unwrap();
        let mut other = fixture.server.client().await;
        let params = json!({"handleId": "h", "offset": 0, "len": 5});
        refused(other.call("fs/readBlock", params.clone()).await, -32004, "unknown_handle");
        other.call("fs/open", json!({"handleId": "h", "path": fixture.uri("g")})).await.unwrap();
        let theirs = other.call("fs/readBlock", params.clone()).await.unwrap();
        assert_eq!(content(&theirs["chunk"]), b"other");
        other.call("fs/close", json!({"handleId": "h"})).await.unwrap();
        let mine = block(fixture, "h", 0, 5).await.unwrap();
        assert_eq!(content(&mine["chunk"]), b"first");

        let session = fixture.client.session_id.clone();
        fixture.client = TestClient::connect(fixture.server.url()).await;
        let_go(fixture).await;
        fixture.client.resume(&session).await.unwrap();
        refused(block(fixture, "h", 0, 5).await, -32004, "unknown_handle");
        open(fixture, "h", "g").await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_close_right_behind_an_open_leaves_nothing_open() {
    on_each_file_system(async |fixture| {
        let path = fixture.put("f", "f");
        for round in 0..200 {
            let mode = if round % 2 == 0 { "read" } else { "replace" };
            let params = json!({"handleId": "h", "path": fixture.uri("f"), "mode": mode});
            let mut asked = Vec::new();
            for _ in 0..3 {
                asked.push(("open", fixture.client.send("fs/open", params.clone()).await));
                let close = json!({"handleId": "h", "discard": true});
                asked.push(("close", fixture.client.send("fs/close", close).await));
            }
            for (what, id) in asked {
                let result = fixture.client.reply(id).await.unwrap();
                assert_eq!(result.get("handleId").is_some(), what == "open");
            }
            refused(block(fixture, "h", 0, 1).await, -32004, "unknown_handle");
        }
        let_go(fixture).await;
        // No slot was leaked.
        for id in 0..128 {
            open(fixture, &id.to_string(), "f").await.unwrap();
        }
        assert_eq!(std::fs::read(path).unwrap(), b"f");
    })
    .await;
}
