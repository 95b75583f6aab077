//! `user` in `fs/*`: the rights of the user hold, and what is made belongs to it.

use std::os::unix::fs::{MetadataExt, lchown};

use exec_server::ExecServerClient;
use exec_server_protocol::base64;
use exec_server_protocol::methods::Method;
use exec_server_testkit::fs_fixture::uri;
use exec_server_testkit::{TestClient, TestExecutor};
use serde_json::{Value, json};

use super::fixture::{ANN, Accounts};
use crate::files::host::{mode, server_as_nobody, set_mode};

/// Params that do something with `path`, for every method that takes a user.
fn params_of(method: Method, path: &str) -> Value {
    let data = base64::encode(b"evil");
    let other = format!("{path}-other");
    match method {
        Method::FsReadFile
        | Method::FsGetMetadata
        | Method::FsCanonicalize
        | Method::FsReadDirectory
        | Method::FsReadLink => json!({"path": path}),
        Method::FsOpen => json!({"path": path, "handleId": "h"}),
        Method::FsWriteFile | Method::FsAppend => json!({"path": path, "dataBase64": data}),
        Method::FsTruncate => json!({"path": path, "size": 0}),
        Method::FsEdit => {
            json!({"path": path, "edits": [{"old": "t", "new": "evil", "replaceAll": true}]})
        }
        Method::FsCreateDirectory => json!({"path": other}),
        Method::FsWalk => {
            let options = json!({"maxDepth": 1, "maxDirectories": 9, "maxEntries": 9, "followDirectorySymlinks": false});
            json!({"path": path, "options": options})
        }
        Method::FsSearch => json!({"path": path, "pattern": "."}),
        Method::FsFind => json!({"path": path}),
        Method::FsWatch => json!({"path": path, "watchId": "w"}),
        Method::FsRemove => json!({"path": path, "force": false}),
        Method::FsCopy => {
            json!({"sourcePath": path, "destinationPath": other, "recursive": false})
        }
        Method::FsRename => json!({"sourcePath": path, "destinationPath": other}),
        Method::FsSymlink => json!({"path": other, "target": "x"}),
        Method::FsSetPermissions => json!({"path": path, "mode": 0o777}),
        other => panic!("{} takes a user, and this test does not know it", other.name()),
    }
}

/// Each method honours a `user` or refuses the request: none ignores it.
#[tokio::test]
async fn every_method_of_the_table_honours_a_user_or_refuses_it() {
    let Some(accounts) = Accounts::new() else { return };
    let closed = accounts.make_dir("closed", 0o700);
    let file = closed.join("file");
    std::fs::write(&file, "text").unwrap();
    let server = accounts.server().start().await;
    let mut client = server.client().await;
    for method in Method::ALL.iter().copied().filter(|it| *it != Method::ProcessStart) {
        let name = method.name();
        let mut params = match method.takes_user() {
            true => params_of(method, &uri(&file)),
            false => json!({}),
        };
        // Root can do it, so that only the user can be the reason of a failure.
        params["user"] = json!("ann");
        let outcome = client.call(name, params).await;
        if method.takes_user() {
            let is_denied = match &outcome {
                Err(error) => error["data"]["errno"] == "EACCES",
                // A walk and a search report what they could not read.
                Ok(found) => {
                    matches!(method, Method::FsWalk | Method::FsSearch | Method::FsFind)
                        && !found.to_string().contains("file-")
                        && found.get("matches").is_none_or(|it| it.as_array().unwrap().is_empty())
                }
            };
            assert!(is_denied, "{name}: {outcome:?}");
            if let Err(error) = outcome {
                assert!(error["data"].get("sandboxDenied").is_none(), "{name}: {error}");
            }
        } else {
            let error = outcome.expect_err(name);
            assert_eq!(error["code"], -32602, "{name}: {error}");
        }
    }
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "text");
    assert_eq!(std::fs::read_dir(&closed).unwrap().count(), 1);
    assert_eq!(mode(&file), 0o644);
}

async fn write(
    client: &mut TestClient,
    path: &std::path::Path,
    user: Value,
) -> Result<Value, Value> {
    let data = base64::encode(b"new");
    client.call("fs/writeFile", json!({"path": uri(path), "dataBase64": data, "user": user})).await
}

#[tokio::test]
async fn files_are_made_and_opened_with_user_and_groups() {
    let Some(accounts) = Accounts::new() else { return };
    let home = accounts.home();
    let server = accounts.server().start().await;
    let mut client = server.client().await;
    for user in [json!("ann"), json!(ANN)] {
        let path = home.join(format!("by-{}", user.to_string().trim_matches('"')));
        write(&mut client, &path, user).await.unwrap();
        let made = path.metadata().unwrap();
        assert_eq!((made.uid(), made.gid()), (ANN, ANN));
    }
    // A file that only a supplementary group may read.
    let shared = accounts.path("shared");
    std::fs::write(&shared, "red").unwrap();
    lchown(&shared, Some(0), Some(54_400)).unwrap();
    set_mode(&shared, 0o640);
    let read = |user: Value| json!({"path": uri(&shared), "user": user});
    let found = client.call("fs/readFile", read(json!("ann"))).await.unwrap();
    assert_eq!(found["dataBase64"], base64::encode(b"red"));
    let error = client.call("fs/readFile", read(json!("nobody"))).await.unwrap_err();
    assert_eq!(error["data"]["errno"], "EACCES", "{error}");
    // Streams, batches, links, and the whole way to a directory are those of the user.
    let params = json!({"path": uri(&home.join("stream")), "handleId": "h", "mode": "replace", "user": "ann"});
    client.call("fs/open", params).await.unwrap();
    let block = json!({"handleId": "h", "offset": 0, "chunk": base64::encode(b"block")});
    client.call("fs/writeBlock", block).await.unwrap();
    client.call("fs/close", json!({"handleId": "h"})).await.unwrap();
    assert_eq!(std::fs::read(home.join("stream")).unwrap(), b"block");
    assert_eq!(home.join("stream").metadata().unwrap().uid(), ANN);
    let lookup = |user: &str| {
        let params = json!({"path": uri(&home.join("stream")), "user": user});
        json!({"method": "fs/getMetadata", "params": params})
    };
    let requests = json!({"requests": [lookup("ann"), lookup("nobody")]});
    let batch = client.call("fs/batch", requests).await.unwrap().to_string();
    assert_eq!(batch.matches("EACCES").count(), 1, "{batch}");
    assert_eq!(batch.matches("isFile").count(), 1, "{batch}");
    let error = write(&mut client, &home.join("stream"), json!("nobody")).await.unwrap_err();
    assert_eq!(error["data"]["errno"], "EACCES", "{error}");
    // Without a user, the server's own rights hold, also after requests of users.
    let own = client.call("fs/readFile", json!({"path": uri(&home.join("stream"))})).await.unwrap();
    assert_eq!(own["dataBase64"], base64::encode(b"block"));
}

#[tokio::test]
async fn a_policy_and_a_user_hold_together() {
    let Some(accounts) = Accounts::new() else { return };
    let (home, open) = (accounts.home(), accounts.make_dir("open", 0o777));
    let server = accounts.server().start().await;
    let mut client = server.client().await;
    let sandbox = super::sandboxed::workspace(&home, "restricted");
    let params = |path: &std::path::Path, user: Value| json!({"path": uri(path), "dataBase64": "", "user": user, "sandbox": sandbox});
    client.call("fs/writeFile", params(&home.join("in"), json!("ann"))).await.unwrap();
    assert_eq!(home.join("in").metadata().unwrap().uid(), ANN);
    let error =
        client.call("fs/writeFile", params(&open.join("out"), json!("ann"))).await.unwrap_err();
    assert_eq!(error["data"]["sandboxDenied"], true, "{error}");
    client
        .call("fs/writeFile", params(&home.join("by-nobody"), json!("nobody")))
        .await
        .unwrap_err();
    assert!(!open.join("out").exists() && !home.join("by-nobody").exists());
}

#[tokio::test]
async fn unknown_and_unavailable_users_are_errors() {
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    let params = |user: &str| json!({"path": "file:///", "user": user});
    let error = client.call("fs/getMetadata", params("no-such-user")).await.unwrap_err();
    assert_eq!((&error["code"], &error["data"]["kind"]), (&json!(-32602), &json!("unknown_user")));
    let Some(server) = server_as_nobody().await else { return };
    let mut client = server.client().await;
    let error = client.call("fs/getMetadata", params("root")).await.unwrap_err();
    let expected = (&json!(-32600), &json!("user_unavailable"));
    assert_eq!((&error["code"], &error["data"]["kind"]), expected, "{error}");
}

#[tokio::test]
async fn the_files_of_the_client_can_have_a_user() {
    let Some(accounts) = Accounts::new() else { return };
    let server = accounts.server().start().await;
    let client = ExecServerClient::connect(server.url()).await.unwrap();
    let files = client.fs().with_user("ann");
    let path = accounts.home().join("large").display().to_string();
    let content = vec![7; 3_000_000];
    let mut stream = files.write_file_stream(path.as_str()).await.unwrap();
    stream.write(&content).await.unwrap();
    stream.finish().await.unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().uid(), ANN);
    assert!(files.read_file(path.as_str()).await.unwrap() == content);
    let nobody = client.fs().with_user(65534);
    nobody.read_file(path.as_str()).await.unwrap_err();
    files.watch("/", false).await.map(drop).unwrap();
    let closed = accounts.make_dir("closed", 0o700).display().to_string();
    files.watch(closed.as_str(), false).await.map(drop).unwrap_err();
}
