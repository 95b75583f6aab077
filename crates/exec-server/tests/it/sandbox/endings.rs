//! However a sandbox ends, no process, mount or placeholder is left.

use exec_server_testkit::executor::Signal;
use exec_server_testkit::process_count::{children, is_unused, state, warm_sandboxes};
use exec_server_testkit::{ProcessMarker, TestExecutor, eventually};
use rustix::process::{Pid, kill_process};

use super::fixture::{SandboxFixture, as_each_user};
use super::*;
use crate::files::host::names;

/// Daemons of each kind, each of which tries to create a protected name.
const DAEMONS: &str = "
    keep() { while :; do true > .git; true > .codex; done 2>/dev/null; }
    (setsid sh -c 'echo up; exec sleep 1000' &)
    setsid sh -c '(sh -c \"echo up; exec sleep 1000\" </dev/null >&2 &)' &
    for number in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16; do (keep &); done
    keep &
    echo up
";

/// Starts the daemons and waits until they run.
async fn start_daemons(fixture: &mut SandboxFixture, id: &str, then: &str) -> ProcessMarker {
    let process_count = ProcessMarker::new();
    let mut params = fixture.params(&fixture.workspace("restricted"));
    params["pipeStdin"] = json!(true);
    let mark = process_count.params();
    let (params_env, mark) =
        (params["env"].as_object_mut().unwrap(), mark["env"].as_object().unwrap());
    params_env.extend(
        mark.iter()
            .filter(|(name, _)| *name != "PATH")
            .map(|(name, value)| (name.clone(), value.clone())),
    );
    let script = format!("{DAEMONS}{then}");
    fixture.client.start(id, &["/bin/sh", "-c", &script], params).await.expect("it starts");
    let mut ups = 0;
    while ups < 3 {
        ups += fixture.client.wait_output(id, "up").await.matches("up").count();
    }
    process_count
}

/// Children of a process, without zygotes and warm sandboxes.
fn launched(pid: u32) -> Vec<i32> {
    children(pid).into_iter().filter(|child| !is_zygote(*child) && !is_unused(*child)).collect()
}

fn is_zygote(pid: i32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name == "exec-zygote\n")
}

#[tokio::test]
async fn terminate_ends_everything_before_protected_names_are_free() {
    as_each_user(async |fixture| {
        for round in 0..15 {
            let id = format!("p{round}");
            let process_count = start_daemons(fixture, &id, "wait").await;
            assert!(fixture.work().join(".git").is_dir());
            assert!(fixture.client.terminate(&id, None).await);
            assert_eq!(fixture.client.finish(&id).await.exit_code, 137);
            process_count.gone().await;
            let work = fixture.work();
            eventually("nothing is left", || {
                names(&work).iter().all(|name| !work.join(name).is_dir())
            })
            .await;
            assert!(names(&work).is_empty(), "round {round}: {:?}", names(&work));
        }
    })
    .await;
}

#[tokio::test]
async fn the_end_of_the_command_ends_everything_else() {
    as_each_user(async |fixture| {
        for round in 0..5 {
            let id = format!("p{round}");
            let process_count = start_daemons(fixture, &id, "read _; exit 7").await;
            fixture.client.write(&id, "w", "\n").await.unwrap();
            assert_eq!(fixture.client.finish(&id).await.exit_code, 7);
            process_count.gone().await;
            assert!(names(&fixture.work()).is_empty(), "{:?}", names(&fixture.work()));
        }
        let server = fixture.server.serving_pid();
        eventually("no zombie is left", || {
            children(server).into_iter().all(|pid| state(pid) != Some('Z'))
        })
        .await;
    })
    .await;
}

#[tokio::test]
async fn a_kill_of_any_process_around_the_command_leaves_nothing() {
    as_each_user(async |fixture| {
        // The launcher and init.
        for depth in [0, 1] {
            let id = format!("p{depth}");
            let process_count = start_daemons(fixture, &id, "wait").await;
            let living =
                |pid| launched(pid).into_iter().find(|pid| state(*pid) != Some('Z')).unwrap();
            let mut victim = living(fixture.server.serving_pid());
            for _ in 0..depth {
                victim = living(victim.cast_unsigned());
            }
            kill_process(Pid::from_raw(victim).unwrap(), Signal::KILL).unwrap();
            assert_eq!(fixture.client.finish(&id).await.exit_code, 137);
            process_count.gone().await;
            let work = fixture.work();
            eventually("nothing is left", || !work.join(".git").is_dir()).await;
            assert!(names(&work).is_empty(), "depth {depth}: {:?}", names(&work));
            let server = fixture.server.serving_pid();
            eventually("no process is left", || launched(server).is_empty()).await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_killed_zygote_is_replaced_and_zygotes_end_with_the_server() {
    as_each_user(async |fixture| {
        let sandbox = fixture.workspace("restricted");
        let server = fixture.server.serving_pid();
        let zygotes = || children(server).into_iter().filter(|pid| is_zygote(*pid));
        for _ in 0..3 {
            assert_eq!(fixture.run(&sandbox, "echo in").await.text(), "in\n");
            eventually("the next sandboxes wait", || warm_sandboxes(server).len() == 2).await;
            // A launcher has the name of its zygote at first, but does not sleep until it has its own.
            for zygote in zygotes().filter(|pid| state(*pid) == Some('S')) {
                kill_process(Pid::from_raw(zygote).unwrap(), Signal::KILL).unwrap();
            }
        }
        let last = fixture.run(&sandbox, "echo in").await;
        assert_eq!(last.text(), "in\n", "{last:?}");
        let left: Vec<i32> = zygotes().collect();
        assert!(!left.is_empty());
        kill_process(Pid::from_raw(server.cast_signed()).unwrap(), Signal::KILL).unwrap();
        eventually("they are gone", || {
            left.iter().all(|pid| matches!(state(*pid), None | Some('Z')))
        })
        .await;
    })
    .await;
}

#[tokio::test]
async fn a_server_that_is_killed_leaves_nothing() {
    as_each_user(async |fixture| {
        let process_count = start_daemons(fixture, "p", "wait").await;
        let serving = Pid::from_raw(fixture.server.serving_pid().cast_signed()).unwrap();
        kill_process(serving, Signal::KILL).unwrap();
        fixture.server.wait().await;
        process_count.gone().await;
        assert!(names(&fixture.work()).is_empty(), "{:?}", names(&fixture.work()));
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(!mounts.contains(fixture.root().to_str().unwrap()));
    })
    .await;
}

#[tokio::test]
async fn a_guardian_that_is_killed_leaves_nothing() {
    as_each_user(async |fixture| {
        let process_count = start_daemons(fixture, "p", "wait").await;
        fixture.server.signal(Signal::KILL);
        fixture.server.wait().await;
        process_count.gone().await;
        let work = fixture.work();
        eventually("nothing is left", || names(&work).is_empty()).await;
    })
    .await;
}

#[tokio::test]
async fn a_server_that_gets_sigterm_leaves_nothing() {
    as_each_user(async |fixture| {
        let process_count = start_daemons(fixture, "p", "wait").await;
        fixture.server.signal(Signal::TERM);
        fixture.server.wait().await;
        process_count.gone().await;
        assert!(names(&fixture.work()).is_empty(), "{:?}", names(&fixture.work()));
    })
    .await;
}

#[tokio::test]
async fn a_session_that_expires_leaves_nothing() {
    let server = TestExecutor::start_with(&["--session-linger", "100ms"]).await;
    let mut fixture = SandboxFixture::new(server, None).await;
    let process_count = start_daemons(&mut fixture, "p", "wait").await;
    // Its first client, and the connection with it, is gone.
    fixture.client = fixture.server.client().await;
    process_count.gone().await;
    let work = fixture.work();
    eventually("nothing is left", || names(&work).is_empty()).await;
}

#[tokio::test]
async fn a_start_that_fails_leaves_nothing() {
    as_each_user(async |fixture| {
        let params = fixture.params(&fixture.workspace("restricted"));
        for program in ["/nowhere", "nowhere", "/etc/passwd"] {
            let id = fixture.next_id();
            fixture
                .client
                .start(&id, &[program], params.clone())
                .await
                .expect_err("it cannot start");
        }
        assert!(names(&fixture.work()).is_empty(), "{:?}", names(&fixture.work()));
        let server = fixture.server.serving_pid();
        eventually("no process is left", || launched(server).is_empty()).await;
    })
    .await;
}

#[tokio::test]
async fn two_hundred_sandboxes_at_once_leave_nothing() {
    as_each_user(async |fixture| {
        let params = fixture.params(&fixture.workspace("restricted"));
        let mut asked = Vec::new();
        for number in 0..200 {
            let argv = [
                "/bin/sh",
                "-c",
                &format!("echo {number} > f{number}; cat f{number}; rm f{number}"),
            ];
            let start = exec_server_testkit::client::start_params(
                &format!("p{number}"),
                &argv,
                params.clone(),
            );
            asked.push(fixture.client.send("process/start", start).await);
        }
        for id in asked {
            fixture.client.reply(id).await.expect("it starts");
        }
        for number in 0..200 {
            let finished = fixture.client.finish(&format!("p{number}")).await;
            assert_eq!(finished.text(), format!("{number}\n"), "{finished:?}");
        }
        assert!(names(&fixture.work()).is_empty(), "{:?}", names(&fixture.work()));
    })
    .await;
}
