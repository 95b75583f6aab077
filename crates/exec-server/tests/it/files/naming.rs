//! Names and permissions: `fs/rename`, `fs/symlink`, `fs/readLink`, `fs/setPermissions`.

use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;

use exec_server_protocol::base64;
use exec_server_testkit::fs_fixture::{code, content, kind, on_each_file_system};
use serde_json::{Value, json};

use super::host::{mode, names, set_mode};

#[tokio::test]
async fn rename_replaces_unless_it_may_not() {
    on_each_file_system(async |fixture| {
        std::fs::create_dir_all(fixture.path("d/e")).unwrap();
        fixture.put("a", "a");
        fixture.put("b", "b");
        symlink("a", fixture.path("l")).unwrap();
        let rename = |from: &str, to: &str, no_replace: bool| {
            let (from, to) = (fixture.uri(from), fixture.uri(to));
            json!({"sourcePath": from, "destinationPath": to, "noReplace": no_replace})
        };
        let mut steps = Vec::new();
        for (from, to, no_replace, expected) in [
            ("a", "b", true, "EEXIST"),
            ("a", "l", true, "EEXIST"),
            ("missing", "b", false, "ENOENT"),
            ("a", "missing/x", false, "ENOENT"),
            ("a", "d", false, "EISDIR"),
            ("d", "a", false, "ENOTDIR"),
            ("d", "d/e/x", false, "EINVAL"),
            ("e", "d", false, "ENOENT"),
            ("a", "b", false, ""),
            ("b", "c", true, ""),
            ("l", "d/l", false, ""),
            ("d", "f", true, ""),
        ] {
            steps.push((rename(from, to, no_replace), expected));
        }
        for (params, expected) in steps {
            let answer = fixture.client.call("fs/rename", params.clone()).await;
            match expected {
                "" => assert_eq!(answer.unwrap(), json!({}), "{params}"),
                errno => assert_eq!(code(answer).1, errno, "{params}"),
            }
        }
        assert_eq!(
            (fixture.get("c"), names(fixture.root())),
            (b"a".to_vec(), vec!["c".into(), "f".into()])
        );
        assert!(fixture.path("f/l").is_symlink());
    })
    .await;
}

#[tokio::test]
async fn links_are_made_replaced_and_read() {
    on_each_file_system(async |fixture| {
        let target = |text: &str| json!({"target": text});
        fixture.put("f", "content");
        fixture.call("fs/symlink", "l", target("../any where/ü")).await.unwrap();
        let read = fixture.call("fs/readLink", "l", json!({})).await.unwrap();
        assert_eq!(read, json!({"target": "../any where/ü"}));
        let bytes = json!({"targetBase64": base64::encode(b"bad-\xff")});
        for name in ["l", "f"] {
            assert_eq!(code(fixture.call("fs/symlink", name, bytes.clone()).await).1, "EEXIST");
        }
        let mut replace = bytes.clone();
        replace["replace"] = json!(true);
        assert_eq!(code(fixture.call("fs/symlink", "f", replace.clone()).await).1, "EEXIST");
        assert_eq!(fixture.get("f"), b"content");
        for name in ["l", "new"] {
            assert_eq!(fixture.call("fs/symlink", name, replace.clone()).await.unwrap(), json!({}));
            let read = fixture.call("fs/readLink", name, json!({})).await.unwrap();
            assert_eq!(read["target"], "bad-\u{fffd}");
            assert_eq!(content(&read["targetBase64"]), b"bad-\xff");
            let made = std::fs::read_link(fixture.path(name)).unwrap();
            assert_eq!(made.as_os_str().as_bytes(), b"bad-\xff");
        }
        for wrong in [json!({}), json!({"target": "a", "targetBase64": "YQ=="})] {
            assert_eq!(kind(fixture.call("fs/symlink", "x", wrong).await).0, -32602);
        }
        let nul = fixture.call("fs/symlink", "x", target("a\0b")).await;
        assert_eq!(code(nul), (-32600, "EINVAL".into()));
        assert_eq!(
            code(fixture.call("fs/readLink", "f", json!({})).await),
            (-32600, "EINVAL".into())
        );
        assert_eq!(code(fixture.call("fs/readLink", "no", json!({})).await).0, -32004);
        assert_eq!(names(fixture.root()), ["f", "l", "new"]);
    })
    .await;
}

#[tokio::test]
async fn permission_bits_are_set_on_the_target() {
    on_each_file_system(async |fixture| {
        let path = fixture.put("f", "");
        set_mode(&path, 0o600);
        symlink("f", fixture.path("l")).unwrap();
        std::fs::create_dir(fixture.path("d")).unwrap();
        for bits in [0o000, 0o7777, 0o640] {
            fixture.call("fs/setPermissions", "l", json!({"mode": bits})).await.unwrap();
            assert_eq!(mode(&path), bits);
        }
        let more = json!({"mode": 0o1777, "followSymlinks": false});
        fixture.call("fs/setPermissions", "d", more.clone()).await.unwrap();
        assert_eq!(mode(&fixture.path("d")), 0o1777);
        let refused = fixture.call("fs/setPermissions", "l", more).await;
        assert_eq!(kind(refused), (-32600, "is_symlink".into()));
        for wrong in [json!(0o10000), json!(-1), json!("640"), json!(u64::MAX), Value::Null] {
            let refused = fixture.call("fs/setPermissions", "f", json!({"mode": wrong})).await;
            assert_eq!(kind(refused).0, -32602);
        }
        let missing = fixture.call("fs/setPermissions", "no", json!({"mode": 0})).await;
        assert_eq!(code(missing), (-32004, "ENOENT".into()));
        assert_eq!(mode(&path), 0o640);
    })
    .await;
}
