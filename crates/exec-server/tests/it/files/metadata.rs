//! `fs/getMetadata`.

use std::fs::{File, FileTimes};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use exec_server_testkit::fs_fixture::{FsFixture, content, on_each_file_system};
use serde_json::{Value, json};

use super::{both_ways, put_fifo, put_link, put_socket, refused, serve_as_ordinary_user, set_mode};

async fn stat(fixture: &mut FsFixture, name: &str, more: Value) -> Result<Value, Value> {
    fixture.call("fs/getMetadata", name, more).await
}

#[tokio::test]
async fn files_and_directories_are_described() {
    on_each_file_system(async |fixture| {
        fixture.put("file", "12345");
        std::fs::create_dir(fixture.path("dir")).unwrap();
        fixture.put("dir/x", "");
        for (name, is_directory) in [("file", false), ("dir", true), ("", true), ("/", true)] {
            let known = fixture.path(name).metadata().unwrap();
            let created = known.created().map_or(0, |time| millis(time.duration_since(UNIX_EPOCH)));
            let expected = json!({
                "isDirectory": is_directory, "isFile": !is_directory, "isSymlink": false,
                "size": known.size(), "createdAtMs": created,
                "modifiedAtMs": millis(known.modified().unwrap().duration_since(UNIX_EPOCH)),
            });
            // Once cold, once from the page cache.
            for more in both_ways().into_iter().chain(both_ways()) {
                assert_eq!(stat(fixture, name, more).await.as_ref(), Ok(&expected), "{name}");
            }
        }
        let file = stat(fixture, "file", json!({})).await.unwrap();
        assert_eq!(file["size"], 5);
        assert!(file["createdAtMs"].as_i64() > Some(0), "disks and memory know it: {file}");
    })
    .await;
}

fn millis(time: Result<Duration, std::time::SystemTimeError>) -> u64 {
    time.expect("it is after 1970").as_millis().try_into().expect("it is not that far away")
}

#[tokio::test]
async fn missing_paths_are_not_found() {
    on_each_file_system(async |fixture| {
        fixture.put("f", "");
        let too_long = "n".repeat(256);
        for more in both_ways() {
            for _ in 0..2 {
                refused(stat(fixture, "nope", more.clone()).await, -32004, "ENOENT");
                refused(stat(fixture, "nope/x", more.clone()).await, -32004, "ENOENT");
                refused(stat(fixture, "f/x", more.clone()).await, -32603, "ENOTDIR");
                refused(stat(fixture, &too_long, more.clone()).await, -32603, "ENAMETOOLONG");
            }
        }
    })
    .await;
}

#[tokio::test]
async fn a_link_is_described_by_its_target() {
    on_each_file_system(async |fixture| {
        fixture.put("file", "12345");
        std::fs::create_dir(fixture.path("dir")).unwrap();
        fixture.put("dir/f", "123");
        for (link, target) in [
            ("to file", "file"),
            ("to dir", "dir"),
            ("to link", "to file"),
            ("dangling", "nothing"),
            ("loop", "loop"),
            ("to root", "/"),
        ] {
            put_link(fixture, link, target);
        }
        for (link, target) in
            [("to file", "file"), ("to dir", "dir"), ("to link", "file"), ("to root", "/")]
        {
            let mut expected = stat(fixture, target, json!({})).await.unwrap();
            expected["isSymlink"] = json!(true);
            for _ in 0..2 {
                assert_eq!(stat(fixture, link, json!({})).await.as_ref(), Ok(&expected), "{link}");
            }
        }
        // A link in the parent path does not make the path a link.
        let file = stat(fixture, "to dir/f", json!({})).await.unwrap();
        assert_eq!((&file["isSymlink"], &file["size"]), (&json!(false), &json!(3)));
        refused(stat(fixture, "dangling", json!({})).await, -32004, "ENOENT");
        refused(stat(fixture, "loop", json!({})).await, -32603, "ELOOP");

        let no_follow = json!({"followSymlinks": false});
        for link in ["to file", "to dir", "to link", "dangling", "loop", "to root"] {
            let error = stat(fixture, link, no_follow.clone()).await.unwrap_err();
            assert_eq!(error["message"], "path contains a symbolic link", "{link}");
            refused(Err(error), -32600, "is_symlink");
        }
        for name in ["to dir/f", "loop/f", "dangling/f", "to dir/nothing"] {
            refused(stat(fixture, name, no_follow.clone()).await, -32603, "ENOTDIR");
        }
    })
    .await;
}

#[tokio::test]
async fn special_files_are_neither_file_nor_directory() {
    on_each_file_system(async |fixture| {
        put_fifo(fixture, "fifo");
        let _socket = put_socket(fixture, "sock");
        for (name, kind) in [("fifo", "fifo"), ("sock", "socket"), ("/dev/null", "characterDevice")]
        {
            for mut more in both_ways().into_iter().chain(both_ways()) {
                let found = stat(fixture, name, more.clone()).await.unwrap();
                for flag in ["isDirectory", "isFile", "isSymlink"] {
                    assert_eq!(found[flag], false, "{name}: {found}");
                }
                assert_eq!(found.as_object().unwrap().len(), 6);
                more["detailed"] = json!(true);
                assert_eq!(stat(fixture, name, more).await.unwrap()["kind"], kind);
            }
        }
    })
    .await;
}

#[tokio::test]
async fn times_are_in_whole_milliseconds_and_may_lie_before_1970() {
    on_each_file_system(async |fixture| {
        let file = File::create(fixture.path("f")).unwrap();
        let after = UNIX_EPOCH + Duration::new(1_234_567_890, 987_999_999);
        let before = UNIX_EPOCH - Duration::from_millis(1500);
        for (time, followed, not_followed) in [
            (after, 1_234_567_890_987_i64, 1_234_567_890_987_i64),
            (UNIX_EPOCH, 0, 0),
            (before, 0, -1500),
        ] {
            file.set_times(FileTimes::new().set_modified(time)).unwrap();
            for _ in 0..2 {
                let [follow, no_follow] = both_ways();
                assert_eq!(stat(fixture, "f", follow).await.unwrap()["modifiedAtMs"], followed);
                assert_eq!(
                    stat(fixture, "f", no_follow).await.unwrap()["modifiedAtMs"],
                    not_followed
                );
            }
        }
    })
    .await;
}

/// The name of a number in `/etc/passwd` or `/etc/group`.
fn name_of(file: &str, id: u32) -> Option<String> {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let line = text.lines().find(|line| line.split(':').nth(2) == Some(&id.to_string()))?;
    line.split(':').next().map(str::to_owned)
}

#[tokio::test]
async fn a_detailed_reply_has_all_members() {
    on_each_file_system(async |fixture| {
        let path = fixture.put("file", "12345");
        std::fs::hard_link(&path, fixture.path("second name")).unwrap();
        std::fs::create_dir(fixture.path("dir")).unwrap();
        for (name, mode) in [("file", 0o4751), ("dir", 0o1700)] {
            set_mode(fixture, name, mode);
        }
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(fixture.path("dir"), Some(4321), Some(1234)).unwrap();
        }
        for (name, kind, mode) in [("file", "file", 0o4751), ("dir", "directory", 0o1700)] {
            let known = fixture.path(name).metadata().unwrap();
            for mut more in both_ways().into_iter().chain(both_ways()) {
                let mut expected = stat(fixture, name, more.clone()).await.unwrap();
                more["detailed"] = json!(true);
                let found = stat(fixture, name, more).await.unwrap();
                let details = json!({
                    "kind": kind, "mode": mode, "uid": known.uid(), "gid": known.gid(),
                    "nlink": known.nlink(), "inode": known.ino(), "versionTag": found["versionTag"],
                });
                // A name is reported only where the number has one.
                for (member, file, id) in [
                    ("ownerName", "/etc/passwd", known.uid()),
                    ("groupName", "/etc/group", known.gid()),
                ] {
                    if let Some(name) = name_of(file, id) {
                        expected[member] = json!(name);
                    }
                }
                expected.as_object_mut().unwrap().extend(details.as_object().unwrap().clone());
                assert_eq!(found, expected);
                assert!(found["versionTag"].is_string());
            }
        }
        assert_eq!(fixture.path("file").metadata().unwrap().nlink(), 2);
    })
    .await;
}

#[tokio::test]
async fn a_detailed_reply_has_the_link_target_or_describes_the_link() {
    on_each_file_system(async |fixture| {
        fixture.put("file", "12345");
        put_link(fixture, "link", "./file");
        put_link(fixture, "dangling", "no where");
        let odd = std::ffi::OsStr::from_bytes(b"odd-\xff");
        std::fs::write(fixture.root().join(odd), "").unwrap();
        put_link(fixture, "odd link", Path::new(odd));
        for _ in 0..2 {
            let mut found = stat(fixture, "link", json!({"detailed": true})).await.unwrap();
            assert_eq!(found["linkTarget"].take(), "./file");
            let mut file = stat(fixture, "file", json!({"detailed": true})).await.unwrap();
            assert_eq!(file.get("linkTarget"), None);
            file["linkTarget"] = Value::Null;
            file["isSymlink"] = json!(true);
            assert_eq!(found, file);
            let odd = stat(fixture, "odd link", json!({"detailed": true})).await.unwrap();
            assert_eq!(odd["linkTarget"], "odd-\u{fffd}");
            assert_eq!(content(&odd["linkTargetBase64"]), b"odd-\xff");
        }
        refused(stat(fixture, "dangling", json!({"detailed": true})).await, -32004, "ENOENT");
        let itself = json!({"detailed": true, "followSymlinks": false});
        for (name, target) in [("link", "./file"), ("dangling", "no where")] {
            let found = stat(fixture, name, itself.clone()).await.unwrap();
            let known = fixture.path(name).symlink_metadata().unwrap();
            assert_eq!((&found["kind"], &found["linkTarget"]), (&json!("symlink"), &json!(target)));
            assert_eq!((&found["isSymlink"], &found["isFile"]), (&json!(true), &json!(false)));
            assert_eq!(
                (&found["inode"], &found["size"]),
                (&json!(known.ino()), &json!(known.size()))
            );
        }
    })
    .await;
}

#[tokio::test]
async fn a_version_tag_changes_with_every_change_and_only_then() {
    on_each_file_system(async |fixture| {
        let path = fixture.put("f", "content");
        let mut seen = Vec::new();
        for change in 0..5 {
            match change {
                0 => {}
                1 => drop(fixture.put("f", "other content")),
                2 => drop(fixture.write("f", b"written again", json!({})).await.unwrap()),
                3 => set_mode(fixture, "f", 0o600),
                _ => {
                    fixture.put("new", "written again");
                    std::fs::rename(fixture.path("new"), &path).unwrap();
                }
            }
            let tags = both_ways().into_iter().chain(both_ways()).map(|mut more| {
                more["detailed"] = json!(true);
                more
            });
            let mut first = None;
            for more in tags {
                let tag = stat(fixture, "f", more).await.unwrap()["versionTag"].take();
                assert_eq!(*first.get_or_insert(tag.clone()), tag);
            }
            let tag = first.unwrap();
            assert!(!seen.contains(&tag), "change {change}: {tag} {seen:?}");
            seen.push(tag);
            fixture.read("f").await.unwrap();
        }
    })
    .await;
}

#[tokio::test]
async fn metadata_needs_neither_read_nor_list_permission() {
    on_each_file_system(async |fixture| {
        std::fs::create_dir(fixture.path("passage")).unwrap();
        fixture.put("passage/secret", "12345");
        let _socket = put_socket(fixture, "passage/sock");
        std::fs::create_dir(fixture.path("wall")).unwrap();
        fixture.put("wall/f", "");
        if !serve_as_ordinary_user(fixture).await {
            return;
        }
        set_mode(fixture, "passage/secret", 0);
        set_mode(fixture, "passage", 0o300);
        set_mode(fixture, "wall", 0o600);
        for more in both_ways().into_iter().chain(both_ways()) {
            let secret = stat(fixture, "passage/secret", more.clone()).await.unwrap();
            assert_eq!((&secret["isFile"], &secret["size"]), (&json!(true), &json!(5)));
            let socket = stat(fixture, "passage/sock", more.clone()).await.unwrap();
            assert_eq!((&socket["isFile"], &socket["isDirectory"]), (&json!(false), &json!(false)));
            refused(stat(fixture, "wall/f", more).await, -32600, "EACCES");
        }
        set_mode(fixture, "wall", 0o700);
        set_mode(fixture, "passage", 0o700);
    })
    .await;
}

#[tokio::test]
async fn many_questions_at_once_are_all_answered() {
    on_each_file_system(async |fixture| {
        fixture.put("f", "12345");
        let mut asked = Vec::new();
        for place in 0..4000 {
            let name =
                if place % 4 == 0 { "f".to_owned() } else { format!("missing/{place}/.git") };
            let more = json!({"path": fixture.uri(&name), "followSymlinks": place % 3 == 0});
            asked.push((place, fixture.client.send("fs/getMetadata", more).await));
        }
        for (place, id) in asked {
            let result = fixture.client.reply(id).await;
            if place % 4 == 0 {
                assert_eq!(result.unwrap()["size"], 5);
            } else {
                refused(result, -32004, "ENOENT");
            }
        }
    })
    .await;
}

#[tokio::test]
async fn metadata_is_never_stale() {
    on_each_file_system(async |fixture| {
        for round in 1..20 {
            refused(stat(fixture, "f", json!({})).await, -32004, "ENOENT");
            fixture.put("f", vec![0; round]);
            assert_eq!(stat(fixture, "f", json!({})).await.unwrap()["size"], round);
            fixture.put("f", vec![0; round + 100]);
            assert_eq!(stat(fixture, "f", json!({})).await.unwrap()["size"], round + 100);
            std::fs::remove_file(fixture.path("f")).unwrap();
            std::fs::create_dir(fixture.path("f")).unwrap();
            assert_eq!(stat(fixture, "f", json!({})).await.unwrap()["isDirectory"], true);
            std::fs::remove_dir(fixture.path("f")).unwrap();
        }
    })
    .await;
}
