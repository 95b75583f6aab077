//! Process trees: all descendants end with the process, whatever group or session they are in.

use std::time::{Duration, Instant};

use exec_server_testkit::process_count::{children, state};
use exec_server_testkit::{Fifo, ProcessMarker, TestClient, TestExecutor, eventually};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use crate::cgroups::TestCgroup;

/// Starts one descendant of every kind, and waits until each is in place: a child in
/// the group, one in a session of its own, and two daemons without a parent, of which one keeps the output.
const FAMILY: &str = r#"
    up() { read _ <"$FIFO"; }
    sh -c 'echo up >"$FIFO"; exec sleep 1000' & up
    setsid sh -c 'echo up >"$FIFO"; exec sleep 1000' & up
    (setsid sh -c 'echo up >"$FIFO"; exec sleep 1000' &) ; up
    (setsid sh -c 'sh -c "echo up >$FIFO; exec sleep 1000" & exec sleep 1000' </dev/null >/dev/null 2>&1 &) ; up
"#;
/// Number of descendants.
const FAMILY_SIZE: usize = 5;

#[tokio::test]
async fn terminate_ends_every_descendant() {
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    for tty in [false, true] {
        let family = Family::start(&mut client, "p", tty, "echo ready; wait").await;
        client.wait_output("p", "ready").await;
        family.process_count.counts(FAMILY_SIZE + 1).await;
        assert!(client.terminate("p", None).await);
        assert_eq!(client.finish("p").await.exit_code, 137);
        family.process_count.gone().await;
        client = server.client().await;
    }
}

/// The next server ends exactly the processes of a server that was killed with its guardian.
#[tokio::test]
async fn the_next_server_ends_processes_of_a_server_killed_with_its_guardian() {
    let state = tempfile::tempdir().unwrap();
    let with_state = || {
        let mut builder = TestExecutor::builder();
        builder.command().arg("--state-dir").arg(state.path());
        builder
    };
    let (mut gone, living) = (with_state().start().await, with_state().start().await);
    let mut clients = (gone.client().await, living.client().await);
    let left = Family::start(&mut clients.0, "p", false, "wait").await;
    let kept = Family::start(&mut clients.1, "p", false, "wait").await;
    left.process_count.counts(FAMILY_SIZE + 1).await;
    kept.process_count.counts(FAMILY_SIZE + 1).await;
    // The same limit as a tag, in a process of no server.
    let similar = (1u64 << 60) | 0x0fff_fff0 << 32 | 1;
    let mut bystander = tokio::process::Command::new("prlimit")
        .args([&format!("--rttime={similar}:unlimited"), "sleep", "1000"])
        .kill_on_drop(true)
        .spawn()
        .expect("util-linux is there");
    let servers = state.path().join("servers");
    assert_eq!(std::fs::read_dir(&servers).unwrap().count(), 2);
    gone.cut_power().await;
    assert!(!left.process_count.living().is_empty(), "daemons outlive both");
    let mut next = with_state().piped_stderr().start().await;
    left.process_count.gone().await;
    while !next.next_stderr_line().await.unwrap().contains("ended processes of a server") {}
    assert_eq!(kept.process_count.living().len(), FAMILY_SIZE + 1);
    assert_eq!(clients.1.call("environment/status", json!(null)).await.unwrap()["status"], "ready");
    assert!(bystander.try_wait().unwrap().is_none());
    eventually("the file is removed", || std::fs::read_dir(&servers).unwrap().count() == 2).await;
}

/// A server that was started by a process of another one has inherited its tag.
#[tokio::test]
async fn a_server_among_the_leftovers_is_not_ended() {
    let state = tempfile::tempdir().unwrap();
    let with_state = || {
        let mut builder = TestExecutor::builder();
        builder.command().arg("--state-dir").arg(state.path());
        builder
    };
    let mut gone = with_state().start().await;
    let mut client = gone.client().await;
    let marker = ProcessMarker::new();
    let url = state.path().join("url");
    let script = format!(
        "(setsid '{}' --state-dir '{}' </dev/null >'{}' 2>/dev/null &); exec sleep 1000",
        exec_server_testkit::executor::binary().display(),
        state.path().display(),
        url.display(),
    );
    client.start("p", &["sh", "-c", &script], marker.params()).await.unwrap();
    let read = || std::fs::read_to_string(&url).unwrap_or_default();
    eventually("the inner server listens", || read().ends_with('\n')).await;
    gone.cut_power().await;
    let mut next = with_state().start().await;
    // Its search is complete when the file of the killed server is removed.
    let servers = state.path().join("servers");
    eventually("the file is removed", || std::fs::read_dir(&servers).unwrap().count() == 2).await;
    let mut inner = TestClient::connect(read().trim()).await;
    inner.initialize().await;
    assert_eq!(inner.sh("p", "echo alive").await.text(), "alive\n");
    next.signal(Signal::TERM);
    next.wait().await;
}

#[tokio::test]
async fn terminate_ends_those_that_the_root_left_behind() {
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    let family = Family::start(&mut client, "p", false, "exit 4").await;
    let exited = client.process_event("p").await;
    assert_eq!(
        (&exited["method"], &exited["params"]["exitCode"]),
        (&json!("process/exited"), &json!(4))
    );
    family.process_count.counts(FAMILY_SIZE).await;
    // A process outside the tree still holds the output, so the process is not closed.
    assert_eq!(client.read("p", 0, 0).await["closed"], false);
    assert!(!client.terminate("p", None).await);
    assert_eq!(client.finish("p").await.order, ["closed"]);
    family.process_count.gone().await;
}

#[tokio::test]
async fn a_daemon_without_the_output_runs_until_a_client_terminates_it() {
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    let (process_count, mut up) = (ProcessMarker::new(), Fifo::new());
    let script = format!(
        "(setsid sh -c 'echo up >{}; exec sleep 1000' </dev/null >/dev/null 2>&1 &)",
        up.path()
    );
    let finished = client.run("p", &["/bin/sh", "-c", &script], process_count.params()).await;
    assert_eq!(finished.order, ["exited", "closed"]);
    up.line().await;
    assert!(!client.terminate("p", None).await);
    client.sh("another", "true").await;
    process_count.counts(1).await;
    assert!(!client.terminate("p", Some(0)).await);
    process_count.gone().await;
}

#[tokio::test]
async fn grace_lets_every_descendant_clean_up() {
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    let process_count = ProcessMarker::new();
    let mut said = Fifo::new();
    // The sleeper prints a line once it has executed; before, it is a copy of the shell that would take the signal.
    let sleeper = "sh -c \"echo up >$FIFO; exec sleep 1000\" & wait";
    let handler = format!("trap \"echo cleaned >$FIFO; exit 0\" TERM; {sleeper}");
    let script = format!(
        "sh -c '{handler}' & setsid sh -c '{handler}' & (setsid sh -c '{handler}' >/dev/null 2>&1 &); \
         trap 'exit 7' TERM; {sleeper}"
    );
    let more = with_fifo(&process_count, &said);
    client.start("p", &["/bin/sh", "-c", &script], more).await.unwrap();
    for _ in 0..4 {
        assert_eq!(said.line().await, "up");
    }
    assert!(client.terminate("p", Some(20_000)).await);
    for _ in 0..3 {
        assert_eq!(said.line().await, "cleaned");
    }
    let exited = client.finish("p").await.exited;
    assert_eq!((&exited["exitCode"], &exited["reason"]), (&json!(7), &json!("terminated")));
    process_count.gone().await;
}

#[tokio::test]
async fn after_the_grace_even_the_stubborn_are_killed() {
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    let process_count = ProcessMarker::new();
    let mut said = Fifo::new();
    let stubborn =
        "trap \"echo heard >$FIFO\" TERM; echo up >$FIFO; while :; do sleep 1000 & wait; done";
    let script = format!("(setsid sh -c '{stubborn}' &); {stubborn}");
    let more = with_fifo(&process_count, &said);
    client.start("p", &["/bin/sh", "-c", &script], more).await.unwrap();
    for _ in 0..2 {
        assert_eq!(said.line().await, "up");
    }
    let start = Instant::now();
    assert!(client.terminate("p", Some(500)).await);
    for _ in 0..2 {
        assert_eq!(said.line().await, "heard");
    }
    let exited = client.finish("p").await.exited;
    assert!(start.elapsed() >= Duration::from_millis(500), "{:?}", start.elapsed());
    assert_eq!((&exited["signal"], &exited["reason"]), (&json!("SIGKILL"), &json!("terminated")));
    process_count.gone().await;
}

#[tokio::test]
async fn terminate_without_grace_overtakes_one_with_grace() {
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    let process_count = ProcessMarker::new();
    let argv = ["/bin/sh", "-c", "trap '' TERM; echo ready; while :; do sleep 1000; done"];
    client.start("p", &argv, process_count.params()).await.unwrap();
    client.wait_output("p", "ready").await;
    assert!(client.terminate("p", Some(3_600_000)).await);
    assert!(client.terminate("p", None).await);
    assert_eq!(client.finish("p").await.exited["signal"], "SIGKILL");
    process_count.gone().await;
}

#[tokio::test]
async fn a_tree_that_keeps_growing_is_ended_too() {
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    let process_count = ProcessMarker::new();
    let folder = Fifo::new();
    // Each of these is followed by a child in a session of its own, and so on without end.
    std::fs::write(folder.folder().join("hydra"), "sleep 0.02; setsid sh \"$0\" &").unwrap();
    let script = r#"
        i=0; while [ $i -lt 30 ]; do sh "${FIFO%fifo}hydra" >/dev/null 2>&1 & i=$((i + 1)); done
        echo ready; sleep 1000
    "#;
    let more = with_fifo(&process_count, &folder);
    client.start("p", &["/bin/sh", "-c", script], more).await.unwrap();
    client.wait_output("p", "ready").await;
    eventually("it grows", || process_count.living().len() > 3).await;
    assert!(client.terminate("p", None).await);
    client.finish("p").await;
    process_count.gone().await;
}

#[tokio::test]
async fn a_process_forked_during_the_search_of_the_tree_is_found() {
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    let process_count = ProcessMarker::new();
    let folder = Fifo::new();
    // A chain of short-lived descendants, each in its own session.
    std::fs::write(folder.folder().join("line"), "setsid sh \"$0\" &").unwrap();
    let script = "exec sh \"${FIFO%fifo}line\" >/dev/null 2>&1";
    for round in 0..10 {
        let id = format!("p{round}");
        let more = with_fifo(&process_count, &folder);
        client.run(&id, &["/bin/sh", "-c", script], more).await;
        client.terminate(&id, Some(0)).await;
        process_count.gone().await;
    }
}

#[tokio::test]
async fn terminate_spares_the_neighbours() {
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    let spared = Family::start(&mut client, "spared", false, "echo ready; wait").await;
    client.wait_output("spared", "ready").await;
    let ended = Family::start(&mut client, "ended", false, "echo ready; wait").await;
    client.wait_output("ended", "ready").await;
    client.terminate("ended", None).await;
    client.finish("ended").await;
    ended.process_count.gone().await;
    spared.process_count.counts(FAMILY_SIZE + 1).await;
    client.terminate("spared", None).await;
    client.finish("spared").await;
    spared.process_count.gone().await;
}

#[tokio::test]
async fn the_end_of_a_session_ends_its_daemons_and_only_its() {
    let server = TestExecutor::start_with(&["--session-linger", "200ms"]).await;
    let mut other = server.client().await;
    let spared = Family::start(&mut other, "p", false, "echo ready; wait").await;
    other.wait_output("p", "ready").await;

    let mut client = server.client().await;
    let running = Family::start(&mut client, "running", false, "echo ready; wait").await;
    client.wait_output("running", "ready").await;
    // This one is closed already; only its daemon is left.
    let (closed, mut up) = (ProcessMarker::new(), Fifo::new());
    let script = format!(
        "(setsid sh -c 'echo up >{}; exec sleep 1000' </dev/null >/dev/null 2>&1 &)",
        up.path()
    );
    client.run("closed", &["/bin/sh", "-c", &script], closed.params()).await;
    up.line().await;
    closed.counts(1).await;
    let session = client.session_id.clone();
    drop(client);
    running.process_count.gone().await;
    closed.gone().await;
    spared.process_count.counts(FAMILY_SIZE + 1).await;
    let mut late = TestClient::connect(server.url()).await;
    let error = late.resume(&session).await.unwrap_err();
    assert_eq!(error["message"], format!("unknown session id {session}"));
}

#[tokio::test]
async fn a_server_that_gets_sigterm_ends_all_processes() {
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let mut server = TestExecutor::start().await;
        let mut client = server.client().await;
        let family = Family::start(&mut client, "p", false, "trap '' TERM; echo ready; wait").await;
        client.wait_output("p", "ready").await;
        // A detached session's processes belong to the server as well.
        let mut detached = server.client().await;
        let other = Family::start(&mut detached, "p", false, "exit 0").await;
        detached.process_event("p").await;
        drop(detached);
        kill(server.pid(), signal);
        let status = server.wait().await;
        assert_eq!(
            family.process_count.living(),
            [0; 0],
            "the server was gone before its processes"
        );
        assert_eq!(
            other.process_count.living(),
            [0; 0],
            "the server was gone before its processes"
        );
        assert_eq!(status.code(), Some(0), "{signal:?}");
    }
}

#[tokio::test]
async fn a_killed_guardian_takes_everything_with_it() {
    let mut server = TestExecutor::start().await;
    let mut client = server.client().await;
    let family = Family::start(&mut client, "p", false, "echo ready; wait").await;
    client.wait_output("p", "ready").await;
    let serving = server.serving_pid();
    kill(server.pid(), Signal::KILL);
    server.wait().await;
    family.process_count.gone().await;
    eventually("the server is gone", || state(serving.cast_signed()).is_none_or(|s| s == 'Z'))
        .await;
}

#[tokio::test]
async fn a_killed_server_takes_everything_with_it() {
    let mut server = TestExecutor::start().await;
    let mut client = server.client().await;
    let family = Family::start(&mut client, "p", false, "trap '' TERM; echo ready; wait").await;
    client.wait_output("p", "ready").await;
    let left_behind = Family::start(&mut client, "q", false, "exit 0").await;
    client.process_event("q").await;
    kill(server.serving_pid(), Signal::KILL);
    let status = server.wait().await;
    assert_eq!(family.process_count.living(), [0; 0], "the guardian was gone before the processes");
    assert_eq!(
        left_behind.process_count.living(),
        [0; 0],
        "the guardian was gone before the processes"
    );
    assert_eq!(status.code(), Some(137));
}

#[tokio::test]
async fn a_signal_reaches_the_whole_tree() {
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    for (name, signal) in [
        ("interrupt", "INT"),
        ("terminate", "TERM"),
        ("hangup", "HUP"),
        ("quit", "QUIT"),
        ("usr1", "USR1"),
        ("usr2", "USR2"),
        ("winch", "WINCH"),
    ] {
        let process_count = ProcessMarker::new();
        let mut said = Fifo::new();
        // Not a job in the background: that would ignore INT and QUIT for good.
        let member = format!(
            "trap \"echo $NAME >$FIFO; exit 0\" {signal}; echo up >$FIFO; while :; do sleep 1000 & wait $!; done"
        );
        let script =
            format!("NAME=daemon setsid --fork sh -c '{member}'; export NAME=root; {member}");
        let more = with_fifo(&process_count, &said);
        client.start(name, &["/bin/sh", "-c", &script], more).await.unwrap();
        assert_eq!((said.line().await, said.line().await), ("up".into(), "up".into()));
        client.signal(name, name).await;
        let mut heard = [said.line().await, said.line().await];
        heard.sort();
        assert_eq!(heard, ["daemon", "root"], "{name}");
        client.terminate(name, None).await;
        client.finish(name).await;
        process_count.gone().await;
    }
}

#[tokio::test]
async fn kill_as_a_signal_ends_the_tree_and_is_no_termination() {
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    let family = Family::start(&mut client, "p", false, "echo ready; wait").await;
    client.wait_output("p", "ready").await;
    client.signal("p", "kill").await;
    let exited = client.finish("p").await.exited;
    assert_eq!((&exited["signal"], &exited["reason"]), (&json!("SIGKILL"), &json!("signaled")));
    family.process_count.gone().await;
}

#[tokio::test]
async fn a_tree_can_be_stopped_and_continued() {
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    let family = Family::start(&mut client, "p", false, "echo ready; wait").await;
    client.wait_output("p", "ready").await;
    let members = family.process_count.counts(FAMILY_SIZE + 1).await;
    client.signal("p", "stop").await;
    eventually("all are stopped", || members.iter().all(|pid| state(*pid) == Some('T'))).await;
    client.signal("p", "continue").await;
    eventually("none is stopped", || members.iter().all(|pid| state(*pid) == Some('S'))).await;
    // A stopped process can be killed.
    client.signal("p", "stop").await;
    client.terminate("p", None).await;
    client.finish("p").await;
    family.process_count.gone().await;
}

#[tokio::test]
async fn no_zombie_remains() {
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    for round in 0..20 {
        client.sh(&format!("p{round}"), "(setsid true &); (sh -c 'sleep 0.01' >/dev/null &)").await;
    }
    assert_no_zombies(&server).await;
}

#[tokio::test]
async fn orphans_of_a_process_that_runs_on_do_not_stay_zombies() {
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    let script =
        "i=0; while [ $i -lt 50 ]; do (true & true & ) ; i=$((i + 1)); done; echo ready; read _";
    let more = json!({"pipeStdin": true});
    client.start("p", &["/bin/sh", "-c", script], more).await.unwrap();
    client.wait_output("p", "ready").await;
    assert_no_zombies(&server).await;
}

async fn assert_no_zombies(server: &TestExecutor) {
    for pid in [server.pid(), server.serving_pid()] {
        eventually("no zombie is left", || {
            children(pid).into_iter().all(|child| state(child) != Some('Z'))
        })
        .await;
    }
}

#[tokio::test]
async fn in_a_cgroup_a_tree_ends_and_leaves_no_directory() {
    let Some(cgroup) = TestCgroup::make() else { return };
    let path = cgroup.path.to_str().unwrap().to_owned();
    let mut server = TestExecutor::start_with(&["--cgroup", &path]).await;
    let mut client = server.client().await;
    let family = Family::start(&mut client, "p", false, "echo ready; wait").await;
    client.wait_output("p", "ready").await;
    let groups = cgroup.children();
    assert_eq!(groups.len(), 1);
    let members = std::fs::read_to_string(groups[0].join("cgroup.procs")).unwrap();
    assert_eq!(members.lines().count(), FAMILY_SIZE + 1);
    client.terminate("p", None).await;
    assert_eq!(client.finish("p").await.exited["reason"], "terminated");
    family.process_count.gone().await;

    // A start that fails leaves none; one whose root is gone is still known by its group.
    client.start("fails", &["/no/such/program"], json!({})).await.unwrap_err();
    let left_behind = Family::start(&mut client, "q", false, "exit 0").await;
    client.process_event("q").await;
    client.terminate("q", None).await;
    client.finish("q").await;
    left_behind.process_count.gone().await;
    assert!(cgroup.children().len() <= 2, "{:?}", cgroup.children());

    let last = Family::start(&mut client, "last", false, "echo ready; wait").await;
    client.wait_output("last", "ready").await;
    kill(server.pid(), Signal::TERM);
    assert_eq!(server.wait().await.code(), Some(0));
    assert_eq!(last.process_count.living(), [0; 0]);
    assert!(cgroup.children().is_empty(), "{:?}", cgroup.children());
}

#[tokio::test]
async fn a_cgroup_that_is_none_is_refused() {
    let (code, stdout, stderr) =
        TestExecutor::builder().args(&["--cgroup", "/proc/self"]).run().await;
    assert_eq!((code, stdout.as_str()), (1, ""));
    assert!(stderr.contains("/proc/self is not a cgroup (version 2) directory"), "{stderr}");
}

/// A process with one descendant of every kind.
struct Family {
    process_count: ProcessMarker,
    _fifo: Fifo,
}

impl Family {
    /// Starts it; `last` is what the root does when all others are there.
    async fn start(client: &mut TestClient, id: &str, tty: bool, last: &str) -> Self {
        let (process_count, fifo) = (ProcessMarker::new(), Fifo::new());
        let script = format!("{FAMILY}\n{last}");
        let mut more = with_fifo(&process_count, &fifo);
        more["tty"] = json!(tty);
        client.start(id, &["/bin/sh", "-c", &script], more).await.unwrap();
        Self { process_count, _fifo: fifo }
    }
}

/// Params of a process whose `$FIFO` is the pipe.
fn with_fifo(process_count: &ProcessMarker, fifo: &Fifo) -> serde_json::Value {
    let mut more = process_count.params();
    more["env"]["FIFO"] = json!(fifo.path());
    more
}

fn kill(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(pid.cast_signed()).expect("a pid"), signal).expect("it is ours");
}
