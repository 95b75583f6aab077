//! `fs/watch` under a sandbox: what its worker reports, and when the worker exits.

use exec_server_testkit::{TestExecutor, eventually};
use rustix::process::{Pid, Signal, kill_process};

use super::*;

/// The workers of a server that watch, by their threads.
fn watching(server: &TestExecutor) -> Vec<i32> {
    let comm = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("comm")).ok();
    let watches = |pid: i32| {
        let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten();
        threads.flatten().filter_map(comm).any(|name| name.trim() == "watch")
    };
    let parent = |pid: &i32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()
    };
    let serving = server.serving_pid().cast_signed();
    let all = std::fs::read_dir("/proc").expect("/proc is mounted").flatten();
    let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid| *pid != serving && watches(*pid))
        .filter(|pid| std::iter::successors(Some(*pid), parent).any(|it| it == serving))
        .collect()
}

/// Watches the workspace under a policy that denies `work/denied`.
async fn watch(desk: &mut FsFixture) {
    for name in ["work", "work/open", "work/denied"] {
        std::fs::create_dir(desk.path(name)).unwrap();
    }
    let entries = [
        special("root", "read"),
        special("project_roots", "write"),
        at(&desk.path("work/denied"), "deny"),
    ];
    let policy = with_entries(&[&desk.path("work")], "restricted", &entries);
    let more = json!({"watchId": "w", "recursive": true, "coalesceMs": 20, "sandbox": policy});
    desk.call("fs/watch", "work", more).await.unwrap();
    // A thread has its name a moment after it was started.
    eventually("one worker watches", || watching(&desk.server).len() == 1).await;
}

async fn read(client: &mut TestClient, after: u64) -> Value {
    let params = json!({"watchId": "w", "afterSeq": after, "waitMs": 30_000});
    client.call("fs/readChanges", params).await.unwrap()
}

/// Reads until `last` was created; every path that was reported.
async fn paths_until(client: &mut TestClient, after: &mut u64, last: &str) -> Vec<String> {
    let mut seen: Vec<String> = Vec::new();
    while !seen.iter().any(|path| path.ends_with(last)) {
        let answer = read(client, *after).await;
        assert_eq!(answer["ended"], false, "{seen:?}");
        for change in answer["changes"].as_array().unwrap() {
            *after = change["seq"].as_u64().unwrap();
            seen.push(change["path"].as_str().unwrap().to_owned());
        }
    }
    seen
}

#[tokio::test]
async fn changes_are_reported_except_below_a_denied_directory() {
    let desk = &mut FsFixture::new().await;
    watch(desk).await;
    desk.put("work/denied/secret", "x");
    std::fs::create_dir(desk.path("work/denied/sub")).unwrap();
    desk.put("work/denied/sub/secret", "x");
    desk.put("work/open/file", "x");
    let seen = paths_until(&mut desk.client, &mut 0, "/work/open/file").await;
    assert!(!seen.iter().any(|path| path.contains("/denied/")), "{seen:?}");
}

#[tokio::test]
async fn a_confined_watch_collects_while_its_client_is_away() {
    let desk = &mut FsFixture::new().await;
    watch(desk).await;
    let session = desk.client.session_id.clone();
    desk.client = desk.server.client().await;
    desk.put("work/open/away", "x");
    desk.client = crate::files::resumed(desk, &session).await;
    let mut after = 0;
    paths_until(&mut desk.client, &mut after, "/work/open/away").await;
    desk.put("work/open/back", "x");
    paths_until(&mut desk.client, &mut after, "/work/open/back").await;
}

#[tokio::test]
async fn a_worker_that_is_killed_ends_its_watch() {
    let desk = &mut FsFixture::new().await;
    watch(desk).await;
    let worker = Pid::from_raw(watching(&desk.server)[0]).unwrap();
    kill_process(worker, Signal::KILL).unwrap();
    assert_eq!(read(&mut desk.client, 0).await, json!({"changes": [], "ended": true}));
}

#[tokio::test]
async fn the_worker_exits_with_its_watch() {
    let desk = &mut FsFixture::new().await;
    watch(desk).await;
    let ended = desk.client.call("fs/unwatch", json!({"watchId": "w"})).await.unwrap();
    assert_eq!(ended, json!({"watching": true}));
    eventually("the worker has exited", || watching(&desk.server).is_empty()).await;
}

/// Readers that wait at once are answered in time, although the worker serves one after the other.
#[tokio::test]
async fn every_reader_that_waits_gets_the_next_change() {
    let desk = &mut FsFixture::new().await;
    watch(desk).await;
    let params = json!({"watchId": "w", "afterSeq": 0, "waitMs": 30_000});
    let mut asked = Vec::new();
    for _ in 0..50 {
        asked.push(desk.client.send("fs/readChanges", params.clone()).await);
    }
    // One that does not wait is not held up by the others.
    let at_once = json!({"watchId": "w", "afterSeq": 0});
    let empty = desk.client.call("fs/readChanges", at_once).await.unwrap();
    assert_eq!(empty, json!({"changes": [], "ended": false}));
    desk.put("work/open/file", "x");
    for id in asked {
        let answer = desk.client.reply(id).await.unwrap();
        assert!(answer["changes"][0]["path"].is_string(), "{answer}");
    }
}
