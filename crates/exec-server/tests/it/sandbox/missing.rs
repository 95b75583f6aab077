//! Denied and read-only places that are not there yet cannot be made either, where everything around them is writable.

use exec_server_protocol::base64;

use super::ground::{Ground, as_each_user};
use super::*;
use crate::files::surroundings::names;

/// Each would give `$NAME` a content.
const WAYS: [&str; 8] = [
    "mkdir -p $NAME && echo evil > $NAME/x",
    "mkdir -p $(dirname $NAME); echo evil > $NAME",
    "rmdir $NAME $(dirname $NAME); mkdir -p $(dirname $NAME); echo evil > $NAME",
    "mkdir -p evil/$NAME; echo evil > evil/$NAME/x; mv -T evil/${NAME%%/*} ${NAME%%/*}",
    "echo evil > evil; ln -f evil $NAME; ln -sf evil $NAME; mv -f evil $NAME",
    "mv ${NAME%%/*} moved; mkdir -p $NAME; echo evil > $NAME/x",
    "chmod -R 777 ${NAME%%/*}; mkdir -p $NAME; echo evil > $NAME/x",
    "cd .. && mv work other && mkdir -p work/$NAME && echo evil > work/$NAME/x",
];

/// A workspace in which one path is different.
fn except(ground: &Ground, name: &str, access: &str) -> Value {
    let place = at(&ground.work().join(name), access);
    let entries = [special("root", "read"), special("project_roots", "write"), place];
    with_entries(&[&ground.work()], "restricted", &entries)
}

#[tokio::test]
async fn what_is_denied_or_read_only_cannot_be_made() {
    as_each_user(async |ground| {
        for (name, access) in [("secret", "deny"), ("a/b/secret", "deny"), ("fixed/it", "read")] {
            let policy = except(ground, name, access);
            for way in WAYS {
                ground.reset();
                let inside = ground.run(&policy, &format!("NAME={name}; {way}")).await;
                let top = name.split('/').next().unwrap();
                assert!(!ground.work().join(top).exists(), "{way} made {name}: {inside:?}");
            }
            ground.reset();
            let works = ground.run(&policy, "mkdir sub && echo fine > sub/f && cat sub/f").await;
            assert_eq!(works.text(), "fine\n", "{works:?}");
            assert_eq!(names(&ground.work()), ["sub"]);
        }
        ground.reset();
        let free = ground.run_free(&format!("NAME=a/b/secret; {}", WAYS[0])).await;
        assert!(ground.work().join("a/b/secret/x").exists(), "{free:?}");
    })
    .await;
}

#[tokio::test]
async fn a_link_leads_to_no_missing_place_either() {
    as_each_user(async |ground| {
        ground.make_dir(&ground.work().join("real"));
        for (link, target) in [("link", "real"), ("dangling", "nowhere")] {
            std::os::unix::fs::symlink(target, ground.work().join(link)).unwrap();
            ground.give(&ground.work().join(link));
            let policy = except(ground, &format!("{link}/secret"), "deny");
            let script =
                format!("mkdir -p {target}/secret; echo evil > {target}/secret/x; echo done");
            assert_eq!(ground.run(&policy, &script).await.text(), "done\n");
            let secret = ground.work().join(link).join("secret");
            assert!(!secret.exists(), "{link}");
        }
    })
    .await;
}

#[tokio::test]
async fn a_missing_place_is_held_for_everybody_who_needs_it_and_then_free() {
    as_each_user(async |ground| {
        let policy = except(ground, "a/secret", "deny");
        let waiting =
            "echo ready; read line; mkdir -p a/secret 2>/dev/null; echo x > a/f; ls -d a/*";
        let mut ids = Vec::new();
        for _ in 0..2 {
            let (id, mut params) = (ground.next_id(), ground.params(&policy));
            params["pipeStdin"] = json!(true);
            ground.client.start(&id, &["/bin/sh", "-c", waiting], params).await.unwrap();
            ground.client.wait_output(&id, "ready").await;
            ids.push(id);
        }
        assert_eq!(names(&ground.work()), [".agents", ".aws", ".codex", ".git", "a"]);
        for (id, left) in ids.iter().zip([5, 0]) {
            ground.client.write(id, "w", "go\n").await.unwrap();
            let finished = ground.client.finish(id).await;
            assert_ne!(finished.exit_code, 0, "{finished:?}");
            assert_eq!(names(&ground.work()).len(), left);
        }
        // Who may, can make it afterwards.
        let policy = ground.workspace("restricted");
        assert_eq!(ground.run(&policy, "mkdir -p a/secret").await.exit_code, 0);
    })
    .await;
}

#[tokio::test]
async fn a_file_in_the_way_of_a_denied_place_stays_a_file() {
    as_each_user(async |ground| {
        ground.put(&ground.work().join("way"), "file");
        let policy = except(ground, "way/secret", "deny");
        let script =
            "rm -f way; mv way gone; mkdir -p way/secret; echo evil > way/secret/x; cat way";
        assert_eq!(ground.run(&policy, script).await.text(), "file");
        assert!(ground.work().join("way").is_file());
    })
    .await;
}

#[tokio::test]
async fn requests_about_files_make_no_missing_place_and_looks_leave_nothing() {
    as_each_user(async |ground| {
        let policy = except(ground, "a/secret", "deny");
        let work = ground.work();
        let path = |name: &str| uri(&work.join(name));
        let more = |params: Value| {
            let mut params = params;
            params["sandbox"] = policy.clone();
            params
        };
        let data = base64::encode(b"evil");
        ground.client.call("fs/readDirectory", more(json!({"path": path(".")}))).await.unwrap();
        assert!(names(&ground.work()).is_empty());
        ground.client.call("fs/writeFile", more(json!({"path": path("f"), "dataBase64": data}))).await.unwrap();
        for (method, params) in [
            ("fs/createDirectory", json!({"path": path("a/secret"), "recursive": true})),
            ("fs/writeFile", json!({"path": path("a/secret"), "dataBase64": data})),
            ("fs/createDirectory", json!({"path": path("a"), "recursive": false})),
            ("fs/copy", json!({"sourcePath": path("f"), "destinationPath": path("a/secret"), "recursive": false})),
            ("fs/rename", json!({"sourcePath": path("f"), "destinationPath": path("a/secret")})),
        ] {
            let result = ground.client.call(method, more(params)).await;
            assert_ne!(result.expect_err(method)["code"], -32602, "{method}");
            assert!(!ground.work().join("a/secret").exists(), "{method}");
        }
    })
    .await;
}
