//! Names that a process swaps during `fs/*` requests: no request reaches the outside.

use std::os::unix::fs::symlink;

use exec_server_protocol::base64;
use exec_server_testkit::{DEADLINE, TestClient};

use super::fixture::{SandboxFixture, as_each_user, snapshot};
use super::*;

/// Content of the outside file, as base64.
const CANARY: &str = "c2FmZQo";

/// Enough rounds for every method to see every state of the names.
const ROUNDS: usize = 60;

/// Requests with `x/file` and `x`, which points outside half of the time.
fn requests(work: &Path) -> Vec<(&'static str, Value)> {
    let at = |name: &str| uri(&work.join(name));
    let data = base64::encode(b"evil");
    let walk = json!({"maxDepth": 4, "maxDirectories": 100, "maxEntries": 100, "followDirectorySymlinks": true});
    vec![
        ("fs/writeFile", json!({"path": at("x/file"), "dataBase64": data})),
        ("fs/readFile", json!({"path": at("x/file")})),
        ("fs/readFile", json!({"path": at("leaf")})),
        ("fs/writeFile", json!({"path": at("leaf"), "dataBase64": data})),
        ("fs/append", json!({"path": at("x/file"), "dataBase64": data})),
        ("fs/truncate", json!({"path": at("x/file"), "size": 1})),
        ("fs/getMetadata", json!({"path": at("x/file")})),
        ("fs/canonicalize", json!({"path": at("x/other")})),
        ("fs/readDirectory", json!({"path": at("x")})),
        ("fs/walk", json!({"path": at("x"), "options": walk})),
        ("fs/createDirectory", json!({"path": at("x/new/deep"), "recursive": true})),
        ("fs/remove", json!({"path": at("x/new"), "recursive": true})),
        ("fs/remove", json!({"path": at("x/dir"), "recursive": true})),
        ("fs/setPermissions", json!({"path": at("x/file"), "mode": 0o777})),
        ("fs/symlink", json!({"path": at("x/link"), "target": "file"})),
        ("fs/rename", json!({"sourcePath": at("x/file"), "destinationPath": at("x/moved")})),
        ("fs/rename", json!({"sourcePath": at("x/moved"), "destinationPath": at("taken")})),
        ("fs/rename", json!({"sourcePath": at("taken"), "destinationPath": at("x/taken")})),
        (
            "fs/copy",
            json!({"sourcePath": at("x/other"), "destinationPath": at("copied"), "recursive": false}),
        ),
        ("fs/readFile", json!({"path": at("copied")})),
        (
            "fs/copy",
            json!({"sourcePath": at("x"), "destinationPath": at("tree"), "recursive": true}),
        ),
        ("fs/readFile", json!({"path": at("tree/file")})),
        ("fs/remove", json!({"path": at("tree"), "recursive": true})),
        ("fs/remove", json!({"path": at("x/file")})),
        ("fs/open", json!({"path": at("x/file"), "handleId": "w", "mode": "replace"})),
        ("fs/writeBlock", json!({"handleId": "w", "offset": 0, "chunk": data})),
        ("fs/close", json!({"handleId": "w"})),
        ("fs/open", json!({"path": at("x/file"), "handleId": "r"})),
        ("fs/readBlock", json!({"handleId": "r", "offset": 0, "len": 16})),
        ("fs/close", json!({"handleId": "r"})),
    ]
}

/// Sends all requests, and returns the replies that reveal the outside.
async fn make(client: &mut TestClient, work: &Path, sandbox: &Value) -> Vec<String> {
    let mut told = Vec::new();
    for (method, mut params) in requests(work) {
        if params.get("path").or(params.get("sourcePath")).is_some() {
            params["sandbox"] = sandbox.clone();
        }
        match client.call(method, params.clone()).await {
            Ok(answer) => {
                let text = answer.to_string();
                let tells = [CANARY, "other", "outside"].iter().any(|word| text.contains(word));
                told.extend(tells.then(|| format!("{method} {params}: {text}")));
            }
            Err(error) => assert_ne!(error["code"], -32602, "{method}: {error}"),
        }
    }
    told
}

/// A process in a sandbox that swaps a directory for a link to the outside, and a file for a link to one there.
async fn start_swapping(fixture: &mut SandboxFixture, sandbox: &Value) -> String {
    let work = fixture.work();
    fixture.make_dir(&work.join("x"));
    fixture.put(&work.join("x/file"), "inside");
    fixture.put(&work.join("leaf"), "inside");
    for (target, link) in [("outside", "y"), ("outside/file", "other-leaf")] {
        symlink(fixture.root().join(target), work.join(link)).unwrap();
        fixture.give(&work.join(link));
    }
    let (id, params) = (fixture.next_id(), fixture.params(sandbox));
    let script = attempt::command("swap");
    fixture.client.start(&id, &["/bin/sh", "-c", &script], params).await.unwrap();
    eventually_swapping(&work).await;
    id
}

async fn eventually_swapping(work: &Path) {
    for is_link in [true, false, true] {
        exec_server_testkit::eventually("names are swapped", || {
            work.join("x").is_symlink() == is_link
        })
        .await;
    }
}

#[tokio::test]
async fn requests_about_names_that_are_swapped_never_reach_the_outside() {
    as_each_user(async |fixture| {
        let entries = [
            special("root", "read"),
            special("project_roots", "write"),
            at(&fixture.outside(), "deny"),
        ];
        let policy = with_entries(&[&fixture.work()], "restricted", &entries);
        let id = start_swapping(fixture, &policy).await;
        let (work, before) = (fixture.work(), snapshot(&fixture.outside()));
        for _ in 0..ROUNDS {
            let told = make(&mut fixture.client, &work, &policy).await;
            assert!(told.is_empty(), "{told:?}");
        }
        assert_eq!(snapshot(&fixture.outside()), before);
        // The swapping never stopped, and unsandboxed requests reach the outside.
        eventually_swapping(&work).await;
        let free = async {
            while snapshot(&fixture.outside()) == before {
                make(&mut fixture.client, &work, &Value::Null).await;
            }
        };
        tokio::time::timeout(DEADLINE, free).await.expect("without a sandbox it works");
        fixture.client.terminate(&id, None).await;
        fixture.client.finish(&id).await;
    })
    .await;
}
