//! Shutdown: by signal, by the end of stdin, and by the exit of the guardian.

use std::process::Stdio;
use std::time::{Duration, Instant};

use exec_server_testkit::executor::Signal;
use exec_server_testkit::http::UPGRADE;
use exec_server_testkit::isolation::isolate;
use exec_server_testkit::{HttpConnection, TestClient, TestExecutor};
use rustix::process::{Pid, test_kill_process};
use serde_json::json;

#[tokio::test]
async fn a_signal_ends_processes_then_connections_then_the_server() {
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let mut server = TestExecutor::start().await;
        let mut client = server.client().await;
        let pids = start_tree(&mut client, "trap 'echo bye; exit 3' TERM").await;
        server.signal(signal);
        let finished = client.finish("p").await;
        assert_eq!(finished.text(), "bye\n", "{signal:?}");
        assert_eq!(finished.exited["exitCode"], 3);
        assert_eq!(finished.exited["reason"], "serverShutdown");
        let close_frame = client.close_frame().await;
        assert_eq!(close_frame, Some((1001, "server shutting down".to_owned())));
        assert_eq!(server.wait().await.code(), Some(0), "{signal:?}");
        are_gone(&pids);
    }
}

#[tokio::test]
async fn a_process_that_ignores_sigterm_does_not_block_the_shutdown() {
    let mut server = TestExecutor::start().await;
    let mut client = server.client().await;
    let pids = start_tree(&mut client, "trap '' TERM INT HUP").await;
    server.signal(Signal::TERM);
    let finished = client.finish("p").await;
    assert_eq!(finished.exited["reason"], "serverShutdown");
    assert_eq!(finished.exit_code, 137);
    assert_eq!(client.close_frame().await.map(|(code, _)| code), Some(1001));
    assert_eq!(server.wait().await.code(), Some(0));
    are_gone(&pids);
}

#[tokio::test]
async fn the_grace_of_exited_processes_is_not_waited_for() {
    let mut shortest = Duration::MAX;
    for _ in 0..5 {
        let mut server = TestExecutor::start().await;
        let mut client = server.client().await;
        // One closed process with retained output, and one that exits on SIGTERM.
        client.sh("closed", "echo done").await;
        start_tree(&mut client, ":").await;
        let started = Instant::now();
        server.signal(Signal::TERM);
        assert_eq!(server.wait().await.code(), Some(0));
        shortest = shortest.min(started.elapsed());
    }
    // Half a shutdown is the grace; on a busy machine one of five is still faster.
    assert!(shortest < Duration::from_millis(800), "{shortest:?}");
}

#[tokio::test]
async fn a_client_that_takes_nothing_does_not_keep_the_server() {
    let mut server = TestExecutor::start().await;
    let mut client = server.client().await;
    client.start("flood", &["/usr/bin/yes"], json!({})).await.unwrap();
    client.wait_output("flood", "y").await;
    server.signal(Signal::TERM);
    assert_eq!(server.wait().await.code(), Some(0));
}

#[tokio::test]
async fn during_shutdown_a_server_is_live_but_not_ready() {
    let mut server = TestExecutor::start().await;
    let mut client = server.client().await;
    let mut http = HttpConnection::open(server.url()).await;
    assert_eq!(http.request("GET", "/readyz", &[]).await.status, 200);
    // It reports the signal and does not exit.
    start_tree(&mut client, "trap 'echo told' TERM").await;
    server.signal(Signal::TERM);
    client.wait_output("p", "told").await;
    for (path, status) in [("/readyz", 503), ("/healthz", 503), ("/livez", 200)] {
        assert_eq!(http.request("GET", path, &[]).await.status, status, "{path}");
    }
    let refused = http.request("GET", "/", &UPGRADE).await;
    assert_eq!((refused.status, refused.body.as_str()), (503, "the server is shutting down"));
    assert_eq!(server.wait().await.code(), Some(0));
}

#[tokio::test]
async fn a_session_that_waits_for_its_client_ends_too() {
    let mut server = TestExecutor::start().await;
    let mut client = server.client().await;
    let pids = start_tree(&mut client, ":").await;
    drop(client);
    server.signal(Signal::TERM);
    assert_eq!(server.wait().await.code(), Some(0));
    are_gone(&pids);
}

#[tokio::test]
async fn under_nohup_a_hangup_ends_nothing() {
    let mut builder = TestExecutor::builder();
    let program = builder.command().as_std().get_program().to_owned();
    let mut nohup = tokio::process::Command::new("nohup");
    isolate(nohup.as_std_mut());
    // On a terminal, nohup would send stderr to stdout.
    nohup.arg(program).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    nohup.kill_on_drop(true);
    *builder.command() = nohup;
    let mut server = builder.start().await;
    let mut client = server.client().await;
    server.signal(Signal::HUP);
    // Long enough for a server that would exit.
    for round in 0..20 {
        let finished = client.sh(&format!("p{round}"), "echo still here").await;
        assert_eq!(finished.text(), "still here\n");
        assert_eq!(finished.exited["reason"], "exited");
    }
    server.signal(Signal::TERM);
    assert_eq!(client.close_frame().await.map(|(code, _)| code), Some(1001));
    assert_eq!(server.wait().await.code(), Some(0));
}

#[tokio::test]
async fn the_end_of_stdin_stops_a_server_with_the_option() {
    for by_environment in [false, true] {
        let builder = TestExecutor::builder();
        let builder = match by_environment {
            true => builder.env("CODEX_EXEC_SERVER_EXIT_ON_STDIN_CLOSE", "true"),
            false => builder.args(&["--exit-on-stdin-close"]),
        };
        let mut server = builder.start().await;
        let mut client = server.client().await;
        let pids = start_tree(&mut client, ":").await;
        server.write_stdin(b"whatever comes is ignored\n").await;
        assert_eq!(client.sh("q", "echo still here").await.text(), "still here\n");
        server.close_stdin();
        assert_eq!(client.finish("p").await.exited["reason"], "serverShutdown");
        assert_eq!(client.close_frame().await.map(|(code, _)| code), Some(1001));
        assert_eq!(server.wait().await.code(), Some(0));
        are_gone(&pids);
    }
    // With stdin at its end, it stops right after the start.
    let (code, stdout, _) = TestExecutor::builder().args(&["--exit-on-stdin-close"]).run().await;
    assert_eq!((code, stdout.lines().count()), (0, 1));
}

#[tokio::test]
async fn without_the_option_the_end_of_stdin_is_ignored() {
    for value in [None, Some("false")] {
        let mut builder = TestExecutor::builder();
        builder.command().env_remove("CODEX_EXEC_SERVER_EXIT_ON_STDIN_CLOSE");
        if let Some(value) = value {
            builder = builder.env("CODEX_EXEC_SERVER_EXIT_ON_STDIN_CLOSE", value);
        }
        let mut server = builder.start().await;
        server.close_stdin();
        assert_eq!(server.client().await.sh("p", "echo still here").await.text(), "still here\n");
    }
    let bad = TestExecutor::builder().env("CODEX_EXEC_SERVER_EXIT_ON_STDIN_CLOSE", "1").run().await;
    assert_eq!(bad.0, 2);
}

#[tokio::test]
async fn children_do_not_learn_how_the_server_was_started() {
    let server = TestExecutor::builder()
        .env("CODEX_EXEC_SERVER_EXIT_ON_STDIN_CLOSE", "false")
        .env("SEEN_BY_CHILDREN", "yes")
        .start()
        .await;
    let policy = json!({"inherit": "all", "ignoreDefaultExcludes": true, "exclude": [], "set": {}, "includeOnly": []});
    let mut client = server.client().await;
    let finished = client.run("p", &["/usr/bin/env"], json!({"envPolicy": policy})).await;
    assert!(finished.text().contains("SEEN_BY_CHILDREN=yes"));
    assert!(!finished.text().contains("EXIT_ON_STDIN_CLOSE"), "{}", finished.text());
}

#[tokio::test]
async fn the_death_of_the_guardian_ends_everything_in_order() {
    let mut server = TestExecutor::start().await;
    let mut client = server.client().await;
    let pids = start_tree(&mut client, ":").await;
    server.signal(Signal::KILL);
    assert_eq!(client.finish("p").await.exited["reason"], "serverShutdown");
    assert_eq!(client.close_frame().await.map(|(code, _)| code), Some(1001));
    are_gone(&pids);
    server.wait().await;
}

/// Runs `setup` in a shell that then waits in the foreground of a child and a detached one; returns all their ids.
async fn start_tree(client: &mut TestClient, setup: &str) -> Vec<i32> {
    let script = format!(
        "{setup}\n sleep 1000 & one=$!\n setsid sleep 1000 & two=$!\n \
         echo $$ $one $two ready; while :; do wait; sleep 0.01; done"
    );
    client.start("p", &["/bin/sh", "-c", &script], json!({})).await.expect("the shell starts");
    let line = client.wait_output("p", "ready\n").await;
    line.split(' ').filter_map(|word| word.parse().ok()).collect()
}

/// None of the processes is left.
fn are_gone(pids: &[i32]) {
    assert_eq!(pids.len(), 3);
    for pid in pids {
        let pid = Pid::from_raw(*pid).expect("a process id is positive");
        assert_eq!(test_kill_process(pid), Err(rustix::io::Errno::SRCH), "{pid:?} is alive");
    }
}
