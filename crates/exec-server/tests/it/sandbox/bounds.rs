//! Resource bounds of a sandbox; each bound is verified before the attack starts.

use exec_server_testkit::{ProcessMarker, eventually};

use super::fixture::{SandboxFixture, as_each_user};
use super::*;
use crate::cgroups;

const PIDS: u64 = 64;

/// Starts processes until that fails, at most twice the bound, and prints the number.
const COUNT: &str =
    "i=1; while [ $i -lt 128 ]; do sleep 1000 & i=$((i+1)); echo $i; done; echo all";

/// Params of a start with a marker and limits.
fn bounded(fixture: &SandboxFixture, process_count: &ProcessMarker) -> Value {
    let mut params = fixture.params(&fixture.workspace("restricted"));
    for (name, value) in process_count.params()["env"].as_object().unwrap() {
        if name != "PATH" {
            params["env"][name] = value.clone();
        }
    }
    params["limits"] = json!({"pids": PIDS});
    params
}

/// Whether this sandbox has reached its process limit.
async fn is_bounded(fixture: &mut SandboxFixture) -> bool {
    let process_count = ProcessMarker::new();
    let params = bounded(fixture, &process_count);
    let started = match fixture.client.start("count", &["/bin/sh", "-c", COUNT], params).await {
        Ok(started) => started,
        Err(error) => {
            assert_eq!(error["data"]["kind"], "limit_unavailable", "{error}");
            eprintln!("skipped, {}", error["message"]);
            return false;
        }
    };
    assert_eq!(started["limits"]["applied"]["pids"], PIDS);
    let finished = fixture.client.finish("count").await;
    assert_eq!(finished.text().lines().last(), Some("64"), "{finished:?} {started}");
    assert!(finished.error_text().contains("ork"), "{}", finished.error_text());
    process_count.gone().await;
    true
}

#[tokio::test]
async fn a_fork_bomb_stays_small_and_ends_at_once() {
    as_each_user(async |fixture| {
        if !is_bounded(fixture).await {
            return;
        }
        let process_count = ProcessMarker::new();
        let params = bounded(fixture, &process_count);
        let bomb = attempt::command("bomb");
        fixture.client.start("bomb", &["/bin/sh", "-c", &bomb], params).await.unwrap();
        // A few of the ids are threads of the first process.
        let has_gone_off = || (60..=64).contains(&process_count.living().len());
        eventually("it has gone off", has_gone_off).await;
        // Other clients are served normally.
        let mut other = fixture.server.client().await;
        for number in 0..5 {
            let said = other.sh(&format!("p{number}"), "echo calm").await;
            assert_eq!(said.text(), "calm\n");
            assert!(has_gone_off(), "{:?}", process_count.living());
        }
        assert!(fixture.client.terminate("bomb", None).await);
        assert_eq!(fixture.client.finish("bomb").await.exit_code, 137);
        process_count.gone().await;
    })
    .await;
}

#[tokio::test]
async fn a_cgroup_bounds_a_sandbox_without_counting_what_is_around_it() {
    let Some((_cgroup, server)) = cgroups::server_with("pids").await else { return };
    let mut fixture = SandboxFixture::new(server, None).await;
    let params = bounded(&fixture, &ProcessMarker::new());
    let started = fixture.client.start("p", &["/bin/true"], params).await.unwrap();
    assert_eq!(started["limits"]["by"]["pids"], "cgroup");
    fixture.client.finish("p").await;
    assert!(is_bounded(&mut fixture).await);
}

#[tokio::test]
async fn a_sandbox_beyond_its_memory_is_killed_and_reported() {
    let Some((cgroup, server)) = cgroups::server_with("memory").await else { return };
    let mut fixture = SandboxFixture::new(server, None).await;
    let mut params = fixture.params(&fixture.workspace("restricted"));
    params["limits"] = json!({"memoryBytes": 64 << 20});
    params["pipeStdin"] = json!(true);
    let argv = ["/bin/sh", "-c", cgroups::HOG];
    fixture.client.start("p", &argv, params).await.unwrap();
    fixture.client.wait_output("p", "up").await;
    assert_eq!(cgroup.only_child("memory.max"), (64 << 20).to_string());
    fixture.client.write("p", "w", "\n").await.unwrap();
    let finished = fixture.client.finish("p").await;
    assert_eq!(finished.exited["reason"], "oomKilled", "{finished:?}");
}

#[tokio::test]
async fn a_sandbox_is_bounded_without_asking() {
    as_each_user(async |fixture| {
        let params = fixture.params(&fixture.workspace("restricted"));
        // The limits cannot be raised from inside.
        let script = "(echo 99999 > /proc/sys/kernel/pid_max) 2>/dev/null; (ulimit -p 9999) 2>/dev/null; \
                      ulimit -c; ulimit -p; cat /proc/sys/kernel/pid_max; stat -f -c '%b %S' /dev/shm; \
                      cat /proc/self/oom_score_adj";
        let started = fixture.client.start("p", &["/bin/sh", "-c", script], params).await.unwrap();
        let said = fixture.client.finish("p").await.text();
        let [core, users, pid_max, shared, oom_score] = said.lines().collect::<Vec<_>>()[..] else {
            panic!("{said}");
        };
        assert_eq!(core, "0");
        assert!(oom_score.parse::<i32>().unwrap() >= 200, "{oom_score}");
        let (blocks, size) = shared.split_once(' ').unwrap();
        let shared = blocks.parse::<u64>().unwrap() * size.parse::<u64>().unwrap();
        let limits = &started["limits"];
        assert_eq!(limits["applied"]["tmpfsBytes"], shared);
        assert_eq!(shared, 256 << 20);
        match limits["by"]["pids"].as_str() {
            Some("pidNamespace") => assert_eq!(pid_max, "4396"),
            Some("rlimit") => assert_eq!(users, "4098"),
            Some("cgroup") => {}
            _ => eprintln!("skipped, nothing bounds the processes of a sandbox here: {limits}"),
        }
        if !limits["by"]["pids"].is_null() {
            assert_eq!(limits["applied"]["pids"], 4096);
        }
    })
    .await;
}

#[tokio::test]
async fn the_smallest_and_the_largest_bound_can_be_held() {
    as_each_user(async |fixture| {
        for (pids, said) in [(1, "alone\n"), (1 << 22, "alone\nin company\n")] {
            let mut params = fixture.params(&fixture.workspace("restricted"));
            params["limits"] = json!({"pids": pids});
            let script = "echo alone; (echo in company); exit 0";
            let id = fixture.next_id();
            let started = fixture.client.start(&id, &["/bin/sh", "-c", script], params).await;
            if let Err(error) = started {
                assert_eq!(error["data"]["kind"], "limit_unavailable", "{error}");
                return eprintln!("skipped, {}", error["message"]);
            }
            assert_eq!(fixture.client.finish(&id).await.text(), said);
        }
    })
    .await;
}

#[tokio::test]
async fn shared_memory_ends_where_it_was_asked_to_end() {
    as_each_user(async |fixture| {
        let script = "head -c 3000000 /dev/zero > /dev/shm/f; wc -c < /dev/shm/f; rm /dev/shm/f; \
                      i=0; while true > /dev/shm/$i; do i=$((i+1)); [ $i -lt 9999 ] || break; done; \
                      test $i -lt 9999 && echo names, too";
        let mut params = fixture.params(&fixture.workspace("restricted"));
        params["limits"] = json!({"tmpfsBytes": 1 << 20});
        let started = fixture.client.start("p", &["/bin/sh", "-c", script], params).await.unwrap();
        assert_eq!(started["limits"]["applied"]["tmpfsBytes"], 1 << 20);
        let finished = fixture.client.finish("p").await;
        assert_eq!(finished.text(), "1048576\nnames, too\n", "{}", finished.error_text());
        assert!(finished.error_text().contains("No space left on device"));
    })
    .await;
}

#[tokio::test]
async fn files_are_bounded_inside_as_outside() {
    as_each_user(async |fixture| {
        let mut params = fixture.params(&fixture.workspace("restricted"));
        params["limits"] = json!({"fileSizeBytes": 1000, "openFiles": 50});
        let script = "ulimit -n; head -c 5000 /dev/zero > f; echo $?; wc -c < f; \
                      ulimit -f unlimited; ulimit -n 60";
        let started = fixture.client.start("p", &["/bin/sh", "-c", script], params).await.unwrap();
        assert_eq!(started["limits"]["applied"]["fileSizeBytes"], 1000);
        let finished = fixture.client.finish("p").await;
        assert_eq!(finished.text(), "50\n153\n1000\n");
        // A lowered limit cannot be raised again, not even by root without capabilities.
        assert_ne!(finished.exit_code, 0, "{}", finished.error_text());
    })
    .await;
}

#[tokio::test]
async fn a_flood_from_inside_is_delivered_and_bounded_like_any_other() {
    as_each_user(async |fixture| {
        let mut params = fixture.params(&fixture.workspace("restricted"));
        params["outputRetention"] = json!(100_000);
        let script = "head -c 20000000 /dev/zero; head -c 5000000 /dev/zero >&2";
        fixture.client.start("p", &["/bin/sh", "-c", script], params).await.unwrap();
        let finished = fixture.client.finish("p").await;
        assert_eq!((finished.stdout.len(), finished.error_text().len()), (20_000_000, 5_000_000));
        let kept = fixture.client.read("p", 0, 0).await;
        let kept = kept["chunks"].as_array().unwrap().iter();
        let bytes: usize = kept.map(|kept| exec_server_testkit::client::chunk(kept).len()).sum();
        assert!(bytes <= 100_000 + 65_536, "{bytes}");
    })
    .await;
}

#[tokio::test]
async fn no_descriptor_can_be_passed_out() {
    as_each_user(async |fixture| {
        let names = ["pass_descriptor_to_itself", "pass_descriptor_out"];
        for network in ["restricted", "enabled"] {
            let policy = fixture.workspace(network);
            let outcomes = attempt::outcomes(fixture, &policy, &names).await;
            // The attack works, but no process accepts its descriptors.
            assert_eq!(outcomes["pass_descriptor_to_itself"], "ok");
            assert_eq!(outcomes["pass_descriptor_out"], "ENOTSOCK");
            for tty in [false, true] {
                let mut params = fixture.params(&policy);
                params["tty"] = json!(tty);
                params["pipeStdin"] = json!(true);
                let id = fixture.next_id();
                let script = "ls -l /proc/$$/fd | grep -c socket:; true";
                fixture.client.start(&id, &["/bin/sh", "-c", script], params).await.unwrap();
                let finished = fixture.client.finish(&id).await;
                let said = if tty { finished.pty_text() } else { finished.text() };
                assert_eq!(said.trim(), "0");
            }
        }
    })
    .await;
}
