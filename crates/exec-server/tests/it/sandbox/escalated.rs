//! Approved commands with fewer restrictions: everything is writable, and denials still apply.
//!
//! The reference client asks for this only if `linuxApprovedRootWritePreservesRestrictions` is announced.

use std::os::unix::fs::symlink;

use super::fixture::{SandboxFixture, as_each_user};
use super::*;

/// The policy as the reference client sends it for an approved command of a profile that denies `denied`.
fn approved(denied: &[&Path]) -> Value {
    let mut entries = vec![special("root", "write")];
    entries.extend(denied.iter().map(|path| at(path, "deny")));
    let names = ["/.git", "/.agents", "/.codex", "/.aws"];
    entries.extend(names.map(|name| at(Path::new(name), "write")));
    let mut policy = with_entries(&[Path::new("/")], "enabled", &entries);
    policy["sandboxOverride"] = json!("escalatedSandboxWithRestrictions");
    policy
}

/// Each script prints the secret unless it is stopped.
const ATTACKS: [&str; 9] = [
    "cat $OUT/secret/file",
    "cat $WORK/link/file",
    "ln -s $OUT/secret $WORK/mine; cat $WORK/mine/file",
    "mv $OUT $WORK/moved; cat $WORK/moved/secret/file",
    "mv $OUT/secret $WORK/moved; cat $WORK/moved/file",
    "chmod -R 777 $OUT; cat $OUT/secret/file",
    "cat /proc/self/root$OUT/secret/file /proc/1/root$OUT/secret/file",
    "cd $OUT/secret && cat file",
    "cp -r $OUT $WORK/copy; cat $WORK/copy/secret/file",
];

fn hide_a_secret(fixture: &SandboxFixture) -> std::path::PathBuf {
    let secret = fixture.outside().join("secret");
    fixture.make_dir(&secret);
    fixture.put(&secret.join("file"), "the secret");
    symlink(&secret, fixture.work().join("link")).unwrap();
    secret
}

#[tokio::test]
async fn denials_stay_and_the_rest_is_writable() {
    as_each_user(async |fixture| {
        for attack in ATTACKS {
            fixture.reset();
            let secret = hide_a_secret(fixture);
            let free = fixture.run(&Value::Null, attack).await;
            let shown = free.text().contains("the secret");
            assert!(shown || attack.contains("/proc/1/") , "{attack} shows nothing anyway: {free:?}");
            fixture.reset();
            hide_a_secret(fixture);
            let policy = approved(&[&secret]);
            let inside = fixture.run(&policy, attack).await;
            assert!(!inside.text().contains("the secret"), "{attack}: {inside:?}");
        }
        fixture.reset();
        let secret = hide_a_secret(fixture);
        let script = "echo changed > $OUT/file && mkdir -p $OUT/repo/.git && echo x > $OUT/repo/.git/config \
             && cat $OUT/file";
        let inside = fixture.run(&approved(&[&secret]), script).await;
        assert_eq!((inside.text(), inside.exit_code), ("changed\n".to_owned(), 0), "{inside:?}");
        assert_eq!(std::fs::read_to_string(fixture.outside().join("file")).unwrap(), "changed\n");
    })
    .await;
}

#[tokio::test]
async fn links_at_the_root_work_and_never_reach_denied_paths() {
    if Path::new("/bin").read_link().is_err() {
        eprintln!("skipped, /bin is no link here");
        return;
    }
    as_each_user(async |fixture| {
        // Denied by the name that leads through the link, and by the other one.
        for denied in ["/bin/true", "/usr/bin/true"] {
            let script = "for name in /bin/true /usr/bin/true; do cat $name >/dev/null && echo $name; $name && echo ran; done 2>/dev/null
                /bin/sh -c 'echo shell'; test -L /bin && echo link";
            let inside = fixture.run(&approved(&[Path::new(denied)]), script).await;
            assert_eq!(inside.text(), "shell\nlink\n", "{denied}: {inside:?}");
        }
    })
    .await;
}

#[tokio::test]
async fn devices_work_where_everything_can_be_written() {
    as_each_user(async |fixture| {
        let secret = hide_a_secret(fixture);
        let script = "echo gone > /dev/null && head -c 3 /dev/zero | wc -c && head -c 5 /dev/urandom | wc -c
            head -c 7 /dev/random | wc -c; (echo x > /dev/full) 2>/dev/null || echo full
            echo to stdout > /dev/stdout; echo shared > /dev/shm/x && cat /dev/shm/x; test -c /dev/ptmx && echo ptmx";
        for policy in [approved(&[&secret]), approved(&[])] {
            let inside = fixture.run(&policy, script).await;
            for line in ["3\n5\n", "7\n", "full\n", "to stdout\n", "shared\n", "ptmx\n"] {
                assert!(inside.text().contains(line), "{line:?} is missing: {inside:?}");
            }
        }
        let mut params = fixture.params(&approved(&[&secret]));
        params["tty"] = json!(true);
        let argv = ["/bin/sh", "-c", "echo typed > /dev/tty; test -t 0 && echo a terminal"];
        let inside = fixture.client.run("terminal", &argv, params).await;
        assert!(inside.pty_text().contains("typed\r\na terminal\r\n"), "{inside:?}");
    })
    .await;
}

#[tokio::test]
async fn a_protected_name_that_an_entry_opens_can_be_made() {
    as_each_user(async |fixture| {
        let entries = [
            special("root", "read"),
            special("project_roots", "write"),
            at(&fixture.work().join(".git"), "write"),
        ];
        let policy = with_entries(&[&fixture.work()], "restricted", &entries);
        let script = "mkdir .git && echo '[core]' > .git/config && cat .git/config";
        let inside = fixture.run(&policy, script).await;
        assert_eq!(inside.text(), "[core]\n", "{inside:?}");
        let others = fixture.run(&policy, "mkdir .codex .aws .agents; ls -A").await;
        assert!(!others.text().contains("made"), "{others:?}");
        assert_eq!(fixture.run(&policy, "touch .codex/x && echo made").await.text(), "");
    })
    .await;
}
