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
    on_each_file_system(async |fixture| {
        for round in 0..12 {
            let mut asked = Vec::new();
            for file in 0..FILES {
                let (name, id) = (format!("f{file}"), format!("h{}", file % NAMES));
                let open = json!({"handleId": id, "path": fixture.uri(&name), "mode": "replace"});
                asked.push(fixture.client.send("fs/open", open).await);
                for (offset, text) in blocks(round, file) {
                    let chunk = base64::encode(text.as_bytes());
                    let write = json!({"handleId": id, "offset": offset, "chunk": chunk});
                    asked.push(fixture.client.send("fs/writeBlock", write).await);
                }
                asked.push(fixture.client.send("fs/close", json!({"handleId": id})).await);
            }
            for id in asked {
                fixture.client.reply(id).await.unwrap();
            }
            for file in 0..FILES {
                let expected: String = blocks(round, file).map(|(_, text)| text).concat();
                let found = String::from_utf8(fixture.get(&format!("f{file}"))).unwrap();
                assert_eq!(found, expected, "file {file} in round {round}");
            }
        }
        let_go(fixture).await;
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
    on_each_file_system(async |fixture| {
        for round in 0..100 {
            let name = format!("empty{round}");
            let open = json!({"handleId": "h", "path": fixture.uri(&name), "mode": "replace"});
            let opened = fixture.client.send("fs/open", open).await;
            let closed = fixture.client.send("fs/close", json!({"handleId": "h"})).await;
            assert_eq!(fixture.client.reply(opened).await, Ok(json!({"handleId": "h"})));
            fixture.client.reply(closed).await.unwrap();
            assert_eq!(fixture.get(&name), b"", "round {round}");
        }
    })
    .await;
}

#[tokio::test]
async fn pipelined_reads_are_answered_before_the_close_behind_them() {
    on_each_file_system(async |fixture| {
        fixture.put("f", "0123456789");
        for _ in 0..100 {
            let open = json!({"handleId": "h", "path": fixture.uri("f")});
            let opened = fixture.client.send("fs/open", open).await;
            let first = read(fixture, 0).await;
            let second = read(fixture, 5).await;
            let closed = fixture.client.send("fs/close", json!({"handleId": "h"})).await;
            let late = read(fixture, 0).await;
            fixture.client.reply(opened).await.unwrap();
            assert_eq!(content(&fixture.client.reply(first).await.unwrap()["chunk"]), b"01234");
            assert_eq!(content(&fixture.client.reply(second).await.unwrap()["chunk"]), b"56789");
            assert_eq!(fixture.client.reply(closed).await, Ok(json!({})));
            refused(fixture.client.reply(late).await, -32004, "unknown_handle");
        }
        let_go(fixture).await;
    })
    .await;
}

#[tokio::test]
async fn calls_behind_a_close_or_a_failed_open_find_no_handle() {
    on_each_file_system(async |fixture| {
        for round in 0..100 {
            let discard = round % 2 == 0;
            let replace = json!({"handleId": "h", "path": fixture.uri("f"), "mode": "replace"});
            let opened = fixture.client.send("fs/open", replace).await;
            let again = json!({"handleId": "h", "path": fixture.uri("g")});
            let taken = fixture.client.send("fs/open", again).await;
            let write = json!({"handleId": "h", "offset": 0, "chunk": "AA=="});
            let written = fixture.client.send("fs/writeBlock", write.clone()).await;
            let close = json!({"handleId": "h", "discard": discard});
            let closed = fixture.client.send("fs/close", close.clone()).await;
            let late = fixture.client.send("fs/writeBlock", write.clone()).await;
            let missing = json!({"handleId": "h", "path": fixture.uri("nope")});
            let failed = fixture.client.send("fs/open", missing).await;
            let vain = fixture.client.send("fs/writeBlock", write).await;
            let nothing = fixture.client.send("fs/close", close).await;
            fixture.client.reply(opened).await.unwrap();
            refused(fixture.client.reply(taken).await, -32600, "handle_exists");
            assert_eq!(fixture.client.reply(written).await, Ok(json!({})));
            ok(fixture.client.reply(closed).await);
            refused(fixture.client.reply(late).await, -32004, "unknown_handle");
            refused(fixture.client.reply(failed).await, -32004, "ENOENT");
            refused(fixture.client.reply(vain).await, -32004, "unknown_handle");
            assert_eq!(fixture.client.reply(nothing).await, Ok(json!({})));
        }
        assert_eq!((names(fixture), fixture.get("f")), (vec!["f".into()], vec![0]));
        let_go(fixture).await;
    })
    .await;
}

fn ok(result: Result<Value, Value>) {
    result.expect("the close succeeds");
}

async fn read(fixture: &mut FsFixture, offset: u64) -> i64 {
    let params = json!({"handleId": "h", "offset": offset, "len": 5});
    fixture.client.send("fs/readBlock", params).await
}
