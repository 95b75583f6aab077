//! `fs/copy` of directories.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;

use exec_server_testkit::TestExecutor;
use exec_server_testkit::fs_fixture::{FsFixture, code, kind, on_each_file_system};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use serde_json::{Value, json};

use super::layout::make;
use super::{set_mode, start_as_ordinary_user};

#[tokio::test]
async fn a_tree_is_copied_with_all_that_is_in_it() {
    on_each_file_system(async |fixture| {
        make(fixture, &["src/a/b/c", "src/f", "src/empty/deep/", "src/.hidden"]);
        symlink("../f", fixture.path("src/a/up")).unwrap();
        symlink("/no where", fixture.path("src/dangling")).unwrap();
        symlink("a", fixture.path("src/to directory")).unwrap();
        let before = tree(&fixture.path("src"));
        assert_eq!(copy(fixture, "src", "dst").await.unwrap(), json!({}));
        assert_eq!(tree(&fixture.path("dst")), before);
        assert_eq!(tree(&fixture.path("src")), before, "the source stays as it was");
        assert_eq!(before["to directory"], "-> a");
        assert_eq!(before.len(), 10);
        // A copy is not the same file.
        fixture.put("src/f", "changed");
        assert_eq!(fixture.get("dst/f"), b"src/f");
    })
    .await;
}

#[tokio::test]
async fn a_directory_is_copied_only_on_purpose() {
    on_each_file_system(async |fixture| {
        make(fixture, &["src/f"]);
        let mut params = json!({
            "sourcePath": fixture.uri("src"), "destinationPath": fixture.uri("dst"), "recursive": false,
        });
        let refusal = fixture.client.call("fs/copy", params.clone()).await;
        assert_eq!(kind(refusal), (-32600, "needs_recursive".into()));
        for wrong in [json!(null), json!("true"), json!(1)] {
            params["recursive"] = wrong;
            let refusal = fixture.client.call("fs/copy", params.clone()).await;
            assert_eq!(kind(refusal), (-32602, "invalid_params".into()));
        }
        params.as_object_mut().unwrap().remove("recursive");
        let refusal = fixture.client.call("fs/copy", params).await;
        assert_eq!(kind(refusal), (-32602, "invalid_params".into()));
        assert!(!fixture.path("dst").exists());
    })
    .await;
}

#[tokio::test]
async fn parents_of_the_destination_are_made_and_an_empty_directory_is_copied() {
    on_each_file_system(async |fixture| {
        make(fixture, &["empty/", "src/f", "real/"]);
        symlink("real", fixture.path("link")).unwrap();
        copy(fixture, "empty", "x/y/z").await.unwrap();
        assert_eq!(tree(&fixture.path("x")), listing(&[("y", "/"), ("y/z", "/")]));
        copy(fixture, "src", "link/a/b").await.unwrap();
        let expected = listing(&[("a", "/"), ("a/b", "/"), ("a/b/f", "src/f")]);
        assert_eq!(tree(&fixture.path("real")), expected);
    })
    .await;
}

#[tokio::test]
async fn an_existing_destination_is_merged() {
    on_each_file_system(async |fixture| {
        make(fixture, &["src/both", "src/sub/new", "src/sub/both"]);
        make(fixture, &["dst/both", "dst/own", "dst/sub/both", "dst/sub/own/x", "real/"]);
        set_mode(fixture, "dst/sub", 0o711);
        copy(fixture, "src", "dst").await.unwrap();
        let expected = listing(&[
            ("both", "src/both"),
            ("own", "dst/own"),
            ("sub", "/"),
            ("sub/both", "src/sub/both"),
            ("sub/new", "src/sub/new"),
            ("sub/own", "/"),
            ("sub/own/x", "dst/sub/own/x"),
        ]);
        assert_eq!(tree(&fixture.path("dst")), expected);
        assert_eq!(mode(fixture, "dst/sub"), 0o711, "a directory that was there stays as it was");
        // Again, and through a link to the destination.
        copy(fixture, "src", "dst").await.unwrap();
        symlink("real", fixture.path("link")).unwrap();
        copy(fixture, "src", "link").await.unwrap();
        assert_eq!(tree(&fixture.path("real")), tree(&fixture.path("src")));
    })
    .await;
}

#[tokio::test]
async fn a_directory_counts_once_however_it_is_copied() {
    on_each_file_system(async |fixture| {
        make(fixture, &["src/one/two/", "dst/one/link"]);
        symlink("target", fixture.path("src/one/link")).unwrap();
        let error = copy(fixture, "src", "dst").await.unwrap_err();
        // The order of the two names is the file system's: `two` is copied before the link, or not at all.
        let copied = if fixture.path("dst/one/two").exists() { 2 } else { 1 };
        assert_eq!(error["data"]["completed"], copied, "{error}");
    })
    .await;
}

#[tokio::test]
async fn an_existing_link_ends_the_copy_with_a_progress_count() {
    on_each_file_system(async |fixture| {
        make(fixture, &["src/sub/", "dst/sub/link", "top/", "top2/"]);
        symlink("target", fixture.path("src/sub/link")).unwrap();
        let error = copy(fixture, "src", "dst").await.unwrap_err();
        assert_eq!(error["code"], -32603);
        let place = fixture.path("src/sub/link");
        let data = json!({"kind": "incomplete", "errno": "EEXIST", "completed": 1,
            "failedPath": fixture.uri("src/sub/link")});
        assert_eq!(error["data"], data);
        let text = format!(
            "copied 1 entries, then failed at `{}`: File exists (os error 17)",
            place.display()
        );
        assert_eq!(error["message"], text);
        assert_eq!(fixture.get("dst/sub/link"), b"dst/sub/link");
        // The link conflicts with itself; if nothing was copied, no count is reported.
        symlink("target", fixture.path("top/link")).unwrap();
        copy(fixture, "top", "top2").await.unwrap();
        let refusal = copy(fixture, "top", "top2").await;
        assert_eq!(code(refusal.clone()), (-32603, "EEXIST".into()));
        assert_eq!(kind(refusal).1, "already_exists");
    })
    .await;
}

#[tokio::test]
async fn pipes_and_sockets_are_left_out_and_never_written_to() {
    on_each_file_system(async |fixture| {
        make(fixture, &["src/f", "other/pipe", "dst/"]);
        mknodat(CWD, fixture.path("src/pipe"), FileType::Fifo, Mode::RWXU, 0).unwrap();
        let _listener = UnixListener::bind(fixture.path("src/socket")).unwrap();
        copy(fixture, "src", "dst").await.unwrap();
        assert_eq!(tree(&fixture.path("dst")), listing(&[("f", "src/f")]));
        mknodat(CWD, fixture.path("dst/pipe"), FileType::Fifo, Mode::RWXU, 0).unwrap();
        copy(fixture, "other", "dst").await.unwrap_err();
        // A reader makes a pipe writable, and still it is no file.
        let reader = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::NONBLOCK;
        let _reader = rustix::fs::open(fixture.path("dst/pipe"), reader, Mode::empty()).unwrap();
        assert_eq!(kind(copy(fixture, "other", "dst").await), (-32600, "not_a_file".into()));
    })
    .await;
}

#[tokio::test]
async fn a_directory_is_not_copied_into_itself_by_any_name() {
    on_each_file_system(async |fixture| {
        make(fixture, &["src/sub/f", "dst/", "src2/"]);
        symlink("src", fixture.path("link")).unwrap();
        symlink("src/sub", fixture.path("deep link")).unwrap();
        let before = tree(&fixture.path("src"));
        for into in [
            "src",
            "src/new",
            "src/new/deep",
            "src/sub",
            "src/sub/new",
            "link",
            "link/new/deep",
            "deep link",
            "deep link/new",
            "dst/../src/new",
        ] {
            let refusal = copy(fixture, "src", into).await;
            assert_eq!(kind(refusal), (-32600, "into_itself".into()), "{into}");
        }
        assert_eq!(tree(&fixture.path("src")), before);
        // A similar name, or a parent of the source, is another directory.
        copy(fixture, "src", "src2").await.unwrap();
        assert_eq!(tree(&fixture.path("src2")), before);
        copy(fixture, "src/sub", "src").await.unwrap();
        assert_eq!(fixture.get("src/f"), b"src/sub/f");
    })
    .await;
}

#[tokio::test]
async fn a_link_in_the_destination_does_not_lead_back_into_the_source() {
    on_each_file_system(async |fixture| {
        make(fixture, &["src/a/b/", "dst/"]);
        symlink("../src/a/b", fixture.path("dst/a")).unwrap();
        let before = tree(&fixture.path("src"));
        let refusal = copy(fixture, "src", "dst").await;
        assert_eq!(kind(refusal), (-32600, "into_itself".into()));
        assert_eq!(tree(&fixture.path("src")), before);
    })
    .await;
}

#[tokio::test]
async fn a_link_to_a_directory_is_copied_as_a_link() {
    on_each_file_system(async |fixture| {
        make(fixture, &["src/f"]);
        symlink("src", fixture.path("link")).unwrap();
        for (recursive, to) in [(true, "copy 1"), (false, "copy 2")] {
            let params = json!({
                "sourcePath": fixture.uri("link"), "destinationPath": fixture.uri(to),
                "recursive": recursive,
            });
            fixture.client.call("fs/copy", params).await.unwrap();
            assert_eq!(std::fs::read_link(fixture.path(to)).unwrap(), Path::new("src"));
        }
    })
    .await;
}

#[tokio::test]
async fn missing_and_conflicting_paths_are_reported() {
    on_each_file_system(async |fixture| {
        make(fixture, &["src/f", "file", "empty/", "dst/f/"]);
        let cases = [
            ("missing", "dst", (-32004, "ENOENT")),
            ("file/x", "dst", (-32603, "ENOTDIR")),
            ("src", "file", (-32603, "ENOTDIR")),
            ("src", "file/x", (-32603, "ENOTDIR")),
            ("src", "dst", (-32603, "EISDIR")),
        ];
        for (from, to, expected) in cases {
            let refusal = code(copy(fixture, from, to).await);
            assert_eq!(refusal, (expected.0, expected.1.to_owned()), "{from} {to}");
        }
        assert_eq!(fixture.get("file"), b"file");
    })
    .await;
}

#[tokio::test]
async fn directories_lose_the_bits_of_the_mask_and_files_do_not() {
    on_each_file_system(async |fixture| {
        fixture.server = TestExecutor::builder().after("umask 027").start().await;
        fixture.client = fixture.server.client().await;
        check_modes(fixture).await;
    })
    .await;
}

#[tokio::test]
async fn a_read_only_directory_is_copied_with_its_content() {
    on_each_file_system(async |fixture| {
        if start_as_ordinary_user(fixture, TestExecutor::builder().after("umask 027")).await {
            check_modes(fixture).await;
        }
    })
    .await;
}

#[tokio::test]
async fn names_that_are_not_utf8_are_copied_by_their_bytes() {
    on_each_file_system(async |fixture| {
        let place = fixture.path("src").join(OsStr::from_bytes(b"d\xff"));
        std::fs::create_dir_all(&place).unwrap();
        std::fs::write(place.join(OsStr::from_bytes(b"f\xfe\n")), "content").unwrap();
        symlink(OsStr::from_bytes(b"to\xfd"), place.join(OsStr::from_bytes(b"l\xfd"))).unwrap();
        let params = json!({
            "sourcePath": fixture.uri("src"),
            "destinationPath": fixture.uri_of_bytes(b"dst\xfc"),
            "recursive": true,
        });
        fixture.client.call("fs/copy", params).await.unwrap();
        let copied = fixture.root().join(OsStr::from_bytes(b"dst\xfc/d\xff"));
        assert_eq!(std::fs::read_dir(&copied).unwrap().count(), 2);
        assert_eq!(std::fs::read(copied.join(OsStr::from_bytes(b"f\xfe\n"))).unwrap(), b"content");
        let link = std::fs::read_link(copied.join(OsStr::from_bytes(b"l\xfd"))).unwrap();
        assert_eq!(link.as_os_str().as_bytes(), b"to\xfd");
    })
    .await;
}

#[tokio::test]
async fn two_thousand_files_are_copied() {
    on_each_file_system(async |fixture| {
        for folder in 0..20 {
            make(fixture, &[&format!("src/{folder}/")]);
            for file in 0..100 {
                fixture.put(&format!("src/{folder}/{file}"), format!("{folder} {file}"));
            }
        }
        copy(fixture, "src", "dst").await.unwrap();
        let copied = tree(&fixture.path("dst"));
        assert_eq!(copied.len(), 2020);
        assert!(copied == tree(&fixture.path("src")));
    })
    .await;
}

#[tokio::test]
async fn a_deep_tree_is_copied() {
    on_each_file_system(async |fixture| {
        let below = "/d".repeat(300);
        make(fixture, &[&format!("src{below}/f")]);
        copy(fixture, "src", "dst").await.unwrap();
        assert!(fixture.path(&format!("dst{below}/f")).exists());
    })
    .await;
}

async fn check_modes(fixture: &mut FsFixture) {
    make(fixture, &["src/open/f", "src/closed/f", "src/read only/sub/f", "dst/"]);
    set_mode(fixture, "dst", 0o777);
    let modes = [
        ("open", 0o777, 0o750),
        ("open/f", 0o666, 0o666),
        ("closed", 0o705, 0o700),
        ("closed/f", 0o755, 0o755),
        ("read only", 0o555, 0o550),
    ];
    for (name, before, _) in modes {
        set_mode(fixture, &format!("src/{name}"), before);
    }
    copy(fixture, "src", "dst/new").await.unwrap();
    let copied = modes.map(|(name, ..)| (name, mode(fixture, &format!("dst/new/{name}"))));
    // Restore the permissions, so that the tree can be removed.
    set_mode(fixture, "src/read only", 0o777);
    set_mode(fixture, "dst/new/read only", 0o777);
    assert_eq!(copied, modes.map(|(name, _, after)| (name, after)));
    assert_eq!(fixture.get("dst/new/read only/sub/f"), b"src/read only/sub/f");
}

async fn copy(fixture: &mut FsFixture, from: &str, to: &str) -> Result<Value, Value> {
    let params = json!({
        "sourcePath": fixture.uri(from), "destinationPath": fixture.uri(to), "recursive": true,
    });
    fixture.client.call("fs/copy", params).await
}

/// Every path below a directory: `/` for a directory, the target of a link, the content of a file.
fn tree(top: &Path) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    let mut folders = vec![top.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let entry = entry.unwrap();
            let path = entry.path();
            let kind = entry.file_type().unwrap();
            let what = if kind.is_symlink() {
                format!("-> {}", std::fs::read_link(&path).unwrap().display())
            } else if kind.is_dir() {
                folders.push(path.clone());
                "/".to_owned()
            } else {
                std::fs::read_to_string(&path).unwrap()
            };
            all.insert(path.strip_prefix(top).unwrap().to_str().unwrap().to_owned(), what);
        }
    }
    all
}

fn listing(paths: &[(&str, &str)]) -> BTreeMap<String, String> {
    paths.iter().map(|(path, what)| ((*path).to_owned(), (*what).to_owned())).collect()
}

fn mode(fixture: &FsFixture, name: &str) -> u32 {
    fixture.path(name).metadata().unwrap().permissions().mode() & 0o777
}
