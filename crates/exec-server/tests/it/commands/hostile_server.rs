//! A hostile server: names that leave the destination, endless pages, text with terminal escapes.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use exec_server::protocol::base64;
use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_websockets::{Message, ServerBuilder};

use super::{cli, ran};

type Answer = dyn Fn(&str, &Value) -> Option<Value> + Send + Sync;

/// A scripted server; it stops with the test.
pub struct HostileServer {
    pub url: String,
    task: tokio::task::JoinHandle<()>,
}

impl HostileServer {
    /// Every method without an answer is unknown; `{"error": …}` is an error.
    pub async fn start(
        answer: impl Fn(&str, &Value) -> Option<Value> + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("ws://{}", listener.local_addr().unwrap());
        let answer: Arc<Answer> = Arc::new(answer);
        let task = tokio::spawn(async move {
            while let Ok((link, _)) = listener.accept().await {
                tokio::spawn(serve(link, answer.clone()));
            }
        });
        Self { url, task }
    }

    pub fn remote(&self, path: &str) -> String {
        format!("{}:{path}", self.url)
    }
}

impl Drop for HostileServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(link: tokio::net::TcpStream, answer: Arc<Answer>) {
    let (_, mut socket) = ServerBuilder::new().accept(link).await.unwrap();
    while let Some(Ok(message)) = socket.next().await {
        let Some(text) = message.as_text() else { continue };
        let asked: Value = serde_json::from_str(text).unwrap();
        let Some(id) = asked.get("id") else { continue };
        let (method, params) = (asked["method"].as_str().unwrap(), &asked["params"]);
        let result = match answer(method, params) {
            Some(result) => result,
            None if method == "initialize" => {
                json!({"sessionId": "s", "environmentInfo": environment("/home/user")})
            }
            None => json!({"error": {"code": -32601, "message": format!("no {method}")}}),
        };
        let reply = match result.get("error") {
            Some(error) => json!({"id": id, "error": error}),
            None => json!({"id": id, "result": result}),
        };
        if socket.send(Message::text(reply.to_string())).await.is_err() {
            return;
        }
    }
}

fn environment(home: &str) -> Value {
    json!({"shell": {"name": "sh", "path": "/bin/sh"}, "cwd": "file:///srv",
        "userHomeDir": format!("file://{home}"),
        "capabilities": {"fsDirectoryPaging": true, "fsDetailedMetadata": true, "fsSymlink": true,
            "fsSetPermissions": true, "fsWriteAttributes": true, "fileWriteStreaming": true,
            "fsAtomicWrite": true, "sessionDirectory": true}})
}

pub fn metadata(kind: &str, size: u64) -> Value {
    json!({"isDirectory": kind == "directory", "isFile": kind == "file", "isSymlink": kind == "symlink",
        "size": size, "createdAtMs": 0, "modifiedAtMs": 0, "kind": kind, "mode": 0o644, "uid": 0,
        "gid": 0, "nlink": 1, "inode": 1, "versionTag": "x"})
}

/// A directory entry, with or without a URI.
pub fn entry(name: &str, kind: &str, uri: Option<&str>) -> Value {
    let mut entry = json!({"fileName": name, "isDirectory": kind == "directory",
        "isFile": kind == "file", "isSymlink": kind == "symlink", "metadata": metadata(kind, 4)});
    if let Some(uri) = uri {
        entry["uri"] = json!(uri);
    }
    entry
}

/// A server whose directory `/x` has these entries; every file says `evil`, and every link leads to the parent.
async fn with_entries(entries: Value) -> HostileServer {
    HostileServer::start(move |method, params| {
        let path = params["path"].as_str().unwrap_or_default();
        match method {
            "fs/getMetadata" => {
                Some(metadata(if path.ends_with("/x") { "directory" } else { "file" }, 4))
            }
            "fs/readDirectory" if path.ends_with("/x") => Some(json!({"entries": entries})),
            "fs/readDirectory" => Some(json!({"entries": [entry("inner", "file", None)]})),
            "fs/readFile" => Some(json!({"dataBase64": base64::encode(b"evil")})),
            "fs/readLink" => Some(json!({"target": "../.."})),
            _ => None,
        }
    })
    .await
}

/// Everything below a folder, with its content.
fn tree(root: &Path) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut queue = vec![root.to_owned()];
    while let Some(directory) = queue.pop() {
        for item in std::fs::read_dir(directory).unwrap() {
            let path = item.unwrap().path();
            let name = path.strip_prefix(root).unwrap().display().to_string();
            let kind = std::fs::symlink_metadata(&path).unwrap();
            if kind.is_dir() {
                queue.push(path);
            } else if kind.is_symlink() {
                found.insert(name, "link".to_owned());
            } else {
                found.insert(name, std::fs::read_to_string(path).unwrap());
            }
        }
    }
    found
}

#[tokio::test]
async fn names_that_are_no_names_are_refused() {
    let names: &[(&str, Option<&str>)] = &[
        ("../out", None),
        ("a/../../out", None),
        ("..", None),
        (".", None),
        ("", None),
        ("/etc/out", None),
        ("a/b", None),
        ("a\0b", None),
        ("..", Some("file:///x/..")),
        ("good", Some("file:///x/..")),
        ("good", Some("file:///x/other")),
        ("../out", Some("file:///x/%2e%2e%2fout")),
        ("a/../../out", Some("file:///x/a%2f..%2f..%2fout")),
    ];
    for (name, uri) in names {
        for kind in ["file", "directory", "symlink"] {
            let entries = json!([entry("first", "file", None), entry(name, kind, *uri)]);
            let server = with_entries(entries).await;
            let folder = tempfile::tempdir().unwrap();
            let destination = folder.path().join("deep/destination");
            std::fs::create_dir_all(&destination).unwrap();
            let local = destination.to_str().unwrap();
            let refused = cli(&["cp", "-r", &server.remote("/x"), local]).await;
            assert_eq!(refused.code, 1, "{name:?} {kind}: {}", refused.err);
            assert!(refused.err.contains("broke the protocol"), "{name:?}: {}", refused.err);
            assert!(refused.err.chars().all(|letter| letter == '\n' || !letter.is_control()));
            assert_eq!(tree(folder.path()), BTreeMap::new(), "{name:?} {kind}");
        }
    }
}

#[tokio::test]
async fn names_of_one_server_are_checked_before_another_gets_them() {
    let other = exec_server_testkit::TestExecutor::start().await;
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(folder.path().join("deep/destination")).unwrap();
    for name in ["../out", "..", "a/../../../out"] {
        let server = with_entries(json!([entry(name, "file", None)])).await;
        let there = format!("{}:{}/deep/destination", other.url(), folder.path().display());
        let refused = cli(&["cp", "-r", &server.remote("/x"), &there]).await;
        assert_eq!(refused.code, 1, "{name}: {}", refused.err);
        assert!(refused.err.contains("broke the protocol"), "{name}: {}", refused.err);
    }
    assert_eq!(tree(folder.path()), BTreeMap::new());
}

#[tokio::test]
async fn a_duplicate_name_is_rejected() {
    // First a link out of the destination, then a directory of the same name to write through it.
    let entries = json!([entry("a", "symlink", None), entry("a", "directory", None)]);
    let server = with_entries(entries).await;
    let folder = tempfile::tempdir().unwrap();
    let destination = folder.path().join("destination");
    let refused = cli(&["cp", "-r", &server.remote("/x"), destination.to_str().unwrap()]).await;
    assert_eq!(refused.code, 1);
    assert!(refused.err.contains("listed twice"), "{}", refused.err);
    assert_eq!(tree(folder.path()), BTreeMap::new());
}

#[tokio::test]
async fn a_link_of_an_earlier_copy_is_no_way_out_of_the_next() {
    let folder = tempfile::tempdir().unwrap();
    let destination = folder.path().join("destination");
    let local = destination.to_str().unwrap();
    let first =
        with_entries(json!([entry("a", "symlink", None), entry("f", "symlink", None)])).await;
    assert_eq!(cli(&["cp", "-r", &first.remote("/x"), local]).await, ran(0, "", ""));
    let links = BTreeMap::from([
        ("destination/a".to_owned(), "link".to_owned()),
        ("destination/f".to_owned(), "link".to_owned()),
    ]);
    assert_eq!(tree(folder.path()), links);
    let second =
        with_entries(json!([entry("a", "directory", None), entry("f", "file", None)])).await;
    std::fs::create_dir(folder.path().join("parent")).unwrap();
    std::fs::rename(&destination, folder.path().join("parent/x")).unwrap();
    let parent = folder.path().join("parent");
    let refused = cli(&["cp", "-r", &second.remote("/x"), parent.to_str().unwrap()]).await;
    assert_eq!(refused.code, 1);
    assert!(refused.err.contains("2 could not be copied"), "{}", refused.err);
    let links = BTreeMap::from([
        ("parent/x/a".to_owned(), "link".to_owned()),
        ("parent/x/f".to_owned(), "link".to_owned()),
    ]);
    assert_eq!(tree(folder.path()), links);
    // Also where the link itself has the name that is copied.
    let named = cli(&["cp", &second.remote("/f"), parent.join("x").to_str().unwrap()]).await;
    assert_eq!(named.code, 1);
    assert!(named.err.contains("a symbolic link"), "{}", named.err);
    assert_eq!(tree(folder.path()), links);
}

#[tokio::test]
async fn a_name_chosen_by_the_server_is_never_merged_with_an_existing_entry() {
    let server = HostileServer::start(|method, params| {
        let path = params["path"].as_str().unwrap_or_default();
        match method {
            "initialize" => {
                Some(json!({"sessionId": "s", "environmentInfo": environment("/x/.ssh")}))
            }
            "fs/getMetadata" => Some(metadata("directory", 4)),
            "fs/readDirectory" if path.ends_with("/.ssh") => {
                Some(json!({"entries": [entry("authorized_keys", "file", None)]}))
            }
            "fs/readFile" => Some(json!({"dataBase64": base64::encode(b"evil")})),
            _ => None,
        }
    })
    .await;
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join(".ssh")).unwrap();
    let refused = cli(&["cp", "-r", &server.remote("~"), folder.path().to_str().unwrap()]).await;
    assert_eq!(refused.code, 1);
    assert!(refused.err.contains("its name was chosen by the source server"), "{}", refused.err);
    assert_eq!(tree(folder.path()), BTreeMap::new());
    let fresh = folder.path().join("fresh");
    let copied = cli(&["cp", "-r", &server.remote("~"), fresh.to_str().unwrap()]).await;
    assert_eq!(copied, ran(0, "", ""));
    let expected = BTreeMap::from([("fresh/authorized_keys".to_owned(), "evil".to_owned())]);
    assert_eq!(tree(folder.path()), expected);
}

#[tokio::test]
async fn pages_without_end_end() {
    let server = HostileServer::start(|method, params| {
        let page = params["cursor"].as_str().unwrap_or("0").parse::<u64>().unwrap_or(0) + 1;
        let path = params["path"].as_str().unwrap_or_default();
        let entries = match path {
            path if path.ends_with("/empty") => json!([]),
            path if path.ends_with("/same") => json!([entry("a", "file", None)]),
            _ => json!([entry(&format!("{page}{}", "n".repeat(200)), "directory", None)]),
        };
        match method {
            "fs/getMetadata" => Some(metadata("directory", 4)),
            // Directories in directories without end, but one page each.
            "fs/readDirectory" if path.contains("/deep") => Some(json!({"entries": entries})),
            "fs/readDirectory" => Some(json!({"entries": entries, "nextCursor": page.to_string()})),
            _ => None,
        }
    })
    .await;
    for (path, told) in [("/empty", "empty page"), ("/same", "listed twice")] {
        let listed = cli(&["ls", &server.remote(path)]).await;
        assert_eq!((listed.code, listed.out.as_str()), (1, ""));
        assert!(listed.err.contains(told), "{}", listed.err);
    }
    let folder = tempfile::tempdir().unwrap();
    let destination = folder.path().join("copy");
    let copied = cli(&["cp", "-r", &server.remote("/deep"), destination.to_str().unwrap()]).await;
    assert_eq!(copied.code, 1);
    assert!(copied.err.contains("longer than any file system allows"), "{}", copied.err);
}

#[tokio::test]
async fn sizes_and_times_that_are_none_break_nothing() {
    let server = HostileServer::start(|method, params| {
        let path = params["path"].as_str().unwrap_or_default();
        let mut huge = metadata("file", u64::MAX);
        huge["modifiedAtMs"] = json!(i64::MIN);
        huge["mode"] = json!(0o106_755);
        match method {
            "fs/getMetadata" if path.ends_with("/x") => Some(metadata("directory", 4)),
            "fs/getMetadata" => Some(huge),
            "fs/readDirectory" => {
                let mut small = entry("small", "file", None);
                small["metadata"]["mode"] = json!(0o104_755);
                let mut large = [entry("one", "file", None), entry("two", "file", None)];
                for entry in &mut large {
                    entry["metadata"] = huge.clone();
                }
                Some(json!({"entries": [small, large[0], large[1]]}))
            }
            "fs/open" => Some(json!({"handleId": params["handleId"]})),
            "fs/readBlock" => {
                // More than was asked for.
                Some(json!({"chunk": base64::encode(&vec![0; 1_100_000]), "eof": false}))
            }
            "fs/readFile" => Some(json!({"dataBase64": base64::encode(b"evil")})),
            "fs/close" => Some(json!({})),
            _ => None,
        }
    })
    .await;
    let folder = tempfile::tempdir().unwrap();
    let destination = folder.path().join("copy");
    let copied = cli(&["cp", "-rp", &server.remote("/x"), destination.to_str().unwrap()]).await;
    assert_eq!(copied.code, 1, "{}", copied.err);
    assert!(copied.err.contains("longer than it was asked for"), "{}", copied.err);
    assert!(copied.err.contains("setuid"), "{}", copied.err);
    assert!(copied.err.contains("2 could not be copied"), "{}", copied.err);
    let expected = BTreeMap::from([("copy/small".to_owned(), "evil".to_owned())]);
    assert_eq!(tree(folder.path()), expected);
    let mode = std::fs::metadata(destination.join("small")).unwrap();
    assert_eq!(std::os::unix::fs::PermissionsExt::mode(&mode.permissions()) & 0o7777, 0o755);
    let listed = cli(&["ls", "-l", &server.remote("/x")]).await;
    assert_eq!(listed.code, 0, "{}", listed.err);
}

#[tokio::test]
async fn text_of_a_server_does_nothing_to_a_terminal() {
    const EVIL: &str = "a\u{1b}]0;owned\u{7}\u{9b}2J\u{202e}";
    let server = HostileServer::start(|method, params| {
        let path = params["path"].as_str().unwrap_or_default();
        match method {
            "fs/getMetadata" if path.ends_with("/x") => Some(metadata("directory", 4)),
            "fs/getMetadata" => Some(json!({"error": {"code": -32603, "message": EVIL}})),
            "fs/readDirectory" => {
                let mut link = entry(EVIL, "symlink", None);
                link["metadata"]["linkTarget"] = json!(EVIL);
                Some(json!({"entries": [link]}))
            }
            "session/list" => Some(json!({"sessions": [{"sessionId": EVIL, "clientName": EVIL,
                "openedAtMs": 0, "attached": false, "sessionLingerMs": 0, "processes": [{
                    "processId": EVIL, "pid": 1, "argv": [EVIL], "cwd": "file:///", "tty": false,
                    "startedAtMs": 0, "nextSeq": 5, "exited": true, "exitCode": 1, "closed": true,
                    "signal": EVIL}]}]})),
            "environment/info" => {
                let mut info = environment("/x");
                for member in ["executorVersion", "platformOs"] {
                    info[member] = json!(EVIL);
                }
                info["sandbox"] = json!({"level": EVIL, "enforced": [EVIL], "missing": [EVIL]});
                Some(info)
            }
            "process/start" | "process/read" | "fs/open" => {
                Some(json!({"error": {"code": -32603, "message": EVIL}}))
            }
            _ => None,
        }
    })
    .await;
    let (directory, file) = (server.remote("/x"), server.remote("/file"));
    let url = server.url.as_str();
    let commands: &[&[&str]] = &[
        &["ls", &directory],
        &["ls", "-l", &directory],
        &["ls", "-o", "json", &directory],
        &["ls", &file],
        &["cat", &file],
        &["cp", &file, "-"],
        &["ps", "-a", url],
        &["ps", "-aq", url],
        &["ps", "-a", "-o", "json", url],
        &["info", url],
        &["info", "-o", "json", url],
        &["doctor", url],
        &["doctor", "--json", url],
        &["logs", url, "a"],
        &["run", url, "--", "true"],
    ];
    let is_harmful = |letter: char| letter != '\n' && (letter.is_control() || letter == '\u{202e}');
    for arguments in commands {
        let shown = cli(arguments).await;
        assert!(!(shown.out.clone() + &shown.err).contains(is_harmful), "{arguments:?}: {shown:?}");
        assert!((shown.out.clone() + &shown.err).contains("owned"), "{arguments:?}: {shown:?}");
    }
}

#[tokio::test]
async fn a_copy_between_servers_is_not_written_through_links() {
    let other = exec_server_testkit::TestExecutor::start().await;
    let folder = tempfile::tempdir().unwrap();
    let there = |name: &str| format!("{}:{}/{name}", other.url(), folder.path().display());
    let first =
        with_entries(json!([entry("a", "symlink", None), entry("f", "symlink", None)])).await;
    assert_eq!(cli(&["cp", "-r", &first.remote("/x"), &there("copy")]).await, ran(0, "", ""));
    std::fs::create_dir(folder.path().join("parent")).unwrap();
    std::fs::rename(folder.path().join("copy"), folder.path().join("parent/x")).unwrap();
    let before = tree(folder.path());
    assert_eq!(before.len(), 2);
    let second =
        with_entries(json!([entry("a", "directory", None), entry("f", "file", None)])).await;
    let refused = cli(&["cp", "-r", &second.remote("/x"), &there("parent")]).await;
    assert_eq!(refused.code, 1);
    assert!(refused.err.contains("2 could not be copied"), "{}", refused.err);
    let named = cli(&["cp", &second.remote("/f"), &there("parent/x")]).await;
    assert_eq!(named.code, 1);
    assert!(named.err.contains("symbolic link"), "{}", named.err);
    assert_eq!(tree(folder.path()), before);
}
