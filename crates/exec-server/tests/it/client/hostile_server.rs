//! The Rust client against a server that sends false names, counts and sizes.

use exec_server::ExecServerError;
use exec_server::protocol::base64;
use exec_server::protocol::fs::FsWalkOptions;
use serde_json::{Value, json};

use super::peer::scripted_client;

#[tokio::test]
async fn a_directory_with_names_that_are_no_names_is_refused() {
    let file = |name: &str| json!({"fileName": name, "isDirectory": false, "isFile": true});
    let with_uri = |name: &str, uri: &str| {
        let mut entry = file(name);
        entry["uri"] = json!(uri);
        entry
    };
    for entries in [
        json!([file("..")]),
        json!([file(".")]),
        json!([file("")]),
        json!([file("../x")]),
        json!([file("a/../../x")]),
        json!([file("a\0")]),
        json!([file("same"), file("same")]),
        json!([with_uri("name", "file:///x/other")]),
        json!([with_uri("..", "file:///x/..")]),
    ] {
        let told = entries.to_string();
        let error = list(json!({"entries": entries})).await.unwrap_err();
        assert!(matches!(error, ExecServerError::Protocol(_)), "{told}: {error}");
    }
    let endless = list(json!({"entries": [], "nextCursor": "more"})).await.unwrap_err();
    assert!(endless.to_string().contains("empty page"), "{endless}");
    let good = json!({"entries": [file("a"), with_uri("b", "file:///x/b")]});
    assert_eq!(list(good).await.unwrap(), 2);
}

/// Number of names that the client returns for this listing.
async fn list(answer: Value) -> Result<usize, ExecServerError> {
    let (client, mut peers) = scripted_client();
    let serving = async {
        let mut peer = peers.accept_session("s-1").await;
        let asked = peer.expect("fs/readDirectory").await;
        peer.reply(&asked, answer).await;
        peer
    };
    let fs = client.fs();
    let (found, _peer) = tokio::join!(fs.read_directory("/x"), serving);
    found.map(|entries| entries.len())
}

#[tokio::test]
async fn a_walk_outside_of_its_root_is_refused() {
    let entry = |path: &str| json!({"path": path, "kind": "file"});
    for entries in [
        json!([entry("file:///y")]),
        json!([entry("file:///x/../y")]),
        json!([entry("file:///x")]),
        json!([entry("file:///x/a"), entry("file:///x/a")]),
        json!([entry("file:///x/1"), entry("file:///x/2"), entry("file:///x/3")]),
    ] {
        let told = entries.to_string();
        let (client, mut peers) = scripted_client();
        let serving = async {
            let mut peer = peers.accept_session("s-1").await;
            let asked = peer.expect("fs/walk").await;
            peer.reply(&asked, json!({"entries": entries, "errors": [], "truncated": false})).await;
            peer
        };
        let options = FsWalkOptions {
            max_depth: 5,
            max_directories: 5,
            max_entries: 2,
            follow_directory_symlinks: false,
            prune_hidden_directories: false,
        };
        let fs = client.fs();
        let (found, _peer) = tokio::join!(fs.walk("/x", options), serving);
        let error = found.unwrap_err();
        assert!(matches!(error, ExecServerError::Protocol(_)), "{told}: {error}");
    }
}

#[tokio::test]
async fn a_block_longer_than_asked_for_is_refused() {
    let (client, mut peers) = scripted_client();
    let serving = async {
        let mut peer = peers.accept_session("s-1").await;
        let asked = peer.expect("fs/open").await;
        peer.reply(&asked, json!({"handleId": asked.params["handleId"], "size": 3})).await;
        let asked = peer.expect("fs/readBlock").await;
        let chunk = base64::encode(&vec![0; 1024 * 1024 + 1]);
        peer.reply(&asked, json!({"chunk": chunk, "eof": true})).await;
        peer
    };
    let reading = async {
        let mut stream = client.fs().read_file_stream("/x").await?;
        stream.next_block().await
    };
    let (block, _peer) = tokio::join!(reading, serving);
    assert!(matches!(block, Err(ExecServerError::Protocol(_))), "{block:?}");
}
