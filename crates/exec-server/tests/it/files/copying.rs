//! `fs/copy` of files and links.

use std::io::Read;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, chown, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;

use exec_server_testkit::fs_fixture::{FsFixture, code, kind, on_each_file_system, uri};
use rustix::fs::{OFlags, XattrFlags, getxattr, setxattr};
use serde_json::{Value, json};

use super::host::{is_root, make_fifo, mode, names, needs_root, server_with_mounts, set_mode};

#[tokio::test]
async fn a_copy_has_the_content_and_the_permission_bits() {
    on_each_file_system(async |fixture| {
        for (number, size) in [0, 1, 4096, 300_000, 5_000_000].into_iter().enumerate() {
            for bits in [0o600, 0o755, 0o444, 0o000, 0o6755] {
                // An ordinary user could not write the copy again.
                if bits & 0o200 == 0 && !is_root() {
                    continue;
                }
                let bytes: Vec<u8> = [b'a', b'b', number as u8].repeat(size / 3 + 1);
                let source = fixture.put("source", &bytes[..size]);
                set_mode(&source, bits);
                copies(copy(fixture, "source", "copy").await);
                assert!(fixture.get("copy") == bytes[..size], "{size}");
                // Set-user-id bits are not copied.
                assert_eq!(mode(&fixture.path("copy")), bits & 0o777);
                assert_eq!(mode(&source), bits);
                std::fs::remove_file(fixture.path("source")).unwrap();
                // The next copy replaces an existing one, and then creates a new one.
                if bits == 0o755 {
                    std::fs::remove_file(fixture.path("copy")).unwrap();
                }
            }
        }
        assert_eq!(names(fixture.root()), ["copy"]);
    })
    .await;
}

#[tokio::test]
async fn a_copy_over_a_file_keeps_whose_it_is() {
    if !needs_root() {
        return;
    }
    on_each_file_system(async |fixture| {
        let source = fixture.put("source", "new");
        set_mode(&source, 0o640);
        let existing = fixture.put("existing", "a longer content");
        set_mode(&existing, 0o777);
        chown(&existing, Some(65534), Some(65533)).unwrap();
        for (path, value) in [(&source, b"source"), (&existing, b"target")] {
            setxattr(path, "user.note", value, XattrFlags::empty()).unwrap();
        }
        copies(copy(fixture, "source", "existing").await);
        let now = std::fs::metadata(&existing).unwrap();
        assert_eq!((now.uid(), now.gid(), mode(&existing)), (65534, 65533, 0o640));
        assert_eq!(fixture.get("existing"), b"new");
        let mut note = [0; 6];
        getxattr(&existing, "user.note", &mut note).unwrap();
        assert_eq!(&note, b"target");
        // A file with several names stays the same file.
        std::fs::hard_link(&existing, fixture.path("other")).unwrap();
        fixture.put("source", "newer");
        set_mode(&source, 0o600);
        copies(copy(fixture, "source", "existing").await);
        assert_eq!((fixture.get("other"), mode(&existing)), (b"newer".to_vec(), 0o600));
        assert_eq!(std::fs::metadata(&existing).unwrap().ino(), now.ino());
        assert_eq!(names(fixture.root()), ["existing", "other", "source"]);
    })
    .await;
}

#[tokio::test]
async fn links_are_followed_at_the_destination_and_copied_as_links_from_the_source() {
    on_each_file_system(async |fixture| {
        fixture.put("f", "content");
        fixture.put("target", "old");
        symlink("target", fixture.path("l")).unwrap();
        symlink("made", fixture.path("dangling")).unwrap();
        for (link, target) in [("l", "target"), ("dangling", "made")] {
            copies(copy(fixture, "f", link).await);
            assert!(fixture.path(link).is_symlink());
            assert_eq!(fixture.get(target), b"content");
        }
        symlink("any where/ü", fixture.path("odd")).unwrap();
        for (link, text) in [("odd", "any where/ü"), ("l", "target")] {
            for recursive in [false, true] {
                let to = format!("{link} copy {recursive}");
                let params = params(&fixture.path(link), &fixture.path(&to), recursive);
                copies(fixture.client.call("fs/copy", params).await);
                assert_eq!(std::fs::read_link(fixture.path(&to)).unwrap(), Path::new(text));
            }
        }
        for existing in ["f", "l", "odd"] {
            let refused = code(copy(fixture, "odd", existing).await);
            assert_eq!(refused, (-32603, "EEXIST".into()), "{existing}");
        }
        assert_eq!(fixture.get("f"), b"content");
    })
    .await;
}

#[tokio::test]
async fn a_file_is_never_copied_onto_itself() {
    on_each_file_system(async |fixture| {
        std::fs::create_dir(fixture.path("d")).unwrap();
        let path = fixture.put("f", "precious");
        let inode = std::fs::metadata(&path).unwrap().ino();
        symlink("../f", fixture.path("d/l")).unwrap();
        symlink("d/l", fixture.path("ll")).unwrap();
        symlink("d", fixture.path("dl")).unwrap();
        std::fs::hard_link(&path, fixture.path("hard")).unwrap();
        for (from, to) in
            [("f", "f"), ("f", "d/l"), ("f", "ll"), ("f", "hard"), ("hard", "f"), ("f", "dl/l")]
        {
            let refused = kind(copy(fixture, from, to).await);
            assert_eq!(refused, (-32600, "same_file".into()), "{from} {to}");
            assert_eq!(fixture.get("f"), b"precious");
        }
        assert_eq!(std::fs::metadata(&path).unwrap().ino(), inode);
        assert_eq!(names(fixture.root()), ["d", "dl", "f", "hard", "ll"]);
    })
    .await;
}

#[tokio::test]
async fn pipes_sockets_and_devices_are_neither_copied_nor_waited_for() {
    on_each_file_system(async |fixture| {
        fixture.put("f", "content");
        make_fifo(&fixture.path("fifo"));
        symlink("fifo", fixture.path("to fifo")).unwrap();
        let _socket = UnixListener::bind(fixture.path("sock")).unwrap();
        for from in ["fifo", "sock", "/dev/zero", "/dev/null"] {
            let refused = kind(copy(fixture, from, "new").await);
            assert_eq!(refused, (-32600, "not_a_file".into()), "{from}");
        }
        for to in ["fifo", "to fifo", "sock"] {
            assert_eq!(code(copy(fixture, "f", to).await), (-32603, "ENXIO".into()), "{to}");
        }
        let mut options = std::fs::OpenOptions::new();
        options.read(true).custom_flags(OFlags::NONBLOCK.bits().cast_signed());
        let mut reader = options.open(fixture.path("fifo")).unwrap();
        for to in ["fifo", "to fifo", "/dev/null"] {
            let refused = kind(copy(fixture, "f", to).await);
            assert_eq!(refused, (-32600, "not_a_file".into()), "{to}");
        }
        assert_eq!(reader.read(&mut [0; 10]).unwrap(), 0);
        assert_eq!(names(fixture.root()), ["f", "fifo", "sock", "to fifo"]);
    })
    .await;
}

#[tokio::test]
async fn a_failed_copy_changes_nothing() {
    on_each_file_system(async |fixture| {
        std::fs::create_dir(fixture.path("d")).unwrap();
        fixture.put("f", "content");
        for (from, to, expected) in [
            ("missing", "new", (-32004, "ENOENT")),
            ("f", "missing/new", (-32004, "ENOENT")),
            ("f", "d", (-32603, "EISDIR")),
            ("f", "/", (-32603, "EISDIR")),
            ("f", "f/x", (-32603, "ENOTDIR")),
            ("f/x", "new", (-32603, "ENOTDIR")),
        ] {
            let refused = code(copy(fixture, from, to).await);
            assert_eq!((refused.0, refused.1.as_str()), expected, "{from} {to}");
        }
        for directory in ["d", "/"] {
            let refused = kind(copy(fixture, directory, "new").await);
            assert_eq!(refused, (-32600, "needs_recursive".into()));
        }
        let mut no_choice = params(&fixture.path("f"), &fixture.path("new"), false);
        for recursive in [json!(null), json!(0)] {
            no_choice["recursive"] = recursive;
            let refused = fixture.client.call("fs/copy", no_choice.clone()).await;
            assert_eq!(kind(refused).0, -32602);
        }
        assert_eq!(names(fixture.root()), ["d", "f"]);
        assert_eq!(fixture.get("f"), b"content");
    })
    .await;
}

#[tokio::test]
async fn a_full_disk_leaves_the_old_destination() {
    on_each_file_system(async |fixture| {
        let source = fixture.put("source", vec![b'n'; 400_000]);
        std::fs::create_dir(fixture.path("small")).unwrap();
        let small = fixture.path("small");
        let setup = format!("mount -t tmpfs -o size=256k none {}", small.display());
        let Some(server) = server_with_mounts(&setup).await else { return };
        let mut client = server.client().await;
        let seen = format!("/proc/{}/root{}", server.serving_pid(), small.display());
        let seen = Path::new(&seen);
        std::fs::write(seen.join("f"), "old").unwrap();
        let params = params(&source, &small.join("f"), false);
        assert_eq!(code(client.call("fs/copy", params).await), (-32603, "ENOSPC".into()));
        assert_eq!(std::fs::read(seen.join("f")).unwrap(), b"old");
        assert_eq!(names(seen), ["f"]);
    })
    .await;
}

#[tokio::test]
async fn holes_are_copied_as_zeros_or_holes() {
    const SIZE: u64 = 32 << 20;
    on_each_file_system(async |fixture| {
        let file = std::fs::File::create(fixture.path("sparse")).unwrap();
        file.set_len(SIZE).unwrap();
        for at in [0, SIZE / 2, SIZE - 4] {
            file.write_all_at(b"data", at).unwrap();
        }
        copies(copy(fixture, "sparse", "copy").await);
        let copied = fixture.get("copy");
        assert_eq!(copied.len() as u64, SIZE);
        assert!(copied == fixture.get("sparse"));
        // A sparse file without data still has a length.
        file.set_len(0).unwrap();
        file.set_len(1 << 20).unwrap();
        copies(copy(fixture, "sparse", "copy").await);
        assert!(fixture.get("copy") == vec![0; 1 << 20]);
    })
    .await;
}

#[tokio::test]
async fn files_that_the_kernel_makes_up_are_copied_whole() {
    on_each_file_system(async |fixture| {
        // These files report a size of zero.
        for from in ["/proc/self/limits", "/proc/cpuinfo"] {
            let Ok(content) = std::fs::read(from) else { continue };
            copies(copy(fixture, from, "copy").await);
            let copied = fixture.get("copy");
            assert!(!copied.is_empty() && copied[..10] == content[..10], "{from}");
            // It has the bits of its source, which keep an ordinary user from writing it again.
            std::fs::remove_file(fixture.path("copy")).unwrap();
        }
        let version = std::fs::read("/proc/version").unwrap();
        copies(copy(fixture, "/proc/version", "copy").await);
        assert_eq!(fixture.get("copy"), version);
    })
    .await;
}

#[track_caller]
fn copies(answer: Result<Value, Value>) {
    assert_eq!(answer, Ok(json!({})));
}

async fn copy(fixture: &mut FsFixture, from: &str, to: &str) -> Result<Value, Value> {
    let params = params(&fixture.path(from), &fixture.path(to), false);
    fixture.client.call("fs/copy", params).await
}

fn params(from: &Path, to: &Path, recursive: bool) -> Value {
    json!({"sourcePath": uri(from), "destinationPath": uri(to), "recursive": recursive})
}
