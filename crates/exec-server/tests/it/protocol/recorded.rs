//! A real server's replies to every method, checked member by member against the schema.

use std::collections::BTreeSet;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use exec_server_protocol::base64;
use exec_server_protocol::methods::Method;
use exec_server_protocol::path_uri::PathUri;
use exec_server_testkit::client::start_params;
use exec_server_testkit::web::Web;
use exec_server_testkit::{TestClient, TestExecutor};
use serde_json::{Value, json};

use super::validator;

/// A client that checks each message that it sends and receives.
struct Recorder {
    client: TestClient,
    next_id: i64,
    answered: BTreeSet<&'static str>,
    notified: BTreeSet<String>,
    kinds: BTreeSet<String>,
}

impl Recorder {
    async fn connect(server: &TestExecutor) -> Self {
        let client = TestClient::connect(server.url()).await;
        let (answered, notified, kinds) = Default::default();
        Self { client, next_id: 1, answered, notified, kinds }
    }

    async fn call(&mut self, method: &'static str, params: Value) -> Result<Value, Value> {
        let id = self.next_id;
        self.next_id += 1;
        let request = json!({"id": id, "method": method, "params": params});
        validator::check_request(&request);
        self.client.send_text(request.to_string()).await;
        loop {
            let message = self.client.next_json().await;
            if message.get("method").is_some() {
                self.note(&message);
                continue;
            }
            assert_eq!(message["id"], id, "{message}");
            if let Some(result) = message.get("result") {
                validator::check("ServerReply", &message);
                validator::check_result(method, result);
                self.answered.insert(method);
                return Ok(result.clone());
            }
            validator::check("ServerError", &message);
            let error = &message["error"];
            validator::check_error(error);
            self.kinds.insert(error["data"]["kind"].as_str().unwrap().to_owned());
            return Err(error.clone());
        }
    }

    async fn ok(&mut self, method: &'static str, params: Value) -> Value {
        self.call(method, params.clone())
            .await
            .unwrap_or_else(|error| panic!("{method} {params}: {error}"))
    }

    async fn fails(&mut self, method: &'static str, params: Value, kind: &str) {
        let error = self.call(method, params).await.expect_err(kind);
        assert_eq!(error["data"]["kind"], kind, "{error}");
    }

    fn note(&mut self, message: &Value) {
        validator::check_notification(message);
        self.notified.insert(message["method"].as_str().unwrap().to_owned());
    }

    /// Reads notifications until one of this method.
    async fn wait_for(&mut self, method: &str) {
        while !self.notified.contains(method) {
            let message = self.client.next_json().await;
            self.note(&message);
        }
    }
}

fn uri(path: &Path) -> String {
    PathUri::from_posix(path.as_os_str().as_bytes()).as_str().to_owned()
}

#[tokio::test]
async fn every_reply_and_notification_of_a_server_fits_the_schema() {
    let server = TestExecutor::start().await;
    let home = tempfile::tempdir().unwrap();
    let mut recorder = Recorder::connect(&server).await;
    let params = json!({"clientName": "r", "lingerMs": 5000, "resumeSessionId": null,
        "clientCapabilities": {"sessionMoved": true}});
    let session = recorder.ok("initialize", params).await["sessionId"].clone();
    recorder.client.notify("initialized", json!({})).await;
    environment(&mut recorder, home.path()).await;
    processes(&mut recorder, &session).await;
    file_content(&mut recorder, home.path()).await;
    file_names(&mut recorder, home.path()).await;
    searches_and_watches(&mut recorder, home.path()).await;
    http(&mut recorder).await;
    take_over(&server, &mut recorder, &session).await;
    let all: BTreeSet<&str> = Method::ALL.iter().map(|method| method.name()).collect();
    assert_eq!(recorder.answered, all);
    let notifications = validator::document()["x-notifications"].as_object().unwrap();
    assert_eq!(recorder.notified, notifications.keys().cloned().collect());
    assert!(recorder.kinds.len() > 15, "{:?}", recorder.kinds);
}

async fn environment(recorder: &mut Recorder, home: &Path) {
    recorder.ok("environment/info", json!({})).await;
    recorder.ok("environment/status", Value::Null).await;
    let cwd = uri(home);
    let params = json!({"cwd": cwd, "configPaths": [["model"]], "requirementsPaths": []});
    recorder.ok("environmentConfig/read", params).await;
    let skill = home.join("skill");
    std::fs::create_dir(&skill).unwrap();
    std::fs::write(skill.join("SKILL.md"), "---\nname: a\ndescription: b\n---\ntext\n").unwrap();
    let params =
        json!({"roots": [{"id": "r", "path": cwd}, {"id": "s", "path": uri(&home.join("none"))}]});
    let found = recorder.ok("capabilityRoots/discoverV1", params).await;
    assert!(found["roots"][0]["skills"][0].is_object(), "{found}");
    recorder.ok("capabilities/discoverV2", json!({"cwd": cwd})).await;
    recorder.fails("initialize", json!({"clientName": "again"}), "lifecycle").await;
    recorder
        .fails("session/setLinger", json!({"lingerMs": 1, "sandbox": {}}), "invalid_params")
        .await;
    recorder.ok("session/setLinger", json!({"lingerMs": 5000})).await;
}

async fn processes(recorder: &mut Recorder, session: &Value) {
    let more = json!({"pipeStdin": true, "timeoutMs": 600_000, "detailed": true, "uniqueId": true,
        "limits": {"openFiles": 64}});
    let started = recorder.ok("process/start", start_params("p", &["cat"], more)).await;
    assert!(started["pid"].is_u64() && started["limits"].is_object(), "{started}");
    let more = json!({"tty": true, "size": {"rows": 10, "cols": 20}});
    recorder.ok("process/start", start_params("t", &["cat"], more)).await;
    recorder.ok("process/resize", json!({"processId": "t", "rows": 5, "cols": 5})).await;
    let size = json!({"rows": 5, "cols": 5});
    recorder.ok("process/resize", json!({"processId": "t", "size": size})).await;
    recorder.ok("process/signal", json!({"processId": "t", "signal": "hangup"})).await;
    let write = json!({"processId": "p", "chunk": base64::encode(b"hi\n"), "writeId": "w"});
    recorder.ok("process/write", write).await;
    let read = json!({"processId": "p", "afterSeq": 0, "waitMs": 20_000, "timestamps": true});
    recorder.ok("process/read", read).await;
    recorder.ok("process/list", Value::Null).await;
    recorder.ok("session/list", json!({})).await;
    recorder.ok("process/closeStdin", json!({"processId": "p"})).await;
    let read = json!({"processId": "p", "until": "closed", "waitMs": 20_000, "sessionId": session});
    let ended = recorder.ok("process/read", read).await;
    assert!(ended["rusage"].is_object() && ended["closed"] == true, "{ended}");
    recorder.ok("process/terminate", json!({"processId": "t", "graceMs": 10})).await;
    recorder.ok("process/list", json!({})).await;
    recorder.wait_for("process/closed").await;
    evicted_output(recorder).await;
    recorder.fails("process/read", json!({"processId": "?"}), "unknown_process").await;
    recorder
        .fails("process/start", start_params("x", &["/none"], json!({})), "program_not_found")
        .await;
    recorder
        .fails(
            "process/start",
            start_params("x", &["true"], json!({"cwd": "file:///none"})),
            "cwd_not_found",
        )
        .await;
    recorder
        .fails("process/start", start_params("p", &["true"], json!({})), "process_exists")
        .await;
    recorder
        .fails("process/resize", json!({"processId": "p", "rows": 1, "cols": 1}), "no_terminal")
        .await;
}

async fn evicted_output(recorder: &mut Recorder) {
    let flood = ["sh", "-c", "head -c 300000 /dev/zero"];
    recorder.ok("process/start", start_params("f", &flood, json!({"outputRetention": 1000}))).await;
    let read = json!({"processId": "f", "until": "closed", "waitMs": 20_000});
    recorder.ok("process/read", read).await;
    let read = recorder.ok("process/read", json!({"processId": "f"})).await;
    assert!(read["evictedBytes"].is_u64(), "{read}");
}

async fn file_content(recorder: &mut Recorder, home: &Path) {
    let path = uri(&home.join("f"));
    let data = base64::encode(b"one\ntwo\n");
    let write = json!({"path": path, "dataBase64": data, "detailed": true, "durability": "data",
        "newModeBits": 0o600, "modifiedAtMs": 1000});
    recorder.ok("fs/writeFile", write).await;
    let write = json!({"path": path, "dataBase64": data, "ifAbsent": true});
    recorder.fails("fs/writeFile", write, "already_exists").await;
    let write = json!({"path": path, "dataBase64": "a-_", "detailed": null});
    let malformed = json!({"id": 900, "method": "fs/writeFile", "params": write});
    recorder.client.send_text(malformed.to_string()).await;
    validator::check_error(&recorder.client.next_json().await["error"]);
    recorder.ok("fs/append", json!({"path": path, "dataBase64": data})).await;
    recorder.ok("fs/readFile", json!({"path": path, "detailed": true})).await;
    let edit = json!({"path": path, "edits": [{"old": "one", "new": "1", "replaceAll": true}]});
    recorder.ok("fs/edit", edit.clone()).await;
    recorder.fails("fs/edit", edit, "edit_not_found").await;
    recorder.ok("fs/truncate", json!({"path": path, "size": 3})).await;
    recorder.ok("fs/setPermissions", json!({"path": path, "mode": 0o644})).await;
    recorder.ok("fs/open", json!({"handleId": "r", "path": path, "detailed": true})).await;
    recorder.ok("fs/readBlock", json!({"handleId": "r", "offset": 0, "len": 100})).await;
    recorder.ok("fs/close", json!({"handleId": "r"})).await;
    recorder
        .ok("fs/open", json!({"handleId": "w", "path": path, "mode": "replace", "detailed": true}))
        .await;
    recorder.ok("fs/writeBlock", json!({"handleId": "w", "offset": 0, "chunk": data})).await;
    recorder.ok("fs/close", json!({"handleId": "w"})).await;
    let read = json!({"handleId": "w", "offset": 0, "len": 1});
    recorder.fails("fs/readBlock", read, "unknown_handle").await;
    recorder.fails("fs/readFile", json!({"path": uri(&home.join("none"))}), "not_found").await;
    recorder.fails("fs/readFile", json!({"path": uri(home)}), "not_a_file").await;
}

async fn file_names(recorder: &mut Recorder, home: &Path) {
    let at = |name: &str| uri(&home.join(name));
    let odd = home.join(std::ffi::OsStr::from_bytes(b"odd-\xff"));
    std::fs::write(&odd, "").unwrap();
    recorder.ok("fs/createDirectory", json!({"path": at("d/e"), "recursive": true})).await;
    recorder
        .fails("fs/createDirectory", json!({"path": at("d"), "recursive": false}), "already_exists")
        .await;
    recorder.ok("fs/symlink", json!({"path": at("l"), "target": "f"})).await;
    let target = base64::encode(b"odd-\xff");
    recorder.ok("fs/symlink", json!({"path": at("m"), "targetBase64": target})).await;
    recorder.ok("fs/readLink", json!({"path": at("m")})).await;
    recorder.ok("fs/getMetadata", json!({"path": at("f")})).await;
    let link = json!({"path": at("m"), "detailed": true, "followSymlinks": false});
    let metadata = recorder.ok("fs/getMetadata", link).await;
    assert!(metadata["linkTargetBase64"].is_string(), "{metadata}");
    recorder.ok("fs/canonicalize", json!({"path": at("l")})).await;
    recorder.ok("fs/readDirectory", json!({"path": uri(home)})).await;
    let page = json!({"path": uri(home), "limit": 2, "detailed": true});
    let page = recorder.ok("fs/readDirectory", page).await;
    assert!(page["nextCursor"].is_string(), "{page}");
    let options = json!({"maxDepth": 3, "maxDirectories": 9, "maxEntries": 99, "followDirectorySymlinks": false});
    recorder.ok("fs/walk", json!({"path": uri(home), "options": options})).await;
    recorder
        .ok(
            "fs/copy",
            json!({"sourcePath": at("f"), "destinationPath": at("g"), "recursive": false}),
        )
        .await;
    recorder.ok("fs/rename", json!({"sourcePath": at("g"), "destinationPath": at("h")})).await;
    let batch = json!({"requests": [{"method": "fs/getMetadata", "params": {"path": at("f")}},
        {"method": "fs/readFile", "params": {"path": at("none")}}]});
    recorder.ok("fs/batch", batch).await;
    recorder
        .fails("fs/remove", json!({"path": at("d"), "recursive": false}), "directory_not_empty")
        .await;
    recorder.ok("fs/remove", json!({"path": at("d")})).await;
}

async fn searches_and_watches(recorder: &mut Recorder, home: &Path) {
    let at = |name: &str| uri(&home.join(name));
    std::fs::write(home.join("s"), b"match \xff one\nrest\nmatch two\n").unwrap();
    std::fs::write(home.join("b"), b"match\0\n").unwrap();
    let search = json!({"path": uri(home), "pattern": "match", "before": 1, "after": 1, "binary": "report",
        "searchId": "s", "limits": {"pageSize": 1}, "filter": {"globs": ["s", "b"]}});
    recorder.ok("fs/search", search).await;
    recorder.ok("fs/nextPage", json!({"searchId": "s"})).await;
    recorder.ok("fs/cancelSearch", json!({"searchId": "s"})).await;
    recorder
        .ok("fs/search", json!({"path": uri(home), "pattern": "match", "filesOnly": true}))
        .await;
    let search = json!({"path": uri(home), "pattern": ".", "limits": {"maxMatches": 1}});
    let page = recorder.ok("fs/search", search).await;
    assert_eq!(page["incomplete"], "maxMatches", "{page}");
    recorder.ok("fs/find", json!({"path": uri(home), "detailed": true})).await;
    let bad = json!({"path": uri(home), "pattern": "("});
    recorder.fails("fs/search", bad, "invalid_pattern").await;
    recorder.fails("fs/nextPage", json!({"searchId": "none"}), "unknown_search").await;
    recorder.ok("fs/watch", json!({"watchId": "w", "path": uri(home), "recursive": true})).await;
    std::fs::rename(home.join("s"), home.join("s2")).unwrap();
    recorder.ok("fs/readChanges", json!({"watchId": "w", "waitMs": 20_000})).await;
    recorder.ok("fs/unwatch", json!({"watchId": "w"})).await;
    recorder.fails("fs/readChanges", json!({"watchId": "w"}), "unknown_watch").await;
    recorder.ok("fs/watchMissing", json!({"watchId": 1, "missing": [at("soon")]})).await;
    std::fs::write(home.join("soon"), "").unwrap();
    recorder.wait_for("fs/missingChanged").await;
}

async fn http(recorder: &mut Recorder) {
    let web = Web::answering(|_| {
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nx-odd: \xff\r\n\r\nok".to_vec()
    })
    .await;
    let url = web.url("/");
    let get = |id: &str| json!({"requestId": id, "method": "POST", "url": url, "headers": [{"name": "a", "value": "b"}]});
    let answer = recorder.ok("http/request", get("a")).await;
    assert!(answer["headers"].to_string().contains("valueBase64"), "{answer}");
    let mut streamed = get("b");
    streamed["streamResponse"] = true.into();
    recorder.ok("http/request", streamed).await;
    recorder.wait_for("http/request/bodyDelta").await;
    let mut upload = get("c");
    upload["streamBody"] = true.into();
    let id = recorder.client.send("http/request", upload).await;
    let piece = json!({"requestId": "c", "seq": 1, "chunk": "YQ==", "done": true});
    let more = recorder.client.send("http/requestBody", piece).await;
    let accepted = recorder.client.reply(more).await.unwrap();
    validator::check_result("http/requestBody", &accepted);
    recorder.answered.insert("http/requestBody");
    validator::check_result("http/request", &recorder.client.reply(id).await.unwrap());
    recorder.ok("http/cancel", json!({"requestId": "none"})).await;
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let refused = json!({"requestId": "d", "method": "GET", "url": format!("http://{closed}/")});
    recorder.fails("http/request", refused, "connect").await;
}

/// Another client takes the session; the first one is told.
async fn take_over(server: &TestExecutor, recorder: &mut Recorder, session: &Value) {
    let mut other = Recorder::connect(server).await;
    let unknown = json!({"clientName": "o", "resumeSessionId": "none"});
    other.fails("initialize", unknown, "unknown_session").await;
    other.fails("process/list", json!({}), "lifecycle").await;
    let resume = json!({"clientName": "o", "resumeSessionId": session, "takeOver": true});
    other.ok("initialize", resume).await;
    recorder.wait_for("session/moved").await;
    recorder.kinds.append(&mut other.kinds);
}
