//! `fs/readFile`.

use std::fs::OpenOptions;
use std::io::{Read, Write};

use exec_server_testkit::fs_fixture::{FsFixture, content, on_each_file_system, uri};
use serde_json::{Value, json};

use super::{both_ways, put_fifo, put_link, put_socket, refused, serve_as_ordinary_user, set_mode};

async fn read(desk: &mut FsFixture, name: &str, more: Value) -> Result<Value, Value> {
    desk.call("fs/readFile", name, more).await
}

#[tokio::test]
async fn a_file_is_read_whole_whatever_its_size() {
    on_each_file_system(async |desk| {
        let edges = [128 * 1024, 192 * 1024, 384 * 1024].map(|size| [size - 1, size, size + 1]);
        for size in [0, 1, 2, 3, 4096, 3_000_000].into_iter().chain(edges.into_iter().flatten()) {
            let bytes: Vec<u8> = (0..size).map(|at| (at * 31 % 251) as u8).collect();
            desk.put("f", &bytes);
            // Once from wherever it is, once from memory.
            for more in both_ways().into_iter().chain(both_ways()) {
                let result = read(desk, "f", more).await.unwrap();
                assert_eq!(result.as_object().unwrap().len(), 1);
                assert!(content(&result["dataBase64"]) == bytes, "{size}");
            }
        }
    })
    .await;
}

#[tokio::test]
async fn base64_is_of_the_standard_alphabet_and_padded() {
    on_each_file_system(async |desk| {
        for (bytes, text) in
            [(&b""[..], ""), (b"hello", "aGVsbG8="), (b"\xff", "/w=="), (b"\xfb\xef\xbe", "++++")]
        {
            desk.put("f", bytes);
            for more in both_ways() {
                let result = read(desk, "f", more).await;
                assert_eq!(result.unwrap(), json!({"dataBase64": text}));
            }
        }
    })
    .await;
}

#[tokio::test]
async fn what_is_not_there_or_not_a_file_is_refused() {
    on_each_file_system(async |desk| {
        desk.put("f", "");
        put_link(desk, "to nothing", "nothing");
        let too_long = "n".repeat(256);
        for more in both_ways() {
            for _ in 0..2 {
                refused(read(desk, "nope", more.clone()).await, -32004, "ENOENT");
                refused(read(desk, "nope/x", more.clone()).await, -32004, "ENOENT");
                refused(read(desk, "f/x", more.clone()).await, -32603, "ENOTDIR");
                refused(read(desk, &too_long, more.clone()).await, -32603, "ENAMETOOLONG");
                refused(read(desk, "", more.clone()).await, -32600, "not_a_file");
                refused(read(desk, "/", more.clone()).await, -32600, "not_a_file");
                refused(read(desk, "/dev/zero", more.clone()).await, -32600, "not_a_file");
            }
        }
        let error = read(desk, "nope", json!({})).await.unwrap_err();
        assert_eq!(error["message"], "No such file or directory (os error 2)");
        assert_eq!(error["data"], json!({"kind": "not_found", "errno": "ENOENT"}));
        let error = read(desk, "", json!({})).await.unwrap_err();
        let text = format!("path `{}` is not a file", desk.root().display());
        assert_eq!(error["message"].as_str().unwrap().replace("/`", "`"), text);
    })
    .await;
}

#[tokio::test]
async fn a_pipe_or_a_socket_is_refused_without_waiting_for_it() {
    on_each_file_system(async |desk| {
        let fifo = put_fifo(desk, "fifo");
        let _socket = put_socket(desk, "sock");
        put_link(desk, "to fifo", "fifo");
        for more in both_ways() {
            refused(read(desk, "fifo", more.clone()).await, -32600, "not_a_file");
            refused(read(desk, "sock", more).await, -32603, "ENXIO");
        }
        refused(read(desk, "to fifo", json!({})).await, -32600, "not_a_file");
        // Nothing is read from a filled pipe.
        let mut pipe = OpenOptions::new().read(true).write(true).open(fifo).unwrap();
        pipe.write_all(b"precious").unwrap();
        refused(read(desk, "fifo", json!({})).await, -32600, "not_a_file");
        let mut bytes = [0; 8];
        pipe.read_exact(&mut bytes).unwrap();
        assert_eq!(&bytes, b"precious");
    })
    .await;
}

#[tokio::test]
async fn links_are_followed_unless_that_is_refused() {
    on_each_file_system(async |desk| {
        std::fs::create_dir(desk.path("dir")).unwrap();
        desk.put("dir/f", "content");
        put_link(desk, "link", "dir/f");
        put_link(desk, "second", "link");
        put_link(desk, "dl", "dir");
        put_link(desk, "dangling", "nothing");
        put_link(desk, "loop", "loop");
        let followed =
            [json!({}), json!({"followSymlinks": true}), json!({"followSymlinks": null})];
        // A name that is not known is ignored, even if it looks familiar.
        for more in followed.into_iter().chain([json!({"follow_symlinks": false})]) {
            for name in ["link", "second", "dl/f", "dir/f"] {
                let result = read(desk, name, more.clone()).await.unwrap();
                assert_eq!(content(&result["dataBase64"]), b"content", "{name} {more}");
            }
            refused(read(desk, "dangling", more.clone()).await, -32004, "ENOENT");
            refused(read(desk, "loop", more.clone()).await, -32603, "ELOOP");
            refused(read(desk, "loop/f", more.clone()).await, -32603, "ELOOP");
            refused(read(desk, "dl", more).await, -32600, "not_a_file");
        }
        let no_follow = json!({"followSymlinks": false});
        let result = read(desk, "dir/f", no_follow.clone()).await.unwrap();
        assert_eq!(content(&result["dataBase64"]), b"content");
        for name in ["link", "second", "dl", "dangling", "loop"] {
            refused(read(desk, name, no_follow.clone()).await, -32603, "ELOOP");
        }
        for name in ["dl/f", "dl/nothing", "loop/f", "dangling/f", "link/x"] {
            refused(read(desk, name, no_follow.clone()).await, -32603, "ENOTDIR");
        }
    })
    .await;
}

#[tokio::test]
async fn a_directory_that_may_only_be_passed_through_is_enough() {
    on_each_file_system(async |desk| {
        for name in ["passage", "wall"] {
            std::fs::create_dir(desk.path(name)).unwrap();
            desk.put(&format!("{name}/f"), "content");
        }
        desk.put("secret", "content");
        if !serve_as_ordinary_user(desk).await {
            return;
        }
        set_mode(desk, "passage", 0o300);
        set_mode(desk, "wall", 0o600);
        set_mode(desk, "secret", 0o200);
        for more in both_ways() {
            for _ in 0..2 {
                let result = read(desk, "passage/f", more.clone()).await;
                assert_eq!(result.unwrap(), json!({"dataBase64": "Y29udGVudA=="}));
                refused(read(desk, "wall/f", more.clone()).await, -32600, "EACCES");
                refused(read(desk, "secret", more.clone()).await, -32600, "EACCES");
            }
        }
        let error = read(desk, "secret", json!({})).await.unwrap_err();
        assert_eq!(error["message"], "Permission denied (os error 13)");
        assert_eq!(error["data"]["kind"], "permission_denied");
        set_mode(desk, "wall", 0o700);
        set_mode(desk, "passage", 0o700);
    })
    .await;
}

#[tokio::test]
async fn files_that_the_kernel_makes_up_are_read_to_their_end() {
    on_each_file_system(async |desk| {
        for name in
            ["/proc/version", "/proc/filesystems", "/sys/kernel/mm/transparent_hugepage/enabled"]
        {
            let Ok(bytes) = std::fs::read(name) else { continue };
            for more in both_ways() {
                let result = read(desk, name, more).await.unwrap();
                assert_eq!(content(&result["dataBase64"]), bytes, "{name}");
            }
        }
        // A file of many pages that says its size is zero.
        if let Ok(bytes) = std::fs::read("/proc/kallsyms") {
            let result = read(desk, "/proc/kallsyms", json!({})).await.unwrap();
            // Symbols come and go, but not most of them.
            assert!(content(&result["dataBase64"]).len() > bytes.len() / 2);
        }
    })
    .await;
}

#[tokio::test]
async fn a_name_may_hold_any_bytes() {
    on_each_file_system(async |desk| {
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
            let path = desk.root().join(std::ffi::OsStr::from_bytes(name));
            std::fs::write(&path, name).unwrap();
            for more in both_ways() {
                let mut params = json!({"path": desk.uri_of_bytes(name)});
                params.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
                let result = desk.client.call("fs/readFile", params).await.unwrap();
                assert_eq!(content(&result["dataBase64"]), name, "{}", uri(&path));
            }
        }
    })
    .await;
}

#[tokio::test]
async fn every_read_sees_what_is_there_now() {
    on_each_file_system(async |desk| {
        std::fs::create_dir(desk.path("d")).unwrap();
        for round in 0..20 {
            desk.put("d/f", format!("written {round}"));
            assert_eq!(desk.read("d/f").await.unwrap(), format!("written {round}").as_bytes());
            desk.put("new", format!("renamed {round}"));
            std::fs::rename(desk.path("new"), desk.path("d/f")).unwrap();
            assert_eq!(desk.read("d/f").await.unwrap(), format!("renamed {round}").as_bytes());
            std::fs::rename(desk.path("d"), desk.path("elsewhere")).unwrap();
            refused(read(desk, "d/f", json!({})).await, -32004, "ENOENT");
            put_link(desk, "d", "elsewhere");
            assert_eq!(desk.read("d/f").await.unwrap(), format!("renamed {round}").as_bytes());
            std::fs::remove_file(desk.path("d")).unwrap();
            std::fs::rename(desk.path("elsewhere"), desk.path("d")).unwrap();
            std::fs::remove_file(desk.path("d/f")).unwrap();
            refused(read(desk, "d/f", json!({})).await, -32004, "ENOENT");
        }
    })
    .await;
}

#[tokio::test]
async fn a_detailed_read_names_the_version_that_it_read() {
    on_each_file_system(async |desk| {
        desk.put("f", "one");
        let metadata = desk.call("fs/getMetadata", "f", json!({"detailed": true})).await.unwrap();
        for more in [json!({"detailed": true}), json!({"detailed": true, "followSymlinks": false})]
        {
            let result = read(desk, "f", more).await.unwrap();
            let expected =
                json!({"dataBase64": "b25l", "versionTag": metadata["versionTag"].clone()});
            assert_eq!(result, expected);
        }
        desk.put("f", "other");
        let result = read(desk, "f", json!({"detailed": true})).await.unwrap();
        assert_eq!(content(&result["dataBase64"]), b"other");
        assert_ne!(result["versionTag"], metadata["versionTag"]);
        for more in [json!({"detailed": false}), json!({"detailed": null})] {
            assert_eq!(read(desk, "f", more).await.unwrap().get("versionTag"), None);
        }
    })
    .await;
}
