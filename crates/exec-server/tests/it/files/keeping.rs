//! Attributes that a rewritten file keeps, and when it keeps its inode.

use std::os::unix::fs::{MetadataExt, chown, symlink};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use exec_server_testkit::fs_fixture::{kind, on_each_file_system};
use exec_server_testkit::{TestClient, TestExecutor};
use rustix::fs::{XattrFlags, getxattr, setxattr};
use serde_json::{Value, json};

use super::host::{
    How, is_root, keeps, mode, names, needs_root, replaces, server_with_mounts, set_mode,
};

const NOBODY: u32 = 65534;

#[tokio::test]
async fn the_mode_is_kept_and_a_new_file_respects_the_umask() {
    on_each_file_system(async |fixture| {
        let umask = TestExecutor::builder().after("umask 027").start().await;
        let mut client = umask.client().await;
        for how in How::ALL {
            for bits in [0o600, 0o444, 0o755, 0o666, 0o4755, 0o2770, 0o000] {
                // The kernel clears setuid bits when an ordinary user writes.
                if (bits & 0o200 == 0 || bits & 0o6000 != 0) && !is_root() {
                    continue;
                }
                let path = fixture.put("f", "old");
                set_mode(&path, bits);
                replaces(how.write(&mut client, &path, b"new").await);
                assert_eq!((mode(&path), fixture.get("f")), (bits, b"new".to_vec()), "{bits:o}");
                std::fs::remove_file(&path).unwrap();
            }
            let new = fixture.path("new");
            replaces(how.write(&mut client, &new, b"new").await);
            assert_eq!(mode(&new), 0o640);
            std::fs::remove_file(&new).unwrap();
        }
    })
    .await;
}

#[tokio::test]
async fn owner_group_attributes_and_rights_stay() {
    if !needs_root() {
        return;
    }
    on_each_file_system(async |fixture| {
        // Default ACLs of the directory; the file has another ACL, or none.
        let inherited = acl(&[(1, 7), (2, 7), (4, 7), (16, 7), (32, 7)]);
        let own = acl(&[(1, 6), (2, 4), (4, 0), (16, 4), (32, 0)]);
        let dir = fixture.root().to_owned();
        set(&dir, "system.posix_acl_default", &inherited);
        for how in How::ALL {
            for rights in [Some(&own), None] {
                let path = fixture.put("f", "old");
                chown(&path, Some(NOBODY), Some(NOBODY - 1)).unwrap();
                set(&path, "user.note", b"keep me");
                set(&path, "user.empty", b"");
                match rights {
                    Some(rights) => set(&path, "system.posix_acl_access", rights),
                    None => rustix::fs::removexattr(&path, "system.posix_acl_access").unwrap(),
                }
                let bits = mode(&path);
                replaces(how.write(&mut fixture.client, &path, b"new").await);
                let now = std::fs::metadata(&path).unwrap();
                assert_eq!((now.uid(), now.gid()), (NOBODY, NOBODY - 1));
                assert_eq!(get(&path, "user.note").unwrap(), b"keep me");
                assert_eq!(get(&path, "user.empty").unwrap(), b"");
                assert_eq!(get(&path, "system.posix_acl_access").as_ref(), rights);
                assert_eq!((mode(&path), fixture.get("f")), (bits, b"new".to_vec()));
                std::fs::remove_file(&path).unwrap();
            }
            // A new file has the usual attributes.
            let (new, other) = (fixture.path("new"), fixture.put("other", ""));
            replaces(how.write(&mut fixture.client, &new, b"new").await);
            let rights = |path| (get(path, "system.posix_acl_access").unwrap(), mode(path));
            assert_eq!(rights(&new), rights(&other));
            std::fs::remove_file(&new).unwrap();
        }
        assert_eq!(names(&dir), ["other"]);
    })
    .await;
}

#[tokio::test]
async fn a_link_stays_a_link_and_its_target_is_replaced() {
    on_each_file_system(async |fixture| {
        std::fs::create_dir(fixture.path("d")).unwrap();
        for how in How::ALL {
            let target = fixture.put("d/f", "old");
            set_mode(&target, 0o600);
            let inode = std::fs::metadata(&target).unwrap().ino();
            let _ = std::fs::remove_file(fixture.path("l"));
            symlink("d/f", fixture.path("l")).unwrap();
            let link = fixture.path("l");
            replaces(how.write(&mut fixture.client, &link, b"new").await);
            assert_eq!(std::fs::read_link(link).unwrap(), Path::new("d/f"));
            assert_eq!((mode(&target), fixture.get("d/f")), (0o600, b"new".to_vec()));
            assert_ne!(std::fs::metadata(&target).unwrap().ino(), inode);
            assert_eq!((names(fixture.root()).len(), names(&fixture.path("d")).len()), (2, 1));
        }
    })
    .await;
}

#[tokio::test]
async fn a_file_with_several_names_stays_the_same_file() {
    on_each_file_system(async |fixture| {
        for how in How::ALL {
            for size in [0, 3, 100_000, 1_000_000] {
                let one = fixture.put("one", vec![b'o'; 50_000]);
                let _ = std::fs::remove_file(fixture.path("two"));
                std::fs::hard_link(&one, fixture.path("two")).unwrap();
                let inode = std::fs::metadata(&one).unwrap().ino();
                let content = vec![b'n'; size];
                keeps(how.write(&mut fixture.client, &one, &content).await);
                assert!(fixture.get("one") == content && fixture.get("two") == content);
                assert_eq!(std::fs::metadata(&one).unwrap().ino(), inode);
                assert_eq!(names(fixture.root()), ["one", "two"]);
            }
        }
    })
    .await;
}

#[tokio::test]
async fn a_mount_point_stays_the_same_file() {
    on_each_file_system(async |fixture| {
        let (below, mounted) = (fixture.put("below", "below"), fixture.put("mounted", "old"));
        let setup = format!("mount --bind {} {}", mounted.display(), below.display());
        let Some(server) = server_with_mounts(&setup).await else { return };
        let mut client = server.client().await;
        for (how, content) in [(How::Whole, b"first"), (How::Blocks, b"other")] {
            keeps(how.write(&mut client, &below, content).await);
            assert_eq!(fixture.get("mounted"), content);
            assert_eq!(fixture.get("below"), b"below");
            assert_eq!(names(fixture.root()), ["below", "mounted"]);
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_sees_the_old_file_or_the_new_one() {
    on_each_file_system(async |fixture| {
        let path = fixture.put("f", vec![0; 1000]);
        let (is_over, path) = (AtomicBool::new(false), &path);
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let mut seen = 0;
                while !is_over.load(Ordering::Relaxed) {
                    let content = std::fs::read(path).unwrap();
                    let first = content[0];
                    assert_eq!(content.len(), 1000 + 40_000 * usize::from(first));
                    assert!(content.iter().all(|byte| *byte == first), "mixed");
                    seen += 1;
                }
                seen
            });
            tokio::task::block_in_place(|| {
                tokio::runtime::Handle::current().block_on(write_many(&mut fixture.client, path));
            });
            is_over.store(true, Ordering::Relaxed);
            assert!(reader.join().unwrap() > 10);
        });
        assert_eq!(names(fixture.root()), ["f"]);
    })
    .await;
}

async fn write_many(client: &mut TestClient, path: &Path) {
    for number in 1..=100_u8 {
        let byte = number % 20;
        let content = vec![byte; 1000 + 40_000 * usize::from(byte)];
        let how = How::ALL[usize::from(number % 2)];
        replaces(how.write(client, path, &content).await);
    }
}

#[tokio::test]
async fn durability_is_one_of_three() {
    on_each_file_system(async |fixture| {
        fixture.put("two", "old");
        std::fs::hard_link(fixture.path("two"), fixture.path("names")).unwrap();
        for value in [json!("none"), json!("data"), json!("full"), Value::Null] {
            let more = json!({"durability": value});
            assert_eq!(fixture.write("f", b"new", more.clone()).await.unwrap(), json!({}));
            let in_place = fixture.write("two", b"new", more.clone()).await.unwrap();
            assert_eq!(in_place, json!({"inPlace": true}));
            let open = json!({"handleId": "h", "mode": "replace", "durability": value});
            fixture.call("fs/open", "g", open).await.unwrap();
            let closed = fixture.client.call("fs/close", json!({"handleId": "h"})).await.unwrap();
            assert_eq!(closed, json!({}));
        }
        for value in [json!("all"), json!(""), json!("Full"), json!(1), json!(true)] {
            let more = json!({"durability": value, "handleId": "h", "mode": "replace"});
            assert_eq!(kind(fixture.write("f", b"x", more.clone()).await).0, -32602);
            assert_eq!(kind(fixture.call("fs/open", "f", more).await).0, -32602);
        }
        assert_eq!(fixture.get("f"), b"new");
        assert_eq!(fixture.get("g"), b"");
    })
    .await;
}

/// An ACL in the kernel's format; the second kind of entry is for one user.
fn acl(entries: &[(u16, u16)]) -> Vec<u8> {
    let mut bytes = 2_u32.to_le_bytes().to_vec();
    for (tag, rights) in entries {
        let id = if *tag == 2 { 1234 } else { u32::MAX };
        bytes.extend(tag.to_le_bytes());
        bytes.extend(rights.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

fn set(path: &Path, name: &str, value: &[u8]) {
    setxattr(path, name, value, XattrFlags::empty()).expect("the file system has attributes");
}

fn get(path: &Path, name: &str) -> Option<Vec<u8>> {
    let mut value = [0; 1000];
    let len = getxattr(path, name, &mut value[..]).ok()?;
    Some(value[..len].to_vec())
}
