//! `fs/edit`: all edits or none, on the version that is meant.

use std::os::unix::fs::{MetadataExt, PermissionsExt};

use exec_server_testkit::fs_fixture::{FsFixture, kind, on_each_file_system};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::host::names;
use super::{put_fifo, put_link, refused};

async fn edit(desk: &mut FsFixture, name: &str, edits: Value) -> Result<Value, Value> {
    desk.call("fs/edit", name, json!({ "edits": edits })).await
}

#[tokio::test]
async fn edits_are_applied_in_order_and_keep_the_file() {
    on_each_file_system(async |desk| {
        let path = desk.put("f", "one\ntwo\ntwo\r\nend");
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o750)).unwrap();
        put_link(desk, "l", "f");
        let edits = json!([
            {"old": "one\n", "new": "1\n2\n"},
            {"old": "two", "new": "zwei", "replaceAll": true},
            {"old": "zwei\r\nend", "new": "\u{fc}"},
        ]);
        let done = edit(desk, "l", edits).await.unwrap();
        assert_eq!(desk.get("f"), "1\n2\nzwei\n\u{fc}".as_bytes());
        let expected = json!([{"replacements": 1, "line": 1}, {"replacements": 2, "line": 3}, {"replacements": 1, "line": 4}]);
        assert_eq!(done["edits"], expected);
        assert_eq!(done["size"], 11);
        let metadata = desk.call("fs/getMetadata", "f", json!({"detailed": true})).await.unwrap();
        assert_eq!(done["versionTag"], metadata["versionTag"]);
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o750);
        assert_eq!(names(desk.root()), ["f", "l"]);
    })
    .await;
}

#[tokio::test]
async fn text_that_does_not_fit_changes_nothing_and_is_explained() {
    on_each_file_system(async |desk| {
        let content = "fn a() {\n    work();\n}\nfn b() {\n    work();\n}\n";
        let path = desk.put("f", content);
        let before = std::fs::metadata(&path).unwrap();
        let first = json!({"old": "fn a", "new": "fn c"});
        let error =
            edit(desk, "f", json!([first, {"old": "work();", "new": ""}])).await.unwrap_err();
        assert_eq!(
            (&error["code"], &error["data"]["kind"]),
            (&json!(-32600), &json!("edit_not_unique"))
        );
        assert_eq!(error["data"]["edit"], json!({"index": 1, "occurrences": 2, "lines": [2, 5]}));
        let missing = json!([first, {"old": "fn b() {\n\twork( );\n}", "new": ""}]);
        let error = edit(desk, "f", missing).await.unwrap_err();
        assert_eq!(error["data"]["kind"], "edit_not_found");
        let nearest = json!({"line": 4, "text": "fn b() {\n    work();\n}"});
        assert_eq!(
            error["data"]["edit"],
            json!({"index": 1, "occurrences": 0, "lines": [], "nearest": nearest})
        );
        assert!(error["message"].as_str().unwrap().contains("line 4"), "{error}");
        let dry = json!({"edits": [first], "dryRun": true});
        let tried = desk.call("fs/edit", "f", dry).await.unwrap();
        assert_eq!(
            tried,
            json!({"edits": [{"replacements": 1, "line": 1}], "size": content.len()})
        );
        let after = std::fs::metadata(&path).unwrap();
        assert_eq!(desk.get("f"), content.as_bytes());
        assert_eq!((before.ino(), before.mtime_nsec()), (after.ino(), after.mtime_nsec()));
    })
    .await;
}

#[tokio::test]
async fn an_edit_of_another_version_is_refused() {
    on_each_file_system(async |desk| {
        desk.put("f", "old text");
        let read = desk.call("fs/readFile", "f", json!({"detailed": true})).await.unwrap();
        let edits = json!([{"old": "text", "new": "content"}]);
        let params = json!({"edits": edits, "ifMatch": read["versionTag"]});
        let done = desk.call("fs/edit", "f", params.clone()).await.unwrap();
        desk.put("f", "new text");
        for tag in [&read["versionTag"], &done["versionTag"]] {
            let params = json!({"edits": edits, "ifMatch": tag});
            let refused = desk.call("fs/edit", "f", params).await;
            assert_eq!(kind(refused), (-32600, "version_mismatch".to_owned()));
        }
        assert_eq!(desk.get("f"), b"new text");
    })
    .await;
}

#[tokio::test]
async fn edits_of_many_clients_at_once_are_all_kept() {
    on_each_file_system(async |desk| {
        for links in [1, 2] {
            let name = format!("f{links}");
            let content: String = (0..40).map(|number| format!("<{number}>\n")).collect();
            let path = desk.put(&name, content);
            if links == 2 {
                std::fs::hard_link(&path, desk.path("other name")).unwrap();
            }
            let mut tasks = JoinSet::new();
            for worker in 0..4 {
                let mut client = desk.server.client().await;
                let path = desk.uri(&name);
                tasks.spawn(async move {
                    for number in (worker..40).step_by(4) {
                        let edits =
                            json!([{"old": format!("<{number}>"), "new": format!("[{number}]")}]);
                        // Without `ifMatch`, a conflict is repeated by the server a few times, then by the client.
                        loop {
                            let params = json!({"path": path, "edits": edits});
                            match client.call("fs/edit", params).await {
                                Ok(_) => break,
                                Err(error) => {
                                    assert_eq!(error["data"]["kind"], "version_mismatch", "{error}")
                                }
                            }
                        }
                    }
                });
            }
            while let Some(done) = tasks.join_next().await {
                done.unwrap();
            }
            let expected: String = (0..40).map(|number| format!("[{number}]\n")).collect();
            assert_eq!(String::from_utf8(desk.get(&name)).unwrap(), expected);
        }
    })
    .await;
}

#[tokio::test]
async fn what_is_no_text_file_is_refused() {
    on_each_file_system(async |desk| {
        let edits = json!([{"old": "a", "new": "b"}]);
        desk.put("binary", b"a\0b");
        refused(edit(desk, "binary", edits.clone()).await, -32600, "binary_file");
        assert_eq!(desk.get("binary"), b"a\0b");
        // Text in another encoding is edited byte by byte.
        desk.put("latin", b"a\xe4c");
        edit(desk, "latin", edits.clone()).await.unwrap();
        assert_eq!(desk.get("latin"), b"b\xe4c");
        put_fifo(desk, "fifo");
        refused(edit(desk, "fifo", edits.clone()).await, -32600, "not_a_file");
        std::fs::create_dir(desk.path("d")).unwrap();
        refused(edit(desk, "d", edits.clone()).await, -32600, "not_a_file");
        refused(edit(desk, "missing", edits.clone()).await, -32004, "ENOENT");
        put_link(desk, "l", "latin");
        let no_follow = json!({"edits": edits, "followSymlinks": false});
        refused(desk.call("fs/edit", "l", no_follow).await, -32603, "ELOOP");
        let large = std::fs::File::create(desk.path("large")).unwrap();
        large.set_len(16 * 1024 * 1024 + 1).unwrap();
        refused(edit(desk, "large", edits.clone()).await, -32600, "file_too_large");
        desk.put("grows", "a".repeat(1 << 20));
        let grow = json!([{"old": "a", "new": "b".repeat(100), "replaceAll": true}]);
        refused(edit(desk, "grows", grow).await, -32600, "file_too_large");
        refused(edit(desk, "latin", json!([])).await, -32602, "invalid_params");
        refused(
            edit(desk, "latin", json!([{"old": "", "new": "x"}])).await,
            -32602,
            "invalid_params",
        );
        let many = vec![json!({"old": "b", "new": "b"}); 1001];
        refused(edit(desk, "latin", json!(many)).await, -32602, "invalid_params");
    })
    .await;
}
