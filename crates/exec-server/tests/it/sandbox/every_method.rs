//! No method ignores a `sandbox`: each one in the table enforces it or refuses the request.

use exec_server_protocol::base64;
use exec_server_protocol::methods::Method;
use exec_server_testkit::TestExecutor;

use super::fixture::{SandboxFixture, as_each_user, snapshot};
use super::*;

/// Params that do something with `path` outside of the policy, for every method that takes a sandbox.
fn params_of(method: Method, path: &str, url: &str) -> Value {
    let data = base64::encode(b"evil");
    let other = format!("{path}-other");
    match method {
        Method::FsReadFile
        | Method::FsGetMetadata
        | Method::FsCanonicalize
        | Method::FsReadDirectory
        | Method::FsReadLink => json!({"path": path}),
        Method::FsOpen => json!({"path": path, "handleId": "h"}),
        Method::FsWriteFile => json!({"path": path, "dataBase64": data}),
        Method::FsAppend => json!({"path": path, "dataBase64": data}),
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
        Method::HttpRequest => json!({"method": "GET", "url": url, "requestId": "r"}),
        other => panic!("{} takes a sandbox, and this test does not know it", other.name()),
    }
}

/// A policy that hides the fixture and the network.
fn nothing(fixture: &SandboxFixture) -> Value {
    with_entries(&[&fixture.work()], "restricted", &[special("minimal", "read")])
}

#[tokio::test]
async fn every_method_of_the_table_enforces_a_sandbox_or_refuses_it() {
    as_each_user(async |fixture| {
        let policy = nothing(fixture);
        let before = snapshot(&fixture.outside());
        let path = uri(&fixture.outside().join("file"));
        // A listener that no request of this policy may reach.
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        for method in Method::ALL.iter().copied().filter(|it| *it != Method::ProcessStart) {
            let name = method.name();
            let mut params = match method.takes_sandbox() {
                true => params_of(method, &path, &url),
                false => json!({}),
            };
            params["sandbox"] = policy.clone();
            let error = fixture.client.call(name, params).await.expect_err(name);
            if method.takes_sandbox() {
                assert_ne!(error["code"], -32602, "{name}: {error}");
            } else {
                assert_eq!(error["code"], -32602, "{name}: {error}");
            }
        }
        assert_eq!(snapshot(&fixture.outside()), before);
        assert!(listener.accept().is_err(), "something was sent");
        let entries = [special("minimal", "read"), special("project_roots", "write")];
        let policy = with_entries(&[&fixture.work()], "restricted", &entries);
        assert_eq!(fixture.run(&policy, "cat $OUT/file").await.text(), "");
    })
    .await;
}

#[tokio::test]
async fn a_method_without_a_sandbox_rejects_one_and_accepts_null() {
    as_each_user(async |fixture| {
        let policy = nothing(fixture);
        for (method, params, hint) in [
            ("fs/batch", json!({"requests": []}), "each of its requests"),
            ("fs/watchMissing", json!({"watchId": 1, "missing": []}), "fs/watchMissing"),
            ("process/list", json!({}), "process/list"),
        ] {
            let mut with = params.clone();
            with["sandbox"] = policy.clone();
            let error = fixture.client.call(method, with).await.expect_err(method);
            let message = error["message"].as_str().unwrap();
            assert!(message.contains("sandbox") && message.contains(hint), "{error}");
            if method != "process/list" {
                let mut with = params;
                with["sandbox"] = Value::Null;
                fixture.client.call(method, with).await.expect(method);
            }
        }
        // In every spelling of the name.
        let text = format!(
            r#"{{"id":77,"method":"fs/batch","params":{{"requests":[],"sand\u0062ox":{policy}}}}}"#
        );
        fixture.client.send_text(text).await;
        assert_eq!(fixture.client.reply(77).await.unwrap_err()["code"], -32602);
    })
    .await;
}

#[tokio::test]
async fn a_request_to_another_server_keeps_the_network_rule_of_its_policy() {
    let server = TestExecutor::builder().start().await;
    let mut client = server.client().await;
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let answering = std::thread::spawn(move || {
        use std::io::{Read, Write};
        for _ in 0..3 {
            let (mut stream, _) = listener.accept().unwrap();
            let _ = stream.read(&mut [0; 4096]).unwrap();
            stream
                .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nhi")
                .unwrap();
        }
    });
    let managed = |network: &str| unrestricted(network);
    let external = |network: &str| json!({"permissions": {"type": "external", "network": network}, "windowsSandboxLevel": "disabled"});
    for sandbox in [managed("restricted"), external("restricted")] {
        let params = json!({"method": "GET", "url": url, "requestId": "r", "sandbox": sandbox});
        let error = client.call("http/request", params).await.expect_err("it is restricted");
        assert_eq!(error["data"]["sandboxDenied"], true, "{error}");
        assert_eq!(error["data"]["kind"], "forbidden", "{error}");
    }
    for sandbox in [managed("enabled"), external("enabled"), Value::Null] {
        let params = json!({"method": "GET", "url": url, "requestId": "r", "sandbox": sandbox});
        let answer = client.call("http/request", params).await.expect("it is allowed");
        assert_eq!(answer["status"], 200);
    }
    let params =
        json!({"method": "GET", "url": url, "requestId": "r", "sandbox": {"permissions": 7}});
    assert_eq!(client.call("http/request", params).await.unwrap_err()["code"], -32602);
    answering.join().unwrap();
}
