//! Consecutive sandboxed starts, most of which use a warm sandbox.

use std::collections::BTreeSet;
use std::path::Path;

use exec_server_testkit::executor::Signal;
use exec_server_testkit::process_count::warm_sandboxes;
use exec_server_testkit::{TestExecutor, eventually};
use rustix::process::{Pid, kill_process};

use super::fixture::{SandboxFixture, as_each_user};
use super::*;
use crate::files::host::{names, server_with_mounts};

fn ipc_namespace(pid: impl std::fmt::Display) -> Option<String> {
    let link = std::fs::read_link(format!("/proc/{pid}/ns/ipc")).ok()?;
    Some(link.to_str()?.to_owned())
}

/// Namespaces of both warm sandboxes: one for the session, and one for the next session.
async fn prepared(server: &TestExecutor) -> BTreeSet<String> {
    let host = ipc_namespace("self");
    let mut found = BTreeSet::new();
    eventually("two sandboxes are prepared", || {
        let namespaces = warm_sandboxes(server.serving_pid()).into_iter().filter_map(ipc_namespace);
        found = namespaces.filter(|it| Some(it) != host.as_ref()).collect();
        found.len() == 2
    })
    .await;
    found
}

fn has_keeper(server: &TestExecutor) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{}/task", server.serving_pid())).unwrap();
    threads.flatten().any(|thread| {
        let name = std::fs::read_to_string(thread.path().join("comm"));
        name.is_ok_and(|name| name.trim() == "warm-pool")
    })
}

#[tokio::test]
async fn a_server_that_starts_nothing_in_a_sandbox_prepares_none() {
    let mut fixture = SandboxFixture::new(TestExecutor::start().await, None).await;
    fixture.run_free("true").await;
    assert!(!has_keeper(&fixture.server));
    let policy = fixture.workspace("restricted");
    fixture.run(&policy, "true").await;
    prepared(&fixture.server).await;
    assert!(has_keeper(&fixture.server));
}

const WHERE_AM_I: &str = "readlink /proc/self/ns/ipc";

#[tokio::test]
async fn a_start_uses_a_warm_sandbox_that_no_other_start_gets() {
    as_each_user(async |fixture| {
        let policy = fixture.workspace("restricted");
        fixture.run(&policy, "true").await;
        let before = prepared(&fixture.server).await;
        let waiting = warm_sandboxes(fixture.server.serving_pid());
        let first = fixture.run(&policy, WHERE_AM_I).await;
        assert!(before.contains(first.text().trim()), "{first:?} is none of {before:?}");
        let left = warm_sandboxes(fixture.server.serving_pid());
        assert!(waiting.iter().any(|pid| !left.contains(pid)), "{waiting:?} {left:?}");
        let left = prepared(&fixture.server).await;
        let second = fixture.run(&policy, WHERE_AM_I).await;
        assert!(left.contains(second.text().trim()), "{second:?} is none of {left:?}");
        // Also the first start of another session, which never sees the network of this one.
        let left = prepared(&fixture.server).await;
        let network = "readlink /proc/self/ns/ipc; readlink /proc/self/ns/net";
        let own = fixture.run(&policy, network).await;
        let params = fixture.params(&policy);
        let mut other = fixture.server.client().await;
        let other = other.run("p", &["/bin/sh", "-c", network], params).await;
        let (own, other) = (own.text(), other.text());
        let (own, other): (Vec<_>, Vec<_>) = (own.lines().collect(), other.lines().collect());
        assert!(left.contains(own[0]) && left.contains(other[0]), "{own:?} {other:?} {left:?}");
        assert_ne!(own[0], other[0]);
        assert_ne!(own[1], other[1]);
    })
    .await;
}

#[tokio::test]
async fn nothing_of_one_start_is_found_by_the_next() {
    as_each_user(async |fixture| {
        let policy = fixture.workspace("restricted");
        let look = "ls /dev/shm /dev/pts; ls -d /proc/3*; cut -d' ' -f5- /proc/self/mountinfo; \
                    cat /proc/self/cgroup; ls -l /proc/self/fd | wc -l; umask; ulimit -a";
        let first = fixture.run(&policy, look).await;
        for _ in 0..3 {
            prepared(&fixture.server).await;
            let litter = "echo secret > /dev/shm/left; mkdir /dev/shm/dir; (sleep 100 &) ; umask 0; \
                          ulimit -n 50; echo done";
            let finished = fixture.run(&policy, litter).await;
            assert_eq!(finished.text(), "done\n");
            prepared(&fixture.server).await;
            let next = fixture.run(&policy, look).await;
            assert_eq!(next.text(), first.text());
        }
        assert!(names(&fixture.work()).is_empty(), "{:?}", names(&fixture.work()));
    })
    .await;
}

#[tokio::test]
async fn files_created_after_a_sandbox_was_prepared_follow_the_policy() {
    as_each_user(async |fixture| {
        let policy = fixture.workspace("restricted");
        let work = fixture.work();
        fixture.run(&policy, "true").await;
        prepared(&fixture.server).await;
        fixture.make_dir(&work.join(".git/hooks"));
        fixture.put(&work.join(".git/config"), "safe\n");
        let script = "echo bad > .git/config; echo bad > .git/hooks/new; mkdir .codex; echo new > free; \
                      cat .git/config";
        let finished = fixture.run(&policy, script).await;
        assert!(finished.text().ends_with("safe\n"), "{finished:?}");
        assert_eq!(names(&work), [".git", "free"]);
        assert!(names(&work.join(".git/hooks")).is_empty());
        // The same with a pattern, and with a name that became a link to elsewhere.
        prepared(&fixture.server).await;
        fixture.put(&work.join("key.env"), "secret\n");
        std::fs::remove_dir_all(work.join(".git")).unwrap();
        std::os::unix::fs::symlink(fixture.outside().join("dir"), work.join(".git")).unwrap();
        let entries =
            [special("root", "read"), special("project_roots", "write"), glob("**/*.env")];
        let denying = with_entries(&[&work], "restricted", &entries);
        let script = "cat key.env; echo bad > .git/new; rm .git";
        let finished = fixture.run(&denying, script).await;
        assert!(!finished.text().contains("secret"), "{finished:?}");
        assert!(work.join(".git").is_symlink() && names(&fixture.outside().join("dir")).is_empty());
    })
    .await;
}

#[tokio::test]
async fn every_policy_gets_its_own_view_in_a_sandbox_that_was_prepared_for_another() {
    as_each_user(async |fixture| {
        let (work, outside) = (fixture.work(), fixture.outside());
        let write = |root: &Path| workspace_write(&[root], "restricted");
        let script = format!(
            "echo x > {}/new && echo work; echo x > {}/new && echo outside",
            work.display(),
            outside.display()
        );
        fixture.run(&write(&work), "true").await;
        for (round, (policy, expected)) in [
            (write(&outside), "outside\n"),
            (write(&work), "work\n"),
            (with_entries(&[&work], "restricted", &[special("root", "read")]), ""),
            (workspace_write(&[&work], "enabled"), "work\n"),
        ]
        .into_iter()
        .enumerate()
        {
            prepared(&fixture.server).await;
            let finished = fixture.run(&policy, &script).await;
            assert_eq!(finished.text(), expected, "round {round}: {finished:?}");
        }
    })
    .await;
}

#[tokio::test]
async fn a_prepared_sandbox_that_is_killed_harms_no_start() {
    as_each_user(async |fixture| {
        let policy = fixture.workspace("restricted");
        fixture.run(&policy, "true").await;
        prepared(&fixture.server).await;
        for pid in warm_sandboxes(fixture.server.serving_pid()) {
            kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
            let status = || std::fs::read_to_string(format!("/proc/{pid}/status"));
            let is_over = || status().map_or(true, |status| status.contains("State:\tZ"));
            eventually("it has ended", is_over).await;
        }
        let finished = fixture.run(&policy, "echo works").await;
        assert_eq!((finished.text().as_str(), finished.exit_code), ("works\n", 0));
        prepared(&fixture.server).await;
        let finished = fixture.run(&policy, "echo works").await;
        assert_eq!((finished.text().as_str(), finished.exit_code), ("works\n", 0));
    })
    .await;
}

#[tokio::test]
async fn a_changed_mount_table_is_noticed_by_warm_sandboxes() {
    let Some(server) = server_with_mounts("true").await else { return };
    let mut fixture = SandboxFixture::new(server, None).await;
    let policy = fixture.workspace("restricted");
    let place = fixture.outside().join("dir");
    let script = format!("ls -A {}", place.display());
    assert_eq!(fixture.run(&policy, &script).await.text(), "");
    let in_its_mounts = |server: &TestExecutor, script: String| {
        let pid = server.serving_pid().to_string();
        let mut command = std::process::Command::new("nsenter");
        command.args(["-t", &pid, "-m", "/bin/sh", "-ec", &script]);
        assert!(command.status().expect("there is nsenter").success());
    };
    for (change, seen) in [("mount -t tmpfs none $0; touch $0/file", "file\n"), ("umount $0", "")] {
        prepared(&fixture.server).await;
        let old = warm_sandboxes(fixture.server.serving_pid());
        in_its_mounts(&fixture.server, change.replace("$0", place.to_str().unwrap()));
        assert_eq!(fixture.run(&policy, &script).await.text(), seen);
        // No warm sandbox stays that keeps an unmounted file system in use.
        let is_old = |pid: &i32| old.contains(pid);
        eventually("old ones have ended", || {
            !warm_sandboxes(fixture.server.serving_pid()).iter().any(is_old)
        })
        .await;
    }
}
