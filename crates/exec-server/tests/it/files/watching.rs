//! `fs/watchMissing` and `fs/missingChanged`.

use std::os::unix::fs::{PermissionsExt, symlink};

use exec_server_testkit::fs_fixture::{FsFixture, kind, on_each_file_system, uri};
use exec_server_testkit::{TestClient, eventually};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use serde_json::{Value, json};

/// A change by another process.
type Deed = fn(&FsFixture);

#[tokio::test]
async fn a_missing_path_appears() {
    on_each_file_system(async |fixture| {
        let deeds: [(&str, Deed); 6] = [
            ("a file", |fixture| drop(fixture.put("d/marker", "x"))),
            ("a directory", |fixture| std::fs::create_dir(fixture.path("d/marker")).unwrap()),
            ("a dangling link", |fixture| symlink("nowhere", fixture.path("d/marker")).unwrap()),
            ("a hard link", |fixture| {
                std::fs::hard_link(fixture.put("f", ""), fixture.path("d/marker")).unwrap();
            }),
            ("something that is moved there", |fixture| {
                std::fs::rename(fixture.put("f", ""), fixture.path("d/marker")).unwrap();
            }),
            ("the other path", |fixture| drop(fixture.put("second", ""))),
        ];
        each_fires(fixture, &["d/marker", "second"], None, &deeds).await;
    })
    .await;
}

#[tokio::test]
async fn a_parent_of_a_missing_path_appears_or_disappears() {
    on_each_file_system(async |fixture| {
        let deeds: [(&str, Deed); 6] = [
            ("a missing ancestor appears", |fixture| {
                std::fs::create_dir(fixture.path("d/a")).unwrap()
            }),
            ("with all below it", |fixture| {
                std::fs::create_dir_all(fixture.path("d/a/b/c")).unwrap()
            }),
            ("a file takes its place", |fixture| drop(fixture.put("d/a", ""))),
            ("the parent is renamed", |fixture| {
                std::fs::rename(fixture.path("d"), fixture.path("e")).unwrap();
            }),
            ("the parent is removed", |fixture| {
                std::fs::remove_dir_all(fixture.path("d")).unwrap()
            }),
            ("another takes its place", |fixture| {
                std::fs::create_dir(fixture.path("other")).unwrap();
                let (from, to) = (fixture.path("other"), fixture.path("d"));
                renameat_with(CWD, from, CWD, to, RenameFlags::EXCHANGE).unwrap();
            }),
        ];
        each_fires(fixture, &["d/a/b/marker"], None, &deeds).await;
    })
    .await;
}

#[tokio::test]
async fn the_present_path_changes() {
    on_each_file_system(async |fixture| {
        let deeds: [(&str, Deed); 7] = [
            ("modified", |fixture| drop(fixture.put("d/present", "other"))),
            ("extended", |fixture| {
                let mut options = std::fs::OpenOptions::new();
                let file = options.append(true).open(fixture.path("d/present")).unwrap();
                std::io::Write::write_all(&mut &file, b"more").unwrap();
            }),
            ("chmodded", |fixture| {
                let mode = std::fs::Permissions::from_mode(0o600);
                std::fs::set_permissions(fixture.path("d/present"), mode).unwrap();
            }),
            ("removed", |fixture| std::fs::remove_file(fixture.path("d/present")).unwrap()),
            ("renamed", |fixture| {
                std::fs::rename(fixture.path("d/present"), fixture.path("d/past")).unwrap();
            }),
            ("replaced", |fixture| {
                std::fs::rename(fixture.put("f", ""), fixture.path("d/present")).unwrap();
            }),
            ("a missing path appears instead", |fixture| drop(fixture.put("marker", ""))),
        ];
        each_fires(fixture, &["marker"], Some("d/present"), &deeds).await;
    })
    .await;
}

#[tokio::test]
async fn changes_by_the_server_itself_are_reported() {
    on_each_file_system(async |fixture| {
        fresh(fixture);
        let calls = [
            ("fs/writeFile", "d/marker", json!({"dataBase64": ""})),
            ("fs/writeFile", "d/marker", json!({"dataBase64": "", "followSymlinks": false})),
            ("fs/writeFile", "d/present", json!({"dataBase64": "YQ=="})),
            ("fs/createDirectory", "d/marker/below", json!({})),
            ("fs/remove", "d/present", json!({})),
            ("fs/remove", "d", json!({})),
        ];
        for (id, (method, name, more)) in (1..).zip(calls) {
            fresh(fixture);
            watching(fixture, id, &["d/marker"], Some("d/present")).await;
            fixture.call(method, name, more).await.unwrap();
            assert_eq!(fired(&mut fixture.client).await, id, "{method} {name}");
        }
        is_quiet(&mut fixture.client).await;
    })
    .await;
}

#[tokio::test]
async fn one_notification_is_sent_and_none_for_unrelated_changes() {
    on_each_file_system(async |fixture| {
        fresh(fixture);
        std::fs::create_dir(fixture.path("present")).unwrap();
        let mut other = fixture.server.client().await;
        let params = json!({"watchId": 1, "missing": [fixture.uri("later")]});
        other.call("fs/watchMissing", params).await.unwrap();
        watching(fixture, 7, &["d/.git", "d/a/.git"], Some("present")).await;
        // Siblings of all kinds, also below what is missing, and the content of what is present.
        fixture.put("d/.gitignore", "");
        fixture.put("d/.git~", "");
        std::fs::create_dir(fixture.path("d/b")).unwrap();
        fixture.put("d/b/.git", "");
        fixture.put("d/present", "other");
        std::fs::rename(fixture.path("d/b"), fixture.path("d/c")).unwrap();
        std::fs::remove_dir_all(fixture.path("d/c")).unwrap();
        fixture.put(".git", "");
        fixture.put("present/.git", "");
        // A later change is reported to another client, so all earlier ones were processed.
        fixture.put("later", "");
        assert_eq!(fired(&mut other).await, 1);
        is_quiet(&mut fixture.client).await;
        fixture.put("d/.git", "");
        assert_eq!(fired(&mut fixture.client).await, 7);
        // The watch has ended with that.
        std::fs::remove_file(fixture.path("d/.git")).unwrap();
        std::fs::create_dir_all(fixture.path("d/a/.git")).unwrap();
        watching(fixture, 8, &["next"], None).await;
        fixture.put("next", "");
        assert_eq!(fired(&mut fixture.client).await, 8);
        is_quiet(&mut fixture.client).await;
    })
    .await;
}

#[tokio::test]
async fn only_a_higher_id_takes_the_place_of_a_watch() {
    on_each_file_system(async |fixture| {
        watching(fixture, 5, &["five"], None).await;
        for id in [5, 4, 0] {
            let refused = watch(fixture, id, &["lower"], None).await;
            assert_eq!(refused["watching"], false, "{id}");
            assert!(refused["reason"].is_string());
        }
        fixture.put("lower", "");
        fixture.put("five", "");
        assert_eq!(fired(&mut fixture.client).await, 5);
        // Ids are not reusable after the watch has ended.
        assert_eq!(watch(fixture, 5, &["missing"], None).await["watching"], false);

        watching(fixture, 6, &["six"], None).await;
        watching(fixture, 8, &["eight"], None).await;
        fixture.put("six", "");
        // A higher id whose paths are rejected still ends the watch, and is used up.
        assert_eq!(watch(fixture, 9, &["six"], None).await["watching"], false);
        fixture.put("eight", "");
        assert_eq!(watch(fixture, 9, &["nine"], None).await["watching"], false);
        watching(fixture, u64::MAX, &["last"], None).await;
        assert_eq!(watch(fixture, u64::MAX, &["missing"], None).await["watching"], false);
        fixture.put("last", "");
        assert_eq!(fired(&mut fixture.client).await, u64::MAX);
        is_quiet(&mut fixture.client).await;
    })
    .await;
}

#[tokio::test]
async fn each_connection_has_a_watch_of_its_own_which_ends_with_it() {
    on_each_file_system(async |fixture| {
        let before = inotifies(fixture);
        let mut other = fixture.server.client().await;
        // Zero is an id like any other.
        watching(fixture, 0, &["a"], None).await;
        let params = json!({"watchId": 0, "missing": [fixture.uri("b")]});
        let begun = other.call("fs/watchMissing", params).await.unwrap();
        assert_eq!(begun, json!({"watching": true}));
        assert_eq!(inotifies(fixture), before + 2);
        fixture.put("b", "");
        assert_eq!(fired(&mut other).await, 0);
        eventually("a watch that was told is gone", || inotifies(fixture) == before + 1).await;
        is_quiet(&mut fixture.client).await;

        let params = json!({"watchId": 1, "missing": [fixture.uri("c")]});
        other.call("fs/watchMissing", params).await.unwrap();
        assert_eq!(inotifies(fixture), before + 2);
        drop(other);
        eventually("a watch ends with its connection", || inotifies(fixture) == before + 1).await;

        for id in 1..20 {
            watching(fixture, id, &["a"], None).await;
        }
        eventually("watches that were replaced are gone", || inotifies(fixture) == before + 1)
            .await;
        assert_eq!(watch(fixture, 20, &["b"], None).await["watching"], false);
        eventually("so is one that had no successor", || inotifies(fixture) == before).await;
    })
    .await;
}

#[tokio::test]
async fn the_reply_comes_before_the_notification() {
    on_each_file_system(async |fixture| {
        let mut notified = 0;
        for round in 0..200u64 {
            let name = format!("marker{round}");
            let params = json!({"watchId": round, "missing": [fixture.uri(&name)]});
            let id = fixture.client.send("fs/watchMissing", params).await;
            // From before the request until after the reply.
            (0..round * 400).for_each(|_| std::hint::spin_loop());
            fixture.put(&name, "");
            let reply = fixture.client.next_json().await;
            assert_eq!(reply["id"], id, "round {round}");
            if reply["result"]["watching"] == json!(true) {
                let notification = fixture.client.next_json().await;
                assert_eq!(notification["params"], json!({"watchId": round}));
                notified += 1;
            }
        }
        assert!(notified > 0, "no round was slow enough to tell");
        is_quiet(&mut fixture.client).await;
    })
    .await;
}

#[tokio::test]
async fn unwatchable_paths_are_rejected_with_a_reason() {
    on_each_file_system(async |fixture| {
        fresh(fixture);
        symlink("nowhere", fixture.path("dangling")).unwrap();
        symlink("d", fixture.path("link")).unwrap();
        symlink("d/present", fixture.path("file link")).unwrap();
        let at = |name: &str| fixture.uri(name);
        let many = |count| (0..count).map(|n| at(&format!("m{n}"))).collect::<Vec<_>>();
        let shown = |name: &str, what: &str| format!("`{}` {what}", fixture.path(name).display());
        let missing = vec![at("missing")];
        let too_many = "there are more than 64 paths, or too many directories, to watch";
        let proc = |name: &str| format!("file:///proc/{name}");
        let foreign = "file://server/share/x".to_owned();
        let (silent, invalid) = ("not all reported".to_owned(), "is invalid on".to_owned());
        let cases = [
            (vec![], None, "there is no path to watch".to_owned()),
            (many(65), None, too_many.to_owned()),
            (vec![at("d")], None, shown("d", "exists")),
            (vec![at("missing"), at("d/present")], None, shown("d/present", "exists")),
            (vec![at("dangling")], None, shown("dangling", "is a link")),
            (vec![at("link/marker")], None, shown("link", "is a link")),
            (missing.clone(), Some(at("absent")), shown("absent", "does not exist")),
            (missing.clone(), Some(at("d/absent/x")), shown("d/absent/x", "does not exist")),
            (missing.clone(), Some(at("file link")), shown("file link", "is a link")),
            (missing.clone(), Some(at("link/present")), shown("link", "is a link")),
            (vec![proc("no-such")], None, silent.clone()),
            (missing.clone(), Some(proc("stat")), silent),
            (vec![foreign.clone()], None, invalid.clone()),
            (vec!["file:///C:/x".to_owned()], None, invalid.clone()),
            (missing, Some(foreign), invalid),
        ];
        let most = many(64);
        let mut id = 0;
        for (missing, present, reason) in cases {
            id += 1;
            let params = json!({"watchId": id, "missing": missing, "present": present});
            let refused = fixture.client.call("fs/watchMissing", params.clone()).await.unwrap();
            assert_eq!(refused["watching"], false, "{params}");
            let text = refused["reason"].as_str().unwrap();
            assert!(text.contains(&reason), "{text}\n{reason}");
        }
        let params = json!({"watchId": id + 1, "missing": most, "sandbox": null});
        let begun = fixture.client.call("fs/watchMissing", params).await.unwrap();
        assert_eq!(begun, json!({"watching": true}));
        fixture.put("m63", "");
        assert_eq!(fired(&mut fixture.client).await, id + 1);
    })
    .await;
}

#[tokio::test]
async fn params_of_another_shape_are_refused_and_leave_the_watch() {
    on_each_file_system(async |fixture| {
        watching(fixture, 1, &["marker"], None).await;
        for params in [
            json!({"missing": []}),
            json!({"watchId": 2}),
            json!({"watchId": -1, "missing": []}),
            json!({"watchId": 2.5, "missing": []}),
            json!({"watchId": "2", "missing": []}),
            json!({"watchId": 2, "missing": null}),
            json!({"watchId": 2, "missing": ["http://host/x"]}),
            json!({"watchId": 2, "missing": [], "present": "relative"}),
        ] {
            let refusal = fixture.client.call("fs/watchMissing", params.clone()).await;
            assert_eq!(kind(refusal), (-32602, "invalid_params".into()), "{params}");
        }
        fixture.put("marker", "");
        assert_eq!(fired(&mut fixture.client).await, 1);
    })
    .await;
}

/// Makes each change in a fresh directory, and expects one notification for the current watch.
async fn each_fires(
    fixture: &mut FsFixture,
    missing: &[&str],
    present: Option<&str>,
    deeds: &[(&str, Deed)],
) {
    for (id, (what, deed)) in (1..).zip(deeds) {
        fresh(fixture);
        watching(fixture, id, missing, present).await;
        deed(fixture);
        assert_eq!(fired(&mut fixture.client).await, id, "{what}");
    }
    is_quiet(&mut fixture.client).await;
}

/// Removes everything but the directory `d` and the file `present` in it.
fn fresh(fixture: &FsFixture) {
    for entry in std::fs::read_dir(fixture.root()).unwrap() {
        let path = entry.unwrap().path();
        if path.symlink_metadata().unwrap().is_dir() {
            std::fs::remove_dir_all(path).unwrap();
        } else {
            std::fs::remove_file(path).unwrap();
        }
    }
    std::fs::create_dir(fixture.path("d")).unwrap();
    fixture.put("d/present", "content");
}

async fn watch(fixture: &mut FsFixture, id: u64, missing: &[&str], present: Option<&str>) -> Value {
    let missing: Vec<_> = missing.iter().map(|name| fixture.uri(name)).collect();
    let present = present.map(|name| uri(&fixture.path(name)));
    let params = json!({"watchId": id, "missing": missing, "present": present});
    fixture.client.call("fs/watchMissing", params).await.expect("a watch is never an error")
}

async fn watching(fixture: &mut FsFixture, id: u64, missing: &[&str], present: Option<&str>) {
    assert_eq!(watch(fixture, id, missing, present).await, json!({"watching": true}), "{id}");
}

/// The watch that the next notification is of.
async fn fired(client: &mut TestClient) -> u64 {
    let notification = client.notification().await;
    assert_eq!(notification["method"], "fs/missingChanged");
    notification["params"]["watchId"].as_u64().unwrap()
}

/// Asserts that no notification arrives before the next reply.
async fn is_quiet(client: &mut TestClient) {
    client.call("environment/status", json!({})).await.unwrap();
    assert_eq!(client.pending_notifications(), 0);
}

/// How many inotify descriptors the server has open.
fn inotifies(fixture: &FsFixture) -> usize {
    let open = std::fs::read_dir(format!("/proc/{}/fd", fixture.server.serving_pid())).unwrap();
    let targets = open.flatten().filter_map(|entry| std::fs::read_link(entry.path()).ok());
    targets.filter(|target| target.to_string_lossy().contains("inotify")).count()
}
