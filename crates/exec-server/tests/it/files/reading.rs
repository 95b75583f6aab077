//! `fs/readFile`.

use exec_server_testkit::desk::{code, content, kind, on_each_file_system};
use serde_json::json;

#[tokio::test]
async fn a_file_is_read_whole_whatever_its_size() {
    on_each_file_system(async |desk| {
        for size in [0, 1, 4096, 200_000, 3_000_000] {
            let bytes: Vec<u8> = (0..size).map(|at| (at * 31 % 251) as u8).collect();
            desk.put("f", &bytes);
            // Once from wherever it is, once from memory.
            for _ in 0..2 {
                assert!(desk.read("f").await.unwrap() == bytes, "{size}");
            }
        }
    })
    .await;
}

#[tokio::test]
async fn what_is_not_there_or_not_a_file_is_refused() {
    on_each_file_system(async |desk| {
        desk.put("f", "");
        let read = async |desk: &mut exec_server_testkit::desk::Desk, name: &str| {
            desk.call("fs/readFile", name, json!({})).await
        };
        assert_eq!(code(read(desk, "nope").await), (-32004, "ENOENT".into()));
        assert_eq!(code(read(desk, "f/x").await), (-32603, "ENOTDIR".into()));
        assert_eq!(kind(read(desk, "").await), (-32600, "not_a_file".into()));
        let _ = content;
    })
    .await;
}
