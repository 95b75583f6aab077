//! The attacks by `fs/*` requests: every method, and every name of the same path.

use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;

use exec_server_protocol::base64;
use exec_server_testkit::TestExecutor;
use exec_server_testkit::fs_fixture::content;

use super::fixture::{SandboxFixture, as_each_user, as_each_user_of, snapshot};
use super::*;

/// Consecutive requests about one path.
type Steps = Vec<(&'static str, Value)>;

/// Names of the directory outside; the first is its canonical name.
fn names_of_outside(fixture: &SandboxFixture) -> Vec<String> {
    let outside = fixture.outside().display().to_string();
    let server = fixture.server.serving_pid();
    let mut names = vec![
        outside.clone(),
        format!("{}/../outside", fixture.work().display()),
        format!("{}/link", fixture.work().display()),
    ];
    for root in ["self/root", "thread-self/root", "self/cwd", "1/root", "self/task/1/root"] {
        names.push(format!("/proc/{root}{outside}"));
    }
    names.push(format!("/proc/{server}/root{outside}"));
    names.push(format!("/proc/{server}/cwd{outside}"));
    names
}

/// Each sequence changes something in this directory unless it is stopped.
fn changes(dir: &str, work: &Path) -> Vec<Steps> {
    let there = |name: &str| uri(Path::new(&format!("{dir}/{name}")));
    let here = |name: &str| uri(&work.join(name));
    let data = base64::encode(b"evil");
    let mine = || ("fs/writeFile", json!({"path": here("mine"), "dataBase64": data}));
    let between = |from: String, to: String| json!({"sourcePath": from, "destinationPath": to, "recursive": false});
    vec![
        vec![("fs/writeFile", json!({"path": there("file"), "dataBase64": data}))],
        vec![("fs/writeFile", json!({"path": there("new"), "dataBase64": data}))],
        vec![("fs/append", json!({"path": there("file"), "dataBase64": data}))],
        vec![("fs/truncate", json!({"path": there("file"), "size": 1}))],
        vec![("fs/createDirectory", json!({"path": there("new/deep"), "recursive": true}))],
        vec![("fs/remove", json!({"path": there("file")}))],
        vec![("fs/remove", json!({"path": there("dir"), "recursive": true}))],
        vec![("fs/setPermissions", json!({"path": there("file"), "mode": 0o600}))],
        vec![("fs/setPermissions", json!({"path": there("dir"), "mode": 0o700}))],
        vec![("fs/symlink", json!({"path": there("new"), "target": "/etc"}))],
        vec![("fs/rename", between(there("file"), there("moved")))],
        vec![("fs/rename", between(there("file"), here("taken")))],
        vec![mine(), ("fs/rename", between(here("mine"), there("file")))],
        vec![mine(), ("fs/copy", between(here("mine"), there("new")))],
        vec![
            ("fs/open", json!({"path": there("file"), "handleId": "w", "mode": "replace"})),
            ("fs/writeBlock", json!({"handleId": "w", "offset": 0, "chunk": data})),
            ("fs/close", json!({"handleId": "w"})),
        ],
        // A link that is made inside leads no further than one that was there.
        vec![
            ("fs/symlink", json!({"path": here("made"), "target": dir, "replace": true})),
            ("fs/writeFile", json!({"path": here("made/file"), "dataBase64": data})),
        ],
    ]
}

/// Each sequence reads something from this directory unless it is stopped.
fn looks(dir: &str, work: &Path) -> Vec<Steps> {
    let there = |name: &str| uri(Path::new(&format!("{dir}/{name}")));
    let here = |name: &str| uri(&work.join(name));
    let options = json!({"maxDepth": 4, "maxDirectories": 100, "maxEntries": 100, "followDirectorySymlinks": true});
    let between = |from: String, to: String| json!({"sourcePath": from, "destinationPath": to, "recursive": true});
    vec![
        vec![("fs/readFile", json!({"path": there("file")}))],
        vec![("fs/readDirectory", json!({"path": uri(Path::new(dir))}))],
        vec![("fs/walk", json!({"path": uri(Path::new(dir)), "options": options}))],
        vec![
            ("fs/open", json!({"path": there("file"), "handleId": "r"})),
            ("fs/readBlock", json!({"handleId": "r", "offset": 0, "len": 64})),
            ("fs/close", json!({"handleId": "r"})),
        ],
        vec![
            ("fs/copy", between(there("file"), here("copy"))),
            ("fs/readFile", json!({"path": here("copy")})),
        ],
        vec![
            ("fs/copy", between(uri(Path::new(dir)), here("tree"))),
            ("fs/readDirectory", json!({"path": here("tree")})),
        ],
        vec![
            ("fs/rename", json!({"sourcePath": there("file"), "destinationPath": here("taken")})),
            ("fs/readFile", json!({"path": here("taken")})),
        ],
    ]
}

/// Sends the requests and returns the replies.
async fn take(fixture: &mut SandboxFixture, sandbox: &Value, steps: Steps) -> String {
    let mut said = String::new();
    for (method, mut params) in steps {
        if params.get("handleId").is_none() || params.get("path").is_some() {
            params["sandbox"] = sandbox.clone();
        }
        match fixture.client.call(method, params).await {
            Ok(answer) => said += &answer.to_string(),
            Err(error) => assert_ne!(error["code"], -32602, "{method}: {error}"),
        }
    }
    said
}

fn furnish(fixture: &SandboxFixture) {
    fixture.reset();
    symlink(fixture.outside(), fixture.work().join("link")).unwrap();
    fixture.give(&fixture.work().join("link"));
}

#[tokio::test]
async fn no_method_changes_the_outside_under_any_name() {
    as_each_user(async |fixture| {
        let (names, work) = (names_of_outside(fixture), fixture.work());
        let policies = [
            fixture.workspace("restricted"),
            with_entries(
                &[&work],
                "enabled",
                &[special("minimal", "read"), special("project_roots", "write")],
            ),
        ];
        // The same workers serve all of it, because nothing that they stand on is replaced.
        furnish(fixture);
        let before = snapshot(&fixture.outside());
        let count = changes(&names[0], &work).len();
        for policy in &policies {
            for (index, name) in
                (0..count).flat_map(|index| names.iter().map(move |name| (index, name)))
            {
                take(fixture, policy, changes(name, &work).swap_remove(index)).await;
                assert_eq!(snapshot(&fixture.outside()), before, "{index} by {name}");
            }
        }
        for index in 0..count {
            furnish(fixture);
            let before = snapshot(&fixture.outside());
            take(fixture, &Value::Null, changes(&names[0], &work).swap_remove(index)).await;
            assert_ne!(snapshot(&fixture.outside()), before, "{index} changes nothing when it may");
        }
    })
    .await;
}

#[tokio::test]
async fn no_method_reveals_denied_paths_under_any_name() {
    as_each_user(async |fixture| {
        let (names, work) = (names_of_outside(fixture), fixture.work());
        let write = special("project_roots", "write");
        let policies = [
            with_entries(
                &[&work],
                "restricted",
                &[special("root", "read"), write.clone(), at(&fixture.outside(), "deny")],
            ),
            with_entries(&[&work], "restricted", &[special("minimal", "read"), write]),
        ];
        // The content of its file, and the name of another one.
        let tells = |said: &str| said.contains("c2FmZQo") || said.contains("other");
        furnish(fixture);
        let count = looks(&names[0], &work).len();
        for policy in &policies {
            for (index, name) in
                (0..count).flat_map(|index| names.iter().map(move |name| (index, name)))
            {
                let said = take(fixture, policy, looks(name, &work).swap_remove(index)).await;
                assert!(!tells(&said), "{index} by {name}: {said}");
            }
        }
        for index in 0..count {
            furnish(fixture);
            let free =
                take(fixture, &Value::Null, looks(&names[0], &work).swap_remove(index)).await;
            assert!(tells(&free), "{index} tells nothing when it may: {free}");
        }
    })
    .await;
}

#[tokio::test]
async fn no_request_sees_the_server_itself() {
    const SECRET: &str = "a-secret-of-the-server";
    as_each_user_of(
        || TestExecutor::builder().env("CANARY", SECRET),
        async |fixture| {
            let server = fixture.server.serving_pid();
            let environment = |process: &str| uri(Path::new(&format!("/proc/{process}/environ")));
            let read = async |fixture: &mut SandboxFixture, process: &str, sandbox: &Value| {
                let params = json!({"path": environment(process), "sandbox": sandbox});
                let answer = fixture.client.call("fs/readFile", params).await;
                answer
                    .ok()
                    .map(|read| String::from_utf8_lossy(&content(&read["dataBase64"])).into_owned())
            };
            // A server of an ordinary user conceals its memory even from itself.
            let free = read(fixture, "self", &Value::Null).await;
            let is_seen = free.as_ref().is_some_and(|free| free.contains(SECRET));
            assert_eq!(is_seen, fixture.is_root(), "{free:?}");
            let policy = fixture.workspace("restricted");
            for process in ["self", "thread-self", "1", "2", "3"] {
                let inside = read(fixture, process, &policy).await.unwrap_or_default();
                assert!(!inside.contains(SECRET), "{process}: {inside}");
            }
            for process in [server, fixture.server.pid()] {
                // There may be another process with this number inside, but not that one.
                let inside = read(fixture, &process.to_string(), &policy).await.unwrap_or_default();
                assert!(!inside.contains(SECRET), "{inside}");
            }
            for file in ["mem", "maps", "fd", "cwd", "root", "exe"] {
                let path = uri(Path::new(&format!("/proc/{server}/{file}")));
                let looked = json!({"path": path, "sandbox": policy});
                fixture.client.call("fs/getMetadata", looked).await.expect_err(file);
            }
        },
    )
    .await;
}

#[tokio::test]
async fn pipes_sockets_and_devices_do_not_block() {
    as_each_user(async |fixture| {
        let work = fixture.work();
        let make_pipe = format!("mkfifo {}", work.join("pipe").display());
        assert_eq!(fixture.run_free(&make_pipe).await.exit_code, 0);
        let _socket = UnixListener::bind(work.join("socket")).unwrap();
        fixture.give(&work.join("socket"));
        let policy = fixture.workspace("restricted");
        let inside = ["pipe", "socket"].map(|name| work.join(name).display().to_string());
        let devices = [
            "/dev/zero",
            "/dev/random",
            "/dev/tty",
            "/dev/ptmx",
            "/dev/stdin",
            "/proc/kmsg",
            "/proc/self/mem",
        ];
        let devices = devices.map(str::to_owned);
        for path in inside.iter().chain(&devices) {
            let place = uri(Path::new(path));
            let (copy, data) = (uri(&work.join("copy")), base64::encode(b"x"));
            let steps: Steps = vec![
                ("fs/readFile", json!({"path": place})),
                ("fs/getMetadata", json!({"path": place})),
                ("fs/readDirectory", json!({"path": place})),
                ("fs/open", json!({"path": place, "handleId": "r"})),
                ("fs/readBlock", json!({"handleId": "r", "offset": 0, "len": 1})),
                ("fs/close", json!({"handleId": "r"})),
                (
                    "fs/copy",
                    json!({"sourcePath": place, "destinationPath": copy, "recursive": false}),
                ),
                ("fs/append", json!({"path": place, "dataBase64": data})),
                ("fs/truncate", json!({"path": place, "size": 0})),
                ("fs/writeFile", json!({"path": place, "dataBase64": data})),
            ];
            // Each of them is answered, or the client gives up.
            take(fixture, &policy, steps).await;
        }
    })
    .await;
}
