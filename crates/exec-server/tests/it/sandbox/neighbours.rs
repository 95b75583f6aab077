//! Several servers on one workspace: what one of them needs no other takes away, and the last one leaves nothing.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use exec_server_testkit::executor::Signal;
use exec_server_testkit::{TestExecutor, eventually};
use rustix::process::{Pid, kill_process};
use tempfile::TempDir;

use super::ground::{Ground, as_each_user};
use super::*;
use crate::files::surroundings::{as_nobody, names};

/// Another server of the same user, and a client of it.
async fn neighbour(ground: &Ground) -> (TestExecutor, TestClient) {
    let builder = TestExecutor::builder();
    let builder = if ground.is_own_user() { Some(builder) } else { as_nobody(builder) };
    let server = builder.expect("the ground has one like it").start().await;
    let client = server.client().await;
    (server, client)
}

/// Starts a command that waits for a line, and waits until it runs.
async fn start_waiting(client: &mut TestClient, id: &str, mut params: Value, script: &str) {
    params["pipeStdin"] = json!(true);
    let script = format!("echo up; read _; {script}");
    client.start(id, &["/bin/sh", "-c", &script], params).await.expect("it starts");
    client.wait_output(id, "up").await;
}

#[tokio::test]
async fn a_placeholder_stays_as_long_as_any_server_needs_it() {
    as_each_user(async |ground| {
        let params = ground.params(&ground.workspace("restricted"));
        let (_other, mut other) = neighbour(ground).await;
        start_waiting(&mut ground.client, "p", params.clone(), "true").await;
        let try_it = "mkdir .git && echo made";
        start_waiting(&mut other, "p", params, try_it).await;
        ground.client.write("p", "w", "\n").await.unwrap();
        ground.client.finish("p").await;
        assert!(ground.work().join(".git").is_dir());
        other.write("p", "w", "\n").await.unwrap();
        let finished = other.finish("p").await;
        assert!(!finished.text().contains("made"), "{finished:?}");
        assert!(names(&ground.work()).is_empty(), "{:?}", names(&ground.work()));
    })
    .await;
}

#[tokio::test]
async fn a_server_that_is_killed_leaves_its_neighbours_what_they_need() {
    as_each_user(async |ground| {
        let params = ground.params(&ground.workspace("restricted"));
        let (mut killed, mut doomed) = neighbour(ground).await;
        start_waiting(&mut doomed, "p", params.clone(), "true").await;
        start_waiting(&mut ground.client, "p", params, "mkdir .git && echo made").await;
        let serving = Pid::from_raw(killed.serving_pid().cast_signed()).unwrap();
        kill_process(serving, Signal::KILL).unwrap();
        killed.wait().await;
        assert!(ground.work().join(".git").is_dir());
        ground.client.write("p", "w", "\n").await.unwrap();
        let finished = ground.client.finish("p").await;
        assert!(!finished.text().contains("made"), "{finished:?}");
        assert!(names(&ground.work()).is_empty(), "{:?}", names(&ground.work()));
    })
    .await;
}

#[tokio::test]
async fn servers_that_start_and_end_sandboxes_at_the_same_time_do_not_disturb_each_other() {
    as_each_user(async |ground| {
        let params = ground.params(&ground.workspace("restricted"));
        let work = ground.work();
        let run = async |client: &mut TestClient| {
            for round in 0..30 {
                let id = format!("p{round}");
                let argv = ["/bin/sh", "-c", "mkdir .git 2>/dev/null && echo made"];
                let finished = client.run(&id, &argv, params.clone()).await;
                assert_eq!(finished.text(), "", "round {round}: {finished:?}");
            }
        };
        let (_second, mut second) = neighbour(ground).await;
        let (_third, mut third) = neighbour(ground).await;
        tokio::join!(run(&mut ground.client), run(&mut second), run(&mut third));
        eventually("nothing is left", || names(&work).is_empty()).await;
    })
    .await;
}

/// Nobody can share a journal with another user, so what is there is anybody's and may go at any time.
#[tokio::test]
async fn servers_of_different_users_can_start_in_one_directory() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let Some(builder) = as_nobody(TestExecutor::builder()) else { return };
    let mut ground = Ground::new(TestExecutor::start().await, None).await;
    let work = ground.work();
    std::fs::set_permissions(ground.root(), PermissionsExt::from_mode(0o755)).unwrap();
    std::fs::set_permissions(&work, PermissionsExt::from_mode(0o1777)).unwrap();
    let params = ground.params(&ground.workspace("restricted"));
    let run = async |client: &mut TestClient| {
        for round in 0..30 {
            let finished = client.run(&format!("p{round}"), &["/bin/true"], params.clone()).await;
            assert_eq!(finished.exit_code, 0, "round {round}: {finished:?}");
        }
    };
    let other = builder.start().await;
    let mut other = other.client().await;
    tokio::join!(run(&mut ground.client), run(&mut other));
    eventually("nothing is left", || names(&work).is_empty()).await;
}

/// A server with a state directory of its own, which nobody else sweeps.
struct Alone {
    dir: TempDir,
}

impl Alone {
    fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap() }
    }

    async fn server(&self) -> TestExecutor {
        TestExecutor::builder().env("EXEC_SERVER_STATE_DIR", self.dir.path()).start().await
    }

    fn journal(&self) -> PathBuf {
        self.dir.path().join("placeholders")
    }
}

#[tokio::test]
async fn the_next_server_removes_what_a_power_cut_has_left() {
    let alone = Alone::new();
    let mut ground = Ground::new(alone.server().await, None).await;
    let params = ground.params(&ground.workspace("restricted"));
    start_waiting(&mut ground.client, "p", params, "true").await;
    std::fs::create_dir(ground.work().join("mine")).unwrap();
    ground.server.cut_power().await;
    assert_eq!(names(&ground.work()), [".agents", ".aws", ".codex", ".git", "mine"]);
    // One of them was needed by somebody who does not know of sandboxes.
    std::fs::remove_dir(ground.work().join(".git")).unwrap();
    std::fs::create_dir(ground.work().join(".git")).unwrap();
    let _next = alone.server().await;
    let work = ground.work();
    eventually("what was left is gone", || names(&work) == [".git", "mine"]).await;
    eventually("it is forgotten", || names(&alone.journal()).is_empty()).await;
}

#[tokio::test]
async fn what_a_power_cut_has_left_can_be_used_and_is_removed_with_its_last_user() {
    let (alone, other) = (Alone::new(), Alone::new());
    let mut ground = Ground::new(alone.server().await, None).await;
    let params = ground.params(&ground.workspace("restricted"));
    start_waiting(&mut ground.client, "p", params.clone(), "true").await;
    ground.server.cut_power().await;
    // A server that does not know of them leaves them alone.
    let stranger = other.server().await;
    let finished = stranger.client().await.run("p", &["/bin/true"], params.clone()).await;
    assert_eq!(finished.exit_code, 0);
    assert!(ground.work().join(".git").is_dir());
    let next = alone.server().await;
    let finished = next.client().await.run("p", &["/bin/true"], params).await;
    assert_eq!(finished.exit_code, 0);
    let work = ground.work();
    eventually("nothing is left", || names(&work).is_empty()).await;
}

#[tokio::test]
async fn what_somebody_makes_in_place_of_a_placeholder_is_theirs() {
    as_each_user(async |ground| {
        let params = ground.params(&ground.workspace("restricted"));
        start_waiting(&mut ground.client, "p", params, "true").await;
        let free = ground.run_free("rmdir .git && mkdir .git && echo x > .git/HEAD").await;
        assert_eq!(free.exit_code, 0, "{free:?}");
        ground.client.write("p", "w", "\n").await.unwrap();
        ground.client.finish("p").await;
        assert_eq!(names(&ground.work()), [".git"]);
        assert!(ground.work().join(".git/HEAD").is_file());
    })
    .await;
}

#[tokio::test]
async fn nobody_in_a_sandbox_gets_to_the_journal() {
    let alone = Alone::new();
    let mut ground = Ground::new(alone.server().await, None).await;
    let journal = alone.journal();
    ground.env.insert("JOURNAL".to_owned(), journal.to_str().unwrap().to_owned());
    let mut params = ground.params(&ground.workspace("restricted"));
    start_waiting(&mut ground.client, "keep", params.clone(), "true").await;
    assert_eq!(names(&journal).len(), 1);
    let entries =
        [special("root", "read"), special("project_roots", "write"), at(&journal, "write")];
    let around = [special("root", "read"), at(alone.dir.path(), "write")];
    for entries in [&entries[..2], &entries, &around] {
        params["sandbox"] = with_entries(&[&ground.work()], "restricted", entries);
        let script =
            "ls $JOURNAL; cat $JOURNAL/*; echo x > $JOURNAL/x; rm -rf $JOURNAL; mv $JOURNAL x";
        let id = ground.next_id();
        let inside = ground.client.run(&id, &["/bin/sh", "-c", script], params.clone()).await;
        assert!(!inside.text().contains("root /"), "{entries:?}: {inside:?}");
        assert_eq!(names(&journal).len(), 1, "{entries:?}: {inside:?}");
    }
}
