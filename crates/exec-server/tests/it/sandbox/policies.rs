//! Policies of processes.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;

use exec_server_testkit::TestExecutor;

use super::fixture::{SandboxFixture, as_each_user};
use super::*;
use crate::files::host::names;

/// Access of a script to each directory: `r`, `w`, both or nothing.
async fn access(fixture: &mut SandboxFixture, policy: &Value, dirs: &[&str]) -> Vec<String> {
    let script = format!(
        "for dir in {}; do a=; cat $WORK/$dir/f >/dev/null && a=r; \
         echo x > $WORK/$dir/new && a=${{a}}w; echo $dir $a; done 2>/dev/null",
        dirs.join(" ")
    );
    let finished = fixture.run(policy, &script).await;
    finished.text().lines().map(|line| line.trim_end().to_owned()).collect()
}

fn tree(fixture: &SandboxFixture, dirs: &[&str]) {
    for dir in dirs {
        fixture.make_dir(&fixture.work().join(dir));
        fixture.put(&fixture.work().join(dir).join("f"), "content");
    }
}

#[tokio::test]
async fn the_longest_place_decides() {
    as_each_user(async |fixture| {
        let dirs = ["a", "a/no", "a/no/yes", "a/no/yes/read", "a/no/see", "a/read", "a/read/write"];
        tree(fixture, &dirs);
        let place = |name: &str, access| at(&fixture.work().join(name), access);
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
        let policy = with_entries(&[&fixture.work()], "restricted", &entries);
        let expected = [
            "a rw",
            "a/no",
            "a/no/yes rw",
            "a/no/yes/read r",
            "a/no/see r",
            "a/read r",
            "a/read/write rw",
        ];
        assert_eq!(access(fixture, &policy, &dirs).await, expected);
        let moved = fixture
            .run(&policy, "mv a b; mv a/no b; mv a/read b; ls a | sort | tr '\\n' ' '")
            .await;
        assert_eq!(moved.text(), "f new no read ", "{moved:?}");
    })
    .await;
}

#[tokio::test]
async fn older_forms_keep_their_meaning() {
    as_each_user(async |fixture| {
        tree(fixture, &["."]);
        let cwd = uri(&fixture.work());
        for (permissions, expected) in [
            (json!({"type": "read-only"}), ". r"),
            (json!({"type": "workspace-write", "exclude_slash_tmp": true, "exclude_tmpdir_env_var": true}), ". rw"),
        ] {
            let policy = json!({"permissions": permissions, "windowsSandboxLevel": "disabled", "cwd": cwd});
            let (id, params) = (fixture.next_id(), fixture.params(&policy));
            // Older forms may be rejected, but never mean "no sandbox".
            match fixture.client.start(&id, &["/bin/true"], params).await {
                Ok(started) => {
                    assert_eq!(started["sandboxType"], "linuxSeccomp");
                    fixture.client.finish(&id).await;
                    assert_eq!(access(fixture, &policy, &["."]).await, [expected]);
                }
                Err(error) => assert_eq!(error["code"], -32602),
            }
        }
    })
    .await;
}

#[tokio::test]
async fn unknown_words_are_refused() {
    as_each_user(async |fixture| {
        let good = fixture.workspace("restricted");
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
            let (id, params) = (fixture.next_id(), fixture.params(&bad));
            let error = fixture.client.start(&id, &["/bin/true"], params).await.expect_err(pointer);
            assert_eq!(error["code"], -32602, "{pointer}: {error}");
        }
        for bad in [
            json!({}),
            json!({"windowsSandboxLevel": "disabled"}),
            json!("on"),
            json!([]),
            json!(true),
        ] {
            let (id, params) = (fixture.next_id(), fixture.params(&bad));
            let error =
                fixture.client.start(&id, &["/bin/true"], params).await.expect_err("no policy");
            assert_eq!(error["code"], -32602, "{bad}");
        }
    })
    .await;
}

#[tokio::test]
async fn paths_of_other_systems_are_refused() {
    as_each_user(async |fixture| {
        let good = fixture.workspace("restricted");
        let foreign = "file:///C:/Users/me";
        let changes = [
            ("/policyContext/cwd", json!(foreign)),
            ("/policyContext/workspaceRoots/0", json!(foreign)),
            ("/permissions/file_system/entries/1/path", json!({"type": "path", "path": foreign})),
        ];
        for (pointer, value) in changes {
            let mut bad = good.clone();
            *bad.pointer_mut(pointer).expect("the policy has it") = value;
            let (id, params) = (fixture.next_id(), fixture.params(&bad));
            let result = fixture.client.start(&id, &["/bin/sh", "-c", "echo x > f"], params).await;
            // A path of another system may also be a valid path here; then it does not exist.
            match result {
                Ok(_) => assert_ne!(fixture.client.finish(&id).await.exit_code, 0, "{pointer}"),
                Err(error) => assert_eq!(error["code"], -32600, "{pointer}: {error}"),
            }
            fixture.reset();
        }
    })
    .await;
}

#[tokio::test]
async fn roots_with_any_name_work_and_missing_ones_grant_nothing() {
    as_each_user(async |fixture| {
        let strange = fixture.root().join(OsStr::from_bytes(b"w \xff\n\\040'\"$"));
        let missing = fixture.root().join("missing");
        fixture.make_dir(&strange);
        let policy = workspace_write(&[&fixture.work(), &strange, &missing], "restricted");
        let script = "cd ../w* && echo x > f && echo wrote; mkdir .git 2>/dev/null || echo kept; \
                      mkdir ../missing 2>/dev/null || echo none";
        let inside = fixture.run(&policy, script).await;
        assert_eq!(inside.text(), "wrote\nkept\nnone\n", "{inside:?}");
        assert_eq!(names(&strange), ["f"]);
        assert!(!missing.exists());
    })
    .await;
}

#[tokio::test]
async fn a_root_that_is_a_link_or_a_file_works() {
    as_each_user(async |fixture| {
        let (link, file) = (fixture.root().join("link"), fixture.outside().join("file"));
        symlink(fixture.work(), &link).unwrap();
        fixture.give(&link);
        let policy = workspace_write(&[&link, &file], "restricted");
        let script = "echo a > ../link/a; echo b > b; echo c > $OUT/file; echo d > $OUT/other; mkdir .git; true";
        fixture.run(&policy, script).await;
        assert_eq!(names(&fixture.work()), ["a", "b"]);
        assert_eq!(std::fs::read_to_string(file).unwrap(), "c\n");
        assert_eq!(std::fs::read_to_string(fixture.outside().join("other")).unwrap(), "other\n");
    })
    .await;
}

#[tokio::test]
async fn the_temporary_directory_is_that_of_the_server() {
    let (own, theirs) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let server = TestExecutor::builder().env("TMPDIR", own.path()).start().await;
    let mut fixture = SandboxFixture::new(server, None).await;
    fixture.env.insert("TMPDIR".to_owned(), theirs.path().to_str().unwrap().to_owned());
    fixture.env.insert("OWN".to_owned(), own.path().to_str().unwrap().to_owned());
    let entries = [special("root", "read"), special("tmpdir", "write")];
    let policy = with_entries(&[&fixture.work()], "restricted", &entries);
    fixture.run(&policy, "echo x > $OWN/f; echo x > $TMPDIR/f; echo x > $WORK/f").await;
    assert_eq!(names(own.path()), ["f"]);
    assert!(names(theirs.path()).is_empty() && names(&fixture.work()).is_empty());
}

#[tokio::test]
async fn nothing_is_granted_by_a_directory_alone() {
    as_each_user(async |fixture| {
        tree(fixture, &["."]);
        let mut policy = fixture.workspace("restricted");
        policy["policyContext"]["workspaceRoots"] = json!([]);
        assert_eq!(access(fixture, &policy, &["."]).await, [". r"]);
    })
    .await;
}

#[tokio::test]
async fn links_that_a_sandbox_may_have_created_lead_to_visible_paths_only() {
    as_each_user(async |fixture| {
        let work = fixture.work();
        let everything = with_entries(&[&work], "restricted", &[special("root", "write")]);
        let made = fixture.run(&everything, "ln -s \"$OUT\" \"$WORK/alias\"").await;
        assert_eq!(made.exited["exitCode"], 0, "{made:?}");
        // From now on every link on the machine may be one that a sandbox has created, `/bin` on most of them too.
        let alias = at(&work.join("alias"), "read");
        let entries = [special("minimal", "read"), special("project_roots", "write"), alias];
        let few = with_entries(&[&work], "restricted", &entries);
        let started = fixture.run(&few, "cat \"$WORK/alias/file\" || echo hidden").await;
        assert_eq!(started.text(), "hidden\n", "{started:?}");
    })
    .await;
}
