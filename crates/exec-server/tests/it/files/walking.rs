//! `fs/walk`.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;

use exec_server_testkit::fs_fixture::{FsFixture, code, content, kind, on_each_file_system};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use serde_json::{Value, json};

use super::layout::make;
use super::{serve_as_ordinary_user, set_mode};

#[tokio::test]
async fn a_tree_is_listed_level_by_level_and_by_the_bytes_of_the_names() {
    on_each_file_system(async |fixture| {
        make(fixture, &["b/z/deep/", "b/a", "a/x", "B/", ".hidden", "a.txt", "ä", "a b"]);
        let lines = walk(fixture, "", json!({})).await;
        let top = ["f .hidden", "d B", "d a", "f a b", "f a.txt", "d b", "f ä"];
        let below = ["f a/x", "f b/a", "d b/z", "d b/z/deep"];
        assert_eq!(lines, [&top[..], &below[..]].concat());
    })
    .await;
}

#[tokio::test]
async fn the_answer_has_the_members_that_clients_know() {
    on_each_file_system(async |fixture| {
        make(fixture, &["a b/ü"]);
        let answer = ask(fixture, "", json!({})).await.unwrap();
        let root = fixture.uri("");
        let root = root.trim_end_matches('/');
        let expected = json!({
            "entries": [
                {"path": format!("{root}/a%20b"), "kind": "directory"},
                {"path": format!("{root}/a%20b/%C3%BC"), "kind": "file"},
            ],
            "errors": [],
            "truncated": false,
        });
        assert_eq!(answer, expected);
    })
    .await;
}

#[tokio::test]
async fn limits_are_checked_before_the_root() {
    on_each_file_system(async |fixture| {
        let zero = "filesystem walk limits must be greater than zero";
        let exceeded =
            "filesystem walk limits exceed maximums: depth=64, directories=10000, entries=50000";
        for (more, text) in [
            (json!({"maxDirectories": 0}), zero),
            (json!({"maxEntries": 0}), zero),
            (json!({"maxEntries": 0, "maxDepth": 65}), zero),
            (json!({"maxDepth": 65}), exceeded),
            (json!({"maxDirectories": 10_001}), exceeded),
            (json!({"maxEntries": 50_001}), exceeded),
            (json!({"maxEntries": u64::MAX}), exceeded),
        ] {
            let error = ask(fixture, "missing", more).await.unwrap_err();
            assert_eq!((&error["code"], &error["message"]), (&json!(-32600), &json!(text)));
        }
        for name in ["maxDepth", "maxDirectories", "maxEntries", "followDirectorySymlinks"] {
            let mut options = options(json!({}));
            options.as_object_mut().unwrap().remove(name);
            let refusal = fixture.call("fs/walk", "missing", json!({"options": options})).await;
            assert_eq!(kind(refusal), (-32602, "invalid_params".to_owned()), "{name}");
        }
        let refusal = fixture.call("fs/walk", "missing", json!({})).await;
        assert_eq!(kind(refusal), (-32602, "invalid_params".to_owned()));
        make(fixture, &["f"]);
        let most = json!({"maxDepth": 64, "maxDirectories": 10_000, "maxEntries": 50_000, "x": 1});
        assert_eq!(walk(fixture, "", most).await, ["f f"]);
    })
    .await;
}

#[tokio::test]
async fn depth_ends_a_walk_without_cutting_it_short() {
    on_each_file_system(async |fixture| {
        make(fixture, &["a/b/c/d", "f"]);
        assert_eq!(walk(fixture, "", json!({"maxDepth": 0})).await, ["d a", "f f"]);
        let one = walk(fixture, "", json!({"maxDepth": 1, "pruneHiddenDirectories": false})).await;
        assert_eq!(one, ["d a", "f f", "d a/b"]);
        let all = ["d a", "f f", "d a/b", "d a/b/c", "f a/b/c/d"];
        assert_eq!(walk(fixture, "", json!({"maxDepth": 3})).await, all);
    })
    .await;
}

#[tokio::test]
async fn directories_beyond_the_limit_are_listed_and_not_entered() {
    on_each_file_system(async |fixture| {
        make(fixture, &["a/b/x", "c/y", "e"]);
        let top = ["d a", "d c", "f e"];
        for (limit, below) in [
            (1, &["truncated"][..]),
            (2, &["d a/b", "truncated"]),
            (3, &["d a/b", "f c/y", "truncated"]),
            (4, &["d a/b", "f c/y", "f a/b/x"]),
        ] {
            let lines = walk(fixture, "", json!({"maxDirectories": limit})).await;
            assert_eq!(lines, [&top[..], below].concat(), "{limit}");
        }
    })
    .await;
}

#[tokio::test]
async fn every_name_that_is_looked_at_counts_also_if_it_is_not_listed() {
    on_each_file_system(async |fixture| {
        make(fixture, &["c", "d/e"]);
        mknodat(CWD, fixture.path("a"), FileType::Fifo, Mode::RWXU, 0).unwrap();
        symlink("nowhere", fixture.path("b")).unwrap();
        for (limit, expected) in [
            (1, &["truncated"][..]),
            (3, &["f c", "truncated"]),
            (4, &["f c", "d d", "truncated"]),
            (5, &["f c", "d d", "f d/e"]),
        ] {
            assert_eq!(walk(fixture, "", json!({"maxEntries": limit})).await, expected, "{limit}");
        }
    })
    .await;
}

#[tokio::test]
async fn an_answer_stays_within_its_bytes() {
    on_each_file_system(async |fixture| {
        make(fixture, &["d/"]);
        let one = fixture.put("one", "");
        // Each of these bytes takes three in a URI.
        for number in 0..6000 {
            let name = [format!("{number:04}").as_bytes(), &[0xff; 250]].concat();
            std::fs::hard_link(&one, fixture.path("d").join(OsStr::from_bytes(&name))).unwrap();
        }
        let answer = ask(fixture, "d", json!({})).await.unwrap();
        assert_eq!(answer["truncated"], true);
        let entries = answer["entries"].as_array().unwrap();
        let cost = |entry: &Value| entry["path"].as_str().unwrap().len() + 64;
        let total: usize = entries.iter().map(cost).sum();
        assert!(total <= 4_194_304 && total + cost(&entries[0]) > 4_194_304, "{total}");
    })
    .await;
}

#[tokio::test]
async fn a_root_that_cannot_be_entered_is_empty_and_a_missing_one_is_an_error() {
    on_each_file_system(async |fixture| {
        make(fixture, &["d/x", "f"]);
        for (link, target) in [("l", "d"), ("lf", "f"), ("dangling", "nowhere"), ("loop", "loop")] {
            symlink(target, fixture.path(link)).unwrap();
        }
        let follow = json!({"followDirectorySymlinks": true});
        let nothing: [&str; 0] = [];
        for (name, more) in [("f", &json!({})), ("f", &follow), ("lf", &follow), ("l", &json!({}))]
        {
            assert_eq!(walk(fixture, name, more.clone()).await, nothing, "{name} {more}");
        }
        // The path keeps the name that was asked for.
        assert_eq!(walk(fixture, "l", follow.clone()).await, ["f l/x"]);
        for more in [json!({}), follow] {
            for (name, expected) in [
                ("missing", (-32004, "ENOENT")),
                ("dangling", (-32004, "ENOENT")),
                ("loop", (-32603, "ELOOP")),
                ("f/x", (-32603, "ENOTDIR")),
            ] {
                let refusal = code(ask(fixture, name, more.clone()).await);
                assert_eq!(refusal, (expected.0, expected.1.to_owned()), "{name}");
            }
        }
    })
    .await;
}

#[tokio::test]
async fn only_links_to_directories_are_followed_and_only_on_request() {
    on_each_file_system(async |fixture| {
        make(fixture, &["tree/f", "other/x"]);
        for (link, target) in [("to dir", "../other"), ("to file", "f"), ("to nothing", "nowhere")]
        {
            symlink(target, fixture.path("tree").join(link)).unwrap();
        }
        mknodat(CWD, fixture.path("tree/pipe"), FileType::Fifo, Mode::RWXU, 0).unwrap();
        assert_eq!(walk(fixture, "tree", json!({})).await, ["f tree/f"]);
        let followed = walk(fixture, "tree", json!({"followDirectorySymlinks": true})).await;
        assert_eq!(followed, ["f tree/f", "d tree/to dir", "f tree/to dir/x"]);
    })
    .await;
}

#[tokio::test]
async fn a_directory_with_several_names_is_entered_once_and_cycles_end() {
    on_each_file_system(async |fixture| {
        make(fixture, &["real/x", "real/sub/y"]);
        for (link, target) in
            [("a", "real"), ("z", "real/sub"), ("real/up", ".."), ("real/sub/self", ".")]
        {
            symlink(target, fixture.path(link)).unwrap();
        }
        let lines = walk(fixture, "", json!({"followDirectorySymlinks": true})).await;
        // The real directory is listed with its content although a link comes first, and `sub` appears under its nearer
        // name.
        let expected = ["d a", "d real", "d z", "d real/sub", "d real/up", "f real/x"];
        assert_eq!(lines, [&expected[..], &["d z/self", "f z/y"]].concat());
        let plain = ["d real", "d real/sub", "f real/x", "f real/sub/y"];
        assert_eq!(walk(fixture, "", json!({})).await, plain);
    })
    .await;
}

#[tokio::test]
async fn pruned_directories_are_listed_and_leave_their_content_to_other_names() {
    on_each_file_system(async |fixture| {
        make(fixture, &[".git/config", ".env", "src/.cache/x", "src/.keep"]);
        symlink(".git", fixture.path("z")).unwrap();
        let prune = json!({"pruneHiddenDirectories": true});
        let expected = ["f .env", "d .git", "d src", "d src/.cache", "f src/.keep"];
        assert_eq!(walk(fixture, "", prune).await, expected);
        let both = json!({"pruneHiddenDirectories": true, "followDirectorySymlinks": true});
        let expected =
            ["f .env", "d .git", "d src", "d z", "d src/.cache", "f src/.keep", "f z/config"];
        assert_eq!(walk(fixture, "", both.clone()).await, expected);
        // The root is never pruned.
        assert_eq!(walk(fixture, ".git", both).await, ["f .git/config"]);
    })
    .await;
}

#[tokio::test]
async fn unreadable_entries_are_reported_beside_the_rest() {
    on_each_file_system(async |fixture| {
        if !serve_as_ordinary_user(fixture).await {
            return;
        }
        make(fixture, &["a/x", "locked/y", "z/x"]);
        set_mode(fixture, "locked", 0o000);
        let expected = ["d a", "d locked", "d z", "f a/x", "f z/x"];
        let error = "! locked Permission denied (os error 13)";
        let lines = walk(fixture, "", json!({})).await;
        let root = walk(fixture, "locked", json!({})).await;
        // Restore the permissions, so that the tree can be removed.
        set_mode(fixture, "locked", 0o700);
        assert_eq!(lines, [&expected[..], &[error]].concat());
        assert_eq!(root, [error]);
    })
    .await;
}

#[tokio::test]
async fn names_that_are_not_utf8_have_a_usable_uri() {
    on_each_file_system(async |fixture| {
        let directory = fixture.root().join(OsStr::from_bytes(b"d\xff"));
        std::fs::create_dir(&directory).unwrap();
        std::fs::write(directory.join(OsStr::from_bytes(b"f\xfe")), "inside").unwrap();
        let answer = ask(fixture, "", json!({})).await.unwrap();
        assert_eq!(answer["errors"], json!([]));
        assert_eq!(answer["entries"][0]["path"], fixture.uri_of_bytes(b"d\xff"));
        assert_eq!(answer["entries"][1]["path"], fixture.uri_of_bytes(b"d\xff/f\xfe"));
        let file = json!({"path": answer["entries"][1]["path"]});
        let read = fixture.client.call("fs/readFile", file).await.unwrap();
        assert_eq!(content(&read["dataBase64"]), b"inside");
    })
    .await;
}

fn options(more: Value) -> Value {
    let mut options = json!({
        "maxDepth": 8, "maxDirectories": 100, "maxEntries": 10_000,
        "followDirectorySymlinks": false,
    });
    options.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    options
}

async fn ask(fixture: &mut FsFixture, name: &str, more: Value) -> Result<Value, Value> {
    fixture.call("fs/walk", name, json!({"options": options(more)})).await
}

/// One line for each entry of the reply, with paths relative to the fixture.
async fn walk(fixture: &mut FsFixture, name: &str, more: Value) -> Vec<String> {
    let answer = ask(fixture, name, more).await.unwrap();
    let root = fixture.uri("");
    let path = |item: &Value| {
        let uri = item["path"].as_str().unwrap();
        let below = uri.strip_prefix(root.trim_end_matches('/')).expect("all is below the root");
        below.trim_start_matches('/').replace("%20", " ").replace("%C3%A4", "ä")
    };
    let mut lines = Vec::new();
    for entry in answer["entries"].as_array().unwrap() {
        lines.push(format!("{} {}", &entry["kind"].as_str().unwrap()[..1], path(entry)));
    }
    for error in answer["errors"].as_array().unwrap() {
        lines.push(format!("! {} {}", path(error), error["message"].as_str().unwrap()));
    }
    lines.extend(answer["truncated"].as_bool().unwrap().then(|| "truncated".to_owned()));
    lines
}
