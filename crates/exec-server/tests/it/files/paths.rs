//! Path URIs on the wire and on disk.

use exec_server_testkit::TestExecutor;
use exec_server_testkit::fs_fixture::{FsFixture, content, on_each_file_system};
use serde_json::{Value, json};

use super::{put_link, refused};

async fn read(fixture: &mut FsFixture, uri: &str) -> Result<Value, Value> {
    fixture.client.call("fs/readFile", json!({"path": uri})).await
}

#[tokio::test]
async fn one_file_has_many_spellings() {
    on_each_file_system(async |fixture| {
        std::fs::create_dir_all(fixture.path("a/other")).unwrap();
        fixture.put("f", "f");
        fixture.put("a/b", "b");
        put_link(fixture, "link", "a/other");
        fixture.put("a/f", "beside the target of the link");
        let root = fixture.root().to_str().unwrap().to_owned();
        let uri = format!("file://{root}");
        for spelling in [
            format!("file:{root}/f"),
            format!("file:{}/f", &root[1..]),
            format!("FILE://{root}/f"),
            format!("file:///{root}/f"),
            format!("file://localhost{root}/f"),
            format!("file://LocalHost{root}/f"),
            format!("{uri}/f/"),
            format!("{uri}/f//"),
            format!("{uri}//f"),
            format!("{uri}/./f"),
            format!("{uri}/%2e/f"),
            format!("{uri}/nothing/../f"),
            format!("{uri}/nothing/%2e%2E/f"),
            format!("{uri}/nothing/x/..%2F..%2Ff"),
            // Resolved lexically, so it is not the sibling of the link's target.
            format!("{uri}/link/../f"),
            format!("{uri}/link%2F..%2Ff"),
            format!("{uri}/%66"),
            format!("{uri}\\f"),
            format!("file:\\\\{root}\\f"),
            format!(" \t{uri}/f\n "),
            format!("{uri}/\tf\n"),
        ] {
            let result = read(fixture, &spelling).await;
            assert_eq!(result, Ok(json!({"dataBase64": "Zg=="})), "{spelling}");
        }
        for spelling in [format!("{uri}/a%2Fb"), format!("{uri}/a%2fb"), format!("{uri}/f/../a/b")]
        {
            let result = read(fixture, &spelling).await;
            assert_eq!(result, Ok(json!({"dataBase64": "Yg=="})), "{spelling}");
        }
    })
    .await;
}

#[tokio::test]
async fn odd_characters_may_be_left_as_they_are() {
    on_each_file_system(async |fixture| {
        std::fs::create_dir(fixture.path("~")).unwrap();
        for name in ["sp ace", "ünï", "%ZZ", "50%", "~/f", "a|b^c[d]", "c:", "é"] {
            fixture.put(name, name);
            let result =
                read(fixture, &format!("file://{}/{name}", fixture.root().display())).await;
            assert_eq!(content(&result.unwrap()["dataBase64"]), name.as_bytes());
        }
        refused(read(fixture, "file:///~/f").await, -32004, "ENOENT");
        let result = read(fixture, &format!("{}/%ZY", fixture.uri(""))).await;
        refused(result, -32004, "ENOENT");
    })
    .await;
}

#[tokio::test]
async fn the_root_has_short_names() {
    on_each_file_system(async |fixture| {
        let expected =
            fixture.client.call("fs/getMetadata", json!({"path": "file:///", "detailed": true}));
        let expected = expected.await.unwrap();
        assert_eq!(expected["isDirectory"], true);
        for uri in
            ["file://", "file:", "file:/", "file://localhost", "file:///..", "file:///x/%2e%2e"]
        {
            for follow in [true, false] {
                let params = json!({"path": uri, "detailed": true, "followSymlinks": follow});
                let metadata = fixture.client.call("fs/getMetadata", params).await.unwrap();
                assert_eq!(metadata["inode"], expected["inode"], "{uri}");
            }
            let canonical = fixture.client.call("fs/canonicalize", json!({"path": uri})).await;
            assert_eq!(canonical, Ok(json!({"path": "file:///"})));
            refused(read(fixture, uri).await, -32600, "not_a_file");
        }
    })
    .await;
}

/// Methods with a path and their other params; none that could do harm with a wrong path.
fn methods(uri: &str) -> Vec<(&'static str, Value)> {
    let path = json!({"path": uri});
    let options = json!({
        "maxDepth": 1, "maxDirectories": 1, "maxEntries": 1, "followDirectorySymlinks": false,
    });
    vec![
        ("fs/readFile", path.clone()),
        ("fs/getMetadata", path.clone()),
        ("fs/canonicalize", path.clone()),
        ("fs/readDirectory", path.clone()),
        ("fs/createDirectory", path),
        ("fs/walk", json!({"path": uri, "options": options})),
        ("fs/open", json!({"path": uri, "handleId": "h"})),
        ("fs/open", json!({"path": uri, "handleId": "h", "mode": "replace"})),
        ("fs/writeFile", json!({"path": uri, "dataBase64": ""})),
    ]
}

#[tokio::test]
async fn every_method_rejects_invalid_paths() {
    on_each_file_system(async |fixture| {
        fixture.put("f", "");
        let native = fixture.path("f").to_str().unwrap().to_owned();
        let uri = fixture.uri("f");
        let mut texts = vec![native, format!("{uri}?query"), format!("{uri}?"), format!("{uri}#x")];
        texts.extend([format!("{uri}#"), format!("{uri}%00"), uri.replace("file", "http")]);
        texts.push(uri.replace("file", "vscode-remote"));
        texts.extend(
            ["x", "./x", "~/x", "", "//srv/share", "\\\\srv\\share", "C:\\x"].map(str::to_owned),
        );
        texts.extend(["file://user@host/x", "file://host:80/x"].map(str::to_owned));
        texts.push("file:///%00/bad/path/***".to_owned());
        for text in texts {
            for (method, params) in methods(&text) {
                let error = fixture.client.call(method, params).await.unwrap_err();
                assert_eq!(error["code"], -32602, "{method} {text:?}: {error}");
                assert!(error["data"]["kind"].is_string());
            }
        }
        let error = read(fixture, "/x").await.unwrap_err();
        let message = error["message"].as_str().unwrap();
        assert!(message.contains("`/x` is a native path; send `file:///x`"), "{message}");
    })
    .await;
}

#[tokio::test]
async fn a_path_of_another_system_is_refused_by_every_method() {
    on_each_file_system(async |fixture| {
        let root = fixture.root().display();
        for uri in [
            format!("file://127.0.0.1{root}/f"),
            "file://server/share/x".to_owned(),
            "file:///C:/x".to_owned(),
            "file:///C%3A/x".to_owned(),
            // The opaque spelling of /nothing/here, which has an ordinary one.
            "file:///%00/bad/path/L25vdGhpbmcvaGVyZQ".to_owned(),
        ] {
            for (method, params) in methods(&uri) {
                let error = fixture.client.call(method, params).await.unwrap_err();
                assert_eq!(error["message"], format!("'{uri}' is invalid on 'linux'"), "{method}");
                assert_eq!(
                    (&error["code"], &error["data"]["kind"]),
                    (&json!(-32600), &json!("foreign_path"))
                );
            }
        }
        refused(read(fixture, "file:///c:/x").await, -32600, "foreign_path");
        // A decoded name is not checked for foreign conventions.
        refused(read(fixture, "file:///tmp/..%2FC:/x").await, -32004, "ENOENT");
        // A path without an ordinary form uses this one.
        refused(read(fixture, "file:///%00/bad/path/L0M6L2gyeA").await, -32004, "ENOENT");
        // Only the first component can look like a drive.
        std::fs::create_dir(fixture.path("C:")).unwrap();
        fixture.put("C:/x", "");
        fixture.read("C:/x").await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn native_paths_are_taken_on_request() {
    on_each_file_system(async |fixture| {
        fixture.put("f", "f");
        fixture.put("%66", "percent");
        fixture.server = TestExecutor::start_with(&["--accept-native-paths"]).await;
        fixture.client = fixture.server.client().await;
        let root = fixture.root().to_str().unwrap().to_owned();
        for path in ["/f", "/x/../f", "//f/", "/./f"] {
            let result = read(fixture, &format!("{root}{path}")).await;
            assert_eq!(result, Ok(json!({"dataBase64": "Zg=="})), "{path}");
        }
        // Its percent signs are not decoded.
        let result = read(fixture, &format!("{root}/%66")).await.unwrap();
        assert_eq!(content(&result["dataBase64"]), b"percent");
        let open = json!({"handleId": "h", "path": format!("{root}/f")});
        fixture.client.call("fs/open", open).await.unwrap();
        assert_eq!(fixture.read("f").await.unwrap(), b"f");
        for path in ["f", "./f", "~/f", "", "//srv/share"] {
            assert_eq!(read(fixture, path).await.unwrap_err()["code"], -32602, "{path}");
        }
    })
    .await;
}
