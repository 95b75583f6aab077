//! `fs/remove`.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;

use exec_server_testkit::fs_fixture::{FsFixture, code, kind, on_each_file_system};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use serde_json::{Value, json};

use super::layout::make;
use super::{serve_as_ordinary_user, set_mode};

#[tokio::test]
async fn a_tree_is_removed_and_a_missing_path_is_accepted_by_default() {
    on_each_file_system(async |fixture| {
        let nulls = json!({"recursive": null, "force": null, "followSymlinks": null});
        for more in [json!({}), nulls] {
            make(fixture, &["tree/a/b/c", "tree/f", "tree/empty/", "kept"]);
            assert_eq!(remove(fixture, "tree", more.clone()).await.unwrap(), json!({}));
            assert_eq!(left(fixture), ["kept"]);
            for missing in ["tree", "tree/below/it"] {
                assert_eq!(remove(fixture, missing, more.clone()).await.unwrap(), json!({}));
            }
            assert_eq!(remove(fixture, "kept", more).await.unwrap(), json!({}));
            assert!(left(fixture).is_empty());
        }
    })
    .await;
}

#[tokio::test]
async fn force_accepts_only_missing_paths() {
    on_each_file_system(async |fixture| {
        make(fixture, &["f"]);
        for recursive in [false, true] {
            for missing in ["missing", "missing/below"] {
                let more = json!({"force": false, "recursive": recursive});
                assert_eq!(code(remove(fixture, missing, more).await), (-32004, "ENOENT".into()));
            }
            for force in [false, true] {
                let more = json!({"force": force, "recursive": recursive});
                assert_eq!(code(remove(fixture, "f/x", more).await), (-32603, "ENOTDIR".into()));
            }
        }
        assert_eq!(left(fixture), ["f"]);
    })
    .await;
}

#[tokio::test]
async fn a_directory_with_content_is_kept_without_recursive() {
    on_each_file_system(async |fixture| {
        make(fixture, &["full/f", "empty/", "f"]);
        for follow in [true, false] {
            let more = json!({"recursive": false, "followSymlinks": follow});
            assert_eq!(code(remove(fixture, "full", more).await), (-32603, "ENOTEMPTY".into()));
        }
        for name in ["empty", "f"] {
            assert_eq!(
                remove(fixture, name, json!({"recursive": false})).await.unwrap(),
                json!({})
            );
        }
        assert_eq!(left(fixture), ["full"]);
        assert!(fixture.path("full/f").exists());
    })
    .await;
}

#[tokio::test]
async fn links_are_unlinked_and_their_targets_stay() {
    on_each_file_system(async |fixture| {
        make(fixture, &["kept/f", "tree/sub/"]);
        for (link, target) in [
            ("to directory", "kept"),
            ("to file", "kept/f"),
            ("to nothing", "nowhere"),
            ("to itself", "to itself"),
            ("tree/in a tree", "../kept"),
            ("tree/sub/deeper", "../../kept"),
            ("tree/sub/up", "../.."),
        ] {
            symlink(target, fixture.path(link)).unwrap();
        }
        for (name, recursive) in
            [("to directory", true), ("to file", false), ("to nothing", true), ("to itself", false)]
        {
            let more = json!({"recursive": recursive, "force": false});
            assert_eq!(remove(fixture, name, more).await.unwrap(), json!({}), "{name}");
        }
        symlink("kept", fixture.path("again")).unwrap();
        assert_eq!(remove(fixture, "again", json!({"recursive": false})).await.unwrap(), json!({}));
        assert_eq!(remove(fixture, "tree", json!({})).await.unwrap(), json!({}));
        assert_eq!(left(fixture), ["kept"]);
        assert!(fixture.path("kept/f").exists());
    })
    .await;
}

#[tokio::test]
async fn a_link_on_the_way_is_followed() {
    on_each_file_system(async |fixture| {
        make(fixture, &["d/tree/x", "d/f", "d/kept"]);
        symlink("d", fixture.path("dl")).unwrap();
        for name in ["dl/tree", "dl/f"] {
            assert_eq!(remove(fixture, name, json!({"force": false})).await.unwrap(), json!({}));
        }
        assert_eq!(left(fixture), ["d", "dl"]);
        let below: Vec<_> = std::fs::read_dir(fixture.path("d")).unwrap().collect();
        assert_eq!(below.len(), 1, "{below:?}");
    })
    .await;
}

#[tokio::test]
async fn without_links_only_paths_without_links_are_removed() {
    on_each_file_system(async |fixture| {
        make(fixture, &["d/f", "d/empty/", "d/tree/x"]);
        symlink("d", fixture.path("dl")).unwrap();
        symlink("d/f", fixture.path("fl")).unwrap();
        symlink("nowhere", fixture.path("dangling")).unwrap();
        let plain = json!({"recursive": false, "followSymlinks": false});
        for name in ["fl", "dl", "dangling"] {
            let refusal = remove(fixture, name, plain.clone()).await;
            assert_eq!(kind(refusal), (-32600, "is_symlink".into()), "{name}");
        }
        for name in ["dl/f", "dl/missing", "d/f/x"] {
            let refusal = remove(fixture, name, plain.clone()).await;
            assert_eq!(code(refusal), (-32603, "ENOTDIR".into()), "{name}");
        }
        for name in ["d/f", "d/empty", "d/missing", "missing/x"] {
            assert_eq!(remove(fixture, name, plain.clone()).await.unwrap(), json!({}), "{name}");
        }
        let strict = json!({"recursive": false, "followSymlinks": false, "force": false});
        assert_eq!(code(remove(fixture, "d/f", strict).await), (-32004, "ENOENT".into()));
        assert_eq!(left(fixture), ["d", "dangling", "dl", "fl"]);
        assert!(fixture.path("d/tree/x").exists() && !fixture.path("d/empty").exists());
    })
    .await;
}

#[tokio::test]
async fn a_tree_cannot_be_removed_without_following_links() {
    on_each_file_system(async |fixture| {
        make(fixture, &["d/x", "f"]);
        // `recursive` defaults to true here as well.
        for more in
            [json!({"followSymlinks": false, "recursive": true}), json!({"followSymlinks": false})]
        {
            for name in ["d", "f", "missing"] {
                let error = remove(fixture, name, more.clone()).await.unwrap_err();
                assert_eq!(error["code"], -32603, "{name}");
                assert_eq!(error["message"], "recursive no-follow removal is unsupported");
            }
        }
        assert_eq!(left(fixture), ["d", "f"]);
    })
    .await;
}

#[tokio::test]
async fn the_root_has_no_name_to_remove() {
    on_each_file_system(async |fixture| {
        // Only with these params: a failure of the check would remove everything.
        let params = json!({"path": "file:///", "recursive": false, "followSymlinks": false});
        let refusal = fixture.client.call("fs/remove", params).await;
        assert_eq!(kind(refusal), (-32600, "no_name".into()));
    })
    .await;
}

#[tokio::test]
async fn whatever_has_a_name_can_be_removed() {
    on_each_file_system(async |fixture| {
        let odd: [&[u8]; 3] = [b"bad-\xff", b"new\nline", b"tree\xfe"];
        for at in ["", "tree/"] {
            make(fixture, &["tree/"]);
            let path = |name: &[u8]| fixture.path(at).join(OsStr::from_bytes(name));
            mknodat(CWD, path(b"pipe"), FileType::Fifo, Mode::RWXU, 0).unwrap();
            let _listener = UnixListener::bind(path(b"socket")).unwrap();
            std::fs::write(path(odd[0]), "").unwrap();
            std::fs::write(path(odd[1]), "").unwrap();
            std::fs::create_dir(path(odd[2])).unwrap();
            std::fs::write(path(odd[2]).join("in it"), "").unwrap();
            if at.is_empty() {
                for name in [&b"pipe"[..], b"socket"].iter().chain(&odd) {
                    let params = json!({"path": fixture.uri_of_bytes(name), "force": false});
                    let done = fixture.client.call("fs/remove", params).await;
                    assert_eq!(done.unwrap(), json!({}), "{name:?}");
                }
                assert_eq!(left(fixture), ["tree"]);
            }
        }
        assert_eq!(remove(fixture, "tree", json!({})).await.unwrap(), json!({}));
        assert!(left(fixture).is_empty());
    })
    .await;
}

#[tokio::test]
async fn a_deep_tree_is_removed() {
    on_each_file_system(async |fixture| {
        let deep = format!("tree{}", "/d".repeat(500));
        make(fixture, &[&format!("{deep}/f"), "kept"]);
        assert_eq!(remove(fixture, "tree", json!({"force": false})).await.unwrap(), json!({}));
        assert_eq!(left(fixture), ["kept"]);
    })
    .await;
}

#[tokio::test]
async fn a_removal_that_fails_midway_reports_its_progress() {
    on_each_file_system(async |fixture| {
        if !serve_as_ordinary_user(fixture).await {
            return;
        }
        make(fixture, &["tree/a", "tree/b", "tree/locked/f", "locked/f"]);
        set_mode(fixture, "tree", 0o777);
        set_mode(fixture, "tree/locked", 0o555);
        set_mode(fixture, "locked", 0o555);
        let halfway = remove(fixture, "tree", json!({})).await;
        let at_once = remove(fixture, "locked", json!({})).await;
        // Restore the permissions, so that the tree can be removed.
        let is_left = |name: &str| fixture.path(name).exists();
        let kept = is_left("tree/locked/f") && is_left("locked/f");
        set_mode(fixture, "tree/locked", 0o777);
        set_mode(fixture, "locked", 0o777);
        let error = halfway.unwrap_err();
        assert_eq!(error["code"], -32600);
        let place = fixture.path("tree/locked/f");
        let data = json!({"kind": "incomplete", "errno": "EACCES", "completed": 2,
            "failedPath": fixture.uri("tree/locked/f")});
        assert_eq!(error["data"], data);
        let text = format!(
            "removed 2 entries, then failed at `{}`: Permission denied (os error 13)",
            place.display()
        );
        assert_eq!(error["message"], text);
        assert!(kept && !is_left("tree/a") && !is_left("tree/b"));
        // Without progress, no count is reported.
        assert_eq!(kind(at_once), (-32600, "permission_denied".into()));
    })
    .await;
}

async fn remove(fixture: &mut FsFixture, name: &str, more: Value) -> Result<Value, Value> {
    assert!(!name.is_empty(), "the fixture directory itself stays");
    fixture.call("fs/remove", name, more).await
}

/// Names in the fixture's directory.
fn left(fixture: &FsFixture) -> Vec<String> {
    let names = std::fs::read_dir(fixture.root()).unwrap();
    let mut names: Vec<_> =
        names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}
