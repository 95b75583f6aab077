//! Writes to files that cannot be replaced: other owners, flags, limits, a full disk.

use std::os::unix::fs::{MetadataExt, chown};
use std::path::Path;

use exec_server_testkit::TestExecutor;
use exec_server_testkit::fs_fixture::{code, on_each_file_system};
use rustix::fs::IFlags;
use serde_json::json;

use super::host::{
    Flagged, How, keeps, mode, names, needs_root, replaces, server_as_nobody, server_with_mounts,
    set_mode,
};

const NOBODY: u32 = 65534;

#[tokio::test]
async fn where_no_name_can_be_made_or_replaced_the_file_is_written_to() {
    if !needs_root() {
        return;
    }
    on_each_file_system(async |fixture| {
        let Some(server) = server_as_nobody().await else { return };
        let mut client = server.client().await;
        set_mode(fixture.root(), 0o755);
        for (dir, owner, bits) in
            [("closed", 0, 0o755), ("sticky", 0, 0o1777), ("mine", NOBODY, 0o555)]
        {
            std::fs::create_dir(fixture.path(dir)).unwrap();
            let path = fixture.put(&format!("{dir}/f"), "old");
            set_mode(&path, 0o666);
            chown(fixture.path(dir), Some(owner), None).unwrap();
            set_mode(&fixture.path(dir), bits);
            let inode = std::fs::metadata(&path).unwrap().ino();
            for how in How::ALL {
                keeps(how.write(&mut client, &path, b"new").await);
                assert_eq!(std::fs::read(&path).unwrap(), b"new");
                let now = std::fs::metadata(&path).unwrap();
                assert_eq!((now.ino(), now.uid(), mode(&path)), (inode, 0, 0o666));
                if dir != "sticky" {
                    let refused =
                        how.write(&mut client, &fixture.path(dir).join("x"), b"new").await;
                    assert_eq!(code(refused), (-32600, "EACCES".into()));
                }
            }
            assert_eq!(names(&fixture.path(dir)), ["f"]);
        }
    })
    .await;
}

#[tokio::test]
async fn an_ordinary_user_gains_nothing_by_replacing() {
    if !needs_root() {
        return;
    }
    on_each_file_system(async |fixture| {
        let Some(server) = server_as_nobody().await else { return };
        let mut client = server.client().await;
        set_mode(fixture.root(), 0o777);
        for how in How::ALL {
            // The directory allows the replacement, but the file denies writing.
            let path = fixture.put("f", "old");
            for (owner, bits) in [(0, 0o644), (NOBODY, 0o444)] {
                chown(&path, Some(owner), Some(owner)).unwrap();
                set_mode(&path, bits);
                let refused = how.write(&mut client, &path, b"new").await;
                assert_eq!(code(refused), (-32600, "EACCES".into()));
                assert_eq!(fixture.get("f"), b"old");
            }
            // Attributes that cannot be set on a new file force an in-place write.
            for (owner, group) in [(0, 0), (NOBODY, 0)] {
                chown(&path, Some(owner), Some(group)).unwrap();
                set_mode(&path, 0o666);
                keeps(how.write(&mut client, &path, b"new").await);
                let now = std::fs::metadata(&path).unwrap();
                assert_eq!((now.uid(), now.gid()), (owner, group));
            }
            // As with every write, setuid bits are cleared.
            chown(&path, Some(NOBODY), Some(NOBODY)).unwrap();
            set_mode(&path, 0o4755);
            replaces(how.write(&mut client, &path, b"new").await);
            assert_eq!(mode(&path), 0o755);
            // Neither reading the file nor listing the directory is required.
            set_mode(&path, 0o200);
            set_mode(fixture.root(), 0o333);
            for durability in ["none", "data", "full"] {
                let more =
                    json!({"durability": durability, "path": fixture.uri("f"), "dataBase64": "aGk="});
                replaces(client.call("fs/writeFile", more).await);
                assert_eq!((mode(&path), fixture.get("f")), (0o200, b"hi".to_vec()));
            }
            set_mode(fixture.root(), 0o777);
            std::fs::remove_file(&path).unwrap();
            assert!(names(fixture.root()).is_empty());
        }
    })
    .await;
}

#[tokio::test]
async fn flags_that_bind_even_root_are_heeded() {
    on_each_file_system(async |fixture| {
        for how in How::ALL {
            let path = fixture.put("f", "old");
            for flag in [IFlags::IMMUTABLE, IFlags::APPEND] {
                let Some(_flagged) = Flagged::new(&path, flag) else { return };
                let refused = how.write(&mut fixture.client, &path, b"new").await;
                assert_eq!(code(refused), (-32600, "EPERM".into()));
                assert_eq!(fixture.get("f"), b"old");
            }
            // In an append-only directory no name can be removed, not even a temporary one.
            let Some(_flagged) = Flagged::new(fixture.root(), IFlags::APPEND) else { return };
            keeps(how.write(&mut fixture.client, &path, b"new").await);
            assert_eq!(
                (names(fixture.root()), fixture.get("f")),
                (vec!["f".to_owned()], b"new".to_vec())
            );
        }
        let _flagged = Flagged::new(fixture.root(), IFlags::APPEND);
        replaces(fixture.write("new", b"new", json!({})).await);
        assert_eq!(names(fixture.root()), ["f", "new"]);
    })
    .await;
}

#[tokio::test]
async fn a_full_disk_leaves_the_old_file() {
    on_each_file_system(async |fixture| {
        let setup = format!("mount -t tmpfs -o size=256k none {}", fixture.root().display());
        let Some(server) = server_with_mounts(&setup).await else { return };
        let mut client = server.client().await;
        let seen = format!("/proc/{}/root{}", server.serving_pid(), fixture.root().display());
        let seen = Path::new(&seen);
        for how in How::ALL {
            for links in [1, 2] {
                std::fs::write(seen.join("f"), "old").unwrap();
                if links == 2 {
                    std::fs::hard_link(seen.join("f"), seen.join("g")).unwrap();
                }
                let refused = how.write(&mut client, &fixture.path("f"), &[b'n'; 400_000]).await;
                assert_eq!(refused.as_ref().unwrap_err()["code"], -32603, "{refused:?}");
                assert_eq!(std::fs::read(seen.join("f")).unwrap(), b"old");
                assert_eq!(names(seen).len(), links);
                // The failed write leaves no data on the disk.
                let written = how.write(&mut client, &fixture.path("f"), &[b'n'; 100_000]).await;
                written.unwrap();
                names(seen).iter().for_each(|name| std::fs::remove_file(seen.join(name)).unwrap());
            }
        }
    })
    .await;
}

#[tokio::test]
async fn a_limit_of_the_size_of_files_ends_a_write_and_not_the_server() {
    on_each_file_system(async |fixture| {
        let server = TestExecutor::builder().after("ulimit -f 200").start().await;
        let mut client = server.client().await;
        let path = fixture.put("f", "old");
        for how in How::ALL {
            let refused = how.write(&mut client, &path, &[b'n'; 400_000]).await;
            assert_eq!(code(refused), (-32603, "EFBIG".into()));
            let longer = json!({"path": fixture.uri("f"), "size": 400_000});
            assert_eq!(code(client.call("fs/truncate", longer).await), (-32603, "EFBIG".into()));
            assert_eq!(
                (names(fixture.root()), fixture.get("f")),
                (vec!["f".into()], b"old".to_vec())
            );
        }
        // Children of the server get the signal as usual.
        let script =
            format!("ulimit -f 1; head -c 100000 /dev/zero >{}", fixture.path("g").display());
        client.start("p", &["/bin/sh", "-c", &script], json!({})).await.unwrap();
        assert_eq!(client.finish("p").await.exit_code, 153);
    })
    .await;
}

#[tokio::test]
async fn files_without_a_name_are_not_needed() {
    on_each_file_system(async |fixture| {
        // Without /proc an unnamed file cannot be linked.
        let Some(server) = server_with_mounts("mount -t tmpfs none /proc").await else { return };
        let mut client = server.client().await;
        for how in How::ALL {
            let path = fixture.path("f");
            replaces(how.write(&mut client, &path, b"first").await);
            set_mode(&path, 0o600);
            let opened = how.open(&mut client, &path).await;
            client.reply(opened).await.unwrap();
            let aside = names(fixture.root()).into_iter().find(|name| name != "f").unwrap();
            assert_eq!(mode(&fixture.path(&aside)), 0o600, "others can read what only one should");
            client.call("fs/close", json!({"handleId": "f", "discard": true})).await.unwrap();
            replaces(how.write(&mut client, &path, b"second").await);
            assert_eq!((mode(&path), fixture.get("f")), (0o600, b"second".to_vec()));
            let more = json!({"path": fixture.uri("f"), "dataBase64": "", "ifAbsent": true});
            assert_eq!(code(client.call("fs/writeFile", more).await), (-32603, "EEXIST".into()));
            assert_eq!(names(fixture.root()), ["f"]);
            std::fs::remove_file(&path).unwrap();
        }
    })
    .await;
}
