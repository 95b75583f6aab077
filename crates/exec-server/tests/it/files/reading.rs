//! `fs/readFile`.

use std::fs::OpenOptions;
use std::io::{Read, Write};

use exec_server_testkit::fs_fixture::{FsFixture, content, on_each_file_system, uri};
use serde_json::{Value, json};

use super::{both_ways, put_fifo, put_link, put_socket, refused, serve_as_ordinary_user, set_mode};

async fn read(fixture: &mut FsFixture, name: &str, more: Value) -> Result<Value, Value> {
    fixture.call("fs/readFile", name, more).await
}

#[tokio::test]
async fn a_file_is_read_whole_whatever_its_size() {
    on_each_file_system(async |fixture| {
        let edges = [128 * 1024, 192 * 1024, 384 * 1024].map(|size| [size - 1, size, size + 1]);
        for size in [0, 1, 2, 3, 4096, 3_000_000].into_iter().chain(edges.into_iter().flatten()) {
            let bytes: Vec<u8> = (0..size).map(|at| (at * 31 % 251) as u8).collect();
            fixture.put("f", &bytes);
            // Once cold, once from the page cache.
            for more in both_ways().into_iter().chain(both_ways()) {
                let result = read(fixture, "f", more).await.unwrap();
                assert_eq!(result.as_object().unwrap().len(), 1);
                assert!(content(&result["dataBase64"]) == bytes, "{size}");
            }
        }
    })
    .await;
}

#[tokio::test]
async fn base64_is_of_the_standard_alphabet_and_padded() {
    on_each_file_system(async |fixture| {
        for (bytes, text) in
            [(&b""[..], ""), (b"hello", "aGVsbG8="), (b"\xff", "/w=="), (b"\xfb\xef\xbe", "++++")]
        {
            fixture.put("f", bytes);
            for more in both_ways() {
                let result = read(fixture, "f", more).await;
                assert_eq!(result.unwrap(), json!({"dataBase64": text}));
            }
        }
    })
    .await;
}

#[tokio::test]
async fn missing_and_special_files_are_rejected() {
    on_each_file_system(async |fixture| {
        fixture.put("f", "");
        put_link(fixture, "to nothing", "nothing");
        let too_long = "n".repeat(256);
        for more in both_ways() {
            for _ in 0..2 {
                refused(read(fixture, "nope", more.clone()).await, -32004, "ENOENT");
                refused(read(fixture, "nope/x", more.clone()).await, -32004, "ENOENT");
                refused(read(fixture, "f/x", more.clone()).await, -32603, "ENOTDIR");
                refused(read(fixture, &too_long, more.clone()).await, -32603, "ENAMETOOLONG");
                refused(read(fixture, "", more.clone()).await, -32600, "not_a_file");
                refused(read(fixture, "/", more.clone()).await, -32600, "not_a_file");
                refused(read(fixture, "/dev/zero", more.clone()).await, -32600, "not_a_file");
            }
        }
        let error = read(fixture, "nope", json!({})).await.unwrap_err();
        assert_eq!(error["message"], "No such file or directory (os error 2)");
        assert_eq!(error["data"], json!({"kind": "not_found", "errno": "ENOENT"}));
        let error = read(fixture, "", json!({})).await.unwrap_err();
        let text = format!("path `{}` is not a file", fixture.root().display());
        assert_eq!(error["message"].as_str().unwrap().replace("/`", "`"), text);
    })
    .await;
}

#[tokio::test]
async fn a_pipe_or_a_socket_is_refused_without_waiting_for_it() {
    on_each_file_system(async |fixture| {
        let fifo = put_fifo(fixture, "fifo");
        let _socket = put_socket(fixture, "sock");
        put_link(fixture, "to fifo", "fifo");
        for more in both_ways() {
            refused(read(fixture, "fifo", more.clone()).await, -32600, "not_a_file");
            refused(read(fixture, "sock", more).await, -32603, "ENXIO");
        }
        refused(read(fixture, "to fifo", json!({})).await, -32600, "not_a_file");
        // No byte is read from the pipe.
        let mut pipe = OpenOptions::new().read(true).write(true).open(fifo).unwrap();
        pipe.write_all(b"precious").unwrap();
        refused(read(fixture, "fifo", json!({})).await, -32600, "not_a_file");
        let mut bytes = [0; 8];
        pipe.read_exact(&mut bytes).unwrap();
        assert_eq!(&bytes, b"precious");
    })
    .await;
}

#[tokio::test]
async fn links_are_followed_unless_that_is_refused() {
    on_each_file_system(async |fixture| {
        std::fs::create_dir(fixture.path("dir")).unwrap();
        fixture.put("dir/f", "content");
        put_link(fixture, "link", "dir/f");
        put_link(fixture, "second", "link");
        put_link(fixture, "dl", "dir");
        put_link(fixture, "dangling", "nothing");
        put_link(fixture, "loop", "loop");
        let followed =
            [json!({}), json!({"followSymlinks": true}), json!({"followSymlinks": null})];
        // An unknown member is ignored, even if it resembles a known one.
        for more in followed.into_iter().chain([json!({"follow_symlinks": false})]) {
            for name in ["link", "second", "dl/f", "dir/f"] {
                let result = read(fixture, name, more.clone()).await.unwrap();
                assert_eq!(content(&result["dataBase64"]), b"content", "{name} {more}");
            }
            refused(read(fixture, "dangling", more.clone()).await, -32004, "ENOENT");
            refused(read(fixture, "loop", more.clone()).await, -32603, "ELOOP");
            refused(read(fixture, "loop/f", more.clone()).await, -32603, "ELOOP");
            refused(read(fixture, "dl", more).await, -32600, "not_a_file");
        }
        let no_follow = json!({"followSymlinks": false});
        let result = read(fixture, "dir/f", no_follow.clone()).await.unwrap();
        assert_eq!(content(&result["dataBase64"]), b"content");
        for name in ["link", "second", "dl", "dangling", "loop"] {
            refused(read(fixture, name, no_follow.clone()).await, -32603, "ELOOP");
        }
        for name in ["dl/f", "dl/nothing", "loop/f", "dangling/f", "link/x"] {
            refused(read(fixture, name, no_follow.clone()).await, -32603, "ENOTDIR");
        }
    })
    .await;
}

#[tokio::test]
async fn a_directory_that_may_only_be_passed_through_is_enough() {
    on_each_file_system(async |fixture| {
        for name in ["passage", "wall"] {
            std::fs::create_dir(fixture.path(name)).unwrap();
            fixture.put(&format!("{name}/f"), "content");
        }
        fixture.put("secret", "content");
        if !serve_as_ordinary_user(fixture).await {
            return;
        }
        set_mode(fixture, "passage", 0o300);
        set_mode(fixture, "wall", 0o600);
        set_mode(fixture, "secret", 0o200);
        for more in both_ways() {
            for _ in 0..2 {
                let result = read(fixture, "passage/f", more.clone()).await;
                assert_eq!(result.unwrap(), json!({"dataBase64": "Y29udGVudA=="}));
                refused(read(fixture, "wall/f", more.clone()).await, -32600, "EACCES");
                refused(read(fixture, "secret", more.clone()).await, -32600, "EACCES");
            }
        }
        let error = read(fixture, "secret", json!({})).await.unwrap_err();
        assert_eq!(error["message"], "Permission denied (os error 13)");
        assert_eq!(error["data"]["kind"], "permission_denied");
        set_mode(fixture, "wall", 0o700);
        set_mode(fixture, "passage", 0o700);
    })
    .await;
}

#[tokio::test]
async fn files_that_the_kernel_makes_up_are_read_to_their_end() {
    on_each_file_system(async |fixture| {
        for name in
            ["/proc/version", "/proc/filesystems", "/sys/kernel/mm/transparent_hugepage/enabled"]
        {
            let Ok(bytes) = std::fs::read(name) else { continue };
            for more in both_ways() {
                let result = read(fixture, name, more).await.unwrap();
                assert_eq!(content(&result["dataBase64"]), bytes, "{name}");
            }
        }
        // A file of many pages with a reported size of zero.
        if let Ok(bytes) = std::fs::read("/proc/kallsyms") {
            let result = read(fixture, "/proc/kallsyms", json!({})).await.unwrap();
            // Symbols change, but not most of them.
            assert!(content(&result["dataBase64"]).len() > bytes.len() / 2);
        }
    })
    .await;
}

#[tokio::test]
async fn a_name_may_hold_any_bytes() {
    on_each_file_system(async |fixture| {
        let names: [&[u8]; 9] = [
            b"bad-\xff.txt",
            b"\xc3\x28",
            b"sp ace",
            b"per%41cent",
            b"que?ry#frag",
            b"back\\slash",
            b"new\nline\ttab",
            "ü \u{1F600}".as_bytes(),
            b"quote\"`{}<>'",
        ];
        for name in names {
            use std::os::unix::ffi::OsStrExt;
            let path = fixture.root().join(std::ffi::OsStr::from_bytes(name));
            std::fs::write(&path, name).unwrap();
            for more in both_ways() {
                let mut params = json!({"path": fixture.uri_of_bytes(name)});
                params.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
                let result = fixture.client.call("fs/readFile", params).await.unwrap();
                assert_eq!(content(&result["dataBase64"]), name, "{}", uri(&path));
            }
        }
    })
    .await;
}

#[tokio::test]
async fn reads_are_never_stale() {
    on_each_file_system(async |fixture| {
        std::fs::create_dir(fixture.path("d")).unwrap();
        for round in 0..20 {
            fixture.put("d/f", format!("written {round}"));
            assert_eq!(fixture.read("d/f").await.unwrap(), format!("written {round}").as_bytes());
            fixture.put("new", format!("renamed {round}"));
            std::fs::rename(fixture.path("new"), fixture.path("d/f")).unwrap();
            assert_eq!(fixture.read("d/f").await.unwrap(), format!("renamed {round}").as_bytes());
            std::fs::rename(fixture.path("d"), fixture.path("elsewhere")).unwrap();
            refused(read(fixture, "d/f", json!({})).await, -32004, "ENOENT");
            put_link(fixture, "d", "elsewhere");
            assert_eq!(fixture.read("d/f").await.unwrap(), format!("renamed {round}").as_bytes());
            std::fs::remove_file(fixture.path("d")).unwrap();
            std::fs::rename(fixture.path("elsewhere"), fixture.path("d")).unwrap();
            std::fs::remove_file(fixture.path("d/f")).unwrap();
            refused(read(fixture, "d/f", json!({})).await, -32004, "ENOENT");
        }
    })
    .await;
}

#[tokio::test]
async fn a_detailed_read_names_the_version_that_it_read() {
    on_each_file_system(async |fixture| {
        fixture.put("f", "one");
        let metadata =
            fixture.call("fs/getMetadata", "f", json!({"detailed": true})).await.unwrap();
        for more in [json!({"detailed": true}), json!({"detailed": true, "followSymlinks": false})]
        {
            let result = read(fixture, "f", more).await.unwrap();
            let expected =
                json!({"dataBase64": "b25l", "versionTag": metadata["versionTag"].clone()});
            assert_eq!(result, expected);
        }
        fixture.put("f", "other");
        let result = read(fixture, "f", json!({"detailed": true})).await.unwrap();
        assert_eq!(content(&result["dataBase64"]), b"other");
        assert_ne!(result["versionTag"], metadata["versionTag"]);
        for more in [json!({"detailed": false}), json!({"detailed": null})] {
            assert_eq!(read(fixture, "f", more).await.unwrap().get("versionTag"), None);
        }
    })
    .await;
}
