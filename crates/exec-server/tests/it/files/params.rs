//! Params of `fs/*`: valid forms, missing members, phases and policies.

use exec_server_testkit::TestClient;
use exec_server_testkit::fs_fixture::on_each_file_system;
use serde_json::{Value, json};

use super::refused;

#[tokio::test]
async fn params_may_come_by_their_place() {
    on_each_file_system(async |fixture| {
        let f = fixture.uri("f");
        std::os::unix::fs::symlink("f", fixture.path("link")).unwrap();
        let link = fixture.uri("link");
        let none = json!(null);
        for (method, params, result) in [
            ("fs/writeFile", json!([f, "b25l"]), json!({})),
            ("fs/readFile", json!([f]), json!({"dataBase64": "b25l"})),
            ("fs/readFile", json!([f, none, none]), json!({"dataBase64": "b25l"})),
            ("fs/readFile", json!([link, true]), json!({"dataBase64": "b25l"})),
            ("fs/canonicalize", json!([f]), json!({"path": f})),
            ("fs/open", json!(["r", f]), json!({"handleId": "r"})),
            ("fs/open", json!(["r2", f, "read", none]), json!({"handleId": "r2"})),
            ("fs/readBlock", json!(["r", 1, 1]), json!({"chunk": "bg==", "eof": false})),
            ("fs/open", json!(["w", f, "replace"]), json!({"handleId": "w"})),
            ("fs/writeBlock", json!(["w", 0, "dHdv"]), json!({})),
            ("fs/close", json!(["w"]), json!({})),
            ("fs/readFile", json!([f]), json!({"dataBase64": "dHdv"})),
        ] {
            assert_eq!(fixture.client.call(method, params.clone()).await, Ok(result), "{params}");
        }
        refused(fixture.client.call("fs/readFile", json!([link, false])).await, -32603, "ELOOP");
        refused(
            fixture.client.call("fs/getMetadata", json!([link, false])).await,
            -32600,
            "is_symlink",
        );
        for params in [json!([]), json!([5]), json!([f, "yes"])] {
            refused(fixture.client.call("fs/readFile", params).await, -32602, "invalid_params");
        }
    })
    .await;
}

#[tokio::test]
async fn whatever_is_missing_is_named() {
    on_each_file_system(async |fixture| {
        for (method, params, missing) in [
            ("fs/readFile", json!({"sandbox": null}), "path"),
            ("fs/getMetadata", json!({}), "path"),
            ("fs/canonicalize", json!({}), "path"),
            ("fs/open", json!({"path": "file:///"}), "handleId"),
            ("fs/open", json!({"handleId": "h"}), "path"),
            ("fs/readBlock", json!({"offset": 0, "len": 1}), "handleId"),
            ("fs/readBlock", json!({"handleId": "h", "len": 1}), "offset"),
            ("fs/readBlock", json!({"handleId": "h", "offset": 0}), "len"),
            ("fs/writeBlock", json!({"offset": 0, "chunk": "AA=="}), "handleId"),
            ("fs/writeBlock", json!({"handleId": "h", "chunk": "AA=="}), "offset"),
            ("fs/writeBlock", json!({"handleId": "h", "offset": 0}), "chunk"),
            ("fs/close", json!({}), "handleId"),
            ("fs/batch", json!({}), "requests"),
        ] {
            let error = fixture.client.call(method, params).await.unwrap_err();
            assert_eq!(error["message"], format!("missing field `{missing}`"), "{method}");
            assert_eq!(error["code"], -32602);
        }
    })
    .await;
}

#[tokio::test]
async fn wrong_types_are_rejected_and_unknown_members_are_ignored() {
    on_each_file_system(async |fixture| {
        fixture.put("f", "");
        let path = fixture.uri("f");
        for (method, params) in [
            ("fs/readFile", json!(null)),
            ("fs/readFile", json!("f")),
            ("fs/readFile", json!({"path": null})),
            ("fs/readFile", json!({"path": 5})),
            ("fs/readFile", json!({"path": path, "followSymlinks": "no"})),
            ("fs/readFile", json!({"path": path, "followSymlinks": 0})),
            ("fs/readFile", json!({"path": path, "detailed": 1})),
            ("fs/getMetadata", json!({"path": path, "followSymlinks": []})),
            ("fs/open", json!({"handleId": 5, "path": path})),
            ("fs/open", json!({"handleId": null, "path": path})),
            ("fs/open", json!({"handleId": "h", "path": path, "mode": null})),
            ("fs/open", json!({"handleId": "h", "path": path, "mode": "append"})),
            ("fs/open", json!({"handleId": "h", "path": path, "mode": "Read"})),
            ("fs/readBlock", json!({"handleId": "h", "offset": -1, "len": 1})),
            ("fs/readBlock", json!({"handleId": "h", "offset": 0.5, "len": 1})),
            ("fs/readBlock", json!({"handleId": "h", "offset": 0, "len": -1})),
            ("fs/readBlock", json!({"handleId": "h", "offset": "0", "len": 1})),
            ("fs/writeBlock", json!({"handleId": "h", "offset": -1, "chunk": "AA=="})),
            ("fs/writeBlock", json!({"handleId": "h", "offset": 0, "chunk": null})),
            ("fs/close", json!({"handleId": 1})),
            ("fs/close", json!({"handleId": "h", "discard": "yes"})),
        ] {
            refused(fixture.client.call(method, params).await, -32602, "invalid_params");
        }
        let more = json!({"unknown": {"a": [1]}, "followSymlinks": null, "sandbox": null, "detailed": null});
        assert_eq!(fixture.call("fs/readFile", "f", more.clone()).await, Ok(json!({"dataBase64": ""})));
        fixture.call("fs/getMetadata", "f", more.clone()).await.unwrap();
        fixture.call("fs/canonicalize", "f", more).await.unwrap();
        let error = fixture.call("fs/open", "f", json!({"handleId": "h", "mode": "append"})).await;
        let text = "unknown variant `append`, expected `read` or `replace`";
        assert_eq!(error.unwrap_err()["message"], text);
    })
    .await;
}

#[tokio::test]
async fn files_are_for_those_who_have_initialized() {
    on_each_file_system(async |fixture| {
        fixture.put("f", "");
        let path = json!({"path": fixture.uri("f")});
        let open = json!({"path": fixture.uri("new"), "handleId": "h", "mode": "replace"});
        let write = json!({"path": fixture.uri("new"), "dataBase64": ""});
        let close = json!({"handleId": "h"});
        let calls = [
            ("fs/readFile", path.clone()),
            ("fs/getMetadata", path),
            ("fs/open", open),
            ("fs/writeFile", write),
            ("fs/close", close),
            ("fs/batch", json!({"requests": []})),
        ];
        let mut client = TestClient::connect(fixture.server.url()).await;
        for (text, then) in [
            ("client must call initialize before using filesystem methods", "initialize"),
            ("client must send initialized before using filesystem methods", "initialized"),
        ] {
            for (method, params) in &calls {
                let error = client.call(method, params.clone()).await.unwrap_err();
                assert_eq!((&error["code"], &error["message"]), (&json!(-32600), &json!(text)));
                assert_eq!(error["data"]["kind"], "lifecycle");
            }
            match then {
                "initialize" => drop(client.try_initialize(None).await.unwrap()),
                _ => client.notify(then, json!({})).await,
            }
        }
        assert_eq!(super::names(fixture), ["f"]);
        for (method, params) in calls {
            client.call(method, params).await.expect(method);
        }
    })
    .await;
}

#[tokio::test]
async fn methods_outside_the_table_are_unknown() {
    on_each_file_system(async |fixture| {
        for method in ["fs/chown", "fs/grep", "fs/stat", "fs/unwatchMissing", "fs/readfile", "fs/"]
        {
            let error = fixture.call(method, "", json!({})).await.unwrap_err();
            let text = format!("unknown method `{method}`");
            assert_eq!((&error["code"], &error["message"]), (&json!(-32601), &json!(text)));
        }
    })
    .await;
}

#[tokio::test]
async fn a_policy_that_asks_for_nothing_changes_nothing_and_one_without_a_meaning_is_refused() {
    on_each_file_system(async |fixture| {
        fixture.put("f", "");
        let sandbox = |permissions: Value| {
            json!({"sandbox": {"permissions": permissions, "windowsSandboxLevel": "disabled"}})
        };
        let managed = |files: Value| {
            sandbox(json!({"type": "managed", "file_system": files, "network": "restricted"}))
        };
        let root = json!({"type": "special", "value": {"kind": "root"}});
        for more in [
            json!({"sandbox": null}),
            sandbox(json!({"type": "disabled"})),
            sandbox(json!({"type": "external", "network": "enabled"})),
            managed(json!({"type": "unrestricted"})),
            json!({"sandbox": {"sandboxPolicy": {"type": "danger-full-access"}}}),
        ] {
            fixture.call("fs/readFile", "f", more.clone()).await.unwrap();
            fixture.call("fs/getMetadata", "f", more.clone()).await.unwrap();
            fixture.call("fs/canonicalize", "f", more.clone()).await.unwrap();
            let mut open = more;
            open["handleId"] = json!("h");
            fixture.call("fs/open", "f", open).await.unwrap();
            fixture.client.call("fs/close", json!({"handleId": "h"})).await.unwrap();
        }
        for more in [
            managed(json!({"type": "restricted", "entries": []})),
            managed(json!({"type": "restricted", "entries": [{"path": root, "access": "deny"}]})),
        ] {
            let error = fixture.call("fs/readFile", "f", more.clone()).await.unwrap_err();
            assert_eq!((&error["code"], &error["data"]["errno"]), (&json!(-32004), &json!("ENOENT")));
            assert_eq!(error["data"]["sandboxDenied"], Value::Null, "{error}");
            let error = fixture.write("new", b"", more).await.unwrap_err();
            assert_eq!(error["data"]["sandboxDenied"], true, "{error}");
        }
        let unknown = json!([{"path": root, "access": "look"}]);
        for more in [
            managed(json!({"type": "restricted", "entries": unknown})),
            json!({"sandbox": {}}),
            json!({"sandbox": true}),
        ] {
            let mut open = more.clone();
            open["handleId"] = json!("h");
            open["mode"] = json!("replace");
            for (method, more) in
                [("fs/readFile", &more), ("fs/getMetadata", &more), ("fs/canonicalize", &more), ("fs/open", &open)]
            {
                let error = fixture.call(method, "f", more.clone()).await.unwrap_err();
                assert_eq!(error["code"], -32602, "{method} {more}");
            }
            let result = fixture.write("new", b"", more).await;
            assert_eq!(result.unwrap_err()["code"], -32602);
        }
        assert_eq!(super::names(fixture), ["f"]);
    })
    .await;
}
