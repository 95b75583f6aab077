//! `fs/watchMissing` and `fs/missingChanged`.

use std::os::unix::fs::{PermissionsExt, symlink};

use exec_server_testkit::fs_fixture::{FsFixture, kind, on_each_file_system, uri};
use exec_server_testkit::{TestClient, eventually};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use serde_json::{Value, json};

/// A change that another process makes to the desk.
type Deed = fn(&FsFixture);

#[tokio::test]
async fn a_missing_path_appears() {
    on_each_file_system(async |desk| {
        let deeds: [(&str, Deed); 6] = [
            ("a file", |desk| drop(desk.put("d/marker", "x"))),
            ("a directory", |desk| std::fs::create_dir(desk.path("d/marker")).unwrap()),
            ("a dangling link", |desk| symlink("nowhere", desk.path("d/marker")).unwrap()),
            ("a hard link", |desk| {
                std::fs::hard_link(desk.put("f", ""), desk.path("d/marker")).unwrap();
            }),
            ("something that is moved there", |desk| {
                std::fs::rename(desk.put("f", ""), desk.path("d/marker")).unwrap();
            }),
            ("the other path", |desk| drop(desk.put("second", ""))),
        ];
        each_fires(desk, &["d/marker", "second"], None, &deeds).await;
    })
    .await;
}

#[tokio::test]
async fn what_leads_to_a_missing_path_comes_or_goes() {
    on_each_file_system(async |desk| {
        let deeds: [(&str, Deed); 6] = [
            ("a missing ancestor appears", |desk| std::fs::create_dir(desk.path("d/a")).unwrap()),
            ("with all below it", |desk| std::fs::create_dir_all(desk.path("d/a/b/c")).unwrap()),
            ("a file takes its place", |desk| drop(desk.put("d/a", ""))),
            ("the parent is renamed", |desk| {
                std::fs::rename(desk.path("d"), desk.path("e")).unwrap();
            }),
            ("the parent is removed", |desk| std::fs::remove_dir_all(desk.path("d")).unwrap()),
            ("another takes its place", |desk| {
                std::fs::create_dir(desk.path("other")).unwrap();
                let (from, to) = (desk.path("other"), desk.path("d"));
                renameat_with(CWD, from, CWD, to, RenameFlags::EXCHANGE).unwrap();
            }),
        ];
        each_fires(desk, &["d/a/b/marker"], None, &deeds).await;
    })
    .await;
}

#[tokio::test]
async fn the_present_path_changes() {
    on_each_file_system(async |desk| {
        let deeds: [(&str, Deed); 7] = [
            ("modified", |desk| drop(desk.put("d/present", "other"))),
            ("extended", |desk| {
                let mut options = std::fs::OpenOptions::new();
                let file = options.append(true).open(desk.path("d/present")).unwrap();
                std::io::Write::write_all(&mut &file, b"more").unwrap();
            }),
            ("chmodded", |desk| {
                let mode = std::fs::Permissions::from_mode(0o600);
                std::fs::set_permissions(desk.path("d/present"), mode).unwrap();
            }),
            ("removed", |desk| std::fs::remove_file(desk.path("d/present")).unwrap()),
            ("renamed", |desk| {
                std::fs::rename(desk.path("d/present"), desk.path("d/past")).unwrap();
            }),
            ("replaced", |desk| {
                std::fs::rename(desk.put("f", ""), desk.path("d/present")).unwrap();
            }),
            ("a missing path appears instead", |desk| drop(desk.put("marker", ""))),
        ];
        each_fires(desk, &["marker"], Some("d/present"), &deeds).await;
    })
    .await;
}

#[tokio::test]
async fn what_the_server_itself_does_counts() {
    on_each_file_system(async |desk| {
        fresh(desk);
        let calls = [
            ("fs/writeFile", "d/marker", json!({"dataBase64": ""})),
            ("fs/writeFile", "d/marker", json!({"dataBase64": "", "followSymlinks": false})),
            ("fs/writeFile", "d/present", json!({"dataBase64": "YQ=="})),
            ("fs/createDirectory", "d/marker/below", json!({})),
            ("fs/remove", "d/present", json!({})),
            ("fs/remove", "d", json!({})),
        ];
        for (id, (method, name, more)) in (1..).zip(calls) {
            fresh(desk);
            watching(desk, id, &["d/marker"], Some("d/present")).await;
            desk.call(method, name, more).await.unwrap();
            assert_eq!(fired(&mut desk.client).await, id, "{method} {name}");
        }
        is_quiet(&mut desk.client).await;
    })
    .await;
}

#[tokio::test]
async fn it_is_told_once_and_not_of_what_is_unrelated() {
    on_each_file_system(async |desk| {
        fresh(desk);
        std::fs::create_dir(desk.path("present")).unwrap();
        let mut other = desk.server.client().await;
        let params = json!({"watchId": 1, "missing": [desk.uri("later")]});
        other.call("fs/watchMissing", params).await.unwrap();
        watching(desk, 7, &["d/.git", "d/a/.git"], Some("present")).await;
        // Siblings of all kinds, also below what is missing, and the content of what is present.
        desk.put("d/.gitignore", "");
        desk.put("d/.git~", "");
        std::fs::create_dir(desk.path("d/b")).unwrap();
        desk.put("d/b/.git", "");
        desk.put("d/present", "other");
        std::fs::rename(desk.path("d/b"), desk.path("d/c")).unwrap();
        std::fs::remove_dir_all(desk.path("d/c")).unwrap();
        desk.put(".git", "");
        desk.put("present/.git", "");
        // What comes later is told to another client, so all of that was seen before.
        desk.put("later", "");
        assert_eq!(fired(&mut other).await, 1);
        is_quiet(&mut desk.client).await;
        desk.put("d/.git", "");
        assert_eq!(fired(&mut desk.client).await, 7);
        // The watch has ended with that.
        std::fs::remove_file(desk.path("d/.git")).unwrap();
        std::fs::create_dir_all(desk.path("d/a/.git")).unwrap();
        watching(desk, 8, &["next"], None).await;
        desk.put("next", "");
        assert_eq!(fired(&mut desk.client).await, 8);
        is_quiet(&mut desk.client).await;
    })
    .await;
}

#[tokio::test]
async fn only_a_higher_id_takes_the_place_of_a_watch() {
    on_each_file_system(async |desk| {
        watching(desk, 5, &["five"], None).await;
        for id in [5, 4, 0] {
            let refused = watch(desk, id, &["lower"], None).await;
            assert_eq!(refused["watching"], false, "{id}");
            assert!(refused["reason"].is_string());
        }
        desk.put("lower", "");
        desk.put("five", "");
        assert_eq!(fired(&mut desk.client).await, 5);
        // The ids stay used up when the watch is over.
        assert_eq!(watch(desk, 5, &["missing"], None).await["watching"], false);

        watching(desk, 6, &["six"], None).await;
        watching(desk, 8, &["eight"], None).await;
        desk.put("six", "");
        // Refused for its paths, a higher id still ends the watch, and is used up.
        assert_eq!(watch(desk, 9, &["six"], None).await["watching"], false);
        desk.put("eight", "");
        assert_eq!(watch(desk, 9, &["nine"], None).await["watching"], false);
        watching(desk, u64::MAX, &["last"], None).await;
        assert_eq!(watch(desk, u64::MAX, &["missing"], None).await["watching"], false);
        desk.put("last", "");
        assert_eq!(fired(&mut desk.client).await, u64::MAX);
        is_quiet(&mut desk.client).await;
    })
    .await;
}

#[tokio::test]
async fn each_connection_has_a_watch_of_its_own_which_ends_with_it() {
    on_each_file_system(async |desk| {
        let before = inotifies(desk);
        let mut other = desk.server.client().await;
        // Zero is an id like any other.
        watching(desk, 0, &["a"], None).await;
        let params = json!({"watchId": 0, "missing": [desk.uri("b")]});
        let begun = other.call("fs/watchMissing", params).await.unwrap();
        assert_eq!(begun, json!({"watching": true}));
        assert_eq!(inotifies(desk), before + 2);
        desk.put("b", "");
        assert_eq!(fired(&mut other).await, 0);
        eventually("a watch that was told is gone", || inotifies(desk) == before + 1).await;
        is_quiet(&mut desk.client).await;

        let params = json!({"watchId": 1, "missing": [desk.uri("c")]});
        other.call("fs/watchMissing", params).await.unwrap();
        assert_eq!(inotifies(desk), before + 2);
        drop(other);
        eventually("a watch ends with its connection", || inotifies(desk) == before + 1).await;

        for id in 1..20 {
            watching(desk, id, &["a"], None).await;
        }
        eventually("watches that were replaced are gone", || inotifies(desk) == before + 1).await;
        assert_eq!(watch(desk, 20, &["b"], None).await["watching"], false);
        eventually("so is one that had no successor", || inotifies(desk) == before).await;
    })
    .await;
}

#[tokio::test]
async fn the_reply_comes_before_the_notification() {
    on_each_file_system(async |desk| {
        let mut notified = 0;
        for round in 0..200u64 {
            let name = format!("marker{round}");
            let params = json!({"watchId": round, "missing": [desk.uri(&name)]});
            let id = desk.client.send("fs/watchMissing", params).await;
            // From before the server has read the request until after it has answered.
            (0..round * 20).for_each(|_| std::thread::yield_now());
            desk.put(&name, "");
            let reply = desk.client.next_json().await;
            assert_eq!(reply["id"], id, "round {round}");
            if reply["result"]["watching"] == json!(true) {
                let notification = desk.client.next_json().await;
                assert_eq!(notification["params"], json!({"watchId": round}));
                notified += 1;
            }
        }
        assert!(notified > 0, "no round was slow enough to tell");
        is_quiet(&mut desk.client).await;
    })
    .await;
}

#[tokio::test]
async fn what_cannot_be_watched_is_refused_with_a_reason() {
    on_each_file_system(async |desk| {
        fresh(desk);
        symlink("nowhere", desk.path("dangling")).unwrap();
        symlink("d", desk.path("link")).unwrap();
        symlink("d/present", desk.path("file link")).unwrap();
        let at = |name: &str| desk.uri(name);
        let many = |count| (0..count).map(|n| at(&format!("m{n}"))).collect::<Vec<_>>();
        let shown = |name: &str, what: &str| format!("`{}` {what}", desk.path(name).display());
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
            let refused = desk.client.call("fs/watchMissing", params.clone()).await.unwrap();
            assert_eq!(refused["watching"], false, "{params}");
            let text = refused["reason"].as_str().unwrap();
            assert!(text.contains(&reason), "{text}\n{reason}");
        }
        let params = json!({"watchId": id + 1, "missing": most, "sandbox": null});
        let begun = desk.client.call("fs/watchMissing", params).await.unwrap();
        assert_eq!(begun, json!({"watching": true}));
        desk.put("m63", "");
        assert_eq!(fired(&mut desk.client).await, id + 1);
    })
    .await;
}

#[tokio::test]
async fn params_of_another_shape_are_refused_and_leave_the_watch() {
    on_each_file_system(async |desk| {
        watching(desk, 1, &["marker"], None).await;
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
            let refusal = desk.client.call("fs/watchMissing", params.clone()).await;
            assert_eq!(kind(refusal), (-32602, "invalid_params".into()), "{params}");
        }
        desk.put("marker", "");
        assert_eq!(fired(&mut desk.client).await, 1);
    })
    .await;
}

/// Does each deed on a fresh desk, and sees that it is told, once, to the watch of that time.
async fn each_fires(
    desk: &mut FsFixture,
    missing: &[&str],
    present: Option<&str>,
    deeds: &[(&str, Deed)],
) {
    for (id, (what, deed)) in (1..).zip(deeds) {
        fresh(desk);
        watching(desk, id, missing, present).await;
        deed(desk);
        assert_eq!(fired(&mut desk.client).await, id, "{what}");
    }
    is_quiet(&mut desk.client).await;
}

/// Leaves nothing but the directory `d` and the file `present` in it.
fn fresh(desk: &FsFixture) {
    for entry in std::fs::read_dir(desk.root()).unwrap() {
        let path = entry.unwrap().path();
        if path.symlink_metadata().unwrap().is_dir() {
            std::fs::remove_dir_all(path).unwrap();
        } else {
            std::fs::remove_file(path).unwrap();
        }
    }
    std::fs::create_dir(desk.path("d")).unwrap();
    desk.put("d/present", "content");
}

async fn watch(desk: &mut FsFixture, id: u64, missing: &[&str], present: Option<&str>) -> Value {
    let missing: Vec<_> = missing.iter().map(|name| desk.uri(name)).collect();
    let present = present.map(|name| uri(&desk.path(name)));
    let params = json!({"watchId": id, "missing": missing, "present": present});
    desk.client.call("fs/watchMissing", params).await.expect("a watch is never an error")
}

async fn watching(desk: &mut FsFixture, id: u64, missing: &[&str], present: Option<&str>) {
    assert_eq!(watch(desk, id, missing, present).await, json!({"watching": true}), "{id}");
}

/// The watch that the next notification is of.
async fn fired(client: &mut TestClient) -> u64 {
    let notification = client.notification().await;
    assert_eq!(notification["method"], "fs/missingChanged");
    notification["params"]["watchId"].as_u64().unwrap()
}

/// Nothing has been told that was not asked for, until the server has answered once more.
async fn is_quiet(client: &mut TestClient) {
    client.call("environment/status", json!({})).await.unwrap();
    assert_eq!(client.pending_notifications(), 0);
}

/// How many inotify descriptors the server has open.
fn inotifies(desk: &FsFixture) -> usize {
    let open = std::fs::read_dir(format!("/proc/{}/fd", desk.server.serving_pid())).unwrap();
    let targets = open.flatten().filter_map(|entry| std::fs::read_link(entry.path()).ok());
    targets.filter(|target| target.to_string_lossy().contains("inotify")).count()
}
