//! Names and their rights: `fs/rename`, `fs/symlink`, `fs/readLink`, `fs/setPermissions`.

use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;

use exec_server_protocol::base64;
use exec_server_testkit::fs_fixture::{code, content, kind, on_each_file_system};
use serde_json::{Value, json};

use super::surroundings::{mode, names, set_mode};

#[tokio::test]
async fn rename_replaces_unless_it_may_not() {
    on_each_file_system(async |desk| {
        std::fs::create_dir_all(desk.path("d/e")).unwrap();
        desk.put("a", "a");
        desk.put("b", "b");
        symlink("a", desk.path("l")).unwrap();
        let rename = |from: &str, to: &str, no_replace: bool| {
            let (from, to) = (desk.uri(from), desk.uri(to));
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
            let answer = desk.client.call("fs/rename", params.clone()).await;
            match expected {
                "" => assert_eq!(answer.unwrap(), json!({}), "{params}"),
                errno => assert_eq!(code(answer).1, errno, "{params}"),
            }
        }
        assert_eq!(
            (desk.get("c"), names(desk.root())),
            (b"a".to_vec(), vec!["c".into(), "f".into()])
        );
        assert!(desk.path("f/l").is_symlink());
    })
    .await;
}

#[tokio::test]
async fn links_are_made_replaced_and_read() {
    on_each_file_system(async |desk| {
        let target = |text: &str| json!({"target": text});
        desk.put("f", "content");
        desk.call("fs/symlink", "l", target("../any where/ü")).await.unwrap();
        let read = desk.call("fs/readLink", "l", json!({})).await.unwrap();
        assert_eq!(read, json!({"target": "../any where/ü"}));
        let bytes = json!({"targetBase64": base64::encode(b"bad-\xff")});
        for name in ["l", "f"] {
            assert_eq!(code(desk.call("fs/symlink", name, bytes.clone()).await).1, "EEXIST");
        }
        let mut replace = bytes.clone();
        replace["replace"] = json!(true);
        assert_eq!(code(desk.call("fs/symlink", "f", replace.clone()).await).1, "EEXIST");
        assert_eq!(desk.get("f"), b"content");
        for name in ["l", "new"] {
            assert_eq!(desk.call("fs/symlink", name, replace.clone()).await.unwrap(), json!({}));
            let read = desk.call("fs/readLink", name, json!({})).await.unwrap();
            assert_eq!(read["target"], "bad-\u{fffd}");
            assert_eq!(content(&read["targetBase64"]), b"bad-\xff");
            let made = std::fs::read_link(desk.path(name)).unwrap();
            assert_eq!(made.as_os_str().as_bytes(), b"bad-\xff");
        }
        for wrong in [json!({}), json!({"target": "a", "targetBase64": "YQ=="})] {
            assert_eq!(kind(desk.call("fs/symlink", "x", wrong).await).0, -32602);
        }
        let nul = desk.call("fs/symlink", "x", target("a\0b")).await;
        assert_eq!(code(nul), (-32600, "EINVAL".into()));
        assert_eq!(code(desk.call("fs/readLink", "f", json!({})).await), (-32600, "EINVAL".into()));
        assert_eq!(code(desk.call("fs/readLink", "no", json!({})).await).0, -32004);
        assert_eq!(names(desk.root()), ["f", "l", "new"]);
    })
    .await;
}

#[tokio::test]
async fn permission_bits_are_set_on_what_is_meant() {
    on_each_file_system(async |desk| {
        let path = desk.put("f", "");
        set_mode(&path, 0o600);
        symlink("f", desk.path("l")).unwrap();
        std::fs::create_dir(desk.path("d")).unwrap();
        for bits in [0o000, 0o7777, 0o640] {
            desk.call("fs/setPermissions", "l", json!({"mode": bits})).await.unwrap();
            assert_eq!(mode(&path), bits);
        }
        let more = json!({"mode": 0o1777, "followSymlinks": false});
        desk.call("fs/setPermissions", "d", more.clone()).await.unwrap();
        assert_eq!(mode(&desk.path("d")), 0o1777);
        let refused = desk.call("fs/setPermissions", "l", more).await;
        assert_eq!(kind(refused), (-32600, "is_symlink".into()));
        for wrong in [json!(0o10000), json!(-1), json!("640"), json!(u64::MAX), Value::Null] {
            let refused = desk.call("fs/setPermissions", "f", json!({"mode": wrong})).await;
            assert_eq!(kind(refused).0, -32602);
        }
        let missing = desk.call("fs/setPermissions", "no", json!({"mode": 0})).await;
        assert_eq!(code(missing), (-32004, "ENOENT".into()));
        assert_eq!(mode(&path), 0o640);
    })
    .await;
}
