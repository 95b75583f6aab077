//! `fs/search` and `fs/find`: what is found, in pages, within limits, and how a search ends early.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use exec_server_testkit::fs_fixture::{FsFixture, kind};
use exec_server_testkit::{TestClient, eventually};
use serde_json::{Value, json};

use super::{put_fifo, put_link, refused};

/// A small project.
async fn project() -> FsFixture {
    let desk = FsFixture::new().await;
    for directory in ["src/deep", ".git", "target", "other"] {
        std::fs::create_dir_all(desk.path(directory)).unwrap();
    }
    desk.put("src/main.rs", "fn main() {\n    let needle = 1;\n    // Needles\n}\n");
    desk.put("src/deep/lib.py", "needle\r\n");
    desk.put("target/out", "needle\n");
    desk.put(".hidden", "needle\n");
    desk.put(".gitignore", "target/\n");
    desk.put("binary", b"needle\n\0");
    desk.put("other/needle.txt", "nothing\n");
    desk
}

async fn search(desk: &mut FsFixture, pattern: &str, more: Value) -> Result<Value, Value> {
    let mut params = json!({"pattern": pattern});
    params.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    desk.call("fs/search", "", params).await
}

/// The matches as `name:line`, sorted.
fn places(desk: &FsFixture, page: &Value) -> Vec<String> {
    let place = |found: &Value| format!("{}:{}", name(desk, &found["path"]), found["line"]);
    let mut places: Vec<String> = page["matches"].as_array().unwrap().iter().map(place).collect();
    places.sort();
    places
}

fn names(desk: &FsFixture, paths: &Value) -> Vec<String> {
    let path = |entry: &Value| name(desk, entry.get("path").unwrap_or(entry));
    let mut names: Vec<String> = paths.as_array().unwrap().iter().map(path).collect();
    names.sort();
    names
}

fn name(desk: &FsFixture, path: &Value) -> String {
    let root = format!("{}/", desk.uri("").trim_end_matches('/'));
    path.as_str().unwrap().strip_prefix(&root).expect("it is below the root").to_owned()
}

#[tokio::test]
async fn lines_are_found_with_their_place_and_context() {
    let desk = &mut project().await;
    let page = search(desk, "needle", json!({})).await.unwrap();
    assert_eq!(places(desk, &page), ["src/deep/lib.py:1", "src/main.rs:2"]);
    assert_eq!((&page["done"], &page["incomplete"]), (&json!(true), &Value::Null));
    assert_eq!((&page["binaryFiles"], &page["visited"]), (&json!(1), &json!(4)));
    let context = json!({"before": 1, "after": 1, "filter": {"types": ["rust"]}});
    let page = search(desk, "n(ee)dle\\b", context).await.unwrap();
    let found = &page["matches"][0];
    assert_eq!(found["text"], "    let needle = 1;");
    assert_eq!((&found["offset"], &found["ranges"]), (&json!(12), &json!([[8, 14]])));
    assert_eq!(found["before"], json!(["fn main() {"]));
    assert_eq!(found["after"], json!(["    // Needles"]));
    for (pattern, more, expected) in [
        ("needles", json!({"case": "insensitive"}), vec!["src/main.rs:3"]),
        ("needles", json!({"case": "smart"}), vec!["src/main.rs:3"]),
        ("Needle", json!({"word": true}), vec![]),
        ("main(", json!({"literal": true}), vec!["src/main.rs:1"]),
        ("needle", json!({"filter": {"globs": ["*.py"]}}), vec!["src/deep/lib.py:1"]),
        ("needle", json!({"filter": {"globs": ["!*.py"]}}), vec!["src/main.rs:2"]),
        ("needle", json!({"filter": {"maxDepth": 2}}), vec!["src/main.rs:2"]),
        ("needle", json!({"filter": {"maxFileBytes": 8}}), vec!["src/deep/lib.py:1"]),
        ("needle", json!({"binary": "text", "filter": {"maxDepth": 1}}), vec!["binary:1"]),
        (
            "^needle$",
            json!({"filter": {"hidden": true, "ignore": false}}),
            vec![".hidden:1", "target/out:1"],
        ),
    ] {
        let page = search(desk, pattern, more.clone()).await.unwrap();
        assert_eq!(places(desk, &page), expected, "{pattern} {more}");
    }
    let page = search(desk, "needle", json!({"filesOnly": true})).await.unwrap();
    assert_eq!(names(desk, &page["files"]), ["src/deep/lib.py", "src/main.rs"]);
    let page = search(desk, "needle", json!({"binary": "report"})).await.unwrap();
    assert_eq!(names(desk, &page["binaryMatches"]), ["binary"]);
    // One file, also by a link to it.
    put_link(desk, "link", "target/out");
    for file in ["target/out", "link"] {
        let page = desk.call("fs/search", file, json!({"pattern": "needle"})).await.unwrap();
        assert_eq!(page["matches"][0]["line"], 1, "{page}");
    }
}

#[tokio::test]
async fn names_are_found_by_globs() {
    let desk = &mut project().await;
    for (more, expected) in [
        (json!({"patterns": ["*.rs"]}), vec!["src/main.rs"]),
        (json!({"patterns": ["src/*"]}), vec!["src/deep", "src/main.rs"]),
        (
            json!({"patterns": ["src/**/*.{py,rs}"], "kinds": ["file"]}),
            vec!["src/deep/lib.py", "src/main.rs"],
        ),
        (json!({"patterns": ["NEEDLE.*"], "case": "insensitive"}), vec!["other/needle.txt"]),
        (json!({"kinds": ["directory"]}), vec!["other", "src", "src/deep"]),
        (
            json!({"patterns": ["out", ".hidden"], "filter": {"hidden": true, "ignore": false}}),
            vec![".hidden", "target/out"],
        ),
        (json!({"patterns": ["*"], "filter": {"maxDepth": 1}}), vec!["binary", "other", "src"]),
    ] {
        let page = desk.call("fs/find", "", more.clone()).await.unwrap();
        assert_eq!(names(desk, &page["entries"]), expected, "{more}");
        assert_eq!(page["done"], true);
    }
    let more = json!({"patterns": ["lib.py"], "detailed": true});
    let page = desk.call("fs/find", "", more).await.unwrap();
    assert_eq!(
        (&page["entries"][0]["kind"], &page["entries"][0]["size"]),
        (&json!("file"), &json!(8))
    );
    assert!(page["entries"][0]["modifiedAtMs"].as_i64().unwrap() > 0);
    refused(desk.call("fs/find", "binary", json!({})).await, -32603, "ENOTDIR");
    refused(desk.call("fs/find", "missing", json!({})).await, -32004, "ENOENT");
}

#[tokio::test]
async fn links_pipes_and_odd_names_do_no_harm() {
    let desk = &mut project().await;
    let outside = tempfile::tempdir().unwrap();
    std::fs::write(outside.path().join("f"), "needle\n").unwrap();
    put_link(desk, "out", outside.path());
    put_link(desk, "out_file", outside.path().join("f"));
    put_link(desk, "src/loop", "..");
    put_fifo(desk, "fifo");
    let odd = desk.root().join(OsStr::from_bytes(b"odd\xff"));
    std::fs::write(&odd, b"needle \xff\n").unwrap();
    let page = search(desk, "needle", json!({"literal": true})).await.unwrap();
    assert_eq!(places(desk, &page), ["odd%FF:1", "src/deep/lib.py:1", "src/main.rs:2"]);
    let found = page["matches"].as_array().unwrap();
    let found = found.iter().find(|found| found["textBase64"].is_string()).expect("not UTF-8");
    assert_eq!(
        (&found["text"], &found["textBase64"]),
        (&json!("needle \u{fffd}"), &json!("bmVlZGxlIP8="))
    );
    let page = desk.call("fs/find", "", json!({"kinds": ["symlink", "other"]})).await.unwrap();
    assert_eq!(names(desk, &page["entries"]), ["fifo", "out", "out_file", "src/loop"]);
    for path in ["fifo", "/dev/null"] {
        let searched = desk.call("fs/search", path, json!({"pattern": "needle"})).await;
        assert_eq!(kind(searched), (-32600, "not_a_file".to_owned()), "{path}");
    }
}

#[tokio::test]
async fn files_that_vanish_or_change_during_a_search_are_no_errors() {
    const FILES: usize = 201;
    let desk = &mut FsFixture::new().await;
    desk.put("kept", "needle\n");
    std::fs::create_dir(desk.path("d")).unwrap();
    let is_over = Arc::new(AtomicBool::new(false));
    let churning = std::thread::spawn({
        let (is_over, directory) = (is_over.clone(), desk.path("d"));
        move || {
            for number in (0_usize..).take_while(|_| !is_over.load(Ordering::Relaxed)) {
                // Each name becomes another kind of entry in turn.
                let path = directory.join((number % FILES).to_string());
                let _ = std::fs::remove_file(&path);
                let _ = std::fs::remove_dir(&path);
                match number % 4 {
                    0 => std::fs::write(&path, "nothing\n".repeat(number % 1000 * 20)).unwrap(),
                    1 => std::os::unix::fs::symlink("../kept", &path).unwrap(),
                    2 => std::fs::create_dir(&path).unwrap(),
                    _ => {}
                }
            }
        }
    });
    let mut pages = Vec::new();
    for _ in 0..50 {
        pages.push(search(desk, "needle", json!({})).await);
    }
    is_over.store(true, Ordering::Relaxed);
    churning.join().unwrap();
    for page in pages {
        let page = page.unwrap();
        assert_eq!(places(desk, &page), ["kept:1"]);
        assert_eq!((&page["errors"], &page["incomplete"]), (&Value::Null, &Value::Null), "{page}");
    }
}

#[tokio::test]
async fn long_lines_are_cut_and_longer_ones_reported() {
    let desk = &mut FsFixture::new().await;
    desk.put("long", format!("{}needle{}\n", "x".repeat(10_000), "y".repeat(10_000)));
    desk.put("longer", format!("needle\n{}", "z".repeat(9 << 20)));
    let page = search(desk, "needle", json!({"filter": {"globs": ["long"]}})).await.unwrap();
    let found = &page["matches"][0];
    assert_eq!(found["ranges"], json!([[10_000, 10_006]]));
    assert_eq!(found["text"].as_str().unwrap().len(), 2048);
    assert_eq!((&found["cutBefore"], &found["cutAfter"]), (&json!(9744), &json!(8214)));
    let page = search(desk, "nothing", json!({})).await.unwrap();
    assert_eq!(
        (&page["errorCount"], names(desk, &page["errors"])),
        (&json!(1), vec!["longer".to_owned()])
    );
    assert!(page["errors"][0]["message"].as_str().unwrap().contains("longer than"), "{page}");
}

#[tokio::test]
async fn pages_follow_each_other_and_limits_are_named() {
    let desk = &mut FsFixture::new().await;
    for number in 0..50 {
        desk.put(&format!("f{number}"), "match\n".repeat(100));
    }
    let more = json!({"searchId": "s", "limits": {"pageSize": 700}});
    let mut page = search(desk, "match", more.clone()).await.unwrap();
    refused(search(desk, "match", more).await, -32600, "search_exists");
    let mut all = places(desk, &page);
    while page["done"] == false {
        page = desk.client.call("fs/nextPage", json!({"searchId": "s"})).await.unwrap();
        assert!(page["matches"].as_array().unwrap().len() <= 700);
        all.extend(places(desk, &page));
    }
    all.sort();
    all.dedup();
    assert_eq!((all.len(), &page["incomplete"]), (5000, &Value::Null));
    let over = desk.client.call("fs/nextPage", json!({"searchId": "s"})).await;
    assert_eq!(kind(over), (-32004, "unknown_search".to_owned()));
    for (limits, matches, reason) in [
        (json!({}), 1000, "maxMatches"),
        (json!({"maxMatches": 7}), 7, "maxMatches"),
        (json!({"maxMatches": 2000}), 2000, "maxMatches"),
        (json!({"maxBytes": 0}), 0, "maxBytes"),
        (json!({"timeoutMs": 0}), 0, "timeout"),
    ] {
        let page = search(desk, "match", json!({ "limits": limits })).await.unwrap();
        assert_eq!(page["matches"].as_array().unwrap().len(), matches, "{limits}");
        assert_eq!(
            (&page["done"], &page["incomplete"]),
            (&json!(true), &json!(reason)),
            "{limits}"
        );
    }
}

#[tokio::test]
async fn patterns_that_cannot_be_used_are_refused() {
    let desk = &mut FsFixture::new().await;
    desk.put("f", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa!\n");
    for (pattern, more) in [
        ("(", json!({})),
        ("((a{1000}){1000}){1000}", json!({})),
        ("a", json!({"filter": {"globs": ["[a"]}})),
        ("a", json!({"filter": {"types": ["nosuchtype"]}})),
    ] {
        refused(search(desk, pattern, more).await, -32602, "invalid_pattern");
    }
    for patterns in [json!(["../x"]), json!(["/etc"]), json!(["{a"])] {
        let params = json!({ "patterns": patterns });
        refused(desk.call("fs/find", "", params).await, -32602, "invalid_pattern");
    }
    refused(search(desk, &"a".repeat(70_000), json!({})).await, -32602, "invalid_params");
    refused(search(desk, "a", json!({"before": 101})).await, -32602, "invalid_params");
    refused(search(desk, "a", json!({"limits": {"pageSize": 0}})).await, -32602, "invalid_params");
    refused(search(desk, "a", json!({"searchId": "x".repeat(65)})).await, -32602, "invalid_params");
    // Every pattern takes linear time.
    let page = search(desk, "^(a+)+$", json!({})).await.unwrap();
    assert_eq!((&page["matches"], &page["done"]), (&json!([]), &json!(true)));
}

/// The threads of the server that search.
fn searching(desk: &FsFixture) -> usize {
    let tasks = format!("/proc/{}/task", desk.server.serving_pid());
    let tasks = std::fs::read_dir(tasks).expect("the server runs").flatten();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
    names.filter(|name| name.trim() == "search").count()
}

async fn open_search(client: &mut TestClient, desk: &FsFixture, id: &str) -> Value {
    let params =
        json!({"path": desk.uri(""), "pattern": "x", "searchId": id, "limits": {"pageSize": 1}});
    client.call("fs/search", params).await.unwrap()
}

#[tokio::test]
async fn a_search_ends_when_it_is_cancelled_and_with_its_connection() {
    let desk = &mut FsFixture::new().await;
    desk.put("f", "x\n".repeat(3_000_000));
    let mut client = desk.server.client().await;
    assert_eq!(open_search(&mut client, desk, "a").await["done"], false);
    assert!(searching(desk) > 0);
    let cancelled = client.call("fs/cancelSearch", json!({"searchId": "a"})).await.unwrap();
    assert_eq!(cancelled, json!({"cancelled": true}));
    eventually("the thread ends", || searching(desk) == 0).await;
    let again = client.call("fs/cancelSearch", json!({"searchId": "a"})).await.unwrap();
    assert_eq!(again, json!({"cancelled": false}));
    for number in 0..8 {
        open_search(&mut client, desk, &number.to_string()).await;
    }
    let params = json!({"path": desk.uri(""), "pattern": "x"});
    assert_eq!(kind(client.call("fs/search", params).await).1, "too_many_searches");
    drop(client);
    eventually("the threads end", || searching(desk) == 0).await;
}
