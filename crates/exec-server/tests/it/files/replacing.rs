//! `fs/open` in the mode `replace`: new content in blocks, invisible until `fs/close`.

use std::os::unix::fs::MetadataExt;

use exec_server_protocol::base64;
use exec_server_testkit::fs_fixture::{FsFixture, on_each_file_system};
use exec_server_testkit::{TestClient, TestExecutor};
use serde_json::{Value, json};

use super::{
    let_go, names, put_fifo, put_link, put_socket, refused, serve_as_ordinary_user, set_mode,
};

async fn open(fixture: &mut FsFixture, id: &str, name: &str) -> Result<Value, Value> {
    fixture.call("fs/open", name, json!({"handleId": id, "mode": "replace"})).await
}

fn block(id: &str, offset: u64, bytes: &[u8]) -> Value {
    json!({"handleId": id, "offset": offset, "chunk": base64::encode(bytes)})
}

async fn write(
    fixture: &mut FsFixture,
    id: &str,
    offset: u64,
    bytes: &[u8],
) -> Result<Value, Value> {
    fixture.client.call("fs/writeBlock", block(id, offset, bytes)).await
}

async fn close(fixture: &mut FsFixture, id: &str) -> Result<Value, Value> {
    fixture.client.call("fs/close", json!({"handleId": id})).await
}

#[tokio::test]
async fn the_old_file_is_there_until_the_close_and_the_new_one_after_it() {
    on_each_file_system(async |fixture| {
        fixture.put("old", "old content");
        for name in ["old", "new"] {
            let before = std::fs::read(fixture.path(name)).ok();
            assert_eq!(open(fixture, "w", name).await, Ok(json!({"handleId": "w"})));
            assert_eq!(std::fs::read(fixture.path(name)).ok(), before);
            assert_eq!(write(fixture, "w", 0, b"hello").await, Ok(json!({})));
            assert_eq!(write(fixture, "w", 10, b"gap").await, Ok(json!({})));
            assert_eq!(std::fs::read(fixture.path(name)).ok(), before);
            assert_eq!(names(fixture), ["old"]);
            assert_eq!(close(fixture, "w").await, Ok(json!({})));
            assert_eq!(fixture.get(name), b"hello\0\0\0\0\0gap");
            assert_eq!(close(fixture, "w").await, Ok(json!({})));
        }
        assert_eq!(names(fixture), ["new", "old"]);
        // A close without writes creates an empty file.
        open(fixture, "w", "old").await.unwrap();
        close(fixture, "w").await.unwrap();
        assert_eq!(fixture.get("old"), b"");
    })
    .await;
}

#[tokio::test]
async fn blocks_may_overlap_and_come_in_any_order() {
    on_each_file_system(async |fixture| {
        open(fixture, "w", "f").await.unwrap();
        for (offset, bytes) in [(8, "ij"), (2, "XXXX"), (0, "abc"), (4, "ef"), (3, "d"), (6, "gh")]
        {
            write(fixture, "w", offset, bytes.as_bytes()).await.unwrap();
        }
        close(fixture, "w").await.unwrap();
        assert_eq!(fixture.get("f"), b"abcdefghij");
        // A full block, and a sparse hole.
        open(fixture, "w", "f").await.unwrap();
        write(fixture, "w", 1 << 32, &vec![7; 1024 * 1024]).await.unwrap();
        close(fixture, "w").await.unwrap();
        let metadata = fixture.path("f").metadata().unwrap();
        assert_eq!(metadata.len(), (1 << 32) + 1024 * 1024);
        assert!(metadata.blocks() * 512 < 4 * 1024 * 1024, "{}", metadata.blocks());
    })
    .await;
}

#[tokio::test]
async fn a_block_that_makes_no_sense_is_refused_and_costs_no_handle() {
    on_each_file_system(async |fixture| {
        open(fixture, "w", "f").await.unwrap();
        for id in ["w", "nobody"] {
            for bytes in [vec![], vec![0; 1024 * 1024 + 1]] {
                let error = write(fixture, id, 0, &bytes).await.unwrap_err();
                let text = "file write block length must be between 1 and 1048576";
                assert_eq!((&error["code"], &error["message"]), (&json!(-32600), &json!(text)));
            }
            let beyond = i64::MAX as u64;
            for (offset, bytes) in
                [(beyond, "x"), (beyond - 1, "xx"), (beyond + 1, "x"), (u64::MAX, "x")]
            {
                let error = write(fixture, id, offset, bytes.as_bytes()).await.unwrap_err();
                let text = "file write range exceeds the signed 64-bit file offset limit";
                assert_eq!((&error["code"], &error["message"]), (&json!(-32600), &json!(text)));
            }
            for chunk in ["YWJ", "YWJj=", "YW Jj", "YWJ\n", "YWK=\0", "YWJ_", "YR=="] {
                let params = json!({"handleId": id, "offset": 0, "chunk": chunk});
                refused(
                    fixture.client.call("fs/writeBlock", params).await,
                    -32602,
                    "invalid_params",
                );
            }
        }
        refused(write(fixture, "nobody", 0, b"x").await, -32004, "unknown_handle");
        write(fixture, "w", 0, b"fine").await.unwrap();
        close(fixture, "w").await.unwrap();
        assert_eq!(fixture.get("f"), b"fine");
    })
    .await;
}

#[tokio::test]
async fn a_handle_is_for_one_direction() {
    on_each_file_system(async |fixture| {
        fixture.put("f", "f");
        fixture.call("fs/open", "f", json!({"handleId": "r"})).await.unwrap();
        let read = |id| json!({"handleId": id, "offset": 0, "len": 1});
        // A failed write keeps the handle open,
        for _ in 0..2 {
            refused(write(fixture, "r", 0, b"x").await, -32603, "EBADF");
        }
        fixture.client.call("fs/readBlock", read("r")).await.unwrap();
        // but a failed read closes it and discards the new content.
        open(fixture, "w", "f").await.unwrap();
        write(fixture, "w", 0, b"lost").await.unwrap();
        refused(fixture.client.call("fs/readBlock", read("w")).await, -32603, "EBADF");
        refused(fixture.client.call("fs/readBlock", read("w")).await, -32004, "unknown_handle");
        refused(write(fixture, "w", 0, b"x").await, -32004, "unknown_handle");
        assert_eq!(close(fixture, "w").await, Ok(json!({})));
        close(fixture, "r").await.unwrap();
        let_go(fixture).await;
        assert_eq!((names(fixture), fixture.get("f")), (vec!["f".into()], b"f".to_vec()));
    })
    .await;
}

#[tokio::test]
async fn new_content_may_be_thrown_away() {
    on_each_file_system(async |fixture| {
        fixture.put("old", "old");
        for name in ["old", "new"] {
            open(fixture, "w", name).await.unwrap();
            write(fixture, "w", 0, b"discarded").await.unwrap();
            let discard = json!({"handleId": "w", "discard": true});
            assert_eq!(fixture.client.call("fs/close", discard.clone()).await, Ok(json!({})));
            assert_eq!(fixture.client.call("fs/close", discard).await, Ok(json!({})));
            refused(write(fixture, "w", 0, b"x").await, -32004, "unknown_handle");
        }
        let_go(fixture).await;
        assert_eq!((names(fixture), fixture.get("old")), (vec!["old".into()], b"old".to_vec()));
        // A handle for reading has no content to discard.
        fixture.call("fs/open", "old", json!({"handleId": "r"})).await.unwrap();
        let discard = json!({"handleId": "r", "discard": true});
        assert_eq!(fixture.client.call("fs/close", discard).await, Ok(json!({})));
        open(fixture, "w", "old").await.unwrap();
        let keep = json!({"handleId": "w", "discard": false});
        fixture.client.call("fs/close", keep).await.unwrap();
        assert_eq!(fixture.get("old"), b"");
    })
    .await;
}

#[tokio::test]
async fn a_connection_that_ends_in_the_middle_changes_nothing() {
    on_each_file_system(async |fixture| {
        fixture.put("old", "old");
        open(fixture, "w", "old").await.unwrap();
        open(fixture, "v", "new").await.unwrap();
        for place in 0..50 {
            for id in ["w", "v"] {
                let bytes = vec![1; 64 * 1024];
                fixture.client.send("fs/writeBlock", block(id, place * 64 * 1024, &bytes)).await;
            }
        }
        write(fixture, "w", 0, b"some of it was written").await.unwrap();
        let session = fixture.client.session_id.clone();
        fixture.client = TestClient::connect(fixture.server.url()).await;
        let_go(fixture).await;
        assert_eq!((names(fixture), fixture.get("old")), (vec!["old".into()], b"old".to_vec()));
        fixture.client.resume(&session).await.unwrap();
        refused(write(fixture, "w", 0, b"x").await, -32004, "unknown_handle");
        close(fixture, "w").await.unwrap();
        assert_eq!(fixture.get("old"), b"old");
    })
    .await;
}

#[tokio::test]
async fn blocks_and_the_close_may_be_sent_without_waiting() {
    const BLOCKS: u64 = 3000;
    for concurrent in ["1", "3", "1024"] {
        on_each_file_system(async |fixture| {
            fixture.server = TestExecutor::start_with(&["--concurrent-requests", concurrent]).await;
            fixture.client = fixture.server.client().await;
            open(fixture, "w", "f").await.unwrap();
            let mut asked = Vec::new();
            for place in 0..BLOCKS {
                // Each overwrites the end of the previous one.
                let text = format!("{place:08}!");
                let params = block("w", place * 8, text.as_bytes());
                asked.push(fixture.client.send("fs/writeBlock", params).await);
            }
            asked.push(fixture.client.send("fs/close", json!({"handleId": "w"})).await);
            for id in asked {
                assert_eq!(fixture.client.reply(id).await, Ok(json!({})), "{concurrent}");
            }
            let expected: String = (0..BLOCKS).map(|place| format!("{place:08}")).collect();
            assert!(fixture.get("f") == format!("{expected}!").as_bytes(), "{concurrent}");
        })
        .await;
    }
}

#[tokio::test]
async fn one_request_at_a_time_means_that_nothing_has_to_be_waited_for() {
    on_each_file_system(async |fixture| {
        fixture.server = TestExecutor::start_with(&["--concurrent-requests", "1"]).await;
        fixture.client = fixture.server.client().await;
        let path = fixture.uri("f");
        for round in 0..20 {
            let text = format!("round {round}");
            let read = json!({"handleId": "h", "offset": 0, "len": 100});
            let mut asked = Vec::new();
            for (method, params) in [
                ("fs/open", json!({"handleId": "h", "path": path, "mode": "replace"})),
                ("fs/writeBlock", block("h", 0, text.as_bytes())),
                ("fs/close", json!({"handleId": "h"})),
                ("fs/open", json!({"handleId": "h", "path": path})),
                ("fs/readBlock", read),
                ("fs/close", json!({"handleId": "h"})),
            ] {
                asked.push(fixture.client.send(method, params).await);
            }
            let mut results = Vec::new();
            for id in asked {
                results.push(fixture.client.reply(id).await.unwrap());
            }
            assert_eq!(results[4], json!({"chunk": base64::encode(text.as_bytes()), "eof": true}));
        }
    })
    .await;
}

#[tokio::test]
async fn special_files_are_not_replaced() {
    on_each_file_system(async |fixture| {
        std::fs::create_dir(fixture.path("dir")).unwrap();
        fixture.put("f", "f");
        put_fifo(fixture, "fifo");
        put_link(fixture, "to dir", "dir");
        put_link(fixture, "loop", "loop");
        let _socket = put_socket(fixture, "sock");
        let before = names(fixture);
        refused(open(fixture, "w", "fifo").await, -32603, "ENXIO");
        refused(open(fixture, "w", "sock").await, -32603, "ENXIO");
        refused(open(fixture, "w", "dir").await, -32603, "EISDIR");
        refused(open(fixture, "w", "to dir").await, -32603, "EISDIR");
        refused(open(fixture, "w", "/").await, -32603, "EISDIR");
        refused(open(fixture, "w", "loop").await, -32603, "ELOOP");
        refused(open(fixture, "w", "f/x").await, -32603, "ENOTDIR");
        refused(open(fixture, "w", "missing/x").await, -32004, "ENOENT");
        refused(open(fixture, "w", "/dev/null").await, -32600, "not_a_file");
        let mut options = std::fs::OpenOptions::new();
        let _reader = options.read(true).write(true).open(fixture.path("fifo")).unwrap();
        refused(open(fixture, "w", "fifo").await, -32600, "not_a_file");
        assert_eq!(names(fixture), before);
    })
    .await;
}

#[tokio::test]
async fn the_new_file_has_the_mode_and_the_owner_of_the_old_one() {
    on_each_file_system(async |fixture| {
        let replace = async |fixture: &mut FsFixture, name: &str| {
            open(fixture, "w", name).await.unwrap();
            write(fixture, "w", 0, b"new").await.unwrap();
            close(fixture, "w").await.unwrap();
            fixture.path(name).metadata().unwrap()
        };
        let old = fixture.put("old", "old");
        set_mode(fixture, "old", 0o751);
        let owner = if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&old, Some(4321), Some(1234)).unwrap();
            (4321, 1234)
        } else {
            let metadata = old.metadata().unwrap();
            (metadata.uid(), metadata.gid())
        };
        let metadata = replace(fixture, "old").await;
        assert_eq!(
            (metadata.mode() & 0o7777, metadata.uid(), metadata.gid()),
            (0o751, owner.0, owner.1)
        );
        // A new file has the mode that the umask leaves.
        fixture.server = TestExecutor::builder().after("umask 027").start().await;
        fixture.client = fixture.server.client().await;
        assert_eq!(replace(fixture, "new").await.mode() & 0o7777, 0o640);
        assert_eq!(replace(fixture, "old").await.mode() & 0o7777, 0o751);
    })
    .await;
}

#[tokio::test]
async fn a_file_without_write_permission_is_not_replaced() {
    on_each_file_system(async |fixture| {
        fixture.put("f", "f");
        set_mode(fixture, "f", 0o444);
        if !serve_as_ordinary_user(fixture).await {
            return;
        }
        refused(open(fixture, "w", "f").await, -32600, "EACCES");
        assert_eq!(fixture.get("f"), b"f");
    })
    .await;
}
