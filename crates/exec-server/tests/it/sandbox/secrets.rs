//! Reads of denied files, by every name and path to them.

use std::os::unix::fs::symlink;

use super::attempt::command;
use super::fixture::{SandboxFixture, as_each_user};
use super::*;
use crate::files::host::set_mode;

const SECRET: &str = "a-secret-of-the-host";

/// Each script prints the secret in `deep/hidden/key` and `deep/x.env` of the workspace unless it is stopped.
const ATTACKS: [&str; 17] = [
    "cat deep/hidden/key",
    "cat deep/x.env",
    "cat $WORK/../work/deep/x.env",
    "cat /proc/self/cwd/deep/x.env",
    "cat /proc/self/root$WORK/deep/x.env",
    "cd deep && cat hidden/key x.env",
    "ln -s deep link && cat link/x.env link/hidden/key",
    "ln -s $WORK/deep/x.env link2 && cat link2",
    "ln deep/x.env hard && cat hard",
    "mv deep moved && cat moved/x.env moved/hidden/key",
    "mv deep/hidden deep/seen && cat deep/seen/key",
    "mv deep/x.env deep/y && cat deep/y",
    "cp -r deep copy && cat copy/hidden/key copy/x.env",
    "chmod -R 777 deep; cat deep/hidden/key deep/x.env",
    "exec 5<deep/x.env && cat <&5",
    "tar -cf - deep | tar -xOf -",
    "find . -name key -exec cat {} ';'",
];

fn hide(fixture: &SandboxFixture) {
    fixture.reset();
    let deep = fixture.work().join("deep");
    fixture.make_dir(&deep.join("hidden"));
    fixture.put(&deep.join("hidden/key"), SECRET);
    fixture.put(&deep.join("x.env"), SECRET);
}

fn policies(fixture: &SandboxFixture) -> [Value; 3] {
    let (work, deep) = (fixture.work(), fixture.work().join("deep"));
    let roots = [&*work];
    let (all, write) = (special("root", "read"), special("project_roots", "write"));
    let by_path = [at(&deep.join("hidden"), "deny"), at(&deep.join("x.env"), "none")];
    [
        with_entries(&roots, "restricted", &[&[all.clone(), write.clone()], &by_path[..]].concat()),
        with_entries(&roots, "enabled", &[all.clone(), write, glob("**/*.env"), glob("**/hidden")]),
        with_entries(&roots, "restricted", &[&[all], &by_path[..]].concat()),
    ]
}

#[tokio::test]
async fn denied_files_cannot_be_read_by_any_name() {
    as_each_user(async |fixture| {
        for attack in ATTACKS {
            hide(fixture);
            let free = fixture.run_free(attack).await;
            assert!(free.text().contains(SECRET), "{attack} finds nothing: {free:?}");
            for policy in policies(fixture) {
                hide(fixture);
                let inside = fixture.run(&policy, attack).await;
                assert!(!inside.text().contains(SECRET), "{attack} found it");
                let kept = std::fs::read_to_string(fixture.work().join("deep/hidden/key"));
                assert_eq!(kept.ok().as_deref(), Some(SECRET), "{attack} moved it");
            }
        }
    })
    .await;
}

#[tokio::test]
async fn denied_files_cannot_be_replaced_or_removed() {
    as_each_user(async |fixture| {
        for policy in policies(fixture) {
            hide(fixture);
            let script = "rm -rf deep; echo evil > deep/x.env; echo evil > deep/hidden/key; mkdir -p deep; \
                          mv deep/x.env deep/z; echo evil > new; mv -f new deep/x.env; true";
            fixture.run(&policy, script).await;
            for name in ["deep/hidden/key", "deep/x.env"] {
                assert_eq!(std::fs::read_to_string(fixture.work().join(name)).unwrap(), SECRET);
            }
        }
    })
    .await;
}

#[tokio::test]
async fn a_pattern_holds_at_any_depth_and_in_directories_that_cannot_be_listed() {
    as_each_user(async |fixture| {
        let deepest = fixture.work().join("d/".repeat(40));
        fixture.make_dir(&deepest);
        fixture.put(&deepest.join("x.env"), SECRET);
        let closed = fixture.work().join("closed");
        fixture.make_dir(&closed);
        fixture.put(&closed.join("x.env"), SECRET);
        set_mode(&closed, 0o300);
        let entries =
            [special("root", "read"), special("project_roots", "write"), glob("**/*.env")];
        let policy = with_entries(&[&fixture.work()], "restricted", &entries);
        let script = "chmod 700 closed; cat closed/x.env; find . -name '*.env' -exec cat {} ';'";
        let inside = fixture.run(&policy, script).await;
        assert!(!inside.text().contains(SECRET), "{inside:?}");
        assert!(fixture.run_free(script).await.text().contains(SECRET));
    })
    .await;
}

#[tokio::test]
async fn links_to_denied_files_do_not_expose_them() {
    as_each_user(async |fixture| {
        let secret = fixture.outside().join("secret");
        fixture.make_dir(&secret);
        fixture.put(&secret.join("key"), SECRET);
        symlink(&secret, fixture.work().join("link")).unwrap();
        let entries = [special("root", "read"), special("project_roots", "write"), at(&secret, "deny")];
        let policy = with_entries(&[&fixture.work()], "restricted", &entries);
        let script = "cat link/key; ln -s $OUT/secret/key made; cat made; cat $OUT/secret/key; ls $OUT/secret; \
                      cat /proc/self/root$OUT/secret/key; cd link; cat key; true";
        assert!(fixture.run_free(script).await.text().contains(SECRET));
        let inside = fixture.run(&policy, script).await;
        assert!(!inside.text().contains("key") && !inside.text().contains(SECRET), "{inside:?}");
    })
    .await;
}

#[tokio::test]
async fn a_git_file_shows_nothing_that_would_be_hidden_without_it() {
    as_each_user(async |fixture| {
        let hidden = fixture.outside().join("hidden/deep");
        fixture.make_dir(&hidden);
        fixture.put(&hidden.join("key"), SECRET);
        fixture.put(&fixture.work().join(".git"), &format!("gitdir: {}\n", hidden.display()));
        let write = special("project_roots", "write");
        let denied = at(&fixture.outside().join("hidden"), "deny");
        let pattern = format!("{}/**/hidden", fixture.outside().display());
        for entries in [
            vec![special("root", "read"), write.clone(), denied],
            vec![special("minimal", "read"), write.clone()],
            vec![special("root", "read"), write.clone(), glob(&pattern)],
            vec![special("root", "read"), write, at(&fixture.outside(), "write"), glob(&pattern)],
        ] {
            let policy = with_entries(&[&fixture.work()], "restricted", &entries);
            let script = "cat $OUT/hidden/deep/key";
            assert!(fixture.run_free(script).await.text().contains(SECRET));
            let inside = fixture.run(&policy, script).await;
            assert_eq!(inside.text(), "", "{inside:?}");
            let path = uri(&hidden.join("key"));
            let read = json!({"path": path, "sandbox": policy});
            fixture.client.call("fs/readFile", read).await.expect_err("it is hidden");
        }
    })
    .await;
}

#[tokio::test]
async fn paths_without_a_grant_are_hidden() {
    as_each_user(async |fixture| {
        fixture.put(&fixture.outside().join("key"), SECRET);
        fixture.put(&fixture.work().join("mine"), "mine\n");
        symlink(fixture.outside(), fixture.work().join("link")).unwrap();
        let entries = [special("minimal", "read"), special("project_roots", "write")];
        let policy = with_entries(&[&fixture.work()], "restricted", &entries);
        let script = "cat mine; cat $OUT/key link/key /proc/self/root$OUT/key; ls $OUT; ls / $WORK/.. | grep outside; \
                      echo evil > $OUT/key; echo evil > /made; mkdir /etc/made; true";
        let inside = fixture.run(&policy, script).await;
        assert_eq!(inside.text(), "mine\n", "{inside:?}");
        assert_eq!(std::fs::read_to_string(fixture.outside().join("key")).unwrap(), SECRET);
        // By the calls of the attacks, too: this test program is in no granted place, so a copy is used.
        // By another process: children of this one that are just being made would hold a file open for writing.
        let mut copy = std::process::Command::new("cp");
        copy.arg(attempt::program()).arg(fixture.work().join("attempts"));
        assert!(copy.status().unwrap().success());
        fixture.give(&fixture.work().join("attempts"));
        let own = command("reopen handle").replace("$ATTEMPT_PROGRAM", "$WORK/attempts");
        let inside = fixture.run(&policy, &own).await;
        assert!(inside.text().contains("reopen") && !inside.text().contains(" ok"), "{inside:?}");
    })
    .await;
}
