//! Permission bits and times of written files.

use std::os::unix::fs::{MetadataExt, PermissionsExt};

use exec_server_testkit::TestExecutor;
use exec_server_testkit::client::TestClient;
use serde_json::{Value, json};
use tempfile::TempDir;

const TIME_MS: i64 = 1_234_567_890_123;

#[tokio::test]
async fn new_content_gets_the_requested_mode_and_time() {
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    let dir = TempDir::new().unwrap();
    let asked = json!({"modeBits": 0o741, "modifiedAtMs": TIME_MS});
    for (name, in_blocks) in [("whole", false), ("blocks", true)] {
        let path = dir.path().join(name);
        for _ in 0..2 {
            write(&mut client, &path, in_blocks, asked.clone()).await.unwrap();
            let found = std::fs::metadata(&path).unwrap();
            assert_eq!(found.permissions().mode() & 0o7777, 0o741, "{name}");
            assert_eq!(found.mtime() * 1000 + found.mtime_nsec() / 1_000_000, TIME_MS);
            // The second round replaces an existing file.
            std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
        }
        std::fs::hard_link(&path, dir.path().join(format!("{name}-link"))).unwrap();
        let reply = write(&mut client, &path, in_blocks, asked.clone()).await.unwrap();
        assert_eq!(reply["inPlace"], true);
        let found = std::fs::metadata(&path).unwrap();
        assert_eq!((found.mode() & 0o7777, found.mtime()), (0o741, TIME_MS / 1000));
    }
}

#[tokio::test]
async fn bits_for_new_files_leave_an_old_file_as_it_is() {
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("file");
    write(&mut client, &path, false, json!({"newModeBits": 0o700})).await.unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o7777, 0o700);
    write(&mut client, &path, true, json!({"newModeBits": 0o777})).await.unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o7777, 0o700);
}

#[tokio::test]
async fn more_than_permission_bits_are_refused() {
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("file");
    for name in ["modeBits", "newModeBits"] {
        let error = write(&mut client, &path, false, json!({name: 0o100_644})).await.unwrap_err();
        assert_eq!(error["code"], -32602, "{error}");
    }
    assert!(!path.exists());
}

async fn write(
    client: &mut TestClient,
    path: &std::path::Path,
    in_blocks: bool,
    more: Value,
) -> Result<Value, Value> {
    let with = |mut params: Value| {
        params.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        params
    };
    let uri = format!("file://{}", path.display());
    if !in_blocks {
        let params = with(json!({"path": uri, "dataBase64": "aGk="}));
        return client.call("fs/writeFile", params).await;
    }
    let open = with(json!({"path": uri, "handleId": "h", "mode": "replace"}));
    client.call("fs/open", open).await?;
    let block = json!({"handleId": "h", "offset": 0, "chunk": "aGk="});
    client.call("fs/writeBlock", block).await?;
    client.call("fs/close", json!({"handleId": "h"})).await
}
