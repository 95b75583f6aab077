//! What a policy means for a process.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;

use exec_server_testkit::TestExecutor;

use super::ground::{Ground, as_each_user};
use super::*;
use crate::files::surroundings::names;

/// What a script may do in each directory, as `r`, `w`, both or nothing.
async fn access(ground: &mut Ground, policy: &Value, dirs: &[&str]) -> Vec<String> {
    let script = format!(
        "for dir in {}; do a=; cat $WORK/$dir/f >/dev/null && a=r; \
         echo x > $WORK/$dir/new && a=${{a}}w; echo $dir $a; done 2>/dev/null",
        dirs.join(" ")
    );
    let finished = ground.run(policy, &script).await;
    finished.text().lines().map(|line| line.trim_end().to_owned()).collect()
}

fn tree(ground: &Ground, dirs: &[&str]) {
    for dir in dirs {
        ground.make_dir(&ground.work().join(dir));
        ground.put(&ground.work().join(dir).join("f"), "content");
    }
}

#[tokio::test]
async fn the_longest_place_decides() {
    as_each_user(async |ground| {
        let dirs = ["a", "a/no", "a/no/yes", "a/no/yes/read", "a/no/see", "a/read", "a/read/write"];
        tree(ground, &dirs);
        let place = |name: &str, access| at(&ground.work().join(name), access);
        let entries = [
            special("root", "read"),
            special("project_roots", "write"),
            place("a/no", "deny"),
            place("a/no/yes", "write"),
            place("a/no/yes/read", "read"),
            place("a/no/see", "read"),
            place("a/read", "read"),
            place("a/read/write", "write"),
        ];
        let policy = with_entries(&[&ground.work()], "restricted", &entries);
        let expected = [
            "a rw",
            "a/no",
            "a/no/yes rw",
            "a/no/yes/read r",
            "a/no/see r",
            "a/read r",
            "a/read/write rw",
        ];
        assert_eq!(access(ground, &policy, &dirs).await, expected);
        let moved =
            ground.run(&policy, "mv a b; mv a/no b; mv a/read b; ls a | sort | tr '\\n' ' '").await;
        assert_eq!(moved.text(), "f new no read ", "{moved:?}");
    })
    .await;
}

#[tokio::test]
async fn older_forms_mean_what_they_meant() {
    as_each_user(async |ground| {
        tree(ground, &["."]);
        let cwd = uri(&ground.work());
        for (permissions, expected) in [
            (json!({"type": "read-only"}), ". r"),
            (json!({"type": "workspace-write", "exclude_slash_tmp": true, "exclude_tmpdir_env_var": true}), ". rw"),
        ] {
            let policy = json!({"permissions": permissions, "windowsSandboxLevel": "disabled", "cwd": cwd});
            let (id, params) = (ground.next_id(), ground.params(&policy));
            // Whether they are still understood is the protocol's affair; never is one of them no sandbox.
            match ground.client.start(&id, &["/bin/true"], params).await {
                Ok(started) => {
                    assert_eq!(started["sandboxType"], "linuxSeccomp");
                    ground.client.finish(&id).await;
                    assert_eq!(access(ground, &policy, &["."]).await, [expected]);
                }
                Err(error) => assert_eq!(error["code"], -32602),
            }
        }
    })
    .await;
}

#[tokio::test]
async fn unknown_words_are_refused() {
    as_each_user(async |ground| {
        let good = ground.workspace("restricted");
        let changes: [(&str, Value); 9] = [
            ("/permissions/type", json!("managed2")),
            ("/permissions/network", json!("sometimes")),
            ("/permissions/file_system/type", json!("open")),
            ("/permissions/file_system/entries/1/access", json!("append")),
            ("/permissions/file_system/entries/1/path/type", json!("regex")),
            ("/permissions/file_system/entries/1/path/value/kind", json!("everything")),
            ("/windowsSandboxLevel", json!("none")),
            (
                "/permissions/file_system/entries/1/path",
                json!({"type": "path", "path": "relative"}),
            ),
            ("/permissions/file_system/entries", json!("all")),
        ];
        for (pointer, value) in changes {
            let mut bad = good.clone();
            *bad.pointer_mut(pointer).expect("the policy has it") = value;
            let (id, params) = (ground.next_id(), ground.params(&bad));
            let error = ground.client.start(&id, &["/bin/true"], params).await.expect_err(pointer);
            assert_eq!(error["code"], -32602, "{pointer}: {error}");
        }
        for bad in [
            json!({}),
            json!({"windowsSandboxLevel": "disabled"}),
            json!("on"),
            json!([]),
            json!(true),
        ] {
            let (id, params) = (ground.next_id(), ground.params(&bad));
            let error =
                ground.client.start(&id, &["/bin/true"], params).await.expect_err("no policy");
            assert_eq!(error["code"], -32602, "{bad}");
        }
    })
    .await;
}

#[tokio::test]
async fn paths_of_other_systems_are_refused() {
    as_each_user(async |ground| {
        let good = ground.workspace("restricted");
        let foreign = "file:///C:/Users/me";
        let changes = [
            ("/policyContext/cwd", json!(foreign)),
            ("/policyContext/workspaceRoots/0", json!(foreign)),
            ("/permissions/file_system/entries/1/path", json!({"type": "path", "path": foreign})),
        ];
        for (pointer, value) in changes {
            let mut bad = good.clone();
            *bad.pointer_mut(pointer).expect("the policy has it") = value;
            let (id, params) = (ground.next_id(), ground.params(&bad));
            let result = ground.client.start(&id, &["/bin/sh", "-c", "echo x > f"], params).await;
            // A path of another system may also be a path of this one; then it is one that is not there.
            match result {
                Ok(_) => assert_ne!(ground.client.finish(&id).await.exit_code, 0, "{pointer}"),
                Err(error) => assert_eq!(error["code"], -32600, "{pointer}: {error}"),
            }
            ground.reset();
        }
    })
    .await;
}

#[tokio::test]
async fn roots_of_every_name_work_and_missing_ones_give_nothing() {
    as_each_user(async |ground| {
        let strange = ground.root().join(OsStr::from_bytes(b"w \xff\n\\040'\"$"));
        let missing = ground.root().join("missing");
        ground.make_dir(&strange);
        let policy = workspace_write(&[&ground.work(), &strange, &missing], "restricted");
        let script = "cd ../w* && echo x > f && echo wrote; mkdir .git 2>/dev/null || echo kept; \
                      mkdir ../missing 2>/dev/null || echo none";
        let inside = ground.run(&policy, script).await;
        assert_eq!(inside.text(), "wrote\nkept\nnone\n", "{inside:?}");
        assert_eq!(names(&strange), ["f"]);
        assert!(!missing.exists());
    })
    .await;
}

#[tokio::test]
async fn a_root_that_is_a_link_or_a_file_works() {
    as_each_user(async |ground| {
        let (link, file) = (ground.root().join("link"), ground.outside().join("file"));
        symlink(ground.work(), &link).unwrap();
        ground.give(&link);
        let policy = workspace_write(&[&link, &file], "restricted");
        let script = "echo a > ../link/a; echo b > b; echo c > $OUT/file; echo d > $OUT/other; mkdir .git; true";
        ground.run(&policy, script).await;
        assert_eq!(names(&ground.work()), ["a", "b"]);
        assert_eq!(std::fs::read_to_string(file).unwrap(), "c\n");
        assert_eq!(std::fs::read_to_string(ground.outside().join("other")).unwrap(), "other\n");
    })
    .await;
}

#[tokio::test]
async fn the_temporary_directory_is_that_of_the_server() {
    let (own, theirs) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let server = TestExecutor::builder().env("TMPDIR", own.path()).start().await;
    let mut ground = Ground::new(server, None).await;
    ground.env.insert("TMPDIR".to_owned(), theirs.path().to_str().unwrap().to_owned());
    ground.env.insert("OWN".to_owned(), own.path().to_str().unwrap().to_owned());
    let entries = [special("root", "read"), special("tmpdir", "write")];
    let policy = with_entries(&[&ground.work()], "restricted", &entries);
    ground.run(&policy, "echo x > $OWN/f; echo x > $TMPDIR/f; echo x > $WORK/f").await;
    assert_eq!(names(own.path()), ["f"]);
    assert!(names(theirs.path()).is_empty() && names(&ground.work()).is_empty());
}

#[tokio::test]
async fn nothing_is_granted_by_a_directory_alone() {
    as_each_user(async |ground| {
        tree(ground, &["."]);
        let mut policy = ground.workspace("restricted");
        policy["policyContext"]["workspaceRoots"] = json!([]);
        assert_eq!(access(ground, &policy, &["."]).await, [". r"]);
    })
    .await;
}

#[tokio::test]
async fn links_that_a_sandbox_may_have_created_lead_to_visible_paths_only() {
    as_each_user(async |ground| {
        let work = ground.work();
        let everything = with_entries(&[&work], "restricted", &[special("root", "write")]);
        let made = ground.run(&everything, "ln -s \"$OUT\" \"$WORK/alias\"").await;
        assert_eq!(made.exited["exitCode"], 0, "{made:?}");
        // From now on every link on the machine may be one that a sandbox has created, `/bin` on most of them too.
        let alias = at(&work.join("alias"), "read");
        let entries = [special("minimal", "read"), special("project_roots", "write"), alias];
        let few = with_entries(&[&work], "restricted", &entries);
        let started = ground.run(&few, "cat \"$WORK/alias/file\" || echo hidden").await;
        assert_eq!(started.text(), "hidden\n", "{started:?}");
    })
    .await;
}
