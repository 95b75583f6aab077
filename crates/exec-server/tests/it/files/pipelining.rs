//! Calls for one handle that are sent without waiting for their replies.

use exec_server_protocol::base64;
use exec_server_testkit::fs_fixture::{FsFixture, content, on_each_file_system};
use serde_json::{Value, json};

use super::{let_go, names, refused};

/// Each name is used for two files of a round, so that an open also follows the close before it.
const NAMES: usize = 50;
const FILES: usize = 100;

#[tokio::test]
async fn every_pipelined_replacement_has_all_of_its_content() {
    on_each_file_system(async |desk| {
        for round in 0..12 {
            let mut asked = Vec::new();
            for file in 0..FILES {
                let (name, id) = (format!("f{file}"), format!("h{}", file % NAMES));
                let open = json!({"handleId": id, "path": desk.uri(&name), "mode": "replace"});
                asked.push(desk.client.send("fs/open", open).await);
                for (offset, text) in blocks(round, file) {
                    let chunk = base64::encode(text.as_bytes());
                    let write = json!({"handleId": id, "offset": offset, "chunk": chunk});
                    asked.push(desk.client.send("fs/writeBlock", write).await);
                }
                asked.push(desk.client.send("fs/close", json!({"handleId": id})).await);
            }
            for id in asked {
                desk.client.reply(id).await.unwrap();
            }
            for file in 0..FILES {
                let expected: String = blocks(round, file).map(|(_, text)| text).concat();
                let found = String::from_utf8(desk.get(&format!("f{file}"))).unwrap();
                assert_eq!(found, expected, "file {file} in round {round}");
            }
        }
        let_go(desk).await;
    })
    .await;
}

fn blocks(round: usize, file: usize) -> [(usize, String); 3] {
    let [one, two, three] = ["one", "two", "three"].map(|word| format!("{word} {round} {file}\n"));
    let (second, third) = (one.len(), one.len() + two.len());
    [(0, one), (second, two), (third, three)]
}

#[tokio::test]
async fn an_open_with_a_close_right_behind_it_makes_an_empty_file() {
    on_each_file_system(async |desk| {
        for round in 0..100 {
            let name = format!("empty{round}");
            let open = json!({"handleId": "h", "path": desk.uri(&name), "mode": "replace"});
            let opened = desk.client.send("fs/open", open).await;
            let closed = desk.client.send("fs/close", json!({"handleId": "h"})).await;
            assert_eq!(desk.client.reply(opened).await, Ok(json!({"handleId": "h"})));
            desk.client.reply(closed).await.unwrap();
            assert_eq!(desk.get(&name), b"", "round {round}");
        }
    })
    .await;
}

#[tokio::test]
async fn pipelined_reads_are_answered_before_the_close_behind_them() {
    on_each_file_system(async |desk| {
        desk.put("f", "0123456789");
        for _ in 0..100 {
            let open = json!({"handleId": "h", "path": desk.uri("f")});
            let opened = desk.client.send("fs/open", open).await;
            let first = read(desk, 0).await;
            let second = read(desk, 5).await;
            let closed = desk.client.send("fs/close", json!({"handleId": "h"})).await;
            let late = read(desk, 0).await;
            desk.client.reply(opened).await.unwrap();
            assert_eq!(content(&desk.client.reply(first).await.unwrap()["chunk"]), b"01234");
            assert_eq!(content(&desk.client.reply(second).await.unwrap()["chunk"]), b"56789");
            assert_eq!(desk.client.reply(closed).await, Ok(json!({})));
            refused(desk.client.reply(late).await, -32004, "unknown_handle");
        }
        let_go(desk).await;
    })
    .await;
}

#[tokio::test]
async fn calls_behind_a_close_or_a_failed_open_find_no_handle() {
    on_each_file_system(async |desk| {
        for round in 0..100 {
            let discard = round % 2 == 0;
            let replace = json!({"handleId": "h", "path": desk.uri("f"), "mode": "replace"});
            let opened = desk.client.send("fs/open", replace).await;
            let again = json!({"handleId": "h", "path": desk.uri("g")});
            let taken = desk.client.send("fs/open", again).await;
            let write = json!({"handleId": "h", "offset": 0, "chunk": "AA=="});
            let written = desk.client.send("fs/writeBlock", write.clone()).await;
            let close = json!({"handleId": "h", "discard": discard});
            let closed = desk.client.send("fs/close", close.clone()).await;
            let late = desk.client.send("fs/writeBlock", write.clone()).await;
            let missing = json!({"handleId": "h", "path": desk.uri("nope")});
            let failed = desk.client.send("fs/open", missing).await;
            let vain = desk.client.send("fs/writeBlock", write).await;
            let nothing = desk.client.send("fs/close", close).await;
            desk.client.reply(opened).await.unwrap();
            refused(desk.client.reply(taken).await, -32600, "handle_exists");
            assert_eq!(desk.client.reply(written).await, Ok(json!({})));
            ok(desk.client.reply(closed).await);
            refused(desk.client.reply(late).await, -32004, "unknown_handle");
            refused(desk.client.reply(failed).await, -32004, "ENOENT");
            refused(desk.client.reply(vain).await, -32004, "unknown_handle");
            assert_eq!(desk.client.reply(nothing).await, Ok(json!({})));
        }
        assert_eq!((names(desk), desk.get("f")), (vec!["f".into()], vec![0]));
        let_go(desk).await;
    })
    .await;
}

fn ok(result: Result<Value, Value>) {
    result.expect("the close succeeds");
}

async fn read(desk: &mut FsFixture, offset: u64) -> i64 {
    let params = json!({"handleId": "h", "offset": offset, "len": 5});
    desk.client.send("fs/readBlock", params).await
}
