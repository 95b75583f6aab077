//! `fs/open` in the mode `replace`: new content in blocks, invisible until `fs/close`.

use std::os::unix::fs::MetadataExt;

use exec_server_protocol::base64;
use exec_server_testkit::fs_fixture::{FsFixture, on_each_file_system};
use exec_server_testkit::{TestClient, TestExecutor};
use serde_json::{Value, json};

use super::{
    let_go, names, put_fifo, put_link, put_socket, refused, serve_as_ordinary_user, set_mode,
};

async fn open(desk: &mut FsFixture, id: &str, name: &str) -> Result<Value, Value> {
    desk.call("fs/open", name, json!({"handleId": id, "mode": "replace"})).await
}

fn block(id: &str, offset: u64, bytes: &[u8]) -> Value {
    json!({"handleId": id, "offset": offset, "chunk": base64::encode(bytes)})
}

async fn write(desk: &mut FsFixture, id: &str, offset: u64, bytes: &[u8]) -> Result<Value, Value> {
    desk.client.call("fs/writeBlock", block(id, offset, bytes)).await
}

async fn close(desk: &mut FsFixture, id: &str) -> Result<Value, Value> {
    desk.client.call("fs/close", json!({"handleId": id})).await
}

#[tokio::test]
async fn the_old_file_is_there_until_the_close_and_the_new_one_after_it() {
    on_each_file_system(async |desk| {
        desk.put("old", "old content");
        for name in ["old", "new"] {
            let before = std::fs::read(desk.path(name)).ok();
            assert_eq!(open(desk, "w", name).await, Ok(json!({"handleId": "w"})));
            assert_eq!(std::fs::read(desk.path(name)).ok(), before);
            assert_eq!(write(desk, "w", 0, b"hello").await, Ok(json!({})));
            assert_eq!(write(desk, "w", 10, b"gap").await, Ok(json!({})));
            assert_eq!(std::fs::read(desk.path(name)).ok(), before);
            assert_eq!(names(desk), ["old"]);
            assert_eq!(close(desk, "w").await, Ok(json!({})));
            assert_eq!(desk.get(name), b"hello\0\0\0\0\0gap");
            assert_eq!(close(desk, "w").await, Ok(json!({})));
        }
        assert_eq!(names(desk), ["new", "old"]);
        // Nothing written is a file with nothing in it.
        open(desk, "w", "old").await.unwrap();
        close(desk, "w").await.unwrap();
        assert_eq!(desk.get("old"), b"");
    })
    .await;
}

#[tokio::test]
async fn blocks_may_overlap_and_come_in_any_order() {
    on_each_file_system(async |desk| {
        open(desk, "w", "f").await.unwrap();
        for (offset, bytes) in [(8, "ij"), (2, "XXXX"), (0, "abc"), (4, "ef"), (3, "d"), (6, "gh")]
        {
            write(desk, "w", offset, bytes.as_bytes()).await.unwrap();
        }
        close(desk, "w").await.unwrap();
        assert_eq!(desk.get("f"), b"abcdefghij");
        // A full block, and a hole that takes no room.
        open(desk, "w", "f").await.unwrap();
        write(desk, "w", 1 << 32, &vec![7; 1024 * 1024]).await.unwrap();
        close(desk, "w").await.unwrap();
        let metadata = desk.path("f").metadata().unwrap();
        assert_eq!(metadata.len(), (1 << 32) + 1024 * 1024);
        assert!(metadata.blocks() * 512 < 4 * 1024 * 1024, "{}", metadata.blocks());
    })
    .await;
}

#[tokio::test]
async fn a_block_that_makes_no_sense_is_refused_and_costs_no_handle() {
    on_each_file_system(async |desk| {
        open(desk, "w", "f").await.unwrap();
        for id in ["w", "nobody"] {
            for bytes in [vec![], vec![0; 1024 * 1024 + 1]] {
                let error = write(desk, id, 0, &bytes).await.unwrap_err();
                let text = "file write block length must be between 1 and 1048576";
                assert_eq!((&error["code"], &error["message"]), (&json!(-32600), &json!(text)));
            }
            let beyond = i64::MAX as u64;
            for (offset, bytes) in
                [(beyond, "x"), (beyond - 1, "xx"), (beyond + 1, "x"), (u64::MAX, "x")]
            {
                let error = write(desk, id, offset, bytes.as_bytes()).await.unwrap_err();
                let text = "file write range exceeds the signed 64-bit file offset limit";
                assert_eq!((&error["code"], &error["message"]), (&json!(-32600), &json!(text)));
            }
            for chunk in ["YWJ", "YWJj=", "YW Jj", "YWJ\n", "YWK=\0", "YWJ_", "YR=="] {
                let params = json!({"handleId": id, "offset": 0, "chunk": chunk});
                refused(desk.client.call("fs/writeBlock", params).await, -32602, "invalid_params");
            }
        }
        refused(write(desk, "nobody", 0, b"x").await, -32004, "unknown_handle");
        write(desk, "w", 0, b"fine").await.unwrap();
        close(desk, "w").await.unwrap();
        assert_eq!(desk.get("f"), b"fine");
    })
    .await;
}

#[tokio::test]
async fn a_handle_is_for_one_direction() {
    on_each_file_system(async |desk| {
        desk.put("f", "f");
        desk.call("fs/open", "f", json!({"handleId": "r"})).await.unwrap();
        let read = |id| json!({"handleId": id, "offset": 0, "len": 1});
        // A write leaves the handle as it is,
        for _ in 0..2 {
            refused(write(desk, "r", 0, b"x").await, -32603, "EBADF");
        }
        desk.client.call("fs/readBlock", read("r")).await.unwrap();
        // but a read that fails ends it, and with it the new content.
        open(desk, "w", "f").await.unwrap();
        write(desk, "w", 0, b"lost").await.unwrap();
        refused(desk.client.call("fs/readBlock", read("w")).await, -32603, "EBADF");
        refused(desk.client.call("fs/readBlock", read("w")).await, -32004, "unknown_handle");
        refused(write(desk, "w", 0, b"x").await, -32004, "unknown_handle");
        assert_eq!(close(desk, "w").await, Ok(json!({})));
        close(desk, "r").await.unwrap();
        let_go(desk).await;
        assert_eq!((names(desk), desk.get("f")), (vec!["f".into()], b"f".to_vec()));
    })
    .await;
}

#[tokio::test]
async fn new_content_may_be_thrown_away() {
    on_each_file_system(async |desk| {
        desk.put("old", "old");
        for name in ["old", "new"] {
            open(desk, "w", name).await.unwrap();
            write(desk, "w", 0, b"discarded").await.unwrap();
            let discard = json!({"handleId": "w", "discard": true});
            assert_eq!(desk.client.call("fs/close", discard.clone()).await, Ok(json!({})));
            assert_eq!(desk.client.call("fs/close", discard).await, Ok(json!({})));
            refused(write(desk, "w", 0, b"x").await, -32004, "unknown_handle");
        }
        let_go(desk).await;
        assert_eq!((names(desk), desk.get("old")), (vec!["old".into()], b"old".to_vec()));
        // A handle for reading has nothing to throw away.
        desk.call("fs/open", "old", json!({"handleId": "r"})).await.unwrap();
        let discard = json!({"handleId": "r", "discard": true});
        assert_eq!(desk.client.call("fs/close", discard).await, Ok(json!({})));
        open(desk, "w", "old").await.unwrap();
        let keep = json!({"handleId": "w", "discard": false});
        desk.client.call("fs/close", keep).await.unwrap();
        assert_eq!(desk.get("old"), b"");
    })
    .await;
}

#[tokio::test]
async fn a_connection_that_ends_in_the_middle_changes_nothing() {
    on_each_file_system(async |desk| {
        desk.put("old", "old");
        open(desk, "w", "old").await.unwrap();
        open(desk, "v", "new").await.unwrap();
        for place in 0..50 {
            for id in ["w", "v"] {
                let bytes = vec![1; 64 * 1024];
                desk.client.send("fs/writeBlock", block(id, place * 64 * 1024, &bytes)).await;
            }
        }
        write(desk, "w", 0, b"some of it was written").await.unwrap();
        let session = desk.client.session_id.clone();
        desk.client = TestClient::connect(desk.server.url()).await;
        let_go(desk).await;
        assert_eq!((names(desk), desk.get("old")), (vec!["old".into()], b"old".to_vec()));
        desk.client.resume(&session).await.unwrap();
        refused(write(desk, "w", 0, b"x").await, -32004, "unknown_handle");
        close(desk, "w").await.unwrap();
        assert_eq!(desk.get("old"), b"old");
    })
    .await;
}

#[tokio::test]
async fn blocks_and_the_close_may_be_sent_without_waiting() {
    const BLOCKS: u64 = 3000;
    for concurrent in ["1", "3", "1024"] {
        on_each_file_system(async |desk| {
            desk.server = TestExecutor::start_with(&["--concurrent-requests", concurrent]).await;
            desk.client = desk.server.client().await;
            open(desk, "w", "f").await.unwrap();
            let mut asked = Vec::new();
            for place in 0..BLOCKS {
                // Each overwrites the end of the one before it.
                let text = format!("{place:08}!");
                let params = block("w", place * 8, text.as_bytes());
                asked.push(desk.client.send("fs/writeBlock", params).await);
            }
            asked.push(desk.client.send("fs/close", json!({"handleId": "w"})).await);
            for id in asked {
                assert_eq!(desk.client.reply(id).await, Ok(json!({})), "{concurrent}");
            }
            let expected: String = (0..BLOCKS).map(|place| format!("{place:08}")).collect();
            assert!(desk.get("f") == format!("{expected}!").as_bytes(), "{concurrent}");
        })
        .await;
    }
}

#[tokio::test]
async fn one_request_at_a_time_means_that_nothing_has_to_be_waited_for() {
    on_each_file_system(async |desk| {
        desk.server = TestExecutor::start_with(&["--concurrent-requests", "1"]).await;
        desk.client = desk.server.client().await;
        let path = desk.uri("f");
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
                asked.push(desk.client.send(method, params).await);
            }
            let mut results = Vec::new();
            for id in asked {
                results.push(desk.client.reply(id).await.unwrap());
            }
            assert_eq!(results[4], json!({"chunk": base64::encode(text.as_bytes()), "eof": true}));
        }
    })
    .await;
}

#[tokio::test]
async fn what_is_no_regular_file_is_not_replaced() {
    on_each_file_system(async |desk| {
        std::fs::create_dir(desk.path("dir")).unwrap();
        desk.put("f", "f");
        put_fifo(desk, "fifo");
        put_link(desk, "to dir", "dir");
        put_link(desk, "loop", "loop");
        let _socket = put_socket(desk, "sock");
        let before = names(desk);
        refused(open(desk, "w", "fifo").await, -32603, "ENXIO");
        refused(open(desk, "w", "sock").await, -32603, "ENXIO");
        refused(open(desk, "w", "dir").await, -32603, "EISDIR");
        refused(open(desk, "w", "to dir").await, -32603, "EISDIR");
        refused(open(desk, "w", "/").await, -32603, "EISDIR");
        refused(open(desk, "w", "loop").await, -32603, "ELOOP");
        refused(open(desk, "w", "f/x").await, -32603, "ENOTDIR");
        refused(open(desk, "w", "missing/x").await, -32004, "ENOENT");
        refused(open(desk, "w", "/dev/null").await, -32600, "not_a_file");
        let mut options = std::fs::OpenOptions::new();
        let _reader = options.read(true).write(true).open(desk.path("fifo")).unwrap();
        refused(open(desk, "w", "fifo").await, -32600, "not_a_file");
        assert_eq!(names(desk), before);
    })
    .await;
}

#[tokio::test]
async fn the_new_file_has_the_mode_and_the_owner_of_the_old_one() {
    on_each_file_system(async |desk| {
        let replace = async |desk: &mut FsFixture, name: &str| {
            open(desk, "w", name).await.unwrap();
            write(desk, "w", 0, b"new").await.unwrap();
            close(desk, "w").await.unwrap();
            desk.path(name).metadata().unwrap()
        };
        let old = desk.put("old", "old");
        set_mode(desk, "old", 0o751);
        let owner = if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&old, Some(4321), Some(1234)).unwrap();
            (4321, 1234)
        } else {
            let metadata = old.metadata().unwrap();
            (metadata.uid(), metadata.gid())
        };
        let metadata = replace(desk, "old").await;
        assert_eq!(
            (metadata.mode() & 0o7777, metadata.uid(), metadata.gid()),
            (0o751, owner.0, owner.1)
        );
        // A new one has what the umask leaves.
        desk.server = TestExecutor::builder().after("umask 027").start().await;
        desk.client = desk.server.client().await;
        assert_eq!(replace(desk, "new").await.mode() & 0o7777, 0o640);
        assert_eq!(replace(desk, "old").await.mode() & 0o7777, 0o751);
    })
    .await;
}

#[tokio::test]
async fn what_may_not_be_written_may_not_be_replaced() {
    on_each_file_system(async |desk| {
        desk.put("f", "f");
        set_mode(desk, "f", 0o444);
        if !serve_as_ordinary_user(desk).await {
            return;
        }
        refused(open(desk, "w", "f").await, -32600, "EACCES");
        assert_eq!(desk.get("f"), b"f");
    })
    .await;
}
