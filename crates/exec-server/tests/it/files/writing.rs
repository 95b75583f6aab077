//! `fs/writeFile` and `fs/createDirectory`.

use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Stdio};

use exec_server_testkit::executor::copy_program;
use exec_server_testkit::fs_fixture::{FsFixture, code, kind, on_each_file_system};
use rustix::fs::OFlags;
use serde_json::json;

use super::host::{make_fifo, mode, names, set_mode};

#[tokio::test]
async fn a_file_gets_exactly_the_new_content() {
    on_each_file_system(async |fixture| {
        for size in [5, 0, 3_000_000, 4096, 1] {
            let bytes: Vec<u8> = (0..size).map(|at| (at * 31 % 251) as u8).collect();
            assert_eq!(fixture.write("f", &bytes, json!({})).await.unwrap(), json!({}));
            assert!(fixture.get("f") == bytes, "{size}");
        }
        let params = json!([fixture.uri("g"), "aGk=", null, null]);
        assert_eq!(fixture.client.call("fs/writeFile", params).await.unwrap(), json!({}));
        assert_eq!(fixture.get("g"), b"hi");
        // Names may be any bytes.
        let params = json!({"path": fixture.uri_of_bytes(b"bad-\xff"), "dataBase64": "aGk="});
        assert_eq!(fixture.client.call("fs/writeFile", params).await.unwrap(), json!({}));
        assert_eq!(names(fixture.root()), ["bad-\u{fffd}", "f", "g"]);
    })
    .await;
}

#[tokio::test]
async fn content_is_strict_base64_or_nothing_happens() {
    on_each_file_system(async |fixture| {
        fixture.put("f", "old");
        let bad = ["YWJ", "YQ", "YQ=", "YWI==", "=", "YWJ=", "YW-_", "YW Jj", "YWJj\n", "ä"];
        for text in bad {
            for name in ["f", "new"] {
                let refused = fixture.call("fs/writeFile", name, json!({"dataBase64": text})).await;
                assert_eq!(kind(refused), (-32600, "invalid_base64".into()), "{text:?}");
            }
        }
        for params in [json!({}), json!({"dataBase64": 5}), json!({"dataBase64": null})] {
            let refused = fixture.call("fs/writeFile", "f", params).await;
            assert_eq!(kind(refused).0, -32602);
        }
        assert_eq!(fixture.get("f"), b"old");
        assert_eq!(names(fixture.root()), ["f"]);
    })
    .await;
}

#[tokio::test]
async fn links_are_followed_to_their_end() {
    on_each_file_system(async |fixture| {
        std::fs::create_dir_all(fixture.path("d/e")).unwrap();
        fixture.put("real", "old");
        symlink("d/two", fixture.path("one")).unwrap();
        symlink("e/three", fixture.path("d/two")).unwrap();
        symlink(fixture.path("four"), fixture.path("d/e/three")).unwrap();
        symlink("real", fixture.path("four")).unwrap();
        symlink("d/e", fixture.path("here")).unwrap();
        for (name, content) in [("one", "1"), ("here/three", "2"), ("four", "3"), ("real", "4")] {
            assert_eq!(
                fixture.write(name, content.as_bytes(), json!({})).await.unwrap(),
                json!({})
            );
            assert_eq!(fixture.get("real"), content.as_bytes());
        }
        for link in ["one", "d/two", "d/e/three", "four", "here"] {
            assert!(fixture.path(link).is_symlink(), "{link}");
        }
        // The target of a dangling chain of links is created.
        std::fs::remove_file(fixture.path("real")).unwrap();
        fixture.write("one", b"new", json!({})).await.unwrap();
        assert_eq!(fixture.get("real"), b"new");
        symlink("missing/x", fixture.path("nowhere")).unwrap();
        assert_eq!(
            code(fixture.write("nowhere", b"x", json!({})).await),
            (-32004, "ENOENT".into())
        );
        assert!(!fixture.path("missing").exists());
    })
    .await;
}

#[tokio::test]
async fn as_many_links_are_followed_as_the_kernel_follows() {
    on_each_file_system(async |fixture| {
        for number in 0..41 {
            symlink(format!("l{}", number + 1), fixture.path(&format!("l{number}"))).unwrap();
        }
        // From l1 on there are forty links, first dangling, then to a file.
        for content in ["first", "second"] {
            fixture.write("l1", content.as_bytes(), json!({})).await.unwrap();
            assert_eq!(fixture.get("l41"), content.as_bytes());
            assert_eq!(code(fixture.write("l0", b"x", json!({})).await), (-32603, "ELOOP".into()));
        }
        symlink("loop", fixture.path("loop")).unwrap();
        assert_eq!(code(fixture.write("loop", b"x", json!({})).await), (-32603, "ELOOP".into()));
    })
    .await;
}

#[tokio::test]
async fn without_following_no_link_is_passed() {
    on_each_file_system(async |fixture| {
        let no_follow = json!({"followSymlinks": false});
        std::fs::create_dir(fixture.path("d")).unwrap();
        fixture.put("d/f", "old");
        symlink("d", fixture.path("dl")).unwrap();
        symlink("d/f", fixture.path("l")).unwrap();
        symlink("missing", fixture.path("dangling")).unwrap();
        make_fifo(&fixture.path("fifo"));
        let _socket = UnixListener::bind(fixture.path("sock")).unwrap();
        for (name, errno) in [
            ("l", "ELOOP"),
            ("dangling", "ELOOP"),
            ("dl/f", "ENOTDIR"),
            ("dl/new", "ENOTDIR"),
            ("d/f/x", "ENOTDIR"),
            ("d", "EISDIR"),
            ("fifo", "ENXIO"),
            ("sock", "ENXIO"),
        ] {
            let refused = fixture.write(name, b"x", no_follow.clone()).await;
            assert_eq!(code(refused), (-32603, errno.into()), "{name}");
        }
        let refused = fixture.write("missing/x", b"x", no_follow.clone()).await;
        assert_eq!(code(refused), (-32004, "ENOENT".into()));
        let refused = fixture.write("/", b"x", no_follow.clone()).await;
        assert_eq!(kind(refused), (-32600, "no_name".into()));
        let refused = fixture.write("/dev/null", b"x", no_follow.clone()).await;
        assert_eq!(kind(refused), (-32600, "not_a_file".into()));
        assert_eq!(fixture.get("d/f"), b"old");
        assert_eq!(names(&fixture.path("d")), ["f"]);
        for name in ["d/f", "d/new"] {
            assert_eq!(fixture.write(name, b"new", no_follow.clone()).await.unwrap(), json!({}));
            assert_eq!(fixture.get(name), b"new");
        }
    })
    .await;
}

#[tokio::test]
async fn invalid_destinations_are_rejected() {
    on_each_file_system(async |fixture| {
        std::fs::create_dir(fixture.path("d")).unwrap();
        symlink("d", fixture.path("dl")).unwrap();
        fixture.put("f", "old");
        make_fifo(&fixture.path("fifo"));
        let _socket = UnixListener::bind(fixture.path("sock")).unwrap();
        let before = names(fixture.root());
        let long = "x".repeat(256);
        for (name, expected) in [
            ("d", (-32603, "EISDIR")),
            ("dl", (-32603, "EISDIR")),
            ("/", (-32603, "EISDIR")),
            ("f/x", (-32603, "ENOTDIR")),
            ("missing/x", (-32004, "ENOENT")),
            ("sock", (-32603, "ENXIO")),
            ("fifo", (-32603, "ENXIO")),
            (&long, (-32603, "ENAMETOOLONG")),
        ] {
            let refused = code(fixture.write(name, b"x", json!({})).await);
            assert_eq!((refused.0, refused.1.as_str()), expected, "{name}");
            let more = json!({"handleId": "h", "mode": "replace"});
            let refused = code(fixture.call("fs/open", name, more).await);
            assert_eq!((refused.0, refused.1.as_str()), expected, "{name}");
        }
        assert_eq!(names(fixture.root()), before);
        assert_eq!(fixture.get("f"), b"old");
    })
    .await;
}

#[tokio::test]
async fn pipes_and_devices_take_what_they_can_and_never_block() {
    on_each_file_system(async |fixture| {
        make_fifo(&fixture.path("fifo"));
        let mut options = std::fs::OpenOptions::new();
        options.read(true).custom_flags(OFlags::NONBLOCK.bits().cast_signed());
        let mut reader = options.open(fixture.path("fifo")).unwrap();
        let written = fixture.write("fifo", b"hello", json!({})).await.unwrap();
        assert_eq!(written, json!({"inPlace": true}));
        let mut buffer = [0; 100];
        assert_eq!(reader.read(&mut buffer).unwrap(), 5);
        // The write exceeds the capacity of the pipe.
        let refused = fixture.write("fifo", &vec![b'x'; 1 << 20], json!({})).await;
        let error = refused.unwrap_err();
        assert_eq!((&error["code"], &error["data"]["errno"]), (&json!(-32603), &json!("EAGAIN")));
        assert_eq!(error["data"]["kind"], "short_write");
        let refused = code(fixture.write("fifo", b"x", json!({})).await);
        assert_eq!(refused, (-32603, "EAGAIN".into()));
        let written = fixture.write("/dev/null", b"x", json!({})).await.unwrap();
        assert_eq!(written, json!({"inPlace": true}));
        assert_eq!(code(fixture.write("/dev/full", b"x", json!({})).await).1, "ENOSPC");
        let more = json!({"handleId": "h", "mode": "replace"});
        for name in ["/dev/null", "fifo"] {
            let refused = fixture.call("fs/open", name, more.clone()).await;
            assert_eq!(kind(refused), (-32600, "not_a_file".into()));
        }
    })
    .await;
}

#[tokio::test]
async fn the_links_in_proc_lead_to_files_without_a_name() {
    on_each_file_system(async |fixture| {
        let path = fixture.put("f", "old content");
        let file = std::fs::File::open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let link = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
        let written = fixture.write(&link, b"new", json!({})).await.unwrap();
        assert_eq!(written, json!({"inPlace": true}));
        assert_eq!(std::io::read_to_string(&file).unwrap(), "new");
        assert!(names(fixture.root()).is_empty());
        // A directory is entered through them like through any other link.
        let inside = format!("/proc/self/root{}", path.display());
        assert_eq!(fixture.write(&inside, b"found", json!({})).await.unwrap(), json!({}));
        assert_eq!(fixture.get("f"), b"found");
        // Kernel files are written in place.
        let comm = format!("/proc/{}/comm", fixture.server.serving_pid());
        let written = fixture.write(&comm, b"renamed", json!({})).await.unwrap();
        assert_eq!(written, json!({"inPlace": true}));
        assert_eq!(std::fs::read_to_string(&comm).unwrap(), "renamed\n");
    })
    .await;
}

#[tokio::test]
async fn a_running_program_is_replaced() {
    on_each_file_system(async |fixture| {
        let path = fixture.path("program");
        copy_program(Path::new("/bin/sleep"), &path);
        set_mode(&path, 0o751);
        symlink("program", fixture.path("link")).unwrap();
        let mut command = tokio::process::Command::new(&path);
        command.arg("1000").stdout(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
        let mut child = command.spawn().unwrap();
        let inode = std::fs::metadata(&path).unwrap().ino();
        let written = fixture.write("link", b"#!/bin/sh\necho new\n", json!({})).await.unwrap();
        assert_eq!(written, json!({}));
        assert!(child.try_wait().unwrap().is_none());
        let now = std::fs::metadata(&path).unwrap();
        assert_eq!((mode(&path), now.ino() == inode), (0o751, false));
        assert_eq!(Command::new(&path).output().unwrap().stdout, b"new\n");
        // The old file is unlinked and still running.
        let old = format!("/proc/{}/exe", child.id().unwrap());
        assert_eq!(code(fixture.write(&old, b"x", json!({})).await), (-32603, "ETXTBSY".into()));
        assert_eq!(names(fixture.root()), ["link", "program"]);
        child.kill().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn directories_are_made_with_their_parents_or_without() {
    on_each_file_system(async |fixture| {
        let flat = json!({"recursive": false});
        fixture.put("f", "");
        symlink("a", fixture.path("l")).unwrap();
        symlink("nowhere", fixture.path("dangling")).unwrap();
        assert_eq!(make(fixture, "a/b/c", json!({})).await.unwrap(), json!({}));
        for name in ["a/b/c", "a", "l", "l/b", "/", ""] {
            assert_eq!(make(fixture, name, json!({})).await.unwrap(), json!({}), "{name}");
        }
        assert_eq!(make(fixture, "l/new", json!({})).await.unwrap(), json!({}));
        assert!(fixture.path("a/new").is_dir());
        for name in ["f", "dangling"] {
            assert_eq!(code(make(fixture, name, json!({})).await), (-32603, "EEXIST".into()));
        }
        assert_eq!(code(make(fixture, "f/x/y", json!({})).await), (-32603, "ENOTDIR".into()));
        assert_eq!(make(fixture, "flat", flat.clone()).await.unwrap(), json!({}));
        for name in ["flat", "f", "l", "/"] {
            assert_eq!(code(make(fixture, name, flat.clone()).await), (-32603, "EEXIST".into()));
        }
        assert_eq!(code(make(fixture, "x/y", flat).await), (-32004, "ENOENT".into()));
        assert!(!fixture.path("x").exists());
    })
    .await;
}

#[tokio::test]
async fn directories_without_following_pass_no_link() {
    on_each_file_system(async |fixture| {
        let deep = json!({"followSymlinks": false});
        let flat = json!({"followSymlinks": false, "recursive": false});
        fixture.put("f", "");
        std::fs::create_dir(fixture.path("d")).unwrap();
        symlink("d", fixture.path("l")).unwrap();
        for name in ["a/b/c", "a/b", "/"] {
            assert_eq!(make(fixture, name, deep.clone()).await.unwrap(), json!({}), "{name}");
        }
        for name in ["l", "l/x", "f", "f/x"] {
            let refused = code(make(fixture, name, deep.clone()).await);
            assert_eq!(refused, (-32603, "ENOTDIR".into()), "{name}");
        }
        assert_eq!(make(fixture, "flat", flat.clone()).await.unwrap(), json!({}));
        assert_eq!(code(make(fixture, "flat", flat.clone()).await), (-32603, "EEXIST".into()));
        assert_eq!(code(make(fixture, "l/x", flat.clone()).await), (-32603, "ENOTDIR".into()));
        assert_eq!(code(make(fixture, "x/y", flat.clone()).await), (-32004, "ENOENT".into()));
        assert_eq!(kind(make(fixture, "/", flat).await), (-32603, "already_exists".into()));
        assert!(names(&fixture.path("d")).is_empty());
    })
    .await;
}

#[tokio::test]
async fn concurrent_clients_can_create_the_same_directories() {
    on_each_file_system(async |fixture| {
        for follow in [false, true] {
            let mut clients = Vec::new();
            for _ in 0..16 {
                clients.push(fixture.server.client().await);
            }
            for round in 0..20 {
                let path = fixture.uri(&format!("{follow}{round}/a/b/c/d/e"));
                let params = json!({"path": path, "followSymlinks": follow});
                let mut asked = Vec::new();
                for client in &mut clients {
                    asked.push(client.send("fs/createDirectory", params.clone()).await);
                }
                for (client, id) in clients.iter_mut().zip(asked) {
                    assert_eq!(client.reply(id).await.unwrap(), json!({}));
                }
            }
        }
    })
    .await;
}

#[tokio::test]
#[cfg(target_os = "linux")]
async fn where_the_kernel_knows_no_new_names_a_directory_is_refused() {
    let fixture = &mut FsFixture::new().await;
    for follow in [false, true] {
        for path in ["file:///proc/new/deep", "file:///proc/self/task/new/deep/er"] {
            let params = json!({"path": path, "followSymlinks": follow});
            let refused = fixture.client.call("fs/createDirectory", params).await;
            refused.expect_err("nothing can be made there");
        }
    }
}

async fn make(
    fixture: &mut FsFixture,
    name: &str,
    more: serde_json::Value,
) -> Result<serde_json::Value, serde_json::Value> {
    fixture.call("fs/createDirectory", name, more).await
}
