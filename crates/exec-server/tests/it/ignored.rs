//! Members that the server does not know are reported to the clients that ask for it, and to no other client.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use exec_server::client::IgnoredListener;
use exec_server::{ExecServerClientConnectOptions, ExecServerConnection};
use exec_server_testkit::fs_fixture::FsFixture;
use exec_server_testkit::web::Web;
use exec_server_testkit::{TestClient, TestExecutor};
use serde_json::{Value, json};

use crate::client::peer::scripted_client_with;

/// A client with `reportIgnored`.
async fn asking(server: &TestExecutor) -> TestClient {
    let mut client = TestClient::connect(server.url()).await;
    let params =
        json!({"clientName": "t", "clientCapabilities": {"reportIgnored": true, "more": 1}});
    let result = client.call("initialize", params).await.unwrap();
    assert_eq!(result["environmentInfo"]["capabilities"]["reportIgnored"], true);
    client.notify("initialized", json!({})).await;
    client
}

#[tokio::test]
async fn replies_list_ignored_members_on_request() {
    let fixture = &mut FsFixture::new().await;
    fixture.put("f", "content");
    let path = fixture.uri("f");
    let mut asking = asking(&fixture.server).await;
    let start = |id: &str, more: Value| {
        let argv = ["/bin/true"];
        exec_server_testkit::client::start_params(id, &argv, more)
    };
    let calls = [
        (
            "process/start",
            start("p", json!({"colour": 1, "size": {"rows": 1, "cols": 1, "depth": 2}})),
            json!(["colour", "size.depth"]),
        ),
        ("process/start", start("q", json!({})), Value::Null),
        ("fs/readFile", json!({"path": path, "speed": "high"}), json!(["speed"])),
        ("fs/readFile", json!({"path": path}), Value::Null),
        (
            "fs/readFile",
            json!({"path": path, "sandbox": {"permissions": {"type": "disabled"},
                "windowsSandboxLevel": "disabled", "foo": 1}}),
            json!(["sandbox.foo"]),
        ),
        ("fs/getMetadata", json!({"path": path, "colour": 1}), json!(["colour"])),
        (
            "fs/writeFile",
            json!({"path": path, "dataBase64": "aGk=", "colour": 1}),
            json!(["colour"]),
        ),
        ("fs/open", json!({"handleId": "h", "path": path, "colour": 1}), json!(["colour"])),
        (
            "fs/readBlock",
            json!({"handleId": "h", "offset": 0, "len": 5, "colour": 1}),
            json!(["colour"]),
        ),
        ("fs/close", json!({"handleId": "h", "colour": 1}), json!(["colour"])),
        ("fs/close", json!({"handleId": "h"}), Value::Null),
        (
            "fs/batch",
            json!({"requests": [{"method": "fs/readFile", "params": {"path": path, "a": 1}}]}),
            json!(["requests.0.params.a"]),
        ),
    ];
    let mut plain = fixture.server.client().await;
    for (method, params, expected) in calls {
        let told = asking.call(method, params.clone()).await.unwrap();
        assert_eq!(told["ignored"], expected, "{method} {told}");
        // Nothing else differs, and no other client is told.
        let silent = plain.call(method, params).await.unwrap();
        assert_eq!(silent.get("ignored"), None, "{method} {silent}");
        assert_eq!(without_ignored(told), without_ignored(silent), "{method}");
    }
}

fn without_ignored(mut result: Value) -> BTreeMap<String, Value> {
    let members = result.as_object_mut().expect("results are objects");
    members.remove("ignored");
    members.iter().map(|(name, value)| (name.clone(), value.clone())).collect()
}

#[tokio::test]
async fn http_requests_list_ignored_members() {
    let server = TestExecutor::start().await;
    let web = Web::start(|mut visit| async move {
        while visit.request().await.is_some() {
            visit.send("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi").await;
        }
    })
    .await;
    let mut client = asking(&server).await;
    let params = json!({"method": "GET", "url": web.url("/"), "requestId": "r", "colour": 1});
    let result = client.call("http/request", params).await.unwrap();
    assert_eq!(result["ignored"], json!(["colour"]));
}

#[tokio::test]
async fn the_client_reports_ignored_members_once() {
    let heard: Arc<Mutex<Vec<String>>> = Arc::default();
    let listener = {
        let heard = heard.clone();
        IgnoredListener::new(move |method, members| {
            heard.lock().unwrap().push(format!("{method} {}", members.join(" ")));
        })
    };
    let options =
        ExecServerClientConnectOptions { on_ignored: Some(listener), ..Default::default() };
    let (client, mut peers) = scripted_client_with(options);
    let script = async {
        let mut peer = peers.accept().await;
        let asked = peer.serve_initialize("s-1").await;
        assert_eq!(
            asked.params["clientCapabilities"],
            json!({"reportIgnored": true, "sessionMoved": true, "binaryMessages": true})
        );
        for member in ["a", "a", "b"] {
            let asked = peer.expect("fs/canonicalize").await;
            peer.reply(&asked, json!({"path": "file:///x", "ignored": [member]})).await;
        }
        peer
    };
    let calls = async {
        for _ in 0..3 {
            client.fs().canonicalize("/x").await.unwrap();
        }
    };
    let (_peer, ()) = tokio::join!(script, calls);
    assert_eq!(*heard.lock().unwrap(), ["fs/canonicalize a", "fs/canonicalize b"]);
    // A server of the same version ignores nothing of what the client sends.
    let server = TestExecutor::start().await;
    ExecServerConnection::connect(server.url()).await.unwrap();
}
