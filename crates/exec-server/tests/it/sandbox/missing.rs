//! Missing denied and read-only paths inside writable directories cannot be created.

use exec_server_protocol::base64;

use super::fixture::{SandboxFixture, as_each_user};
use super::*;
use crate::files::host::names;

/// Each script creates `$NAME` unless it is stopped.
const ATTACKS: [&str; 8] = [
    "mkdir -p $NAME && echo evil > $NAME/x",
    "mkdir -p $(dirname $NAME); echo evil > $NAME",
    "rmdir $NAME $(dirname $NAME); mkdir -p $(dirname $NAME); echo evil > $NAME",
    "mkdir -p evil/$NAME; echo evil > evil/$NAME/x; mv -T evil/${NAME%%/*} ${NAME%%/*}",
    "echo evil > evil; ln -f evil $NAME; ln -sf evil $NAME; mv -f evil $NAME",
    "mv ${NAME%%/*} moved; mkdir -p $NAME; echo evil > $NAME/x",
    "chmod -R 777 ${NAME%%/*}; mkdir -p $NAME; echo evil > $NAME/x",
    "cd .. && mv work other && mkdir -p work/$NAME && echo evil > work/$NAME/x",
];

/// A workspace policy with another access for one path.
fn except(fixture: &SandboxFixture, name: &str, access: &str) -> Value {
    let place = at(&fixture.work().join(name), access);
    let entries = [special("root", "read"), special("project_roots", "write"), place];
    with_entries(&[&fixture.work()], "restricted", &entries)
}

#[tokio::test]
async fn missing_denied_and_read_only_paths_cannot_be_created() {
    as_each_user(async |fixture| {
        for (name, access) in [("secret", "deny"), ("a/b/secret", "deny"), ("fixed/it", "read")] {
            let policy = except(fixture, name, access);
            for attack in ATTACKS {
                fixture.reset();
                let inside = fixture.run(&policy, &format!("NAME={name}; {attack}")).await;
                let top = name.split('/').next().unwrap();
                assert!(!fixture.work().join(top).exists(), "{attack} made {name}: {inside:?}");
            }
            fixture.reset();
            let works = fixture.run(&policy, "mkdir sub && echo fine > sub/f && cat sub/f").await;
            assert_eq!(works.text(), "fine\n", "{works:?}");
            assert_eq!(names(&fixture.work()), ["sub"]);
        }
        fixture.reset();
        let free = fixture.run_free(&format!("NAME=a/b/secret; {}", ATTACKS[0])).await;
        assert!(fixture.work().join("a/b/secret/x").exists(), "{free:?}");
    })
    .await;
}

#[tokio::test]
async fn a_link_leads_to_no_missing_place_either() {
    as_each_user(async |fixture| {
        fixture.make_dir(&fixture.work().join("real"));
        for (link, target) in [("link", "real"), ("dangling", "nowhere")] {
            std::os::unix::fs::symlink(target, fixture.work().join(link)).unwrap();
            fixture.give(&fixture.work().join(link));
            let policy = except(fixture, &format!("{link}/secret"), "deny");
            let script =
                format!("mkdir -p {target}/secret; echo evil > {target}/secret/x; echo done");
            assert_eq!(fixture.run(&policy, &script).await.text(), "done\n");
            let secret = fixture.work().join(link).join("secret");
            assert!(!secret.exists(), "{link}");
        }
    })
    .await;
}

#[tokio::test]
async fn a_missing_path_is_held_while_a_sandbox_needs_it_and_then_freed() {
    as_each_user(async |fixture| {
        let policy = except(fixture, "a/secret", "deny");
        let waiting =
            "echo ready; read line; mkdir -p a/secret 2>/dev/null; echo x > a/f; ls -d a/*";
        let mut ids = Vec::new();
        for _ in 0..2 {
            let (id, mut params) = (fixture.next_id(), fixture.params(&policy));
            params["pipeStdin"] = json!(true);
            fixture.client.start(&id, &["/bin/sh", "-c", waiting], params).await.unwrap();
            fixture.client.wait_output(&id, "ready").await;
            ids.push(id);
        }
        assert_eq!(names(&fixture.work()), [".agents", ".aws", ".codex", ".git", "a"]);
        for (id, left) in ids.iter().zip([5, 0]) {
            fixture.client.write(id, "w", "go\n").await.unwrap();
            let finished = fixture.client.finish(id).await;
            assert_ne!(finished.exit_code, 0, "{finished:?}");
            assert_eq!(names(&fixture.work()).len(), left);
        }
        // Without a sandbox it can be created afterwards.
        let policy = fixture.workspace("restricted");
        assert_eq!(fixture.run(&policy, "mkdir -p a/secret").await.exit_code, 0);
    })
    .await;
}

#[tokio::test]
async fn a_file_in_the_way_of_a_denied_place_stays_a_file() {
    as_each_user(async |fixture| {
        fixture.put(&fixture.work().join("way"), "file");
        let policy = except(fixture, "way/secret", "deny");
        let script =
            "rm -f way; mv way gone; mkdir -p way/secret; echo evil > way/secret/x; cat way";
        assert_eq!(fixture.run(&policy, script).await.text(), "file");
        assert!(fixture.work().join("way").is_file());
    })
    .await;
}

#[tokio::test]
async fn requests_about_files_make_no_missing_place_and_looks_leave_nothing() {
    as_each_user(async |fixture| {
        let policy = except(fixture, "a/secret", "deny");
        let work = fixture.work();
        let path = |name: &str| uri(&work.join(name));
        let more = |params: Value| {
            let mut params = params;
            params["sandbox"] = policy.clone();
            params
        };
        let data = base64::encode(b"evil");
        fixture.client.call("fs/readDirectory", more(json!({"path": path(".")}))).await.unwrap();
        assert!(names(&fixture.work()).is_empty());
        fixture.client.call("fs/writeFile", more(json!({"path": path("f"), "dataBase64": data}))).await.unwrap();
        for (method, params) in [
            ("fs/createDirectory", json!({"path": path("a/secret"), "recursive": true})),
            ("fs/writeFile", json!({"path": path("a/secret"), "dataBase64": data})),
            ("fs/createDirectory", json!({"path": path("a"), "recursive": false})),
            ("fs/copy", json!({"sourcePath": path("f"), "destinationPath": path("a/secret"), "recursive": false})),
            ("fs/rename", json!({"sourcePath": path("f"), "destinationPath": path("a/secret")})),
        ] {
            let result = fixture.client.call(method, more(params)).await;
            assert_ne!(result.expect_err(method)["code"], -32602, "{method}");
            assert!(!fixture.work().join("a/secret").exists(), "{method}");
        }
    })
    .await;
}
