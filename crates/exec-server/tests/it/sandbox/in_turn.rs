//! One sandboxed start after the other: most of them find a sandbox that was prepared ahead, and none may notice.

use std::collections::BTreeSet;
use std::path::Path;

use exec_server_testkit::executor::Signal;
use exec_server_testkit::process_count::spares;
use exec_server_testkit::{TestExecutor, eventually};
use rustix::process::{Pid, kill_process};

use super::ground::{Ground, as_each_user};
use super::*;
use crate::files::surroundings::{names, server_with_mounts};

fn ipc_namespace(pid: impl std::fmt::Display) -> Option<String> {
    let link = std::fs::read_link(format!("/proc/{pid}/ns/ipc")).ok()?;
    Some(link.to_str()?.to_owned())
}

/// The namespaces of all spares, once there are two: one for the session, and one for a session that is yet to come.
async fn prepared(server: &TestExecutor) -> BTreeSet<String> {
    let host = ipc_namespace("self");
    let mut found = BTreeSet::new();
    eventually("two sandboxes are prepared", || {
        let namespaces = spares(server.serving_pid()).into_iter().filter_map(ipc_namespace);
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
    let mut ground = Ground::new(TestExecutor::start().await, None).await;
    ground.run_free("true").await;
    assert!(!has_keeper(&ground.server));
    let policy = ground.workspace("restricted");
    ground.run(&policy, "true").await;
    prepared(&ground.server).await;
    assert!(has_keeper(&ground.server));
}

const WHERE_AM_I: &str = "readlink /proc/self/ns/ipc";

#[tokio::test]
async fn a_start_finds_a_sandbox_that_was_prepared_and_nobody_else_gets_it() {
    as_each_user(async |ground| {
        let policy = ground.workspace("restricted");
        ground.run(&policy, "true").await;
        let before = prepared(&ground.server).await;
        let waiting = spares(ground.server.serving_pid());
        let first = ground.run(&policy, WHERE_AM_I).await;
        assert!(before.contains(first.text().trim()), "{first:?} is none of {before:?}");
        let left = spares(ground.server.serving_pid());
        assert!(waiting.iter().any(|pid| !left.contains(pid)), "{waiting:?} {left:?}");
        let left = prepared(&ground.server).await;
        let second = ground.run(&policy, WHERE_AM_I).await;
        assert!(left.contains(second.text().trim()), "{second:?} is none of {left:?}");
        // Also the first start of another session, which never sees the network of this one.
        let left = prepared(&ground.server).await;
        let network = "readlink /proc/self/ns/ipc; readlink /proc/self/ns/net";
        let own = ground.run(&policy, network).await;
        let params = ground.params(&policy);
        let mut other = ground.server.client().await;
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
    as_each_user(async |ground| {
        let policy = ground.workspace("restricted");
        let look = "ls /dev/shm /dev/pts; ls -d /proc/3*; cut -d' ' -f5- /proc/self/mountinfo; \
                    cat /proc/self/cgroup; ls -l /proc/self/fd | wc -l; umask; ulimit -a";
        let first = ground.run(&policy, look).await;
        for _ in 0..3 {
            prepared(&ground.server).await;
            let litter = "echo secret > /dev/shm/left; mkdir /dev/shm/dir; (sleep 100 &) ; umask 0; \
                          ulimit -n 50; echo done";
            let finished = ground.run(&policy, litter).await;
            assert_eq!(finished.text(), "done\n");
            prepared(&ground.server).await;
            let next = ground.run(&policy, look).await;
            assert_eq!(next.text(), first.text());
        }
        assert!(names(&ground.work()).is_empty(), "{:?}", names(&ground.work()));
    })
    .await;
}

#[tokio::test]
async fn what_was_made_after_a_sandbox_was_prepared_is_judged_like_everything_else() {
    as_each_user(async |ground| {
        let policy = ground.workspace("restricted");
        let work = ground.work();
        ground.run(&policy, "true").await;
        prepared(&ground.server).await;
        ground.make_dir(&work.join(".git/hooks"));
        ground.put(&work.join(".git/config"), "safe\n");
        let script = "echo bad > .git/config; echo bad > .git/hooks/new; mkdir .codex; echo new > free; \
                      cat .git/config";
        let finished = ground.run(&policy, script).await;
        assert!(finished.text().ends_with("safe\n"), "{finished:?}");
        assert_eq!(names(&work), [".git", "free"]);
        assert!(names(&work.join(".git/hooks")).is_empty());
        // The same with a pattern, and with a name that became a link to elsewhere.
        prepared(&ground.server).await;
        ground.put(&work.join("key.env"), "secret\n");
        std::fs::remove_dir_all(work.join(".git")).unwrap();
        std::os::unix::fs::symlink(ground.outside().join("dir"), work.join(".git")).unwrap();
        let entries =
            [special("root", "read"), special("project_roots", "write"), glob("**/*.env")];
        let denying = with_entries(&[&work], "restricted", &entries);
        let script = "cat key.env; echo bad > .git/new; rm .git";
        let finished = ground.run(&denying, script).await;
        assert!(!finished.text().contains("secret"), "{finished:?}");
        assert!(work.join(".git").is_symlink() && names(&ground.outside().join("dir")).is_empty());
    })
    .await;
}

#[tokio::test]
async fn every_policy_gets_its_own_view_in_a_sandbox_that_was_prepared_for_another() {
    as_each_user(async |ground| {
        let (work, outside) = (ground.work(), ground.outside());
        let write = |root: &Path| workspace_write(&[root], "restricted");
        let script = format!(
            "echo x > {}/new && echo work; echo x > {}/new && echo outside",
            work.display(),
            outside.display()
        );
        ground.run(&write(&work), "true").await;
        for (round, (policy, expected)) in [
            (write(&outside), "outside\n"),
            (write(&work), "work\n"),
            (with_entries(&[&work], "restricted", &[special("root", "read")]), ""),
            (workspace_write(&[&work], "enabled"), "work\n"),
        ]
        .into_iter()
        .enumerate()
        {
            prepared(&ground.server).await;
            let finished = ground.run(&policy, &script).await;
            assert_eq!(finished.text(), expected, "round {round}: {finished:?}");
        }
    })
    .await;
}

#[tokio::test]
async fn a_prepared_sandbox_that_is_killed_harms_no_start() {
    as_each_user(async |ground| {
        let policy = ground.workspace("restricted");
        ground.run(&policy, "true").await;
        prepared(&ground.server).await;
        for pid in spares(ground.server.serving_pid()) {
            kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
            let status = || std::fs::read_to_string(format!("/proc/{pid}/status"));
            let is_over = || status().map_or(true, |status| status.contains("State:\tZ"));
            eventually("it has ended", is_over).await;
        }
        let finished = ground.run(&policy, "echo works").await;
        assert_eq!((finished.text().as_str(), finished.exit_code), ("works\n", 0));
        prepared(&ground.server).await;
        let finished = ground.run(&policy, "echo works").await;
        assert_eq!((finished.text().as_str(), finished.exit_code), ("works\n", 0));
    })
    .await;
}

#[tokio::test]
async fn a_mount_that_came_or_went_since_a_sandbox_was_prepared_is_noticed() {
    let Some(server) = server_with_mounts("true").await else { return };
    let mut ground = Ground::new(server, None).await;
    let policy = ground.workspace("restricted");
    let place = ground.outside().join("dir");
    let script = format!("ls -A {}", place.display());
    assert_eq!(ground.run(&policy, &script).await.text(), "");
    let in_its_mounts = |server: &TestExecutor, script: String| {
        let pid = server.serving_pid().to_string();
        let mut command = std::process::Command::new("nsenter");
        command.args(["-t", &pid, "-m", "/bin/sh", "-ec", &script]);
        assert!(command.status().expect("there is nsenter").success());
    };
    for (change, seen) in [("mount -t tmpfs none $0; touch $0/file", "file\n"), ("umount $0", "")] {
        prepared(&ground.server).await;
        let old = spares(ground.server.serving_pid());
        in_its_mounts(&ground.server, change.replace("$0", place.to_str().unwrap()));
        assert_eq!(ground.run(&policy, &script).await.text(), seen);
        // None of the others stays and keeps what is not mounted any more.
        let is_old = |pid: &i32| old.contains(pid);
        eventually("old ones have ended", || {
            !spares(ground.server.serving_pid()).iter().any(is_old)
        })
        .await;
    }
}
