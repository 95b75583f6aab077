//! Several servers on one workspace: shared placeholders are kept while one needs them, and removed by the last.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use exec_server_testkit::executor::Signal;
use exec_server_testkit::{TestExecutor, eventually};
use rustix::process::{Pid, kill_process};
use tempfile::TempDir;

use super::fixture::{SandboxFixture, as_each_user};
use super::*;
use crate::files::host::{as_nobody, names};

/// Another server of the same user, and a client of it.
async fn neighbour(fixture: &SandboxFixture) -> (TestExecutor, TestClient) {
    let builder = TestExecutor::builder();
    let builder = if fixture.is_own_user() { Some(builder) } else { as_nobody(builder) };
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
    as_each_user(async |fixture| {
        let params = fixture.params(&fixture.workspace("restricted"));
        let (_other, mut other) = neighbour(fixture).await;
        start_waiting(&mut fixture.client, "p", params.clone(), "true").await;
        let try_it = "mkdir .git && echo made";
        start_waiting(&mut other, "p", params, try_it).await;
        fixture.client.write("p", "w", "\n").await.unwrap();
        fixture.client.finish("p").await;
        assert!(fixture.work().join(".git").is_dir());
        other.write("p", "w", "\n").await.unwrap();
        let finished = other.finish("p").await;
        assert!(!finished.text().contains("made"), "{finished:?}");
        assert!(names(&fixture.work()).is_empty(), "{:?}", names(&fixture.work()));
    })
    .await;
}

#[tokio::test]
async fn a_killed_server_leaves_the_placeholders_of_others() {
    as_each_user(async |fixture| {
        let params = fixture.params(&fixture.workspace("restricted"));
        let (mut killed, mut doomed) = neighbour(fixture).await;
        start_waiting(&mut doomed, "p", params.clone(), "true").await;
        start_waiting(&mut fixture.client, "p", params, "mkdir .git && echo made").await;
        let serving = Pid::from_raw(killed.serving_pid().cast_signed()).unwrap();
        kill_process(serving, Signal::KILL).unwrap();
        killed.wait().await;
        assert!(fixture.work().join(".git").is_dir());
        fixture.client.write("p", "w", "\n").await.unwrap();
        let finished = fixture.client.finish("p").await;
        assert!(!finished.text().contains("made"), "{finished:?}");
        assert!(names(&fixture.work()).is_empty(), "{:?}", names(&fixture.work()));
    })
    .await;
}

#[tokio::test]
async fn servers_that_start_and_end_sandboxes_at_the_same_time_do_not_disturb_each_other() {
    as_each_user(async |fixture| {
        let params = fixture.params(&fixture.workspace("restricted"));
        let work = fixture.work();
        let run = async |client: &mut TestClient| {
            for round in 0..30 {
                let id = format!("p{round}");
                let argv = ["/bin/sh", "-c", "mkdir .git 2>/dev/null && echo made"];
                let finished = client.run(&id, &argv, params.clone()).await;
                assert_eq!(finished.text(), "", "round {round}: {finished:?}");
            }
        };
        let (_second, mut second) = neighbour(fixture).await;
        let (_third, mut third) = neighbour(fixture).await;
        tokio::join!(run(&mut fixture.client), run(&mut second), run(&mut third));
        eventually("nothing is left", || names(&work).is_empty()).await;
    })
    .await;
}

/// A journal cannot be shared with another user, so other users' placeholders may be removed at any time.
#[tokio::test]
async fn servers_of_different_users_can_start_in_one_directory() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let Some(builder) = as_nobody(TestExecutor::builder()) else { return };
    let mut fixture = SandboxFixture::new(TestExecutor::start().await, None).await;
    let work = fixture.work();
    std::fs::set_permissions(fixture.root(), PermissionsExt::from_mode(0o755)).unwrap();
    std::fs::set_permissions(&work, PermissionsExt::from_mode(0o1777)).unwrap();
    let params = fixture.params(&fixture.workspace("restricted"));
    let run = async |client: &mut TestClient| {
        for round in 0..30 {
            let finished = client.run(&format!("p{round}"), &["/bin/true"], params.clone()).await;
            assert_eq!(finished.exit_code, 0, "round {round}: {finished:?}");
        }
    };
    let other = builder.start().await;
    let mut other = other.client().await;
    tokio::join!(run(&mut fixture.client), run(&mut other));
    eventually("nothing is left", || names(&work).is_empty()).await;
}

/// A server with a state directory of its own, which no other server sweeps.
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
async fn the_next_server_removes_placeholders_after_a_power_cut() {
    let alone = Alone::new();
    let mut fixture = SandboxFixture::new(alone.server().await, None).await;
    let params = fixture.params(&fixture.workspace("restricted"));
    start_waiting(&mut fixture.client, "p", params, "true").await;
    std::fs::create_dir(fixture.work().join("mine")).unwrap();
    fixture.server.cut_power().await;
    assert_eq!(names(&fixture.work()), [".agents", ".aws", ".codex", ".git", "mine"]);
    // A program that does not know of sandboxes needed one of them.
    std::fs::remove_dir(fixture.work().join(".git")).unwrap();
    std::fs::create_dir(fixture.work().join(".git")).unwrap();
    let _next = alone.server().await;
    let work = fixture.work();
    eventually("what was left is gone", || names(&work) == [".git", "mine"]).await;
    eventually("it is forgotten", || names(&alone.journal()).is_empty()).await;
}

#[tokio::test]
async fn placeholders_left_by_a_power_cut_are_reused_and_removed_by_the_last_user() {
    let (alone, other) = (Alone::new(), Alone::new());
    let mut fixture = SandboxFixture::new(alone.server().await, None).await;
    let params = fixture.params(&fixture.workspace("restricted"));
    start_waiting(&mut fixture.client, "p", params.clone(), "true").await;
    fixture.server.cut_power().await;
    // A server without sandboxes leaves them alone.
    let stranger = other.server().await;
    let finished = stranger.client().await.run("p", &["/bin/true"], params.clone()).await;
    assert_eq!(finished.exit_code, 0);
    assert!(fixture.work().join(".git").is_dir());
    let next = alone.server().await;
    let finished = next.client().await.run("p", &["/bin/true"], params).await;
    assert_eq!(finished.exit_code, 0);
    let work = fixture.work();
    eventually("nothing is left", || names(&work).is_empty()).await;
}

#[tokio::test]
async fn a_directory_made_in_place_of_a_placeholder_is_kept() {
    as_each_user(async |fixture| {
        let params = fixture.params(&fixture.workspace("restricted"));
        start_waiting(&mut fixture.client, "p", params, "true").await;
        let free = fixture.run_free("rmdir .git && mkdir .git && echo x > .git/HEAD").await;
        assert_eq!(free.exit_code, 0, "{free:?}");
        fixture.client.write("p", "w", "\n").await.unwrap();
        fixture.client.finish("p").await;
        assert_eq!(names(&fixture.work()), [".git"]);
        assert!(fixture.work().join(".git/HEAD").is_file());
    })
    .await;
}

#[tokio::test]
async fn a_sandbox_cannot_reach_the_journal() {
    let alone = Alone::new();
    let mut fixture = SandboxFixture::new(alone.server().await, None).await;
    let journal = alone.journal();
    fixture.env.insert("JOURNAL".to_owned(), journal.to_str().unwrap().to_owned());
    let mut params = fixture.params(&fixture.workspace("restricted"));
    start_waiting(&mut fixture.client, "keep", params.clone(), "true").await;
    assert_eq!(names(&journal).len(), 1);
    let entries =
        [special("root", "read"), special("project_roots", "write"), at(&journal, "write")];
    let around = [special("root", "read"), at(alone.dir.path(), "write")];
    for entries in [&entries[..2], &entries, &around] {
        params["sandbox"] = with_entries(&[&fixture.work()], "restricted", entries);
        let script =
            "ls $JOURNAL; cat $JOURNAL/*; echo x > $JOURNAL/x; rm -rf $JOURNAL; mv $JOURNAL x";
        let id = fixture.next_id();
        let inside = fixture.client.run(&id, &["/bin/sh", "-c", script], params.clone()).await;
        assert!(!inside.text().contains("root /"), "{entries:?}: {inside:?}");
        assert_eq!(names(&journal).len(), 1, "{entries:?}: {inside:?}");
    }
}
