//! Exit codes, reasons and resource usage.

use std::time::Instant;

use exec_server_testkit::fs_fixture::FsFixture;
use exec_server_testkit::{TestClient, TestExecutor};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

#[tokio::test]
async fn a_process_that_exits_reports_reason_and_usage() {
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    let script = "i=0; while [ $i -lt 100000 ]; do i=$((i + 1)); done; exit 42";
    let start = Instant::now();
    let finished = client.sh("p", script).await;
    let took = u64::try_from(start.elapsed().as_millis()).unwrap();
    let exited = finished.exited;
    assert_eq!((&exited["exitCode"], &exited["reason"]), (&json!(42), &json!("exited")));
    assert_eq!(exited.get("signal"), None);
    let duration = exited["durationMs"].as_u64().unwrap();
    assert!(duration > 0 && duration <= took, "{duration} of {took}");
    let usage = &exited["rusage"];
    let cpu = usage["userMs"].as_u64().unwrap() + usage["systemMs"].as_u64().unwrap();
    assert!(cpu > 0 && cpu <= 2 * took, "{cpu} of {took}");
    assert_told_everywhere(&mut client, "p", &exited).await;
}

#[tokio::test]
async fn memory_usage_is_that_of_the_process_or_omitted() {
    let fixture = &mut FsFixture::new().await;
    // The server's own memory grows well beyond what a small program takes.
    fixture.write("large", &vec![b'x'; 40 << 20], json!({})).await.unwrap();
    let own = peak(fixture.server.serving_pid());
    assert!(own > 40 << 20, "{own}");
    let confined = json!({
        "permissions": {"type": "managed", "network": "restricted", "file_system": {"type": "unrestricted"}},
        "windowsSandboxLevel": "disabled",
    });
    for (id, sandbox) in [("plain", Value::Null), ("confined", confined)] {
        let more = json!({"sandbox": sandbox});
        let small = fixture.client.run(&format!("small {id}"), &["/bin/true"], more.clone()).await;
        let told = small.exited["rusage"]["maxRssBytes"].as_u64();
        assert!(told.is_none_or(|told| told < 40 << 20), "{} of {own}", small.exited);
        assert!(small.exited["rusage"]["userMs"].is_u64(), "{}", small.exited);
        let block = format!("bs={}", 2 * own);
        let dd = ["/bin/dd", "if=/dev/zero", "of=/dev/null", "count=1", &block];
        let large = fixture.client.run(&format!("large {id}"), &dd, more).await;
        let told = large.exited["rusage"]["maxRssBytes"].as_u64();
        assert!(told.is_some_and(|told| told > 2 * own), "{} of {own}", large.exited);
    }
}

/// The largest resident set that a process ever had.
fn peak(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

#[tokio::test]
async fn every_exit_code_arrives_as_it_is() {
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    for code in [0, 1, 127, 128, 130, 255] {
        let finished = client.sh(&format!("{code}"), &format!("exit {code}")).await;
        assert_eq!((finished.exit_code, &finished.exited["reason"]), (code, &json!("exited")));
    }
}

#[tokio::test]
async fn a_death_by_signal_is_128_plus_its_number_and_its_name() {
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    for (name, code) in [("HUP", 129), ("INT", 130), ("KILL", 137), ("SEGV", 139), ("TERM", 143)] {
        let exited = client.sh(name, &format!("kill -{name} $$")).await.exited;
        assert_eq!((&exited["exitCode"], &exited["reason"]), (&json!(code), &json!("signaled")));
        assert_eq!(exited["signal"], format!("SIG{name}"));
        assert_told_everywhere(&mut client, name, &exited).await;
    }
}

#[tokio::test]
async fn terminate_kills_at_once_and_returns_whether_the_root_was_running() {
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    assert!(!client.terminate("gone", None).await);
    for tty in [false, true] {
        let id = &format!("{tty}");
        let argv = ["/bin/sh", "-c", "trap '' TERM; echo ready; sleep 1000; sleep 1000"];
        client.start(id, &argv, json!({"tty": tty})).await.unwrap();
        client.wait_output(id, "ready").await;
        assert!(client.terminate(id, None).await);
        let exited = client.finish(id).await.exited;
        assert_eq!((&exited["exitCode"], &exited["signal"]), (&json!(137), &json!("SIGKILL")));
        assert_eq!(exited["reason"], "terminated");
        assert!(!client.terminate(id, None).await);
        assert_told_everywhere(&mut client, id, &exited).await;
    }
    // A process that exited on its own keeps its reason.
    let exited = client.sh("done", "exit 3").await.exited;
    assert!(!client.terminate("done", None).await);
    assert_told_everywhere(&mut client, "done", &exited).await;
}

#[tokio::test]
async fn an_interrupt_runs_the_trap_and_keeps_its_exit_code() {
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    let argv = ["/bin/sh", "-c", "trap 'echo caught; exit 9' INT; echo ready; sleep 1000 & wait"];
    client.start("p", &argv, json!({})).await.unwrap();
    client.wait_output("p", "ready").await;
    client.signal("p", "interrupt").await;
    client.wait_output("p", "caught").await;
    let exited = client.process_event("p").await["params"].take();
    assert_eq!((&exited["exitCode"], &exited["reason"]), (&json!(9), &json!("exited")));
    // The shell's job ignores interrupts, as jobs in the background do.
    client.terminate("p", None).await;
    client.finish("p").await;
}

#[tokio::test]
async fn a_signal_to_an_exited_process_is_no_error_but_an_unknown_signal_is() {
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    client.signal("gone", "interrupt").await;
    client.sh("done", "exit 0").await;
    client.signal("done", "kill").await;
    for signal in ["SIGINT", "segv", "", "Interrupt"] {
        let params = json!({"processId": "gone", "signal": signal});
        let error = client.call("process/signal", params).await.expect_err(signal);
        assert_eq!(error["code"], -32602);
    }
}

#[tokio::test]
async fn a_process_that_takes_too_long_is_ended() {
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    let more = json!({"timeoutMs": 200});
    let exited = client.run("p", &["/bin/sleep", "1000"], more).await.exited;
    assert_eq!((&exited["reason"], &exited["exitCode"]), (&json!("timeout"), &json!(143)));
    assert_eq!(exited["signal"], "SIGTERM");
    assert!(exited["durationMs"].as_u64().unwrap() >= 200, "{exited}");
    assert_told_everywhere(&mut client, "p", &exited).await;
    // A process that exits in time is not affected.
    let finished = client.run("quick", &["/bin/true"], json!({"timeoutMs": 600_000})).await;
    assert_eq!(finished.exited["reason"], "exited");
}

#[tokio::test]
async fn a_process_that_ignores_its_time_limit_is_killed() {
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    let argv = ["/bin/sh", "-c", "trap '' TERM; echo ready; while :; do sleep 1000; done"];
    let exited = client.run("p", &argv, json!({"timeoutMs": 500})).await.exited;
    assert_eq!((&exited["reason"], &exited["signal"]), (&json!("timeout"), &json!("SIGKILL")));
    assert_eq!(exited["exitCode"], 137);
}

#[tokio::test]
async fn a_process_may_write_output_after_its_timeout() {
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    let script = "trap 'echo goodbye; exit 5' TERM; sleep 1000 & wait";
    let finished = client.run("p", &["/bin/sh", "-c", script], json!({"timeoutMs": 300})).await;
    assert_eq!((finished.text().as_str(), finished.exit_code), ("goodbye\n", 5));
    assert_eq!(finished.exited["reason"], "timeout");
    assert_eq!(finished.exited.get("signal"), None);
}

#[tokio::test]
async fn a_process_that_falls_silent_is_ended() {
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    let argv = ["/bin/sh", "-c", "echo one; read _; echo two >&2; sleep 1000"];
    let more = json!({"idleTimeoutMs": 1500, "pipeStdin": true});
    client.start("p", &argv, more).await.unwrap();
    client.wait_output("p", "one").await;
    // Nothing arrives within this time.
    client.read("p", 1, 400).await;
    client.write("p", "1", "\n").await.unwrap();
    client.wait_output("p", "two").await;
    let exited = client.finish("p").await.exited;
    assert_eq!((&exited["reason"], &exited["signal"]), (&json!("idleTimeout"), &json!("SIGTERM")));
    // The second output restarted the idle timeout.
    assert!(exited["durationMs"].as_u64().unwrap() >= 1900, "{exited}");
}

#[tokio::test]
async fn a_process_whose_client_is_slow_has_not_fallen_silent() {
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    let more = json!({"idleTimeoutMs": 300});
    // More than all buffers between the child and this client hold.
    let script = "head -c 67108864 /dev/zero; exit 6";
    client.start("p", &["/bin/sh", "-c", script], more).await.unwrap();
    // This test measures time by its own clock, and the process's output is not read meanwhile.
    let mut other = server.client().await;
    other.start("clock", &["/bin/cat"], json!({"pipeStdin": true})).await.unwrap();
    other.read("clock", 0, 1000).await;
    let finished = client.finish("p").await;
    assert_eq!((finished.exit_code, finished.stdout.len()), (6, 67_108_864), "{}", finished.exited);
    assert_eq!(finished.exited["reason"], "exited");
}

#[tokio::test]
async fn exits_at_shutdown_are_reported_before_the_connection_closes() {
    let mut server = TestExecutor::start().await;
    let mut client = server.client().await;
    let argv = ["/bin/sh", "-c", "trap 'echo goodbye; exit 5' TERM; echo ready; sleep 1000 & wait"];
    client.start("polite", &argv, json!({})).await.unwrap();
    client.wait_output("polite", "ready").await;
    client.start("plain", &["/bin/sleep", "1000"], json!({})).await.unwrap();
    let pid = Pid::from_raw(server.pid().cast_signed()).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    let polite = client.finish("polite").await;
    assert_eq!((polite.text().as_str(), polite.exit_code), ("goodbye\n", 5));
    assert_eq!(polite.exited["reason"], "serverShutdown");
    let plain = client.finish("plain").await.exited;
    assert_eq!((&plain["reason"], &plain["signal"]), (&json!("serverShutdown"), &json!("SIGTERM")));
    let (code, reason) = client.close_frame().await.expect("a close frame");
    assert_eq!((code, reason.as_str()), (1001, "server shutting down"));
    assert_eq!(server.wait().await.code(), Some(0));
}

/// `process/read` and `process/list` report the exit as `process/exited` does.
async fn assert_told_everywhere(client: &mut TestClient, id: &str, exited: &Value) {
    let read = client.read(id, 0, 0).await;
    let list = client.call("process/list", json!({})).await.unwrap();
    let listed = list["processes"].as_array().unwrap().iter().find(|p| p["processId"] == id);
    for told in [&read, listed.expect("it is still listed")] {
        for member in ["exitCode", "signal", "reason", "durationMs", "rusage"] {
            assert_eq!(told.get(member), exited.get(member), "{member}");
        }
        assert_eq!(told["exited"], true);
    }
}
