//! Malformed and unusual params: each request gets exactly one reply, and the connection stays open.
//!
//! The server may run as root, so every path is written as one below `file:///nowhere`, which each case replaces by a
//! new directory of its own; a case that names anything else fails before it is sent.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;

use exec_server_protocol::methods::Method;
use exec_server_protocol::path_uri::{NativePaths, PathUri};
use exec_server_testkit::{TestClient, TestExecutor};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use serde_json::{Map, Value, json};
use tempfile::TempDir;

#[test]
fn any_params_for_any_method_get_one_reply_and_leave_the_connection_usable() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let _inside = runtime.enter();
    let server = runtime.block_on(TestExecutor::start());
    let fuzzed = RefCell::new(runtime.block_on(Fuzzed::new(&server)));
    // A failing case is printed with its seed; a file beside the sources would only remember it for one machine.
    let config = Config { cases: 40, failure_persistence: None, ..Config::default() };
    for method in Method::ALL {
        let result = TestRunner::new(config.clone()).run(&params(*method), |params| {
            runtime.block_on(fuzzed.borrow_mut().try_case(*method, params));
            Ok(())
        });
        result.unwrap();
    }
    runtime.block_on(fuzzed.into_inner().finish());
}

struct Fuzzed {
    client: TestClient,
    next_id: i64,
    /// Number of replies to each request.
    replies: HashMap<i64, usize>,
    fixture: TempDir,
}

impl Fuzzed {
    async fn new(server: &TestExecutor) -> Self {
        let mut client = server.client().await;
        // Reads of this process return at once, because it is closed.
        client.run("p", &["true"], json!({})).await;
        let fixture = tempfile::tempdir().unwrap();
        Self { client, next_id: 1000, replies: HashMap::new(), fixture }
    }

    async fn try_case(&mut self, method: Method, mut params: Value) {
        let work_dir = WorkDir::create(self.fixture.path().join(self.next_id.to_string()));
        work_dir.take_in(&mut params);
        let asked = self.ask(method.name(), params).await;
        let status = self.ask("environment/status", Value::Null).await;
        while !(self.replies.contains_key(&asked) && self.replies.contains_key(&status)) {
            let message = self.client.next_json().await;
            let Some(id) = message.get("id") else { continue };
            let id = id.as_i64().expect("we only send integers");
            *self.replies.entry(id).or_default() += 1;
            let has_result = message.get("result").is_some();
            let kind = message["error"]["data"]["kind"].as_str();
            assert!(has_result != kind.is_some(), "neither result nor a kind of error: {message}");
            assert_ne!(kind, Some("internal"), "{message}");
            assert!(id != status || has_result, "{message}");
        }
    }

    async fn ask(&mut self, method: &str, params: Value) -> i64 {
        let id = self.next_id;
        self.next_id += 1;
        let text = json!({"id": id, "method": method, "params": params}).to_string();
        self.client.send_text(text).await;
        id
    }

    async fn finish(mut self) {
        self.try_case(Method::EnvironmentInfo, Value::Null).await;
        assert!(self.replies.values().all(|count| *count == 1), "{:?}", self.replies);
        assert_eq!(self.replies.len() as i64, self.next_id - 1000);
    }
}

/// The directory of one case, removed with it.
struct WorkDir {
    path: PathBuf,
}

impl WorkDir {
    fn create(path: PathBuf) -> Self {
        fs::create_dir_all(path.join("d")).unwrap();
        fs::write(path.join("a"), "content").unwrap();
        fs::write(path.join("d/f"), "more").unwrap();
        #[cfg(unix)]
        std::os::unix::fs::symlink("a", path.join("l")).unwrap();
        Self { path }
    }

    /// Inserts the directory into the params, and checks that they name nothing outside of it.
    fn take_in(&self, params: &mut Value) {
        match params {
            Value::Array(items) => items.iter_mut().for_each(|item| self.take_in(item)),
            Value::Object(members) => members.values_mut().for_each(|member| self.take_in(member)),
            Value::String(text) => {
                let uri = PathUri::from_posix(self.path.as_os_str().as_encoded_bytes());
                let path = uri.as_str().strip_prefix("file://").expect("it has no host");
                *text = text.replace("/nowhere", path);
                self.check(text);
            }
            _ => {}
        }
    }

    fn check(&self, text: &str) {
        // With native paths, because that is how the target of a link is read.
        let named = PathUri::parse(text).map(|uri| uri.to_posix(NativePaths::Accept));
        if let Ok(Ok(named)) = named
            && text != PROGRAM
        {
            let rest = named.strip_prefix(self.path.as_os_str().as_encoded_bytes());
            let is_inside = rest.is_some_and(|rest| rest.is_empty() || rest[0] == b'/');
            assert!(is_inside, "`{text}` is outside of {:?}", self.path);
        }
        let may_lead_out = text.starts_with("//") || text.contains("..");
        assert!(!may_lead_out, "`{text}` may be outside of {:?}", self.path);
    }
}

impl Drop for WorkDir {
    fn drop(&mut self) {
        #[cfg(unix)]
        for directory in [self.path.clone(), self.path.join("d")] {
            use std::os::unix::fs::PermissionsExt;
            // A case may have made it unreadable, or removed it.
            let _ = fs::set_permissions(directory, fs::Permissions::from_mode(0o700));
        }
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// What `process/start` runs unless a case says otherwise.
const PROGRAM: &str = "/bin/true";

/// Valid params with a mutation, or arbitrary JSON.
fn params(method: Method) -> impl Strategy<Value = Value> {
    let fitting = fitting(method);
    let members = fitting.as_object().into_iter().flatten();
    let mut names: Vec<String> = members.map(|(name, _)| name.clone()).collect();
    names.extend(optional(method).iter().map(|name| (*name).to_owned()));
    let change = (prop::sample::select(names), prop::option::of(any_value()));
    let changed = prop::collection::vec(change, 0..3).prop_map(move |changes| {
        let mut params = fitting.clone();
        for (name, value) in changes {
            let Some(members) = params.as_object_mut() else { continue };
            match value {
                Some(value) => members.insert(name, value),
                None => members.remove(&name),
            };
        }
        params
    });
    prop_oneof![4 => changed, 1 => any_value()]
}

/// Optional members.
fn optional(method: Method) -> &'static [&'static str] {
    match method {
        Method::FsReadDirectory => &["sandbox", "detailed", "limit", "cursor"],
        Method::FsSymlink => &["sandbox", "replace", "targetBase64"],
        Method::FsRemove | Method::FsCreateDirectory => {
            &["sandbox", "recursive", "force", "followSymlinks"]
        }
        Method::FsOpen
        | Method::FsWriteFile
        | Method::FsAppend
        | Method::FsTruncate
        | Method::FsEdit => &[
            "sandbox",
            "durability",
            "ifAbsent",
            "ifMatch",
            "detailed",
            "followSymlinks",
            "create",
            "dryRun",
        ],
        Method::FsSearch | Method::FsFind => &[
            "sandbox",
            "literal",
            "case",
            "word",
            "before",
            "filesOnly",
            "binary",
            "filter",
            "kinds",
            "limits",
            "searchId",
        ],
        method if method.name().starts_with("fs/") => {
            &["sandbox", "detailed", "followSymlinks", "noReplace", "present"]
        }
        _ => {
            &["resumeSessionId", "sessionId", "lingerMs", "sandbox", "timeoutMs", "graceMs", "size"]
        }
    }
}

fn fitting(method: Method) -> Value {
    match method {
        Method::Initialize => json!({"clientName": "x"}),
        Method::EnvironmentInfo | Method::EnvironmentStatus | Method::ProcessList => json!({}),
        Method::SessionList => json!({}),
        Method::SessionSetLinger => json!({"lingerMs": 1}),
        Method::EnvironmentConfigRead => {
            json!({"cwd": "file:///nowhere", "configPaths": [["a"]], "requirementsPaths": []})
        }
        Method::CapabilityRootsV1 => json!({"roots": [{"id": "r", "path": "file:///nowhere"}]}),
        Method::CapabilitiesV2 => json!({"cwd": "file:///nowhere"}),
        Method::ProcessStart => json!({
            "processId": "q", "argv": [PROGRAM], "cwd": "file:///nowhere", "env": {}, "tty": false,
            "envPolicy": null, "pipeStdin": false, "arg0": null, "metadata": null,
            "shellSnapshot": null, "outputRetention": 1000, "idleTimeoutMs": 1000,
        }),
        Method::ProcessRead => {
            json!({"processId": "p", "afterSeq": 0, "maxBytes": 1, "waitMs": 0})
        }
        Method::ProcessWrite => json!({"processId": "p", "chunk": "YQ==", "writeId": "1"}),
        Method::ProcessSignal => json!({"processId": "p", "signal": "interrupt"}),
        Method::ProcessTerminate => json!({"processId": "p", "graceMs": 1}),
        Method::ProcessResize => json!({"processId": "p", "rows": 1, "cols": 1}),
        Method::ProcessCloseStdin => json!({"processId": "p"}),
        Method::HttpRequest => json!({
            "method": "GET", "url": "http://127.0.0.1:1/", "requestId": "r", "headers": [],
            "bodyBase64": null, "timeoutMs": 1000, "redirectPolicy": "follow",
            "streamResponse": false, "streamBody": false, "maxBodyBytes": 1,
        }),
        Method::HttpRequestBody => {
            json!({"requestId": "r", "seq": 1, "chunk": "YQ==", "done": true})
        }
        Method::HttpCancel => json!({"requestId": "r"}),
        Method::FsOpen => json!({"handleId": "h", "path": "file:///nowhere/a", "mode": "read"}),
        Method::FsReadBlock => json!({"handleId": "h", "offset": 0, "len": 1}),
        Method::FsWriteBlock => json!({"handleId": "h", "offset": 0, "chunk": "YQ=="}),
        Method::FsClose => json!({"handleId": "h"}),
        Method::FsWalk => json!({"path": "file:///nowhere", "options": {
            "maxDepth": 1, "maxDirectories": 1, "maxEntries": 1, "followDirectorySymlinks": false,
        }}),
        Method::FsCopy | Method::FsRename => json!({
            "sourcePath": "file:///nowhere/a", "destinationPath": "file:///nowhere/b",
            "recursive": false,
        }),
        Method::FsSymlink => json!({"path": "file:///nowhere/b", "target": "a"}),
        Method::FsSetPermissions => json!({"path": "file:///nowhere/a", "mode": 0o600}),
        Method::FsTruncate => json!({"path": "file:///nowhere/a", "size": 0}),
        Method::FsWatch => json!({"watchId": "w", "path": "file:///nowhere", "recursive": true}),
        Method::FsReadChanges => json!({"watchId": "w", "afterSeq": 0}),
        Method::FsUnwatch => json!({"watchId": "w"}),
        Method::FsSearch => {
            json!({"path": "file:///nowhere", "pattern": "o", "limits": {"timeoutMs": 1000}})
        }
        Method::FsFind => json!({"path": "file:///nowhere", "patterns": ["*"]}),
        Method::FsNextPage | Method::FsCancelSearch => json!({"searchId": "s"}),
        Method::FsEdit => {
            json!({"path": "file:///nowhere/a", "edits": [{"old": "tent", "new": ""}]})
        }
        Method::FsWriteFile | Method::FsAppend => {
            json!({"path": "file:///nowhere/a", "dataBase64": "YQ=="})
        }
        Method::FsBatch => json!({"requests": [
            {"method": "fs/getMetadata", "params": {}},
            {"method": "fs/readFile", "params": {"path": "file:///nowhere/a"}},
        ]}),
        Method::FsWatchMissing => json!({"watchId": 1, "missing": ["file:///nowhere/b"]}),
        Method::FsReadLink => json!({"path": "file:///nowhere/l"}),
        Method::FsReadDirectory => json!({"path": "file:///nowhere"}),
        Method::FsCreateDirectory => json!({"path": "file:///nowhere/b/c"}),
        Method::FsReadFile | Method::FsGetMetadata | Method::FsCanonicalize | Method::FsRemove => {
            json!({"path": "file:///nowhere/a"})
        }
    }
}

fn any_value() -> impl Strategy<Value = Value> {
    let text = prop::sample::select(vec![
        "",
        "p",
        "q",
        "ü\u{0}",
        "file:///nowhere",
        "file:///nowhere/a",
        "file:///nowhere/./d//f/",
        "FILE:///nowhere/l",
        "file:///nowhere/a%2Fb",
        "file:///nowhere/%FF%0A",
        "file://elsewhere/x",
        "file:///%00",
        "\u{10ffff}",
    ]);
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        (0..3_u64).prop_map(Value::from),
        Just(Value::from(u64::MAX)),
        text.prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 16, 4, |inner| {
        let name = prop::sample::select(vec!["", "a", "processId", "type", "rows", "inherit"]);
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((name, inner), 0..4).prop_map(|members| {
                members
                    .into_iter()
                    .map(|(name, value)| (name.to_owned(), value))
                    .collect::<Map<_, _>>()
                    .into()
            }),
        ]
    })
}
