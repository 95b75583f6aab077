//! `fs/readFile` of large files, and of files that exceed the limit.

use std::fs::File;

use exec_server_protocol::limits::MAX_WHOLE_FILE_BYTES;
use exec_server_testkit::fs_fixture::{FsFixture, content, on_each_file_system};
use exec_server_testkit::{RawClient, raw};
use serde_json::json;

use super::refused;

const MIB: usize = 1024 * 1024;

#[tokio::test]
async fn a_large_reply_is_fragmented() {
    on_each_file_system(async |fixture| {
        let bytes: Vec<u8> = (0..13 * MIB).map(|at| (at / 7 % 253) as u8).collect();
        fixture.put("f", &bytes);
        let mut client = RawClient::connect(fixture.server.url()).await;
        client.answer_pings();
        client.initialize().await;
        let id = client.send("fs/readFile", json!({"path": fixture.uri("f")})).await;
        let frames = client.message().await;
        assert!(frames.len() > 1, "{}", frames.len());
        assert!(frames.iter().all(|frame| frame.payload.len() <= 8 * MIB));
        let reply = raw::parse(&frames);
        assert_eq!(reply["id"], id);
        assert!(content(&reply["result"]["dataBase64"]) == bytes);
    })
    .await;
}

#[tokio::test]
async fn the_largest_file_fits_into_one_message_and_a_larger_one_gets_a_hint() {
    on_each_file_system(async |fixture| {
        let file = File::create(fixture.path("f")).unwrap();
        file.set_len(MAX_WHOLE_FILE_BYTES).unwrap();
        let mut client = RawClient::connect(fixture.server.url()).await;
        client.answer_pings();
        client.initialize().await;
        client.send("fs/readFile", json!({"path": fixture.uri("f")})).await;
        let frames = client.message().await;
        let all: usize = frames.iter().map(|frame| frame.payload.len()).sum();
        let head = String::from_utf8_lossy(&frames[0].payload[..64]);
        assert!(all <= 64 * MIB, "{all}");
        assert!(all as u64 > MAX_WHOLE_FILE_BYTES / 3 * 4, "{all}: {head}");
        assert!(frames.iter().all(|frame| frame.payload.len() <= 8 * MIB));

        for size in [MAX_WHOLE_FILE_BYTES + 1, 512 * MIB as u64 + 1, 1 << 40] {
            file.set_len(size).unwrap();
            for more in [json!({}), json!({"followSymlinks": false})] {
                let result = fixture.call("fs/readFile", "f", more).await;
                let text = result.as_ref().unwrap_err()["message"].as_str().unwrap().to_owned();
                assert!(text.contains("fs/open"), "{text}");
                assert!(text.contains(&format!("{MAX_WHOLE_FILE_BYTES} bytes")), "{text}");
                refused(result, -32600, "file_too_large");
            }
        }
        // Reading by blocks still works.
        let open = json!({"handleId": "h", "detailed": true});
        assert_eq!(fixture.call("fs/open", "f", open).await.unwrap()["size"], 1_u64 << 40);
        let last = json!({"handleId": "h", "offset": (1_u64 << 40) - 2, "len": 3});
        let block = fixture.client.call("fs/readBlock", last).await.unwrap();
        assert_eq!(block, json!({"chunk": "AAA=", "eof": true}));
    })
    .await;
}

#[tokio::test]
async fn a_whole_file_takes_little_more_memory_than_its_text() {
    on_each_file_system(async |fixture| {
        const SIZE: usize = 36 * MIB;
        fixture.put("small", "");
        fixture.put("f", vec![7; SIZE]);
        let mut client = RawClient::connect(fixture.server.url()).await;
        client.answer_pings();
        client.initialize().await;
        let before = peak_memory(fixture);
        client.send("fs/readFile", json!({"path": fixture.uri("f")})).await;
        let all: usize = client.message().await.iter().map(|frame| frame.payload.len()).sum();
        assert!(all > SIZE / 3 * 4);
        let more = peak_memory(fixture) - before;
        // The text is a third longer than the file; a second copy of either would not fit.
        assert!(more < SIZE * 2, "{} MiB", more / MIB);
    })
    .await;
}

/// Peak memory of the server.
fn peak_memory(fixture: &FsFixture) -> usize {
    let status = format!("/proc/{}/status", fixture.server.serving_pid());
    let status = std::fs::read_to_string(status).expect("the server runs");
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).expect("Linux tells it");
    let kib = line.split_ascii_whitespace().nth(1).expect("it is a number and a unit");
    kib.parse::<usize>().expect("it is a number") * 1024
}
