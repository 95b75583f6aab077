//! `fs/canonicalize`.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use exec_server_testkit::fs_fixture::{FsFixture, on_each_file_system};
use serde_json::{Value, json};

use super::{put_fifo, put_link, refused};

async fn canonicalize(fixture: &mut FsFixture, name: &str) -> Result<Value, Value> {
    fixture.call("fs/canonicalize", name, json!({})).await
}

#[tokio::test]
async fn links_are_resolved_and_nothing_else_is_changed() {
    on_each_file_system(async |fixture| {
        std::fs::create_dir_all(fixture.path("a/b")).unwrap();
        fixture.put("a/b/f", "");
        put_fifo(fixture, "a/fifo");
        put_link(fixture, "to b", "a/b");
        put_link(fixture, "a/up", "../to b");
        put_link(fixture, "absolute", fixture.path("a/up/f"));
        for (name, real) in [
            ("a/b/f", "a/b/f"),
            ("a/fifo", "a/fifo"),
            ("to b", "a/b"),
            ("to b/f", "a/b/f"),
            ("a/up/f", "a/b/f"),
            ("absolute", "a/b/f"),
        ] {
            let expected = json!({"path": fixture.uri(real)});
            assert_eq!(canonicalize(fixture, name).await, Ok(expected), "{name}");
        }
        let slash = json!({"path": format!("{}/", fixture.uri("a/b"))});
        let expected = json!({"path": fixture.uri("a/b")});
        assert_eq!(fixture.client.call("fs/canonicalize", slash).await, Ok(expected));
        assert_eq!(canonicalize(fixture, "/").await, Ok(json!({"path": "file:///"})));
    })
    .await;
}

#[tokio::test]
async fn a_missing_path_has_no_canonical_form() {
    on_each_file_system(async |fixture| {
        fixture.put("f", "");
        put_link(fixture, "dangling", "nothing");
        put_link(fixture, "loop", "loop");
        refused(canonicalize(fixture, "nope").await, -32004, "ENOENT");
        refused(canonicalize(fixture, "dangling").await, -32004, "ENOENT");
        refused(canonicalize(fixture, "f/x").await, -32603, "ENOTDIR");
        refused(canonicalize(fixture, "loop").await, -32603, "ELOOP");
        refused(canonicalize(fixture, &"n".repeat(256)).await, -32603, "ENAMETOOLONG");
    })
    .await;
}

#[tokio::test]
async fn the_answer_is_encoded_so_that_it_can_be_sent_back() {
    on_each_file_system(async |fixture| {
        let bare = "!$&'()*+,-.:;=@[]^_|~";
        for (name, encoded) in [
            (&b"bad-\xff.txt"[..], "bad-%FF.txt"),
            ("ü".as_bytes(), "%C3%BC"),
            (b"a b\"#%<>?\\`{}\n\x7f", "a%20b%22%23%25%3C%3E%3F%5C%60%7B%7D%0A%7F"),
            (bare.as_bytes(), bare),
        ] {
            std::fs::write(fixture.root().join(OsStr::from_bytes(name)), name).unwrap();
            let params = json!({"path": fixture.uri_of_bytes(name)});
            let result = fixture.client.call("fs/canonicalize", params).await.unwrap();
            assert_eq!(result["path"], format!("{}{encoded}", fixture.uri("")));
            assert_eq!(
                fixture.client.call("fs/canonicalize", result.clone()).await,
                Ok(result.clone())
            );
            fixture.client.call("fs/readFile", result).await.unwrap();
        }
    })
    .await;
}
