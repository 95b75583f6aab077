//! Protected names of a workspace cannot be created, changed or replaced.

use std::os::unix::fs::symlink;

use super::fixture::{SandboxFixture, as_each_user, snapshot};
use super::*;
use crate::files::host::names;

const NAMES: [&str; 4] = [".git", ".agents", ".codex", ".aws"];

/// Each script changes `$NAME` unless it is stopped.
const ATTACKS: [&str; 11] = [
    "mkdir -p $NAME/hooks; echo evil > $NAME/config",
    "rm -rf $NAME; mkdir $NAME; echo evil > $NAME/config",
    "mv $NAME moved; mkdir $NAME; echo evil > $NAME/config",
    "mkdir evil; echo evil > evil/config; mv -T evil $NAME",
    "ln -s $WORK $NAME",
    "rmdir $NAME; echo 'gitdir: evil' > $NAME",
    "echo evil >> $NAME/config",
    "chmod 777 $NAME; touch -d 2001-01-01 $NAME",
    "cd $NAME && echo evil > config",
    "cd .. && mv work other && mkdir work && mkdir work/$NAME",
    "exec 5<$NAME && echo evil > /proc/self/fd/5/config",
];

async fn cannot_change(fixture: &mut SandboxFixture, policy: &Value, name: &str) {
    for attack in ATTACKS {
        let before = snapshot(&fixture.work().join(name));
        let inside = fixture.run(policy, &format!("NAME={name}; {attack}")).await;
        let after = snapshot(&fixture.work().join(name));
        assert_eq!(before, after, "{attack} changed {name}: {inside:?}");
    }
}

#[tokio::test]
async fn protected_names_that_are_there_stay_as_they_are() {
    as_each_user(async |fixture| {
        for name in NAMES {
            fixture.make_dir(&fixture.work().join(name));
            fixture.put(&fixture.work().join(name).join("config"), "safe");
        }
        let policy = fixture.workspace("restricted");
        for name in NAMES {
            assert_eq!(fixture.run(&policy, &format!("cat {name}/config")).await.text(), "safe");
            cannot_change(fixture, &policy, name).await;
        }
        let deep = fixture
            .run(&policy, "mkdir -p sub/.git && echo fine > sub/.git/config && cat sub/.git/config")
            .await;
        assert_eq!(deep.text(), "fine\n");
    })
    .await;
}

#[tokio::test]
async fn protected_names_that_are_missing_cannot_be_made() {
    as_each_user(async |fixture| {
        let policy = fixture.workspace("restricted");
        for name in NAMES {
            for attack in ATTACKS {
                let inside = fixture.run(&policy, &format!("NAME={name}; {attack}")).await;
                assert!(!fixture.work().join(name).exists(), "{attack} made {name}: {inside:?}");
            }
        }
        fixture.reset();
        let free = fixture.run_free(&format!("NAME=.git; {}", ATTACKS[0])).await;
        assert!(fixture.work().join(".git/config").exists(), "{free:?}");
    })
    .await;
}

#[tokio::test]
async fn protected_files_stay_as_they_are() {
    as_each_user(async |fixture| {
        let elsewhere = fixture.work().join("sub/elsewhere");
        fixture.make_dir(&elsewhere);
        fixture.put(&elsewhere.join("config"), "safe");
        fixture.put(&fixture.work().join(".git"), "gitdir: sub/elsewhere\n");
        let policy = fixture.workspace("restricted");
        cannot_change(fixture, &policy, ".git").await;
        for attack in ATTACKS {
            let before = snapshot(&elsewhere);
            fixture.run(&policy, &format!("NAME=sub/elsewhere; {attack}")).await;
            assert_eq!(snapshot(&elsewhere), before, "{attack} changed what .git names");
        }
        let before = snapshot(&elsewhere);
        fixture
            .run(&policy, "mv sub other; mkdir -p sub/elsewhere; echo evil > sub/elsewhere/config")
            .await;
        assert_eq!(snapshot(&elsewhere), before);
    })
    .await;
}

#[tokio::test]
async fn the_target_of_a_git_file_cannot_be_created_either() {
    as_each_user(async |fixture| {
        fixture.put(&fixture.work().join(".git"), "gitdir: main/.git/worktrees/x\n");
        let policy = fixture.workspace("restricted");
        let script = "mkdir -p main/.git/worktrees/x; echo evil > main/.git/worktrees/x/config; echo fine";
        assert_eq!(fixture.run(&policy, script).await.text(), "fine\n");
        assert_eq!(names(&fixture.work()), [".git"]);
        // An existing one also protects the directory that it shares with other worktrees.
        let own = fixture.work().join("main/.git/worktrees/x");
        fixture.make_dir(&own);
        fixture.put(&own.join("commondir"), "../..\n");
        let before = snapshot(&fixture.work().join("main"));
        let script = "echo evil > main/.git/config; echo evil > main/.git/worktrees/x/config; \
                      mv main moved; rm -rf main; echo fine > main/file; cat main/file; rm main/file";
        assert_eq!(fixture.run(&policy, script).await.text(), "fine\n");
        let after = snapshot(&fixture.work().join("main"));
        assert_eq!(before.keys().collect::<Vec<_>>(), after.keys().collect::<Vec<_>>());
    })
    .await;
}

#[tokio::test]
async fn a_git_file_of_any_size_is_not_read_whole() {
    as_each_user(async |fixture| {
        let elsewhere = fixture.work().join("elsewhere");
        fixture.make_dir(&elsewhere);
        let git = fixture.work().join(".git");
        fixture.put(&git, "gitdir: elsewhere\n");
        // Where nothing was written there is nothing on the disk, and would be in memory: more than there is.
        let file = std::fs::File::options().append(true).open(&git).unwrap();
        std::io::Write::write_all(&mut &file, &[b'\n'; 100 * 1024]).unwrap();
        file.set_len(1 << 40).unwrap();
        let policy = fixture.workspace("restricted");
        let script = "echo evil > elsewhere/config || echo fine > f && cat f";
        assert_eq!(fixture.run(&policy, script).await.text(), "fine\n");
        assert!(names(&elsewhere).is_empty());
    })
    .await;
}

#[tokio::test]
async fn a_protected_name_that_is_a_link_protects_its_target() {
    as_each_user(async |fixture| {
        let real = fixture.work().join("sub/real");
        fixture.make_dir(&real);
        fixture.put(&real.join("config"), "safe");
        symlink("sub/real", fixture.work().join(".git")).unwrap();
        fixture.give(&fixture.work().join(".git"));
        let policy = fixture.workspace("restricted");
        let read =
            fixture.run(&policy, "cat .git/config; echo fine > sub/other; cat sub/other").await;
        assert_eq!(read.text(), "safefine\n");
        for name in [".git", "sub/real"] {
            for attack in ATTACKS {
                let before = snapshot(&real);
                fixture.run(&policy, &format!("NAME={name}; {attack}")).await;
                assert_eq!(snapshot(&real), before, "{attack} changed what .git leads to");
                assert_eq!(
                    fixture.work().join(".git").read_link().unwrap(),
                    Path::new("sub/real"),
                    "{attack}"
                );
            }
        }
    })
    .await;
}

#[tokio::test]
async fn a_protected_link_to_nothing_cannot_be_given_something() {
    as_each_user(async |fixture| {
        for target in ["missing", "missing/deep/er"] {
            fixture.reset();
            symlink(target, fixture.work().join(".git")).unwrap();
            fixture.give(&fixture.work().join(".git"));
            let policy = fixture.workspace("restricted");
            let script = format!("mkdir -p {target}; echo evil > {target}/config; echo works");
            assert_eq!(fixture.run(&policy, &script).await.text(), "works\n");
            assert!(!fixture.work().join(".git/config").exists());
            assert_eq!(names(&fixture.work()), [".git"]);
        }
    })
    .await;
}

#[tokio::test]
async fn an_explicit_entry_lifts_the_protection_of_its_path() {
    as_each_user(async |fixture| {
        fixture.make_dir(&fixture.work().join(".git/sub"));
        fixture.make_dir(&fixture.work().join(".codex"));
        let mut entries = vec![special("root", "read"), special("project_roots", "write")];
        entries.push(at(&fixture.work().join(".git/sub"), "write"));
        entries.push(at(&fixture.work().join(".codex"), "write"));
        let policy = with_entries(&[&fixture.work()], "restricted", &entries);
        let script =
            "for dir in .git .git/sub .codex; do echo x > $dir/f && echo $dir; done 2>/dev/null";
        let inside = fixture.run(&policy, script).await;
        assert_eq!(inside.text(), ".git/sub\n.codex\n", "{inside:?}");
    })
    .await;
}
